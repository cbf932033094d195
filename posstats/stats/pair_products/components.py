"""Sufficient statistics of leakage, shares, sizes and magnitudes (docs/method.md, section 3).

Everything is a mean over pairs of sequences from different documents, so per-document sums are all that is kept of the
sequences; :mod:`posstats.stats.pair_products.evaluate` turns them into values at any document weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from posstats.errors import DesignError, NumericalError
from posstats.stats.pair_products.terms import (
    Array,
    KeyCounts,
    Shared,
    SteadyState,
    check_order,
    check_recorded,
    log_odds,
)
from posstats.vocabulary import LOG_ATTENTION, RESIDUAL, TERMS

#: Components of :func:`share_statistics`, in order: leakage first, then ``C(term, y)``. Every share is a combination
#: of them (:func:`share_parts`).
SHARE_COMPONENTS = (LOG_ATTENTION, "mask_first", "mask_last", "redistribution")
#: Components of :func:`size_statistics` and :func:`magnitude_statistics`, in order.
SQUARE_COMPONENTS = (LOG_ATTENTION, "mask", "sink", "redistribution", RESIDUAL)


@dataclass(frozen=True, slots=True)
class LayerField:
    """What one layer of one condition contributes: sums over the sequences of each document.

    The sink and the number of keys act together in one place only, ``f[i] = log(exp gain[i] + odds[i])`` with
    ``gain = G(n* - c) - G(m)`` of the steady state and ``odds = Z / Zrest - 1`` of the sequence. `joint` holds f at
    the gain of all documents, `slope` and `bend` its first two derivatives there, so that f follows a re-estimated
    steady state up to third order in the change of the gain.

    Attributes
    ----------
    logit : ndarray, shape (document, head, query, offset)
        Sums of ``s[i, i-d] - log Zrest[i]`` in nats.
    excess : ndarray, shape (document, head, query)
        Sums of ``log Z[i] - log Zrest[i]``.
    joint, slope, bend : ndarray, shape (document, head, query)
        Sums of f, f' and f''.
    gain : ndarray, shape (head, query)
        Where they were taken.
    steady_logit : ndarray, shape (document, head, offset)
        Sums of ``ref[d] - G(n*)``.
    steady_log_sum : ndarray, shape (document, head, lag)
        Sums of ``G(m) - G(n*)``.
    steady_level : ndarray, shape (document, head)
        Sums of ``G(n*)``.
    keys : KeyCounts
        Keys that each query sees.
    learned_sink : ndarray, shape (head,)
        Learned sink logit, -inf where there is none.
    offsets : ndarray of int, shape (offset,)
        Offsets of the last axis of `logit`.
    sequences : ndarray, shape (document,)
        Number of sequences of each document.
    """

    logit: Array
    excess: Array
    joint: Array
    slope: Array
    bend: Array
    gain: Array
    steady_logit: Array
    steady_log_sum: Array
    steady_level: Array
    keys: KeyCounts
    learned_sink: Array
    offsets: NDArray[np.int64]
    sequences: Array

    @classmethod
    def of(
        cls,
        recorded: Mapping[str, Array],
        document: NDArray[np.int64],
        visible_keys: NDArray[np.integer],
        learned_sink: Array,
        offsets: NDArray[np.integer],
    ) -> "LayerField":
        """Reduce the recorded quantities of some heads of a layer.

        Parameters
        ----------
        recorded : mapping of str to ndarray
            `logit` (sequence, head, query, offset), `sink_logit` and `log_denominator_rest` (sequence, head, query),
            `steady_logit` and `steady_log_sum` (sequence, head, lag), as in the dump schema.
        document : ndarray of int, shape (sequence,)
            Codes 0 .. G - 1, each present.
        visible_keys : ndarray of int, shape (query,)
        learned_sink : ndarray, shape (head,)
        offsets : ndarray of int, shape (offset,)

        Returns
        -------
        LayerField

        Raises
        ------
        NumericalError
            If a recorded value is infinite, or the steady state is not one.
        DesignError
            If a query sees more keys than the steady state shows.
        """
        logit, sink, rest = (recorded[name] for name in ("logit", "sink_logit", "log_denominator_rest"))
        check_recorded(logit, sink, rest)
        rest = rest.astype(np.float64)
        learned = np.asarray(learned_sink, dtype=np.float64)
        steady = SteadyState.of(recorded["steady_logit"], recorded["steady_log_sum"])
        mean = steady.mean()
        keys = KeyCounts.of(visible_keys, steady.log_sum.shape[-1])
        gain = Shared.of(mean.log_sum, mean.level, learned, keys).gain
        odds = log_odds(sink, rest, learned[:, None], keys.zero_seen)
        slope = expit(gain - odds)
        with np.errstate(invalid="ignore"):  # query 0, which is never analysed
            by_sequence = {
                "logit": logit - rest[..., None],
                "excess": np.logaddexp(0.0, odds),
                "joint": np.logaddexp(gain, odds),
                "slope": slope,
                "bend": slope * (1 - slope),
                "steady_logit": steady.at(offsets),
                "steady_log_sum": steady.log_sum,
                "steady_level": steady.level,
            }
        return cls(
            **{name: document_sums(values, document) for name, values in by_sequence.items()},
            gain=gain,
            keys=keys,
            learned_sink=learned,
            offsets=np.asarray(offsets, dtype=np.int64),
            sequences=np.bincount(document).astype(np.float64),
        )


def document_sums(values: Array, document: NDArray[np.int64]) -> Array:
    """Sum over the sequences of each document: (sequence, ...) -> (document, ...).

    Parameters
    ----------
    values : ndarray, shape (sequence, ...)
    document : ndarray of int, shape (sequence,)
        Codes 0 .. G - 1, each present.

    Examples
    --------
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

    Parameters
    ----------
    values : ndarray, shape (..., query)
    project : ndarray, shape (query,) or (query, parameter)

    Examples
    --------
    >>> by_row(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0])).tolist()
    [-1.0, -1.0]
    """
    rows: Array = np.ascontiguousarray(values)[..., None, :] @ project
    return rows[..., 0] if project.ndim == 1 else rows[..., 0, :]


def analysed_queries(n_queries: int, offsets: NDArray[np.integer]) -> NDArray[np.int64]:
    """Queries of the headline estimates: ``max(offsets) < i < Q``, Q the analysed half of the tokens.

    Examples
    --------
    >>> analysed_queries(8, np.array([0, 2])).tolist()
    [3, 4, 5, 6, 7]
    """
    queries = np.arange(int(np.max(offsets)) + 1, n_queries, dtype=np.int64)
    if len(queries) < 2:
        raise DesignError(
            f"Offset {int(np.max(offsets))} leaves {len(queries)} analysed queries in the first {n_queries} tokens of "
            f"sequences twice as long; at least 2 are needed, so offsets must be at most {n_queries - 3}."
        )
    return queries


def octave_bins(n_queries: int) -> list[tuple[int, int]]:
    """Octaves ``[2, 4), [4, 8), ...`` of the analysed half, the last one cut short; single queries are left out.

    Examples
    --------
    >>> octave_bins(12)
    [(2, 4), (4, 8), (8, 12)]
    """
    edges = [2**k for k in range(1, n_queries.bit_length())]
    bins = [(low, min(2 * low, n_queries)) for low in edges]
    return [(low, high) for low, high in bins if high - low >= 2]


@dataclass(frozen=True, slots=True)
class Response:
    """How the field of a term moves with the steady state: weights of what the steady state gives.

    Attributes
    ----------
    mask_first, ordinary, learned : float
        Of the functions of :class:`~posstats.stats.pair_products.terms.Shared`, the same in every sequence.
    relative : float
        Of ``-(ref[d] - G(n*))``, the same in every sequence.
    joint : float
        Of f, the sequence's own function of the gain (:class:`LayerField`).
    """

    mask_first: float = 0.0
    ordinary: float = 0.0
    learned: float = 0.0
    relative: float = 0.0
    joint: float = 0.0

    @property
    def moves(self) -> bool:
        """Whether there is any."""
        return any((self.mask_first, self.ordinary, self.learned, self.relative, self.joint))


def responses(last: float) -> dict[str, Response]:
    """Term -> how it moves with the steady state, given the weight of the mask counted last.

    Examples
    --------
    >>> responses(0.5)["mask"].joint
    0.5
    """
    return {
        LOG_ATTENTION: Response(),
        "mask": Response(mask_first=1 - last, joint=last),
        "sink": Response(mask_first=last - 1, ordinary=-1.0, learned=1.0, joint=-last),
        "redistribution": Response(ordinary=1.0, relative=1.0),
        RESIDUAL: Response(mask_first=last - 1, learned=1.0, relative=1.0, joint=-last),
    }


def combine(
    logit: Array, excess: Array, joint: Array, n: Array | float, shared: Shared, steady_logit: Array, last: float
) -> dict[str, Array]:
    """Sums of the terms over sequences, from sums of what each of them is made of.

    Parameters
    ----------
    logit : ndarray, shape (..., head, query, offset)
        Sums of ``s[i, i-d] - log Zrest[i]``.
    excess, joint : ndarray, shape (..., head, query)
        Sums of ``log Z - log Zrest`` and of f at the gain of `shared` (:class:`LayerField`).
    n : ndarray, shape (..., 1, 1), or float
        How many sequences were added up.
    shared : Shared
        Functions of the query, (..., head, query).
    steady_logit : ndarray, shape (..., head, offset)
        ``ref[d] - G(n*)``.
    last : float
        Weight of the mask counted last.

    Returns
    -------
    dict of str to ndarray
        `mask` and `sink` (..., head, query); `log_attention`, `redistribution` and `residual` (..., head, query,
        offset).
    """
    mask = last * (joint - excess) + (1 - last) * n * shared.mask_first
    sink = n * (shared.learned[..., None] - shared.ordinary) - excess - mask
    steady = n * shared.ordinary
    redistribution = logit - (np.asarray(n)[..., None] * steady_logit[..., None, :] - steady[..., None])
    return {
        LOG_ATTENTION: logit - excess[..., None],
        "mask": mask,
        "sink": sink,
        "redistribution": redistribution,
        RESIDUAL: redistribution + sink[..., None],
    }


def term_sums(field: LayerField, last: float) -> dict[str, Array]:
    """Per-document sums of the terms at the steady state of all documents: :func:`combine`, documents first."""
    shared, steady_logit = estimated_state(field)
    moved = shared.gain - field.gain  # nothing, unless the documents are not those that the field was made of
    joint = field.joint + field.slope * moved + field.bend * moved**2 / 2
    n = field.sequences[:, None, None]
    return combine(field.logit, field.excess, joint, n, shared, steady_logit, last)


@dataclass(frozen=True, slots=True)
class Component:
    """Products of one term with itself or with log attention, and how they move with the steady state.

    Slots are the queries, each holding the mean over the offsets, and after them, where the term is not centred, one
    per offset for what departs from that mean: all scaled so that products of slots add up to the component.

    Attributes
    ----------
    response : Response
    field : ndarray, shape (document, head, slot)
        Per-document sums of the term, the steady state at its estimate.
    other : ndarray, shape (document, head, slot), or None
        The other factor, which does not move; None for a square.
    """

    response: Response
    field: Array
    other: Array | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sufficient statistics of several components of one layer.

    Attributes
    ----------
    gram : ndarray, shape (head, component, document, document)
        Products of per-document sums at the estimated steady state: symmetric, zero diagonal, divided by the number
        of queries (and offsets). Summed over pairs of documents and divided by their number they give the estimate.
    components : tuple of (Component or None)
        What moves with the steady state; None where nothing does.
    weight : float
        Square of a slot's scale: offsets over the divisor of `gram`.
    offset_weight : float
        The same of an offset's slot, 0 where there are none.
    centred : bool
        Whether fields are centred over the queries.
    queries, offsets : ndarray of int
        Queries, a run, and indices of the offsets in the field.
    field : LayerField
        Where the statistics come from.
    """

    gram: Array
    components: tuple[Component | None, ...]
    weight: float
    offset_weight: float
    centred: bool
    queries: NDArray[np.int64]
    offsets: NDArray[np.int64]
    field: LayerField


def estimated_state(field: LayerField) -> tuple[Shared, Array]:
    """What the steady state of all documents gives: functions of all queries, and ``ref[d] - G(n*)`` (head, offset)."""
    n = field.sequences.sum()
    log_sum, level = field.steady_log_sum.sum(axis=0) / n, field.steady_level.sum(axis=0) / n
    return Shared.of(log_sum, level, field.learned_sink, field.keys), field.steady_logit.sum(axis=0) / n


def share_parts(order: str = "shapley") -> dict[str, Array]:
    """Weights of :data:`SHARE_COMPONENTS` that make ``C(term, y)``.

    Parameters
    ----------
    order : str
        Of mask and sink (:data:`posstats.stats.pair_products.terms.ORDERS`).

    Returns
    -------
    dict of str to ndarray, shape (component,)
        The four terms, `residual`, `mask_first` and `mask_last`.

    Examples
    --------
    >>> share_parts("mask_last")["residual"].tolist()  # what is left of log attention
    [1.0, 0.0, -1.0, 0.0]
    """
    last = check_order(order)
    whole, first, given_sink, redistribution = np.eye(len(SHARE_COMPONENTS))
    mask = (1 - last) * first + last * given_sink
    terms = dict(zip(TERMS, (0 * whole, mask, whole - mask - redistribution, redistribution), strict=True))
    return terms | {RESIDUAL: whole - mask, "mask_first": first, "mask_last": given_sink}


def leakage_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of leakage alone, which the steady state plays no part in: see :func:`share_statistics`."""
    return _squares(field, queries, offsets, (LOG_ATTENTION,), 0.0, centred=True)


def share_statistics(field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64]) -> Statistics:
    """Sufficient statistics of leakage ``C(y, y)`` and of ``C(term, y)``, summed over `offsets`.

    Parameters
    ----------
    field : LayerField
    queries : ndarray of int
        Analysed queries, a run; every function of the query is centred over them.
    offsets : ndarray of int
        Offsets summed over; all must exist (i - d >= 1, visible) at every analysed query.

    Returns
    -------
    Statistics
        Components in the order of :data:`SHARE_COMPONENTS`. The term `relative` is constant in the query, so its
        product is exactly zero, and what mask and redistribution leave of log attention is the sink's.

    Raises
    ------
    NumericalError
        If a value is not finite.
    """
    slots = Slots(field, queries, offsets, len(queries), centred=True)
    y = slots.cut(slots.terms(0.0)[LOG_ATTENTION])
    first, last = (responses(weight)["mask"] for weight in (0.0, 1.0))
    recipe = [
        (slots.terms(0.0)["mask"], first),
        (slots.terms(1.0)["mask"], last),
        (slots.terms(0.0)["redistribution"], responses(0.0)["redistribution"]),
    ]
    grams = [pair_gram(y, y) / slots.divisor]
    components: list[Component | None] = [None]
    other = slots.folded(y)
    for sums, response in recipe:
        x = slots.cut(sums)
        folded = slots.folded(x)
        grams.append(pair_gram(x, y) / slots.divisor if x.ndim == 4 else pair_gram(folded, other))
        components.append(Component(response, folded, other))
    return slots.statistics(grams, components)


def size_statistics(
    field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64], last: float = 0.5
) -> Statistics:
    """Sufficient statistics of the sizes ``C(term, term)``, centred over `queries` and summed over `offsets`.

    Parameters
    ----------
    field, queries, offsets
        As in :func:`share_statistics`.
    last : float
        Weight of the mask counted last, given the sink.

    Returns
    -------
    Statistics
        Components in the order of :data:`SQUARE_COMPONENTS`.
    """
    return _squares(field, queries, offsets, SQUARE_COMPONENTS, last, centred=True)


def magnitude_statistics(
    field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64], last: float = 0.5
) -> Statistics:
    """Sufficient statistics of the magnitudes: pair products of the terms themselves, averaged over the offsets.

    Parameters
    ----------
    field, queries, offsets
        As in :func:`share_statistics`, but nothing is centred.
    last : float
        Weight of the mask counted last, given the sink.

    Returns
    -------
    Statistics
        Components in the order of :data:`SQUARE_COMPONENTS`; `log_attention` departs from the steady state, that is
        ``log A - relative``.
    """
    return _squares(field, queries, offsets, SQUARE_COMPONENTS, last, centred=False)


def residual_statistics(
    field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64], last: float = 0.5
) -> Statistics:
    """The residual-stream component of :func:`magnitude_statistics` alone."""
    return _squares(field, queries, offsets, (RESIDUAL,), last, centred=False)


def residual_size_statistics(
    field: LayerField, queries: NDArray[np.int64], offsets: NDArray[np.int64], last: float = 0.5
) -> Statistics:
    """The residual-stream component of :func:`size_statistics` alone."""
    return _squares(field, queries, offsets, (RESIDUAL,), last, centred=True)


def _squares(
    field: LayerField,
    queries: NDArray[np.int64],
    offsets: NDArray[np.int64],
    names: Sequence[str],
    last: float,
    *,
    centred: bool,
) -> Statistics:
    slots = Slots(field, queries, offsets, len(queries) * (1 if centred else len(offsets)), centred)
    moving = responses(last)
    sums = slots.terms(last)
    if not centred:
        shared, steady_logit = estimated_state(field)
        relative = field.sequences[:, None, None] * (steady_logit - shared.learned[:, None])
        sums[LOG_ATTENTION] = sums[LOG_ATTENTION] - relative[:, :, None]
        moving[LOG_ATTENTION] = Response(learned=1.0, relative=1.0)
    grams, components = [], []
    for name in names:
        x = slots.cut(sums[name])
        folded = slots.folded(x)
        grams.append(pair_gram(x, x) / slots.divisor if x.ndim == 4 else pair_gram(folded, folded))
        components.append(Component(moving[name], folded) if moving[name].moves else None)
    return slots.statistics(grams, components)


@dataclass(frozen=True, slots=True)
class Slots:
    """How fields of the query and the offset are cut, centred and folded into slots (:class:`Component`).

    Attributes
    ----------
    field : LayerField
    queries, offsets : ndarray of int
    divisor : int
        What sums of products over queries and offsets are divided by.
    centred : bool
    """

    field: LayerField
    queries: NDArray[np.int64]
    offsets: NDArray[np.int64]
    divisor: int
    centred: bool

    @property
    def chosen(self) -> NDArray[np.intp]:
        """Which offsets of the field."""
        return np.flatnonzero(np.isin(self.field.offsets, self.offsets))

    def terms(self, last: float) -> dict[str, Array]:
        """Per-document sums of the terms at the estimated steady state."""
        return term_sums(self.field, last)

    def cut(self, values: Array) -> Array:
        """A term at the chosen queries and offsets, centred if so wished."""
        run = values[:, :, self.queries[0] : self.queries[-1] + 1]
        run = run[..., self.chosen] if run.ndim == 4 else run
        if not np.isfinite(run).all():
            raise NumericalError(
                "Log attention is not finite at an analysed query: an offset reaches beyond the window of this layer, "
                "position 0 takes all attention, or the dump holds NaN. Choose smaller offsets= or check the model."
            )
        return run - run.mean(axis=2, keepdims=True) if self.centred else run

    def folded(self, x: Array) -> Array:
        """A cut term in slots."""
        n_queries, n_offsets = len(self.queries), len(self.chosen)
        mean = x.mean(axis=3) if x.ndim == 4 else x
        slots = np.sqrt(n_offsets / self.divisor) * mean
        if self.centred:
            return slots
        beside = np.zeros((*x.shape[:2], n_offsets))
        if x.ndim == 4:
            beside = (x - mean[..., None]).sum(axis=2) / np.sqrt(n_queries * self.divisor)
        return np.concatenate([slots, beside], axis=2)

    def statistics(self, grams: Sequence[Array], components: Sequence[Component | None]) -> Statistics:
        """The statistics of components with these products."""
        return Statistics(
            gram=np.stack(grams, axis=1),
            components=tuple(components),
            weight=len(self.chosen) / self.divisor,
            offset_weight=0.0 if self.centred else len(self.queries) / self.divisor,
            centred=self.centred,
            queries=self.queries,
            offsets=self.chosen,
            field=self.field,
        )


def pair_gram(x: Array, z: Array) -> Array:
    """Symmetric products of (document, head, ...) sums with a zero diagonal: (head, document, document)."""
    a, b = (np.moveaxis(one, 1, 0).reshape(one.shape[1], one.shape[0], -1) for one in (x, z))
    product = a @ b.transpose(0, 2, 1)
    product = 0.5 * (product + product.transpose(0, 2, 1))
    diagonal = np.arange(x.shape[0])
    product[:, diagonal, diagonal] = 0.0
    return product
