"""An unfinished dump: a folder of finished pieces, a manifest, and the locks of the processes at work on it.

A piece holds the records of consecutive sequences under one condition. It is written under a temporary name, forced to
the disk and then renamed, so a piece that has its name is whole, whatever happened to the process or the machine. It
ends with a seal that says which dump and which sequences it is of, and what its content sums up to: folders are copied
between machines, and disks err. Nothing here knows about models, and pieces are plain arrays: HDF5 begins when they are
joined.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from posstats.dumping.run.locks import lock
from posstats.errors import DumpError
from posstats.execution.files import replacing
from posstats.vocabulary import VARIABLES

#: Variables that come sequence by sequence out of the model; the others are known for the whole dump at once.
RECORDED = tuple(
    name
    for name, spec in VARIABLES.items()
    if spec.dims[:2] == ("condition", "sequence") and not name.startswith(("token_id", "substitute_id"))
)

_PIECE = re.compile(r"(\d+)-(\d+)-(\d+)\.piece")
#: What a piece ends with: the SHA-256 of what it belongs to, and the CRC-32 of what precedes.
_SEAL = struct.Struct("<32sI")
_READ_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class Manifest:
    """What all pieces of a dump have in common."""

    #: Attributes of the finished dump, its ``settings_sha256`` among them: strings, numbers, lists of numbers.
    attrs: dict[str, Any]
    #: Length of every dimension.
    sizes: dict[str, int]
    #: Number format of what is recorded.
    dtype: str
    #: Sequences per unit of work: units begin at its multiples, and shards share units out.
    unit: int
    #: Sequences per forward pass, at most `unit`; smaller after the memory ran out.
    batch: int

    @property
    def recorded(self) -> tuple[str, ...]:
        """Recorded variables of this dump, in the order in which they lie in a piece."""
        return tuple(name for name in RECORDED if all(dim in self.sizes for dim in VARIABLES[name].dims))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one sequence's record of a variable."""
        return tuple(self.sizes[dim] for dim in VARIABLES[name].dims[2:])

    def dtype_of(self, name: str) -> np.dtype:
        """Number format of a recorded variable."""
        return np.dtype(VARIABLES[name].dtype or self.dtype)

    def bytes_of(self, name: str) -> int:
        """Bytes of one sequence's record of a variable."""
        return math.prod(self.shape(name)) * self.dtype_of(name).itemsize

    @property
    def sequence_bytes(self) -> int:
        """Bytes recorded of one sequence under one condition."""
        return sum(map(self.bytes_of, self.recorded))

    def identity(self, what: str) -> bytes:
        """Digest of what tells a file of this dump, such as a piece, from all files of any other dump."""
        facts = [self.attrs["settings_sha256"], self.sizes, self.dtype, what]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


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
    """The folder of an unfinished dump; it need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Pieces whose content has been read and found right, as name, inode and time of change.
        self._sound: set[tuple[str, int, int]] = set()

    @property
    def _manifest_file(self) -> Path:
        return self.folder / "manifest.json"

    def manifest(self) -> Manifest | None:
        """The manifest, None where there is none yet; DumpError if it cannot be understood."""
        try:
            found = Manifest(**json.loads(self._manifest_file.read_text(encoding="utf-8")))
            if not ("settings_sha256" in found.attrs and 1 <= found.batch <= found.unit and found.sequence_bytes > 0):
                raise ValueError("not a manifest")
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DumpError(
                f"{self._manifest_file} is damaged: dump again with overwrite=True (--overwrite), or remove "
                f"{self.folder} before"
            ) from error
        return found

    def agree(self, manifest: Manifest) -> Manifest:
        """Adopt the manifest that is there, or put this one there; DumpError if there are pieces of other settings.

        Its batch size counts where there is one, so that a resumed dump has the bytes of an uninterrupted one. Where
        there is none, pieces are what an interrupted removal has left: they go.
        """
        with lock(self.folder / "manifest.lock", wait=True):
            found = self.manifest()
            if found is None:
                self.clear()
                self.replace_manifest(manifest)
                return manifest
        if found.attrs != manifest.attrs or found.sizes != manifest.sizes:
            raise DumpError(
                f"{self.folder} holds the pieces of a dump with other settings "
                f"({differences(found.attrs, manifest.attrs)}): use those settings to go on, another path, "
                "or begin anew with overwrite=True (--overwrite)"
            )
        return found

    def replace_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self._write(self._manifest_file, json.dumps(asdict(manifest), indent=1, sort_keys=True).encode())

    def keep_frame(self, manifest: Manifest, frame: Mapping[str, np.ndarray], attrs: Mapping[str, float | str]) -> None:
        """Keep the variables, coordinates and attributes that are known for the whole dump once its first batch is.

        Raises DumpError if another process found other values of variables or coordinates; the attributes, which
        rounding enters, are those of the first one.
        """
        found = self.frame(manifest)
        if found is None:
            packed = BytesIO()
            np.savez(packed, allow_pickle=False, **frame, **attrs)
            self._write_sealed("frame.npz", manifest, packed.getvalue())
            return
        differ = sorted(name for name in frame if name not in found or not np.array_equal(found[name], frame[name]))
        if differ:
            raise DumpError(f"the pieces in {self.folder} were recorded with other values of {', '.join(differ)}")

    def frame(self, manifest: Manifest) -> dict[str, np.ndarray] | None:
        """What was kept for the whole dump; None where it is missing, damaged or of another dump."""
        try:
            content = (self.folder / "frame.npz").read_bytes()
        except FileNotFoundError:
            return None
        content, seal = content[: -_SEAL.size], content[-_SEAL.size :]
        if seal != _SEAL.pack(manifest.identity("frame.npz"), zlib.crc32(content)):
            return None
        with np.load(BytesIO(content), allow_pickle=False) as file:
            return dict(file)

    def write(self, manifest: Manifest, span: Span, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a piece; where that raises OSError, nothing of it is left."""
        parts = [np.ascontiguousarray(arrays[name], dtype=manifest.dtype_of(name)) for name in manifest.recorded]
        for name, part in zip(manifest.recorded, parts, strict=True):
            if part.shape != (span.stop - span.start, *manifest.shape(name)):
                raise DumpError(f"{name} was recorded with the shape {part.shape}, not as {VARIABLES[name].dims}")
        self._write_sealed(span.file_name, manifest, *parts)

    def _write_sealed(self, name: str, manifest: Manifest, *blocks: bytes | np.ndarray) -> None:
        crc = 0
        for block in blocks:
            crc = zlib.crc32(block if isinstance(block, bytes) else block.data, crc)
        self._write(self.folder / name, *blocks, _SEAL.pack(manifest.identity(name), crc))

    def _write(self, target: Path, *blocks: bytes | np.ndarray) -> None:
        with replacing(target) as temporary, temporary.open("wb") as file:
            for block in blocks:
                file.write(block if isinstance(block, bytes) else block.data)

    def _files(self) -> Iterator[tuple[Path, Span | None]]:
        """Every piece, whatever it holds, and the span that its name tells."""
        for file in sorted(self.folder.glob("*.piece")):
            match = _PIECE.fullmatch(file.name)
            span = Span(*map(int, match.groups())) if match else None
            yield file, span if span and span.file_name == file.name else None

    def any(self) -> bool:
        """Whether there is a piece, of whatever dump, that can be seen."""
        try:
            return next(self._files(), None) is not None
        except PermissionError:
            return False

    def spans(self, manifest: Manifest) -> list[Span]:
        """Return the pieces that count, sorted: of this dump, and of the right size. Their content is not read."""
        return sorted(span for file, span in self._files() if span and _belongs(file, span, manifest))

    def faulty(self, manifest: Manifest, shard: tuple[int, int] = (1, 1)) -> list[Path]:
        """Return files of no use: pieces that do not count, and those of a share that disagree with their seal.

        `shard` (k, n) is the k-th of n shares, k = 1 .. n. A piece is read once, unless it has changed since.
        """
        share = set(_units(manifest, shard))
        found = []
        for file, span in self._files():
            belongs = span is not None and _belongs(file, span, manifest)
            unread = not (span and (span.condition, span.start - span.start % manifest.unit) in share)
            if not belongs or not (unread or self._is_sound(file)):
                found.append(file)
        return found

    def _is_sound(self, file: Path) -> bool:
        with file.open("rb") as opened:
            stat = os.fstat(opened.fileno())
            key = (file.name, stat.st_ino, stat.st_mtime_ns)
            if key not in self._sound:
                crc, left = 0, stat.st_size - _SEAL.size
                while left > 0 and (block := opened.read(min(left, _READ_BYTES))):
                    crc, left = zlib.crc32(block, crc), left - len(block)
                if left or _SEAL.unpack(opened.read(_SEAL.size))[1] != crc:
                    return False
                self._sound.add(key)
        return True

    def missing(self, manifest: Manifest, shard: tuple[int, int] = (1, 1)) -> list[Span]:
        """Return what is left to do of the k-th of n shares (k, n): spans of at most a unit that no piece covers.

        In order of condition and sequence.
        """
        done = np.zeros((manifest.sizes["condition"], manifest.sizes["sequence"]), dtype=bool)
        for span in self.spans(manifest):
            done[span.condition, span.start : span.stop] = True
        left = []
        for condition, start in _units(manifest, shard):
            todo = np.flatnonzero(~done[condition, start : start + manifest.unit]) + start
            for run in np.split(todo, np.flatnonzero(np.diff(todo) > 1) + 1):
                if run.size:
                    left.append(Span(condition, int(run[0]), int(run[-1]) + 1))
        return left

    def clear(self) -> None:
        """Remove everything but the locks, the manifest first: pieces without one count for no dump."""
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


def _units(manifest: Manifest, shard: tuple[int, int]) -> list[tuple[int, int]]:
    """Units of work of a share, dealt in turn: number of the condition, first sequence."""
    starts = range(0, manifest.sizes["sequence"], manifest.unit)
    units = [(condition, start) for condition in range(manifest.sizes["condition"]) for start in starts]
    return units[shard[0] - 1 :: shard[1]]


def _belongs(file: Path, span: Span, manifest: Manifest) -> bool:
    """Whether a file is, by its size and seal, the piece of a span of this dump."""
    size = (span.stop - span.start) * manifest.sequence_bytes
    within = span.condition < manifest.sizes["condition"] and span.start < span.stop <= manifest.sizes["sequence"]
    try:
        if not within or file.stat().st_size != size + _SEAL.size:
            return False
        with file.open("rb") as opened:
            opened.seek(size)
            return bool(_SEAL.unpack(opened.read())[0] == manifest.identity(file.name))
    except FileNotFoundError:
        return False  # another shard has just removed it


#: Coordinates that a user chooses -> what messages call them.
_CHOSEN = {
    "condition": "conditions", "sequence": "number of sequences", "token": "length", "offset": "offsets",
    "probe": "probes",
}  # fmt: skip


#: Attributes that follow from others.
_DERIVED = ("settings_sha256", "received_queries", "reference_queries")


def differences(
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    labels_found: Mapping[str, np.ndarray] | None = None,
    labels_wanted: Mapping[str, np.ndarray] | None = None,
) -> str:
    """Return in which settings a dump that was found differs from one that is wanted, for messages.

    Attributes are compared, and coordinates where those of both are known.
    """
    names = sorted(
        name
        for name, value in wanted.items()
        if name not in found or not np.array_equal(np.atleast_1d(found[name]), np.atleast_1d(value))
    )
    own = [name for name in names if name not in _DERIVED]
    if labels_found is not None and labels_wanted is not None:
        same = {name: np.array_equal(labels_found.get(name, ()), labels_wanted.get(name, ())) for name in _CHOSEN}
        own += [what for name, what in _CHOSEN.items() if not same[name] and what not in own]
    return f"different: {', '.join(own) or 'tokens, documents, conditions, offsets or probes'}"
