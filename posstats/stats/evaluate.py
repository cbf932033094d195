"""Evaluate components at document weights: ones for the estimate, multinomial counts for a bootstrap replicate.

Per head a component splits into three parts that are cheap for any document weights ``c``:

    value(c) = [ c' K c + f(c) . v(c) ] / pairs(c) + g f(c) . f(c)

``K`` is the Gram matrix of per-document sums with a zero diagonal, so a document never pairs with itself, however
often a replicate drew it. ``f`` is a reference denominator: a function of the query alone, but re-estimated from the
weighted logit means in every replicate. ``v`` sums the other factor of the product over the documents that f is paired
with. All of it is linear algebra on (document, query) arrays: no sequence is touched again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.errors import DesignError
from posstats.stats.components import LayerField, Statistics, centred, over_all
from posstats.stats.terms import Array, reference, reference_limits


@dataclass(frozen=True, slots=True)
class Components:
    """Components at given document weights.

    Attributes
    ----------
    value : ndarray, shape (replicate, head, component)
    left_out : ndarray, shape (replicate, document, head, component)
        The same with one copy of a document left out of the replicate: exact for the Gram part, first order in the
        change of the reference. No documents where it was not asked for.
    """

    value: Array
    left_out: Array


def pair_count(weights: Array, sequences: Array) -> Array:
    """Weighted pairs of sequences from distinct documents: ``(sum c n)^2 - sum (c n)^2`` over the last axis."""
    counts = weights * sequences
    return counts.sum(axis=-1) ** 2 - (counts**2).sum(axis=-1)


def evaluate(stats: Sequence[Statistics], weights: Array, *, left_out: bool = False) -> list[Components]:
    """Evaluate components at document weights.

    Parameters
    ----------
    stats : sequence of Statistics
        Statistics of one :class:`LayerField` (several bins, say): they share its reference.
    weights : ndarray, shape (replicate, document)
        How often each document counts; ones give the estimate.
    left_out : bool
        Whether to return the leave-one-out values too (jackknife standard errors, within replicates as well).

    Returns
    -------
    list of Components
        One per element of `stats`.
    """
    c = np.asarray(weights, dtype=np.float64)
    if (pair_count(c, stats[0].field.sequences) <= 0).any():
        raise DesignError("A set of document weights holds fewer than two distinct documents.")
    shapes = [one.gram.shape[:2] for one in stats]
    values = [np.empty((len(c), *shape)) for shape in shapes]
    without = [np.empty((len(c), c.shape[1] if left_out else 0, *shape)) for shape in shapes]
    for head in range(shapes[0][0]):
        # Leakage alone needs no reference.
        shared = _WeightedReference(stats[0].field, head, c) if any(one.slope.any() for one in stats) else None
        for one, value, left in zip(stats, values, without, strict=True):
            _evaluate_head(one, head, c, shared, value[:, head], left[:, :, head])
    return [Components(value, left) for value, left in zip(values, without, strict=True)]


def pair_products(stats: Statistics) -> Array:
    """Products of whole per-document fields, the reference at its estimate: what a sign-flip test flips.

    Summed over pairs of documents and divided by their number they give the estimate of each component.

    Returns
    -------
    ndarray, shape (head, component, document, document)
        Symmetric, zero diagonal.
    """
    field = stats.field
    n = field.sequences
    ones = np.ones((1, len(n)))
    products = stats.gram.copy()
    for head in range(len(products)):
        logs = [
            centred(log_z, stats.queries, stats.centre, axis=1)[0]
            for log_z in _WeightedReference(field, head, ones).logs
        ]
        for k, (partner, slope, square) in enumerate(zip(stats.partner_of, stats.slope, stats.square, strict=True)):
            f = slope[0] * logs[0] + slope[1] * logs[1]
            if partner is not None:
                paired = np.outer(n, stats.partners[head, partner] @ f)
                products[head, k] += 0.5 * (paired + paired.T)
            products[head, k] += square * (f @ f) * np.outer(n, n)
            np.fill_diagonal(products[head, k], 0.0)
    return products


def _evaluate_head(
    stats: Statistics, head: int, c: Array, shared: "_WeightedReference | None", value: Array, left: Array
) -> None:
    """Fill `value` (replicate, component) and, unless empty, `left` (replicate, document, component) of one head."""
    n = stats.field.sequences
    counts = c * n
    total = counts.sum(axis=1, keepdims=True)
    pairs = pair_count(c, n)[:, None]
    # Pairs left when one copy of document g goes, c_g -> c_g - 1; where none are left nothing is left out.
    fewer = (total - n) ** 2 - ((counts**2).sum(axis=1, keepdims=True) - counts**2 + (counts - n) ** 2)
    fewer = np.where(fewer > 0, fewer, pairs)
    # A document pairs with the sequences of all others.
    partners = c * (total - counts)
    logs = [centred(log_z, stats.queries, stats.centre, axis=1) for log_z in shared.logs] if shared else []
    paired = [[log_z @ partner.T for log_z in logs] for partner in stats.partners[head]]
    everywhere = len(stats.field.visible_keys)
    for k, (partner, slope, square) in enumerate(zip(stats.partner_of, stats.slope, stats.square, strict=True)):
        numerator, product, quadratic, change = np.zeros((4, 1, 1))
        if stats.gram[head, k].any():
            product = c @ stats.gram[head, k]
            numerator = np.einsum("rg,rg->r", product, c)[:, None]
        without = numerator - 2 * product if left.size else product
        if shared and partner is not None:
            f_partner = slope[0] * paired[partner][0] + slope[1] * paired[partner][1]
            f_v = np.einsum("rg,rg->r", f_partner, partners)[:, None]
            numerator = numerator + f_v
            if left.size:
                f_sums = (c * f_partner).sum(axis=1, keepdims=True)
                without = without + f_v - n * (f_sums - c * f_partner) - (total - counts) * f_partner
                direction = over_all(partners @ stats.partners[head, partner], stats.queries, stats.centre, everywhere)
                without = without + shared.change(slope, direction) * (fewer / pairs)
        if shared and square:
            f = slope[0] * logs[0] + slope[1] * logs[1]
            quadratic = square * np.einsum("rq,rq->r", f, f)[:, None]
            if left.size:
                direction = over_all(f, stats.queries, stats.centre, everywhere)
                change = 2 * square * shared.change(slope, direction)
        value[:, k] = (numerator / pairs + quadratic)[:, 0]
        if left.size:
            left[:, :, k] = without / fewer + quadratic + change


class _WeightedReference:
    """The reference denominators of one head at every replicate, and their first-order change without a document."""

    def __init__(self, field: LayerField, head: int, weights: Array) -> None:
        sums = field.lag_mean[:, head]
        seen = np.isfinite(sums[0])  # lags that no query sees are -inf in every sequence
        self._lag_sums = np.where(seen, sums, 0.0)
        total = (weights * field.sequences).sum(axis=1, keepdims=True)
        self._mean = weights @ self._lag_sums / total
        self._others = np.maximum(total - field.sequences, 1.0)
        self._sequences = field.sequences
        self._limits = reference_limits(field.visible_keys)
        ref = reference(np.where(seen, self._mean, -np.inf), field.visible_keys, float(field.learned_sink[head]))
        self._logit = ref.logit
        #: ``log Zref`` and ``log ZrefRest``, each (replicate, query). Position 0 has no ordinary key; it is never
        #: analysed, and 0 keeps its -inf out of products with zeros.
        self.logs = ref.log_denominator, np.where(np.isfinite(ref.log_denominator_rest), ref.log_denominator_rest, 0.0)

    def change(self, slope: Array, direction: Array) -> Array:
        """Change of ``f . direction`` when one copy of a document is left out, (replicate, document).

        `direction` (replicate, query) runs over all queries, the centring moved onto it (:func:`over_all`).
        """
        by_lag = sum(
            weight * self._gradient(direction, limit, log_z)
            for weight, limit, log_z in zip(slope, self._limits, self.logs, strict=True)
            if weight
        )
        # Leaving g out moves the mean logit by (n_g mean - sum_g) / (N - n_g).
        moved = (by_lag * self._mean).sum(axis=1, keepdims=True) * self._sequences - by_lag @ self._lag_sums.T
        return moved / self._others

    def _gradient(self, over_queries: Array, limit: NDArray[np.int64], log_z: Array) -> Array:
        """Gradient of ``sum_i x[i] log Z[i]`` in ref[d]: ``sum_i x[i] exp(ref[d]) / Z[i]`` over queries that see d."""
        shift = self._logit.max(axis=1, keepdims=True)
        scaled = over_queries * np.exp(shift - log_z)
        # Query i sees the lags below limit[i]: collect by limit, then sum from the longest lag down.
        order = np.argsort(limit, kind="stable")
        limits, starts = np.unique(limit[order], return_index=True)
        by_limit = np.zeros((len(scaled), scaled.shape[1] + 1))
        by_limit[:, limits] = np.add.reduceat(scaled[:, order], starts, axis=1)
        reach = np.cumsum(by_limit[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return np.exp(self._logit - shift) * reach
