"""Evaluate components at document weights: ones for the estimate, multinomial counts for a bootstrap replicate.

A component is a sum over pairs of distinct documents of products of their fields, ``sum_{g != h} c_g c_h <x_g, z_h>``,
over the number of such pairs of sequences, so a document never pairs with itself, however often a replicate drew it.
With the steady state at its estimate the products are a Gram matrix. The steady state is re-estimated at every set of
weights ``c``, which moves the field of a document by

    n_g X1[i] + f'_g[i] X2[i] + f''_g[i] X3[i]

X1 a function of the query that all sequences share, X2 the change of the gain and X3 half of its square
(:class:`posstats.stats.pair_products.components.LayerField`). All of it is linear algebra on (document, query) arrays:
no sequence is touched again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from posstats.errors import DesignError
from posstats.stats.pair_products.components import Component, LayerField, Statistics, combine
from posstats.stats.pair_products.terms import Array, Shared

#: Bytes that a block of heads may take at once, for arrays over replicates.
_BLOCK_BYTES = 2**27
#: The same for one head, which has its replicates split instead: a split that is the same however heads are.
_ROW_BYTES = 2**27


def pair_count(weights: Array, sequences: Array) -> Array:
    """Weighted pairs of sequences from distinct documents: ``(sum c n)^2 - sum (c n)^2`` over the last axis."""
    counts = weights * sequences
    return counts.sum(axis=-1) ** 2 - (counts**2).sum(axis=-1)


def evaluate(stats: Sequence[Statistics], weights: Array) -> list[Array]:
    """Evaluate components at document weights.

    Parameters
    ----------
    stats : sequence of Statistics
        Statistics of one :class:`LayerField` (several bins, say): they share its steady state.
    weights : ndarray, shape (replicate, document)
        How often each document counts; ones give the estimate.

    Returns
    -------
    list of ndarray, shape (replicate, head, component)
        One per element of `stats`.
    """
    weights = np.asarray(weights, dtype=np.float64)
    values = [np.empty((len(weights), *one.gram.shape[:2])) for one in stats]
    size = max(1, _ROW_BYTES // (64 * stats[0].field.steady_log_sum.shape[-1]))
    for start in range(0, len(weights), size):
        rows = slice(start, start + size)
        _evaluate_rows(stats, weights[rows], [value[rows] for value in values])
    return values


def _evaluate_rows(stats: Sequence[Statistics], weights: Array, values: list[Array]) -> None:
    """Fill `values` for some replicates, a block of heads at a time."""
    field = stats[0].field
    drawn = _Drawn.of(weights, field.sequences)
    n_heads = stats[0].gram.shape[0]
    per_head = 16 * max(field.steady_log_sum.shape[-1], field.logit.shape[2], weights.shape[1])
    size = max(1, int(_BLOCK_BYTES // (8 * len(weights) * per_head)))
    moving = any(component is not None for one in stats for component in one.components)
    for start in range(0, n_heads, size):
        heads = slice(start, start + size)
        state = State.at(field, heads, weights) if moving else None  # leakage alone needs none
        for one, value in zip(stats, values, strict=True):
            _evaluate_heads(one, heads, drawn, state, value[:, heads])


def sums_at(values: Array, weights: Array) -> Array:
    """Weighted sums over documents, (replicate, head, ...), of values (document, head, ...), head by head.

    The last digit does not depend on how many heads there are.
    """
    by_head = [np.tensordot(weights, np.ascontiguousarray(values[:, h]), axes=1) for h in range(values.shape[1])]
    return np.stack(by_head, axis=1)


def mean_terms(field: LayerField, weights: Array, last: float) -> dict[str, Array]:
    """Weighted means of the terms over sequences and offsets, the steady state re-estimated.

    Parameters
    ----------
    field : LayerField
    weights : ndarray, shape (replicate, document)
    last : float
        Weight of the mask counted last, given the sink.

    Returns
    -------
    dict of str to ndarray, shape (replicate, head, query)
        Every term but `relative`, and `residual` and `log_attention`; not finite where no document counts.
    """
    state = State.at(field, slice(None), weights)
    total = np.maximum(weights @ field.sequences, np.finfo(np.float64).tiny)[:, None, None]

    def weighted(sums: Array) -> Array:
        return sums_at(sums, weights) / total

    def by_replicate(values: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(values, 1, 0))

    shared = Shared(*(by_replicate(getattr(state.shared, one.name)) for one in fields(Shared)))
    moved = shared.gain - field.gain
    joint = weighted(field.joint) + weighted(field.slope) * moved + weighted(field.bend) * moved**2 / 2
    logit = weighted(field.logit.mean(axis=-1))[..., None]
    steady_logit = by_replicate(state.steady_logit).mean(axis=-1, keepdims=True)
    terms = combine(logit, weighted(field.excess), joint, 1.0, shared, steady_logit, last)
    return {name: values[..., 0] if values.ndim == 4 else values for name, values in terms.items()}


def pair_products(stats: Statistics, components: Sequence[int] | None = None) -> Array:
    """Products of whole per-document fields, the steady state at its estimate: what a sign-flip test flips.

    Summed over pairs of documents and divided by their number they give the estimate of each component.

    Parameters
    ----------
    stats : Statistics
    components : sequence of int, optional
        Which components; all if not given.

    Returns
    -------
    ndarray, shape (head, component, document, document)
        Symmetric, zero diagonal.
    """
    return stats.gram if components is None else stats.gram[:, list(components)]


def influence_products(stats: Statistics) -> Array:
    """Products of what documents do to each component, the steady state included, to first order.

    A document's field is ``x_g + n_g (change of the mean field per sequence of g)``: leaving it out moves the steady
    state, and with it the fields of all. These products are what intervals and bootstrap replicates are made of; in
    :func:`pair_products`, which a sign-flip test flips, the steady state stays where it is.

    Parameters
    ----------
    stats : Statistics

    Returns
    -------
    ndarray, shape (head, component, document, document)
        Symmetric, zero diagonal.
    """
    n = stats.field.sequences
    grams = stats.gram.copy()
    if all(component is None for component in stats.components):
        return grams
    state = State.at(stats.field, slice(None), 1 - np.eye(len(n)))
    for k, component in enumerate(stats.components):
        if component is None:
            continue
        moves = state.moves(component, stats)
        mean_moves = (
            change * by.sum(axis=1, keepdims=True) / n.sum() for by, change in zip(moves.by, moves.change, strict=True)
        )
        moved = (n - n.sum())[:, None] * _total(mean_moves)
        if stats.centred:
            moved -= moved.mean(axis=-1, keepdims=True)
        field = _by_head(component.field, slice(None))
        other = field if component.other is None else _by_head(component.other, slice(None))
        beyond = moved @ other.transpose(0, 2, 1)
        if component.other is None:
            beyond = 2 * beyond + moved @ moved.transpose(0, 2, 1)
        grams[:, k] += (beyond + beyond.transpose(0, 2, 1)) / 2
        diagonal = np.arange(len(n))
        grams[:, k, diagonal, diagonal] = 0.0
    return grams


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Document weights and what follows from them alone.

    Attributes
    ----------
    weights : ndarray, shape (replicate, document)
    pairs : ndarray, shape (replicate,)
        Weighted pairs of sequences from distinct documents.
    removed : ndarray of int, shape (replicate, 2), or None
        Where all documents count once but for one or two: which are left out, `document` standing for none.
    """

    weights: Array
    pairs: Array
    removed: NDArray[np.intp] | None

    @classmethod
    def of(cls, weights: Array, sequences: Array) -> "_Drawn":
        pairs = pair_count(weights, sequences)
        if (pairs <= 0).any():
            raise DesignError("A set of document weights holds fewer than two distinct documents.")
        return cls(weights, pairs, _removed(weights))

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


@dataclass(frozen=True, slots=True)
class Moves:
    """How fields depart from themselves at the estimate: the sum over k of ``by[k] * change[k]``.

    Attributes
    ----------
    by : list of ndarray, shape (head or 1, document, slot)
        Per-document sums.
    change : list of ndarray, shape (head, replicate, slot)
        What the steady state at the weights makes of them.
    """

    by: list[Array]
    change: list[Array]


@dataclass(frozen=True, slots=True)
class Moved:
    """What moving fields add to products at document weights, beside the Gram matrix at the estimate.

    Attributes
    ----------
    paired : ndarray, shape (head, replicate, document)
        Products of a document's field with the weighted sum of all fields.
    own : ndarray, shape (head, replicate, document)
        Products of a document's field with itself.
    """

    paired: Array
    own: Array

    @classmethod
    def of(
        cls,
        field: Array,
        other: Array | None,
        moves: Moves,
        weights: Array,
        *,
        centred: bool = False,
    ) -> "Moved":
        """Products of fields that move with themselves, or with others that do not.

        Parameters
        ----------
        field : ndarray, shape (head, document, slot)
            Per-document sums at the estimate, centred if `centred`.
        other : ndarray, shape (head, document, slot), or None
            The other factor, centred if `centred`; None for the field itself.
        moves : Moves
        weights : ndarray, shape (replicate, document)
        centred : bool
            Whether products are those of fields centred over the slots.
        """
        sums = [weights @ one for one in moves.by]
        by_document = [one.transpose(0, 2, 1) for one in moves.by]
        change = _total(x * one for x, one in zip(moves.change, sums, strict=True))
        fixed = field if other is None else other
        whole = weights @ fixed
        if other is None:
            whole = whole + (change - change.mean(axis=-1, keepdims=True) if centred else change)
        paired = _total((whole * x) @ one for x, one in zip(moves.change, by_document, strict=True))
        paired = paired + change @ fixed.transpose(0, 2, 1)
        with_fixed = [one * fixed for one in moves.by]
        own = _total(x @ one.transpose(0, 2, 1) for x, one in zip(moves.change, with_fixed, strict=True))
        if other is None:
            own = 2 * own
            for x, one in zip(moves.change, moves.by, strict=True):
                for y, two in zip(moves.change, moves.by, strict=True):
                    own += (x * y) @ (one * two).transpose(0, 2, 1)
            if centred:
                mean = _total(x @ one for x, one in zip(moves.change, by_document, strict=True))
                own -= mean**2 / field.shape[-1]
        else:
            paired = paired / 2
        return cls(paired, own)

    def numerator(self, weights: Array) -> Array:
        """Sum over pairs of distinct documents: (head, replicate)."""
        total: Array = (weights * self.paired - weights**2 * self.own).sum(axis=-1)
        return total


def _total(parts: Iterable[Array]) -> Array:
    first, *rest = parts
    return sum(rest, first)


@dataclass(frozen=True, slots=True)
class State:
    """The steady state of some heads at every replicate.

    Attributes
    ----------
    field : LayerField
    heads : slice
        Which heads of the field.
    sums : ndarray, shape (head, document, column)
        Per-document sums of what it is made of: log-sums, their level, logits of the offsets.
    mean : ndarray, shape (head, replicate, column)
        Their weighted means.
    shared : Shared
        Functions of all queries, (head, replicate, query).
    estimate : Shared
        The same of all documents, (head, 1, query).
    steady_logit : ndarray, shape (head, replicate, offset)
        ``ref[d] - G(n*)``.
    """

    field: LayerField
    heads: slice
    sums: Array
    mean: Array
    shared: Shared
    estimate: Shared
    steady_logit: Array

    @classmethod
    def at(cls, field: LayerField, heads: slice, weights: Array) -> "State":
        """At document weights, (replicate, document)."""
        columns = (field.steady_log_sum, field.steady_level[..., None], field.steady_logit)
        sums = np.ascontiguousarray(np.concatenate([one[:, heads] for one in columns], axis=2).transpose(1, 0, 2))
        lags = field.steady_log_sum.shape[-1]
        learned = field.learned_sink[heads, None]

        def mean_at(c: Array) -> Array:
            total = np.maximum(c @ field.sequences, np.finfo(np.float64).tiny)
            return c @ sums / total[:, None]

        def shared(mean: Array) -> Shared:
            return Shared.of(mean[..., :lags], mean[..., lags], learned, field.keys)

        mean, whole = mean_at(weights), mean_at(np.ones((1, len(field.sequences))))
        return cls(field, heads, sums, mean, shared(mean), shared(whole), mean[..., lags + 1 :])

    def moves(self, component: Component, stats: Statistics) -> "Moves":
        """How the field of a component departs from itself at the estimate."""
        response, at, joint = component.response, stats.queries, component.response.joint
        scale, beside = np.sqrt(stats.weight), np.sqrt(stats.offset_weight)
        n = self.field.sequences
        logit = self.steady_logit - (self.sums[:, :, -len(self.field.offsets) :].sum(axis=1) / n.sum())[:, None]
        logit = logit[..., stats.offsets]
        level = logit.mean(axis=-1)
        now, then = self.shared, self.estimate
        function = (
            response.mask_first * (now.mask_first - then.mask_first)[..., at]
            + response.ordinary * (now.ordinary - then.ordinary)[..., at]
            + (response.learned * (now.learned - then.learned) - response.relative * level)[..., None]
        )
        slots = [scale * function, -response.relative * beside * (logit - level[..., None])]
        by = [np.broadcast_to(n[None, :, None], (1, len(n), component.field.shape[2]))]
        change = [_padded(slots, beside)]
        if joint:
            gain, start = self.gain(at), (then.gain - self.field.gain[self.heads, None])[..., at]
            for sums, moved in ((self.field.slope, gain - start), (self.field.bend, (gain**2 - start**2) / 2)):
                documents = np.moveaxis(sums[:, self.heads][..., at], 1, 0)
                still = np.zeros((*documents.shape[:2], logit.shape[-1]))
                by.append(_padded([documents, still], beside))
                change.append(_padded([scale * joint * moved, np.zeros_like(logit)], beside))
        return Moves(by, change)

    def gain(self, queries: NDArray[np.int64]) -> Array:
        """Change of the gain from where the field was expanded, (head, replicate, query)."""
        change: Array = (self.shared.gain - self.field.gain[self.heads, None])[..., queries]
        return change


def _padded(parts: Sequence[Array], beside: float) -> Array:
    """Slots of the queries, and those of the offsets where there are any."""
    return np.concatenate(parts, axis=-1) if beside else parts[0]


def _evaluate_heads(stats: Statistics, heads: slice, drawn: _Drawn, state: State | None, value: Array) -> None:
    """Fill `value` (replicate, head, component)."""
    numerators = drawn.quadratic(stats.gram[heads])
    for k, component in enumerate(stats.components):
        numerator = numerators[:, k]
        if component is not None and state is not None:
            moved = Moved.of(
                _by_head(component.field, heads),
                None if component.other is None else _by_head(component.other, heads),
                state.moves(component, stats),
                drawn.weights,
                centred=stats.centred,
            )
            numerator = numerator + moved.numerator(drawn.weights)
        value[:, :, k] = (numerator / drawn.pairs).T


def _by_head(values: Array, heads: slice) -> Array:
    """Some heads of (document, head, slot), heads first."""
    return np.ascontiguousarray(np.moveaxis(values[:, heads], 1, 0))
