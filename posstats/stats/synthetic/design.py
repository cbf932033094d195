"""What is true in a synthetic data set: its size, the mean of every term, the noise, and the estimands that follow.

The mean of every term of the identity (docs/method.md, section 2) is prescribed, so the truth of every estimand of
section 3 is exact. :mod:`posstats.stats.synthetic.simulate` draws data sets from a design.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posstats.arguments import number
from posstats.errors import DesignError, InputError
from posstats.vocabulary import BASELINE, LOG_ATTENTION, RESIDUAL, RESIDUAL_TERMS, TERMS

Array = NDArray[np.float64]

#: A leakage below this, in nats squared, is rounding: log attention of order 1 to 10 has absolute errors near 1e-15.
ROUNDING = 1e-24


@dataclass(frozen=True, slots=True)
class Effects:
    """Mean functions of one condition, in nats; each broadcasts to (layer, head, query)."""

    #: Logit as a function of the lag, (layer, head, lag); ``-log(1 + lag) / 2`` by default.
    relative: ArrayLike | None = None
    #: Added to the logit as a function of the query position, and of the key position. Their mean over the queries of
    #: an offset belongs to the term ``relative``, the rest to ``logit_drift``.
    query_drift: ArrayLike = 0.0
    key_drift: ArrayLike = 0.0
    #: The mean of the term; negative where position 0 is read more than an ordinary key would be. Taken as 0 where
    #: position 0 is not visible.
    sink: ArrayLike = 0.0
    #: The mean of the term.
    denominator_drift: ArrayLike = 0.0
    #: Let ``denominator_drift`` cancel the mean of all other terms, so that log attention has no absolute position at
    #: all although its terms do: the null hypothesis of every test of leakage.
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Noise:
    """Content: what differs between sequences and does not depend on position on average.

    Every noise process runs along the query axis. Its variance is split into shares; what ``document``, ``head`` and
    ``condition`` leave belongs to the single sequence and head, and is the same in every condition.
    """

    #: Standard deviation of the logits and of the log denominator, nats.
    logit: float = 1.0
    denominator: float = 0.3
    #: Standard deviation of ``log(-log(1 - A0))``. It is always Gaussian, so that the mean of the term is exact.
    sink: float = 0.3
    #: Degrees of freedom (above 2) of Student-t innovations; Gaussian if omitted.
    tails: float | None = None
    #: Of successive queries, AR(1), within (-1, 1).
    autocorrelation: float = 0.0
    #: Share of the variance that the sequences of a document have in common, that the heads of a layer have in common,
    #: and that is drawn anew in every condition.
    document: float = 0.0
    head: float = 0.0
    condition: float = 0.0

    def __post_init__(self) -> None:
        for name in ("logit", "denominator", "sink", "document", "head", "condition"):
            number(name, getattr(self, name), 0)
        if self.tails is not None and not number("tails", self.tails) > 2:
            raise InputError(f"tails={self.tails}: Student-t noise needs more than 2 degrees of freedom")
        if not -1 < number("autocorrelation", self.autocorrelation) < 1:
            raise InputError(f"autocorrelation={self.autocorrelation} is not within (-1, 1)")
        if self.own < -1e-12:
            raise InputError("the shares document, head and condition must not sum to more than 1")

    @property
    def own(self) -> float:
        """Share of the variance that belongs to the single sequence and head."""
        return 1.0 - self.document - self.head - self.condition


@dataclass(frozen=True, slots=True)
class Design:
    """Size of a synthetic data set, and what is true in it.

    Raises InputError if a size, an offset, a window or the shape of a mean function does not fit, or if a ``sink`` is
    so large that no attention on position 0 could produce it.
    """

    n_documents: int = 48
    #: One number for all documents, or one for each.
    sequences_per_document: int | Sequence[int] = 1
    #: Tokens per sequence, T.
    length: int = 64
    n_layers: int = 1
    n_heads: int = 4
    #: Distances from query to key at which logits are recorded, below ``length - 1``.
    offsets: Sequence[int] = (0, 1, 2, 4, 8)
    conditions: Mapping[str, Effects] = field(default_factory=lambda: {BASELINE: Effects()})
    noise: Noise = Noise()
    #: Sliding window: the number of keys a query sees at most, or one per layer.
    window: int | Sequence[int | None] | None = None
    #: Learned sink logit, broadcasts to (layer, head); ``-inf`` for none.
    learned_sink: ArrayLike = -np.inf

    def __post_init__(self) -> None:
        for name in ("n_documents", "n_layers", "n_heads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.length < 3:
            raise InputError(f"length={self.length}: at least 3 tokens are needed")
        if not self.conditions:
            raise InputError("at least one condition is needed")
        counts = np.atleast_1d(self.sequences_per_document)
        if counts.size not in (1, self.n_documents) or (counts < 1).any():
            raise InputError(
                f"sequences_per_document={self.sequences_per_document}: one number of at least 1, or one for each of "
                f"the {self.n_documents} documents"
            )
        if not self.offsets or len(set(self.offsets)) < len(self.offsets):
            raise InputError(f"offsets={tuple(self.offsets)}: at least one, and none twice")
        if min(self.offsets) < 0 or max(self.offsets) >= self.length - 1:
            raise InputError(f"offsets={tuple(self.offsets)} must lie in 0 .. {self.length - 2}")
        windows = self._windows()
        if len(windows) != self.n_layers or any(w is not None and w < 1 for w in windows):
            raise InputError(f"window={self.window}: at least 1, for all layers or for each of the {self.n_layers}")
        for effects in self.conditions.values():
            Population.of(self, effects)

    def _windows(self) -> list[int | None]:
        if self.window is None:
            return [None] * self.n_layers
        if isinstance(self.window, int | np.integer):
            return [int(self.window)] * self.n_layers
        return list(self.window)

    @property
    def document(self) -> NDArray[np.int64]:
        """Document of each sequence, (sequence,)."""
        return np.repeat(np.arange(self.n_documents), self.sequences_per_document)

    @property
    def visible_keys(self) -> NDArray[np.int64]:
        """Number of keys the query sees, (layer, query)."""
        seen = np.arange(1, self.length + 1)
        return np.stack([seen if w is None else np.minimum(seen, w) for w in self._windows()])


@dataclass(frozen=True, slots=True)
class Population:
    """Expectations of the recorded quantities of one condition, nats."""

    #: (layer, head, lag): the logit without drift, and the stationary reference, which holds the mean drift of the
    #: lag.
    relative: Array
    reference: Array
    #: (layer, head, query, offset): NaN where there is no ordinary visible key.
    logit: Array
    #: (layer, head, query), as all that follow: log Zref and log ZrefRest.
    log_reference: Array
    log_rest_reference: Array
    #: ``-log(1 - A0) = log Z - log Zrest``; 0 where position 0 is not visible.
    excess: Array
    #: The terms.
    sink: Array
    denominator_drift: Array

    @classmethod
    def of(cls, design: Design, effects: Effects) -> "Population":
        """Expectations under one condition of a design."""
        length, visible = design.length, design.visible_keys[:, None, :]
        shape = (design.n_layers, design.n_heads, length)

        def spread(name: str, value: ArrayLike) -> Array:
            try:
                out = np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
            except (ValueError, TypeError) as error:
                raise InputError(f"{name} of shape {np.shape(value)} does not broadcast to {shape}") from error
            if not np.isfinite(out).all():
                raise InputError(f"{name} must be finite")
            return out

        position = np.arange(length)
        default = -np.log1p(position) / 2
        relative = spread("relative", default if effects.relative is None else effects.relative)
        query, key = spread("query_drift", effects.query_drift), spread("key_drift", effects.key_drift)
        # Lag d has the queries d+1 .. T-1 and the keys 1 .. T-1-d; the last lag has none and holds the value before.
        drift = query[..., :0:-1].cumsum(axis=-1)[..., ::-1] + key[..., 1:].cumsum(axis=-1)[..., ::-1]
        reference = relative.copy()
        reference[..., :-1] += drift / position[:0:-1]
        reference[..., -1] = reference[..., -2]

        j = position[:, None] - np.asarray(design.offsets)
        ordinary = (j >= 1) & (visible[..., None] > np.asarray(design.offsets))
        logit = relative[..., None, list(design.offsets)] + query[..., None] + key[..., np.maximum(j, 0)]

        learned_sink = np.broadcast_to(np.asarray(design.learned_sink, dtype=np.float64), shape[:2])[..., None]
        zero_seen = visible == position + 1
        sums = np.logaddexp.accumulate(np.concatenate([np.full((*shape[:2], 1), -np.inf), reference], -1), axis=-1)

        def denominator(n_keys: NDArray[np.int64]) -> Array:
            return np.logaddexp(np.take_along_axis(sums, np.broadcast_to(n_keys, shape), -1), learned_sink)

        log_reference, log_rest_reference = denominator(visible), denominator(visible - zero_seen)
        sink = np.where(zero_seen, spread("sink", effects.sink), 0.0)
        excess = log_reference - log_rest_reference - sink
        if np.where(zero_seen & (position >= 1), excess <= 0, False).any():
            raise InputError("sink exceeds -log(1 - A0ref): attention on position 0 cannot fall below 0")
        denominator_drift = spread("denominator_drift", effects.denominator_drift)
        if effects.flat:
            if np.ptp(key, axis=-1).any():
                raise InputError("flat: a drift along the keys cannot be cancelled by a denominator")
            denominator_drift = log_reference - sink - query
            denominator_drift = denominator_drift - denominator_drift[..., 1:].mean(axis=-1, keepdims=True)
        return cls(
            relative,
            reference,
            np.where(ordinary, logit, np.nan),
            log_reference,
            log_rest_reference,
            excess,
            sink,
            denominator_drift,
        )


def _over_offsets(values: Array, how: str) -> Array:
    """Sum or mean over the offsets, the last axis, that have a value; NaN where none has."""
    count = (~np.isnan(values)).sum(axis=-1)
    by = count if how == "mean" else np.ones_like(count)
    return np.divide(np.nansum(values, axis=-1), by, out=np.full(count.shape, np.nan), where=count > 0)


@dataclass(frozen=True, slots=True)
class Truth:
    """Expected terms of a design, and the value of every estimand that follows from them.

    ``queries`` are the analysed queries, ``max(offsets) < i < T - 1`` by default; offsets whose key is not an ordinary
    visible one for every query are left out, and an estimand without any offset is NaN. See docs/method.md, section 3.
    """

    #: Term, ``residual`` or ``log_attention`` -> (condition, layer, head, query, offset), nats; NaN where the key is
    #: position 0, absent or masked.
    expected: dict[str, Array]
    offsets: tuple[int, ...]
    conditions: tuple[str, ...]

    def _at(self, term: str, queries: ArrayLike | None) -> Array:
        values = self.expected[term]
        chosen = np.arange(max(self.offsets) + 1, values.shape[3] - 1) if queries is None else np.asarray(queries)
        if chosen.size == 0:
            raise DesignError(f"no analysed query between the largest offset {max(self.offsets)} and the last query")
        return np.where(np.isnan(values[..., chosen, :]).any(axis=3, keepdims=True), np.nan, values[..., chosen, :])

    def cross(self, term: str, other: str = LOG_ATTENTION, queries: ArrayLike | None = None) -> Array:
        """C(term, other) summed over the offsets, (condition, layer, head), nats squared."""
        x, z = self._at(term, queries), self._at(other, queries)
        centred = (x - x.mean(axis=3, keepdims=True)) * (z - z.mean(axis=3, keepdims=True))
        return _over_offsets(centred.mean(axis=3), "sum")

    def leakage(self, queries: ArrayLike | None = None) -> Array:
        """Leakage, (condition, layer, head), nats squared."""
        return self.cross(LOG_ATTENTION, LOG_ATTENTION, queries)

    def share(self, term: str, queries: ArrayLike | None = None, pooled: bool = False) -> Array:
        """Share of a term, (condition, layer, head), or (condition,) if pooled; NaN where nothing leaks."""
        part, whole = self.cross(term, LOG_ATTENTION, queries), self.leakage(queries)
        if pooled:
            part, whole = np.nansum(part, axis=(1, 2)), np.nansum(whole, axis=(1, 2))
        return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > ROUNDING)

    def magnitude(self, term: str, queries: ArrayLike) -> Array:
        """Squared departure from the late mean, (condition, layer, head), nats squared."""
        values = self.expected[term]
        late = values[..., (values.shape[3] + 1) // 2 :, :]
        count = (~np.isnan(late)).sum(axis=3, keepdims=True)
        departure = self._at(term, queries) - np.nansum(late, axis=3, keepdims=True) / np.maximum(count, 1)
        return _over_offsets((departure**2).mean(axis=3), "mean")

    def removal(self, condition: str, queries: ArrayLike) -> float:
        """1 - residual magnitude under the condition / at baseline, ratio of sums over heads and layers."""
        total = np.nansum(self.magnitude(RESIDUAL, queries), axis=(1, 2))
        baseline = total[self.conditions.index(BASELINE)]
        return float(1 - total[self.conditions.index(condition)] / baseline) if baseline > 0 else np.nan

    def slope(self, term: str, queries: ArrayLike | None = None) -> Array:
        """Least-squares slope on log2(i + 1) with a level per offset, (condition, layer, head), nats per doubling."""
        values = self._at(term, queries)
        chosen = np.arange(max(self.offsets) + 1, self.expected[term].shape[3] - 1) if queries is None else queries
        x = np.log2(np.asarray(chosen) + 1.0)
        x = x - x.mean()
        return _over_offsets(np.einsum("i,clhio->clho", x / (x @ x), values), "mean")


def expected_terms(design: Design) -> Truth:
    """The truth of a design.

    Expectations are over documents, with the stationary reference at its population value: what the estimators tend
    to as the number of documents grows. Log attention does not involve the reference, so its expectation and the
    leakage are exact for any number of documents.

    >>> truth = expected_terms(Design(n_heads=1, conditions={"baseline": Effects(query_drift=0.1 * np.arange(64))}))
    >>> round(float(truth.share("mask")[0, 0, 0] + truth.share("residual")[0, 0, 0]), 12)
    1.0
    """
    parts: dict[str, list[Array]] = {name: [] for name in (*TERMS, RESIDUAL, LOG_ATTENTION)}
    for effects in design.conditions.values():
        population = Population.of(design, effects)
        reference = population.reference[:, :, None, list(design.offsets)]
        values = {
            "relative": reference,
            "mask": -population.log_reference[..., None],
            "sink": population.sink[..., None],
            "logit_drift": population.logit - reference,
            "denominator_drift": population.denominator_drift[..., None],
        }
        values[RESIDUAL] = sum((values[name] for name in RESIDUAL_TERMS), np.zeros(1))
        values[LOG_ATTENTION] = sum((values[name] for name in TERMS), np.zeros(1))
        for name, value in values.items():
            parts[name].append(np.where(np.isnan(population.logit), np.nan, value))
    expected = {name: np.stack(part) for name, part in parts.items()}
    return Truth(expected, tuple(design.offsets), tuple(design.conditions))
