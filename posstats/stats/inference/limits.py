"""Interval limits from an estimate, its standard error and its replicates: one function per method."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats as sps

from posstats.errors import InputError
from posstats.stats.pair_products.terms import Array


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a method may use, as :func:`posstats.stats.inference.resample.interval` takes it.

    `df` belongs to `se`, and the variance at another value x than the estimate is ``se^2 + growth (x - estimate)``.
    """

    estimate: Array
    se: Array
    df: Array
    growth: Array
    left_out: Array
    replicates: Array
    replicate_error: Array | None


def _quantiles(replicates: Array, levels: Array) -> Array:
    """Quantiles over defined replicates at levels of shape (2, ...), one pair per trailing element."""
    flat = replicates.reshape(len(replicates), -1)
    wanted = np.broadcast_to(levels, (2, *replicates.shape[1:])).reshape(2, -1)
    result = np.full(wanted.shape, np.nan)
    for k in range(flat.shape[1]):
        values = flat[np.isfinite(flat[:, k]), k]
        if len(values) and np.isfinite(wanted[:, k]).all():
            result[:, k] = np.quantile(values, wanted[:, k])
    return result.reshape(2, *replicates.shape[1:])


def _percentile(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    low, high = _quantiles(x.replicates, _tails(alpha / 2, x))
    return low, high


def _tails(tail: float, x: Ingredients) -> Array:
    return np.array([tail, 1 - tail]).reshape(2, *([1] * x.estimate.ndim))


def _basic(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    low, high = _percentile(x, alpha)
    return 2 * x.estimate - high, 2 * x.estimate - low


def _expanded(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    g = len(x.left_out)
    tail = sps.norm.cdf(np.sqrt(g / (g - 1)) * sps.t.ppf(alpha / 2, g - 1))
    low, high = _quantiles(x.replicates, _tails(float(tail), x))
    return low, high


def _bca(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    finite = np.isfinite(x.replicates)
    n = np.maximum(finite.sum(axis=0), 1)
    below = (finite & (x.replicates < x.estimate)).sum(axis=0) + 0.5 * (x.replicates == x.estimate).sum(axis=0)
    z0 = sps.norm.ppf(np.clip(below / n, 0.5 / n, 1 - 0.5 / n))
    deviation = x.left_out.mean(axis=0) - x.left_out
    with np.errstate(invalid="ignore", divide="ignore"):
        acceleration = (deviation**3).sum(axis=0) / (6 * (deviation**2).sum(axis=0) ** 1.5)
    acceleration = np.nan_to_num(acceleration)  # no spread, no skewness
    z = sps.norm.ppf(_tails(alpha / 2, x))
    levels = sps.norm.cdf(z0 + (z0 + z) / (1 - acceleration * (z0 + z)))
    low, high = _quantiles(x.replicates, levels)
    return low, high


def _jackknife(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    """Roots of ``(x - estimate)^2 = t^2 (se^2 + growth (x - estimate))``; plus and minus t se where nothing grows."""
    t = sps.t.ppf(1 - alpha / 2, x.df)
    middle = x.estimate + t**2 * x.growth / 2
    half = t * np.sqrt(x.se**2 + (t * x.growth / 2) ** 2)
    return middle - half, middle + half


def _studentized(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    if x.replicate_error is None:
        raise InputError("The studentized interval needs the standard error of every replicate.")
    with np.errstate(invalid="ignore", divide="ignore"):
        pivot = (x.replicates - x.estimate) / x.replicate_error
    low, high = _quantiles(pivot, _tails(alpha / 2, x))
    return x.estimate - high * x.se, x.estimate - low * x.se


#: Interval method -> function of the ingredients and alpha that returns (low, high).
LIMITS: dict[str, Callable[[Ingredients, float], tuple[Array, Array]]] = {
    "studentized": _studentized,
    "jackknife": _jackknife,
    "corrected_jackknife": _jackknife,
    "bca": _bca,
    "expanded": _expanded,
    "percentile": _percentile,
    "basic": _basic,
}
