"""Position 0: how much it is read, how far its trajectories lie apart, and what moving it moves (docs/method.md, 7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from posstats.errors import NumericalError
from posstats.stats.inference.replicates import evaluate_at
from posstats.stats.pair_products.components import LayerField, Slots, Statistics, pair_gram, residual_statistics
from posstats.stats.pair_products.evaluate import Moved, Moves, State, pair_count
from posstats.stats.pair_products.terms import Array
from posstats.vocabulary import RESIDUAL

#: Queries before this one do not count towards the attention on position 0.
FIRST_SINK_QUERY = 16
#: What a head may hold at once of its replicates: their split must not depend on how many heads there are.
_BLOCK_BYTES = 2**23


def late_attention(
    sink_logit: Array,
    log_denominator_rest: Array,
    visible_keys: NDArray[np.integer],
    learned_sink: Array | float = -np.inf,
    first: int = FIRST_SINK_QUERY,
) -> Array:
    """Mean attention on position 0 over the queries ``i >= first``.

    Parameters
    ----------
    sink_logit : ndarray, shape (..., query)
        ``s[i, 0]``, NaN where position 0 is not visible.
    log_denominator_rest : ndarray, shape (..., query)
        ``log Zrest[i]``.
    visible_keys : ndarray of int, shape (query,)
        Keys visible to each query.
    learned_sink : ndarray broadcasting against (..., query), or float
        Learned sink logit; -inf where there is none.
    first : int
        First query that counts; there must be one.

    Returns
    -------
    ndarray, shape (...)
        ``A0[i] = exp s[i, 0] / Z[i]``, averaged; 0 where position 0 is not visible.

    Raises
    ------
    NumericalError
        If a value is not finite although position 0 is visible.

    Examples
    --------
    >>> late_attention(np.zeros(4), np.log([1.0, 1.0, 3.0, 1.0]), np.arange(1, 5), first=2).round(3)
    np.float64(0.375)
    """
    queries = np.arange(sink_logit.shape[-1])[first:]
    sink = np.asarray(sink_logit, dtype=np.float64)[..., first:]
    rest = np.asarray(log_denominator_rest, dtype=np.float64)[..., first:]
    hidden = np.asarray(visible_keys)[first:] <= queries
    sink = np.where(hidden & np.isnan(sink), -np.inf, sink)
    if np.isnan(sink).any() or np.isposinf(sink).any() or not np.isfinite(rest).all():
        raise NumericalError("The dump holds logits on position 0 or denominators that are not finite.")
    attention: Array = expit(sink - np.logaddexp(rest, learned_sink)).mean(axis=-1)
    return attention


def queries_that_see_position_0(visible_keys: NDArray[np.integer], first: int = FIRST_SINK_QUERY) -> int:
    """Number of queries ``i >= first`` whose window holds position 0."""
    visible = np.asarray(visible_keys)
    return int((visible > np.arange(len(visible)))[first:].sum())


def relative_distances(x: Array) -> Array:
    """Relative distances ``||a - b|| / ((||a|| + ||b||) / 2)`` between all rows.

    From differences: inner products, and the angles made of them, lose half of the digits between near vectors.

    Parameters
    ----------
    x : ndarray, shape (sequence, hidden)

    Returns
    -------
    ndarray, shape (sequence, sequence)
        Between 0 and 2; 0 between two zero vectors.

    Examples
    --------
    >>> relative_distances(np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 5.0]])).round(3).tolist()
    [[0.0, 0.0, 0.632], [0.0, 0.0, 0.632], [0.632, 0.632, 0.0]]
    """
    x = np.asarray(x, dtype=np.float64)
    norm = np.linalg.norm(x, axis=1)
    distance = np.stack([np.linalg.norm(x - row, axis=1) for row in x])
    scale = (norm[:, None] + norm) / 2
    return np.divide(distance, scale, out=np.zeros_like(distance), where=scale > 0)


def pair_mean_at(values: Array, chosen: NDArray[np.bool_], code: NDArray[np.int64], weights: Array) -> Array:
    """Mean over chosen pairs of sequences from different documents, at document weights.

    Parameters
    ----------
    values : ndarray, shape (sequence, sequence)
        Symmetric.
    chosen : ndarray of bool, shape (sequence, sequence)
        Which pairs count; those within a document never do.
    code : ndarray of int, shape (sequence,)
        Document of each sequence, 0 .. G - 1.
    weights : ndarray, shape (replicate, document)

    Returns
    -------
    ndarray, shape (replicate,)
        NaN in a replicate without such a pair.
    """
    member = np.eye(weights.shape[1])[code]
    counted = chosen & (code[:, None] != code)
    total, count = (member.T @ x @ member for x in (np.where(counted, values, 0.0), counted.astype(np.float64)))
    above, below = (((weights @ x) * weights).sum(axis=1) for x in (total, count))
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


@dataclass(frozen=True, slots=True)
class Displacement:
    """How far a condition moves the residual-stream terms of one layer, reduced to what document weights need.

    The paired difference is ``u_n[i,d] = residual_condition - residual_baseline``, either side with the steady state
    of its own sequences, which is re-estimated at every set of weights. The displacement of a head is ``mean over i, d
    of [ mean over pairs (n, m) of u_n[i,d] u_m[i,d] ]``, (n, m) from different documents.

    Attributes
    ----------
    gram : ndarray, shape (head, document, document)
        Mean over queries and offsets of products of per-document sums of u at the estimate, zero diagonal.
    field : ndarray, shape (head, document, slot)
        Per-document sums of u at the estimate (:class:`posstats.stats.pair_products.components.Component`).
    sides : tuple of Statistics
        Residual statistics of the condition and of the baseline.
    """

    gram: Array
    field: Array
    sides: tuple[Statistics, Statistics]

    @classmethod
    def of(
        cls, condition: LayerField, baseline: LayerField, queries: NDArray[np.int64], last: float = 0.5
    ) -> "Displacement":
        """Reduce one layer of two paired conditions.

        Parameters
        ----------
        condition, baseline : LayerField
            The same sequences.
        queries : ndarray of int
            Analysed queries; all offsets must exist at every one of them.
        last : float
            Weight of the mask counted last, given the sink.

        Returns
        -------
        Displacement

        Raises
        ------
        NumericalError
            If log attention is not finite at an analysed query.
        """
        divisor = len(queries) * len(baseline.offsets)
        slots = [Slots(field, queries, field.offsets, divisor, centred=False) for field in (condition, baseline)]
        moved, still = (one.cut(one.terms(last)[RESIDUAL]) for one in slots)
        field = np.ascontiguousarray(np.moveaxis(slots[0].folded(moved - still), 1, 0))
        first, second = (residual_statistics(one.field, queries, one.offsets, last) for one in slots)
        return cls(pair_gram(moved - still, moved - still) / divisor, field, (first, second))

    def at(self, weights: Array) -> Array:
        """Displacement of every head at document weights.

        Parameters
        ----------
        weights : ndarray, shape (replicate, document)

        Returns
        -------
        ndarray, shape (replicate, head)
            Nats squared.
        """
        row_bytes = 8 * 32 * len(self.gram) * max(self.field.shape)  # both steady states, and what they are made of
        return evaluate_at(self._at, weights, len(self.gram) * _BLOCK_BYTES, row_bytes)

    def products(self) -> Array:
        """Products of whole per-document differences at the estimate: what a sign-flip test flips.

        Returns
        -------
        ndarray, shape (head, document, document)
            Symmetric, zero diagonal.
        """
        return self.gram

    def _at(self, weights: Array) -> Array:
        by: list[Array] = []
        change: list[Array] = []
        for sign, stats in zip((1.0, -1.0), self.sides, strict=True):
            (component,) = filter(None, stats.components)
            moves = State.at(stats.field, slice(None), weights).moves(component, stats)
            by += moves.by
            change += [sign * one for one in moves.change]
        n = self.sides[0].field.sequences
        direct = np.einsum("hrg,rg->hr", weights @ self.gram, weights)
        products = direct + Moved.of(self.field, None, Moves(by, change), weights).numerator(weights)
        pairs = pair_count(weights, n)
        return np.divide(products, pairs, out=np.full_like(products, np.nan), where=pairs > 0).T
