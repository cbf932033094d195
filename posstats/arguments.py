"""Checks of arguments, one for each kind of value.

A check returns the value in its plain type, or raises :class:`posstats.errors.InputError` that names what is allowed.
"""

import math
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from posstats.errors import InputError

_PLAIN = (str, bytes, int, float, complex, list, tuple, set, frozenset, dict, range, type(None))


def shown(value: object) -> str:
    """Return a value as a message shows it: short, and by its type where it is large."""
    name = type(value).__name__
    if isinstance(value, _PLAIN) or name.startswith(("int", "uint", "float", "bool", "str")):
        try:
            return reprlib.repr(value)
        except ValueError:
            return "a number of more digits than Python prints"
    return f"an object of type {name}"


def choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return the value if it is one of the texts allowed."""
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {shown(value)}.")
    return str(value)


def flag(name: str, value: object) -> bool:
    """Return the value if it is True or False, of Python or of numpy."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise InputError(f"{name} must be True or False, not {shown(value)}.")
    return bool(value)


def text(name: str, value: object) -> str:
    """Return the value if it is text."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, not {shown(value)}.")
    return str(value)


def file_name(name: str, value: object) -> str:
    """Return the value if it is text that can name a file of any folder."""
    checked = text(name, value)
    if checked in ("", ".", "..") or set("/\\\0") & set(checked):
        raise InputError(f"{name} must be the name of a file, without a folder or an ending, not {shown(value)}.")
    return checked


def path_of(name: str, value: object) -> Path:
    """Return the value as a path if it is text or a path."""
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise InputError(f"{name} must be a path, as text or pathlib.Path, not {shown(value)}.")
    return Path(value)


def whole_number(name: str, value: object, least: int = 0, most: int | None = None) -> int:
    """Return the value if it is a whole number from `least` to `most`; True is none."""
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else least - 1
    if whole < least or (most is not None and whole > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {allowed}, not {shown(value)}.")
    return whole


def number(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    """Return the value if it is a finite number from `least` to `most`."""
    real = _real(value)
    if not (math.isfinite(real) and least <= real <= most):
        bounds = [f"at least {least:g}"] * math.isfinite(least) + [f"at most {most:g}"] * math.isfinite(most)
        allowed = f"number of {' and '.join(bounds)}" if bounds else "finite number"
        raise InputError(f"{name} must be a {allowed}, not {shown(value)}.")
    return real


def fraction(name: str, value: object) -> float:
    """Return the value if it is a number between 0 and 1, neither of them."""
    real = _real(value)
    if not 0 < real < 1:
        raise InputError(f"{name} must lie between 0 and 1, not {shown(value)}.")
    return real


def items(name: str, value: object, kind: str) -> list[Any]:
    """Return the entries of a sequence, at least one; a single text or number is a sequence of one.

    Parameters
    ----------
    name : str
        What an error calls the argument.
    value : object
        The argument.
    kind : {"text", "whole numbers"}
        What the entries must be.

    Returns
    -------
    list
    """
    entries = value.tolist() if hasattr(value, "tolist") else value
    is_kind = _is_whole if kind == "whole numbers" else _is_text
    if is_kind(entries):
        entries = [entries]
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise InputError(f"{name} must be a sequence of {kind}, not {shown(value)}.")
    chosen = list(entries)
    for entry in chosen:
        if not is_kind(entry):
            raise InputError(f"{name} must be a sequence of {kind}, and holds {shown(entry)}.")
    if not chosen:
        raise InputError(f"{name} must hold at least one entry, and is empty.")
    return [str(entry) if kind == "text" else int(entry) for entry in chosen]


def labels(name: str, value: object, there: Sequence[Any], kind: str) -> list[Any]:
    """Return the chosen ones of the labels that are there, in the order chosen; all of them where `value` is None.

    Parameters
    ----------
    name : str
        What an error calls the argument.
    value : object
        The argument.
    there : sequence
        The labels that are there.
    kind : {"text", "whole numbers"}
        What they are.

    Returns
    -------
    list
    """
    if value is None:
        return list(there)
    chosen = items(name, value, kind)
    allowed = ", ".join(map(str, there))
    if absent := [entry for entry in chosen if entry not in there]:
        raise InputError(f"{name} must be chosen from {allowed}; there is no {', '.join(map(str, absent))}.")
    if repeated := sorted({entry for entry in chosen if chosen.count(entry) > 1}):
        twice = ", ".join(map(str, repeated))
        raise InputError(f"{name} has {twice} more than once; each of {allowed} can be given once.")
    return chosen


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _real(value: object) -> float:
    """A real number as float; NaN for anything else, so that no bound holds."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def seed_of(value: object) -> int:
    """Return the value if it is a seed that a dump can hold: a whole number from 0 to 2**64 - 1."""
    return whole_number("seed", value, 0, 2**64 - 1)


def several(name: str, value: object, kind: str) -> list[Any]:
    """Return the entries of an iterable, which may have none and may be of any type; a text is no iterable here."""
    entries = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise InputError(f"{name} must be a sequence of {kind}, not {shown(value)}.")
    return list(entries)


def file_path(name: str, value: object, *, folder: bool = False) -> Path:
    """Return the value as a path if a file can have that name; that of a folder only where `folder` says so."""
    path = path_of(name, value)
    try:
        os.fsencode(path)
        taken = path.is_dir()
    except PermissionError:  # so will be the use of the path, and can say what for
        taken = False
    except (ValueError, OSError) as error:  # what no name can have in it, or too long a name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} {shown(value)} is not a name that a file can have: {reason}.") from error
    if not folder and (taken or not path.name):
        raise InputError(f"{name} {path} is a folder; give the name of a file, such as {path / 'mine.h5'}.")
    return path


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of a leading ~, so far as there is such a user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # the name then leads to no file either
        return Path(path)
