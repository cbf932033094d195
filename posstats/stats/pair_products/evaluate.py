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
from posstats.stats.pair_products.components import LayerField, Statistics, centred, over_all
from posstats.stats.pair_products.terms import Array, reference, reference_limits

#: Bytes that a block of heads may take at once, for reference denominators or for products of weights and documents.
_BLOCK_BYTES = 2**27
#: The same for one head, which has its replicates split instead: a split that is the same however heads are.
_ROW_BYTES = 2**27


@dataclass(frozen=True, slots=True)
class Components:
    """Components at given document weights."""

    #: (replicate, head, component).
    value: Array
    #: (replicate, document, head, component): the same with one copy of a document left out of the replicate, exact
    #: for the Gram part, first order in the change of the reference. No documents where it was not asked for.
    left_out: Array


def pair_count(weights: Array, sequences: Array) -> Array:
    """Weighted pairs of sequences from distinct documents: ``(sum c n)^2 - sum (c n)^2`` over the last axis."""
    counts = weights * sequences
    return counts.sum(axis=-1) ** 2 - (counts**2).sum(axis=-1)


def evaluate(stats: Sequence[Statistics], weights: Array, *, left_out: bool = False) -> list[Components]:
    """Evaluate components at document `weights`, (replicate, document); ones give the estimate.

    `stats` are of one :class:`LayerField` (several bins, say): they share its reference. `left_out` asks for
    leave-one-out values too (jackknife standard errors, within replicates as well). One element is returned per
    element of `stats`.
    """
    weights = np.asarray(weights, dtype=np.float64)
    n_replicates, n_documents = weights.shape
    shapes = [one.gram.shape[:2] for one in stats]
    values = [np.empty((n_replicates, *shape)) for shape in shapes]
    without = [np.empty((n_replicates, n_documents if left_out else 0, *shape)) for shape in shapes]
    row_bytes = 8 * (2 * len(stats[0].field.visible_keys) + (4 * n_documents if left_out else 0))
    size = max(1, _ROW_BYTES // row_bytes)
    for start in range(0, n_replicates, size):
        rows = slice(start, start + size)
        _evaluate_rows(stats, weights[rows], [value[rows] for value in values], [left[rows] for left in without])
    return [Components(value, left) for value, left in zip(values, without, strict=True)]


def _evaluate_rows(stats: Sequence[Statistics], weights: Array, values: list[Array], without: list[Array]) -> None:
    """Fill `values` and `without` for some replicates, a block of heads at a time."""
    field = stats[0].field
    drawn = _Drawn.of(weights, field.sequences)
    n_heads, n_components = stats[0].gram.shape[0], max(one.gram.shape[1] for one in stats)
    products = 0 if drawn.removed is not None else n_components * weights.shape[1]
    size = max(1, int(_BLOCK_BYTES // (8 * len(weights) * max(2 * len(field.visible_keys), products))))
    for start in range(0, n_heads, size):
        heads = slice(start, start + size)
        # Leakage alone needs no reference.
        shared = _WeightedReference(field, heads, drawn) if any(one.slope.any() for one in stats) else None
        for one, value, left in zip(stats, values, without, strict=True):
            _evaluate_heads(one, heads, drawn, shared, value[:, heads], left[:, :, heads])


def pair_products(stats: Statistics, components: Sequence[int] | None = None) -> Array:
    """Products of whole per-document fields, the reference at its estimate: what a sign-flip test flips.

    (head, component, document, document), symmetric, zero diagonal. Summed over pairs of documents and divided by
    their number they give the estimate of each of `components`, all by default.
    """
    n = stats.field.sequences
    chosen = list(range(len(stats.square)) if components is None else components)
    products = stats.gram[:, chosen]
    if not stats.slope[chosen].any():
        return products
    ones = _Drawn.of(np.ones((1, len(n))), n)
    logs = [
        centred(log_z[:, 0], stats.queries, stats.centre, axis=1)
        for log_z in _WeightedReference(stats.field, slice(None), ones).logs
    ]
    diagonal = np.arange(len(n))
    for k, component in enumerate(chosen):
        slope, partner = stats.slope[component], stats.partner_of[component]
        f = slope[0] * logs[0] + slope[1] * logs[1]
        if partner is not None:
            paired = n[:, None] * np.einsum("hgq,hq->hg", stats.partners[:, partner], f)[:, None]
            products[:, k] += 0.5 * (paired + paired.transpose(0, 2, 1))
        products[:, k] += stats.square[component] * (f**2).sum(axis=1)[:, None, None] * np.outer(n, n)
        products[:, k, diagonal, diagonal] = 0.0
    return products


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Document weights and what follows from them alone."""

    #: (replicate, document).
    weights: Array
    #: (document,): number of sequences of each document.
    sequences: Array
    #: (replicate, document) and (replicate, 1): weighted numbers of sequences.
    counts: Array
    total: Array
    #: (replicate,): weighted pairs of sequences from distinct documents.
    pairs: Array
    #: (replicate, document): with how many sequences the sequences of a document pair.
    partners: Array
    #: (replicate, 2): where all documents count once but for one or two, which are left out, `document` standing for
    #: none.
    removed: NDArray[np.intp] | None

    @classmethod
    def of(cls, weights: Array, sequences: Array) -> "_Drawn":
        counts = weights * sequences
        total = counts.sum(axis=1, keepdims=True)
        pairs = pair_count(weights, sequences)
        if (pairs <= 0).any():
            raise DesignError("A set of document weights holds fewer than two distinct documents.")
        return cls(weights, sequences, counts, total, pairs, weights * (total - counts), _removed(weights))

    def quadratic(self, gram: Array) -> Array:
        """``c' gram c`` of symmetric matrices with a zero diagonal: (..., document, document) -> (..., replicate)."""
        if self.removed is None:
            return np.einsum("...rg,rg->...r", self.weights @ gram, self.weights)
        sums = gram.sum(axis=-1)
        padded = np.concatenate([sums, np.zeros((*sums.shape[:-1], 1))], axis=-1)  # leaving none out takes nothing away
        one, two = self.removed.T
        both = (one < gram.shape[-1]) & (two < gram.shape[-1])
        quadratic = sums.sum(axis=-1, keepdims=True) - 2 * (padded[..., one] + padded[..., two])
        quadratic[..., both] += 2 * gram[..., one[both], two[both]]
        return quadratic

    def fewer(self) -> Array:
        """Pairs left when one copy of a document goes, c_g -> c_g - 1; where none are left nothing is left out."""
        squares = self.counts**2
        left = (self.counts - self.sequences) ** 2
        fewer = (self.total - self.sequences) ** 2 - (squares.sum(axis=1, keepdims=True) - squares + left)
        return np.where(fewer > 0, fewer, self.pairs[:, None])


def _removed(weights: Array) -> NDArray[np.intp] | None:
    """Documents left out of each replicate, one or two, if that is all that the weights do."""
    replicates, documents = np.nonzero(weights == 0)
    count = np.bincount(replicates, minlength=len(weights))
    if count.max(initial=0) > 2 or (weights != 1).sum() > len(documents):
        return None
    removed = np.full((len(weights), 2), weights.shape[1])
    within = np.arange(len(documents)) - np.repeat(np.cumsum(count) - count, count)
    removed[replicates, within] = documents
    return removed


def _evaluate_heads(
    stats: Statistics, heads: slice, drawn: _Drawn, shared: "_WeightedReference | None", value: Array, left: Array
) -> None:
    """Fill `value` (replicate, head, component) and, unless empty, `left` (replicate, document, head, component)."""
    gram = stats.gram[heads]
    numerators = np.zeros((*gram.shape[:2], len(drawn.weights)))
    filled = [k for k in range(gram.shape[1]) if gram[:, k].any()]
    numerators[:, filled] = drawn.quadratic(gram[:, filled])
    logs: list[Array] = []
    paired: dict[tuple[int, int], Array] = {}  # partner, which of the two denominators -> (head, replicate, document)
    if shared:
        logs = [centred(log_z, stats.queries, stats.centre, axis=2) for log_z in shared.logs]
        for partner, slope in zip(stats.partner_of, stats.slope, strict=True):
            if partner is None:
                continue
            for which in _used(slope):
                if (partner, which) not in paired:
                    paired[partner, which] = logs[which] @ stats.partners[heads, partner].transpose(0, 2, 1)
    fewer = drawn.fewer() if left.size else None
    sums = {key: np.einsum("hrg,rg->hr", one, drawn.partners) for key, one in paired.items()}
    for k, (partner, slope, square) in enumerate(zip(stats.partner_of, stats.slope, stats.square, strict=True)):
        numerator, quadratic = numerators[:, k], np.zeros(())
        if shared and partner is not None:
            numerator += sum(slope[which] * sums[partner, which] for which in _used(slope))
        if square:
            f = slope[0] * logs[0] + slope[1] * logs[1]
            quadratic = square * np.einsum("hrq,hrq->hr", f, f)
        value[:, :, k] = (numerator / drawn.pairs + quadratic).T
        if fewer is not None:
            for h in range(len(gram)):
                left[:, :, h, k] = _left_out(stats, heads, h, k, drawn, fewer, shared, logs, paired, numerator[h])


def _used(slope: Array) -> list[int]:
    """Which of the two reference denominators a component holds."""
    return [which for which, weight in enumerate(slope.tolist()) if weight]


def _left_out(
    stats: Statistics,
    heads: slice,
    h: int,
    k: int,
    drawn: _Drawn,
    fewer: Array,
    shared: "_WeightedReference | None",
    logs: list[Array],
    paired: dict[tuple[int, int], Array],
    numerator: Array,
) -> Array:
    """Component k of the h-th head of a block without one copy of each document in turn, (replicate, document)."""
    head = range(len(stats.gram))[heads][h]
    c, n, others = drawn.weights, drawn.sequences, drawn.total - drawn.counts
    partner, slope, square = stats.partner_of[k], stats.slope[k], stats.square[k]
    without = numerator[:, None] - 2 * c @ stats.gram[head, k]
    left = np.zeros(())
    everywhere = len(stats.field.visible_keys)
    if shared and partner is not None:
        f_partner = sum(slope[which] * paired[partner, which][h] for which in _used(slope))
        f_sums = (c * f_partner).sum(axis=1, keepdims=True)
        without = without - n * (f_sums - c * f_partner) - others * f_partner
        direction = over_all(drawn.partners @ stats.partners[head, partner], stats.queries, stats.centre, everywhere)
        without = without + shared.change(h, slope, direction) * (fewer / drawn.pairs[:, None])
    if shared and square:
        f = slope[0] * logs[0][h] + slope[1] * logs[1][h]
        direction = over_all(f, stats.queries, stats.centre, everywhere)
        quadratic = np.einsum("rq,rq->r", f, f)[:, None] * square
        left = quadratic + 2 * square * shared.change(h, slope, direction)
    return without / fewer + left


class _WeightedReference:
    """The reference denominators of some heads at every replicate, and their first-order change without a document."""

    def __init__(self, field: LayerField, heads: slice, drawn: _Drawn) -> None:
        sums = field.lag_mean[:, heads].transpose(1, 0, 2)
        seen = np.isfinite(sums[:, :1])  # lags that no query sees are -inf in every sequence
        self._lag_sums = np.where(seen, sums, 0.0)
        self._mean = drawn.weights @ self._lag_sums / drawn.total
        self._others = np.maximum(drawn.total - field.sequences, 1.0)
        self._sequences = field.sequences
        self._limits = reference_limits(field.visible_keys)
        learned = field.learned_sink[heads, None]
        ref = reference(np.where(seen, self._mean, -np.inf), field.visible_keys, learned)
        self._logit = ref.logit
        #: ``log Zref`` and ``log ZrefRest``, each (head, replicate, query). Position 0 has no ordinary key; it is never
        #: analysed, and 0 keeps its -inf out of products with zeros.
        self.logs = ref.log_denominator, np.where(np.isfinite(ref.log_denominator_rest), ref.log_denominator_rest, 0.0)

    def change(self, h: int, slope: Array, direction: Array) -> Array:
        """Change of ``f . direction`` when one copy of a document is left out, (replicate, document).

        `direction` (replicate, query) runs over all queries, the centring moved onto it (:func:`over_all`).
        """
        by_lag = sum(
            weight * self._gradient(h, direction, limit, log_z[h])
            for weight, limit, log_z in zip(slope, self._limits, self.logs, strict=True)
            if weight
        )
        # Leaving g out moves the mean logit by (n_g mean - sum_g) / (N - n_g).
        moved = (by_lag * self._mean[h]).sum(axis=1, keepdims=True) * self._sequences - by_lag @ self._lag_sums[h].T
        return moved / self._others

    def _gradient(self, h: int, over_queries: Array, limit: NDArray[np.int64], log_z: Array) -> Array:
        """Gradient of ``sum_i x[i] log Z[i]`` in ref[d]: ``sum_i x[i] exp(ref[d]) / Z[i]`` over queries that see d."""
        logit = self._logit[h]
        shift = logit.max(axis=1, keepdims=True)
        scaled = over_queries * np.exp(shift - log_z)
        # Query i sees the lags below limit[i]: collect by limit, then sum from the longest lag down.
        order = np.argsort(limit, kind="stable")
        limits, starts = np.unique(limit[order], return_index=True)
        by_limit = np.zeros((len(scaled), scaled.shape[1] + 1))
        by_limit[:, limits] = np.add.reduceat(scaled[:, order], starts, axis=1)
        reach = np.cumsum(by_limit[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return np.exp(logit - shift) * reach
