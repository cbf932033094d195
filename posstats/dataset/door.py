"""The door of the statistics: every public function checks its dataset, and what is chosen from it, here.

A dataset that passes holds whole recordings, with all dimensions and labels that the function needs.
"""

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import xarray as xr
from dask.local import get_sync

from posstats.arguments import items, labels, shown
from posstats.errors import InputError, NumericalError
from posstats.stats.pair_products.terms import lag_counts
from posstats.vocabulary import COORDINATES, LOG_ATTENTION, VARIABLES

#: What every estimate of position is made of: variables of a dump, and of terms.
DUMP = ("logit", "sink_logit", "log_denominator_rest", "logit_sum_by_lag", "visible_keys", "learned_sink")
TERMS = (
    "relative", "sink", "logit_drift", "denominator_drift", "lag_mean", "reference_logit", "visible_keys",
    "learned_sink",
)  # fmt: skip
#: What rounding may do, per number format of the model: to a trajectory (relative), to an attention, to terms in nats,
#: and to sums relative to what is summed (docs/method.md, section 7).
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}
_PER_QUERY = ("condition", "sequence", "layer", "head", "query")
#: Dimensions of every variable of a dump and of terms; terms with a reference of their own per sequence have another.
_DIMS = {name: spec.dims for name, spec in VARIABLES.items()} | {
    "relative": ("condition", "layer", "head", "offset"),
    "mask": ("condition", "layer", "head", "query"),
    "sink": _PER_QUERY,
    "denominator_drift": _PER_QUERY,
    "logit_drift": (*_PER_QUERY, "offset"),
    LOG_ATTENTION: (*_PER_QUERY, "offset"),
    "lag_mean": ("condition", "sequence", "layer", "head", "lag"),
    "reference_logit": ("condition", "layer", "head", "lag"),
}
_PER_REFERENCE = ("relative", "mask", "reference_logit")
#: Dimensions of which a label may be selected, and those of which a recording must be whole.
_SELECTABLE = ("condition", "sequence", "layer", "head", "offset")
_WHOLE = ("query", "lag")
_KINDS = {"condition": "", "layer": "iu", "head": "iu", "offset": "iu"}


def whole_dump(data: object, names: Sequence[str] = (), what: str = "This estimate reads a dump") -> xr.Dataset:
    """Return a dump with all its dimensions: scalar selections have size 1 again, nothing else is changed.

    `names` are needed beside :data:`DUMP`; `what` begins the message where a variable is missing. Raises InputError if
    `data` is no dump, has been shortened, or lacks a variable, dimension or label, and NumericalError if its numbers
    do not agree with each other.
    """
    data = _dataset(data)
    if missing := [name for name in dict.fromkeys((*names, *DUMP)) if name not in data]:
        raise InputError(
            f"{what}, and this dataset lacks {', '.join(missing)}. Pass what open_dump(path) returns, not terms; a "
            "dump of an earlier version must be dumped again."
        )
    data = _checked(data, (*DUMP, *names, *(["token_id"] if "token_id" in data else [])))
    _check_first(data)
    return data


def whole_recording(data: object, offsets: object = None) -> xr.Dataset:
    """Return a dump or terms with all dimensions, at some offsets (None: all).

    Raises as :func:`whole_dump`, and InputError where an offset is not there, or is given twice.
    """
    data = _dataset(data)
    if "logit_drift" not in data:
        data = whole_dump(data)
    elif missing := [name for name in TERMS if name not in data]:
        raise InputError(f"These terms lack {', '.join(missing)}. Pass what decompose(ds) returns, or the dump.")
    else:
        data = _checked(data, TERMS)
    return chosen(data, "offset", offsets)


def chosen(data: xr.Dataset, dim: str, value: object) -> xr.Dataset:
    """Return the data at the chosen labels of a dimension; all of them where `value` is None."""
    there = data[dim].values.tolist()
    return data if value is None else data.sel({dim: labels(f"{dim}s", value, there, "whole numbers")})


def check_depths(data: xr.Dataset) -> None:
    """Raise InputError where the residual stream that a layer reads, at depth = layer, is not there."""
    labels("depth of a layer", data.layer.values, data.depth.values.tolist(), "whole numbers")


def check_by(by: object) -> tuple[str, ...]:
    """Return the dimensions to group by, a subset of layer and head, in that order."""
    dims = ("layer", "head")
    empty = isinstance(by, Sequence) and not isinstance(by, str) and not len(by)
    grouped = [] if empty else labels("by", items("by", by, "text"), dims, "text")
    return tuple(dim for dim in dims if dim in grouped)


def tolerance_of(data: xr.Dataset) -> tuple[str, float]:
    """Number format of the model behind a dump, and what rounding may do in it (:data:`TOLERANCES`)."""
    dtype = str(data.attrs.get("dtype", data.sink_logit.dtype))
    if dtype not in TOLERANCES:
        raise InputError(f"The dump says its model computed in {dtype!r}, not in one of {', '.join(TOLERANCES)}.")
    return dtype, TOLERANCES[dtype]


def check_seal(data: xr.Dataset, logit: np.ndarray, sums: np.ndarray) -> None:
    """Raise NumericalError where recorded sums do not agree with the logits: they belong to other queries or numbers.

    `logit` (..., query, offset) is NaN where a key is not an ordinary visible one; `sums` (..., lag) are over all
    queries; `data`, to which both belong, tells the offsets and the number format of its model.
    """
    seen = np.where(np.isnan(logit), 0.0, logit.astype(np.float64))
    size = np.abs(seen).sum(axis=-2)
    with np.errstate(invalid="ignore"):  # infinite logits are refused by themselves
        off = np.abs(seen.sum(axis=-2) - sums[..., data.offset.values.astype(np.int64)])
    if not (off <= tolerance_of(data)[1] * (1 + size)).all() and np.isfinite(size).all():
        raise NumericalError(
            "The logits of this dataset do not add up to the sums recorded with them: it holds a part of the queries, "
            "or numbers that were packed, filled in or changed. Pass what open_dump(path) returns, all queries of it."
        )


def check_sink(sink_logit: np.ndarray, visible: np.ndarray) -> None:
    """Raise NumericalError unless logits on position 0, (..., query), are NaN just where it is not among the keys.

    `visible`, (query,), is the number of keys visible to each query.
    """
    if (np.isnan(sink_logit) != (visible <= np.arange(len(visible)))).any():
        raise NumericalError(
            "sink_logit must be a number where position 0 is visible, and NaN elsewhere: these are changed or damaged."
        )


def check_sums(sums: np.ndarray, visible: np.ndarray) -> None:
    """Raise NumericalError where a sum by lag, (..., lag), is not finite although some query sees that lag."""
    if not np.isfinite(sums[..., lag_counts(visible) > 0]).all():
        raise NumericalError(
            "logit_sum_by_lag must be finite at every lag that a query sees: these numbers are changed or damaged."
        )


def _dataset(data: object) -> xr.Dataset:
    if not isinstance(data, xr.Dataset):
        raise InputError(
            f"The data must be an xarray.Dataset, as open_dump(path), decompose(ds) or simulate().dataset have it, not "
            f"{shown(data)}."
        )
    return data


def _checked(data: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Expand scalar selections, then check dimensions, labels, types and length of what is needed."""
    needed = {dim for name in names for dim in _DIMS[name]}
    for dim in _SELECTABLE:
        if dim in needed and dim not in data.dims:
            data = _expanded(data, dim)
    _check_labels(data, needed)
    for name in names:
        variable = data[name]
        spare = {"sequence"} if name in _PER_REFERENCE else set()
        if set(variable.dims) - spare != set(_DIMS[name]):
            raise InputError(
                f"{name} must have the dimensions {', '.join(_DIMS[name])}, not {', '.join(map(str, variable.dims))}."
            )
        counted = VARIABLES[name].units == "1" if name in VARIABLES else False
        if variable.dtype.kind not in ("iuf" if counted else "f"):
            raise InputError(f"{name} must hold {'numbers' if counted else 'floats'}, not {variable.dtype}.")
    _check_keys(data)
    length = data.attrs.get("length", data.sizes["query"])
    if not isinstance(length, Integral):
        raise InputError(f"The attribute length must be the number of tokens that were recorded, not {shown(length)}.")
    if length != data.sizes["query"]:
        raise InputError(
            f"This dataset holds {data.sizes['query']} of the {length} queries that were recorded. A dump cannot be "
            "shortened: pass all queries, or dump shorter sequences."
        )
    return data


def _expanded(data: xr.Dataset, dim: str) -> xr.Dataset:
    """A scalar coordinate as a dimension of size 1, of every variable that has it by the schema."""
    if dim not in data.coords:
        raise InputError(
            f"This dataset has no {dim}: keep the dimension where you select, as in ds.sel({dim}=[...]) or "
            f"ds.isel({dim}=[...])."
        )
    along = [name for name in data.data_vars if dim in _DIMS.get(str(name), ())]
    there = data[along].expand_dims(dim)
    if dim == "sequence" and "document" in there.coords:
        there = there.assign_coords(document=("sequence", np.atleast_1d(data.document.values)))
    there = there.assign({name: there[name].transpose(*_order(there[name], str(name))) for name in along})
    coords = [name for name in (dim, "document" if dim == "sequence" else dim) if name in data.coords]
    rest = data.drop_vars([*along, *coords])
    return rest.merge(there).assign_attrs(data.attrs)[list(data.data_vars)]


def _order(variable: xr.DataArray, name: str) -> list[str]:
    own = [dim for dim in _DIMS[name] if dim in variable.dims]
    return own + [str(dim) for dim in variable.dims if dim not in own]


def _check_labels(data: xr.Dataset, needed: set[str]) -> None:
    for name, (dim, _, _) in COORDINATES.items():
        if dim not in needed or name == "sequence":  # nothing is looked up by it
            continue
        if name not in data.coords or data[name].dims != (dim,):
            raise InputError(f"This dataset has no labels {name} along the dimension {dim}; a dump has them.")
        values = data[name].values
        if not len(values) and name != "document":  # without documents, their number is what is said
            raise InputError(f"This dataset holds no {name}: keep at least one where you select.")
        are_text = name == "condition" and all(isinstance(label, str) for label in values.tolist())
        if name in _KINDS and not are_text and values.dtype.kind not in _KINDS[name]:
            raise InputError(f"The labels {name} must be {'text' if name == 'condition' else 'whole numbers'}.")
        if name == "document" and {type(value) for value in values.tolist()} not in ({str}, {int}, set()):
            raise InputError("The labels document must be all text or all whole numbers: some are missing or differ.")
        if name == "offset" and (values >= data.sizes["query"]).any():
            raise InputError(
                f"The labels offset must lie below the {data.sizes['query']} queries, not {values.tolist()}."
            )
        if name in _KINDS and (repeated := _repeated(values)):
            raise InputError(f"This dataset holds {name} {repeated[0]!r} more than once; each label may occur once.")
        if name in _WHOLE and not np.array_equal(values, np.arange(data.sizes["query"])):
            raise InputError(
                f"This dataset holds a part of its {name} labels 0 .. T - 1. A dump cannot be shortened: pass all "
                "queries and lags, or dump shorter sequences."
            )


def _check_keys(data: xr.Dataset) -> None:
    """Raise InputError where numbers of visible keys, or learned sinks, are none that a model can have."""
    # In this thread: a cluster that is at hand may have no worker yet, and this is little.
    keys = data[["visible_keys", "learned_sink"]].compute(scheduler=get_sync)
    visible, learned = keys.visible_keys.transpose(..., "query").values, keys.learned_sink.values
    if not ((visible == np.round(visible)) & (visible >= 1) & (visible <= np.arange(1, visible.shape[-1] + 1))).all():
        raise InputError("visible_keys must be whole numbers from 1 to i + 1 at query i: these are changed or damaged.")
    if np.isnan(learned).any() or np.isposinf(learned).any():
        raise InputError("learned_sink must be a number, or -inf where there is none: these are changed or damaged.")


def _repeated(values: np.ndarray) -> list[object]:
    there = values.tolist()
    return [label for label in dict.fromkeys(there) if there.count(label) > 1]


def _check_first(data: xr.Dataset) -> None:
    """Check the seal of the first head; every block that is read has its own checked (:mod:`posstats.dataset.blocks`).

    It holds for functions too that read no logits.
    """
    names = ["logit", "logit_sum_by_lag", "sink_logit", "visible_keys"]
    first = data[names].isel(condition=0, layer=0, head=0, missing_dims="ignore")
    first = first.compute(scheduler=get_sync)  # in this thread: a cluster that is at hand may have no worker yet
    logit, sums = first.logit.transpose("sequence", "query", "offset"), first.logit_sum_by_lag.transpose(..., "lag")
    check_seal(data, logit.values, sums.values)
    check_sink(first.sink_logit.transpose(..., "query").values, first.visible_keys.values)
