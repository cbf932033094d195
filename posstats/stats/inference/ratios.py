"""Confidence sets of ratios, weak denominators included (docs/method.md, section 4)."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from posstats.stats.inference.squares import Flags, check_level, pair_interactions, seen_singly, single_deviations
from posstats.stats.pair_products.terms import Array

#: Shapes of a confidence set, in the order of their codes.
SHAPES = ("interval", "rays", "line", "undefined")
INTERVAL, RAYS, LINE, UNDEFINED = range(4)


@dataclass(frozen=True, slots=True)
class RatioSet:
    """Confidence sets of ratios; every field is (...).

    Attributes
    ----------
    estimate : ndarray
        Ratio of the estimates; NaN where the denominator is 0.
    low, high : ndarray
        An interval holds ``low <= x <= high``; two rays hold ``x <= low`` and ``x >= high``; the line has infinite
        limits.
    shape : ndarray of int
        Index into :data:`SHAPES`. Two rays and the line say that the denominator cannot be told from 0: rays still
        exclude the values between them. "undefined" where a leave-one-out value is NaN, or the denominator is 0 and
        does not vary.

    Examples
    --------
    >>> sets = RatioSet(np.array([0.5, 4.0]), np.array([0.2, -3.0]), np.array([0.9, 1.5]), np.array([INTERVAL, RAYS]))
    >>> print(sets.at(0))
    [0.2, 0.9]
    >>> print(sets.at(1))
    (-inf, -3] or [1.5, inf)
    >>> sets.contains(0.3), sets.above(0.0)
    (array([ True, False]), array([ True, False]))
    """

    estimate: Array
    low: Array
    high: Array
    shape: NDArray[np.int64]

    def at(self, index: int | tuple[int, ...]) -> "RatioSet":
        """One or some of the sets."""
        return RatioSet(self.estimate[index], self.low[index], self.high[index], self.shape[index])

    def contains(self, x: Array | float) -> Flags:
        """Whether the set holds x."""
        between = (self.low <= x) & (x <= self.high)
        outside = (x <= self.low) | (x >= self.high)
        return self._by_shape(between, outside, True)

    def above(self, x: float) -> Flags:
        """Whether all of the set is larger than x."""
        return self._by_shape(self.low > x, False, False)

    def below(self, x: float) -> Flags:
        """Whether all of the set is smaller than x."""
        return self._by_shape(self.high < x, False, False)

    def inside(self, low: float, high: float) -> Flags:
        """Whether all of the set lies in [low, high]."""
        return self._by_shape((low <= self.low) & (self.high <= high), False, False)

    def outside(self, low: float, high: float) -> Flags:
        """Whether none of the set lies in [low, high]."""
        apart = (self.high < low) | (self.low > high)
        return self._by_shape(apart, (self.low < low) & (high < self.high), False)

    def complement(self) -> "RatioSet":
        """Sets of 1 less the ratio, as a removal is."""
        return replace(self, estimate=1 - self.estimate, low=1 - self.high, high=1 - self.low)

    def text(self, digits: int = 3) -> list[str]:
        """How each set is printed."""
        flat = zip(self.shape.ravel(), self.low.ravel(), self.high.ravel(), strict=True)
        return [_text(int(shape), float(low), float(high), digits) for shape, low, high in flat]

    def __str__(self) -> str:
        return "\n".join(self.text())

    def _by_shape(self, interval: Flags | bool, rays: Flags | bool, line: bool) -> Flags:
        cases = [self.shape == INTERVAL, self.shape == RAYS, self.shape == LINE]
        return np.select(cases, np.broadcast_arrays(interval, rays, line, self.shape)[:3], False).astype(bool)


def _text(shape: int, low: float, high: float, digits: int) -> str:
    if shape == INTERVAL:
        return f"[{low:.{digits}g}, {high:.{digits}g}]"
    if shape == RAYS:
        return f"(-inf, {low:.{digits}g}] or [{high:.{digits}g}, inf)"
    return "(-inf, inf)" if shape == LINE else "undefined"


@dataclass(frozen=True, slots=True)
class JointSpread:
    """Numerator and denominator of a ratio with their joint covariance.

    Attributes
    ----------
    above, below : ndarray, shape (...)
        Numerator A and denominator B.
    covariance : ndarray, shape (..., 2, 2)
        Of (A, B).
    df : ndarray, shape (...)
        Degrees of freedom of the variance of ``A - x B`` at the ratio x of the estimates.
    """

    above: Array
    below: Array
    covariance: Array
    df: Array

    @classmethod
    def of(
        cls,
        above: Array,
        below: Array,
        left_out_above: Array,
        left_out_below: Array,
        sequences: Array,
        grams: tuple[Array, Array] | None = None,
    ) -> "JointSpread":
        """Measure it by leaving documents out.

        Parameters
        ----------
        above, below : ndarray, shape (...)
        left_out_above, left_out_below : ndarray, shape (document, ...)
            Both without one document.
        sequences : ndarray, shape (document,)
            Number of sequences of each document.
        grams : pair of ndarray, shape (..., document, document), optional
            Products of documents behind numerator and denominator. With them the second order, which the jackknife
            counts twice, is subtracted, at most half of the jackknife's variance in any direction.

        Returns
        -------
        JointSpread
        """
        n = np.asarray(sequences, dtype=np.float64)
        above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
        single = np.stack(
            [single_deviations(above, left_out_above, n), single_deviations(below, left_out_below, n)], axis=-2
        )
        covariance = single @ np.swapaxes(single, -1, -2)
        effective = n.sum() ** 2 / (n**2).sum() - 1
        if grams is None:
            return cls(above, below, covariance, np.full(above.shape, effective))
        pairs = np.stack([pair_interactions(gram, n) for gram in grams], axis=-3)
        excess = np.einsum("...igh,...jgh,gh->...ij", pairs, pairs, seen_singly(n) - 2)
        left = covariance - _at_most_half(excess, covariance)
        direction = np.stack([below, -above], axis=-1)  # A - x B at x = A / B, times B
        ratio = _quadratic(left, direction) / np.maximum(_quadratic(covariance, direction), np.finfo(float).tiny)
        share = np.where(_quadratic(covariance, direction) > 0, ratio, 1.0)
        return cls(above, below, left, effective * share**2)

    def variance(self, x: Array | float) -> Array:
        """Variance of ``A - x B``, of the shape of x and the parts together."""
        c = self.covariance
        return c[..., 0, 0] - 2 * x * c[..., 0, 1] + x**2 * c[..., 1, 1]


def _quadratic(matrix: Array, vector: Array) -> Array:
    return np.einsum("...i,...ij,...j->...", vector, matrix, vector)


def _at_most_half(excess: Array, covariance: Array) -> Array:
    """The part of an excess that is at most half of the covariance in every direction, and not below 0."""
    values, vectors = np.linalg.eigh(covariance)
    root = np.sqrt(np.maximum(values, 0.0))
    inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 1e-9 * root[..., -1:])
    whiten = vectors * inverse[..., None, :]
    colour = vectors * root[..., None, :]
    parts, axes = np.linalg.eigh(np.swapaxes(whiten, -1, -2) @ excess @ whiten)
    axes = colour @ axes
    return (axes * np.clip(parts, 0.0, 0.5)[..., None, :]) @ np.swapaxes(axes, -1, -2)


def fieller_set(spread: JointSpread, level: float = 0.95, critical: Array | float | None = None) -> RatioSet:
    """Confidence set of a ratio by Fieller's theorem: ``{x : (A - x B)^2 <= t^2 var(A - x B)}``.

    Whether x is the ratio is asked of A - x B, which is 0 if it is and has a standard error however small B is. No x is
    withheld for want of a significant denominator: where B cannot be told from 0 the set has no end.

    Parameters
    ----------
    spread : JointSpread
    level : float
        Confidence level, in (0, 1).
    critical : ndarray or float, optional
        In place of the t quantile, as a bootstrap of the same pivot gives it.

    Returns
    -------
    RatioSet

    Notes
    -----
    E. C. Fieller (1954), Some problems in interval estimation, Journal of the Royal Statistical Society B 16, 175-185.

    Examples
    --------
    >>> covariance = np.array([[0.01, 0.0], [0.0, 0.01]])
    >>> spread = JointSpread(np.array(1.0), np.array(2.0), covariance, np.array(50.0))
    >>> print(fieller_set(spread))
    [0.392, 0.618]
    """
    check_level(level)
    t2 = (sps.t.ppf(0.5 + level / 2, spread.df) if critical is None else np.asarray(critical)) ** 2
    a, b, c = spread.above, spread.below, spread.covariance
    square = b**2 - t2 * c[..., 1, 1]
    cross = a * b - t2 * c[..., 0, 1]
    constant = a**2 - t2 * c[..., 0, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = np.where(b != 0, a / b, np.nan)
        # Written so that a denominator of no variance gives no negative square root by rounding.
        root = np.sqrt(np.maximum(cross**2 - square * constant, 0.0))
        far = cross + np.where(cross >= 0, root, -root)
        one, two = far / square, np.where(far != 0, constant / far, far / square)
    low, high = np.minimum(one, two), np.maximum(one, two)
    real = cross**2 >= square * constant
    undefined = ~np.isfinite(square + cross + constant) | (square == 0)
    shape = np.where(square > 0, INTERVAL, np.where(real, RAYS, LINE))
    shape = np.where(undefined, UNDEFINED, shape)
    low = np.select([shape == LINE, undefined], [-np.inf, np.nan], low)
    high = np.select([shape == LINE, undefined], [np.inf, np.nan], high)
    return RatioSet(estimate, low, high, shape)


def ratio_p(spread: JointSpread, null: float = 0.0) -> Array:
    """Two-sided p-value of "the ratio is `null`": the t test of ``A - null B``, the test that the set inverts."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (spread.above - null * spread.below) / np.sqrt(spread.variance(null))
    p: Array = np.where(spread.variance(null) > 0, 2 * sps.t.sf(np.abs(t), spread.df), np.nan)
    return p
