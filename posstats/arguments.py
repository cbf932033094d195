"""Checks of arguments: each returns the value in its plain type, or raises an error that says what is allowed."""

import math
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posstats.errors import InputError

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def shown(value: Any) -> str:
    """A value as messages show it: short, on one line, whatever it is.

    Examples
    --------
    >>> shown("text"), shown(list(range(100)))
    ("'text'", '[0, 1, 2, 3, 4, 5, ...]')
    """
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception:  # a number of more digits than Python prints, or a representation that fails
        return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__} that cannot be shown"


def plain(value: Any) -> Any:
    """A scalar of numpy, or of an array without dims, as Python's own; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number within limits.

    Parameters
    ----------
    name : str
        What an error calls it.
    value
        The argument. True and False are no numbers, and 4.0 is no whole one.
    least, most : int, optional
        Limits, both allowed.

    Returns
    -------
    int

    Raises
    ------
    InputError
        If it is anything else.

    Examples
    --------
    >>> whole("n", 3, least=1)
    3
    """
    number = plain(value)
    low, high = "" if least is None else f"at least {least}", "" if most is None else f"at most {most}"
    if isinstance(number, bool) or not isinstance(number, int):
        limits = " and ".join(limit for limit in (low, high) if limit)
        raise InputError(f"{name} must be a whole number{' of ' * bool(limits)}{limits}, not {shown(value)}")
    if least is not None and number < least:
        raise InputError(f"{name} must be {low}, not {shown(number)}")
    if most is not None and number > most:
        raise InputError(f"{name} must be {high}, not {shown(number)}")
    return number


def seed(name: str, value: Any) -> int:
    """A seed: a whole number that a dump can hold, 0 to 2**64 - 1."""
    return whole(name, value, 0, 2**64 - 1)


def number(name: str, value: Any, above: float) -> float:
    """A finite number above a limit; raises an InputError for anything else."""
    given = plain(value)
    try:
        if not isinstance(given, bool) and isinstance(given, int | float) and above < given < math.inf:
            return float(given)
    except OverflowError:  # a whole number beyond all floating-point numbers
        pass
    raise InputError(f"{name} must be above {above:g} and finite, not {shown(given)}")


def flag(name: str, value: Any) -> bool:
    """True or False; raises an InputError for anything else."""
    given = plain(value)
    if not isinstance(given, bool):
        raise InputError(f"{name} must be True or False, not {shown(value)}")
    return given


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """A text out of a few; raises an InputError for anything else."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}")
    return value


def several(name: str, values: Any, what: str) -> list[Any]:
    """What an iterable holds.

    Parameters
    ----------
    name : str
        What an error calls the argument.
    values
        A list, tuple, range, generator, array or the like; no text and no mapping.
    what : str
        What it has to hold, for the error.

    Returns
    -------
    list

    Raises
    ------
    InputError
        If it is no such thing.
    """
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise InputError(f"{name} must be a list of {what}, not {shown(values)}")
    return list(listed)


def file_path(name: str, value: Any, *, folder: bool = False) -> Path:
    """The name of a file, or of a folder.

    Parameters
    ----------
    name : str
        What an error calls it.
    value
        The argument: text, or a path of :mod:`pathlib`.
    folder : bool
        Whether it may be that of a folder.

    Returns
    -------
    Path
        The path; there need not be anything.

    Raises
    ------
    InputError
        If it is no name that a file can have, or that of a folder where a file is meant.
    """
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str):
        raise InputError(f"{name} must be the name of a file as text or a Path, not {shown(value)}")
    try:
        if not given or "\0" in given:
            raise ValueError("names have a character at least, and no null character")
        os.fsencode(given)
        path = Path(given)
        taken = path.is_dir()
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} {shown(given)} is no name that a file can have: {reason}") from error
    if not folder and (taken or not path.name):
        raise InputError(f"{name} {path} is a folder; give the name of a file, such as {path / 'mine.h5'}")
    return path


def expanded(path: str | Path) -> Path:
    """A path with the home folder in place of a leading ~, so far as there is one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # a user who does not exist: the name then leads to no file either
        return Path(path)
