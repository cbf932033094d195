"""The steady state and the four additive terms of log attention (docs/method.md, sections 1 and 2).

Everything here works on arrays of one layer; leading axes are free, so the same function serves one estimate and two
thousand bootstrap replicates of it. Only differences that softmax can see are formed: the steady state enters as its
departure from ``G(n*)``, the log-sum over as many keys as it ever shows, and a logit as its departure from the
log-sum of its own query.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.arguments import choice
from posstats.errors import DesignError, NumericalError

Array = NDArray[np.float64]

#: Order in which mask and sink are counted -> weight of the mask counted last, given the sink.
ORDERS = {"shapley": 0.5, "mask_first": 0.0, "mask_last": 1.0}
#: Log-sums that fall with the number of keys by no more than this are rounding of single precision, nats.
_FALL = 1e-4


def check_order(order: object) -> float:
    """Weight of the mask counted last, given the sink; InputError where the order is not known.

    Examples
    --------
    >>> check_order("shapley")
    0.5
    """
    return ORDERS[choice("order", order, ORDERS)]


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Keys that a query sees; all fields but the last are (query,).

    Attributes
    ----------
    visible : ndarray of int
        ``n(i)``: all visible keys.
    ordinary : ndarray of int
        ``m(i)``: those behind position 0.
    zero_seen : ndarray of bool
        Whether position 0 is one of the visible keys.
    most : int
        ``n*``: keys that the steady state shows.
    """

    visible: NDArray[np.int64]
    ordinary: NDArray[np.int64]
    zero_seen: NDArray[np.bool_]
    most: int

    @classmethod
    def of(cls, visible_keys: NDArray[np.integer], most: int) -> "KeyCounts":
        """Counts of the queries 0, 1, ..., given the keys visible to each: the run that ends at the query.

        Raises
        ------
        DesignError
            If a query sees more keys than the steady state shows.

        Examples
        --------
        >>> KeyCounts.of(np.array([1, 2, 3, 3]), 3).ordinary.tolist()
        [0, 1, 2, 3]
        """
        visible = np.asarray(visible_keys, dtype=np.int64)
        if visible.max(initial=0) > most:
            raise DesignError(
                f"A query sees {visible.max()} keys, but reference queries see at most {most}: the steady state does "
                "not show that many. Dump longer sequences."
            )
        zero_seen = visible > np.arange(len(visible))
        return cls(visible, visible - zero_seen, zero_seen, most)

    def at(self, queries: NDArray[np.integer]) -> "KeyCounts":
        """Counts of some queries."""
        return KeyCounts(self.visible[queries], self.ordinary[queries], self.zero_seen[queries], self.most)


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady state as it departs from ``G(n*)``, so that nothing that softmax cannot see is left in it.

    Attributes
    ----------
    logit : ndarray, shape (..., lag)
        ``ref[d] - G(n*)``, d = 0 .. n* - 1.
    log_sum : ndarray, shape (..., lag)
        ``G(m) - G(n*)``, m = 1 .. n*; the last is 0.
    level : ndarray, shape (...)
        ``G(n*)``, with which only a learned sink is compared.
    """

    logit: Array
    log_sum: Array
    level: Array

    @classmethod
    def of(cls, steady_logit: Array, steady_log_sum: Array) -> "SteadyState":
        """Of the recorded means over reference queries, (..., lag), NaN at lags that no reference query sees.

        Raises
        ------
        NumericalError
            If a value is infinite, or lags are missing before the last one, or no lag is there at all.

        Examples
        --------
        >>> SteadyState.of(np.zeros(3), np.log([1.0, 2.0, 3.0])).log_sum.round(3).tolist()
        [-1.099, -0.405, 0.0]
        """
        logit, log_sum = (np.asarray(values, dtype=np.float64) for values in (steady_logit, steady_log_sum))
        seen = ~np.isnan(log_sum)
        most = int(seen.any(axis=tuple(range(seen.ndim - 1))).sum())
        logit, log_sum = logit[..., :most], log_sum[..., :most]
        if most == 0 or not np.isfinite(logit).all() or not np.isfinite(log_sum).all():
            raise NumericalError("The dump holds steady-state logits or log-sums that are not finite.")
        level = log_sum[..., -1]
        return cls(logit - level[..., None], log_sum - level[..., None], level)

    def at(self, offsets: NDArray[np.integer]) -> Array:
        """``ref[d] - G(n*)`` at some offsets, (..., offset); NaN beyond the lags of the steady state."""
        padded = np.concatenate([self.logit, np.full((*self.logit.shape[:-1], 1), np.nan)], axis=-1)
        return padded[..., np.minimum(offsets, self.logit.shape[-1])]

    def mean(self) -> "SteadyState":
        """Mean over the first axis.

        Raises
        ------
        NumericalError
            If the mean log-sum falls with the number of keys: reference queries that see different numbers of keys
            (chunked attention) show different content, so that they make no steady state.
        """
        mean = SteadyState(self.logit.mean(axis=0), self.log_sum.mean(axis=0), self.level.mean(axis=0))
        mean.check()
        return mean

    def check(self) -> None:
        """Raise NumericalError where a log-sum falls with the number of keys."""
        fall = -np.diff(self.log_sum, axis=-1).min(initial=0.0)
        if fall > _FALL:
            raise NumericalError(
                f"The steady state's log-sum falls by {fall:.3g} nats where one more key is seen: its reference "
                "queries see different numbers of keys and differ too much. Dump more sequences."
            )


@dataclass(frozen=True, slots=True)
class Shared:
    """What the steady state alone gives: functions of the query that all sequences share, nats.

    Attributes
    ----------
    mask_first : ndarray, shape (..., query)
        ``w(1,0) - w(0,0)``: the mask counted before the sink, ``G(n*) - G(n)`` without a learned sink.
    ordinary : ndarray, shape (..., query)
        ``G(m) - G(n*)``; NaN where no ordinary key is seen.
    gain : ndarray, shape (..., query)
        ``G(n* - c) - G(m)``: what more ordinary keys would add; NaN where none is seen.
    learned : ndarray, shape (...)
        ``-w(0,0) - G(n*)``: log of one plus the learned sink in the units of the steady state; 0 without one.
    """

    mask_first: Array
    ordinary: Array
    gain: Array
    learned: Array

    @classmethod
    def of(cls, log_sum: Array, level: Array, learned_sink: Array | float, keys: KeyCounts) -> "Shared":
        """Of departures ``G(m) - G(n*)`` (..., lag) and ``G(n*)`` (...), a learned sink (...), and counts of keys."""
        empty = np.full((*log_sum.shape[:-1], 1), np.nan)
        by_count = np.concatenate([empty, log_sum], axis=-1)
        sink = np.asarray(learned_sink, dtype=np.float64) - level
        learned = np.logaddexp(0.0, sink)
        visible, ordinary, most = (
            np.take(by_count, count, axis=-1) for count in (keys.visible, keys.ordinary, keys.most - keys.zero_seen)
        )
        mask_first = learned[..., None] - np.logaddexp(visible, sink[..., None])
        return cls(mask_first, ordinary, most - ordinary, learned)


def log_odds(
    sink_logit: Array, log_denominator_rest: Array, learned_sink: Array | float, zero_seen: NDArray[np.bool_]
) -> Array:
    """Log of what a query gives to position 0 and the learned sink together, over what its ordinary keys get.

    Parameters
    ----------
    sink_logit, log_denominator_rest : ndarray, shape (..., query)
        ``s[i,0]`` and ``log Zrest[i]``.
    learned_sink : ndarray broadcasting against (..., query), or float
        -inf where the model has none.
    zero_seen : ndarray of bool, shape (query,)
        Whether position 0 is visible; where it is not, `sink_logit` counts for nothing.

    Returns
    -------
    ndarray, shape (..., query)
        ``log(Z / Zrest - 1)``; -inf where there is neither.
    """
    rest = np.asarray(log_denominator_rest, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # query 0 has no ordinary key: -inf - -inf is NaN there, as documented
        zero = np.where(zero_seen, np.asarray(sink_logit, dtype=np.float64) - rest, -np.inf)
        return np.logaddexp(zero, learned_sink - rest)


@dataclass(frozen=True, slots=True)
class Terms:
    """The additive terms of log attention of one layer, in nats; query 0 is NaN (it has no ordinary key).

    Attributes
    ----------
    log_attention : ndarray, shape (sequence, head, query, offset)
        ``log A[i, i-d]``, NaN where that key is position 0, absent or masked.
    relative : ndarray, shape (head, offset)
        ``ref[d] + w(0,0)``: log attention in the steady state.
    mask, sink : ndarray, shape (sequence, head, query)
        In the order asked for.
    redistribution : ndarray, shape (sequence, head, query, offset)
        ``(s[i, i-d] - log Zrest[i]) - (ref[d] - G(m))``.
    """

    log_attention: Array
    relative: Array
    mask: Array
    sink: Array
    redistribution: Array


def check_recorded(logit: Array, sink_logit: Array, log_denominator_rest: Array) -> None:
    """Raise NumericalError where a recorded value is infinite (query 0 has no ordinary key, hence no denominator)."""
    finite = np.isfinite(log_denominator_rest[..., 1:]).all()
    if np.isinf(logit).any() or np.isinf(sink_logit).any() or not finite:
        raise NumericalError("The dump holds infinite logits or denominators; the terms are not defined.")


def decompose(
    logit: Array,
    sink_logit: Array,
    log_denominator_rest: Array,
    steady: SteadyState,
    visible_keys: NDArray[np.integer],
    learned_sink: Array,
    offsets: NDArray[np.integer],
    *,
    order: str = "shapley",
    tolerance: float = 1e-9,
) -> Terms:
    """Split log attention into its four additive terms.

    Parameters
    ----------
    logit : ndarray, shape (sequence, head, query, offset)
        ``s[i, i-d]``.
    sink_logit, log_denominator_rest : ndarray, shape (sequence, head, query)
        ``s[i, 0]``, NaN where position 0 is not visible, and ``log Zrest[i]``.
    steady : SteadyState
        Of shape (head, lag).
    visible_keys : ndarray of int, shape (query,)
        Keys visible to each query.
    learned_sink : ndarray, shape (head,)
        -inf where the model has none.
    offsets : ndarray of int, shape (offset,)
        Offsets d of the last axis of `logit`.
    order : {"shapley", "mask_first", "mask_last"}
        Whether the mask is counted before the sink, after it, or as the mean of both.
    tolerance : float
        Largest departure of the sum of terms from log attention, relative to the largest logit.

    Returns
    -------
    Terms

    Raises
    ------
    NumericalError
        If a recorded value is infinite or the terms do not sum to log attention.
    DesignError
        If a query sees more keys than the steady state shows.
    """
    last = check_order(order)
    s, rest = (np.asarray(values, dtype=np.float64) for values in (logit, log_denominator_rest))
    check_recorded(s, sink_logit, rest)
    keys = KeyCounts.of(visible_keys, steady.log_sum.shape[-1])
    learned = np.asarray(learned_sink, dtype=np.float64)
    shared = Shared.of(steady.log_sum, steady.level, learned, keys)
    odds = log_odds(sink_logit, rest, learned[:, None], keys.zero_seen)
    ref = steady.at(offsets)
    relative = ref - shared.learned[:, None]
    zero = np.where(keys.zero_seen, np.asarray(sink_logit, dtype=np.float64), -np.inf)
    with np.errstate(invalid="ignore"):  # query 0, set to NaN below
        excess = np.logaddexp(0.0, odds)
        mask = last * (np.logaddexp(shared.gain, odds) - excess) + (1 - last) * shared.mask_first
        sink = shared.learned[:, None] - shared.ordinary - excess - mask
        redistribution = s - rest[..., None] - (ref[:, None] - shared.ordinary[..., None])
        log_attention = s - np.logaddexp(np.logaddexp(rest, zero), learned[:, None])[..., None]
    for term in (log_attention, mask, sink, redistribution):
        term[:, :, 0] = np.nan

    total = relative[:, None, :] + mask[..., None] + sink[..., None] + redistribution
    error = np.nanmax(np.abs(total - log_attention), initial=0.0)
    scale = 1.0 + np.nanmax(np.abs(s), initial=0.0) + np.nanmax(np.abs(rest[..., 1:]), initial=0.0)
    if error > tolerance * scale:
        raise NumericalError(
            f"The four terms miss log attention by {error:.3g} nats (allowed {tolerance * scale:.3g})."
        )
    return Terms(log_attention, relative, mask, sink, redistribution)
