"""What an HDF5 file gives back as it was given: attributes, coordinates and values that a dump may hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from posstats.arguments import shown
from posstats.errors import InputError
from posstats.vocabulary import COORDINATES, VARIABLES

#: Names that HDF5, netCDF and xarray keep for themselves.
_RESERVED = frozenset(
    ("_NCProperties", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "CLASS", "DIMENSION_LIST", "NAME",
     "REFERENCE_LIST", "coordinates")
)  # fmt: skip


def storable_attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as a file holds them: texts as str or lists of them, numbers as they were given.

    Values are texts, numbers, and lists, tuples or arrays of texts or of numbers; an InputError names an attribute that
    holds something else, which a file would not give back as it is.
    """
    return {_name(name): _attribute(name, value) for name, value in attrs.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or not _is_text(name) or name in _RESERVED:
        raise InputError(
            f"an attribute cannot be called {shown(name)}: a name is text, and none of {', '.join(sorted(_RESERVED))}"
        )
    return name


def _attribute(name: str, value: Any) -> Any:
    refusal = (
        f"the attribute {name} is {shown(value)}, which a dump cannot hold: give text, a number, or a list of texts or "
        "of numbers of 64 bits (1 or 0 for True or False, JSON text for nested or mixed values)"
    )
    try:
        given = np.asarray(value.values if isinstance(value, xr.DataArray) else value, dtype=object)
        items = [item.item() if isinstance(item, np.generic) else item for item in given.ravel()]
        numbers = np.asarray(value)
    except Exception as error:  # what is no array can refuse to become one in any way
        raise InputError(refusal) from error
    if items and all(isinstance(item, str) and _is_text(item) for item in items) and given.ndim < 2:
        return str(items[0]) if given.ndim == 0 else [str(item) for item in items]
    same = numbers.dtype.kind in "iufc" and not any(isinstance(item, bool | str) for item in items)
    # Whole numbers beside others become floating-point numbers, which do not hold all of them.
    if not same or any(a != b and a == a for a, b in zip(items, numbers.ravel().tolist(), strict=True)):
        raise InputError(refusal)
    return value


def check_storable(dataset: xr.Dataset) -> None:
    """Refuse values and coordinates that a dump does not give back as they are; values of variables are not read.

    An InputError names a variable that holds no numbers, a coordinate that holds neither texts nor numbers, or a dim
    without length.
    """
    for name in (name for name in VARIABLES if name in dataset):
        if dataset[name].dtype.kind not in "iuf":
            raise InputError(f"{name} holds values of type {dataset[name].dtype}; a dump holds numbers")
        if empty := [str(dim) for dim, size in dataset[name].sizes.items() if size == 0]:
            raise InputError(f"the dim {empty[0]} of {name} has no entry; a dump needs one at least along every dim")
    for name, (dim, _, _) in COORDINATES.items():
        if dim not in dataset.dims:
            continue
        values = dataset[name].values
        texts = values.dtype.kind in "OU" and all(isinstance(value, str) and _is_text(value) for value in values)
        if not texts and values.dtype.kind not in "iuf":
            raise InputError(f"the coordinate {name} must hold texts or numbers, not {shown(values)}")


def _is_text(text: str) -> bool:
    """Whether HDF5 can hold a text: no null character, and nothing that has no encoding."""
    try:
        return "\0" not in text and text.encode() is not None
    except UnicodeEncodeError:
        return False
