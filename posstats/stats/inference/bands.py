"""Simultaneous bands over layers or bins, and how many heads lie above a value (docs/method.md, section 4)."""

from dataclasses import dataclass

import numpy as np
from scipy import stats as sps

from posstats.errors import InputError
from posstats.stats.inference.squares import check_level, single_deviations
from posstats.stats.pair_products.terms import Array

#: Draws of the largest deviation: the Monte Carlo error of a critical value near 3 is then about 0.01.
DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Band:
    """Estimates with intervals that hold all together at the level; fields are (value,) unless said otherwise.

    Attributes
    ----------
    estimate, se, low, high : ndarray
    p : ndarray
        Adjusted p-value of "this value is the null", the chance that the largest |t| of all is as large as this one.
    critical : float
        Errors that the band reaches to either side: the t quantile for one value or for values that move together, up
        to that of as many independent ones.
    """

    estimate: Array
    se: Array
    low: Array
    high: Array
    p: Array
    critical: float


def simultaneous_band(
    estimate: Array,
    left_out: Array,
    sequences: Array,
    *,
    level: float = 0.95,
    null: float = 0.0,
    n_draws: int = DRAWS,
    seed: int = 0,
) -> Band:
    """Band over a family of values by the largest |t|, their dependence taken from leaving documents out.

    The jackknife deviations of all values, each document times one random normal number, have the covariance of the
    estimates; divided by their errors they are correlated normals, and the level that the largest of them reaches is
    read off Student's t: one value, or values that move together, have the t quantile, independent ones Sidak's.

    Parameters
    ----------
    estimate : ndarray, shape (value,)
        Layers, bins or heads.
    left_out : ndarray, shape (document, value)
    sequences : ndarray, shape (document,)
    level : float
    null : float
        Value tested.
    n_draws, seed : int

    Returns
    -------
    Band
        A value without spread, or undefined, takes no part; its limits are the value itself and its p is NaN.

    Notes
    -----
    T. Hothorn, F. Bretz and P. Westfall (2008), Simultaneous inference in general parametric models, Biometrical
    Journal 50, 346-363, doi:10.1002/bimj.200810425; multipliers in place of integration, which allows any number of
    values.
    """
    check_level(level)
    if n_draws < 100:
        raise InputError(f"n_draws must be at least 100, not {n_draws}.")
    n = np.asarray(sequences, dtype=np.float64)
    single = single_deviations(estimate, left_out, n)  # (value, document)
    se = np.sqrt((single**2).sum(axis=1))
    varies = np.isfinite(se) & (se > 0)
    df = n.sum() ** 2 / (n**2).sum() - 1
    largest = _largest(single[varies] / se[varies, None], n_draws, seed)
    critical = float(sps.t.isf(sps.norm.sf(np.quantile(largest, level)), df)) if varies.any() else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        z = sps.norm.isf(sps.t.sf(np.abs(estimate - null) / se, df))
    reached = n_draws - np.searchsorted(largest, z, side="left")
    p = np.where(varies, (reached + 1) / (n_draws + 1), np.nan)
    half = np.where(np.isfinite(se), critical * se, np.nan)
    return Band(estimate, se, estimate - half, estimate + half, p, critical)


def _largest(standard: Array, n_draws: int, seed: int) -> Array:
    """Sorted largest |normal| of every draw; `standard` (value, document) has rows of length 1."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 2]))
    largest = np.zeros(n_draws)
    block = max(1, 2**22 // max(1, len(standard)))
    for start in range(0, n_draws, block):
        draws = rng.normal(size=(min(block, n_draws - start), standard.shape[1]))
        if len(standard):
            largest[start : start + block] = np.abs(draws @ standard.T).max(axis=1)
    return np.sort(largest)


@dataclass(frozen=True, slots=True)
class Count:
    """How many values of a family lie above a threshold.

    Attributes
    ----------
    estimate : int
        Estimates above it.
    low, high : int
        Confidence interval of the number of true values above it.
    n : int
        Size of the family; undefined values are no part of it.
    """

    estimate: int
    low: int
    high: int
    n: int


def count_above(
    estimate: Array, p_above: Array, threshold: float, *, level: float = 0.95, simes: bool = False
) -> Count:
    """Count the values above a threshold, with an interval.

    At least as many lie above as closed testing finds at alpha/2 in the one-sided p-values, and at most as many as it
    does not find below: the lower limit is the size of the family less the size of the largest subset that a local test
    does not reject.

    Parameters
    ----------
    estimate : ndarray, shape (value,)
    p_above : ndarray, shape (value,)
        One-sided p-values of "the value is at most the threshold"; ``1 - p`` is used for the other side.
    threshold : float
    level : float
    simes : bool
        Local tests by Simes, which needs p-values that depend positively, instead of Bonferroni (then the limits are
        the numbers of Holm's rejections).

    Returns
    -------
    Count

    Notes
    -----
    J. J. Goeman and A. Solari (2011), Multiple testing for exploratory research, Statistical Science 26, 584-597,
    doi:10.1214/11-STS356.

    Examples
    --------
    >>> found = count_above(np.array([0.9, 0.8, 0.1]), np.array([1e-6, 1e-5, 0.9999]), 0.3)
    >>> found.estimate, found.low, found.high
    (2, 2, 2)
    """
    defined = np.isfinite(p_above)
    p, tail = p_above[defined], (1 - level) / 2
    low, below = _true_discoveries(p, tail, simes), _true_discoveries(1 - p, tail, simes)
    return Count(int((estimate[defined] > threshold).sum()), low, len(p) - below, len(p))


def _true_discoveries(p: Array, alpha: float, simes: bool) -> int:
    """Lower limit of the number of false nulls in a family, by closed testing."""
    ordered = np.sort(p)
    for size in range(len(p), 0, -1):
        largest = ordered[len(p) - size :]  # of all subsets of a size, the one hardest to reject
        bounds = alpha * (np.arange(1, size + 1) if simes else 1.0) / size
        if (largest > bounds).all():
            return len(p) - size
    return len(p)
