"""Earlier metrics of position and sinks beside ours: on one dump, and on fields whose answer is known."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from posstats.arguments import labels, number, whole_number
from posstats.dataset.blocks import Block, by_layer, head_blocks, read
from posstats.dataset.door import check_depths, chosen, whole_dump
from posstats.dataset.parameters import explained
from posstats.dataset.simulate import recorded_dataset
from posstats.estimators.leakage import leakage, magnitude, shares
from posstats.estimators.rows import conditions
from posstats.execution.parallel import side_by_side
from posstats.results.comparison import EarlierMetricsResult, TrapResult
from posstats.stats.earlier import (
    SINK_EPSILON,
    diagonal_centred,
    explicit_offsets,
    linear_position_r2,
    massive_activations,
    sink_rate,
)
from posstats.stats.inference.options import Inference
from posstats.stats.pair_products.terms import Array
from posstats.stats.synthetic.simulate import explicit_logits, record_logits
from posstats.vocabulary import EARLY_BIN, RESIDUAL, TERMS, Note, analysed_half

#: Tokens over which Gu et al. average the attention on position 0.
SINK_LENGTH = 64
#: Field of the trap table -> the terms its effect belongs to.
TRAPS = {
    "relative": "mask alone",
    "sink column": "sink",
    "linear query term": "mask alone",
    "log(i+1) query term": "mask alone",
    "log(j+1) key term": "redistribution",
    "iid noise": "mask alone",
}
#: What a dump holds of attention, and of the residual stream, that these metrics are made of.
_ATTENTION = ("logit", "sink_logit", "log_denominator_rest", "learned_sink")
_LINE = ("linear_r2_offset", "linear_r2_position")
_STREAM = ("trajectory", "residual_norm")
_FEWEST_SEQUENCES = 8


@explained
def earlier_metrics(
    data: xr.Dataset,
    *,
    offsets: Sequence[int] | None = None,
    sink_length: int = SINK_LENGTH,
    level: float = 0.95,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> EarlierMetricsResult:
    """Put earlier metrics beside leakage and the residual share, for every condition and layer of one dump.

    ================================ ==================================================================================
    column                           what it is, and what it cannot see
    ================================ ==================================================================================
    linear_delta_r2                  R-squared that a straight line in absolute position adds to one in the offset,
                                     over all causal pairs of a sequence; mean over sequences and heads. Misses
                                     sinks, bends and the mask; shrinks with content noise; sees trends that the
                                     softmax cancels.
    diagonal_fraction, diagonal_rms  what is left of the logits' mean over sequences and heads when the mean of every
                                     diagonal is subtracted (Kim et al.), at the recorded offsets, key 0 included: as a
                                     fraction of the variance, and in nats. Misses the mask. Reads logits, log Z
                                     included, so that numbers which the softmax cancels change it; counts content
                                     noise that averaging has left as position.
    sink_rate                        share of heads and sequences whose mean attention on position 0 exceeds 0.3 over
                                     the first `sink_length` queries (Gu et al.). Misses what stays below the
                                     threshold; depends on the length.
    massive_activations              number of features of the residual stream at position 0, where this layer reads
                                     it, above 100 and 1,000 times the median magnitude over all tokens and features,
                                     mean over sequences (Sun et al.). Says nothing of attention.
    first_norm_ratio                 norm of the residual stream at position 0 over the median norm of the others, mean
                                     over sequences; our companion to the flags.
    leakage, residual_share          ours, pooled over the heads of the layer, with intervals
                                     (:func:`posstats.leakage`, :func:`posstats.shares`), at the offsets that every
                                     late query sees.
    ================================ ==================================================================================

    A metric that a dump holds nothing of (simulated ones: the line, massive activations) is NaN.

    Parameters
    ----------
    %(dump)s
    %(offsets)s
    sink_length : int
        Queries of the sink rate; all of a shorter sequence.
    %(level)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s

    Returns
    -------
    EarlierMetricsResult

    Raises
    ------
    InputError
        For an option that is not allowed, or data that are not a whole dump.
    DesignError
        With fewer than 5 documents or no analysed query.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    References
    ----------
    Kim et al. (2025), arXiv:2509.21042; Gu et al. (2025), arXiv:2410.10781; Sun et al. (2024), arXiv:2402.17762.

    Examples
    --------
    >>> import posstats as ps
    >>> from posstats.estimators.earlier_metrics import earlier_metrics
    >>> result = earlier_metrics(ps.simulate(n=30, length=64, layers=2, seed=0).dataset, n_resamples=99)
    >>> row = result.table.iloc[0]
    >>> float(row.sink_rate), bool(row.leakage_q < 0.05)  # no sink, and yet position leaks
    (0.0, True)
    """
    inference = Inference(level, None, n_resamples, n_permutations, adjust, seed)
    sink_length = whole_number("sink_length", sink_length, 1)
    data = chosen(whole_dump(data, _STREAM, "Earlier metrics read a dump"), "offset", offsets)
    check_depths(data)
    late = read(data.visible_keys.isel(query=slice(data.sizes["query"] // 2, None)))
    near = data.offset.values[data.offset.values < int(late.min())]
    reached = data.sel(offset=near) if len(near) else data  # where it is none, the estimators say so
    ours, share = (
        estimator(reached, by="layer", octaves=False, **inference.options()) for estimator in (leakage, shares)
    )
    rows = []
    job = partial(_attention_metrics, sink_length=min(sink_length, data.sizes["query"]))
    for name, one in conditions(data):
        blocks = head_blocks(one[[name for name in (*_ATTENTION, *_LINE) if name in one]])
        for layer, parts in by_layer(side_by_side(job, blocks)):
            by_head = {metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]}
            pooled = _pooled(by_head, data.offset.values.astype(np.int64))
            rows.append({"condition": name, "layer": layer} | pooled | _stream_metrics(one, layer))
    table = pd.DataFrame(rows)
    key, limits = ["condition", "layer"], ["estimate", "low", "high"]
    leaks = ours.table[[*key, *limits, "q"]].rename(columns=lambda name: _named("leakage", name, key))
    residual = share.table.loc[share.table.term == RESIDUAL, [*key, *limits, "note"]]
    residual = residual.rename(columns=lambda name: _named("residual_share", name, [*key, "note"]))
    table = table.merge(leaks, on=key, validate="1:1").merge(residual, on=key, validate="1:1")
    table.loc[table.diagonal_fraction.isna(), "note"] += "; the logits do not vary"
    table["note"] = table.note.str.removeprefix("; ")
    settings = ours.settings | {"sink_length": sink_length, "sink_epsilon": SINK_EPSILON}
    return EarlierMetricsResult(table, settings, (*ours.notes, *_left_out(data, reached)))


def trap_table(
    *,
    n: int = 24,
    length: int = 64,
    offsets: Sequence[int] = (0, 1, 2, 4, 8),
    sink: float = 4.0,
    slope: float = 0.02,
    noise: float = 1.0,
    seed: int = 0,
) -> TrapResult:
    """Attribute fields of known logits, our way and the earlier ways.

    Every field is the same nonlinear relative profile, ``s[i, j] = -log(1 + i - j) / 2``, with one effect added:

    =================== =========================== =================================================================
    field               added                       what it does to log attention
    =================== =========================== =================================================================
    relative            nothing                     the mask alone makes it depend on the position
    sink column         `sink` on key 0             position 0 takes attention from all others
    linear query term   ``slope * i``               nothing: what all keys of a query share cancels in the softmax
    log(i+1) query term ``log(i + 1)``              nothing, likewise
    log(j+1) key term   ``log(j + 1)``              later keys get more than their distance gives them
    iid noise           noise of sd `noise`         no position, except that denominators of few keys fluctuate more
    =================== =========================== =================================================================

    Parameters
    ----------
    n : int
        Sequences, a document each; at least 8.
    length : int
        Tokens per sequence, at least 32 and divisible by 4.
    offsets : sequence of int
        Offsets of our estimates. The earlier metrics see all pairs, key 0 included.
    sink, slope, noise : float
        Sizes of the effects, in nats.
    seed : int
        Seed of the noise.

    Returns
    -------
    TrapResult
        Per `field`: `expected` (the terms that the effect belongs to), `leakage` (nats squared), `share_<term>` of it,
        `magnitude_<term>` over the queries [2, 16) (nats squared), and the earlier metrics `linear_delta_r2`,
        `diagonal_fraction` and `sink_rate` (:func:`earlier_metrics`).

    Raises
    ------
    InputError
        For sizes that are too small or negative noise.
    DesignError
        If the offsets leave no analysed query.

    Notes
    -----
    A drift that all keys of a query share is nothing that softmax sees: every number of ours is that of the field
    `relative`, and only the earlier metric moves.

    Examples
    --------
    >>> from posstats.estimators.earlier_metrics import trap_table
    >>> table = trap_table().table.set_index("field")
    >>> table.leakage[["relative", "linear query term"]].round(6).tolist()  # the softmax cancels the line
    [0.200099, 0.200099]
    >>> round(float(table.linear_delta_r2["linear query term"]), 2)  # the earlier metric does not
    0.35
    """
    # Early queries 2 .. 15 lie in the analysed half, and leakage can be significant.
    length, n = whole_number("length", length, 32, 4096), whole_number("n", n, _FEWEST_SEQUENCES)
    analysed = analysed_half(length)
    sink, slope, noise = number("sink", sink), number("slope", slope), number("noise", noise, 0)
    seed = whole_number("seed", seed, 0, 2**64 - 1)
    offsets = labels("offsets", offsets, range(analysed - 1), "whole numbers")
    position: Array = np.arange(length, dtype=np.float64)
    flat: Array = np.zeros(length)
    late: Array = np.log(position + 1.0)
    # sink column, query term, key term, noise
    effects: dict[str, tuple[float, Array, Array, float]] = {
        "relative": (0.0, flat, flat, 0.0),
        "sink column": (sink, flat, flat, 0.0),
        "linear query term": (0.0, slope * position, flat, 0.0),
        "log(i+1) query term": (0.0, late, flat, 0.0),
        "log(j+1) key term": (0.0, flat, late, 0.0),
        "iid noise": (0.0, flat, flat, noise),
    }
    logits = {
        name: explicit_logits(length, n, sink_column=column, query_drift=query, key_drift=key, noise=sd, seed=seed)
        for name, (column, query, key, sd) in effects.items()
    }
    terms = recorded_dataset(record_logits(logits, offsets), length, {"model_id": "explicit logits"})
    by_field = pd.DataFrame({"field": list(TRAPS), "expected": list(TRAPS.values())}).set_index("field")
    share = shares(terms, octaves=False, n_resamples=99, n_permutations=999).table
    by_field["leakage"] = share[share.term == RESIDUAL].set_index("condition").leakage
    size = magnitude(terms, n_resamples=99, n_permutations=1).table
    for name, part in (("share", share), ("magnitude", size[size.queries == EARLY_BIN])):
        wide = part.pivot(index="condition", columns="term", values="estimate")
        for term in (*TERMS[1:], RESIDUAL):
            by_field[f"{name}_{term}"] = wide[term]
    earlier = pd.DataFrame({name: _explicit_metrics(field) for name, field in logits.items()}).T
    settings: dict[str, object] = {"n_documents": n, "length": length, "offsets": tuple(offsets)}
    settings |= {"sink": sink, "slope": slope, "noise": noise, "seed": seed}
    return TrapResult(by_field.join(earlier).reset_index(), settings)


def _left_out(data: xr.Dataset, reached: xr.Dataset) -> list[Note]:
    """What of a dump some columns are not made of."""
    notes = []
    if beyond := sorted({*data.offset.values.tolist()} - {*reached.offset.values.tolist()}):
        notes.append(f"leakage and residual share leave out offsets that some late query does not see: {beyond}")
    if absent := [name for name in (*_LINE, "residual_median") if name not in data]:
        notes.append(f"metrics without a value: the dump lacks {', '.join(absent)}")
    return [Note(note, "design") for note in notes]


def _attention_metrics(block: Block, *, sink_length: int) -> dict[str, Array]:
    """Earlier metrics of the logits and of the attention on position 0, by head."""
    (layer,) = block.load()
    per_query = ("sequence", "head", "query")
    sink_logit = layer.sink_logit.transpose(*per_query).values.astype(np.float64)
    rest = layer.log_denominator_rest.transpose(*per_query).values.astype(np.float64)
    rest = np.logaddexp(rest, layer.learned_sink.values.astype(np.float64)[:, None])
    seen = np.where(np.isnan(sink_logit), -np.inf, sink_logit)
    attention = np.exp(seen - np.logaddexp(seen, rest))
    logit = layer.logit.transpose(*per_query, "offset").values.astype(np.float64)
    offset = layer.offset.values.astype(np.int64)
    logit[..., offset, np.arange(len(offset))] = sink_logit[..., offset]  # on each diagonal, the pair with key 0
    metrics = {"mean_logit": logit.mean(axis=0), "sink_rate": sink_rate(attention, sink_length).by_head}
    if _LINE[0] in layer:
        alone, full = (layer[name].transpose("sequence", "head").values.astype(np.float64) for name in _LINE)
        metrics["linear_delta_r2"] = (full - alone).mean(axis=0)
    return metrics


def _pooled(by_head: dict[str, Array], offset: Array) -> dict[str, float]:
    """Earlier metrics of the heads of a layer together."""
    diagonal = diagonal_centred(by_head["mean_logit"], offset)
    return {
        "linear_delta_r2": _mean(by_head.get("linear_delta_r2", np.empty(0))),
        "diagonal_fraction": float(diagonal.fraction),
        "diagonal_rms": float(diagonal.rms),
        "sink_rate": float(by_head["sink_rate"].mean()),
    }


def _stream_metrics(one: xr.Dataset, layer: int) -> dict[str, float]:
    """Massive activations and norm of position 0 in the residual stream that a layer reads."""
    first = read(one.trajectory.sel(depth=layer)).transpose("sequence", "hidden").values
    norm = read(one.residual_norm.sel(depth=layer)).transpose("sequence", "token").values.astype(np.float64)
    massive = np.nan
    if "residual_median" in one:
        median = read(one.residual_median.sel(depth=layer)).values
        massive = float(massive_activations(first[:, None], median=median).count.mean())
    return {
        "massive_activations": massive,
        "first_norm_ratio": float((norm[:, 0] / np.median(norm[:, 1:], axis=1)).mean()),
    }


def _explicit_metrics(logits: Array) -> dict[str, float]:
    """Earlier metrics of whole logits, (sequence, head, query, key)."""
    attention = np.tril(np.exp(logits - logits.max(axis=-1, keepdims=True)))
    laid_out, offset = explicit_offsets(logits)
    return {
        "linear_delta_r2": _mean(linear_position_r2(laid_out, offset).delta),
        "diagonal_fraction": float(diagonal_centred(laid_out.reshape(-1, *laid_out.shape[-2:]), offset).fraction),
        "sink_rate": sink_rate(attention[..., 0] / attention.sum(axis=-1)).rate,
    }


def _named(metric: str, column: str, kept: list[str]) -> str:
    """Column of a result in the table of many metrics."""
    return column if column in kept else metric if column == "estimate" else f"{metric}_{column}"


def _mean(by_head: Array) -> float:
    """Mean over the heads whose logits vary; NaN where none do."""
    defined = by_head[np.isfinite(by_head)]
    return float(defined.mean()) if defined.size else float("nan")
