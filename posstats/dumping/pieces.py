"""An unfinished dump: a folder of finished pieces, a manifest, and the locks of the processes at work on it.

A piece holds the records of consecutive sequences under one condition. It is written under a temporary name, forced to
the disk and then renamed, so a piece that has its name is whole, whatever happened to the process or the machine.
Nothing here knows about models, and pieces are plain arrays: HDF5 begins when they are joined.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing

from posstats.errors import DumpError
from posstats.store import replace_durably
from posstats.vocabulary import COORDINATES, VARIABLES

#: Variables that come sequence by sequence out of the model; the others are known for the whole dump at once.
RECORDED = tuple(
    name for name, spec in VARIABLES.items() if spec.dims[:2] == ("condition", "sequence") and name != "token_id"
)

_PIECE = re.compile(r"(\d+)-(\d+)-(\d+)\.piece")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What all pieces of a dump have in common.

    Attributes
    ----------
    attrs : dict
        Attributes of the finished dump, its ``settings_sha256`` among them: strings, numbers, lists of numbers.
    sizes : dict of str to int
        Length of every dimension.
    dtype : str
        Number format of what is recorded.
    unit : int
        Sequences per unit of work: units begin at its multiples, and shards share units out.
    batch : int
        Sequences per forward pass, at most `unit`; smaller after the memory ran out.
    """

    attrs: dict[str, Any]
    sizes: dict[str, int]
    dtype: str
    unit: int
    batch: int

    @property
    def recorded(self) -> tuple[str, ...]:
        """Recorded variables of this dump, in the order in which they lie in a piece."""
        return tuple(name for name in RECORDED if all(dim in self.sizes for dim in VARIABLES[name].dims))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one sequence's record of a variable."""
        return tuple(self.sizes[dim] for dim in VARIABLES[name].dims[2:])

    @property
    def sequence_bytes(self) -> int:
        """Bytes recorded of one sequence under one condition."""
        return sum(math.prod(self.shape(name)) for name in self.recorded) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Consecutive sequences ``start .. stop-1`` under one condition, given by its number."""

    condition: int
    start: int
    stop: int

    @property
    def file_name(self) -> str:
        """Name of the piece that holds it."""
        return f"{self.condition:03d}-{self.start:06d}-{self.stop:06d}.piece"


class Pieces:
    """The folder of an unfinished dump.

    Parameters
    ----------
    folder : Path
        The folder; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def _manifest_file(self) -> Path:
        return self.folder / "manifest.json"

    def manifest(self) -> Manifest | None:
        """The manifest, None where there is none yet.

        Raises
        ------
        DumpError
            If it cannot be understood.
        """
        try:
            return Manifest(**json.loads(self._manifest_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise DumpError(f"{self._manifest_file} is damaged: remove {self.folder} and dump again") from error

    def agree(self, manifest: Manifest) -> Manifest:
        """Adopt the manifest that is there, or put this one there.

        Its batch size counts where there is one, so that a resumed dump has the bytes of an uninterrupted one.

        Raises
        ------
        DumpError
            If the folder holds pieces of a dump with other settings.
        """
        with lock(self.folder / "manifest.lock", wait=True):
            found = self.manifest()
            if found is None:
                self.replace_manifest(manifest)
                return manifest
        if found.attrs != manifest.attrs or found.sizes != manifest.sizes:
            names = sorted(k for k in found.attrs | manifest.attrs if found.attrs.get(k) != manifest.attrs.get(k))
            raise DumpError(
                f"{self.folder} holds the pieces of a dump with other settings ({', '.join(names) or 'sizes'} differ): "
                "use those settings to go on, another path, or overwrite"
            )
        return found

    def replace_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self._write(self._manifest_file, json.dumps(asdict(manifest), indent=1, sort_keys=True).encode())

    def keep_frame(self, frame: Mapping[str, np.ndarray]) -> None:
        """Keep the variables, coordinates and attributes that are known for the whole dump once its first batch is.

        Raises
        ------
        DumpError
            If another process found other values for them.
        """
        target = self.folder / "frame.npz"
        if not target.exists():
            packed = BytesIO()
            np.savez(packed, allow_pickle=False, **frame)
            self._write(target, packed.getvalue())
        found = self._frame()
        differ = sorted(name for name in frame if not np.array_equal(found[name], frame[name]))
        if differ:
            raise DumpError(f"the pieces in {self.folder} were recorded with other values of {', '.join(differ)}")

    def _frame(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "frame.npz", allow_pickle=False) as file:
            return dict(file)

    def write(self, manifest: Manifest, span: Span, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a piece.

        Raises
        ------
        OSError
            If it cannot be written; nothing of it is left then.
        """
        parts = [np.ascontiguousarray(arrays[name], dtype=manifest.dtype) for name in manifest.recorded]
        for name, part in zip(manifest.recorded, parts, strict=True):
            if part.shape != (span.stop - span.start, *manifest.shape(name)):
                raise DumpError(f"{name} was recorded with the shape {part.shape}, not as {VARIABLES[name].dims}")
        self._write(self.folder / span.file_name, *parts)

    def _temporary(self, target: Path) -> Path:
        return target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}")

    def _write(self, target: Path, *blocks: bytes | np.ndarray) -> None:
        temporary = self._temporary(target)
        try:
            with temporary.open("wb") as file:
                for block in blocks:
                    file.write(block if isinstance(block, bytes) else block.data)
            replace_durably(temporary, target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def spans(self, manifest: Manifest) -> list[Span]:
        """The pieces that are there, sorted. A file of the wrong size, copied by half, is none.

        Parameters
        ----------
        manifest : Manifest
            The manifest.

        Returns
        -------
        list of Span
            Finished spans.
        """
        found = []
        for file in self.folder.iterdir():
            match = _PIECE.fullmatch(file.name)
            if match:
                span = Span(*map(int, match.groups()))
                if file.stat().st_size == (span.stop - span.start) * manifest.sequence_bytes:
                    found.append(span)
        return sorted(found)

    def missing(self, manifest: Manifest, shard: tuple[int, int] = (1, 1)) -> list[Span]:
        """What is left to do: spans of at most a unit that no piece covers.

        Parameters
        ----------
        manifest : Manifest
            The manifest.
        shard : (int, int)
            (k, n): only the k-th of n shares, k = 1 .. n.

        Returns
        -------
        list of Span
            In order of condition and sequence.
        """
        done = np.zeros((manifest.sizes["condition"], manifest.sizes["sequence"]), dtype=bool)
        for span in self.spans(manifest):
            done[span.condition, span.start : span.stop] = True
        starts = range(0, manifest.sizes["sequence"], manifest.unit)
        units = [(condition, start) for condition in range(len(done)) for start in starts]
        left = []
        for condition, start in units[shard[0] - 1 :: shard[1]]:
            todo = np.flatnonzero(~done[condition, start : start + manifest.unit]) + start
            for run in np.split(todo, np.flatnonzero(np.diff(todo) > 1) + 1):
                if run.size:
                    left.append(Span(condition, int(run[0]), int(run[-1]) + 1))
        return left

    def dataset(self, manifest: Manifest) -> xr.Dataset:
        """All pieces as one lazy dataset, ready to be written.

        Parameters
        ----------
        manifest : Manifest
            The manifest.

        Returns
        -------
        xarray.Dataset
            The dump.

        Raises
        ------
        DumpError
            If pieces are missing.
        """
        left = self.missing(manifest)
        if left:
            raise DumpError(
                f"{len(left)} batches of {self.folder} are not recorded yet: run the remaining shards, or the dump"
            )
        frame = self._frame()
        variables: dict[str, Any] = {
            name: (VARIABLES[name].dims, values) for name, values in frame.items() if name in VARIABLES
        }
        spans = self.spans(manifest)
        for name in manifest.recorded:
            lazy = indexing.LazilyIndexedArray(_Joined(self.folder, manifest, spans, name))
            variables[name] = xr.Variable(VARIABLES[name].dims, lazy)
        coords = {name: (COORDINATES[name][0], values) for name, values in frame.items() if name in COORDINATES}
        attrs = {k: np.array(v) if isinstance(v, list) else v for k, v in manifest.attrs.items()}
        attrs |= {name: str(value) for name, value in frame.items() if name not in variables and name not in coords}
        return xr.Dataset(variables, coords, attrs)

    def clear(self) -> None:
        """Remove everything but the locks, the manifest first: no piece is ever seen with another dump's manifest."""
        self._manifest_file.unlink(missing_ok=True)
        for file in self.folder.iterdir():
            if file.suffix != ".lock":
                file.unlink()

    def remove(self) -> None:
        """Remove the folder. To be called under the exclusive lock."""
        self.clear()
        for file in self.folder.iterdir():
            file.unlink()
        self.folder.rmdir()


class _Joined(xr.backends.BackendArray):
    """One recorded variable of all pieces, read from them where it is indexed."""

    def __init__(self, folder: Path, manifest: Manifest, spans: list[Span], name: str) -> None:
        self._folder, self._spans = folder, spans
        self._record = manifest.shape(name)
        before = manifest.recorded[: manifest.recorded.index(name)]
        self._before = sum(math.prod(manifest.shape(other)) for other in before)
        self.shape = (manifest.sizes["condition"], manifest.sizes["sequence"], *self._record)
        self.dtype = np.dtype(manifest.dtype)

    @cached_property
    def _pieces(self) -> list[tuple[Span, np.ndarray]]:
        # Memory maps hold no open file, and only what is indexed is read.
        pieces: list[tuple[Span, np.ndarray]] = []
        for span in self._spans:
            count = span.stop - span.start
            offset = self._before * count * self.dtype.itemsize
            shape = (count, *self._record)
            pieces.append((span, np.memmap(self._folder / span.file_name, self.dtype, "r", offset, shape)))
        return pieces

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray:
        conditions = np.arange(self.shape[0])[key[0]]
        sequences = np.arange(self.shape[1])[key[1]]
        wanted = np.atleast_1d(sequences)
        tail = key[2:]
        blocks = []
        for condition in np.atleast_1d(conditions):
            rows: dict[int, np.ndarray] = {}
            for span, values in self._pieces:
                if span.condition == condition:
                    rows.update(
                        (n, values[(n - span.start, *tail)]) for n in wanted.tolist() if span.start <= n < span.stop
                    )
            blocks.append(np.stack([rows[n] for n in wanted.tolist()]))
        block = np.stack(blocks)
        if np.ndim(sequences) == 0:
            block = block[:, 0]
        return block[0] if np.ndim(conditions) == 0 else block


class Held(DumpError):
    """Another process holds the lock."""


@contextmanager
def lock(path: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock file while the block runs. The system frees it when the process ends, however it ends.

    Parameters
    ----------
    path : Path
        The lock file; it is made, with its folder, where it is missing.
    shared : bool
        Whether others may hold it, shared, at the same time.
    wait : bool
        Whether to wait for it.

    Raises
    ------
    Held
        If another process holds it; says which.
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
