"""Datasets from attention weights of any source: the terms are functions of attention alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import items, labels, several, shown, text
from posstats.dataset.simulate import recorded_dataset
from posstats.errors import InputError
from posstats.stats.synthetic.simulate import record_logits
from posstats.vocabulary import BASELINE, DEFAULT_OFFSETS, RECEIVED_DISTANCE, received_queries

#: Most that the weights of a query may miss 1 by, whatever their number format.
_LARGEST_MISS = 1e-2


def from_attention(
    weights: Any,
    *,
    document: Sequence[Any] | None = None,
    tokens: Any = None,
    offsets: Sequence[int] = DEFAULT_OFFSETS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    source: str = "attention weights",
) -> xr.Dataset:
    """Build a dataset from attention weights, whatever they come from.

    A number added to all logits of a query changes no term, so that log attention serves as logits: caches of
    interpretability tools, dumps of serving engines, and models without rotary embeddings are analysed like a dump.

    Parameters
    ----------
    weights : array_like, (sequence, layer, head, query, key), or mapping of str to array_like
        Attention after the softmax, of whole sequences of T tokens, T divisible by 4; the first half is analysed, the
        last quarter is the steady state. Whatever numpy can make an array of, torch tensors on the CPU for example.
        A mapping holds one such array per condition, all of one shape. Keys that the mask hides have weight 0; the
        keys that a query sees must be a run that ends at it.
    document : sequence, optional
        Label of the document of each sequence, the resampling unit; each its own by default.
    tokens : array_like of int, (sequence, token), optional
        Ids of the tokens, which sinks at all keys need.
    offsets : sequence of int
        Distances from query to key that are analysed.
    layers, heads : sequence of int, optional
        Labels; numbers from 0 by default.
    source : str
        What the weights come from, kept as the attribute `model`.

    Returns
    -------
    xarray.Dataset
        The variables of a dump that leakage, shares, sizes, magnitudes, removal, position tests, decoding and, with
        `tokens`, sinks at all keys read.

    Raises
    ------
    InputError
        If the weights have another shape, are not finite, negative or not causal, do not sum to 1 for every query
        (learned sink logits take the rest: their models are dumped), or vanish for a key between visible ones.

    Examples
    --------
    >>> import posstats as ps
    >>> uniform = np.tril(np.ones((64, 64))) / np.arange(1, 65)[:, None]
    >>> ds = ps.from_attention(np.broadcast_to(uniform, (30, 1, 2, 64, 64)), offsets=(0, 1, 2))
    >>> mask = ps.decompose(ds).mask.sel(query=15)  # 16 of 32 keys are visible
    >>> round(float(mask.mean()), 6) == round(float(np.log(32 / 16)), 6)
    True
    """
    given = weights if isinstance(weights, Mapping) else {BASELINE: weights}
    if not given:
        raise InputError("weights must hold at least one condition.")
    arrays = {str(name): _checked(value, str(name)) for name, value in given.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) > 1:
        raise InputError(f"The weights of all conditions must have one shape, not {', '.join(map(str, shapes))}.")
    (n_sequences, n_layers, n_heads, length, _) = shapes.pop()
    offsets = labels("offsets", items("offsets", offsets, "whole numbers"), range(length // 2 - 1), "whole numbers")
    own = {
        "document": _documents(document, n_sequences),
        "layer": _labels("layers", layers, n_layers),
        "head": _labels("heads", heads, n_heads),
    }
    visible_keys = _visible_keys(list(arrays.values()))
    with np.errstate(divide="ignore"):  # what no query sees
        logits = {name: np.log(array) for name, array in arrays.items()}
    recorded = record_logits(logits, offsets, visible_keys=visible_keys)
    received = np.stack([_received(array, visible_keys) for array in arrays.values()])
    own |= {"key": np.arange(length // 2)}
    extra = {"attention_received": received}
    if tokens is not None:
        own |= {"token": np.arange(length)}
        ids = _tokens(tokens, (n_sequences, length))
        extra |= {"token_id": np.repeat(ids[None], len(arrays), axis=0)}
    return recorded_dataset(recorded, length, {"model": text("source", source)}, extra, coordinates=own)


def _received(weights: NDArray[np.float64], visible_keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean attention on the keys of the first half, from sampled queries that see them from afar."""
    length = weights.shape[-1]
    queries = np.array(received_queries(length))
    lag = queries[:, None] - np.arange(length // 2)
    far = (lag >= RECEIVED_DISTANCE) & (lag < visible_keys[:, queries, None])  # (layer, query, key)
    total = np.einsum("nlhqk,lqk->nlhk", weights[..., queries, : length // 2], far, optimize=True)
    count = far.sum(axis=1)[:, None]
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _tokens(given: Any, shape: tuple[int, int]) -> NDArray[np.int64]:
    try:
        ids = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"tokens cannot be read as an array: {error}") from error
    if ids.shape != shape or ids.dtype.kind not in "iu":
        raise InputError(f"tokens must be whole numbers of shape {shape}, not {ids.dtype} of shape {ids.shape}.")
    return ids.astype(np.int64)


def _checked(weights: Any, name: str) -> NDArray[np.float64]:
    """Attention weights in double precision, or an InputError that says what is wrong with them."""
    try:
        given = np.asarray(weights)
        if given.dtype.kind == "c":
            raise TypeError("attention weights are no complex numbers")
        array = given.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # what torch raises for tensors that numpy cannot hold
        raise InputError(f"The weights of {name!r} cannot be read as an array: {error}") from error
    if array.ndim != 5 or array.shape[3] != array.shape[4] or 0 in array.shape:
        raise InputError(
            f"weights must be (sequence, layer, head, query, key) with as many keys as queries, not {array.shape}."
        )
    length = array.shape[-1]
    if length < 8 or length % 4:
        raise InputError(f"The number of tokens must be at least 8 and divisible by 4, not {length}.")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(f"The weights of {name!r} must be finite and not negative.")
    if np.triu(array, 1).any():
        raise InputError(f"The weights of {name!r} are not causal: a query attends to a key behind it in the sequence.")
    eps = float(np.finfo(given.dtype).eps) if given.dtype.kind == "f" else 0.0
    miss, allowed = float(np.abs(array.sum(axis=-1) - 1).max()), float(np.clip(length * eps, 1e-9, _LARGEST_MISS))
    if miss > allowed:
        raise InputError(
            f"The weights of {name!r} must sum to 1 over the keys of every query; one misses it by {miss:.3g}."
        )
    return array


def _visible_keys(arrays: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Keys that each query sees, (layer, query): the run from the first key with weight anywhere up to the query."""
    attended = np.any([(array > 0).any(axis=(0, 2)) for array in arrays], axis=0)
    position = np.arange(attended.shape[-1])
    visible = position + 1 - attended.argmax(axis=-1)
    run = (position[:, None] - position < visible[..., None]) & (position <= position[:, None])
    if any(((array == 0) & run[:, None]).any() for array in arrays):
        raise InputError(
            "Attention of exactly 0 on a key between visible ones has no logarithm: the weights underflow, or their "
            "mask is not a run of keys up to the query. Pass weights in a wider number format."
        )
    return visible


def _documents(given: object, size: int) -> NDArray[Any]:
    if given is None:
        return np.arange(size)
    are_text = all(isinstance(one, str) for one in several("document", given, "labels"))
    found = items("document", given, "text" if are_text else "whole numbers")
    if len(found) != size:
        raise InputError(f"document must have one label for each of the {size} sequences, not {len(found)}.")
    return np.array(found)


def _labels(name: str, given: object, size: int) -> NDArray[np.int64]:
    found = list(range(size)) if given is None else items(name, given, "whole numbers")
    if len(found) != size or len(set(found)) < size:
        raise InputError(f"{name} must be {size} different whole numbers, not {shown(given)}.")
    return np.array(found)
