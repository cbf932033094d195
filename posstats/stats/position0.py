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
from posstats.vocabulary import FIRST_SINK_QUERY, RESIDUAL

#: What a head may hold at once of its replicates: their split must not depend on how many heads there are.
_BLOCK_BYTES = 2**23


def late_attention(
    sink_logit: Array,
    log_denominator_rest: Array,
    visible_keys: NDArray[np.integer],
    learned_sink: Array | float = -np.inf,
    first: int = FIRST_SINK_QUERY,
) -> Array:
    """Mean attention on position 0, ``exp s[i, 0] / Z[i]``, over the queries ``i >= first``, shape (...).

    `sink_logit`, (..., query), is ``s[i, 0]``, NaN where position 0 is not visible, which counts as 0;
    `log_denominator_rest`, (..., query), is ``log Zrest[i]``; `learned_sink` broadcasts against (...), -inf where there
    is none. Raises NumericalError if a value is not finite although position 0 is visible.

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
    """Relative distances ``||a - b|| / ((||a|| + ||b||) / 2)`` between all rows of x, (sequence, sequence).

    Between 0 and 2; 0 between two zero vectors. From differences: inner products, and the angles made of them, lose
    half of the digits between near vectors.

    >>> relative_distances(np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 5.0]])).round(3).tolist()
    [[0.0, 0.0, 0.632], [0.0, 0.0, 0.632], [0.632, 0.632, 0.0]]
    """
    x = np.asarray(x, dtype=np.float64)
    norm = np.linalg.norm(x, axis=1)
    distance = np.stack([np.linalg.norm(x - row, axis=1) for row in x])
    scale = (norm[:, None] + norm) / 2
    return np.divide(distance, scale, out=np.zeros_like(distance), where=scale > 0)


def pair_mean_at(values: Array, chosen: NDArray[np.bool_], code: NDArray[np.int64], weights: Array) -> Array:
    """Mean over chosen pairs of sequences from different documents, at document weights (replicate, document).

    `values`, (sequence, sequence), is symmetric; chosen pairs within a document never count. NaN in a replicate without
    a pair.
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
    """

    #: (head, document, document): mean over queries and offsets of products of per-document sums of x, zero diagonal.
    gram: Array
    #: (head, document, slot): per-document sums of u at the estimate.
    field: Array
    #: Residual statistics of the condition and of the baseline.
    sides: tuple[Statistics, Statistics]

    @classmethod
    def of(
        cls, condition: LayerField, baseline: LayerField, queries: NDArray[np.int64], last: float = 0.5
    ) -> "Displacement":
        """Reduce one layer of two paired conditions, the same sequences; all offsets must exist at every query.

        `last` is the weight of the mask counted last, given the sink. Raises NumericalError if log attention is not
        finite at an analysed query.
        """
        divisor = len(queries) * len(baseline.offsets)
        slots = [Slots(field, queries, field.offsets, divisor, centred=False) for field in (condition, baseline)]
        moved, still = (one.cut(one.terms(last)[RESIDUAL]) for one in slots)
        field = np.ascontiguousarray(np.moveaxis(slots[0].folded(moved - still), 1, 0))
        first, second = (residual_statistics(one.field, queries, one.offsets, last) for one in slots)
        return cls(pair_gram(moved - still, moved - still) / divisor, field, (first, second))

    def at(self, weights: Array) -> Array:
        """Displacement of every head, (replicate, head), nats squared, at document weights (replicate, document)."""
        row_bytes = 8 * 32 * len(self.gram) * max(self.field.shape)  # both steady states, and what they are made of
        return evaluate_at(self._at, weights, len(self.gram) * _BLOCK_BYTES, row_bytes)

    def products(self) -> Array:
        """Products of whole per-document differences at the estimate: what a sign-flip test flips.

        (head, document, document), symmetric, zero diagonal.
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
