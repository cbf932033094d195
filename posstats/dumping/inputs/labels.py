"""Labels and texts that a dump can hold: checked before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from posstats.arguments import shown
from posstats.errors import InputError


def document_labels(labels: Any, count: int) -> np.ndarray:
    """Document labels as a dump holds them.

    Parameters
    ----------
    labels : array_like
        A label per sequence, all strings or all integers: mixed ones could come to coincide, 1 and "1".
    count : int
        Number of sequences.

    Returns
    -------
    ndarray of int64 or of strings, shape (sequence,)
        The labels.

    Raises
    ------
    InputError
        If they are not that many, of other kinds, or cannot be stored.
    """
    try:
        given = np.asarray(labels, dtype=object)
    except Exception as error:  # what is no array can refuse to become one in any way
        raise InputError(f"document must hold a label per sequence, not {shown(labels)}") from error
    if given.shape != (count,):
        raise InputError(
            f"there must be one document label per sequence: {count} sequences, labels of shape {given.shape}"
        )
    kinds = [
        str if isinstance(x, str) else int if isinstance(x, (int, np.integer)) and not isinstance(x, bool) else None
        for x in given
    ]
    for label, kind in zip(given, kinds, strict=True):
        if kind is None or kind is not kinds[0]:
            beside = f" beside {shown(given[0])}" if kind else ""
            raise InputError(f"document labels must be all strings or all integers, not {shown(label)}{beside}")
        if kind is str:
            check_text("document", label)
    try:
        return given.astype(kinds[0])
    except OverflowError as error:
        raise InputError("document labels that are integers must fit into 64 bits; give strings") from error


def check_text(name: str, text: str) -> None:
    """Refuse a text that a dump could not hold, before anything is computed.

    Parameters
    ----------
    name : str
        What it is, for the message.
    text : str
        The text.

    Raises
    ------
    InputError
        If it is none, contains a null character, or what is no Unicode character, as names of files that are not in
        UTF-8 do.
    """
    if not isinstance(text, str):
        raise InputError(f"{name} must be text, not {shown(text)}")
    if "\0" in text:
        raise InputError(f"{name} {text!r} contains a null character, which a dump cannot hold")
    check_unicode(name, text)


def check_unicode(name: str, text: str) -> None:
    """Refuse a text that has no encoding, raising an InputError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} {shown(text)} contains what is no Unicode character, as the name of a file does that is not in "
            "UTF-8: rename it"
        ) from error
