"""From numbers to verdicts: what is claimed, by which criterion, and what follows (docs/method.md, section 9).

Everything here is fixed before any number is seen. A verdict is a function of the printed estimate, interval and rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posstats.errors import InputError
from posstats.vocabulary import BASELINE

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
INCONCLUSIVE = "inconclusive"
NOT_TESTABLE = "not testable here"
#: The removal at early queries that the abstract states.
CLAIMED_REMOVAL = 0.40
#: Part of a claim's own verdict, which its other parts decide.
WHOLE = "claim"
#: Claim -> part -> criterion.
CRITERIA = {
    "C1": {
        WHOLE: "attention tells absolute positions apart, rotary embeddings alone do not",
        "a": "leakage over all heads above 0",
        "b": "a shift of all position ids changes no recorded quantity beyond rounding",
    },
    "C2": {
        WHOLE: "the causal mask supplies one component",
        "a": "at layer 0, on iid tokens without BOS, the interval of the mask share contains 1",
        "b": "over all layers the pooled mask share is above 0",
    },
    "C3": {
        WHOLE: "the residual stream supplies the other component",
        "a": "residual magnitude at early queries above 0, layer 0 left out",
        "b": "no residual term under repeat",
    },
    "C4": {
        WHOLE: "position 0 runs as a closed dynamical system",
        "a": "the trajectory of position 0 departs from that of the same input alone by rounding only, at every depth",
    },
    "C5": {
        WHOLE: "downstream attention reads position 0 through sink-reading heads",
        "a": "there are sink-reading heads: mean attention on position 0 above 0.3, after BH over all heads",
        "b": "replacing the trajectory moves the residual terms of sink-reading heads more than those of the others, "
        "averaged over the depths of replacement",
    },
    "C6": {
        WHOLE: "NTK-aware scaling suppresses, a sliding window accumulates with depth, standard lies between",
        "a": "pooled residual share, NTK minus standard, below 0",
        "b": "slope of the residual magnitude at early queries on relative depth, window minus standard, above 0",
        "c": "pooled residual share, window minus standard, above 0: with (a), the order NTK < standard < window",
    },
    "C7": {
        WHOLE: "replacing BOS removes a part (the abstract: 40%) of the residual component at early queries",
        "a": "removal at early queries above 0, for every replacement",
    },
    "C8": {
        WHOLE: "sinks are token-anchored; the fingerprint is constant with BOS and varies without",
        "a": "with BOS at P, sink-reading heads attend to P more than to position 0, for every P",
        "b": "with BOS, trajectories of all sequences are the same to rounding, at every depth",
        "c": "without BOS, trajectories differ more between first tokens than within, at every depth from 1 on",
    },
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What an estimate is held against.

    >>> str(Rule("above", 0.0)), Rule.parse("at most 0.001")
    ('above 0', Rule(kind='at most', value=0.001))
    """

    #: "above", "below", "contains": the interval lies above or below the value, or contains it; "at least": its lower
    #: limit reaches the value; "at most": the estimate, a largest deviation without an interval, does not exceed it.
    kind: str
    value: float

    def __post_init__(self) -> None:
        if self.kind not in ("above", "below", "contains", "at least", "at most"):
            raise InputError(f"unknown kind of rule {self.kind!r}")

    def __str__(self) -> str:
        return f"{self.kind} {self.value:.12g}"

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Read a rule as it is printed."""
        kind, _, value = text.rpartition(" ")
        return cls(kind, float(value))


def verdict(estimate: float, low: float, high: float, rule: Rule) -> str:
    """Verdict of one part of a criterion: "supported" or "contradicted" if the interval decides, else "inconclusive".

    >>> verdict(0.3, 0.1, 0.5, Rule("above", 0.0)), verdict(-0.3, -0.5, -0.1, Rule("above", 0.0))
    ('supported', 'contradicted')
    >>> verdict(0.3, -0.1, 0.7, Rule("above", 0.0))
    'inconclusive'
    """
    value = rule.value
    if rule.kind == "at most":
        if np.isnan(estimate):
            return INCONCLUSIVE
        return SUPPORTED if estimate <= value else CONTRADICTED
    if np.isnan(low) or np.isnan(high):
        return INCONCLUSIVE
    holds, fails = {
        "above": (low > value, high < value),
        "below": (high < value, low > value),
        "contains": (low <= value <= high, not low <= value <= high),
        "at least": (low >= value, high < value),
    }[rule.kind]
    return SUPPORTED if holds else CONTRADICTED if fails else INCONCLUSIVE


def combined(verdicts: Sequence[str]) -> str:
    """Verdict of a claim from those of its parts, at least one.

    "contradicted" if a part is; else "not testable here" if a part is; "supported" if all are; else "inconclusive".

    >>> combined(["supported", "supported"]), combined(["supported", "not testable here", "contradicted"])
    ('supported', 'contradicted')
    """
    for found in (CONTRADICTED, NOT_TESTABLE):
        if found in verdicts:
            return found
    return SUPPORTED if set(verdicts) == {SUPPORTED} else INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one part of a criterion rests on, in one model."""

    #: Keys of :data:`CRITERIA`.
    claim: str
    part: str
    #: What is estimated.
    quantity: str
    unit: str = "1"
    #: Absent where it cannot be tested; `reason` then says what to add to the dump.
    rule: Rule | None = None
    condition: str = BASELINE
    #: NaN where there is none.
    estimate: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    #: Documents and training runs.
    n: int = 0
    runs: int = 1
    #: What is to be known beside the numbers.
    reason: str = ""

    @property
    def verdict(self) -> str:
        """Verdict of this part."""
        return NOT_TESTABLE if self.rule is None else verdict(self.estimate, self.low, self.high, self.rule)
