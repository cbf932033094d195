"""Earlier metrics of position and sinks, for comparison with the decomposition (docs/method.md, sections 2 and 3).

None of these is an estimator of this package; each is here so that one table can put it beside ours, and each says
what it cannot see. Where a source defines a map or a threshold but no number, the number is ours and is said to be.

- :func:`linear_position_r2`: how much a straight line in absolute position adds to a straight line in the offset.
- :func:`diagonal_centred`: what is left of the logits once the mean of every diagonal is subtracted.
- :func:`sink_rate`: share of heads that attend to position 0 above a threshold.
- :func:`massive_activations`: hidden values that are huge, absolutely and relative to the median.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.pair_products.components import by_row

#: Threshold on the mean attention that makes a sink (Gu et al., arXiv:2410.10781).
SINK_EPSILON = 0.3
#: Thresholds on a massive activation: magnitude, and ratio to the median magnitude (Sun et al., arXiv:2402.17762).
MASSIVE_MAGNITUDE = 100.0
MASSIVE_RATIO = 1000.0


@dataclass(frozen=True, slots=True)
class LinearPosition:
    """Linear regression of logits on offset and absolute position."""

    #: (...): R-squared with the offset alone, and with offset, query and key position.
    r2_relative: NDArray[np.float64]
    r2_full: NDArray[np.float64]
    #: (...): ``r2_full - r2_relative``, the metric. NaN where the logits of a head do not vary.
    delta: NDArray[np.float64]
    #: Rank and number of columns of the full design, intercept included. They differ: query minus key is the offset, so
    #: "position of the query" and "position of the key" are one column, and their coefficients mean nothing.
    rank: int
    n_columns: int
    #: Pairs of query and key per sequence.
    n_pairs: int


@dataclass(frozen=True, slots=True)
class DiagonalCentred:
    """What is not relative in the mean logits."""

    #: (...): root mean square over pairs of the mean logit minus the mean of its diagonal, nats.
    rms: NDArray[np.float64]
    #: (...): its sum of squares over that of the mean logit about its grand mean. NaN where the logits do not vary.
    fraction: NDArray[np.float64]
    #: Pairs of query and key.
    n_pairs: int


@dataclass(frozen=True, slots=True)
class SinkRate:
    """Attention sinks at position 0."""

    #: (sequence, ...): mean attention on position 0 over the queries, query 0 included.
    importance: NDArray[np.float64]
    #: (...): share of the sequences in which the head is a sink head.
    by_head: NDArray[np.float64]
    #: Mean of ``by_head``: the share of heads that are sinks.
    rate: float


@dataclass(frozen=True, slots=True)
class MassiveActivations:
    """Massive activations."""

    #: (..., token, hidden): which values are massive.
    flags: NDArray[np.bool_]
    #: (...): how many are.
    count: NDArray[np.int64]
    #: (...): largest and median magnitude of the hidden state, residual-stream units.
    largest: NDArray[np.float64]
    median: NDArray[np.float64]


def explicit_offsets(scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Lay logits or log attention, (..., query, key), out by offset, the form dumps record; return it and the offsets.

    (..., query, offset): every offset 0 .. T-1, key 0 included; NaN where the key would lie before position 0.

    >>> explicit_offsets([[1.0, 0.0], [2.0, 3.0]])[0]
    array([[ 1., nan],
           [ 3.,  2.]])
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim < 2 or s.shape[-1] != s.shape[-2]:
        raise InputError(f"scores must be (..., query, key) with as many keys as queries, got shape {s.shape}")
    position = np.arange(s.shape[-1])
    key = position[:, None] - position
    logit = np.take_along_axis(s, np.broadcast_to(np.maximum(key, 0), s.shape), axis=-1)
    return np.where(key >= 0, logit, np.nan), position


def linear_position_r2(logit: ArrayLike, offsets: ArrayLike, sink_logit: ArrayLike | None = None) -> LinearPosition:
    """R-squared that a linear trend in absolute position adds to a linear trend in the offset.

    Ordinary least squares over all pairs of query i and key j of all sequences, per head: logit on (1, i - j), then on
    (1, i - j, i, j). The metric of public code that precedes this package.

    What it cannot see: anything but a straight line. A sink is a single key and hardly tilts a line, so it is missed;
    the denominator, and with it the causal mask, is not part of a logit; noise of the content enters the total sum of
    squares and shrinks the metric; and a trend is credited to "position" whether or not it would replicate in other
    sequences. With i, j and i - j in one design the rank is one short (see ``rank``).

    `logit`, (sequence, ..., query, offset), holds recorded logits, NaN where there is none (the same places in every
    sequence and head), or those of :func:`explicit_offsets`; queries count from 0, `offsets`, (offset,), are distances
    i - j. `sink_logit`, (sequence, ..., query), are logits on key 0, which recorded logits leave out; NaN where it is
    not visible. Raises InputError if shapes do not match or a pair is given twice, DesignError if the pairs do not
    tell offset and position apart, NumericalError if a logit is infinite, or NaN in some sequences or heads only.

    >>> position = np.arange(32.0)
    >>> logits = 0.1 * position[:, None] - 0.2 * position
    >>> result = linear_position_r2(*explicit_offsets(logits[None]))
    >>> float(result.r2_full.round(6)), result.rank, result.n_columns
    (1.0, 3, 4)
    """
    y, query, offset = _pairs(logit, offsets, sink_logit)
    columns = np.column_stack([np.ones(query.size), offset, query, query - offset])
    rank = int(np.linalg.matrix_rank(columns))
    if rank < 3:
        raise DesignError(
            "the pairs do not tell offset and position apart: at least two offsets and queries are needed"
        )
    # Head by head in memory, so that the last digit of a head does not depend on how many heads there are.
    centred = y - np.moveaxis(y, 0, -2).reshape(*y.shape[1:-1], -1).mean(axis=-1)[..., None]
    mean = centred.mean(axis=0)
    total = (centred**2).mean(axis=0).sum(axis=-1)
    varies = total > np.finfo(float).eps * (y**2).mean(axis=0).sum(axis=-1)
    r2 = []
    for design in (columns[:, :2], columns):
        basis = np.linalg.svd(design, full_matrices=False)[0][:, : np.linalg.matrix_rank(design)]
        explained = (by_row(mean, basis) ** 2).sum(axis=-1)
        r2.append(np.divide(explained, total, out=np.full(total.shape, np.nan), where=varies))
    return LinearPosition(r2[0], r2[1], r2[1] - r2[0], rank, columns.shape[1], query.size)


def diagonal_centred(logit: ArrayLike, offsets: ArrayLike) -> DiagonalCentred:
    """What remains of the mean logits when the mean of every diagonal is subtracted.

    Arguments and errors are those of :func:`linear_position_r2`. Kim et al. (2025), "Behind RoPE: How Does Causal Mask
    Encode Positional Information?", arXiv:2509.21042, show the map of these remainders, averaged over sequences and
    heads; ``rms`` and ``fraction`` are our summaries of it, per head.

    What it cannot see: the denominator, and with it the causal mask's part of log attention. What it sees too much of:
    the noise that averaging over N sequences leaves, of variance sigma^2 / N, counts as position. Recorded logits lack
    key 0, so a sink enters only from :func:`explicit_offsets`.

    >>> position = np.arange(32)
    >>> relative = -np.sqrt(np.abs(position[:, None] - position))
    >>> float(diagonal_centred(*explicit_offsets(relative[None])).fraction.round(12))
    0.0
    """
    y, _, offset = _pairs(logit, offsets, None)
    mean = y.mean(axis=0)
    residual = mean.copy()
    for d in np.unique(offset):
        on_diagonal = offset == d
        residual[..., on_diagonal] -= mean[..., on_diagonal].mean(axis=-1, keepdims=True)
    left = (residual**2).sum(axis=-1)
    total = ((mean - mean.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    varies = total > np.finfo(float).eps * (mean**2).sum(axis=-1)
    fraction = np.divide(left, total, out=np.full(total.shape, np.nan), where=varies)
    return DiagonalCentred(np.sqrt(left / offset.size), fraction, offset.size)


def sink_rate(first_attention: ArrayLike, length: int | None = None, epsilon: float = SINK_EPSILON) -> SinkRate:
    """Share of heads whose mean attention on position 0 exceeds a threshold.

    ``importance = mean over i of A[i, 0]``; a head is a sink in a sequence if it exceeds ``epsilon``; the rate is the
    mean over sequences and heads. Query 0 counts, where A is 1. Gu et al. (2025), "When Attention Sink Emerges in
    Language Models: An Empirical View", arXiv:2410.10781, use epsilon = 0.3 on 64 tokens.

    What it cannot see: anything below or beyond the threshold; and it depends on the length, since the same head gives
    a smaller mean over more queries unless its attention is constant.

    `first_attention`, (sequence, ..., query), is 0 where position 0 is not visible. The first `length` queries are
    used, which causal attention makes exact; all by default. Raises InputError if there are not so many, or a value is
    not an attention weight.

    >>> uniform = 1 / np.arange(1, 65.0)  # no sink: mean 0.07
    >>> sink_rate(np.stack([uniform, np.full(64, 0.8)])[None]).by_head
    array([0., 1.])
    """
    attention = np.asarray(first_attention, dtype=np.float64)
    n_queries = attention.shape[-1] if attention.ndim > 1 else 0
    length = n_queries if length is None else length
    if not 1 <= length <= n_queries:
        raise InputError(f"first_attention of shape {attention.shape} does not hold (sequence, ..., {length} queries)")
    attention = attention[..., :length]
    if not ((attention >= 0) & (attention <= 1 + 1e-6)).all():
        raise InputError("attention on position 0 must lie in [0, 1]")
    importance = attention.mean(axis=-1)
    by_head = (importance > epsilon).mean(axis=0)
    return SinkRate(importance, by_head, float(by_head.mean()))


def massive_activations(
    hidden: ArrayLike, magnitude: float = MASSIVE_MAGNITUDE, ratio: float = MASSIVE_RATIO
) -> MassiveActivations:
    """Hidden values above 100 in magnitude and at least 1,000 times the median magnitude of their hidden state.

    Sun et al. (2024), "Massive Activations in Large Language Models", arXiv:2402.17762. What it cannot see: whether
    attention uses them. And both thresholds are conventions: the first depends on the scale of the residual stream,
    which differs between models by orders of magnitude.

    `hidden`, (..., token, hidden), is the residual stream of one sequence after one block: all tokens at hand, over
    which, and over features, the median is. A dump keeps position 0 alone (``trajectory``, as one token), whose own
    median stands in for the sequence's there. Raises InputError without token and feature axes, NumericalError for a
    value that is not finite.

    >>> hidden = np.random.default_rng(0).normal(scale=0.1, size=(4, 64))
    >>> hidden[0, 7] = -400.0
    >>> np.argwhere(massive_activations(hidden).flags).tolist()
    [[0, 7]]
    """
    h = np.abs(np.asarray(hidden, dtype=np.float64))
    if h.ndim < 2 or 0 in h.shape[-2:]:
        raise InputError(f"hidden must have axes (..., token, hidden), got shape {h.shape}")
    if not np.isfinite(h).all():
        raise NumericalError("hidden states must be finite")
    median = np.median(h, axis=(-2, -1))
    flags = (h > magnitude) & (h >= ratio * median[..., None, None])
    return MassiveActivations(flags, flags.sum(axis=(-2, -1)), h.max(axis=(-2, -1)), median)


def _pairs(
    logit: ArrayLike, offsets: ArrayLike, sink_logit: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Logits by pair, (sequence, ..., pair), with the query and the offset of each pair."""
    s, d = np.asarray(logit, dtype=np.float64), np.asarray(offsets)
    if s.ndim < 3 or d.shape != s.shape[-1:] or d.dtype.kind not in "iu" or np.unique(d).size != d.size:
        raise InputError(
            f"logit must be (sequence, ..., query, offset) with distinct integer offsets, got shape {s.shape} and "
            f"offsets of shape {d.shape}"
        )
    i = np.arange(s.shape[-2])
    key = i[:, None] - d
    if sink_logit is not None:
        first = np.asarray(sink_logit, dtype=np.float64)
        if first.shape != s.shape[:-1]:
            raise InputError(f"sink_logit must have shape {s.shape[:-1]}, got {first.shape}")
        if (~np.isnan(s) & (key == 0)).any():
            raise InputError("logit holds key 0 already; leave sink_logit out")
        s = np.concatenate([s, first[..., None]], axis=-1)
        key = np.column_stack([key, np.zeros_like(i)])
    there = ~np.isnan(s).reshape(-1, *key.shape)
    if (there != there[0]).any() or np.isinf(s).any():
        raise NumericalError("logits must be finite, or NaN at the same pairs in every sequence and head")
    query, column = np.nonzero(there[0] & (key >= 0))
    if query.size == 0:
        raise DesignError("there is no pair of query and key")
    return np.ascontiguousarray(s[..., query, column]), query, query - key[query, column]
