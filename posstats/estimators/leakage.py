"""Leakage, shares, magnitudes and removal: what a notebook calls (docs/method.md, sections 3, 4 and 6)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from posstats.arguments import choice, flag, items, labels
from posstats.dataset.door import check_by
from posstats.dataset.parameters import explained
from posstats.dataset.terms import select_condition
from posstats.estimators.pair_products import Estimate, estimates, magnitude_bins, share_bins
from posstats.estimators.rows import adjusted, conditions, ordered, prepare, withheld
from posstats.results.base import LeakageResult, MagnitudeResult, RemovalResult, ShareResult
from posstats.stats.inference.options import Inference
from posstats.stats.pair_products.components import (
    MAGNITUDE_COMPONENTS,
    SHARE_COMPONENTS,
    leakage_statistics,
    magnitude_statistics,
    residual_statistics,
    share_statistics,
)
from posstats.stats.pair_products.terms import Array
from posstats.vocabulary import BASELINE, LOG_ATTENTION, RESIDUAL, RESIDUAL_TERMS, TERMS

_SHARE_TERMS = (*TERMS, RESIDUAL)
#: Magnitudes with a calibrated test of their being 0.
_TESTED_MAGNITUDES = [MAGNITUDE_COMPONENTS.index(name) for name in (LOG_ATTENTION, "logit_drift", RESIDUAL)]
_RESIDUAL_COLUMNS = [SHARE_COMPONENTS.index(name) for name in RESIDUAL_TERMS]


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
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed).of("leakage")
    grouped, octaves = check_by(by), flag("octaves", octaves)
    terms, notes, settings = prepare(data, offsets, inference)
    rows = []
    for condition, one in conditions(terms):
        bins = share_bins(one, octaves)
        for cell in estimates(
            [one], leakage_statistics, _leakage, bins=bins, by=grouped, inference=inference, squared=True
        ):
            rows.append(_row(condition, cell, 0) | {"p": cell.absence_p[0]})
    table = adjusted(pd.DataFrame(rows), ["condition", "queries"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "queries"]).size().max())
    return LeakageResult(table, settings | inference.settings(), notes)


@explained
def shares(
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
) -> ShareResult:
    """Whose the absolute position is: each term's share of leakage.

    ``C(term, y) / C(y, y)``. For additive terms this is the Shapley (LMG) allocation of the variance: the shares sum
    to 1 and can be negative. Pooled over heads and layers as a ratio of sums. A share is reported only where leakage
    is significant (q < 1 - level in its family).

    Parameters
    ----------
    %(data)s
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
        Terms `relative` (0 by construction), `mask`, `sink`, `logit_drift`, `denominator_drift`, and `residual`, the
        sum of the last three.

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
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed).of("share")
    grouped, octaves = check_by(by), flag("octaves", octaves)
    terms, notes, settings = prepare(data, offsets, inference)
    rows = []
    for condition, one in conditions(terms):
        bins = share_bins(one, octaves)
        for cell in estimates([one], share_statistics, _shares, bins=bins, by=grouped, inference=inference):
            for k, term in enumerate(_SHARE_TERMS):
                row = _row(condition, cell, k + 1) | {"term": term, "p": cell.interval.p[k + 1]}
                rows.append(row | {"leakage": cell.interval.estimate[0], "leakage_p": cell.absence_p[0]})
    table = pd.DataFrame(rows)
    table = adjusted(table, ["condition", "queries", "term"], inference, {"leakage_p": "leakage_q"})
    table = withheld(table, table.leakage_q, table.leakage, inference, "leakage is not significant")
    # The share of `relative` is 0 by construction, not by estimation: there is nothing to test.
    table.loc[table.term == "relative", "p"] = np.nan
    table = adjusted(table, ["condition", "queries", "term"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "queries", "term"]).size().max())
    return ShareResult(ordered(table.drop(columns="leakage_p")), settings | inference.settings(), notes)


@explained
def magnitude(
    data: xr.Dataset,
    *,
    by: Sequence[str] = (),
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> MagnitudeResult:
    """How far each term is from its long-context value, by octave of the query.

    The pair product of ``t[i,d] - mean_{i >= T/2} t[i,d]``, averaged over the queries of the bin and over the offsets
    that exist for all of them, summed over the pooled heads and layers.

    Parameters
    ----------
    %(data)s
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
        Terms `log_attention`, `mask`, `sink`, `logit_drift`, `denominator_drift` and `residual`, in nats squared; bins
        are the octaves and the early queries ``[2, 16)``. The sign-flip test of "the departure has no mean anywhere in
        the bin" is made of `log_attention`, `logit_drift` and `residual`; the other terms hold so much of the estimated
        reference that there is no calibrated test of their being 0.

    Raises
    ------
    DesignError, InputError, NumericalError
        As :func:`leakage`.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.magnitude(ps.simulate(n=30, length=64, seed=0).dataset, n_resamples=200)
    >>> result.table.queries.unique().tolist()
    ['[2, 4)', '[4, 8)', '[8, 16)', '[16, 32)', '[32, 63)', '[2, 16)']
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed).of("magnitude")
    grouped = check_by(by)
    terms, notes, settings = prepare(data, offsets, inference)
    rows = []
    for condition, one in conditions(terms):
        bins = magnitude_bins(one)
        for cell in estimates(
            [one],
            magnitude_statistics,
            _magnitudes,
            bins=bins,
            by=grouped,
            inference=inference,
            tested=_TESTED_MAGNITUDES,
            squared=True,
        ):
            absence_p = dict(zip(_TESTED_MAGNITUDES, cell.absence_p, strict=True))
            for k, term in enumerate(MAGNITUDE_COMPONENTS):
                p = absence_p.get(k, np.nan)
                rows.append(_row(condition, cell, k) | {"term": term, "p": p})
    table = adjusted(pd.DataFrame(rows), ["condition", "queries", "term"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "queries", "term"]).size().max())
    return MagnitudeResult(ordered(table), settings | inference.settings(), notes)


@explained
def removal(
    data: xr.Dataset,
    condition: str | Sequence[str],
    *,
    baseline: str = BASELINE,
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
    layers; paired, the same documents are resampled in both. Negative where the condition adds. A removal is reported
    only where there is something to remove: where the magnitude at baseline is significant (q < 1 - level in its
    family, sign-flip test as in :func:`magnitude`).

    Parameters
    ----------
    data : xarray.Dataset
        A dump or terms that hold both conditions.
    condition : str or sequence of str
        One or several conditions, such as "bos=mean".
    baseline : str
        Condition compared with.
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
        By octave and for the early queries ``[2, 16)``.

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
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed).of("removal")
    grouped = check_by(by)
    terms, notes, settings = prepare(data, offsets, inference)
    there = terms.condition.values.tolist()
    baseline = choice("baseline", baseline, there)
    names = items("condition", condition, "text")
    labels("condition", names, [name for name in there if name != baseline], "text")
    sources = [select_condition(terms, name) for name in (baseline, *names)]
    rows = []
    for cell in estimates(
        sources, residual_statistics, _removal, bins=magnitude_bins(sources[0]), by=grouped, inference=inference,
    ):  # fmt: skip
        magnitudes = cell.interval.estimate[len(names) :]
        for k, name in enumerate(names):
            row = _row(name, cell, k) | {"p": cell.interval.p[k], "magnitude": magnitudes[k + 1]}
            rows.append(row | {"baseline_magnitude": magnitudes[0], "baseline_p": cell.absence_p[0]})
    rows.sort(key=lambda row: names.index(str(row["condition"])))
    family = ["condition", "queries"]
    table = adjusted(pd.DataFrame(rows), family, inference, {"baseline_p": "baseline_q"})
    table = withheld(table, table.baseline_q, table.baseline_magnitude, inference, "nothing to remove at baseline")
    table = adjusted(table, family, inference, {"p": "q"}).drop(columns="baseline_p")
    notes += inference.few_flips(table.groupby(family).size().max())
    return RemovalResult(ordered(table), settings | inference.settings() | {"baseline": baseline}, notes)


def _leakage(sums: Array) -> Array:
    return sums[..., 0, :1]


def _shares(sums: Array) -> Array:
    """Leakage, then the shares of the five terms and of the residual."""
    parts = sums[..., 0, :]
    total = parts[..., :1]
    with np.errstate(divide="ignore", invalid="ignore"):  # no leakage at all: the share is undefined, NaN
        share = np.where(total != 0, parts[..., 1:] / total, np.nan)
    residual = share[..., [k - 1 for k in _RESIDUAL_COLUMNS]].sum(axis=-1, keepdims=True)
    return np.concatenate([total, np.zeros_like(total), share, residual], axis=-1)


def _magnitudes(sums: Array) -> Array:
    return sums[..., 0, :]


def _removal(sums: Array) -> Array:
    """Removal by every source but the first, then the residual magnitudes of all."""
    residual = sums[..., 0]
    baseline = residual[..., :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        removed = np.where(baseline != 0, 1 - residual[..., 1:] / baseline, np.nan)
    return np.concatenate([removed, residual], axis=-1)


def _row(condition: str, cell: Estimate, value: int) -> dict[str, object]:
    x = cell.interval
    return {
        "condition": condition,
        **cell.key,
        "queries": cell.bin.label,
        "estimate": x.estimate[value],
        "se": x.se[value],
        "low": x.low[value],
        "high": x.high[value],
    }
