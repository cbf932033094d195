"""A dataset in blocks of heads: descriptions of what one job reads, and what it makes of it once it is there.

Heads of a layer are independent of each other in every statistic, so a layer is read and computed as a whole where it
is small, and some heads at a time where it is not. Whoever does the job loads the block; until then it is a label.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import dask
import numpy as np
import xarray as xr
from dask.local import get_sync
from dask.utils import parse_bytes

from posstats.dataset.door import DUMP, TERMS, check_seal, check_sink, check_sums
from posstats.dataset.terms import document_codes
from posstats.errors import InputError
from posstats.stats.pair_products.components import LayerField, document_sums
from posstats.stats.pair_products.terms import check_recorded, lag_means, log_rest_share
from posstats.stats.pair_products.terms import reference as build_reference

#: Bytes, in double precision, that a block holds of the dump, unless a single head has more. Set anew by
#: ``dask.config.set({"posstats.block-bytes": "16 MiB"})`` or the variable DASK_POSSTATS__BLOCK_BYTES; results do not
#: depend on it.
BLOCK_BYTES = 2**26
#: The order of dims in all variables of the schema, and in terms.
_ORDER = ("condition", "sequence", "layer", "depth", "head", "query", "probe", "offset", "lag", "hidden", "channel")
_Made = TypeVar("_Made")
_Data = TypeVar("_Data", xr.Dataset, xr.DataArray)


@dataclass(frozen=True, slots=True)
class Block:
    """Some heads of one layer, of one or several paired datasets."""

    #: Label of the layer.
    layer: int
    #: Which of its heads, by number.
    heads: slice
    #: Whether no block of this layer follows.
    last: bool
    #: Their data, not loaded unless the dataset was.
    parts: tuple[xr.Dataset, ...]

    def __reduce__(self) -> tuple[type["Block"], tuple[object, ...]]:
        # Lazy data know all chunks of their dataset; what is sent to a worker, only its own.
        return Block, (self.layer, self.heads, self.last, dask.optimize(*self.parts))

    def load(self) -> Iterator[xr.Dataset]:
        """Read the data, one part after the other."""
        return (read(part) for part in self.parts)

    def fields(self) -> Iterator[LayerField]:
        """Read the data of :func:`field_blocks` and reduce them to documents, one part after the other."""
        return (_field(part) for part in self.parts)


def read(data: _Data) -> _Data:
    """Load data in this thread, whatever scheduler dask would use: jobs are already side by side.

    Sums depend, in their last digit, on how numbers lie in memory: they lie in the order of the schema.
    """
    loaded = data.compute(scheduler=get_sync)  # by its function: the name of a scheduler makes dask import distributed
    loaded = loaded.transpose(*_ORDER, missing_dims="ignore")
    if isinstance(loaded, xr.DataArray):
        return loaded.copy(data=np.asarray(loaded.values, order="C"))
    return loaded.assign({name: one.copy(data=np.asarray(one.values, order="C")) for name, one in loaded.items()})


def head_blocks(*sources: xr.Dataset, products: int = 0, bound: float | None = None) -> Iterator[Block]:
    """Blocks of all layers, none of them read, one layer after the other in the order of their labels: sums over
    layers then have the same last digit in whatever order the layers lie.

    `sources`, of a single condition each, have the same layers and heads and are read together; they should hold no
    more than the job needs. `products` counts the numbers that a job makes per head and pair of documents, as its data
    do; `bound` is bytes of a block in double precision, as configured (:data:`BLOCK_BYTES`) if None.
    """
    first = sources[0]
    labels = first.layer.values.tolist()
    n_heads = first.sizes["head"]
    size = _heads_at_once(sources, products, _configured() if bound is None else bound)
    for index in np.argsort(labels, kind="stable").tolist():
        for start in range(0, n_heads, size):
            heads = slice(start, min(start + size, n_heads))
            parts = tuple(one.isel(layer=index, head=heads) for one in sources)
            yield Block(labels[index], heads, heads.stop == n_heads, parts)


def field_blocks(*sources: xr.Dataset, products: int = 0, bound: float | None = None) -> Iterator[Block]:
    """Blocks, as of :func:`head_blocks`, of dumps or terms of which :meth:`Block.fields` makes sums per document.

    A dump is read as it is: what is estimated does not need the terms of every sequence. Raises InputError for terms
    with a reference per sequence.
    """
    return head_blocks(*map(_needed, sources), products=products, bound=bound)


def layer_fields(data: xr.Dataset) -> Iterator[tuple[int, LayerField]]:
    """Fields of whole layers, (layer label, field), one in memory at a time; `data` as for :func:`field_blocks`."""
    return ((block.layer, field) for block in field_blocks(data, bound=np.inf) for field in block.fields())


def by_layer(done: Iterable[tuple[Block, _Made]]) -> Iterator[tuple[int, list[_Made]]]:
    """Gather what was made of the blocks of each layer: (layer label, one entry per block)."""
    gathered: list[_Made] = []
    for block, made in done:
        gathered.append(made)
        if block.last:
            yield block.layer, gathered
            gathered = []


def _configured() -> float:
    configured = dask.config.get("posstats.block-bytes", BLOCK_BYTES)
    try:
        return float(parse_bytes(configured))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"posstats.block-bytes (DASK_POSSTATS__BLOCK_BYTES) must be a size, such as '16 MiB', not {configured!r}"
        ) from error


def _heads_at_once(sources: Sequence[xr.Dataset], products: int, bound: float) -> int:
    first = sources[0]
    variables = [values for one in sources for values in one.data_vars.values() if "head" in values.dims]
    numbers = sum(
        prod(values.sizes[dim] for dim in values.dims if dim not in ("layer", "head")) for values in variables
    )
    if products:
        numbers += len(sources) * products * document_codes(first)[1] ** 2
    size = max(1, bound / (8 * max(1, numbers)))
    if size >= first.sizes["head"]:
        return first.sizes["head"]
    size = int(size)
    # Whole chunks of the file: a part of one is not read without the rest.
    chunk = max((values.chunksizes["head"][0] for values in variables if "head" in values.chunksizes), default=1)
    return size - size % chunk if size > chunk else size


def _needed(data: xr.Dataset) -> xr.Dataset:
    if "reference_logit" in data and "sequence" in data.reference_logit.dims:
        raise InputError(
            "These terms have a reference per sequence; estimators need decompose(..., reference='pooled')."
        )
    kept = data[[*(TERMS if "logit_drift" in data else DUMP)]]
    return kept.drop_vars([name for name in kept.coords if name not in ("document", "offset", "layer", "head")])


def _field(layer: xr.Dataset) -> LayerField:
    codes, _ = document_codes(layer)
    loaded = read(layer)
    visible = loaded.visible_keys.values.astype(np.int64)
    learned = loaded.learned_sink.values.astype(np.float64)
    of_layer = _from_terms if "logit_drift" in loaded else _from_dump
    logit, rest_share, rest, lag_mean = of_layer(loaded, visible, learned)
    return LayerField(
        logit=document_sums(logit, codes),
        rest_share=document_sums(rest_share, codes),
        rest=document_sums(rest, codes),
        lag_mean=document_sums(lag_mean, codes),
        visible_keys=visible,
        learned_sink=learned,
        offsets=loaded.offset.values.astype(np.int64),
        sequences=np.bincount(codes).astype(np.float64),
    )


def _arrays(loaded: xr.Dataset, names: Sequence[str]) -> Iterator[np.ndarray]:
    """Variables of one layer as arrays in the order of the schema."""
    order = ("sequence", "head", "query", "offset", "lag")
    return (loaded[name].transpose(*(dim for dim in order if dim in loaded[name].dims)).values for name in names)


def _from_dump(loaded: xr.Dataset, visible: np.ndarray, _learned: np.ndarray) -> tuple[np.ndarray, ...]:
    """Logits, log(1 - A0), -log Zrest and mean logits by lag of every sequence, as they were recorded."""
    logit, sink, rest, sums = _arrays(loaded, ("logit", "sink_logit", "log_denominator_rest", "logit_sum_by_lag"))
    check_seal(loaded, logit, sums)
    check_sink(sink, visible)
    check_sums(sums, visible)
    check_recorded(logit, sink, rest)
    with np.errstate(invalid="ignore"):  # query 0, which is never analysed
        return logit, log_rest_share(sink, rest), -rest.astype(np.float64), lag_means(sums, visible)


def _from_terms(loaded: xr.Dataset, visible: np.ndarray, learned: np.ndarray) -> tuple[np.ndarray, ...]:
    """The same from terms, whose reference is taken out again: every replicate puts its own in its place."""
    names = ("logit_drift", "relative", "sink", "denominator_drift", "lag_mean", "reference_logit")
    logit, relative, sink, drift, lag_mean, reference_logit = _arrays(loaded, names)
    ref = build_reference(reference_logit, visible, learned)
    with np.errstate(invalid="ignore"):
        rest_share = sink + (ref.log_denominator_rest - ref.log_denominator)
    return logit + relative[:, None, :], rest_share, drift - ref.log_denominator_rest, lag_mean
