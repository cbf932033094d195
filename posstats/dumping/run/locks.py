"""Lock files that last no longer than the process that holds them."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posstats.errors import DumpError


class Held(DumpError):
    """Another process holds the lock."""


@contextmanager
def lock(path: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock file while the block runs. The system frees it when the process ends, however it ends.

    The file is made, with its folder, where it is missing; `shared` lets others hold it, shared, at the same time.
    Raises Held, which says which process holds it, unless `wait`.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # another process has just removed the folder
        try:
            fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise Held(f"{path.parent} is being written by {holder}: wait for it or stop it") from None
        if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
            break
        os.close(descriptor)  # the folder was removed between opening and locking: that lock guards nothing
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)
