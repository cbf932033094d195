"""Seals: totals beside the variables of a dump, by which changed numbers are noticed where they are read."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from posstats.errors import DumpError, NumericalError
from posstats.vocabulary import VARIABLES, total_of

#: What summing in another order may do, relative to the sum of absolute values; totals are sums of what is stored.
_TOLERANCE = 1e-9
#: Attributes by which a file holds other numbers than it gives back.
_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


def totals(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the totals of variables of the schema: float64 sums of their finite values.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Variables in the dims of the schema, or all of them without the same leading dims.

    Returns
    -------
    dict of str to ndarray
        ``<name>_total``, without the dims that are summed; of a variable that is not summed, its values.
    """
    return {
        total_of(name): _total(values, _summed(name)) for name, values in arrays.items() if total_of(name) in VARIABLES
    }


def _summed(name: str) -> tuple[int, ...]:
    """Axes, counted from the end, that the total of a variable sums over."""
    dims, kept = VARIABLES[name].dims, VARIABLES[total_of(name)].dims
    return tuple(axis - len(dims) for axis, dim in enumerate(dims) if dim not in kept)


def _total(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[np.float64]:
    if not axes:
        return values.astype(np.float64)
    if values.ndim <= 3:
        numbers = values.astype(np.float64)
        return np.where(np.isfinite(numbers), numbers, 0.0).sum(axis=axes)
    # Of one entry after the other: little memory, and the same last digit however many stand side by side.
    return np.stack([_total(one, axes) for one in values])


def check_seals(data: xr.Dataset, names: Iterable[str]) -> xr.Dataset:
    """Return the dataset with the seals of some variables checked: now in memory, else wherever values are read.

    Raises NumericalError where a variable does not add up to its total.
    """
    lazy = {}
    for name in names:
        if total_of(name) not in data or set(data[name].dims) != set(VARIABLES[name].dims):
            continue
        summed = [VARIABLES[name].dims[axis] for axis in _summed(name)]
        values = data[name].chunk(dict.fromkeys(summed, -1)) if data[name].chunks is not None else data[name]
        total = data[total_of(name)].expand_dims(summed).transpose(*values.dims)
        axes = tuple(values.dims.index(dim) for dim in summed)
        if values.chunks is None:
            _passed(values.values, total.values, name=name, axes=axes)
        else:
            whole = {dim: 1 if dim in summed else chunks for dim, chunks in values.chunksizes.items()}
            check, sums = partial(_passed, name=name, axes=axes), da.asarray(total.chunk(whole).data)
            checked = da.map_blocks(check, values.data, sums, dtype=values.dtype, meta=values.data._meta)
            lazy[name] = values.copy(data=checked)
    return data.assign(lazy)


def _passed(values: NDArray[Any], total: NDArray[np.float64], *, name: str, axes: tuple[int, ...]) -> NDArray[Any]:
    """Return values that add up to their total."""
    if not axes:
        agree = np.isclose(values, total, rtol=_TOLERANCE, atol=0, equal_nan=True)
    else:
        finite = np.isfinite(values)
        sums = np.sum(values, axis=axes, dtype=np.float64, where=finite, keepdims=True)
        size = np.sum(np.abs(values), axis=axes, dtype=np.float64, where=finite, keepdims=True)
        agree = np.abs(sums - total) <= _TOLERANCE * size
    if not agree.all():
        raise NumericalError(
            f"The values of {name} do not add up to the totals recorded with them: this dataset holds a part of them, "
            "or numbers that were packed, filled in or changed. Pass what open_dump(path) returns, all queries of it."
        )
    return values


def check_unpacked(dataset: xr.Dataset, name: str) -> None:
    """Raise DumpError where some variable or coordinate says that it is packed, or that a number stands for none."""
    for variable in dataset.variables:
        described = dataset[variable].attrs | dataset[variable].encoding
        packed = [key for key in _PACKING if key in described and not _is_nan(described[key])]
        if packed and variable in VARIABLES:
            raise DumpError(
                f"{name} was written anew with {', '.join(packed)} of {variable}: its numbers may not be those that "
                "were recorded. Pass the dump as `posstats dump` or write_dump wrote it."
            )


def _is_nan(value: Any) -> bool:
    """Whether a fill value is NaN, which stands for itself."""
    return bool(np.all(np.asarray(value) != np.asarray(value)))
