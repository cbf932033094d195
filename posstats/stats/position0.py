"""Position 0: how much it is read, how far its trajectories lie apart, and what moving it moves (docs/method.md, 7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from posstats.errors import NumericalError
from posstats.stats.inference.replicates import evaluate_at, sums_at
from posstats.stats.pair_products.components import LayerField
from posstats.stats.pair_products.evaluate import pair_count
from posstats.stats.pair_products.terms import Array, reference
from posstats.vocabulary import FIRST_SINK_QUERY

#: What a head may hold at once of its replicates: their split must not depend on how many heads there are.
_BLOCK_BYTES = 2**23


def late_attention(
    sink_logit: Array, log_denominator_rest: Array, visible_keys: NDArray[np.integer], first: int = FIRST_SINK_QUERY
) -> Array:
    """Mean attention on position 0, ``exp s[i, 0] / Z[i]``, over the queries ``i >= first``, shape (...).

    `sink_logit`, (..., query), is ``s[i, 0]``, NaN where position 0 is not visible, which counts as 0;
    `log_denominator_rest`, (..., query), is ``log Zrest[i]``, a learned sink included. Raises NumericalError if a value
    is not finite although position 0 is visible.

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
    attention: Array = expit(sink - rest).mean(axis=-1)
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

    The paired difference ``u_n[i,d] = residual_condition - residual_baseline``, either side with the reference of its
    own sequences, is ``x_n[i,d] + f[i] - r[d]``: x the difference of log attention, f and r those of ``log Zref`` and
    of the reference logits, which all sequences share and which are re-estimated at every set of weights. The
    displacement of a head is ``mean over i, d of [ mean over pairs (n, m) of u_n[i,d] u_m[i,d] ]``, (n, m) from
    different documents.
    """

    #: (head, document, document): mean over queries and offsets of products of per-document sums of x, zero diagonal.
    gram: Array
    #: (document, head, query) and (document, head, offset): per-document sums of x, averaged over the offsets and over
    #: the queries.
    by_query: Array
    by_offset: Array
    #: The condition and the baseline.
    fields: tuple[LayerField, LayerField]
    #: Analysed queries.
    queries: NDArray[np.int64]

    @classmethod
    def of(cls, condition: LayerField, baseline: LayerField, queries: NDArray[np.int64]) -> "Displacement":
        """Reduce one layer of two paired conditions, the same sequences; all offsets must exist at every query.

        Raises NumericalError if log attention is not finite at an analysed query.
        """
        both = [
            field.logit[:, :, queries] + (field.rest_share[:, :, queries] + field.rest[:, :, queries])[..., None]
            for field in (condition, baseline)
        ]
        if not all(np.isfinite(one).all() for one in both):
            raise NumericalError(
                "Log attention is not finite at an analysed query: position 0 takes all attention, or the dump "
                "holds NaN."
            )
        x = np.ascontiguousarray(both[0] - both[1])
        flat = np.moveaxis(x, 1, 0).reshape(x.shape[1], x.shape[0], -1)
        gram = flat @ flat.transpose(0, 2, 1) / flat.shape[-1]
        diagonal = np.arange(x.shape[0])
        gram[:, diagonal, diagonal] = 0.0
        return cls(gram, x.mean(axis=3), x.mean(axis=2), (condition, baseline), queries)

    def at(self, weights: Array) -> Array:
        """Displacement of every head, (replicate, head), nats squared, at document weights (replicate, document)."""
        row_bytes = 8 * 8 * self.fields[0].lag_mean.shape[-1]  # both references, and what they are made of
        return evaluate_at(self._at, weights, _BLOCK_BYTES, row_bytes)

    def products(self) -> Array:
        """Products of whole per-document differences at the estimate: what a sign-flip test flips.

        (head, document, document), symmetric, zero diagonal.
        """
        n = self.fields[0].sequences
        f, r = (one[0] for one in self._shared(np.ones((1, len(n)))))
        with_shared = ((self.by_query * f).mean(axis=-1) - (self.by_offset * r).mean(axis=-1)).T  # (head, document)
        paired = with_shared[:, :, None] * n
        products = self.gram + paired + paired.transpose(0, 2, 1) + _square(f, r)[:, None, None] * np.outer(n, n)
        diagonal = np.arange(len(n))
        products[:, diagonal, diagonal] = 0.0
        return products

    def _at(self, weights: Array) -> Array:
        n = self.fields[0].sequences
        f, r = self._shared(weights)
        # A document pairs with the sequences of all others.
        partners = weights * ((weights @ n)[:, None] - weights * n)
        direct = ((weights @ self.gram) * weights).sum(axis=-1).T
        with_shared = (sums_at(self.by_query, partners) * f).mean(axis=-1)
        with_shared -= (sums_at(self.by_offset, partners) * r).mean(axis=-1)
        pairs = pair_count(weights, n)[:, None]
        products = direct + 2 * with_shared
        mean = np.divide(products, pairs, out=np.full_like(products, np.nan), where=pairs > 0)
        return mean + _square(f, r)

    def _shared(self, weights: Array) -> tuple[Array, Array]:
        """What all sequences share: f, (replicate, head, query), and r, (replicate, head, offset)."""
        logs, logits = [], []
        for field in self.fields:
            seen = np.isfinite(field.lag_mean[0])  # lags that no query sees are -inf in every sequence
            sums = sums_at(np.where(seen, field.lag_mean, 0.0), weights)
            total = np.maximum(weights @ field.sequences, np.finfo(np.float64).tiny)
            mean = np.where(seen, sums / total[:, None, None], -np.inf)
            ref = reference(mean, field.visible_keys, field.learned_sink)
            logs.append(np.ascontiguousarray(ref.log_denominator[..., self.queries]))
            logits.append(np.ascontiguousarray(ref.logit[..., field.offsets]))
        return logs[0] - logs[1], logits[0] - logits[1]


def _square(f: Array, r: Array) -> Array:
    """Mean over queries and offsets of ``(f[i] - r[d])^2``."""
    square: Array = (f**2).mean(axis=-1) - 2 * f.mean(axis=-1) * r.mean(axis=-1) + (r**2).mean(axis=-1)
    return square
