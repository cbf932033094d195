"""Synthetic recordings of attention with known truth: what a dump of a design holds.

- :func:`simulate_terms` draws the recorded quantities directly, without any query x key array, so thousands of data
  sets are cheap; :func:`~posstats.stats.synthetic.design.expected_terms` is their truth.
- :func:`explicit_logits` draws whole query x key arrays of logits for :func:`record_logits` to reduce, which is what
  a metric that looks at every pair of positions needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import lfilter
from scipy.special import logsumexp

from posstats.stats.synthetic.design import Array, Design, Noise, Population
from posstats.vocabulary import analysed_half, reference_queries


@dataclass(frozen=True, slots=True)
class Recorded:
    """The variables of a dump that the estimators read; names, dimensions and units are those of the dump schema.

    Attributes
    ----------
    logit : (condition, sequence, layer, head, query, offset)
    sink_logit, log_denominator_rest : (condition, sequence, layer, head, query)
    steady_logit, steady_log_sum : (condition, sequence, layer, head, lag)
        NaN at lags that no reference query sees.
    steady_square : (condition, sequence, layer, head)
        NaN where it was not drawn.
    learned_sink : (layer, head)
    visible_keys : (layer, query)
    document : (sequence,)
    offsets : tuple of int
    conditions : tuple of str
    """

    logit: Array
    sink_logit: Array
    log_denominator_rest: Array
    steady_logit: Array
    steady_log_sum: Array
    steady_square: Array
    learned_sink: Array
    visible_keys: NDArray[np.int64]
    document: NDArray[np.int64]
    offsets: tuple[int, ...]
    conditions: tuple[str, ...]

    @property
    def sink_output_fraction(self) -> Array:
        """Mean attention on position 0 over queries i >= 16, as if all value vectors had one direction and norm."""
        odds = (self.sink_logit - self.log_denominator_rest)[..., 16:]
        attention = np.where(np.isnan(odds), 0.0, 1 / (1 + np.exp(-odds)))
        return attention.sum(axis=-1) / attention.shape[-1] if attention.shape[-1] else np.full(odds.shape[:-1], np.nan)


def _noise(
    rng: np.random.Generator,
    design: Design,
    tail: tuple[int, ...],
    *,
    gaussian: bool = False,
    autocorrelated: bool = True,
) -> Array:
    """Noise of unit variance, (condition or 1, sequence, layer, head, *tail), ``tail`` beginning with the query."""
    noise, document = design.noise, design.document

    def draw(*lead: int) -> Array:
        if noise.skewed and not gaussian:
            out = rng.standard_exponential((*lead, *tail)) - 1
        elif gaussian or noise.tails is None:
            out = rng.standard_normal((*lead, *tail))
        else:
            out = rng.standard_t(noise.tails, (*lead, *tail)) * np.sqrt(1 - 2 / noise.tails)
        if autocorrelated and noise.autocorrelation:
            # The first value has the stationary variance already; the others are scaled to keep it.
            out[:, :, :, :, 1:] *= np.sqrt(1 - noise.autocorrelation**2)
            out = lfilter([1.0], [1.0, -noise.autocorrelation], out, axis=4)
        return out

    n_layers, n_heads, n_sequences = design.n_layers, design.n_heads, document.size
    total = np.sqrt(max(noise.own, 0.0)) * draw(1, n_sequences, n_layers, n_heads)
    if noise.document:
        total = total + np.sqrt(noise.document) * draw(1, design.n_documents, n_layers, n_heads)[:, document]
    if noise.head:
        total = total + np.sqrt(noise.head) * draw(1, n_sequences, n_layers, 1)
    if noise.condition:
        total = total + np.sqrt(noise.condition) * draw(len(design.conditions), n_sequences, n_layers, n_heads)
    return total


def simulate_terms(design: Design, seed: int | np.random.SeedSequence = 0) -> Recorded:
    """Draw the recorded quantities of a data set whose terms have prescribed means.

    The logit and the log denominator without key 0 are Gaussian or Student-t around their means; ``-log(1 - A0)`` is
    log-normal around its mean, which keeps the attention on position 0 within (0, 1). Logits of the steady state
    scatter like means over the reference queries, and log-sums like what such logits make of them to first order, so
    that their means are exact.

    Parameters
    ----------
    design : Design
    seed : int or numpy.random.SeedSequence
        Give each of many data sets one child of ``SeedSequence(seed).spawn(n)``.

    Returns
    -------
    Recorded

    Examples
    --------
    >>> data = simulate_terms(Design(n_documents=8, length=32), seed=1)
    >>> data.logit.shape  # condition, sequence, layer, head, query, offset
    (1, 8, 1, 4, 16, 5)
    """
    rng = np.random.default_rng(seed)
    noise, offsets, n_queries = design.noise, list(design.offsets), design.n_queries
    populations = [Population.of(design, effects) for effects in design.conditions.values()]

    def mean(name: str) -> Array:
        return np.stack([getattr(population, name) for population in populations])[:, None]

    zero_seen = design.visible_keys[:, None] == np.arange(1, n_queries + 1)
    logit = mean("logit") + noise.logit * _noise(rng, design, (n_queries, len(offsets)))
    rest = mean("rest") + noise.denominator * _noise(rng, design, (n_queries,))
    rest[..., 0] = -np.inf  # the first query has no ordinary key

    gain = np.exp(noise.sink * _noise(rng, design, (n_queries,), gaussian=True) - noise.sink**2 / 2)
    sink_logit = np.full(rest.shape, np.nan)
    sink_logit[..., 0] = mean("steady_logit")[..., 0]
    excess = (mean("excess") * gain)[..., 1:]
    # A0 / (1 - A0) = expm1(excess), written so that a large excess does not overflow.
    odds = excess + np.log(-np.expm1(-excess), where=excess > 0, out=np.full(excess.shape, np.nan))
    sink_logit[..., 1:] = np.where(zero_seen[..., 1:], rest[..., 1:] + odds, np.nan)

    steady = mean("steady_logit")
    scatter = (
        noise.logit
        / np.sqrt(len(reference_queries(design.length)))
        * _noise(rng, design, (n_queries,), autocorrelated=False)
    )
    log_sum = mean("steady_log_sum")
    weight = np.exp(steady - log_sum[..., :1])  # any shift will do
    shared = (weight * scatter).cumsum(axis=-1) / weight.cumsum(axis=-1)
    # One key more never lowers a log-sum: a step down is cut at the share of the key in the sum, less than what it adds
    # to the mean; a step up as well, so that means stay.
    step, most = np.diff(shared, axis=-1), (weight / weight.cumsum(axis=-1))[..., 1:]
    shared[..., 1:] += (step.clip(-most, most) - step).cumsum(axis=-1)

    return Recorded(
        logit,
        sink_logit,
        rest,
        steady + scatter,
        log_sum + shared,
        np.full(rest.shape[:-1], np.nan),
        np.full((design.n_layers, design.n_heads), -np.inf),
        design.visible_keys,
        design.document,
        tuple(offsets),
        tuple(design.conditions),
    )


@dataclass(frozen=True, slots=True)
class Stream:
    """The other variables of a dump, so that a synthetic one is complete; no estimator of leakage reads them.

    Attributes
    ----------
    token_id : (condition, sequence, token)
    trajectory : (condition, sequence, depth, hidden)
    residual_norm : (condition, sequence, depth, token)
    """

    token_id: NDArray[np.int64]
    trajectory: Array
    residual_norm: Array


def simulate_stream(
    design: Design, seed: int | np.random.SeedSequence = 0, *, hidden: int = 8, vocabulary: int = 1000
) -> Stream:
    """Draw tokens and a residual stream for the sequences of a design.

    Token 0 stands at position 0 and uniform tokens elsewhere, the same in every condition. The trajectory is a random
    walk of unit steps over depth that depends on the condition and not on the sequence: a closed system, as under a
    fixed first token. Norms are those of such a walk at position 0 and of independent ones elsewhere.

    Parameters
    ----------
    design : Design
    seed : int or numpy.random.SeedSequence
    hidden, vocabulary : int
        Width of the residual stream and number of tokens.

    Returns
    -------
    Stream
    """
    rng = np.random.default_rng(seed)
    n_conditions, n_sequences, depth = len(design.conditions), design.document.size, design.n_layers + 1
    token_id = rng.integers(1, vocabulary, size=(n_sequences, design.length))
    token_id[:, 0] = 0
    walk = rng.standard_normal((n_conditions, 1, depth, hidden)).cumsum(axis=2) / np.sqrt(hidden)
    trajectory = np.repeat(walk, n_sequences, axis=1)
    steps = rng.chisquare(hidden, size=(n_conditions, n_sequences, depth, design.length)) / hidden
    residual_norm = np.sqrt(steps.cumsum(axis=2))
    residual_norm[..., 0] = np.linalg.norm(trajectory, axis=-1)
    return Stream(np.repeat(token_id[None], n_conditions, axis=0), trajectory, residual_norm)


def explicit_logits(
    length: int,
    n_sequences: int,
    n_heads: int = 1,
    *,
    relative: ArrayLike | None = None,
    sink_column: ArrayLike = 0.0,
    query_drift: ArrayLike = 0.0,
    key_drift: ArrayLike = 0.0,
    noise: float = 0.0,
    tails: float | None = None,
    seed: int | np.random.SeedSequence = 0,
) -> Array:
    """Draw logits of every query and key: a relative profile, a sink column, drifts along either axis, iid noise.

    Parameters
    ----------
    length, n_sequences, n_heads : int
        Tokens per sequence, sequences and heads.
    relative : array_like, optional
        Logit as a function of the lag, broadcasts to (head, lag); ``-log(1 + lag) / 2`` by default.
    sink_column : array_like
        Added to the logit on key 0, broadcasts to (head, query).
    query_drift, key_drift : array_like
        Added along the queries and along the keys, broadcast to (head, position).
    noise : float
        Standard deviation of what differs from one logit to the next.
    tails : float, optional
        Degrees of freedom (above 2) of Student-t noise; Gaussian if omitted.
    seed : int or numpy.random.SeedSequence

    Returns
    -------
    array, (sequence, head, query, key)
        Keys after the query are 0; no query sees them.
    """
    rng = np.random.default_rng(seed)
    position = np.arange(length)
    profile = np.broadcast_to(-np.log1p(position) / 2 if relative is None else relative, (n_heads, length))
    mean = profile[:, np.abs(position[:, None] - position)]
    mean = mean + np.broadcast_to(query_drift, (n_heads, length))[:, :, None]
    mean = mean + np.broadcast_to(key_drift, (n_heads, length))[:, None, :]
    mean[:, :, 0] += sink_column
    own = Noise(logit=noise, tails=tails)
    content = Design(n_sequences, n_heads=n_heads, noise=own)
    return np.tril(mean + noise * _noise(rng, content, (length, length), autocorrelated=False)[0, :, 0])


def record_logits(
    logits: Mapping[str, ArrayLike],
    offsets: Sequence[int],
    document: Sequence[int] | None = None,
    *,
    window: int | None = None,
    visible_keys: ArrayLike | None = None,
    learned_sink: ArrayLike = -np.inf,
) -> Recorded:
    """Reduce explicit logits to the recorded quantities.

    Parameters
    ----------
    logits : mapping of str to array_like, (sequence, head, query, key) or (sequence, layer, head, query, key)
        The logits of each condition, all of one shape, with T queries and keys; a single layer without its axis.
    offsets : sequence of int
        Below T / 2.
    document : sequence of int, optional
        Document of each sequence; each its own by default.
    window : int, optional
        Sliding window: the number of keys a query sees at most.
    visible_keys : array_like of int, optional
        Number of keys each query sees, the run that ends at it, broadcasts to (layer, query) with T queries; what
        `window` shows by default.
    learned_sink : array_like
        Learned sink logits, broadcast to (layer, head); ``-inf`` for none.

    Returns
    -------
    Recorded

    Raises
    ------
    InputError
        If T is not divisible by 4.
    """
    s = np.stack([np.asarray(value, dtype=np.float64) for value in logits.values()])
    s = s[:, :, None] if s.ndim == 5 else s
    n_sequences, n_layers, n_heads, length = s.shape[1:5]
    n_queries = analysed_half(length)
    position = np.arange(length)
    shown = np.minimum(position + 1, window or length) if visible_keys is None else np.asarray(visible_keys)
    shown = np.broadcast_to(shown, (n_layers, length))
    key = position[:n_queries]
    lag = key[:, None] - key
    visible = (lag >= 0) & (lag < shown[:, :n_queries, None])
    ordinary = (visible & (key >= 1))[:, None]
    analysed = s[..., :n_queries, :n_queries]
    recorded = np.full((*s.shape[:4], n_queries, len(offsets)), np.nan)
    for o, d in enumerate(offsets):
        recorded[..., d:, o] = np.diagonal(np.where(ordinary, analysed, np.nan), -d, axis1=4, axis2=5)
    with np.errstate(divide="ignore"):  # query 0 has no ordinary key
        rest = logsumexp(np.where(ordinary, analysed, -np.inf), axis=-1)
    steady_logit, steady_log_sum, steady_square = _steady_state(s, shown)
    return Recorded(
        recorded,
        np.where(visible[:, None, :, 0], analysed[..., 0], np.nan),
        rest,
        steady_logit,
        steady_log_sum,
        steady_square,
        np.array(np.broadcast_to(np.asarray(learned_sink, dtype=np.float64), (n_layers, n_heads))),
        np.array(shown[:, :n_queries]),
        np.arange(n_sequences) if document is None else np.asarray(document),
        tuple(offsets),
        tuple(logits),
    )


def _steady_state(s: Array, shown: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """Logits, log-sums and squares of the steady state of logits (..., layer, head, query, key)."""
    length = s.shape[-1]
    r, lag = np.array(reference_queries(length)), np.arange(length // 2)
    seen = lag < shown[:, r, None]  # layer, reference query, lag
    logit = np.where(seen[:, None], s[..., r[:, None], r[:, None] - lag], np.nan)
    with np.errstate(invalid="ignore"):  # NaN from the first key on that a query does not see
        log_sum = np.logaddexp.accumulate(logit, axis=-1)
    most = np.minimum(shown[:, r], len(lag)) - 1
    whole = np.take_along_axis(log_sum, np.broadcast_to(most[:, None, :, None], (*log_sum.shape[:-1], 1)), axis=-1)

    def mean(values: Array) -> Array:
        count = seen.sum(axis=1)[:, None]
        total = np.where(seen[:, None], values, 0.0).sum(axis=-2)
        return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)

    return mean(logit), mean(log_sum), np.nanmean(mean((logit - whole) ** 2), axis=-1)
