"""Files and folders that are there whole or not at all: written beside their place, then renamed."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posstats.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write a file or make a folder, then rename it: `path` holds what the block wrote, or what it held.

    A file is replaced, a folder must not be there yet; nothing of what was written is left where the block raises.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield temporary
        if temporary.is_dir():
            temporary.rename(path)
        else:
            replace_durably(temporary, path)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        raise


def replace_durably(temporary: Path, path: Path) -> None:
    """Put a finished file of the same file system in its place: not even a power failure leaves half of it."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Create a folder and write into it; raise InputError with the reason where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
