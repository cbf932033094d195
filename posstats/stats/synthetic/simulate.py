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


@dataclass(frozen=True, slots=True)
class Recorded:
    """The variables of a dump that the estimators read; names, dimensions and units are those of the dump schema."""

    #: (condition, sequence, layer, head, query, offset).
    logit: Array
    #: (condition, sequence, layer, head, query).
    sink_logit: Array
    log_denominator_rest: Array
    #: (condition, sequence, layer, head, lag).
    logit_sum_by_lag: Array
    #: (layer, head).
    learned_sink: Array
    #: (layer, query).
    visible_keys: NDArray[np.int64]
    #: (sequence,).
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
        if gaussian or noise.tails is None:
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


def _sum_variance(count: NDArray[np.int64], autocorrelation: float) -> Array:
    """Variance of the sum of ``count`` successive values of a unit AR(1) process."""
    lags = np.arange(1, max(int(count.max()), 1))
    pairs = np.maximum(count[..., None] - lags, 0) * autocorrelation**lags
    return count + 2 * pairs.sum(axis=-1)


def simulate_terms(design: Design, seed: int | np.random.SeedSequence = 0) -> Recorded:
    """Draw the recorded quantities of a data set whose terms have prescribed means.

    The logit and the log denominator without key 0 are Gaussian or Student-t around their means; ``-log(1 - A0)`` is
    log-normal around its mean, which keeps the attention on position 0 within (0, 1). The logit sums of recorded
    offsets are the sums of the drawn logits; those of all other lags are drawn with the variance such sums have. Give
    each of many data sets one child of ``SeedSequence(seed).spawn(n)`` as its seed.

    >>> data = simulate_terms(Design(n_documents=8, length=32), seed=1)
    >>> data.logit.shape  # condition, sequence, layer, head, query, offset
    (1, 8, 1, 4, 32, 5)
    """
    rng = np.random.default_rng(seed)
    noise, offsets, length = design.noise, list(design.offsets), design.length
    populations = [Population.of(design, effects) for effects in design.conditions.values()]

    def mean(name: str) -> Array:
        return np.stack([getattr(population, name) for population in populations])[:, None]

    zero_seen = design.visible_keys[:, None] == np.arange(1, length + 1)
    logit = mean("logit") + noise.logit * _noise(rng, design, (length, len(offsets)))
    shift = noise.denominator * _noise(rng, design, (length,)) - mean("denominator_drift")
    shift[..., 0] = 0.0  # the first query has no ordinary key, hence no content
    rest = mean("log_rest_reference") + shift

    gain = np.exp(noise.sink * _noise(rng, design, (length,), gaussian=True) - noise.sink**2 / 2)
    sink_logit = np.full(rest.shape, np.nan)
    sink_logit[..., 0] = mean("relative")[..., 0]
    excess = (mean("excess") * gain)[..., 1:]
    # A0 / (1 - A0) = expm1(excess), written so that a large excess does not overflow.
    odds = excess + np.log(-np.expm1(-excess), where=excess > 0, out=np.full(excess.shape, np.nan))
    sink_logit[..., 1:] = np.where(zero_seen[..., 1:], rest[..., 1:] + odds, np.nan)

    lag = np.arange(length)
    count = (design.visible_keys[:, :, None] > lag) & (lag[:, None] > lag)
    count_by_lag = count.sum(axis=1)[:, None]
    spread = noise.logit * np.sqrt(_sum_variance(count_by_lag, noise.autocorrelation))
    sums = mean("reference") * count_by_lag + spread * _noise(rng, design, (length,), autocorrelated=False)
    sums[..., offsets] = np.nansum(logit, axis=4)

    return Recorded(
        logit,
        sink_logit,
        rest,
        sums,
        np.array(np.broadcast_to(np.asarray(design.learned_sink, np.float64), (design.n_layers, design.n_heads))),
        design.visible_keys,
        design.document,
        tuple(offsets),
        tuple(design.conditions),
    )


@dataclass(frozen=True, slots=True)
class Stream:
    """The other variables of a dump, so that a synthetic one is complete; no estimator of leakage reads them."""

    #: (condition, sequence, query).
    token_id: NDArray[np.int64]
    #: (condition, sequence, depth, hidden).
    trajectory: Array
    #: (condition, sequence, depth, query).
    residual_norm: Array


def simulate_stream(
    design: Design, seed: int | np.random.SeedSequence = 0, *, hidden: int = 8, vocabulary: int = 1000
) -> Stream:
    """Draw tokens, of `vocabulary`, and a residual stream, `hidden` wide, for the sequences of a design.

    Token 0 stands at position 0 and uniform tokens elsewhere, the same in every condition. The trajectory is a random
    walk of unit steps over depth that depends on the condition and not on the sequence: a closed system, as under a
    fixed first token. Norms are those of such a walk at position 0 and of independent ones elsewhere.
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

    (sequence, head, query, key); keys after the query are 0, no query sees them. `relative`, which broadcasts to
    (head, lag), is ``-log(1 + lag) / 2`` by default; `sink_column`, (head, query), is added on key 0; drifts, (head,
    position), along the queries and along the keys. `noise` is the standard deviation of what differs from one logit
    to the next, Student-t with `tails` (above 2) degrees of freedom, or Gaussian.
    """
    rng = np.random.default_rng(seed)
    position = np.arange(length)
    profile = np.broadcast_to(-np.log1p(position) / 2 if relative is None else relative, (n_heads, length))
    mean = profile[:, np.abs(position[:, None] - position)]
    mean = mean + np.broadcast_to(query_drift, (n_heads, length))[:, :, None]
    mean = mean + np.broadcast_to(key_drift, (n_heads, length))[:, None, :]
    mean[:, :, 0] += sink_column
    own = Noise(logit=noise, tails=tails)
    content = Design(n_sequences, length=length, n_heads=n_heads, offsets=(0,), noise=own)
    return np.tril(mean + noise * _noise(rng, content, (length, length), autocorrelated=False)[0, :, 0])


def record_logits(
    logits: Mapping[str, ArrayLike],
    offsets: Sequence[int],
    document: Sequence[int] | None = None,
    window: int | None = None,
) -> Recorded:
    """Reduce explicit logits, condition -> (sequence, head, query, key), to the recorded quantities of a single layer.

    `document`, (sequence,), gives each sequence one of its own by default; in a sliding `window` a query sees at most
    so many keys.
    """
    s = np.stack([np.asarray(value, dtype=np.float64) for value in logits.values()])[:, :, None]
    n_sequences, n_heads, length = s.shape[1], s.shape[3], s.shape[4]
    position = np.arange(length)
    visible = (position <= position[:, None]) & (position > position[:, None] - (window or length))
    ordinary = visible & (position >= 1)
    with_nan = np.where(ordinary, s, np.nan)
    diagonals = [np.diagonal(with_nan, -d, axis1=4, axis2=5) for d in range(length)]
    recorded = np.full((*s.shape[:5], len(offsets)), np.nan)
    for o, d in enumerate(offsets):
        recorded[..., d:, o] = diagonals[d]
    return Recorded(
        recorded,
        np.where(visible[:, 0], s[..., 0], np.nan),
        logsumexp(np.where(ordinary, s, -np.inf), axis=-1),
        np.stack([np.nansum(diagonal, axis=-1) for diagonal in diagonals], axis=-1),
        np.full((1, n_heads), -np.inf),
        visible.sum(axis=1)[None],
        np.arange(n_sequences) if document is None else np.asarray(document),
        tuple(offsets),
        tuple(logits),
    )
