"""What is true in a synthetic data set: its size, the mean of every term, the noise, and the estimands that follow.

The mean of every term of the identity (docs/method.md, section 2) is prescribed, so the truth of every estimand of
section 3 is exact. :mod:`posstats.stats.synthetic.simulate` draws data sets from a design.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posstats.arguments import flag, number
from posstats.errors import DesignError, InputError
from posstats.stats.pair_products.terms import KeyCounts, Shared, check_order
from posstats.vocabulary import BASELINE, LOG_ATTENTION, RESIDUAL, RESIDUAL_TERMS, TERMS, analysed_half

Array = NDArray[np.float64]

#: A leakage below this, in nats squared, is rounding: log attention of order 1 to 10 has absolute errors near 1e-15.
ROUNDING = 1e-24


#: Nodes and weights of the expectation over a standard normal variable.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Effects:
    """Mean functions of one condition, in nats; each broadcasts to (layer, head, query).

    Attributes
    ----------
    relative : array_like, optional
        Steady-state logit as a function of the lag, (layer, head, lag); ``-log(1 + lag) / 2`` by default.
    query_drift, key_drift : array_like
        Added to the logit as a function of the query position, and of the key position, in the analysed half and not
        in the steady state: they belong to `redistribution`.
    sink : array_like
        The mean of the term ``sink`` in the order "mask_first"; negative where position 0 is read more than an
        ordinary key would be. Taken as 0 where position 0 is not visible.
    denominator_drift : array_like
        Taken from the log denominator over the ordinary keys: it belongs to `redistribution` at every offset.
    flat : bool
        Let ``denominator_drift`` cancel the mean of all other terms, so that log attention has no absolute position
        at all although its terms do: the null hypothesis of every test of leakage.
    """

    relative: ArrayLike | None = None
    query_drift: ArrayLike = 0.0
    key_drift: ArrayLike = 0.0
    sink: ArrayLike = 0.0
    denominator_drift: ArrayLike = 0.0
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Noise:
    """Content: what differs between sequences and does not depend on position on average.

    Every noise process runs along the query axis. Its variance is split into shares; what ``document``, ``head`` and
    ``condition`` leave belongs to the single sequence and head, and is the same in every condition.

    Attributes
    ----------
    logit, denominator : float
        Standard deviation of the logits and of the log denominator, nats.
    sink : float
        Standard deviation of ``log(-log(1 - A0))``. It is always Gaussian, so that the mean of the terms is exact.
    tails : float, optional
        Degrees of freedom (above 2) of Student-t innovations; Gaussian if omitted.
    skewed : bool
        Exponential innovations, centred, instead.
    autocorrelation : float
        Of successive queries, AR(1), within (-1, 1).
    document, head, condition : float
        Share of the variance that the sequences of a document have in common, that the heads of a layer have in
        common, and that is drawn anew in every condition.
    """

    logit: float = 1.0
    denominator: float = 0.3
    sink: float = 0.3
    tails: float | None = None
    skewed: bool = False
    autocorrelation: float = 0.0
    document: float = 0.0
    head: float = 0.0
    condition: float = 0.0

    def __post_init__(self) -> None:
        for name in ("logit", "denominator", "sink", "document", "head", "condition"):
            number(name, getattr(self, name), 0)
        if self.tails is not None and not number("tails", self.tails) > 2:
            raise InputError(f"tails={self.tails}: Student-t noise needs more than 2 degrees of freedom")
        if flag("skewed", self.skewed) and self.tails is not None:
            raise InputError("skewed noise is exponential and has no tails to choose")
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

    Attributes
    ----------
    n_documents : int
    sequences_per_document : int or sequence of int
        One number for all documents, or one for each.
    length : int
        Tokens per sequence, T, divisible by 4; the first half is analysed.
    n_layers, n_heads : int
    offsets : sequence of int
        Distances from query to key at which logits are recorded, below ``length / 2 - 1``.
    conditions : mapping of str to Effects
    noise : Noise
    window : None, int, or one of these per layer
        Sliding window: the number of keys a query sees at most.

    Raises
    ------
    InputError
        If a size, an offset, a window or the shape of a mean function does not fit, or if a ``sink`` is so large that
        no attention on position 0 could produce it.
    """

    n_documents: int = 48
    sequences_per_document: int | Sequence[int] = 1
    length: int = 64
    n_layers: int = 1
    n_heads: int = 4
    offsets: Sequence[int] = (0, 1, 2, 4, 8)
    conditions: Mapping[str, Effects] = field(default_factory=lambda: {BASELINE: Effects()})
    noise: Noise = Noise()
    window: int | Sequence[int | None] | None = None

    def __post_init__(self) -> None:
        for name in ("n_documents", "n_layers", "n_heads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.length < 8 or self.length % 4:
            raise InputError(f"length={self.length}: at least 8 tokens are needed, in a number divisible by 4")
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
        if min(self.offsets) < 0 or max(self.offsets) >= self.n_queries - 1:
            raise InputError(f"offsets={tuple(self.offsets)} must lie in 0 .. {self.n_queries - 2}")
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
    def n_queries(self) -> int:
        """Analysed queries, Q: half of the tokens."""
        return analysed_half(self.length)

    @property
    def visible_keys(self) -> NDArray[np.int64]:
        """Number of keys the query sees, (layer, query)."""
        seen = np.arange(1, self.n_queries + 1)
        return np.stack([seen if w is None else np.minimum(seen, w) for w in self._windows()])

    @property
    def most_keys(self) -> list[int]:
        """Keys that the steady state of each layer shows, n*."""
        return [self.n_queries if w is None else min(w, self.n_queries) for w in self._windows()]


@dataclass(frozen=True, slots=True)
class Population:
    """Expectations of the recorded quantities of one condition, nats.

    Attributes
    ----------
    steady_logit, steady_log_sum : (layer, head, lag)
        The steady state; NaN beyond a window.
    logit : (layer, head, query, offset)
        NaN where there is no ordinary visible key.
    rest : (layer, head, query)
        ``log Zrest``.
    excess : (layer, head, query)
        ``-log(1 - A0) = log Z - log Zrest``; 0 where position 0 is not visible.
    denominator_drift : (layer, head, query)
        What is taken from the log denominator over the ordinary keys.
    terms : dict of str to (layer, head, query, offset)
        The terms that are prescribed: `relative`, `mask_first`, `mask_last`, `whole` (mask and sink together) and
        `redistribution`.
    """

    steady_logit: Array
    steady_log_sum: Array
    logit: Array
    rest: Array
    excess: Array
    denominator_drift: Array
    terms: dict[str, Array]

    @classmethod
    def of(cls, design: Design, effects: Effects) -> "Population":
        """Expectations under one condition of a design."""
        visible, offsets = design.visible_keys[:, None, :], list(design.offsets)
        shape = (design.n_layers, design.n_heads, design.n_queries)

        def spread(name: str, value: ArrayLike) -> Array:
            try:
                out = np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
            except (ValueError, TypeError) as error:
                raise InputError(f"{name} of shape {np.shape(value)} does not broadcast to {shape}") from error
            if not np.isfinite(out).all():
                raise InputError(f"{name} must be finite")
            return out

        position = np.arange(design.n_queries)
        relative = spread("relative", -np.log1p(position) / 2 if effects.relative is None else effects.relative)
        query, key = spread("query_drift", effects.query_drift), spread("key_drift", effects.key_drift)
        j = position[:, None] - np.asarray(offsets)
        ordinary = (j >= 1) & (visible[..., None] > np.asarray(offsets))
        drift = query[..., None] + np.where(ordinary, key[..., np.maximum(j, 0)], np.nan)

        log_sum = np.logaddexp.accumulate(relative, axis=-1)
        shared = [
            Shared.of(log_sum[at, :, :most] - log_sum[at, :, most - 1, None], log_sum[at, :, most - 1], -np.inf, keys)
            for at, most in enumerate(design.most_keys)
            for keys in [KeyCounts.of(design.visible_keys[at], most)]
        ]
        mask_first, log_rest, gain = (
            np.stack([getattr(one, name) for one in shared]) for name in ("mask_first", "ordinary", "gain")
        )
        zero_seen = visible == position + 1
        sink = np.where(zero_seen, spread("sink", effects.sink), 0.0)
        # sink = (G(n) - G(m)) - excess in the order "mask_first", and G(n) - G(n*) = -mask_first.
        excess = np.where(zero_seen, -mask_first - log_rest - sink, 0.0)
        if np.where(zero_seen & (position >= 1), excess <= 0, False).any():
            raise InputError("sink exceeds -log(1 - A0ref): attention on position 0 cannot fall below 0")
        denominator_drift = spread("denominator_drift", effects.denominator_drift)
        if effects.flat:
            if np.ptp(key, axis=-1).any():
                raise InputError("flat: a drift along the keys cannot be cancelled by a denominator")
            denominator_drift = -mask_first - sink - query
            denominator_drift = denominator_drift - denominator_drift[..., 1:].mean(axis=-1, keepdims=True)
        most = np.asarray(design.most_keys)[:, None, None]
        level = np.take_along_axis(log_sum, np.broadcast_to(most - 1, (*shape[:2], 1)), axis=-1)
        beyond = position >= most
        redistribution = drift + denominator_drift[..., None]
        terms = {
            "relative": (relative - level)[..., None, offsets],
            "mask_first": mask_first[..., None],
            "mask_last": _given_sink(excess, gain, design.noise.sink)[..., None],
            "whole": (mask_first + sink)[..., None],
            "redistribution": redistribution,
        }
        return cls(
            np.where(beyond, np.nan, relative),
            np.where(beyond, np.nan, log_sum),
            relative[..., None, offsets] + drift,
            log_rest + level - denominator_drift,
            excess,
            denominator_drift,
            {name: np.where(np.isnan(redistribution), np.nan, value) for name, value in terms.items()},
        )


def _given_sink(excess: Array, gain: Array, sd: float) -> Array:
    """Mean of the mask counted last, ``log(exp gain + Z/Zrest - 1) - log(Z/Zrest)``, over log-normal log(Z/Zrest)."""
    drawn = excess[..., None] * np.exp(sd * _NODES - sd**2 / 2)
    with np.errstate(divide="ignore", invalid="ignore"):  # no excess, no odds; query 0 has no ordinary key
        odds = drawn + np.log(-np.expm1(-drawn))
        mean: Array = (np.logaddexp(gain[..., None], odds) - drawn) @ _WEIGHTS
    return mean


def _over_offsets(values: Array, how: str) -> Array:
    """Sum or mean over the offsets, the last axis, that have a value; NaN where none has."""
    count = (~np.isnan(values)).sum(axis=-1)
    by = count if how == "mean" else np.ones_like(count)
    return np.divide(np.nansum(values, axis=-1), by, out=np.full(count.shape, np.nan), where=count > 0)


@dataclass(frozen=True, slots=True)
class Truth:
    """Expected terms of a design, and the value of every estimand that follows from them.

    ``queries`` are the analysed queries, ``max(offsets) < i < Q`` by default; offsets whose key is not an ordinary
    visible one for every query are left out, and an estimand without any offset is NaN. See docs/method.md, section 3.

    Attributes
    ----------
    expected : dict
        Term, ``residual``, ``log_attention``, ``mask_first`` or ``mask_last`` -> (condition, layer, head, query,
        offset), nats; NaN where the key is position 0, absent or masked.
    offsets : tuple of int
    conditions : tuple of str
    """

    expected: dict[str, Array]
    offsets: tuple[int, ...]
    conditions: tuple[str, ...]

    def _at(self, term: str, queries: ArrayLike | None) -> Array:
        values = self.expected[term]
        chosen = self._queries(queries)
        return np.where(np.isnan(values[..., chosen, :]).any(axis=3, keepdims=True), np.nan, values[..., chosen, :])

    def _queries(self, queries: ArrayLike | None) -> NDArray[np.int64]:
        n_queries = self.expected[LOG_ATTENTION].shape[3]
        chosen = np.arange(max(self.offsets) + 1, n_queries) if queries is None else np.asarray(queries)
        if chosen.size == 0:
            raise DesignError(f"no analysed query between the largest offset {max(self.offsets)} and {n_queries}")
        return chosen

    def cross(self, term: str, other: str = LOG_ATTENTION, queries: ArrayLike | None = None) -> Array:
        """C(term, other) summed over the offsets, (condition, layer, head), nats squared."""
        x, z = self._at(term, queries), self._at(other, queries)
        centred = (x - x.mean(axis=3, keepdims=True)) * (z - z.mean(axis=3, keepdims=True))
        return _over_offsets(centred.mean(axis=3), "sum")

    def leakage(self, queries: ArrayLike | None = None) -> Array:
        """Leakage, (condition, layer, head), nats squared."""
        return self.cross(LOG_ATTENTION, LOG_ATTENTION, queries)

    def size(self, term: str, queries: ArrayLike | None = None) -> Array:
        """Size of a term, C(term, term), (condition, layer, head), nats squared."""
        return self.cross(term, term, queries)

    def share(self, term: str, queries: ArrayLike | None = None, pooled: bool = False) -> Array:
        """Share of a term, (condition, layer, head), or (condition,) if pooled; NaN where nothing leaks."""
        part, whole = self.cross(term, LOG_ATTENTION, queries), self.leakage(queries)
        if pooled:
            part, whole = np.nansum(part, axis=(1, 2)), np.nansum(whole, axis=(1, 2))
        return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > ROUNDING)

    def magnitude(self, term: str, queries: ArrayLike) -> Array:
        """Squared departure from the steady state, (condition, layer, head), nats squared.

        Of `log_attention` that of log attention less `relative`; every other term is such a departure.
        """
        values = self._at(term, queries)
        if term == LOG_ATTENTION:
            values = values - self._at("relative", queries)
        return _over_offsets((values**2).mean(axis=3), "mean")

    def removal(self, condition: str, queries: ArrayLike) -> float:
        """1 - residual magnitude under the condition / at baseline, ratio of sums over heads and layers."""
        total = np.nansum(self.magnitude(RESIDUAL, queries), axis=(1, 2))
        baseline = total[self.conditions.index(BASELINE)]
        return float(1 - total[self.conditions.index(condition)] / baseline) if baseline > 0 else np.nan

    def slope(self, term: str, queries: ArrayLike | None = None) -> Array:
        """Least-squares slope on log2(i + 1) with a level per offset, (condition, layer, head), nats per doubling."""
        values = self._at(term, queries)
        x = np.log2(self._queries(queries) + 1.0)
        x = x - x.mean()
        return _over_offsets(np.einsum("i,clhio->clho", x / (x @ x), values), "mean")


def expected_terms(design: Design, order: str = "shapley") -> Truth:
    """The truth of a design.

    Expectations are over documents, with the steady state at its population value: what the estimators tend to as the
    number of documents grows. Log attention does not involve the steady state, so its expectation and the leakage are
    exact for any number of documents.

    Parameters
    ----------
    design : Design
    order : {"shapley", "mask_first", "mask_last"}
        Of mask and sink.

    Returns
    -------
    Truth

    Examples
    --------
    >>> import numpy as np
    >>> truth = expected_terms(Design(n_heads=1, conditions={"baseline": Effects(query_drift=0.1 * np.arange(32))}))
    >>> round(float(truth.share("mask")[0, 0, 0] + truth.share("residual")[0, 0, 0]), 12)
    1.0
    """
    last = check_order(order)
    parts: dict[str, list[Array]] = {name: [] for name in (*TERMS, RESIDUAL, LOG_ATTENTION, "mask_first", "mask_last")}
    for effects in design.conditions.values():
        values = dict(Population.of(design, effects).terms)
        values["mask"] = (1 - last) * values["mask_first"] + last * values["mask_last"]
        values["sink"] = values.pop("whole") - values["mask"]
        values[RESIDUAL] = sum((values[name] for name in RESIDUAL_TERMS), np.zeros(1))
        values[LOG_ATTENTION] = sum((values[name] for name in TERMS), np.zeros(1))
        for name, value in values.items():
            parts[name].append(value)
    expected = {name: np.stack(part) for name, part in parts.items()}
    return Truth(expected, tuple(design.offsets), tuple(design.conditions))
