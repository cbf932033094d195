"""Sinks: which heads read position 0, and whether they look for the BOS token or the position (docs/method.md, 7)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.dataset.blocks import Block, by_layer, head_blocks, read
from posstats.dataset.terms import document_codes, few_documents, select_condition
from posstats.errors import DesignError, InputError
from posstats.estimators.leakage import adjusted
from posstats.estimators.pair_products import Inference
from posstats.execution.parallel import side_by_side
from posstats.results.position0 import SinkContrastResult, SinkResult
from posstats.stats.earlier import SINK_EPSILON
from posstats.stats.inference.multiplicity import adjust as adjust_p
from posstats.stats.inference.replicates import Replicates, mean_at, ratio_at
from posstats.stats.inference.resample import DEFAULT_METHODS, Interval
from posstats.stats.pair_products.components import document_sums
from posstats.stats.pair_products.terms import Array
from posstats.stats.position0 import FIRST_SINK_QUERY, late_attention, queries_that_see_position_0
from posstats.vocabulary import BASELINE

#: What rounding may do, per number format of the model: to a trajectory (relative), to an attention, and to terms in
#: nats (docs/method.md, section 7).
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}
#: Standard errors up to this are rounding of numbers of order 1: the documents do not differ.
_ROUNDING = 1e-12
_NEEDED = ("sink_logit", "log_denominator_rest", "visible_keys", "learned_sink", "sink_output_fraction")
_NORMS = ("sink_value_norm", "value_norm")
_NUMBERS = ("estimate", "se", "low", "high", "p")
_ANCHORS = ("anchor_attention", "anchor_sink_attention")


def sinks(
    data: xr.Dataset,
    *,
    epsilon: float = SINK_EPSILON,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    seed: int = 0,
    adjust: str = "bh",
) -> SinkResult:
    """Find the sink-reading heads, and what they look for.

    ``A0[i] = exp s[i, 0] / Z[i]``, averaged over the analysed queries i >= 16 of all sequences. A head is sink-reading
    where that mean is above `epsilon` and the two-sided test of "the mean is epsilon" rejects, q < 1 - level over all
    heads of the model.

    Parameters
    ----------
    data : xarray.Dataset
        A dump (:func:`posstats.open_dump`), not terms; every condition in it is estimated.
    epsilon : float
        Threshold; 0.3 is that of Gu et al.
    level, method, n_resamples, seed
        See :class:`posstats.estimators.pair_products.Inference`; the default method is the jackknife, as for any
        mean. The resampling unit is the document.
    adjust : {"bh", "by", "holm"}
        Adjustment over the family: all heads of one condition; for the contrasts, all conditions of one contrast.

    Returns
    -------
    SinkResult
        Per condition, layer and head: mean attention on position 0; the fraction of the head's output norm that comes
        from position 0 (``sink_output_fraction``); and the norm of the value at position 0 relative to that of the
        other values, a ratio of sums (NaN in dumps without value norms). In `contrasts`, over those heads whose mean
        under the baseline exceeds `epsilon` (the estimate; a definition, not a test), every head with the same weight:

        - `bos_minus_position0`, under `bos@P`: the attention on the BOS token at P minus that on position 0, over the
          queries i >= P + 16 from which both are seen well. Above 0 where sinks follow the token, below where they stay
          at the position.
        - `minus_baseline`, under every other condition: the attention on position 0 minus that under the baseline,
          paired.

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
    adjust_p([], adjust)
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon must lie between 0 and 1, not {epsilon}.")
    inference = Inference(level, method or DEFAULT_METHODS["slope"], n_resamples, seed=seed)
    require(data, _NEEDED, "Sinks read a dump")
    design = Documents.of(data, inference)
    conditions = [str(name) for name in np.atleast_1d(data.condition.values)]
    if any(name.startswith("bos@") for name in conditions):
        require(data, _ANCHORS, "Conditions bos@P are compared by what the BOS token at P gets")
    rows: list[dict[str, object]] = []
    attention: dict[str, Array] = {}
    for name in conditions:
        one = select_condition(data, name)
        attention[name] = design.sums(attention_on_position_0(one))
        rows += _head_rows(one, name, attention[name], design, epsilon)
    table = adjusted(pd.DataFrame(rows), ["condition"], adjust, {"p": "q"})
    table["sink_reading"] = (table.estimate > epsilon) & (table.q < 1 - level)
    notes, settings = design.notes, design.settings | {"sink_epsilon": epsilon, "adjustment": adjust}
    if not set(_NORMS) <= set(data):
        notes = (*notes, "this dump holds no value norms: value_norm_ratio is not known")
    contrasts = adjusted(_contrasts(data, attention, design, epsilon), ["contrast"], adjust, {"p": "q"})
    order = ["condition", "layer", "head", "estimate", "se", "low", "high", "p", "q", "sink_reading"]
    return SinkResult(
        table[[*order, *(name for name in table if name not in order)]],
        settings,
        notes,
        contrasts=SinkContrastResult(contrasts, settings, design.notes),
    )


def require(data: xr.Dataset, names: Sequence[str], what: str) -> None:
    """Raise InputError where a dataset lacks variables."""
    if missing := [name for name in names if name not in data]:
        raise InputError(
            f"{what}, and this dataset lacks {', '.join(missing)}. Pass what open_dump(path) returns, not terms; a "
            "dump of an earlier version must be dumped again."
        )


def tolerance_of(data: xr.Dataset) -> tuple[str, float]:
    """Number format of the model behind a dump, and what rounding may do in it (:data:`TOLERANCES`)."""
    dtype = str(data.attrs.get("dtype", data.sink_logit.dtype))
    if dtype not in TOLERANCES:
        raise InputError(f"the dump says its model computed in {dtype!r}, not in one of {', '.join(TOLERANCES)}")
    return dtype, TOLERANCES[dtype]


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


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of a dump, how they are resampled, and what every result says about them.

    Attributes
    ----------
    code : ndarray of int, shape (sequence,)
    sequences : ndarray, shape (document,)
        Number of sequences of each document.
    replicates : Replicates
    settings : dict
    notes : tuple of str
    """

    code: NDArray[np.int64]
    sequences: Array
    replicates: Replicates
    settings: dict[str, object]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, data: xr.Dataset, inference: Inference) -> "Documents":
        """Of a dataset; DesignError with fewer than 5, a warning with fewer than 24."""
        code, n_documents = document_codes(data)
        notes = few_documents(n_documents)
        settings: dict[str, object] = {"n_documents": n_documents, "n_sequences": len(code)}
        settings |= {name: value for name, value in inference.settings().items() if name != "n_permutations"}
        replicates = Replicates.of(
            n_documents, inference.method, inference.level, inference.n_resamples, inference.seed
        )
        return cls(code, np.bincount(code).astype(np.float64), replicates, settings, notes)

    def sums(self, values: Array) -> Array:
        """Sums over the sequences of each document."""
        return document_sums(values, self.code)

    def mean(self, sums: Array, null: float = 0.0) -> Interval:
        """Interval of the mean over sequences, of per-document sums."""
        return self.replicates.interval(mean_at(sums, self.sequences, self.replicates.weights), null=null)

    def cell(self, x: Interval, at: tuple[int, ...], null: float, rounding: float = _ROUNDING) -> dict[str, object]:
        """One row's estimate, interval, p and note; without spread between documents, a sign test or none."""
        row = {name: float(getattr(x, name)[at]) for name in _NUMBERS}
        away = abs(row["estimate"] - null)
        if np.isfinite(away) and away <= rounding:
            return row | {"p": 1.0, "note": "no difference beyond rounding"}
        if row["se"] <= _ROUNDING:
            nan = dict.fromkeys(("se", "low", "high"), np.nan)
            p = float(min(1.0, 2 * 0.5 ** len(self.sequences)))
            return row | nan | {"p": p, "note": "documents do not differ beyond rounding: no interval, sign test"}
        return row | {"note": "" if np.isfinite(row["p"]) else "no interval: undefined without some document"}


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


def _contrasts(data: xr.Dataset, attention: dict[str, Array], design: Documents, epsilon: float) -> pd.DataFrame:
    """Rows of the contrasts over the baseline's sink-reading heads."""
    rows: list[dict[str, object]] = []
    if BASELINE in attention:
        chosen = attention[BASELINE].sum(axis=0) / design.sequences.sum() > epsilon
        rounding = tolerance_of(data)[1]

        def difference(first: Array, second: Array) -> dict[str, object]:
            means = [sums[:, chosen].mean(axis=1) if chosen.any() else 0 * sums[:, 0, 0] for sums in (first, second)]
            x = design.mean(np.stack([means[0] - means[1], *means], axis=1))
            row = design.cell(x, (0,), 0.0, rounding) | {"n_heads": int(chosen.sum())}
            row |= {"attention": float(x.estimate[1]), "reference_attention": float(x.estimate[2])}
            if not chosen.any():
                row |= dict.fromkeys((*_NUMBERS, "attention", "reference_attention"), np.nan)
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
    columns = ["condition", "contrast", *_NUMBERS, "attention", "reference_attention", "n_heads", "note"]
    return pd.DataFrame(rows, columns=columns)
