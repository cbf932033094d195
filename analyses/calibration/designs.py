"""The synthetic data sets of the study: sizes, noise, what is true, and what the estimators see of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from posstats.stats.pair_products.components import LayerField, analysed_queries
from posstats.stats.pair_products.terms import Array
from posstats.stats.synthetic.design import Design, Effects, Noise, Population
from posstats.stats.synthetic.simulate import Recorded

LENGTH = 64
ANALYSED = LENGTH // 2
OFFSETS = np.array([0, 1, 2, 4])
QUERIES = analysed_queries(ANALYSED, OFFSETS)
#: Strength of the residual-stream terms in the two heads. Their standard errors, relative to the estimates, are then
#: those of a middling and of a weak head of a small language model.
STRENGTH = np.array([[4.0], [2.0]])
REMOVED = 0.4


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the noise is like, and how many sequences the documents have (repeated over the documents).

    `strength` multiplies the residual-stream terms; where log attention is `flat` they cancel each other and the mask.
    """

    noise: Noise
    sequences: tuple[int, ...] = (1,)
    strength: float = 1.0
    flat: bool = False

    def per_document(self, n_documents: int) -> list[int]:
        """Sequences of each document."""
        return [self.sequences[g % len(self.sequences)] for g in range(n_documents)]


#: A part of the noise differs between conditions, or paired contrasts would be almost free of noise.
_PLAIN = Noise(condition=0.3)
_SHARED = Noise(document=0.4, condition=0.3)
SCENARIOS = {
    "default": Scenario(_PLAIN),
    "weak": Scenario(_PLAIN, strength=0.5),
    "none": Scenario(_PLAIN, strength=0.0),
    "flat": Scenario(_PLAIN, flat=True),
    "heavy tails": Scenario(Noise(tails=3, autocorrelation=0.6, condition=0.3)),
    "skewed": Scenario(Noise(skewed=True, autocorrelation=0.6, condition=0.3)),
    "two levels": Scenario(_SHARED, sequences=(1, 2, 3, 4)),
    "one large": Scenario(_SHARED, sequences=(12, *[1] * 23)),
    "very unequal": Scenario(_SHARED, sequences=(40, 20, 13, 10, 8, 7, 6, 5, 4, 3, 2, 1)),
}


def residual_effects(scale: float = 1.0, *, sink: float = 1.0) -> Effects:
    """All three residual-stream terms decay with the query's position; `sink` = 0 takes one of them away."""
    decay = scale * STRENGTH / np.sqrt((np.arange(ANALYSED) + 2) / 2)
    return Effects(query_drift=1.6 * decay, sink=-0.5 * sink * decay, denominator_drift=-0.3 * decay)


def design(scenario: str, n_documents: int, conditions: dict[str, Effects], **changes: object) -> Design:
    chosen = SCENARIOS[scenario]
    plain = Design(
        n_documents,
        chosen.per_document(n_documents),
        length=LENGTH,
        n_layers=1,
        n_heads=len(STRENGTH),
        offsets=tuple(OFFSETS),
        conditions=conditions,
        noise=chosen.noise,
    )
    return replace(plain, **changes) if changes else plain


@cache
def signal_design(scenario: str, n_documents: int) -> Design:
    """Leakage of the mask and of the residual stream; a second condition removes a part of the latter."""
    chosen = SCENARIOS[scenario]
    before, after = (
        replace(residual_effects(scale * chosen.strength), flat=chosen.flat) for scale in (1.0, np.sqrt(1 - REMOVED))
    )
    return design(scenario, n_documents, {"baseline": before, "changed": after})


@cache
def null_design(scenario: str, n_documents: int) -> Design:
    """Leakage, but the sink term is 0 on average and the second condition changes nothing on average."""
    effects = residual_effects(sink=0.0)
    return design(scenario, n_documents, {"baseline": effects, "changed": effects})


def flat_effects() -> Effects:
    """Terms that depend on position and cancel: no absolute position in log attention."""
    return replace(residual_effects(), flat=True)


@cache
def flat_design(scenario: str, n_documents: int) -> Design:
    return design(scenario, n_documents, {"baseline": flat_effects()})


@cache
def family_design(n_documents: int, n_heads: int) -> Design:
    """Many short heads without absolute position."""
    noise = SCENARIOS["default"].noise
    conditions = {"baseline": Effects(flat=True)}
    return Design(
        n_documents, length=32, n_layers=1, n_heads=n_heads, offsets=(0, 1), conditions=conditions, noise=noise
    )


def shape(name: str) -> Array:
    """Mean log attention as a function of the analysed query, with mean 0 and root mean square 1; 0 elsewhere."""
    x = np.log2(QUERIES + 1.0)
    middle, width = x.mean(), (x[-1] - x[0]) / 8
    curve = {
        "trend": x,
        "bump": np.exp(-(((x - middle) / width) ** 2)),
        "early": np.exp(-(QUERIES - QUERIES[0]) / 2.0),
    }[name]
    full = np.zeros(ANALYSED)
    full[QUERIES] = (curve - curve.mean()) / curve.std()
    return full


@cache
def shaped_design(name: str, size: float, n_documents: int) -> Design:
    """Log attention of a given shape whose root mean square over the analysed queries is `size` nats."""
    start = design("default", n_documents, {"baseline": flat_effects()})
    flat = Population.of(start, start.conditions["baseline"]).denominator_drift[0]
    effects = replace(residual_effects(), denominator_drift=flat + size * shape(name))
    return replace(start, conditions={"baseline": effects})


def layer_fields(recorded: Recorded) -> Iterator[LayerField]:
    """The only layer of each condition, as the estimators take it."""
    names = ("logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum")
    for condition in range(len(recorded.conditions)):
        yield LayerField.of(
            {name: getattr(recorded, name)[condition, :, 0] for name in names},
            recorded.document,
            recorded.visible_keys[0],
            recorded.learned_sink[0],
            np.array(recorded.offsets),
        )


def log_attention(recorded: Recorded, queries: NDArray[np.int64]) -> Array:
    """Log attention at baseline, (sequence, head, query, offset)."""
    sink, rest = (one[0, :, 0][..., queries] for one in (recorded.sink_logit, recorded.log_denominator_rest))
    return recorded.logit[0, :, 0][:, :, queries] - np.logaddexp(rest, sink)[..., None]


def decoding_features(recorded: Recorded) -> tuple[Array, Array]:
    """Denominators, and sink and offset logits, of the heads at baseline: (sequence, query, feature) each."""
    sink, rest = recorded.sink_logit[0, :, 0], recorded.log_denominator_rest[0, :, 0]
    logit = np.moveaxis(recorded.logit[0, :, 0], 1, -1)  # (sequence, query, offset, head)
    residual = np.concatenate([np.moveaxis(sink, 1, -1), logit.reshape(*logit.shape[:2], -1)], axis=-1)
    return np.moveaxis(np.logaddexp(rest, sink), 1, -1)[:, QUERIES], residual[:, QUERIES]
