"""Leakage, shares, sizes, magnitudes and removal: what a notebook calls (docs/method.md, sections 3, 4 and 6)."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from posstats.arguments import choice, flag, items, labels
from posstats.dataset.blocks import read
from posstats.dataset.door import check_by, tolerance_of
from posstats.dataset.parameters import explained
from posstats.dataset.terms import select_condition
from posstats.estimators.pair_products import (
    Bin,
    Estimand,
    Estimate,
    StatisticsKernel,
    estimates,
    magnitude_bins,
    share_bins,
)
from posstats.estimators.rows import ROUNDING, adjusted, conditions, ordered, prepare
from posstats.results.base import LeakageResult, MagnitudeResult, RemovalResult, ShareResult, SizeResult
from posstats.stats.inference.options import Inference
from posstats.stats.pair_products.components import (
    SHARE_COMPONENTS,
    SQUARE_COMPONENTS,
    leakage_statistics,
    magnitude_statistics,
    residual_statistics,
    share_parts,
    share_statistics,
    size_statistics,
)
from posstats.stats.pair_products.terms import SteadyState, check_order
from posstats.vocabulary import BASELINE, LOG_ATTENTION, RESIDUAL

#: Sizes and magnitudes with a calibrated test of their being 0.
_TESTED = [SQUARE_COMPONENTS.index(name) for name in (LOG_ATTENTION, "redistribution", RESIDUAL)]
#: Columns of a confidence set.
LIMITS = ("low", "high", "gap_low", "gap_high")


@explained
def leakage(
    data: xr.Dataset,
    *,
    by: Sequence[str] = (),
    octaves: bool = True,
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> LeakageResult:
    """How much absolute position log attention carries.

    ``C(y, y)`` with y the log attention at a fixed offset, centred over the analysed queries: the mean over queries of
    the mean product of two sequences from different documents, summed over offsets. Content noise of a sequence does
    not enter, so the expectation is 0 where position does not matter.

    Parameters
    ----------
    %(data)s
    by : sequence of {"layer", "head", "offset"}, or one of them
        Dimensions kept apart; the others are summed over.
    %(octaves)s
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s

    Returns
    -------
    LeakageResult

    Raises
    ------
    DesignError
        With fewer than 5 documents, or no analysed query.
    InputError
        For an option that is not allowed.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.leakage(ps.simulate(n=30, length=64, seed=0).dataset, octaves=False, n_resamples=200)
    >>> bool(result.table.p.iloc[0] < 0.05)
    True
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    grouped, octaves = check_by(by, ("layer", "head", "offset")), flag("octaves", octaves)
    terms, notes, settings = prepare(data, offsets, inference)
    rows = []
    for condition, one in conditions(terms):
        bins = share_bins(one, octaves)
        if "offset" in grouped:
            bins = [part for whole in bins for part in whole.by_offset()]
        over_offsets = [dim for dim in grouped if dim != "offset"]
        whole = Estimand(np.ones((1, 1, 1)))
        for cell in estimates([one], leakage_statistics, whole, bins=bins, by=over_offsets, inference=inference):
            rows.append(_row(condition, cell, 0) | {"p": cell.absence_p[0]} | _scale(cell, terms))
    table = _beyond_rounding(pd.DataFrame(rows))
    table = adjusted(table, ["condition", "queries"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "queries"]).size().max())
    settings |= inference.settings("moments", pooled=not grouped)
    return LeakageResult(ordered(_with_scatter(table, terms)), settings, notes)


@explained
def shares(
    data: xr.Dataset,
    *,
    order: str = "shapley",
    by: Sequence[str] = (),
    octaves: bool = True,
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> ShareResult:
    """Share of leakage attributed to each term.

    ``C(term, y) / C(y, y)``. For additive terms this is the Shapley (LMG) allocation of the variance: the shares sum
    to 1 and can be negative. Pooled over heads and layers as a ratio of sums.

    Parameters
    ----------
    %(data)s
    %(order)s
    %(by)s
    %(octaves)s
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s

    Returns
    -------
    ShareResult
        Terms `relative` (0 by construction), `mask`, `sink`, `redistribution`, and `residual`, the sum of the last two;
        and, whatever the order, `mask_first` and `mask_last`, between which the mask's share depends on it.

    Raises
    ------
    DesignError, InputError, NumericalError
        As :func:`leakage`.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.shares(ps.simulate(n=30, length=64, seed=0).dataset, octaves=False, n_resamples=200)
    >>> sums = result.table[result.table.term.isin(["mask", "residual"])].estimate.sum()
    >>> abs(float(sums) - 1) < 1e-6
    True
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    parts = share_parts(order)
    grouped, octaves = check_by(by), flag("octaves", octaves)
    terms, notes, settings = prepare(data, offsets, inference)
    rows = []
    leakage_alone = np.eye(len(SHARE_COMPONENTS))[:1]
    estimand = Estimand(np.stack(list(parts.values()), axis=1)[None], leakage_alone)
    ends = [np.stack(list(share_parts(end).values()), axis=1) for end in ("mask_first", "mask_last")]
    for condition, one in conditions(terms):
        bins = share_bins(one, octaves)
        for cell in estimates([one], share_statistics, estimand, bins=bins, by=grouped, inference=inference):
            numbers = {"leakage": cell.sums[0, 0], "leakage_p": cell.absence_p[0]} | _scale(cell, terms)
            with np.errstate(divide="ignore", invalid="ignore"):
                by_order = np.stack([cell.sums[0] @ end for end in ends]) / cell.sums[0, 0]
            low, high = by_order.min(axis=0), by_order.max(axis=0)
            for k, term in enumerate(parts):
                row = _ratio_row(condition, cell, k) | {"term": term, "order_low": low[k], "order_high": high[k]}
                rows.append(row | numbers)
    family = ["condition", "queries", "term"]
    table = adjusted(pd.DataFrame(rows), family, inference, {"leakage_p": "leakage_q"})
    table = _ratio_beyond_rounding(table, "leakage", "no leakage beyond rounding")
    # The share of `relative` is 0 by construction, not by estimation: there is nothing to test.
    by_construction = (table.term == "relative") & table.estimate.notna()
    table.loc[by_construction, ["p", "note"]] = np.nan, ""
    table = adjusted(table, family, inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(family).size().max())
    settings |= inference.settings("fieller", pooled=not grouped) | {"order": order}
    return ShareResult(ordered(_with_scatter(table.drop(columns="leakage_p"), terms)), settings, notes)


@explained
def size(
    data: xr.Dataset,
    *,
    order: str = "shapley",
    by: Sequence[str] = (),
    octaves: bool = True,
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> SizeResult:
    """How much absolute position each term carries by itself.

    ``C(term, term)``, the pair product of the term centred over the analysed queries, summed over offsets, as leakage
    is of log attention. A share falls when the other part grows; a size does not.

    Parameters
    ----------
    %(data)s
    %(order)s
    %(by)s
    %(octaves)s
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s
        The family is all rows of one condition, bin and term.

    Returns
    -------
    SizeResult
        Terms `log_attention` (its size is leakage), `mask`, `sink`, `redistribution` and `residual`, in nats squared.
        The sign-flip test of "the term has no absolute position" is made of `log_attention`, `redistribution` and
        `residual`; mask and sink hold so much of the estimated steady state that there is no calibrated test.

    Raises
    ------
    DesignError, InputError, NumericalError
        As :func:`leakage`.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.size(ps.simulate(n=30, length=64, seed=0).dataset, octaves=False)
    >>> result.table.set_index("term").low["mask"] > 0
    np.True_
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    kernel = partial(size_statistics, last=check_order(order))
    grouped, octaves = check_by(by), flag("octaves", octaves)
    terms, notes, settings = prepare(data, offsets, inference)
    rows: list[dict[str, object]] = []
    for condition, one in conditions(terms):
        rows += _squares(one, condition, kernel, share_bins(one, octaves), grouped, inference)
    table = adjusted(_beyond_rounding(pd.DataFrame(rows)), ["condition", "queries", "term"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "queries", "term"]).size().max())
    settings |= inference.settings("moments", pooled=not grouped) | {"order": order}
    return SizeResult(ordered(_with_scatter(table, terms)), settings, notes)


@explained
def magnitude(
    data: xr.Dataset,
    *,
    order: str = "shapley",
    by: Sequence[str] = (),
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> MagnitudeResult:
    """How far each term is from the steady state, by octave of the query.

    The pair product of the term itself, averaged over the queries of the bin and over the offsets that exist for all of
    them, summed over the pooled heads and layers: every term but `relative` is a departure from the steady state.

    Parameters
    ----------
    %(data)s
    %(order)s
    %(by)s
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s

    Returns
    -------
    MagnitudeResult
        Terms `log_attention` (the departure ``log A - relative``), `mask`, `sink`, `redistribution` and `residual`, in
        nats squared; bins are the octaves and the early queries ``[2, 16)``. The sign-flip test of "the departure has
        no mean anywhere in the bin" is made of `log_attention`, `redistribution` and `residual`; the other terms hold
        so much of the estimated steady state that there is no calibrated test of their being 0.

    Raises
    ------
    DesignError, InputError, NumericalError
        As :func:`leakage`.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.magnitude(ps.simulate(n=30, length=64, seed=0).dataset, n_resamples=200)
    >>> result.table.queries.unique().tolist()
    ['[2, 4)', '[4, 8)', '[8, 16)', '[16, 32)', '[2, 16)']
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    kernel = partial(magnitude_statistics, last=check_order(order))
    grouped = check_by(by)
    terms, notes, settings = prepare(data, offsets, inference)
    rows: list[dict[str, object]] = []
    for condition, one in conditions(terms):
        rows += _squares(one, condition, kernel, magnitude_bins(one), grouped, inference, summed=False)
    table = adjusted(_beyond_rounding(pd.DataFrame(rows)), ["condition", "queries", "term"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "queries", "term"]).size().max())
    settings |= inference.settings("moments", pooled=not grouped) | {"order": order}
    return MagnitudeResult(ordered(_with_scatter(table, terms)), settings, notes)


@explained
def removal(
    data: xr.Dataset,
    condition: str | Sequence[str],
    *,
    baseline: str = BASELINE,
    order: str = "shapley",
    by: Sequence[str] = (),
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> RemovalResult:
    """How much of the residual-stream magnitude a condition removes.

    ``1 - magnitude_residual(condition) / magnitude_residual(baseline)``, a ratio of sums over the pooled heads and
    layers; paired, the same documents are resampled in both. Negative where the condition adds.

    Parameters
    ----------
    data : xarray.Dataset
        A dump or terms that hold both conditions.
    condition : str or sequence of str
        One or several conditions, such as "bos=mean".
    baseline : str
        Condition compared with.
    %(order)s
    %(by)s
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s

    Returns
    -------
    RemovalResult
        By octave and for the early queries ``[2, 16)``; `baseline_q` belongs to the sign-flip test that there is
        something to remove, as in :func:`magnitude`.

    Raises
    ------
    DesignError, InputError, NumericalError
        As :func:`leakage`.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=64, conditions=["baseline", "bos=mean"], seed=0).dataset
    >>> result = ps.removal(ds, "bos=mean", n_resamples=200)
    >>> early = result.table.set_index("queries").loc["[2, 4)"]
    >>> bool(early.low < 0.4 < early.high)  # what the simulation removes
    True
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    kernel = partial(residual_statistics, last=check_order(order))
    grouped = check_by(by)
    terms, notes, settings = prepare(data, offsets, inference)
    there = terms.condition.values.tolist()
    baseline = choice("baseline", baseline, there)
    names = items("condition", condition, "text")
    labels("condition", names, [name for name in there if name != baseline], "text")
    sources = [select_condition(terms, name) for name in (baseline, *names)]
    above = np.concatenate([np.ones((1, 1, len(names))), -np.eye(len(names))[:, None]])
    below = np.eye(len(sources))[0][:, None]
    rows = []
    for cell in estimates(
        sources, kernel, Estimand(above, below), bins=magnitude_bins(sources[0]), by=grouped, inference=inference,
    ):  # fmt: skip
        magnitudes = cell.sums[:, 0]
        for k, name in enumerate(names):
            row = _ratio_row(name, cell, k) | {"magnitude": magnitudes[k + 1], "baseline_magnitude": magnitudes[0]}
            amount = {"removed": magnitudes[0] - magnitudes[k + 1], "removed_se": cell.limits.numerator_se[k]}
            rows.append(row | amount | {"baseline_p": cell.absence_p[0]} | _scale(cell, terms, summed=False))
    rows.sort(key=lambda row: names.index(str(row["condition"])))
    family = ["condition", "queries"]
    table = adjusted(pd.DataFrame(rows), family, inference, {"baseline_p": "baseline_q"})
    table = _ratio_beyond_rounding(table, "baseline_magnitude", "nothing to remove beyond rounding")
    table = adjusted(table, family, inference, {"p": "q"}).drop(columns="baseline_p")
    notes += inference.few_flips(table.groupby(family).size().max())
    settings |= inference.settings("fieller", pooled=not grouped) | {"order": order, "baseline": baseline}
    return RemovalResult(ordered(table), settings, notes)


def _squares(
    one: xr.Dataset,
    condition: str,
    kernel: StatisticsKernel,
    bins: Sequence[Bin],
    by: Sequence[str],
    inference: Inference,
    *,
    summed: bool = True,
) -> Iterator[dict[str, object]]:
    """Rows of means of squares, one per term."""
    each = Estimand(np.eye(len(SQUARE_COMPONENTS))[None])
    for cell in estimates([one], kernel, each, bins=bins, by=by, inference=inference, tested=_TESTED):
        absence_p = dict(zip(_TESTED, cell.absence_p, strict=True))
        for k, term in enumerate(SQUARE_COMPONENTS):
            row = _row(condition, cell, k) | {"term": term, "p": absence_p.get(k, np.nan)}
            yield row | _scale(cell, one, summed=summed)


def _scale(cell: Estimate, data: xr.Dataset, *, summed: bool = True) -> dict[str, object]:
    """What rounding may do to a sum of squares of the recorded numbers, nats squared.

    `summed` says whether the estimand is a sum over offsets, not their mean.
    """
    return {"rounding": tolerance_of(data)[1] ** 2 * cell.n_heads * (len(cell.bin.offsets) if summed else 1)}


def _beyond_rounding(table: pd.DataFrame) -> pd.DataFrame:
    """Say where a mean of squares is rounding: there is nothing to test."""
    bound = table.pop("rounding")
    nothing = (table.estimate.abs() <= bound) & (table.se <= bound)
    table.loc[nothing, "p"] = 1.0
    table["note"] = np.where(nothing, "nothing beyond rounding", "")
    return table


def _ratio_beyond_rounding(table: pd.DataFrame, denominator: str, why: str) -> pd.DataFrame:
    """Say where numerator or denominator of a ratio are rounding, which decides neither a set nor a test."""
    bound, size = table.pop("rounding"), table[denominator].abs()
    absent = ~(size > bound)
    least = np.maximum(bound, ROUNDING * size)
    nothing = ~absent & ((table.estimate * size).abs() <= least) & (table.se * size <= least)
    point = ~absent & ~nothing & (table.se <= ROUNDING)
    table.loc[absent, ["estimate", "se", *LIMITS, "p"]] = np.nan
    table.loc[absent, "set"] = ""
    for limit in LIMITS[:2]:
        table.loc[nothing | point, limit] = table.estimate[nothing | point]
    table.loc[nothing | point, list(LIMITS[2:])] = np.nan
    table.loc[nothing | point, "set"] = "interval"
    table.loc[nothing, "p"], table.loc[point, "p"] = 1.0, np.nan
    unvaried = "documents do not differ beyond rounding: no test"
    table["note"] = np.select([absent, nothing, point], [why, "nothing beyond rounding", unvaried], "")
    return table


def content_scatter(data: xr.Dataset) -> pd.DataFrame:
    """Content scatter of every head: the standard deviation of its logits in the steady state, about their lag's mean.

    ``sqrt(mean over lags of [mean over sequences and reference queries of (x[r, d] - mean)^2])`` with
    ``x[r, d] = s[r, r-d] - log sum_d exp s[r, r-d]``, so that nothing that softmax cannot see is counted.

    Parameters
    ----------
    data : xarray.Dataset
        A dump or terms of one condition, with `steady_square`.

    Returns
    -------
    pandas.DataFrame
        Columns `layer`, `head` and `content_scatter`, nats.
    """
    frames = []
    for layer in data.layer.values.tolist():
        one = read(data[["steady_logit", "steady_log_sum", "steady_square"]].sel(layer=layer))
        steady = SteadyState.of(one.steady_logit.values, one.steady_log_sum.values)
        mean_square = one.steady_square.values.astype(np.float64).mean(axis=0)
        variance = mean_square - (steady.logit.mean(axis=0) ** 2).mean(axis=-1)
        scatter = np.sqrt(np.maximum(variance, 0.0))  # rounding, where nothing scatters
        frames.append(pd.DataFrame({"layer": layer, "head": data["head"].values, "content_scatter": scatter}))
    return pd.concat(frames, ignore_index=True)


def _with_scatter(table: pd.DataFrame, terms: xr.Dataset) -> pd.DataFrame:
    """A table of single heads with their content scatter, where it was recorded."""
    if not {"layer", "head"} <= set(table) or "steady_square" not in terms:
        return table
    by_condition = [content_scatter(one).assign(condition=name) for name, one in conditions(terms)]
    return table.merge(pd.concat(by_condition), on=["condition", "layer", "head"], how="left", validate="m:1")


def _row(condition: str, cell: Estimate, value: int) -> dict[str, object]:
    """A mean of squares; the limits of a bootstrap beside its own where there was one."""
    row = _named_row(condition, cell, value, ("estimate", "se", "low", "high", "boot_low", "boot_high"))
    if np.isnan(cell.limits.boot_low).all():
        del row["boot_low"], row["boot_high"]
    return row


def _ratio_row(condition: str, cell: Estimate, value: int) -> dict[str, object]:
    return _named_row(condition, cell, value, ("estimate", "se", *LIMITS, "set", "p"))


def _named_row(condition: str, cell: Estimate, value: int, names: Sequence[str]) -> dict[str, Any]:
    return {
        "condition": condition,
        **cell.key,
        "queries": cell.bin.label,
        **({} if cell.bin.offset is None else {"offset": cell.bin.offset}),
        **{name: getattr(cell.limits, name)[value].item() for name in names},
        "method": cell.limits.method,
    }
