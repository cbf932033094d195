"""From numbers to verdicts: what is claimed, by which criterion, and what follows (docs/method.md, section 9).

Everything here is fixed before any number is seen. A verdict is a function of the printed numbers and the rule.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from posstats.errors import InputError
from posstats.vocabulary import BASELINE

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
MIXED = "mixed"
INCONCLUSIVE = "inconclusive"
NOT_TESTABLE = "not testable here"
#: Model minus its untrained twins: beyond 0 in the claim's direction, not decided, beyond 0 in the other direction.
SPECIFIC, NOT_SPECIFIC, OPPOSITE = "specific", "not specific", "opposite"
#: The removal at early queries that the abstract states.
CLAIMED_REMOVAL = 0.40
#: A mask share of 1 is one within this margin.
SHARE_MARGIN = (0.95, 1.05)
#: Part of a claim's own verdict, which its other parts decide.
WHOLE = "claim"
#: Claims that hold of every causal decoder, trained or not: of training they say nothing.
ANY_DECODER = frozenset({"C1", "C2", "C4"})
#: Claim -> part -> criterion.
CRITERIA = {
    "C1": {
        WHOLE: "attention distinguishes absolute positions, rotary embeddings alone do not",
        "a": "leakage over all heads above 0",
        "b": "control in float64: a shift of all position ids changes log attention by rounding only",
    },
    "C2": {
        WHOLE: "the causal mask supplies one component",
        "a": "at layer 0, on iid tokens without BOS, the mask share lies within 0.95 to 1.05 in both orders",
        "b": "over all layers the pooled mask size is above 0",
    },
    "C3": {
        WHOLE: "the residual stream supplies the other component",
        "a": "residual size above 0, layer 0 left out, and specific",
        "b": "control in float64: no residual term under repeat",
    },
    "C4": {
        WHOLE: "position 0 runs as a closed dynamical system",
        "a": "in float64 the trajectory of position 0 departs from that of the same input alone by rounding only, at "
        "every depth",
    },
    "C5": {
        WHOLE: "downstream attention reads position 0 through sink-reading heads",
        "a": "there are heads with a mean attention on position 0 above 0.3: one-sided tests, closed over all heads",
        "b": "replacing the trajectory by dealt tokens moves the residual terms of sink-reading heads more than those "
        "of the others, averaged over the depths of replacement, and specific",
    },
    "C6": {
        WHOLE: "NTK-aware scaling suppresses, a sliding window accumulates with depth, standard lies between",
        "a": "pooled residual share, NTK minus standard, below 0",
        "b": "pooled residual size, NTK minus standard, below 0",
        "c": "pooled residual share, window minus standard, above 0",
        "d": "slope of the residual magnitude at early queries on relative depth, window minus standard, above 0",
        "e": "under a window W, at the queries [W, 2W): slope of the residual magnitude on depth above 0",
    },
    "C7": {
        WHOLE: "replacing BOS removes a part (the abstract: 40%) of the residual component at early queries",
        "a": "removal at early queries above 0, for every replacement, and the amount removed specific",
    },
    "C8": {
        WHOLE: "attention sinks are anchored to tokens",
        "a": "with BOS at P, heads that read position 0 attend to P more than to position 0, for every P",
        "b": "tokens that hold sinks at other keys hold them more often than other tokens at the same positions",
    },
    "C9": {
        WHOLE: "the fingerprint of position 0 is constant with BOS, varies with the first token without, and is read",
        "a": "control: with BOS, trajectories of all sequences are the same to rounding, at every depth",
        "b": "without BOS, trajectories differ more between first tokens than within, at every depth from 1 on",
        "c": "the first token is identified from what later heads pass on, better than by chance",
    },
}
_RULE = re.compile(r"(above|below|at least|at most|within) ([^ ,]+)(?: to ([^ ,]+))?(, and specific)?")


@dataclass(frozen=True, slots=True)
class Rule:
    """What an estimate is held against.

    >>> str(Rule("above", 0.0, specific=True)), Rule.parse("within 0.95 to 1.05").upper
    ('above 0, and specific', 1.05)
    """

    #: "above", "below": the interval lies above or below the value; "at least": its lower limit reaches the value;
    #: "within": it lies within the margin from `value` to `upper`; "at most": a control, a largest deviation without an
    #: interval, does not exceed it.
    kind: str
    value: float
    upper: float | None = None
    #: Whether the difference from the untrained twins must exclude 0 in the same direction.
    specific: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("above", "below", "at least", "at most", "within"):
            raise InputError(f"unknown kind of rule {self.kind!r}")

    def __str__(self) -> str:
        to = "" if self.upper is None else f" to {self.upper:.12g}"
        return f"{self.kind} {self.value:.12g}{to}" + (", and specific" if self.specific else "")

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Read a rule as it is printed."""
        if not (parts := _RULE.fullmatch(text)):
            raise InputError(f"unknown kind of rule {text!r}")
        kind, value, upper, specific = parts.groups()
        return cls(kind, float(value), None if upper is None else float(upper), specific is not None)

    @property
    def is_control(self) -> bool:
        """Whether this is a control, which decides nothing where a claim has other parts."""
        return self.kind == "at most"


def verdict(
    estimate: float, low: float, high: float, rule: Rule, *, q: float = float("nan"), level: float = 0.95,
    specific: str = "",
) -> str:  # fmt: skip
    """Verdict of one part of a criterion: interval, adjusted test and, where the rule asks for it, the twins together.

    A failed control makes the recording suspect and is inconclusive: it contradicts no claim.

    >>> verdict(0.3, 0.1, 0.5, Rule("above", 0.0)), verdict(0.3, 0.1, 0.5, Rule("above", 0.0), q=0.08)
    ('supported', 'inconclusive')
    >>> verdict(1.0, 0.97, 1.02, Rule("within", 0.95, 1.05)), verdict(1.2, 1.1, 1.3, Rule("within", 0.95, 1.05))
    ('supported', 'contradicted')
    """
    value = rule.value
    if rule.is_control:
        return SUPPORTED if estimate <= value else INCONCLUSIVE
    if np.isnan(low) or np.isnan(high):
        return INCONCLUSIVE
    # The p-value of a count is that of "there is none": that there is none is for its limits to say.
    tested = not q >= 1 - level - 1e-12
    upper = value if rule.upper is None else rule.upper
    holds, fails = {
        "above": (low > value, high < value),
        "below": (high < value, low > value),
        "at least": (low >= value, high < value),
        "within": (value <= low and high <= upper, high < value or low > upper),
    }[rule.kind]
    if not tested and not (rule.kind == "at least" and fails):
        return INCONCLUSIVE
    if holds and rule.specific:
        return {SPECIFIC: SUPPORTED, OPPOSITE: CONTRADICTED, NOT_SPECIFIC: INCONCLUSIVE}.get(specific, NOT_TESTABLE)
    return SUPPORTED if holds else CONTRADICTED if fails else INCONCLUSIVE


def combined(parts: Iterable[tuple[str, bool]]) -> str:
    """Verdict of a claim from those of its parts: (verdict, whether the part is a control).

    Controls count only where a claim has no other part. "supported" or "contradicted" if all decided parts are,
    "mixed" if both occur; without a decided part "inconclusive", or "not testable here" if no part can be tested.

    >>> combined([("supported", False), ("inconclusive", False)]), combined([("supported", True), ("mixed", False)])
    ('supported', 'inconclusive')
    >>> combined([("supported", False), ("contradicted", False)])
    'mixed'
    """
    parts = list(parts)
    counted = {found for found, control in parts if not control} or {found for found, _ in parts}
    decided = counted & {SUPPORTED, CONTRADICTED}
    if len(decided) == 2:
        return MIXED
    if decided:
        return decided.pop()
    return NOT_TESTABLE if counted == {NOT_TESTABLE} else INCONCLUSIVE


def combined_specific(parts: Sequence[str]) -> str:
    """Whether a claim is specific: every part that was compared with untrained twins is; empty where none was."""
    compared = {one for one in parts if one}
    return "" if not compared else SPECIFIC if compared == {SPECIFIC} else NOT_SPECIFIC


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
    #: What is compared with untrained twins, and its standard error: the estimate unless that is a ratio; NaN where
    #: nothing is.
    size: float = float("nan")
    size_se: float = float("nan")
