"""The labelled face of the statistics room: checked datasets in, datasets out (docs/method.md, 2 and 3)."""

import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr
from dask.local import get_sync

from posstats.arguments import choice
from posstats.dataset.door import DUMP, SEALED, check_sink, chosen, whole_dump
from posstats.dataset.parameters import explained
from posstats.errors import DesignError, FewDocumentsWarning, InputError
from posstats.stats.inference.documents import effective_documents
from posstats.stats.pair_products.terms import SteadyState, check_order
from posstats.stats.pair_products.terms import decompose as decompose_layer
from posstats.vocabulary import BASELINE, FEW_DOCUMENTS, LOG_ATTENTION, MINIMUM_DOCUMENTS, Note

_LONG_NAMES = {
    "relative": "log attention in the steady state: what the offset alone gives",
    "mask": "departure of the number of visible keys from the steady state",
    "sink": "departure of how position 0 is read from an ordinary key",
    "redistribution": "departure of attention among the ordinary keys: (s - log Zrest) - (ref[d] - G(m))",
    LOG_ATTENTION: "log attention log A[i,i-d], the sum of the four terms",
}


#: What the steady state is averaged over.
REFERENCES = ("pooled", "sequence")


@explained
def decompose(
    ds: xr.Dataset, offsets: Sequence[int] | None = None, *, order: str = "shapley", reference: str = "pooled"
) -> xr.Dataset:
    """Split log attention into its four additive terms.

    ``log A[i,i-d] = relative + mask + sink + redistribution``, exactly, per sequence, layer, head, query and offset.
    Every term but `relative` is a departure from the steady state, and all are functions of attention alone: a number
    added to all logits of a query changes none.

    Parameters
    ----------
    ds : xarray.Dataset
        A dump (:func:`posstats.open_dump`); lazy data stay lazy.
    %(offsets)s
    %(order)s
    reference : {"pooled", "sequence"}
        The steady state is the mean over the reference queries of all sequences of `ds`, which is what every estimator
        needs; or of each sequence by itself, for which a sequence whose hidden states are equal at all positions (the
        condition `repeat`) has no residual terms in the order "mask_first". `relative` then has a sequence dimension.

    Returns
    -------
    xarray.Dataset
        `relative` (condition, layer, head, offset), `mask` and `sink` (condition, sequence, layer, head, query),
        `redistribution` and `log_attention` (condition, sequence, layer, head, query, offset), all in nats; NaN at
        query 0 and where a key is not an ordinary visible one. The mask in the order "mask_first" is the same in every
        sequence. The recorded variables are kept, from which every estimator re-estimates the steady state.

    Raises
    ------
    InputError
        If `ds` is not a dump, an offset was not recorded, or an option is unknown.
    NumericalError
        If recorded values are infinite, or the terms do not sum to log attention (when computed).
    DesignError
        If a query sees more keys than any reference query does.

    Examples
    --------
    >>> import posstats as ps
    >>> terms = ps.decompose(ps.simulate(n=6, length=32, seed=0).dataset)
    >>> total = sum(terms[name] for name in ["relative", "mask", "sink", "redistribution"])
    >>> float(abs(total - terms.log_attention).max()) < 1e-9
    True
    """
    check_order(order)
    reference = choice("reference", reference, REFERENCES)
    ds = chosen(whole_dump(ds, what="Terms are split from a dump"), "offset", offsets)
    recorded = ds.offset.values.astype(np.int64)
    own = reference == "sequence"

    def one_head(logit, sink_logit, rest, steady_logit, log_sum, visible, learned):  # type: ignore[no-untyped-def]
        check_sink(sink_logit, visible)

        def split(part: slice) -> list[np.ndarray]:
            steady = SteadyState.of(steady_logit[part, None], log_sum[part, None]).mean()
            terms = decompose_layer(
                logit[part, None], sink_logit[part, None], rest[part, None], steady, visible,
                np.atleast_1d(learned), recorded, order=order,
            )  # fmt: skip
            return [terms.relative[0], *(getattr(terms, name)[:, 0] for name in output if name != "relative")]

        if not own:
            return tuple(split(slice(None)))
        relative, *others = zip(*(split(slice(n, n + 1)) for n in range(len(logit))), strict=True)
        return np.stack(relative), *map(np.concatenate, others)

    per_query = ["sequence", "query"]
    output = {
        "relative": ["sequence", "offset"] if own else ["offset"],
        "mask": per_query,
        "sink": per_query,
        "redistribution": [*per_query, "offset"],
        LOG_ATTENTION: [*per_query, "offset"],
    }
    per_lag = ["sequence", "lag"]
    arrays = xr.apply_ufunc(
        one_head,
        *(_whole_along(ds[name], ("sequence", "query", "offset", "lag")) for name in DUMP),
        input_core_dims=[
            [*per_query, "offset"], per_query, per_query, per_lag, per_lag, ["query"], [],
        ],
        output_core_dims=list(output.values()),
        vectorize=True,
        dask="parallelized",
        output_dtypes=[np.float64] * len(output),
        join="exact",
    )  # fmt: skip
    order_of_dims = ("condition", "sequence", "layer", "head", "query", "offset")
    kept = [name for name in (*SEALED, "steady_square", "layer_window") if name in ds]
    terms = ds[kept].assign(dict(zip(output, arrays, strict=True)))
    terms = terms.assign_coords({name: ds[name] for name in ds.coords if set(ds[name].dims) <= set(terms.sizes)})
    for name in output:
        terms[name] = terms[name].transpose(*(dim for dim in order_of_dims if dim in terms[name].dims))
        terms[name].attrs = {"units": "nats", "long_name": _LONG_NAMES[name]}
    return terms.assign_attrs(order=order)


def _whole_along(values: xr.DataArray, dims: Sequence[str]) -> xr.DataArray:
    """Lazy values in chunks that are whole along some dimensions."""
    return values if values.chunks is None else values.chunk({dim: -1 for dim in values.dims if dim in dims})


def select_condition(terms: xr.Dataset, condition: str) -> xr.Dataset:
    """Terms of one condition, or an InputError that lists the conditions there are."""
    available = np.atleast_1d(terms.condition.values).tolist()
    if condition not in available:
        raise InputError(f"Condition {condition!r} is not in this dump; it has {', '.join(map(str, available))}.")
    return terms.sel(condition=condition) if terms.condition.ndim else terms


def document_codes(terms: xr.Dataset) -> tuple[np.ndarray, int]:
    """Integer document codes per sequence and their number; DesignError where there are too few documents."""
    _, codes = np.unique(np.asarray(terms.document.values), return_inverse=True)
    n_documents = int(codes.max(initial=-1)) + 1
    if n_documents < MINIMUM_DOCUMENTS:
        raise DesignError(
            f"The data hold {n_documents} documents; intervals resample documents and need at least "
            f"{MINIMUM_DOCUMENTS} (24 or more to be trusted). Dump more documents."
        )
    return codes.astype(np.int64), n_documents


def repeated_documents_note(data: xr.Dataset) -> tuple[str, ...]:
    """The note that documents call for of which some sequence is one of another document.

    Sequences are compared by their tokens, or by the totals of their denominators in data without tokens.
    """
    what, name = ("tokens", "token_id") if "token_id" in data else ("numbers", "log_denominator_rest_total")
    if name not in data:
        return ()
    names = np.atleast_1d(data.condition.values).tolist()
    one = select_condition(data, BASELINE if BASELINE in names else names[0])
    # In this thread, as all that is little: a cluster that is at hand may have no worker yet.
    rows = one[name].transpose("sequence", ...).compute(scheduler=get_sync).values
    documents = data.document.values.tolist()
    first: dict[bytes, object] = {}
    repeated = {
        document
        for document, row in zip(documents, map(np.ndarray.tobytes, rows), strict=True)
        if first.setdefault(row, document) != document
    }
    if not repeated:
        return ()
    text = f"{len(repeated)} of {len(set(documents))} documents have the {what} of another: they are not independent"
    return (Note(text, "design"),)


def document_settings(codes: np.ndarray) -> dict[str, object]:
    """What a result says about its documents; their effective number too where they are unequally large."""
    counts = np.bincount(codes)
    settings: dict[str, object] = {"n_documents": len(counts), "n_sequences": len(codes)}
    effective = effective_documents(counts)
    return settings if effective == len(counts) else settings | {"effective_documents": round(effective, 1)}


def few_documents_note(n_documents: int, effective: float | None = None) -> tuple[str, ...]:
    """The note that few documents call for, if they, or their effective number, are few."""
    if (n_documents if effective is None else effective) >= FEW_DOCUMENTS:
        return ()
    few = f"only {n_documents} documents"
    if effective not in (None, n_documents):
        few = f"{n_documents} documents of unequal size count as {effective:.1f}"
    return (Note(f"{few}: intervals are reliable from {FEW_DOCUMENTS} documents on", "inference"),)


def few_documents(codes: np.ndarray) -> tuple[str, ...]:
    """The same note on the documents of sequences, of which the user is warned.

    To be called by what a public function calls to prepare itself: the warning points at who called that.
    """
    counts = np.bincount(codes)
    notes = few_documents_note(len(counts), effective_documents(counts))
    for note in notes:
        warnings.warn(note, FewDocumentsWarning, stacklevel=4)
    return notes


def check_offsets_visible(terms: xr.Dataset) -> None:
    """Raise DesignError where an offset reaches beyond the keys that some late query of a layer sees."""
    # In this thread: a cluster that is at hand may have no worker yet, and this is little.
    visible, n_queries = terms.visible_keys.compute(scheduler=get_sync), terms.sizes["query"]
    narrowest = visible.isel(query=slice(n_queries // 2, None)).min("query")
    for layer, keys in zip(visible.layer.values.tolist(), narrowest.values.tolist(), strict=True):
        outside = [d for d in terms.offset.values.tolist() if d >= keys]
        if outside and keys > n_queries // 2:
            raise DesignError(
                f"Offsets {outside} are too large for {n_queries} analysed queries, in the second half of which some "
                f"query sees {keys} keys; choose offsets below {keys} with offsets=, or dump longer sequences."
            )
        if outside:
            raise DesignError(
                f"Offsets {outside} lie outside the window of layer {layer}, which shows {keys} keys; "
                f"choose offsets below {keys} with offsets=."
            )
