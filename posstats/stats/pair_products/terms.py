"""The stationary reference and the five additive terms of log attention (docs/method.md, sections 1 and 2).

Everything here works on arrays of one layer; leading axes are free, so the same function serves one estimate and two
thousand bootstrap replicates of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.errors import DesignError, NumericalError

Array = NDArray[np.float64]


def lag_counts(visible_keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """Count the queries that see an ordinary key (j >= 1) at each lag; as many lags as queries.

    ``#{i : lag < visible_keys[i] and i - lag >= 1}``: query i sees the keys ``i - visible_keys[i] + 1 .. i``.

    >>> lag_counts(np.array([1, 2, 3, 4])).tolist(), lag_counts(np.array([1, 2, 2, 2])).tolist()
    ([3, 2, 1, 0], [3, 2, 0, 0])
    """
    lags = np.minimum(np.asarray(visible_keys), np.arange(len(visible_keys)))  # lags 0 .. n-1 have an ordinary key
    return len(lags) - np.searchsorted(np.sort(lags), np.arange(len(lags)), side="right")


def lag_means(logit_sum_by_lag: Array, visible_keys: NDArray[np.integer]) -> Array:
    """Mean logit in nats at each lag over visible ordinary keys, the per-sequence share of the stationary reference.

    `logit_sum_by_lag`, (..., lag), are sums over queries, keys j >= 1. The longest lag has no ordinary key and holds
    the value before it; lags that no query sees are -inf, so that they add nothing to a denominator.
    """
    counts = lag_counts(visible_keys)
    sums = np.asarray(logit_sum_by_lag, dtype=np.float64)
    means = np.divide(sums, counts, out=np.full_like(sums, -np.inf), where=counts > 0)
    if len(counts) > 1:
        means[..., -1] = means[..., -2]
    return means


@dataclass(frozen=True, slots=True)
class Reference:
    """The logit and denominators as they would be if a logit depended on the offset alone."""

    #: (..., lag): ``ref[d]`` in nats.
    logit: Array
    #: (..., query): ``log Zref[i]``, position 0 counted as an ordinary key.
    log_denominator: Array
    #: (..., query): ``log ZrefRest[i]``, without position 0; -inf where nothing is left.
    log_denominator_rest: Array


def reference_limits(visible_keys: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lags that enter ``Zref[i]`` and ``ZrefRest[i]``: ``d < limit[i]`` and ``d < limit_rest[i]``.

    Position 0 is the key at lag i, always the last of a run that reaches it.
    """
    visible = np.asarray(visible_keys, dtype=np.int64)
    return visible, np.minimum(visible, np.arange(len(visible)))


def reference(lag_mean: Array, visible_keys: NDArray[np.integer], learned_sink: Array | float = -np.inf) -> Reference:
    """Build the stationary reference from mean logits by lag, (..., lag), already averaged over sequences.

    ``Zref[i] = exp(b) + sum_{d < visible_keys[i]} exp ref[d]``, and the same without position 0. The learned sink
    logit b broadcasts against (...), is -inf where the model has none, and belongs to both denominators. Raises
    NumericalError if a reference logit is NaN or +inf.
    """
    ref = np.asarray(lag_mean, dtype=np.float64)
    if np.isnan(ref).any() or np.isposinf(ref).any():
        raise NumericalError("The mean logit by lag is not finite; the dump holds NaN or infinite logits.")
    limit, limit_rest = reference_limits(visible_keys)
    sink = np.broadcast_to(np.asarray(learned_sink, dtype=np.float64), ref.shape[:-1])[..., None]
    # Sums of positive numbers from lag 0 upwards lose no relative precision; the shift only guards the exponent range.
    shift = np.maximum(ref.max(axis=-1, keepdims=True), sink)
    shift = np.where(np.isfinite(shift), shift, 0.0)
    partial = np.zeros((*ref.shape[:-1], ref.shape[-1] + 1))
    np.cumsum(np.exp(ref - shift), axis=-1, out=partial[..., 1:])
    partial += np.exp(sink - shift)
    with np.errstate(divide="ignore"):  # log 0 = -inf is the documented value where no key is left
        logs = np.log(partial, out=partial)
    logs += shift
    return Reference(ref, np.take(logs, limit, axis=-1), np.take(logs, limit_rest, axis=-1))


@dataclass(frozen=True, slots=True)
class Terms:
    """The five additive terms of log attention of one layer, in nats; query 0 is NaN (it has no ordinary key)."""

    #: (sequence, head, query, offset): ``log A[i, i-d]``, NaN where that key is position 0, absent or masked.
    log_attention: Array
    #: (head, offset): ``ref[d]``.
    relative: Array
    #: (head, query): ``-log Zref[i]``.
    mask: Array
    #: (sequence, head, query): ``log(1 - A0[i]) - log(1 - A0ref[i])``.
    sink: Array
    #: (sequence, head, query, offset): ``s[i, i-d] - ref[d]``.
    logit_drift: Array
    #: (sequence, head, query): ``-log Zrest[i] + log ZrefRest[i]``.
    denominator_drift: Array


def log_rest_share(sink_logit: Array, log_denominator_rest: Array) -> Array:
    """``log(1 - A0)``, accurate even where A0 is close to 1; 0 where position 0 is not visible (``sink_logit`` NaN)."""
    seen = np.where(np.isnan(sink_logit), -np.inf, np.asarray(sink_logit, dtype=np.float64))
    return -np.logaddexp(0.0, seen - np.asarray(log_denominator_rest, dtype=np.float64))


def check_recorded(logit: Array, sink_logit: Array, log_denominator_rest: Array) -> None:
    """Raise NumericalError where a recorded value is infinite (query 0 has no denominator but position 0's)."""
    finite = np.isfinite(log_denominator_rest[..., 1:]).all()
    if np.isinf(logit).any() or np.isinf(sink_logit).any() or not finite:
        raise NumericalError("The dump holds infinite logits or denominators; the terms are not defined.")


def decompose(
    logit: Array,
    sink_logit: Array,
    log_denominator_rest: Array,
    ref: Reference,
    offsets: NDArray[np.integer],
    *,
    tolerance: float = 1e-9,
) -> Terms:
    """Split log attention into its five additive terms.

    `logit`, (sequence, head, query, offset), is ``s[i, i-d]``; `sink_logit`, (sequence, head, query), ``s[i, 0]``, NaN
    where position 0 is not visible; `log_denominator_rest`, of the same shape, ``log Zrest[i]``; `ref` has the leading
    shape (head,). Raises NumericalError if a recorded value is infinite, or the sum of the terms departs from log
    attention by more than `tolerance` times the largest term.
    """
    s = np.asarray(logit, dtype=np.float64)
    rest = np.asarray(log_denominator_rest, dtype=np.float64)
    check_recorded(s, sink_logit, rest)
    if ref.logit.shape[-1] != s.shape[-2]:
        raise DesignError(f"The reference has {ref.logit.shape[-1]} lags but there are {s.shape[-2]} queries.")

    rest_share = log_rest_share(sink_logit, rest)
    relative = np.where(np.isfinite(ref.logit), ref.logit, np.nan)[:, offsets]
    mask = -ref.log_denominator
    with np.errstate(invalid="ignore"):  # query 0: -inf - -inf, set to NaN below
        log_attention = s + (rest_share - rest)[..., None]
        sink = rest_share - (ref.log_denominator_rest - ref.log_denominator)
        denominator_drift = ref.log_denominator_rest - rest
    drift = s - relative[:, None, :]
    for term in (log_attention, sink, denominator_drift, drift):
        term[:, :, 0] = np.nan
    mask = mask.copy()
    mask[:, 0] = np.nan

    total = relative[:, None, :] + mask[..., None] + sink[..., None] + drift + denominator_drift[..., None]
    error = np.abs(total - log_attention)
    scale = 1.0 + np.nanmax(np.abs(drift), initial=0.0) + np.nanmax(np.abs(rest[..., 1:]), initial=0.0)
    if np.nanmax(error, initial=0.0) > tolerance * scale:
        raise NumericalError(
            f"The five terms miss log attention by {np.nanmax(error):.3g} nats (allowed {tolerance * scale:.3g})."
        )
    return Terms(log_attention, relative, mask, sink, drift, denominator_drift)
