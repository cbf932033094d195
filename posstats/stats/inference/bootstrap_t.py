"""Bootstrap-t: critical values of a pivot from replicates with a jackknife error each (docs/method.md, section 4)."""

import numpy as np

from posstats.errors import InputError
from posstats.stats.inference.squares import SquareInterval, SquareSpread, check_level, crossing
from posstats.stats.pair_products.terms import Array

#: Replicates below which the tails of a pivot are too thin for a quantile.
MINIMUM_REPLICATES = 99


def bootstrap_critical(estimate: Array, replicates: Array, replicate_error: Array, level: float = 0.95) -> Array:
    """Critical value of ``|theta* - theta| / se*``, in place of the t quantile.

    For a ratio A/B take ``theta = A - x B`` at x = A/B, which is 0, and its replicates and their errors at the same x;
    the result goes into :func:`posstats.stats.inference.ratios.fieller_set` as `critical`.

    Parameters
    ----------
    estimate : ndarray, shape (...)
    replicates, replicate_error : ndarray, shape (replicate, ...)
        Of a document bootstrap, with the jackknife error within each replicate.
    level : float

    Returns
    -------
    ndarray, shape (...)
        Quantile of the pivot; a replicate without error counts as infinitely far.

    Raises
    ------
    InputError
        With fewer than 99 replicates.
    """
    _check(replicates, level)
    return _quantile(_pivots(estimate, replicates, replicate_error), level)


def bootstrap_p(observed: Array, estimate: Array, replicates: Array, replicate_error: Array) -> Array:
    """Two-sided p-value of an observed t: how many of the pivots of :func:`bootstrap_critical` reach it.

    ``(b + 1) / (B + 1)`` of B replicates; NaN where `observed`, (...), is.
    """
    reached = (_pivots(estimate, replicates, replicate_error) >= np.abs(observed)).sum(axis=0)
    return np.where(np.isfinite(observed), (reached + 1) / (len(replicates) + 1), np.nan)


def _pivots(estimate: Array, replicates: Array, replicate_error: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        pivot = np.abs(replicates - estimate) / replicate_error
    return np.where(np.isfinite(pivot), pivot, np.inf)


def bootstrap_square_interval(
    spread: SquareSpread, replicates: Array, replicate_error: Array, level: float = 0.95
) -> SquareInterval:
    """Interval of a mean of squares from bootstrap quantiles of the pivot that the mixture quantiles serve.

    The pivot is ``(theta - x) / sqrt(J + growth (x - theta))`` with J the jackknife variance; in a replicate x is the
    estimate and J its own. Both variances are at least the second-order part.

    Parameters
    ----------
    spread : SquareSpread
    replicates, replicate_error : ndarray, shape (replicate, ...)
    level : float

    Returns
    -------
    SquareInterval
        ``0 <= low <= high``; p is that of the mixture quantiles, since a bootstrap does not know the truth 0.

    Notes
    -----
    Near 0 this is not valid: documents drawn from the recorded ones have a mean of their own, whose square is not 0,
    and so replicates never show what an estimate of 0 does (docs/calibration.md).
    """
    _check(replicates, level)
    variance = np.maximum(replicate_error**2 + spread.growth * (spread.estimate - replicates), spread.second)
    with np.errstate(divide="ignore", invalid="ignore"):
        pivot = (replicates - spread.estimate) / np.sqrt(variance)
    pivot = np.where(np.isnan(pivot), 0.0, pivot)
    tail = (1 - level) / 2
    lower, upper = _quantile(pivot, tail), _quantile(pivot, 1 - tail)

    def at(x: Array) -> Array:
        grown = np.maximum(spread.jackknife + spread.growth * (x - spread.estimate), spread.second)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = (spread.estimate - x) / np.sqrt(grown)
        return np.where(grown > 0, value, np.where(spread.estimate == x, 0.0, np.copysign(np.inf, spread.estimate - x)))

    zero = np.zeros_like(spread.estimate)
    size = np.maximum(spread.estimate, 0.0)
    high = crossing(lambda x: at(x) < np.minimum(lower, 0.0), size, size + np.sqrt(spread.variance(size)))
    low = crossing(lambda x: at(x) <= np.maximum(upper, 0.0), zero, size)
    se = np.sqrt(spread.variance(size))
    return SquareInterval(spread.estimate, se, np.minimum(low, high), high, spread.p_zero())


def _check(replicates: Array, level: float) -> None:
    check_level(level)
    if len(replicates) < MINIMUM_REPLICATES:
        raise InputError(f"A bootstrap-t needs at least {MINIMUM_REPLICATES} replicates, not {len(replicates)}.")


def _quantile(values: Array, level: float) -> Array:
    """The ``ceil(level (B + 1))``-th smallest: no interpolation between a finite and an infinite pivot."""
    rank = min(len(values), max(1, int(np.ceil(level * (len(values) + 1) - 1e-9)))) - 1
    quantile: Array = np.partition(values, rank, axis=0)[rank]
    return quantile
