"""Pair products over documents: leakage, its allocation to the terms, and magnitudes (docs/method.md, section 3).

A component is a mean over pairs of sequences from different documents. Per head it splits into three parts that are
cheap for any document weights ``c`` (ones for the estimate, multinomial counts for a bootstrap replicate):

    value(c) = [ c' K c + f(c) . v(c) ] / pairs(c) + g f(c) . f(c)

``K`` is the Gram matrix of per-document sums with a zero diagonal, so a document never pairs with itself, however
often a replicate drew it. ``f`` is a reference denominator: a function of the query alone, but re-estimated from the
weighted logit means in every replicate. ``v`` sums the other factor of the product over the documents that f is paired
with. Both are linear algebra on (document, query) arrays: no sequence is touched again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.errors import DesignError, NumericalError
from posstats.stats.terms import Array, reference, reference_limits

#: Components of :func:`share_statistics`, in order: leakage first, then its additive allocation.
SHARE_COMPONENTS = ("log_attention", "mask", "sink", "logit_drift", "denominator_drift")
#: Components of :func:`magnitude_statistics`, in order.
MAGNITUDE_COMPONENTS = ("log_attention", "mask", "sink", "logit_drift", "denominator_drift", "residual")


@dataclass(frozen=True, slots=True)
class LayerField:
    """What one layer of one condition contributes: the parts of log attention that do not depend on the reference.

    Attributes
    ----------
    logit : ndarray, shape (sequence, head, query, offset)
        ``s[i, i-d]`` in nats.
    rest_share : ndarray, shape (sequence, head, query)
        ``log(1 - A0[i])``.
    rest : ndarray, shape (sequence, head, query)
        ``-log Zrest[i]``.
    lag_mean : ndarray, shape (sequence, head, lag)
        Mean logit by lag (see :func:`posstats.stats.terms.lag_means`).
    visible_keys : ndarray of int, shape (query,)
        Keys visible to each query.
    learned_sink : ndarray, shape (head,)
        Learned sink logit, -inf where there is none.
    offsets : ndarray of int, shape (offset,)
        Offsets of the last axis of `logit`.
    document : ndarray of int, shape (sequence,)
        Document code of each sequence, 0 .. number of documents - 1.
    """

    logit: Array
    rest_share: Array
    rest: Array
    lag_mean: Array
    visible_keys: NDArray[np.int64]
    learned_sink: Array
    offsets: NDArray[np.int64]
    document: NDArray[np.int64]


def analysed_queries(length: int, offsets: NDArray[np.integer]) -> NDArray[np.int64]:
    """Queries of the headline estimates: ``max(offsets) < i < length - 1``.

    Examples
    --------
    >>> analysed_queries(8, np.array([0, 2])).tolist()
    [3, 4, 5, 6]
    """
    queries = np.arange(int(np.max(offsets)) + 1, length - 1, dtype=np.int64)
    if len(queries) < 2:
        raise DesignError(
            f"Offset {int(np.max(offsets))} leaves {len(queries)} analysed queries in sequences of {length} tokens; "
            f"at least 2 are needed, so offsets must be at most {length - 4}."
        )
    return queries


def octave_bins(length: int) -> list[tuple[int, int]]:
    """Octaves ``[2, 4), [4, 8), ...`` of queries before the last, the last one cut short; single queries are left out.

    Examples
    --------
    >>> octave_bins(12)
    [(2, 4), (4, 8), (8, 11)]
    """
    edges = [2**k for k in range(1, length.bit_length() + 1)]
    bins = [(low, min(2 * low, length - 1)) for low in edges]
    return [(low, high) for low, high in bins if high - low >= 2]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Per-document sufficient statistics of several components of one layer.

    Attributes
    ----------
    gram : ndarray, shape (head, component, document, document)
        Symmetric products of per-document sums, zero diagonal, divided by the number of queries (and offsets).
    partner : ndarray, shape (head, component, document, query)
        Per-document sums that the reference function is paired with, same scaling.
    slope : ndarray, shape (component, 2)
        The reference function f as a combination of ``log Zref`` and ``log ZrefRest``.
    square : ndarray, shape (component,)
        Weight of ``f . f``.
    queries, centre : ndarray of int
        Queries of the products, and queries whose mean is subtracted from every function of the query.
    lag_mean : ndarray, shape (head, document, lag)
        Per-document sums of mean logits by lag.
    sequences : ndarray, shape (document,)
        Sequences per document.
    visible_keys : ndarray of int, shape (query,)
        Keys visible to each query.
    learned_sink : ndarray, shape (head,)
        Learned sink logit.
    """

    gram: Array
    partner: Array
    slope: Array
    square: Array
    queries: NDArray[np.int64]
    centre: NDArray[np.int64]
    lag_mean: Array
    sequences: Array
    visible_keys: NDArray[np.int64]
    learned_sink: Array


def _document_sums(values: Array, document: NDArray[np.int64]) -> Array:
    """Sum over the sequences of each document: (sequence, ...) -> (document, ...)."""
    sums = np.zeros((int(document.max()) + 1, *values.shape[1:]))
    np.add.at(sums, document, values)
    return sums


def _centred(values: Array, queries: NDArray[np.int64], centre: NDArray[np.int64], axis: int) -> Array:
    """Restrict to `queries` and subtract the mean over `centre` along `axis`."""
    return np.take(values, queries, axis=axis) - np.take(values, centre, axis=axis).mean(axis=axis, keepdims=True)


def _gram(x: Array, z: Array) -> Array:
    """Symmetric products of (document, head, ...) sums with a zero diagonal: (head, document, document)."""
    x, z = (np.moveaxis(a, 1, 0).reshape(a.shape[1], a.shape[0], -1) for a in (x, z))
    product = x @ z.transpose(0, 2, 1)
    product = 0.5 * (product + product.transpose(0, 2, 1))
    product[:, np.arange(x.shape[1]), np.arange(x.shape[1])] = 0.0
    return product


def _parts(
    field: LayerField, queries: NDArray[np.int64], centre: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[Array, Array, Array, Array]:
    """Centred per-document sums of the logits, log(1 - A0), -log Zrest and log attention at the chosen offsets."""
    chosen = np.flatnonzero(np.isin(field.offsets, offsets))
    logit = _centred(_document_sums(field.logit[..., chosen], field.document), queries, centre, axis=2)
    share = _centred(_document_sums(field.rest_share, field.document), queries, centre, axis=2)
    rest = _centred(_document_sums(field.rest, field.document), queries, centre, axis=2)
    if not all(np.isfinite(part).all() for part in (logit, share, rest)):
        raise NumericalError(
            "Log attention is not finite at an analysed query: an offset reaches beyond the window of this layer, "
            "position 0 takes all attention, or the dump holds NaN. Choose smaller offsets= or check the model."
        )
    return logit, share, rest, logit + (share + rest)[..., None]


def _statistics(
    field: LayerField,
    queries: NDArray[np.int64],
    centre: NDArray[np.int64],
    components: list[tuple[tuple[Array, Array] | None, Array | None, tuple[float, float], float]],
    scale: float,
) -> Statistics:
    """Assemble :class:`Statistics` from (Gram factors, partner, slope, square) per component."""
    n_documents = int(field.document.max()) + 1
    heads = field.logit.shape[1]
    gram = np.zeros((heads, len(components), n_documents, n_documents))
    partner = np.zeros((heads, len(components), n_documents, len(queries)))
    for k, (factors, other, _, _) in enumerate(components):
        if factors is not None:
            gram[:, k] = _gram(*factors) / scale
        if other is not None:
            partner[:, k] = np.moveaxis(other, 1, 0) / scale
    return Statistics(
        gram=gram,
        partner=partner,
        slope=np.array([slope for _, _, slope, _ in components]),
        square=np.array([square for _, _, _, square in components]) / len(queries),
        queries=queries,
        centre=centre,
        lag_mean=np.moveaxis(_document_sums(field.lag_mean, field.document), 1, 0),
        sequences=np.bincount(field.document).astype(np.float64),
        visible_keys=field.visible_keys,
        learned_sink=field.learned_sink,
    )


def share_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of leakage ``C(y, y)`` and of ``C(term, y)``, summed over `offsets`.

    Parameters
    ----------
    field : LayerField
    queries : ndarray of int
        Analysed queries; every function of the query is centred over them.
    offsets : ndarray of int
        Offsets summed over; all must exist (i - d >= 1, visible) at every analysed query.

    Returns
    -------
    Statistics
        Components in the order of :data:`SHARE_COMPONENTS`. The term `relative` is constant in the query, so its
        product is exactly zero and is left out.
    """
    logit, share, rest, y = _parts(field, queries, queries, offsets)
    total = y.sum(axis=-1)
    components = [
        ((y, y), None, (0.0, 0.0), 0.0),
        (None, total, (-1.0, 0.0), 0.0),
        ((share, total), total, (1.0, -1.0), 0.0),
        ((logit, y), None, (0.0, 0.0), 0.0),
        ((rest, total), total, (0.0, 1.0), 0.0),
    ]
    return _statistics(field, queries, queries, components, scale=len(queries))


def magnitude_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of the magnitudes: how far each term is from its long-context value.

    Parameters
    ----------
    field : LayerField
    queries : ndarray of int
        The bin; the mean over queries ``i >= T/2`` is subtracted instead of the bin's own.
    offsets : ndarray of int
        Offsets averaged over.

    Returns
    -------
    Statistics
        Components in the order of :data:`MAGNITUDE_COMPONENTS`.
    """
    length = field.logit.shape[2]
    late = np.arange((length + 1) // 2, length)
    logit, share, rest, y = _parts(field, queries, late, offsets)
    n = len(offsets)
    components = [
        ((y, y), None, (0.0, 0.0), 0.0),
        (None, None, (-1.0, 0.0), 1.0),
        ((share * n, share), 2 * n * share, (1.0, -1.0), 1.0),
        ((logit, logit), None, (0.0, 0.0), 0.0),
        ((rest * n, rest), 2 * n * rest, (0.0, 1.0), 1.0),
        ((y, y), 2 * y.sum(axis=-1), (1.0, 0.0), 1.0),
    ]
    return _statistics(field, queries, late, components, scale=len(queries) * n)


@dataclass(frozen=True, slots=True)
class Components:
    """Components at given document weights.

    Attributes
    ----------
    value : ndarray, shape (replicate, head, component)
    left_out : ndarray, shape (replicate, document, head, component), or None
        The same with one copy of a document left out of the replicate: exact for the Gram part, first order in the
        change of the reference.
    """

    value: Array
    left_out: Array | None


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
    if (pair_count(c, stats[0].sequences) <= 0).any():
        raise DesignError("A set of document weights holds fewer than two distinct documents.")
    shapes = [one.gram.shape[:2] for one in stats]
    values = [np.empty((len(c), *shape)) for shape in shapes]
    without = [np.empty((*c.shape, *shape)) if left_out else None for shape in shapes]
    for head in range(shapes[0][0]):
        shared = _WeightedReference(stats[0], head, c)
        for one, value, left in zip(stats, values, without, strict=True):
            _evaluate_head(one, head, c, shared, value[:, head], None if left is None else left[:, :, head])
    return [Components(value, left) for value, left in zip(values, without, strict=True)]


def _evaluate_head(
    stats: Statistics, head: int, c: Array, shared: "_WeightedReference", value: Array, left: Array | None
) -> None:
    """Fill `value` (replicate, component) and `left` (replicate, document, component) of one head."""
    n = stats.sequences
    counts = c * n
    total = counts.sum(axis=1, keepdims=True)
    pairs = pair_count(c, n)[:, None]
    # Pairs left when one copy of document g goes, c_g -> c_g - 1; where none are left nothing is left out.
    fewer = (total - n) ** 2 - ((counts**2).sum(axis=1, keepdims=True) - counts**2 + (counts - n) ** 2)
    fewer = np.where(fewer > 0, fewer, pairs)
    logs = [_centred(z, stats.queries, stats.centre, axis=1) for z in shared.logs]
    for k, (slope, square) in enumerate(zip(stats.slope, stats.square, strict=True)):
        product = c @ stats.gram[head, k]
        numerator = (product * c).sum(axis=1, keepdims=True)
        if left is not None:
            without = numerator - 2 * product
        quadratic = change = np.zeros((1, 1))
        if slope.any():
            f = slope[0] * logs[0] + slope[1] * logs[1]
            partner = stats.partner[head, k]
            v = (total * c - c * counts) @ partner
            f_v = (f * v).sum(axis=1, keepdims=True)
            quadratic = square * (f * f).sum(axis=1, keepdims=True)
            numerator = numerator + f_v
            if left is not None:
                f_partner = f @ partner.T
                f_sums = (c * f_partner).sum(axis=1, keepdims=True)
                without += f_v - n * (f_sums - c * f_partner) - (total - counts) * f_partner
                without += shared.change(stats, slope, v) * (fewer / pairs)
                change = 2 * square * shared.change(stats, slope, f) if square else change
        value[:, k] = (numerator / pairs + quadratic)[:, 0]
        if left is not None:
            left[:, :, k] = without / fewer + quadratic + change


class _WeightedReference:
    """The reference denominators of one head at every replicate, and their first-order change without a document."""

    def __init__(self, stats: Statistics, head: int, weights: Array) -> None:
        sums = stats.lag_mean[head]
        seen = np.isfinite(sums[0])  # lags that no query sees are -inf in every sequence
        self._lag_sums = np.where(seen, sums, 0.0)
        total = (weights * stats.sequences).sum(axis=1, keepdims=True)
        self._mean = weights @ self._lag_sums / total
        self._others = np.maximum(total - stats.sequences, 1.0)
        self._sequences = stats.sequences
        self._limits = reference_limits(stats.visible_keys)
        ref = reference(np.where(seen, self._mean, -np.inf), stats.visible_keys, float(stats.learned_sink[head]))
        self._logit = ref.logit
        #: ``log Zref`` and ``log ZrefRest``, each (replicate, query)
        self.logs = ref.log_denominator, ref.log_denominator_rest

    def change(self, stats: Statistics, slope: Array, direction: Array) -> Array:
        """Change of ``f . direction`` when one copy of a document is left out, (replicate, document)."""
        # The inner product over centred queries, written over all queries.
        over_all = np.zeros((len(direction), len(stats.visible_keys)))
        over_all[:, stats.queries] = direction
        over_all[:, stats.centre] -= direction.sum(axis=1, keepdims=True) / len(stats.centre)
        by_lag = sum(
            weight * self._gradient(over_all, limit, log_z)
            for weight, limit, log_z in zip(slope, self._limits, self.logs, strict=True)
            if weight
        )
        # Leaving g out moves the mean logit by (n_g mean - sum_g) / (N - n_g).
        moved = (by_lag * self._mean).sum(axis=1, keepdims=True) * self._sequences - by_lag @ self._lag_sums.T
        return moved / self._others

    def _gradient(self, over_queries: Array, limit: NDArray[np.int64], log_z: Array) -> Array:
        """Gradient of ``sum_i x[i] log Z[i]`` in ref[d]: ``sum_i x[i] exp(ref[d]) / Z[i]`` over queries that see d."""
        shift = self._logit.max(axis=1, keepdims=True)
        seen = np.isfinite(log_z)
        scaled = np.where(seen, over_queries * np.exp(shift - np.where(seen, log_z, shift)), 0.0)
        # Query i sees the lags below limit[i]: collect by limit, then sum from the longest lag down.
        order = np.argsort(limit, kind="stable")
        limits, starts = np.unique(limit[order], return_index=True)
        by_limit = np.zeros((len(scaled), scaled.shape[1] + 1))
        by_limit[:, limits] = np.add.reduceat(scaled[:, order], starts, axis=1)
        reach = np.cumsum(by_limit[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return np.exp(self._logit - shift) * reach
