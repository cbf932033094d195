"""Sufficient statistics of leakage, its allocation to the terms, and magnitudes (docs/method.md, section 3).

Everything is a mean over pairs of sequences from different documents, so per-document sums are all that is kept of the
sequences; :mod:`posstats.stats.pair_products.evaluate` turns them into values at any document weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.errors import DesignError, NumericalError
from posstats.stats.pair_products.terms import Array

#: Components of :func:`share_statistics`, in order: leakage first, then its additive allocation.
SHARE_COMPONENTS = ("log_attention", "mask", "sink", "logit_drift", "denominator_drift")
#: Components of :func:`magnitude_statistics`, in order.
MAGNITUDE_COMPONENTS = ("log_attention", "mask", "sink", "logit_drift", "denominator_drift", "residual")


@dataclass(frozen=True, slots=True)
class LayerField:
    """What one layer of one condition contributes: sums over the sequences of each document.

    Only parts of log attention that do not depend on the reference; every set of weights builds its own.
    """

    #: (document, head, query, offset): sums of ``s[i, i-d]`` in nats.
    logit: Array
    #: (document, head, query): sums of ``log(1 - A0[i])``, and of ``-log Zrest[i]``.
    rest_share: Array
    rest: Array
    #: (document, head, lag): sums of mean logits by lag (see :func:`posstats.stats.pair_products.terms.lag_means`).
    lag_mean: Array
    #: (query,): keys visible to each query.
    visible_keys: NDArray[np.int64]
    #: (head,): learned sink logit, -inf where there is none.
    learned_sink: Array
    #: Offsets of the last axis of `logit`.
    offsets: NDArray[np.int64]
    #: (document,): number of sequences of each document.
    sequences: Array


def document_sums(values: Array, document: NDArray[np.int64]) -> Array:
    """Sum over the sequences of each document: (sequence, ...) -> (document, ...).

    `document`, (sequence,), holds codes 0 .. G - 1, each present.

    >>> document_sums(np.array([1.0, 2.0, 4.0]), np.array([1, 0, 1])).tolist()
    [2.0, 5.0]
    """
    order = np.argsort(document, kind="stable")
    starts = np.unique(document[order], return_index=True)[1]
    wide = values.astype(np.float64, copy=False)
    if len(starts) == len(order):  # every sequence is a document: nothing to add up
        return wide[order]
    return np.add.reduceat(wide[order], starts, axis=0)


def by_row(values: Array, project: Array) -> Array:
    """``values @ project``, one row at a time: the last digit of a row does not depend on how many rows there are.

    `values` are (..., query), `project` (query,) or (query, parameter).
    """
    rows: Array = np.ascontiguousarray(values)[..., None, :] @ project
    return rows[..., 0] if project.ndim == 1 else rows[..., 0, :]


def analysed_queries(length: int, offsets: NDArray[np.integer]) -> NDArray[np.int64]:
    """Queries of the headline estimates: ``max(offsets) < i < length - 1``.

    >>> analysed_queries(8, np.array([0, 2])).tolist()
    [3, 4, 5, 6]
    """
    queries = np.arange(int(np.max(offsets)) + 1, length - 1, dtype=np.int64)
    if len(queries) < 2:
        raise DesignError(
            f"Offset {int(np.max(offsets))} leaves {len(queries)} analysed queries in sequences of {length} tokens; "
            f"at least 2 are needed, so offsets must be at most {length - 4}."
        )
    return queries


def octave_bins(length: int) -> list[tuple[int, int]]:
    """Octaves ``[2, 4), [4, 8), ...`` of queries before the last, the last one cut short; single queries are left out.

    >>> octave_bins(12)
    [(2, 4), (4, 8), (8, 11)]
    """
    edges = [2**k for k in range(1, length.bit_length() + 1)]
    bins = [(low, min(2 * low, length - 1)) for low in edges]
    return [(low, high) for low, high in bins if high - low >= 2]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sufficient statistics of several components of one layer."""

    #: (head, component, document, document): symmetric products of per-document sums, zero diagonal, divided by the
    #: number of queries (and offsets).
    gram: Array
    #: (head, partner, document, query): per-document sums that a reference function, centred like them, is paired
    #: with; same scaling.
    partners: Array
    #: Which partner a component has.
    partner_of: tuple[int | None, ...]
    #: (component, 2): the reference function f as a combination of ``log Zref`` and ``log ZrefRest``.
    slope: Array
    #: (component,): weight of ``f . f``.
    square: Array
    #: Queries of the products, and queries whose mean is subtracted from every function of the query.
    queries: NDArray[np.int64]
    centre: NDArray[np.int64]
    #: Where the statistics come from.
    field: LayerField


def centred(values: Array, queries: NDArray[np.int64], centre: NDArray[np.int64], axis: int) -> Array:
    """Restrict to `queries` and subtract the mean over `centre` along `axis`; both are runs of queries."""
    run = (slice(None),) * axis
    mean = values[(*run, slice(centre[0], centre[-1] + 1))].mean(axis=axis, keepdims=True)
    return values[(*run, slice(queries[0], queries[-1] + 1))] - mean


def over_all(values: Array, queries: NDArray[np.int64], centre: NDArray[np.int64], length: int) -> Array:
    """The x for which ``<f, x>`` over all queries is ``<f - mean(f over centre), values>`` over `queries`."""
    spread = np.zeros((*values.shape[:-1], length))
    spread[..., queries] = values
    spread[..., centre] -= values.sum(axis=-1, keepdims=True) / len(centre)
    return spread


def _gram(x: Array, z: Array) -> Array:
    """Symmetric products of (document, head, ...) sums with a zero diagonal: (head, document, document)."""
    a, b = (np.moveaxis(one, 1, 0).reshape(one.shape[1], one.shape[0], -1) for one in (x, z))
    product = a @ b.transpose(0, 2, 1)
    product = 0.5 * (product + product.transpose(0, 2, 1))
    diagonal = np.arange(x.shape[0])
    product[:, diagonal, diagonal] = 0.0
    return product


def _parts(
    field: LayerField, queries: NDArray[np.int64], centre: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[Array, Array, Array, Array]:
    """Centred per-document sums of the logits, log(1 - A0), -log Zrest and log attention at the chosen offsets."""
    chosen = np.flatnonzero(np.isin(field.offsets, offsets))
    logit = centred(field.logit[..., chosen], queries, centre, axis=2)
    share = centred(field.rest_share, queries, centre, axis=2)
    rest = centred(field.rest, queries, centre, axis=2)
    if not all(np.isfinite(part).all() for part in (logit, share, rest)):
        raise NumericalError(
            "Log attention is not finite at an analysed query: an offset reaches beyond the window of this layer, "
            "position 0 takes all attention, or the dump holds NaN. Choose smaller offsets= or check the model."
        )
    return logit, share, rest, logit + (share + rest)[..., None]


@dataclass(frozen=True, slots=True)
class _Component:
    """One row of the recipe: factors of the Gram part, partner, combination of reference denominators, square."""

    factors: tuple[Array, Array] | None = None
    partner: int | None = None
    slope: tuple[float, float] = (0.0, 0.0)
    square: float = 0.0


def _statistics(
    field: LayerField,
    queries: NDArray[np.int64],
    centre: NDArray[np.int64],
    recipe: Sequence[_Component],
    partners: Sequence[Array],
    scale: float,
) -> Statistics:
    n_documents, heads = field.rest.shape[:2]
    gram = np.zeros((heads, len(recipe), n_documents, n_documents))
    none = np.empty((heads, 0, n_documents, len(queries)))
    for k, component in enumerate(recipe):
        if component.factors is not None:
            gram[:, k] = _gram(*component.factors) / scale
    return Statistics(
        gram=gram,
        partners=np.stack([np.moveaxis(partner, 1, 0) for partner in partners], axis=1) / scale if partners else none,
        partner_of=tuple(component.partner for component in recipe),
        slope=np.array([component.slope for component in recipe]),
        square=np.array([component.square for component in recipe]) / len(queries),
        queries=queries,
        centre=centre,
        field=field,
    )


def leakage_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of leakage alone, which the reference plays no part in: see :func:`share_statistics`."""
    y = _parts(field, queries, queries, offsets)[-1]
    return _statistics(field, queries, queries, [_Component((y, y))], [], scale=len(queries))


def share_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of leakage ``C(y, y)`` and of ``C(term, y)``, in the order of :data:`SHARE_COMPONENTS`.

    Summed over `offsets`, which must all exist (i - d >= 1, visible) at each of the analysed `queries`, a run, over
    which every function of the query is centred. The term `relative` is constant in the query, so its product is
    exactly zero and is left out. Raises NumericalError if a value is not finite.
    """
    logit, share, rest, y = _parts(field, queries, queries, offsets)
    total = y.sum(axis=-1)
    recipe = [
        _Component((y, y)),
        _Component(None, 0, slope=(-1.0, 0.0)),
        _Component((share, total), 0, slope=(1.0, -1.0)),
        _Component((logit, y)),
        _Component((rest, total), 0, slope=(0.0, 1.0)),
    ]
    return _statistics(field, queries, queries, recipe, [total], scale=len(queries))


def magnitude_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of how far each term is from its long-context value: :data:`MAGNITUDE_COMPONENTS`.

    The bin `queries` is a run; the mean over queries ``i >= T/2`` is subtracted instead of the bin's own, and
    `offsets` are averaged over. Raises NumericalError if a value is not finite.
    """
    late = _late(field)
    logit, share, rest, y = _parts(field, queries, late, offsets)
    n = len(offsets)
    recipe = [
        _Component((y, y)),
        _Component(None, None, slope=(-1.0, 0.0), square=1.0),
        _Component((share * n, share), 0, slope=(1.0, -1.0), square=1.0),
        _Component((logit, logit)),
        _Component((rest * n, rest), 1, slope=(0.0, 1.0), square=1.0),
        _Component((y, y), 2, slope=(1.0, 0.0), square=1.0),
    ]
    partners = [2 * n * share, 2 * n * rest, 2 * y.sum(axis=-1)]
    return _statistics(field, queries, late, recipe, partners, scale=len(queries) * n)


def residual_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """The residual-stream component of :func:`magnitude_statistics` alone."""
    late = _late(field)
    y = _parts(field, queries, late, offsets)[-1]
    recipe = [_Component((y, y), 0, slope=(1.0, 0.0), square=1.0)]
    return _statistics(field, queries, late, recipe, [2 * y.sum(axis=-1)], scale=len(queries) * len(offsets))


def _late(field: LayerField) -> NDArray[np.int64]:
    """Queries whose mean is a term's long-context value."""
    length = field.logit.shape[2]
    return np.arange((length + 1) // 2, length)
