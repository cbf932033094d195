"""The labelled face of the statistics room: checked datasets in, datasets out (docs/method.md, 2 and 3)."""

import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr
from dask.local import get_sync

from posstats.arguments import choice
from posstats.dataset.door import DUMP, check_seal, check_sink, check_sums, chosen, whole_dump
from posstats.dataset.parameters import explained
from posstats.errors import DesignError, FewDocumentsWarning, InputError
from posstats.stats.inference.documents import effective_documents
from posstats.stats.pair_products.terms import decompose as decompose_layer
from posstats.stats.pair_products.terms import lag_means
from posstats.stats.pair_products.terms import reference as build_reference
from posstats.vocabulary import BASELINE, FEW_DOCUMENTS, LOG_ATTENTION, MINIMUM_DOCUMENTS, TERMS, Note

_LONG_NAMES = {
    "relative": "what the offset alone explains: ref[d]",
    "mask": "the causal mask's denominator: -log Zref[i]",
    "sink": "excess reading of position 0: log(1-A0) - log(1-A0ref)",
    "logit_drift": "the residual stream moves this logit: s[i,i-d] - ref[d]",
    "denominator_drift": "the residual stream moves the other logits: -log Zrest + log ZrefRest",
    LOG_ATTENTION: "log attention log A[i,i-d], the sum of the five terms",
    "lag_mean": "mean logit by lag over keys j >= 1",
    "reference_logit": "stationary reference: mean of lag_mean over sequences",
}


#: What the stationary reference is averaged over.
REFERENCES = ("pooled", "sequence")


@explained
def decompose(ds: xr.Dataset, offsets: Sequence[int] | None = None, *, reference: str = "pooled") -> xr.Dataset:
    """Split log attention into its five additive terms.

    ``log A[i,i-d] = relative + mask + sink + logit_drift + denominator_drift``, exactly, per sequence, layer, head,
    query and offset.

    Parameters
    ----------
    ds : xarray.Dataset
        A dump (:func:`posstats.open_dump`); lazy data stay lazy.
    %(offsets)s
    reference : {"pooled", "sequence"}
        The stationary reference is the mean over queries and all sequences of `ds`, which is what every estimator
        needs; or of each sequence by itself, for which a sequence whose hidden states are equal at all positions (the
        condition `repeat`) has no residual terms at all. `relative` and `mask` then have a sequence dimension.

    Returns
    -------
    xarray.Dataset
        `relative` (condition, layer, head, offset), `mask` (condition, layer, head, query), `sink` and
        `denominator_drift` (condition, sequence, layer, head, query), `logit_drift` and `log_attention`
        (condition, sequence, layer, head, query, offset), all in nats; NaN at query 0 and where a key is not an
        ordinary visible one. `lag_mean` and `reference_logit` carry what the bootstrap needs to re-estimate the
        reference.

    Raises
    ------
    InputError
        If `ds` is not a dump, an offset was not recorded, or `reference` is unknown.
    NumericalError
        If recorded values are infinite, or the terms do not sum to log attention (when computed).

    Examples
    --------
    >>> import posstats as ps
    >>> terms = ps.decompose(ps.simulate(n=6, length=32, seed=0).dataset)
    >>> total = sum(terms[name] for name in ["relative", "mask", "sink", "logit_drift", "denominator_drift"])
    >>> float(abs(total - terms.log_attention).max()) < 1e-9
    True
    """
    reference = choice("reference", reference, REFERENCES)
    ds = chosen(whole_dump(ds, what="Terms are split from a dump"), "offset", offsets)
    recorded = ds.offset.values.astype(np.int64)

    own = ["sequence"] if reference == "sequence" else []

    def one_head(logit, sink_logit, rest, sums, visible, learned):  # type: ignore[no-untyped-def]  # xarray calls it
        check_seal(ds, logit, sums)
        check_sink(sink_logit, visible)
        check_sums(sums, visible)
        lag_mean = lag_means(sums, visible)

        def split(part: slice) -> tuple[np.ndarray, ...]:
            ref = build_reference(lag_mean[part].mean(axis=0)[None], visible, learned)
            terms = decompose_layer(logit[part, None], sink_logit[part, None], rest[part, None], ref, recorded)
            found = {name: getattr(terms, name) for name in (*TERMS, LOG_ATTENTION)}
            of_head = (values[0] if name in shared else values[:, 0] for name, values in found.items())
            return *of_head, lag_mean[part], ref.logit[0]

        if not own:
            return split(slice(None))
        alone = [split(slice(n, n + 1)) for n in range(len(logit))]
        return tuple(
            np.stack(values) if name in shared else np.concatenate(values)
            for name, values in zip(output, zip(*alone, strict=True), strict=True)
        )

    per_query = ["sequence", "query"]
    shared = ("relative", "mask", "reference_logit")
    output = {
        "relative": [*own, "offset"],
        "mask": [*own, "query"],
        "sink": per_query,
        "logit_drift": [*per_query, "offset"],
        "denominator_drift": per_query,
        LOG_ATTENTION: [*per_query, "offset"],
        "lag_mean": ["sequence", "lag"],
        "reference_logit": [*own, "lag"],
    }
    arrays = xr.apply_ufunc(
        one_head,
        *(_whole_along(ds[name], ("sequence", "query", "offset", "lag")) for name in DUMP),
        input_core_dims=[[*per_query, "offset"], per_query, per_query, ["sequence", "lag"], ["query"], []],
        output_core_dims=list(output.values()),
        vectorize=True,
        dask="parallelized",
        output_dtypes=[np.float64] * len(output),
        join="exact",
    )  # fmt: skip
    order = ("condition", "sequence", "layer", "head", "query", "offset", "lag")
    terms = xr.Dataset(dict(zip(output, arrays, strict=True)), attrs=dict(ds.attrs))
    terms = terms.assign_coords({name: ds[name] for name in ds.coords if set(ds[name].dims) <= set(terms.sizes)})
    for name in output:
        terms[name] = terms[name].transpose(*(dim for dim in order if dim in terms[name].dims))
        terms[name].attrs = {"units": "nats", "long_name": _LONG_NAMES[name]}
    for name in ("visible_keys", "learned_sink"):
        terms[name] = ds[name]
    return terms


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
    """The note that documents call for whose tokens, in every sequence, are those of another document."""
    if "token_id" not in data:
        return ()
    names = np.atleast_1d(data.condition.values).tolist()
    one = select_condition(data, BASELINE if BASELINE in names else names[0])
    # In this thread, as all that is little: a cluster that is at hand may have no worker yet.
    tokens = one.token_id.transpose("sequence", "query").compute(scheduler=get_sync)
    documents: dict[str, set[bytes]] = {}
    for document, row in zip(data.document.values.tolist(), np.ascontiguousarray(tokens.values), strict=True):
        documents.setdefault(document, set()).add(row.tobytes())
    repeated = len(documents) - len(set(map(frozenset, documents.values())))
    if not repeated:
        return ()
    text = f"{repeated} of {len(documents)} documents have the tokens of another: they are not independent"
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
    """Raise DesignError where an offset reaches beyond the window of some layer, or half of the sequence."""
    # In this thread: a cluster that is at hand may have no worker yet, and this is little.
    visible, length = terms.visible_keys.compute(scheduler=get_sync), terms.sizes["query"]
    narrowest = visible.isel(query=slice(visible.sizes["query"] // 2, None)).min("query")
    for layer, keys in zip(visible.layer.values.tolist(), narrowest.values.tolist(), strict=True):
        outside = [d for d in terms.offset.values.tolist() if d >= keys]
        if outside and keys > length // 2:
            raise DesignError(
                f"Offsets {outside} are too large for sequences of {length} tokens, in the second half of which some "
                f"query sees {keys} keys; choose offsets below {keys} with offsets=, or dump longer sequences."
            )
        if outside:
            raise DesignError(
                f"Offsets {outside} lie outside the window of layer {layer}, which shows {keys} keys; "
                f"choose offsets below {keys} with offsets=."
            )
