"""The pieces of a dump as one lazy dataset."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing

from posstats.dumping.run.pieces import Manifest, Pieces, Span
from posstats.errors import DumpError
from posstats.vocabulary import COORDINATES, VARIABLES


def joined(pieces: Pieces, manifest: Manifest) -> xr.Dataset:
    """Return all pieces as one lazy dataset, ready to be written, once each has been read and agrees with its
    checksum.

    Raises DumpError if pieces, or what is known for the whole dump, are missing, damaged or of another dump.
    """
    faulty = [file.name for file in pieces.faulty(manifest)]
    if faulty:
        more = f" and {len(faulty) - 4} more" if len(faulty) > 4 else ""
        raise DumpError(
            f"pieces in {pieces.folder} are damaged or of another dump ({', '.join(faulty[:4])}{more}): remove them "
            "and run the same dump again"
        )
    left = pieces.missing(manifest)
    if left:
        raise DumpError(
            f"{len(left)} batches of {pieces.folder} are not recorded yet: run the remaining shards, or the dump"
        )
    frame = pieces.frame(manifest)
    if frame is None:
        raise DumpError(
            f"{pieces.folder / 'frame.npz'} is missing, damaged or of another dump: run the same dump again, or copy "
            "the file from another of its shards"
        )
    variables: dict[str, Any] = {
        name: (VARIABLES[name].dims, values) for name, values in frame.items() if name in VARIABLES
    }
    spans = pieces.spans(manifest)
    for name in manifest.recorded:
        lazy = indexing.LazilyIndexedArray(_Joined(pieces.folder, manifest, spans, name))
        variables[name] = xr.Variable(VARIABLES[name].dims, lazy)
    coords = {name: (COORDINATES[name][0], values) for name, values in frame.items() if name in COORDINATES}
    attrs = {k: np.array(v) if isinstance(v, list) else v for k, v in manifest.attrs.items()}
    attrs |= {name: value.item() for name, value in frame.items() if name not in variables and name not in coords}
    return xr.Dataset(variables, coords, attrs)


class _Joined(xr.backends.BackendArray):
    """One recorded variable of all pieces, read from them where it is indexed."""

    def __init__(self, folder: Path, manifest: Manifest, spans: list[Span], name: str) -> None:
        self._folder, self._spans = folder, spans
        self._record = manifest.shape(name)
        # Bytes of one sequence that lie before those of this variable.
        self._before = sum(map(manifest.bytes_of, manifest.recorded[: manifest.recorded.index(name)]))
        self.shape = (manifest.sizes["condition"], manifest.sizes["sequence"], *self._record)
        self.dtype = manifest.dtype_of(name)

    @cached_property
    def _pieces(self) -> list[tuple[Span, np.ndarray]]:
        # Memory maps hold no open file, and only what is indexed is read.
        pieces: list[tuple[Span, np.ndarray]] = []
        for span in self._spans:
            count = span.stop - span.start
            file, shape = self._folder / span.file_name, (count, *self._record)
            pieces.append((span, np.memmap(file, self.dtype, "r", self._before * count, shape)))
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
