"""Progress of long work: a bar with the time left on a terminal, a quiet log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tqdm import tqdm

logger = logging.getLogger(__name__)

#: Seconds between two log lines.
LOG_EVERY = 30.0


class Progress(Protocol):
    """Something that is told how far the work has come."""

    def update(self, n: int = 1) -> object:
        """Tell that `n` more units are done."""


class _Log:
    """Log lines at most every :data:`LOG_EVERY` seconds."""

    def __init__(self, label: str, total: int, unit: str, done: int) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done = self._before = done
        self._begin = self._last = time.monotonic()

    def update(self, n: int = 1) -> None:
        self._done += n
        now = time.monotonic()
        if now - self._last >= LOG_EVERY and self._done > self._before:
            left = (now - self._begin) / (self._done - self._before) * (self._total - self._done)
            logger.info("%s: %d of %d %ss, %.0f s left", self._label, self._done, self._total, self._unit, left)
            self._last = now


class _Silent:
    def update(self, n: int = 1) -> None:
        """Say nothing."""


@contextmanager
def progress(label: str, total: int, *, unit: str, done: int = 0, show: bool = True) -> Iterator[Progress]:
    """Report progress while the block runs: ``update(n)`` of what is yielded counts units of work, of `total` in all.

    `unit` names one, in the singular (an s makes the plural); `done` were done before.

    >>> with progress("counting", 3, unit="sheep", show=False) as bar:
    ...     for _ in range(3):
    ...         bar.update()
    """
    if not show:
        yield _Silent()
    elif sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=unit, initial=done, dynamic_ncols=True) as bar:
            yield bar
    else:
        yield _Log(label, total, unit, done)
