"""How conditions and positions are asked for, read without a model and without torch (docs/method.md, section 6)."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from posstats.arguments import several, shown, whole_number
from posstats.errors import InputError
from posstats.vocabulary import BASELINE, CONDITIONS, analysed_half

#: Conditions spelled without a number: spelling -> kind.
_PLAIN = {
    BASELINE: "baseline",
    "bos=zero": "zero",
    "bos=mean": "mean",
    "bos=gaussian": "gaussian",
    "bos=none": "none",
    "repeat": "repeat",
}
#: What stands behind "trajectory=" -> kind.
_SUBSTITUTES = {"token": "trajectory", "tokens": "trajectories"}
#: Fewest tokens that are dealt.
_DEALT = 2
#: Conditions spelled with one number: kind, what precedes the number, the smallest one.
_NUMBERED = (("token", "bos=token:", 0), ("tokens", "bos=tokens:", _DEALT), ("at", "bos@", 1), ("shift", "shift=", 1))
#: Whole numbers in spellings: far larger ones than any model has a use for would not fit where they are kept.
_WHOLE = r"0*(\d{1,9})"
_TRAJECTORY = re.compile(rf"trajectory=(tokens?):{_WHOLE}@{_WHOLE}(?:/{_WHOLE})?", flags=re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """An intervention on the input."""

    #: Its spelling, and once its depth is absolute its label along the ``condition`` dimension.
    name: str
    #: What is done: ``baseline``, ``zero``, ``mean``, ``gaussian``, ``token``, ``tokens``, ``none``, ``at``,
    #: ``trajectory`` (of a token), ``trajectories`` (of dealt tokens), ``shift`` or ``repeat``.
    kind: str
    #: The token id of ``token`` and ``trajectory``, the number of ``tokens`` and ``trajectories``, the position of
    #: ``at``, the shift of ``shift``; 0 elsewhere.
    value: int = 0
    #: The block of ``trajectory`` and ``trajectories``; 0 elsewhere.
    depth: int = 0
    #: Of these two, where the depth was given as a fraction of the model's blocks: which one. `depth` is 0 until
    #: :func:`at_depth` has worked it out.
    fraction: Fraction | None = None


def parse_condition(text: str) -> Condition:
    """Read the spelling of a condition: one of :data:`posstats.vocabulary.CONDITIONS`, numbers in place of capitals.

    Its name is the canonical spelling. Raises InputError if there is no such condition.

    >>> parse_condition("bos=token:5")
    Condition(name='bos=token:5', kind='token', value=5, depth=0, fraction=None)
    >>> parse_condition("shift=064").name
    'shift=64'
    >>> parse_condition("trajectory=token:5@2/6").name
    'trajectory=token:5@1/3'
    """
    if not isinstance(text, str):
        raise InputError(f"a condition must be text such as {BASELINE!r} or 'bos=mean', not {shown(text)}")
    spelling = text.strip()
    if spelling in _PLAIN:
        return Condition(spelling, _PLAIN[spelling])
    for kind, prefix, lowest in _NUMBERED:
        match = re.fullmatch(re.escape(prefix) + _WHOLE, spelling, flags=re.ASCII)
        if match and int(match[1]) >= lowest:
            return Condition(f"{prefix}{int(match[1])}", kind, int(match[1]))
    if match := _TRAJECTORY.fullmatch(spelling):
        kind, value, above, below = _SUBSTITUTES[match[1]], int(match[2]), int(match[3]), match[4]
        if kind == "trajectory" or value >= _DEALT:
            if below is None:
                return _trajectory(kind, value, above)
            if above < int(below):
                return _trajectory(kind, value, Fraction(above, int(below)))
    spellings = {re.sub("[A-Z]+", "", name): name for name in CONDITIONS}  # without their numbers
    near = difflib.get_close_matches(re.sub(r"\d+", "", spelling), spellings, n=1)
    meant = f" (did you mean {spellings[near[0]]}?)" if near else ""
    raise InputError(
        f"there is no condition {text!r}{meant}; the conditions are {', '.join(CONDITIONS)}, with whole numbers of at "
        "most 9 digits in place of ID and L (0 or more), P and K (1 or more, 2 or more in tokens:K); L may also be "
        "a fraction below 1 of the model's blocks, such as 1/3"
    )


def parse_conditions(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Read several conditions, in the order of the ``condition`` dimension.

    Raises InputError if there is none, one is unknown, or one is given twice.
    """
    given = [texts] if isinstance(texts, str) else several("conditions", texts, "text")
    conditions = tuple(parse_condition(text) for text in given)
    names = [condition.name for condition in conditions]
    if not names:
        raise InputError("give at least one condition, for example 'baseline'")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"each condition can be given once; given twice: {', '.join(twice)}")
    return conditions


def at_depth(conditions: Iterable[Condition], blocks: int) -> tuple[Condition, ...]:
    """Turn depths that are fractions of a model's blocks into blocks, in the names too.

    The block is the nearest one to ``fraction * blocks``, of two equally near ones the even one, and at most the last.
    A fraction that comes to the depth of another one that was given is left out, so that every condition is there once.

    >>> depths = parse_conditions(f"trajectory=token:5@{depth}" for depth in ("1/6", "1/3", "2/3"))
    >>> [condition.depth for condition in at_depth(depths, blocks=30)]
    [5, 10, 20]
    >>> [condition.name for condition in at_depth(depths, blocks=4)]
    ['trajectory=token:5@1', 'trajectory=token:5@3']
    """
    found = (
        one if one.fraction is None else _trajectory(one.kind, one.value, min(round(one.fraction * blocks), blocks - 1))
        for one in conditions
    )
    return tuple({one.name: one for one in found}.values())


def check_positions(what: str, values: Iterable[int], length: int | None = None) -> tuple[int, ...]:
    """Distinct offsets within the analysed half of a sequence, or positions of a sequence, ascending.

    `what` is "offset" or "probe"; `length` counts the tokens of a sequence, where they are known. Raises InputError if
    a value is no whole number, out of range, or given twice, or the length is not a multiple of 4.

    >>> check_positions("offset", [4, 0, 1], length=24)
    (0, 1, 4)
    """
    size = 2**31 if length is None else analysed_half(length) if what == "offset" else length
    chosen = sorted(whole_number(what, value, 0, size - 1) for value in several(f"{what}s", values, "whole numbers"))
    if len(set(chosen)) < len(chosen):
        raise InputError(f"each {what} can be given once, not {', '.join(map(str, chosen))}")
    return tuple(chosen)


def _trajectory(kind: str, value: int, at: int | Fraction) -> Condition:
    spelled = next(what for what, substitute in _SUBSTITUTES.items() if substitute == kind)
    name, part = f"trajectory={spelled}:{value}@{at}", at if isinstance(at, Fraction) else None
    return Condition(name, kind, value, 0 if isinstance(at, Fraction) else at, part)
