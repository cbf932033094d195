"""Datasets on disk: the only room that touches HDF5.

A dump is one HDF5 file that is valid netCDF-4, so ``xarray.open_dataset``, ``h5py`` and ``ncdump`` read it without
posstats. It holds the variables of :data:`posstats.vocabulary.VARIABLES`, appears whole or not at all, and carries no
clock time: the same numbers give the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import dask.array as da
import h5netcdf
import h5py
import numpy as np
import xarray as xr
from dask.base import tokenize
from dask.local import get_sync

from posstats.arguments import file_path, shown, whole_number
from posstats.dataset.seals import check_unpacked
from posstats.dataset.storable import check_storable, storable_attributes
from posstats.errors import DumpError, InputError
from posstats.execution.files import replacing
from posstats.execution.machine import available_processors
from posstats.vocabulary import COORDINATES, SCHEMA_VERSION, VARIABLES, total_of

#: Largest size of one HDF5 chunk before compression.
CHUNK_BYTES = 2**21
#: A variable whose share of one condition is no larger than this is stored as one chunk per condition.
SMALL_BYTES = 2**18

#: What a file may hold beside its values: descriptions, indices of chunks, frames of what does not compress.
_OVERHEAD_BYTES = 2**20
#: A byte plane is compressed where a sample of it shrinks at least this much.
_SAMPLE_BYTES = 4096
_WORTH_COMPRESSING = 0.9
#: Bytes at either end of a file that tell it from another.
_MARK_BYTES = 2**16


def parts_folder(path: str | Path) -> Path:
    """Folder in which the finished pieces of an unfinished dump wait.

    ``<path>.parts``, beside the file where `path` is a symbolic link to one.
    """
    path = followed(Path(path))
    return path.with_name(path.name + ".parts")


def followed(path: Path) -> Path:
    """The file to write: what a path names, or what it points to where it is a symbolic link."""
    try:
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    except PermissionError:  # so will be whoever uses the path, and can say what for
        return path


def open_dump(path: str | Path) -> xr.Dataset:
    """Open a dump lazily.

    Parameters
    ----------
    path : str or Path
        A file written by ``posstats.dump`` or :func:`write_dump`.

    Returns
    -------
    xarray.Dataset
        Variables as dask arrays with one chunk per condition and layer (or depth), small ones with one per condition,
        large layers with one per some of their heads. ``load()`` brings it into memory, ``close()`` releases the file.

    Raises
    ------
    InputError
        If `path` is no name of a file.
    DumpError
        If there is no such file, it is no posstats dump, it is damaged, unfinished, or follows another version of the
        schema.

    Examples
    --------
    >>> import posstats as ps
    >>> path = ps.write_dump(ps.simulate(n=30, length=32, seed=0).dataset, "rehearsal.h5")
    >>> with ps.open_dump(path) as ds:
    ...     ds.sink_logit.attrs["units"], ds.sink_logit.sizes["sequence"]
    ('nats', 30)
    """
    path = file_path("path", path)
    try:
        there, begun = path.is_file(), parts_folder(path).is_dir()
    except PermissionError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror}") from error
    if not there:
        if begun:
            raise DumpError(f"the dump {path} is not finished: run the same dump again, it goes on where it stopped")
        raise DumpError(f"there is no dump {path}")
    try:
        # A dump names all its dims; without the option, h5netcdf warns of another file that does not.
        with xr.open_dataset(path, engine="h5netcdf", phony_dims="access") as source:
            check_schema(source, str(path))
            frame = source.drop_vars(_names(source)).load()
            attrs = {name: source[name].attrs for name in _names(source)}
        file = _File(path)
        variables = {name: xr.Variable(VARIABLES[name].dims, _lazy(file, name), attrs[name]) for name in attrs}
    except (OSError, KeyError, AttributeError) as error:
        reason = "is damaged or truncated" if h5py.is_hdf5(path) else "is not an HDF5 file"
        raise DumpError(f"{path} {reason}, so it cannot be read as a posstats dump ({error})") from error
    dataset = frame.assign(variables)
    dataset.set_close(file.close)
    return dataset


class _File:
    """A file opened for reading; opened anew where it is unpickled, in another process, if it is still the same."""

    def __init__(self, path: Path, mark: bytes | None = None) -> None:
        self.path = path.absolute()  # the other process may work in another folder
        self.open = h5py.File(path, "r")
        self._mark = _mark(self.path)
        if mark not in (None, self._mark):
            raise DumpError(f"{path} is not the file that was opened: it was replaced, or is another on this machine")

    def __reduce__(self) -> tuple[type[_File], tuple[Path, bytes]]:
        return _File, (self.path, self._mark)

    def close(self) -> None:
        self.open.close()


def _mark(path: Path) -> bytes:
    """What tells a dump from another under the same name, on whatever machine: its size, how it begins and ends."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(str(size).encode())
        for at in (0, max(0, size - _MARK_BYTES)):
            file.seek(at)
            digest.update(file.read(_MARK_BYTES))
    return digest.digest()


class _Stored:
    """What dask asks of an array, for a variable of a file.

    h5py reads it: h5netcdf, by way of xarray, spends several times the reading on looking dimensions up.
    """

    def __init__(self, file: _File, name: str) -> None:
        self._file, self._name = file, name
        self.shape, self.dtype = file.open[name].shape, file.open[name].dtype
        self.ndim = len(self.shape)

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        if not self._file.open:
            raise DumpError(f"{self._file.path} was closed; keep a dump open for as long as its values are read")
        try:
            return self._file.open[self._name][key]
        except OSError as error:
            raise DumpError(
                f"{self._file.path}: values of {self._name} cannot be read, because the file is damaged or was "
                f"changed, the disk errs, or there is not enough memory ({error})"
            ) from error


def _lazy(file: _File, name: str) -> da.Array:
    """A dask array whose chunks are the file's along condition, layer, depth and head, and whole along the others."""
    stored = file.open[name]
    chunks = stored.chunks or stored.shape
    split = ("condition", "layer", "depth", "head")
    sizes = tuple(size if dim in split else -1 for dim, size in zip(VARIABLES[name].dims, chunks, strict=True))
    stat = file.path.stat()
    token = tokenize(str(file.path.resolve()), stat.st_ino, stat.st_mtime_ns, name)
    return da.from_array(_Stored(file, name), chunks=sizes, name=f"{name}-{token}", meta=np.empty(0, stored.dtype))


def check_schema(dataset: xr.Dataset, name: str = "the dataset") -> None:
    """Check that a dataset is a dump: schema version, variables, dimensions, coordinates; no value is read.

    Raises DumpError, with the dataset called `name`, if it is not.
    """
    version = dataset.attrs.get("schema_version")
    if version is None:
        raise DumpError(f"{name} is not a posstats dump: it has no attribute schema_version")
    if str(version) != SCHEMA_VERSION:
        raise DumpError(
            f"{name} follows version {version} of the dump schema, this posstats reads version {SCHEMA_VERSION}: "
            f"record it anew with `posstats dump {name} --overwrite` and the options it was made with, or use the "
            "posstats that wrote it"
        )
    problems = []
    for variable, spec in VARIABLES.items():
        if variable not in dataset:
            if not spec.optional:
                problems.append(f"the variable {variable} is missing")
        elif dataset[variable].dims != spec.dims:
            problems.append(f"{variable} has the dims {dataset[variable].dims}, not {spec.dims}")
    for coordinate, (dim, _, _) in COORDINATES.items():
        if dim in dataset.dims and (coordinate not in dataset.coords or dataset[coordinate].dims != (dim,)):
            problems.append(f"the coordinate {coordinate} of dim {dim} is missing")
    problems += [
        f"the variable {total} is missing"
        for total in (total_of(variable) for variable in VARIABLES if variable in dataset)
        if total in VARIABLES and VARIABLES[total].optional and total not in dataset
    ]
    if problems:
        raise DumpError(f"{name} is not a whole posstats dump: {'; '.join(problems)}")
    check_unpacked(dataset, name)


def write_dump(dataset: xr.Dataset, path: str | Path, *, workers: int | None = None) -> Path:
    """Write a dump, by way of a temporary file: `path` holds the whole dump or what it held before.

    Values are read one chunk of the file at a time, so a lazy dataset larger than the memory can be written.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables and coordinates of the dump schema; ``schema_version``, units and long names are added. Attributes
        are texts, numbers, and lists of texts or of numbers.
    path : str or Path
        Where to; where it is a symbolic link, what it points to is written.
    workers : int, optional
        Threads that compress; by default one per available processor. The bytes do not depend on it.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    InputError
        If an argument is of another type, or an attribute or coordinate holds what the file cannot give back as it is.
    DumpError
        If the dataset does not follow the schema, the file cannot be written, or the disk may be too small for it.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=32, conditions=["baseline", "bos=mean"], seed=0).dataset
    >>> write_dump(ds.sel(condition=["baseline"]), "baseline.h5").name
    'baseline.h5'
    """
    path = file_path("path", path)
    if not isinstance(dataset, xr.Dataset):
        raise InputError(f"dataset must be an xarray.Dataset of the dump schema, not {shown(dataset)}")
    workers = available_processors() if workers is None else whole_number("workers", workers, 1)
    dataset = dataset.assign_attrs(schema_version=SCHEMA_VERSION)
    check_schema(dataset)
    attrs = storable_attributes(dataset.attrs)
    check_storable(dataset)
    try:
        with replacing(followed(path)) as temporary:
            _check_space(dataset, temporary)
            _write_frame(dataset, attrs, temporary)
            _write_values(dataset, temporary, workers)
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError where a flush or the closing of a file fails
        raise DumpError(f"cannot write {path}: {_reason(error)}") from error
    return path


def _check_space(dataset: xr.Dataset, path: Path) -> None:
    """Refuse what may not fit: where HDF5 cannot write, it may take the process with it."""
    needed, free = dataset.nbytes + _OVERHEAD_BYTES, shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"up to {needed / 1e6:.1f} MB are needed, and {free / 1e6:.1f} MB are free")
    with path.open("wb") as file:
        file.truncate(needed)  # takes no space, and fails where files must not be that large


def _reason(error: OSError | RuntimeError) -> str:
    """What went wrong, out of the report of HDF5's internals where it is one."""
    told = re.search(r"error message = '([^']+)'", str(error))
    return told[1] if told else str(getattr(error, "strerror", None) or error)


def _names(dataset: xr.Dataset) -> list[str]:
    return [name for name in VARIABLES if name in dataset]


def _write_frame(dataset: xr.Dataset, attrs: dict[str, Any], path: Path) -> None:
    """Everything but the values of the variables: dims, coordinates, attributes, storage layout."""
    with h5netcdf.File(path, "w") as file:
        for name, value in attrs.items():
            file.attrs[name] = value
        dims = {dim: None for name in _names(dataset) for dim in VARIABLES[name].dims}
        file.dimensions = {dim: dataset.sizes[dim] for dim in dims}
        for name, (dim, units, long_name) in COORDINATES.items():
            if dim not in dims:
                continue
            values = dataset[name].values
            text = values.dtype.kind in "OU"
            variable = file.create_variable(name, (dim,), h5py.string_dtype() if text else values.dtype)
            variable[...] = values.astype(object) if text else values
            variable.attrs.update(units=units, long_name=long_name)
        for name in _names(dataset):
            spec, source = VARIABLES[name], dataset[name]
            variable = file.create_variable(
                name,
                spec.dims,
                source.dtype,
                chunks=_chunks(spec.dims, source.shape, source.dtype.itemsize),
                compression="gzip",
                compression_opts=1,
                shuffle=True,
            )
            variable.attrs.update(units=spec.units, long_name=spec.long_name)
            # Tells xarray that document, which is no dimension's name, is a coordinate.
            if "sequence" in spec.dims:
                variable.attrs["coordinates"] = "document"


def _chunks(dims: tuple[str, ...], shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Chunks of one condition and one layer (or depth), split further only where they would be too large.

    First by head, because whoever reads a part of a large layer reads some heads of it.
    """
    chunk = dict(zip(dims, shape, strict=True))
    if "condition" in chunk:
        chunk["condition"] = 1
    if np.prod(list(chunk.values())) * itemsize > SMALL_BYTES:
        chunk.update({dim: 1 for dim in ("layer", "depth") if dim in chunk})
    for dim in ("head", "sequence", "token", "query", "key", "lag"):
        excess = np.prod(list(chunk.values())) * itemsize / CHUNK_BYTES
        if dim in chunk and excess > 1:
            parts = min(chunk[dim], int(np.ceil(excess)))
            chunk[dim] = -(-chunk[dim] // parts)
    return tuple(chunk.values())


def _write_values(dataset: xr.Dataset, path: Path, workers: int) -> None:
    """Compress chunks in several threads, write them in one fixed order."""
    with h5py.File(path, "r+") as file, ThreadPoolExecutor(workers) as pool:
        for name in _names(dataset):
            target = file[name]
            waiting: deque[tuple[tuple[int, ...], Future[bytes]]] = deque()
            for corner in itertools.product(*map(range, repeat(0), target.shape, target.chunks)):
                waiting.append((corner, pool.submit(_compressed_chunk, dataset[name], corner, target.chunks)))
                if len(waiting) > 2 * workers:
                    _put_oldest(target, waiting)
            while waiting:
                _put_oldest(target, waiting)


def _put_oldest(target: h5py.Dataset, waiting: deque[tuple[tuple[int, ...], Future[bytes]]]) -> None:
    corner, data = waiting.popleft()
    target.id.write_direct_chunk(corner, data.result())


def _compressed_chunk(variable: xr.DataArray, corner: tuple[int, ...], chunk: tuple[int, ...]) -> bytes:
    """The bytes HDF5 keeps for one chunk."""
    lazy = variable[tuple(slice(at, at + size) for at, size in zip(corner, chunk, strict=True))]
    block = lazy.compute(scheduler=get_sync).values  # chunks are already compressed side by side
    if block.shape != chunk:  # HDF5 stores the last chunk of an axis whole, whatever lies beyond the edge
        whole = np.zeros(chunk, dtype=block.dtype)
        whole[tuple(slice(size) for size in block.shape)] = block
        block = whole
    return shuffle_deflate(block)


def shuffle_deflate(block: np.ndarray) -> bytes:
    """Byte shuffle and one zlib stream: what HDF5's shuffle and deflate filters undo.

    Three of the four bytes of a measured float32 are noise that deflate only grinds on, at 30 MB/s. Whether a byte
    plane compresses is tried on a sample; where it does not, it is stored as it is, inside the same valid stream. What
    compresses does so by its skewed histogram and its runs, which zlib's run-length strategy finds twice as fast.
    """
    planes = np.ascontiguousarray(np.ascontiguousarray(block).reshape(-1, 1).view(np.uint8).T)
    stream = [b"\x78\x01"]  # zlib header: deflate, 32 KiB window, fastest
    for plane in planes:
        middle = max(0, (len(plane) - _SAMPLE_BYTES) // 2)
        sample = plane[middle : middle + _SAMPLE_BYTES]
        pays = len(_deflate(sample, level=1)) < _WORTH_COMPRESSING * len(sample)
        stream.append(_deflate(plane, level=1 if pays else 0))
    stream.append(b"\x03\x00")  # an empty last block
    stream.append(zlib.adler32(planes.data).to_bytes(4, "big"))
    return b"".join(stream)


def _deflate(data: np.ndarray, level: int) -> bytes:
    """A run of deflate blocks, none the last, that ends on a byte boundary."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 8, zlib.Z_RLE)
    return compressor.compress(data.data) + compressor.flush(zlib.Z_SYNC_FLUSH)
