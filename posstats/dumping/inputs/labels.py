"""Labels and texts that a dump can hold: checked before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    given = np.asarray(labels, dtype=object)
    if given.shape != (count,):
        raise InputError(
            f"there must be one document label per sequence: {count} sequences, labels of shape {given.shape}"
        )
    kinds = [str if isinstance(x, str) else int if isinstance(x, (int, np.integer)) else None for x in given]
    for label, kind in zip(given, kinds, strict=True):
        if kind is None or kind is not kinds[0]:
            beside = f" beside {given[0]!r}" if kind else ""
            raise InputError(f"document labels must be all strings or all integers, not {label!r}{beside}")
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
        If it contains a null character, or what is no Unicode character, as names of files that are not in UTF-8 do.
    """
    if "\0" in text:
        raise InputError(f"{name} {text!r} contains a null character, which a dump cannot hold")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} {text!r} contains what is no Unicode character, as the name of a file does that is not in UTF-8: "
            "rename it"
        ) from error
