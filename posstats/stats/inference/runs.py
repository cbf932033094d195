"""Training runs and documents: variance, degrees of freedom, what a design could detect (docs/method.md, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy import stats as sps

from posstats.errors import DesignError
from posstats.stats.pair_products.terms import Array

#: Runs per side up to which a Satterthwaite df is not trusted beyond that of its least part.
FEW_RUNS = 3


@dataclass(frozen=True, slots=True)
class RunContrast:
    """A mean over runs, or the difference of two; every field is (value,) unless said otherwise.

    Attributes
    ----------
    estimate, se, low, high, p, df : ndarray
        t interval and two-sided p-value of 0.
    se_documents, se_runs : ndarray
        Parts of the standard error.
    pairing : ndarray
        Correlation of paired runs; NaN where runs are not paired or one side does not vary.
    detectable : ndarray
        Smallest true value that the test finds with a probability of 0.8.
    two_runs : bool
        A side has two runs: their variance has one degree of freedom, which says next to nothing.
    """

    estimate: Array
    se: Array
    low: Array
    high: Array
    p: Array
    df: Array
    se_documents: Array
    se_runs: Array
    pairing: Array
    detectable: Array
    two_runs: bool


def contrast_of_runs(
    sides: Sequence[Array],
    document_variance: Array,
    document_df: Array | float,
    *,
    paired: bool,
    level: float = 0.95,
) -> RunContrast:
    """Mean over the runs of one side, or of the second side less the first, over new runs and new documents.

    ``variance = s_run^2 / k + V_doc``. The degrees of freedom are Satterthwaite's; with 3 runs or fewer no more than
    those of the part that has least, since a run variance that happens to come out small would otherwise borrow the
    many degrees of freedom of the documents.

    Parameters
    ----------
    sides : one or two ndarray, shape (run, value)
        Estimates of every run from all documents.
    document_variance : ndarray, shape (value,)
        Jackknife variance of the contrast itself: documents left out of all runs, and of both sides where they share
        them.
    document_df : ndarray or float
        Its degrees of freedom.
    paired : bool
        Whether run r of one side belongs with run r of the other: declared beforehand, never chosen by looking.
    level : float

    Returns
    -------
    RunContrast

    Raises
    ------
    DesignError
        If a side has a single run, or paired sides differ in number.

    Notes
    -----
    The noise of one document in one run is in both parts: the sum errs on the long side. F. E. Satterthwaite (1946),
    doi:10.2307/3002019.

    Examples
    --------
    >>> sides = [np.array([[1.0], [1.2], [0.9]]), np.array([[2.0], [2.3], [1.9]])]
    >>> found = contrast_of_runs(sides, np.array([0.01]), 40.0, paired=True)
    >>> round(float(found.estimate[0]), 3), float(found.df[0])
    (1.033, 2.0)
    """
    counts = [len(side) for side in sides]
    if min(counts) < 2:
        raise DesignError("How runs vary needs at least 2 runs on every side.")
    if paired and len(set(counts)) > 1:
        raise DesignError(f"Paired runs need as many on both sides, not {' and '.join(map(str, counts))}.")
    signs = (1.0,) if len(sides) == 1 else (-1.0, 1.0)
    signed = [sign * side for sign, side in zip(signs, sides, strict=True)]
    samples = [np.sum(signed, axis=0)] if paired else signed
    parts = [(np.var(sample, axis=0, ddof=1) / len(sample), len(sample) - 1.0) for sample in samples]
    over_runs = np.sum([variance for variance, _ in parts], axis=0)
    variances = np.stack([document_variance, *(variance for variance, _ in parts)])
    dfs = np.stack(np.broadcast_arrays(document_df, *(np.full(over_runs.shape, df) for _, df in parts)))
    df = satterthwaite(variances, dfs, cautious=min(counts) <= FEW_RUNS)
    estimate = np.sum([one.mean(axis=0) for one in signed], axis=0)
    se = np.sqrt(over_runs + document_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = sps.t.ppf(0.5 + level / 2, df) * se
        p = np.where(se > 0, 2 * sps.t.sf(np.abs(estimate) / se, df), np.nan)
    pairing = run_correlation(*sides) if paired and len(sides) == 2 else np.full(estimate.shape, np.nan)
    return RunContrast(
        estimate,
        se,
        estimate - half,
        estimate + half,
        p,
        df,
        np.sqrt(document_variance),
        np.sqrt(over_runs),
        pairing,
        detectable_effect(se, df, level=level),
        min(counts) == 2,
    )


def satterthwaite(variances: Array, dfs: Array, *, cautious: bool) -> Array:
    """Degrees of freedom of a sum of independent variance estimates.

    Parameters
    ----------
    variances, dfs : ndarray, shape (part, ...)
    cautious : bool
        No more than the least of the parts that are not 0.

    Returns
    -------
    ndarray, shape (...)
        ``(sum v)^2 / sum v^2 / df``; NaN where all parts are 0.
    """
    spread = (variances**2 / dfs).sum(axis=0)
    total = variances.sum(axis=0)
    df = np.divide(total**2, spread, out=np.full(total.shape, np.nan), where=spread > 0)
    if not cautious:
        return df
    return np.where(spread > 0, np.minimum(df, np.where(variances > 0, dfs, np.inf).min(axis=0)), np.nan)


def detectable_effect(se: Array, df: Array, *, level: float = 0.95, power: float = 0.8) -> Array:
    """Smallest true value that a two-sided t test at this standard error finds with a given probability.

    Parameters
    ----------
    se, df : ndarray, shape (...)
    level, power : float

    Returns
    -------
    ndarray, shape (...)
        d se with ``P(T > t_{1 - alpha/2}) = power`` for T noncentral t with noncentrality d, by bisection; the other
        tail adds less than 1e-4. At 1 degree of freedom it is 16 errors, at 2 it is 5.7.

    Examples
    --------
    >>> round(float(detectable_effect(np.array(1.0), np.array(1e6))), 2)  # 1.96 + 0.84
    2.8
    """
    critical = sps.t.ppf(0.5 + level / 2, df)
    low, high = np.zeros_like(critical), 10.0 + 10 * critical
    for _ in range(50):
        middle = (low + high) / 2
        short = special.nctdtr(df, middle, critical) > 1 - power
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    effect: Array = se * high
    return np.where(np.isfinite(critical), effect, np.nan)


def run_correlation(one: Array, two: Array) -> Array:
    """Correlation of paired runs, (run, ...) each: (...), NaN where one side does not vary."""
    x, y = one - one.mean(axis=0), two - two.mean(axis=0)
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    return np.divide((x * y).sum(axis=0), scale, out=np.full(scale.shape, np.nan), where=scale > 0)
