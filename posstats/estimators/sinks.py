"""Sinks: which heads read position 0, and whether they look for the BOS token or the position (docs/method.md, 7)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, overload

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import choice, fraction
from posstats.dataset.blocks import Block, by_layer, head_blocks, read
from posstats.dataset.door import tolerance_of, whole_dump
from posstats.dataset.parameters import explained
from posstats.dataset.terms import select_condition
from posstats.errors import DesignError
from posstats.estimators.keys import sink_keys, sink_replacements
from posstats.estimators.rows import NUMBERS, Documents, adjusted, conditions
from posstats.execution.parallel import side_by_side
from posstats.results.position0 import SinkContrastResult, SinkResult
from posstats.results.sinks import KeySinkResult
from posstats.stats.earlier import SINK_EPSILON
from posstats.stats.inference.options import Inference
from posstats.stats.inference.replicates import Replicates, ratio_at
from posstats.stats.pair_products.terms import Array
from posstats.stats.position0 import late_attention, queries_that_see_position_0
from posstats.stats.sinks import selecting
from posstats.vocabulary import BASELINE, FIRST_SINK_QUERY, Note

_NORMS = ("sink_value_norm", "value_norm")
_ANCHORS = ("anchor_attention", "anchor_sink_attention")


@overload
def sinks(
    data: xr.Dataset, *, keys: Literal["first"] = ..., epsilon: float = ..., threshold: float = ..., level: float = ...,
    method: str | None = ..., n_resamples: int = ..., n_permutations: int = ..., seed: int = ..., adjust: str = ...,
) -> SinkResult: ...  # fmt: skip
@overload
def sinks(
    data: xr.Dataset, *, keys: Literal["all"], epsilon: float = ..., threshold: float = ..., level: float = ...,
    method: str | None = ..., n_resamples: int = ..., n_permutations: int = ..., seed: int = ..., adjust: str = ...,
) -> KeySinkResult: ...  # fmt: skip
@explained
def sinks(
    data: xr.Dataset,
    *,
    keys: str = "first",
    epsilon: float = SINK_EPSILON,
    threshold: float = SINK_EPSILON,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 1999,
    seed: int = 0,
    adjust: str = "bh",
) -> SinkResult | KeySinkResult:
    """Find the sink-reading heads, and what they look for; or the sinks at all keys, and whether they go with tokens.

    ``A0[i] = exp s[i, 0] / Z[i]``, averaged over the analysed queries i >= 16 of all sequences. A head is sink-reading
    where that mean is above `epsilon` and the two-sided test of "the mean is epsilon" rejects, q < 1 - level over all
    heads of the model.

    Parameters
    ----------
    %(dump)s
    keys : {"first", "all"}
        Attention on position 0, head by head; or the attention that every analysed key receives (`attention_received`).
    %(epsilon)s
    threshold : float
        Of ``keys="all"``: a sink is a (sequence, head, key) with more mean attention than this, between 0 and 1.
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
        Of ``keys="all"``: whole documents exchange their tokens.
    %(seed)s
    %(adjust)s
        The family is all heads of one condition; for the contrasts, all conditions of one contrast.

    Returns
    -------
    SinkResult
        Per condition, layer and head: mean attention on position 0; the fraction of the head's output norm that comes
        from position 0 (``sink_output_fraction``); and the norm of the value at position 0 relative to that of the
        other values, a ratio of sums (NaN in dumps without value norms). In `contrasts`, over those heads whose mean
        under the baseline exceeds `epsilon` in a third of the documents, drawn by `seed`, every head with the same
        weight. The other documents are compared: heads near the threshold that the same documents select would seem to
        lose attention under any condition.


        - `bos_minus_position0`, under `bos@P`: the attention on the BOS token at P minus that on position 0, over the
          queries i >= P + 16 from which both are seen well. Above 0 where sinks follow the token, below where they stay
          at the position.
        - `minus_baseline`, under every other condition: the attention on position 0 minus that under the baseline,
          paired.
    KeySinkResult
        For ``keys="all"``: the number of sinks per sequence of all layers and by layer, in `by_key` by key and in
        `by_token` by token id; how many lie at position 0; of those beyond it, how many at the first occurrence of a
        token, and how many would if the keys of a token in a sequence were exchangeable, the sum over sinks of (first
        occurrences / occurrences). In `anchoring`, the probability that a key beyond position 0 holds a sink in some
        head: at tokens that hold one in the other half of the documents, minus that of the other tokens at the same
        positions.

    Raises
    ------
    InputError
        For an option that is not allowed, data that are not a dump, or a dump that holds `bos@P` without the attention
        on P.
    DesignError
        With fewer than 5 documents, or no query i >= 16.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Notes
    -----
    Where documents do not differ beyond rounding there is no standard error: p is that of the sign test, all G
    documents on one side, ``2 * 0.5 ** G``, there is no interval, and `note` says so. Where a window hides position 0
    its attention is 0 by definition; a head that never sees it is not tested.

    References
    ----------
    Gu et al. (2025), "When Attention Sink Emerges in Language Models: An Empirical View", arXiv:2410.10781.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=64, conditions=["baseline", "bos=mean"], seed=0).dataset
    >>> result = ps.sinks(ds)
    >>> int(result.table.sink_reading.sum())  # position 0 takes little more than its share there
    0
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    epsilon, threshold = fraction("epsilon", epsilon), fraction("threshold", threshold)
    if choice("keys", keys, ("first", "all")) == "all":
        return sink_keys(data, threshold, inference)
    data = whole_dump(data, ("sink_output_fraction",), "Sinks read a dump")
    design = Documents.of(data, inference)
    if any(name.startswith("bos@") for name in data.condition.values.tolist()):
        data = whole_dump(data, _ANCHORS, "Conditions bos@P are compared by what the BOS token at P gets")
    rows: list[dict[str, object]] = []
    attention: dict[str, Array] = {}
    for name, one in conditions(data):
        attention[name] = design.sums(attention_on_position_0(one))
        rows += _head_rows(one, name, attention[name], design, epsilon)
    table = adjusted(pd.DataFrame(rows), ["condition"], inference, {"p": "q"})
    table["sink_reading"] = (table.estimate > epsilon) & (table.q < 1 - inference.level)
    notes = (*design.notes, *sink_replacements(data, threshold))
    settings = design.settings | {"sink_epsilon": epsilon, "adjustment": inference.adjust}
    if not set(_NORMS) <= set(data):
        notes = (*notes, Note("this dump holds no value norms: value_norm_ratio is not known", "design"))
    select = selecting(len(design.sequences), inference.seed)
    compared = _part(design, ~select, inference)
    contrasts = adjusted(
        _contrasts(data, attention, design, select, compared, epsilon), ["contrast"], inference, {"p": "q"}
    )
    order = ["condition", "layer", "head", "estimate", "se", "low", "high", "p", "q", "sink_reading"]
    return SinkResult(
        table[[*order, *(name for name in table if name not in order)]],
        settings,
        notes,
        contrasts=SinkContrastResult(contrasts, settings | compared.settings, compared.notes),
    )


def attention_on_position_0(one: xr.Dataset) -> Array:
    """Mean attention on position 0 over i >= 16 of one condition, (sequence, layer, head)."""
    if one.sizes["query"] <= FIRST_SINK_QUERY:
        raise DesignError(
            f"{one.sizes['query']} analysed queries hold no query i >= {FIRST_SINK_QUERY}; dump longer sequences."
        )
    blocks = head_blocks(one[["sink_logit", "log_denominator_rest", "visible_keys", "learned_sink"]])
    found = dict(by_layer(side_by_side(_late_attention, blocks)))
    return np.stack([np.concatenate(found[layer], axis=1) for layer in one.layer.values.tolist()], axis=1)


def _late_attention(block: Block) -> Array:
    (layer,) = block.load()
    logit, rest = (
        layer[name].transpose("sequence", "head", "query").values for name in ("sink_logit", "log_denominator_rest")
    )
    learned = layer.learned_sink.values.astype(np.float64)[:, None]
    return late_attention(logit, rest, layer.visible_keys.values.astype(np.int64), learned)


def _head_rows(
    one: xr.Dataset, condition: str, attention: Array, design: Documents, epsilon: float
) -> Iterator[dict[str, object]]:
    x = design.mean(attention, null=epsilon)
    small = read(one[[name for name in ("sink_output_fraction", *_NORMS) if name in one]])
    by_head = {name: design.sums(small[name].transpose("sequence", "layer", "head").values) for name in small.data_vars}
    fraction = design.mean(by_head["sink_output_fraction"])
    ratio = None
    if set(_NORMS) <= set(by_head):
        ratio = design.replicates.interval(ratio_at(by_head[_NORMS[0]], by_head[_NORMS[1]], design.replicates.weights))
    late, visible = one.sizes["query"] - FIRST_SINK_QUERY, read(one.visible_keys)
    for index, layer in enumerate(one.layer.values.tolist()):
        seen = queries_that_see_position_0(visible.isel(layer=index).values)
        for h, head in enumerate(one["head"].values.tolist()):
            row = {"condition": condition, "layer": layer, "head": head}
            row |= design.cell(x, (index, h), epsilon, 0.0)
            if seen == 0:
                row |= dict.fromkeys(("se", "low", "high", "p"), np.nan)
                row["note"] = f"position 0 lies outside the window at every query i >= {FIRST_SINK_QUERY}"
            elif seen < late:
                hidden = f"position 0 is seen by {seen} of the {late} queries i >= {FIRST_SINK_QUERY}, 0 at the others"
                row["note"] = "; ".join(text for text in (row["note"], hidden) if text)
            for name, found in (("output_fraction", fraction), ("value_norm_ratio", ratio)):
                for column, limit in ((name, "estimate"), (f"{name}_low", "low"), (f"{name}_high", "high")):
                    row[column] = np.nan if found is None else float(getattr(found, limit)[index, h])
            row["note"] = row.pop("note")  # last
            yield row


def _part(design: Documents, kept: NDArray[np.bool_], inference: Inference) -> Documents:
    """Some of the documents, the others having selected the heads."""
    n = int(kept.sum())
    replicates = Replicates.of(n, inference.interval, inference.level, inference.n_resamples, inference.seed)
    sequences = design.sequences[kept]
    size = {"n_documents": n, "n_sequences": int(sequences.sum()), "selecting_documents": len(kept) - n}
    notes = (*design.notes, Note(f"{len(kept) - n} other documents select the heads", "design"))
    return replace(design, sequences=sequences, replicates=replicates, settings=design.settings | size, notes=notes)


def _contrasts(
    data: xr.Dataset,
    attention: dict[str, Array],
    design: Documents,
    select: NDArray[np.bool_],
    compared: Documents,
    epsilon: float,
) -> pd.DataFrame:
    """Rows of the contrasts over the baseline's sink-reading heads: some documents select them, the others compare."""
    rows: list[dict[str, object]] = []
    if BASELINE in attention:
        chosen = attention[BASELINE][select].sum(axis=0) / design.sequences[select].sum() > epsilon
        rounding = tolerance_of(data)[1]

        def difference(first: Array, second: Array) -> dict[str, object]:
            means = [
                sums[~select][:, chosen].mean(axis=1) if chosen.any() else 0 * sums[~select][:, 0, 0]
                for sums in (first, second)
            ]
            x = compared.mean(np.stack([means[0] - means[1], *means], axis=1))
            row = compared.cell(x, (0,), 0.0, rounding) | {"n_heads": int(chosen.sum())}
            row |= {"attention": float(x.estimate[1]), "reference_attention": float(x.estimate[2])}
            if not chosen.any():
                row |= dict.fromkeys((*NUMBERS, "attention", "reference_attention"), np.nan)
                row["note"] = "no head is sink-reading under the baseline"
            elif np.isnan(x.estimate[0]):
                row["note"] = f"no query lies {FIRST_SINK_QUERY} or more behind the BOS token"
            return row

        for name in attention:
            if name == BASELINE:
                continue
            key = {"condition": name, "contrast": "minus_baseline"}
            rows.append(key | difference(attention[name], attention[BASELINE]))
            if name.startswith("bos@"):
                one = read(select_condition(data, name)[list(_ANCHORS)])
                anchors = (design.sums(one[x].transpose("sequence", "layer", "head").values) for x in _ANCHORS)
                rows.append(key | {"contrast": "bos_minus_position0"} | difference(*anchors))
    columns = ["condition", "contrast", *NUMBERS, "attention", "reference_attention", "n_heads", "note"]
    return pd.DataFrame(rows, columns=columns)
