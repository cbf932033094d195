"""Intervals and tests of means of squares and of their ratios, one per cell and value (docs/method.md, section 4)."""

from dataclasses import dataclass, fields

import numpy as np

from posstats.stats.inference.bootstrap_t import bootstrap_critical, bootstrap_p, bootstrap_square_interval
from posstats.stats.inference.ratios import INTERVAL, RAYS, UNDEFINED, JointSpread, fieller_set, ratio_p
from posstats.stats.inference.resample import jackknife_error
from posstats.stats.inference.squares import SquareSpread, square_interval
from posstats.stats.pair_products.evaluate import pair_count
from posstats.stats.pair_products.terms import Array

#: A critical value beyond which a set is the line; infinity times the variance of a constant would be no number.
_NO_LIMIT = 1e6


@dataclass(frozen=True, slots=True)
class Limits:
    """Estimates with intervals and tests; every field is (cell, value).

    Attributes
    ----------
    estimate, se : ndarray
    numerator_se : ndarray
        Standard error of a ratio's numerator; of a mean of squares, its own.
    low, high : ndarray
        Of a set that is two rays, ``(-inf, gap_low]`` and ``[gap_high, inf)``, and of the line, infinite.
    p : ndarray
        Of "it is 0": one-sided for a mean of squares, two-sided for a ratio.
    set : ndarray of str
        "interval", "rays", "line", or "" where nothing is defined.
    gap_low, gap_high : ndarray
        Ends of the two rays, NaN for other sets.
    boot_low, boot_high : ndarray
        Bootstrap-t limits of a mean of squares, NaN where none were asked for.
    method : str
        How `low` and `high` were made: "moments", "fieller" or "bootstrap_t".
    """

    estimate: Array
    se: Array
    numerator_se: Array
    low: Array
    high: Array
    p: Array
    set: Array
    gap_low: Array
    gap_high: Array
    boot_low: Array
    boot_high: Array
    method: str

    def at(self, k: int) -> "Limits":
        """The k-th cell."""
        arrays = {one.name: getattr(self, one.name) for one in fields(self)}
        return Limits(**{name: value if isinstance(value, str) else value[k] for name, value in arrays.items()})  # type: ignore[arg-type]


def square_limits(
    estimate: Array, left_out: Array, grams: Array, sequences: Array, level: float, weights: Array | None = None
) -> Limits:
    """Intervals of means of squares by moments, and beside them by bootstrap-t.

    Parameters
    ----------
    estimate : ndarray, shape (cell, value)
    left_out : ndarray, shape (document, cell, value)
        Without each document.
    grams : ndarray, shape (cell, value, document, document)
        Products of documents (:func:`posstats.stats.pair_products.evaluate.influence_products`).
    sequences : ndarray, shape (document,)
        Number of sequences of each document.
    level : float
    weights : ndarray, shape (replicate, document), optional
        Counts of a document bootstrap.

    Returns
    -------
    Limits
    """
    spread = SquareSpread.of(estimate, left_out, grams, sequences)
    found = square_interval(spread, level)
    bad = ~np.isfinite(found.se)
    low, high = (np.where(bad, np.nan, limit) for limit in (found.low, found.high))
    nothing = np.full(estimate.shape, np.nan)
    boot_low = boot_high = nothing
    if weights is not None:
        values, errors = replicates(grams, sequences, weights)
        boot = bootstrap_square_interval(spread, values, errors, level)
        boot_low, boot_high = (np.where(bad, np.nan, limit) for limit in (boot.low, boot.high))
    shape = np.where(bad, "", "interval")
    return Limits(
        estimate, found.se, found.se, low, high, found.p, shape, nothing, nothing, boot_low, boot_high, "moments"
    )


def ratio_limits(
    above: Array,
    below: Array,
    left_above: Array,
    left_below: Array,
    sequences: Array,
    level: float,
    grams: tuple[Array, Array] | None = None,
    weights: Array | None = None,
) -> Limits:
    """Confidence sets of ratios: Fieller's from the joint jackknife, with the critical value of t or of a bootstrap.

    Parameters
    ----------
    above, below : ndarray, shape (cell, value)
        Numerators and denominators.
    left_above, left_below : ndarray, shape (document, cell, value)
        Without each document.
    sequences : ndarray, shape (document,)
    level : float
    grams : pair of ndarray, shape (cell, value, document, document), optional
        Products of documents behind numerators and denominators; with `weights`.
    weights : ndarray, shape (replicate, document), optional
        Counts of a document bootstrap, which then gives the critical value of the pivot.

    Returns
    -------
    Limits
    """
    spread = JointSpread.of(above, below, left_above, left_below, sequences)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = np.where(below != 0, above / below, np.nan)
        se = np.sqrt(np.maximum(spread.variance(estimate), 0.0)) / np.abs(below)
    numerator_se, critical, p = np.sqrt(spread.covariance[..., 0, 0]), None, ratio_p(spread)
    if grams is not None and weights is not None:
        ratio = np.nan_to_num(estimate)[..., None, None]
        pivot = grams[0] - ratio * grams[1]  # A - x B at x = A / B
        values, errors = replicates(pivot, sequences, weights)
        centre = pivot.sum(axis=(-2, -1)) / pair_count(np.ones(len(sequences)), sequences)
        critical = np.minimum(bootstrap_critical(centre, values, errors, level), _NO_LIMIT)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = bootstrap_p(above / numerator_se, centre, values, errors)
    found = fieller_set(spread, level, critical)
    rays, nan = found.shape == RAYS, np.full(estimate.shape, np.nan)
    low, high = np.where(rays, -np.inf, found.low), np.where(rays, np.inf, found.high)
    gap_low, gap_high = np.where(rays, found.low, nan), np.where(rays, found.high, nan)
    names = np.select([found.shape == INTERVAL, rays, found.shape == UNDEFINED], ["interval", "rays", ""], "line")
    method = "fieller" if critical is None else "bootstrap_t"
    return Limits(estimate, se, numerator_se, low, high, p, names, gap_low, gap_high, nan, nan, method)


def replicates(grams: Array, sequences: Array, weights: Array) -> tuple[Array, Array]:
    """Bootstrap replicates of mean products over pairs of documents, and the jackknife error within each.

    Parameters
    ----------
    grams : ndarray, shape (..., document, document)
        Symmetric, zero diagonal.
    sequences : ndarray, shape (document,)
    weights : ndarray, shape (replicate, document)

    Returns
    -------
    values, errors : ndarray, shape (replicate, ...)
        ``c' K c`` over the weighted pairs of sequences, and the delete-one jackknife over the copies of documents.
    """
    shape = grams.shape[:-2]
    pairs = pair_count(weights, sequences)
    counts = weights * sequences
    squares = (counts**2).sum(axis=1, keepdims=True) - counts**2 + (counts - sequences) ** 2
    left = (counts.sum(axis=1, keepdims=True) - sequences) ** 2 - squares  # pairs without one copy of a document
    left = np.where(left > 0, left, np.inf)
    values, errors = np.empty((2, len(weights), *shape))
    for cell in np.ndindex(*shape):
        applied = weights @ grams[cell]
        whole = (applied * weights).sum(axis=1)
        values[:, *cell] = whole / pairs
        errors[:, *cell] = jackknife_error((whole[:, None] - 2 * applied) / left, weights)
    return values, errors
