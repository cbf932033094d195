"""Evaluate any function of document weights and make its interval: estimands that are no sums of components."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.stats.inference.options import DEFAULT_METHOD
from posstats.stats.inference.resample import (
    Interval,
    document_pairs,
    document_weights,
    interval,
    jackknife_error,
    leave_out_weights,
)
from posstats.stats.pair_products.terms import Array


@dataclass(frozen=True, slots=True)
class Replicates:
    """Document weights at which an estimand is evaluated, in the order in which :meth:`interval` takes its values."""

    #: (replicate, document): ones (the estimate); ones without each document; then what the method needs: ones without
    #: pairs of documents, or bootstrap counts, followed for "studentized" by each count with one copy of each document
    #: left out.
    weights: Array
    #: One of :data:`posstats.stats.inference.options.INTERVAL_METHODS`.
    method: str
    level: float
    #: (pair, 2): documents left out together.
    pairs: NDArray[np.int64] | None
    #: (drawn, document): the bootstrap counts alone.
    drawn: Array

    @classmethod
    def of(
        cls,
        n_documents: int,
        method: str = DEFAULT_METHOD,
        level: float = 0.95,
        n_resamples: int = 2000,
        seed: int = 0,
    ) -> "Replicates":
        """Weights that a method needs; the jackknifes draw nothing.

        >>> x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # one value per document
        >>> replicates = Replicates.of(5)
        >>> found = replicates.interval(mean_at(x, np.ones(5), replicates.weights))
        >>> float(found.estimate), round(float(found.se), 4)
        (3.0, 0.7071)
        """
        whole = leave_out_weights(n_documents)
        none = np.empty((0, n_documents))
        if method == "jackknife":
            return cls(whole, method, level, None, none)
        if method == "corrected_jackknife":
            pairs = document_pairs(n_documents)
            return cls(leave_out_weights(n_documents, pairs), method, level, pairs, none)
        drawn = document_weights(n_documents, n_resamples, seed)
        rows = [whole, drawn]
        if method == "studentized":
            # Where a replicate lacks the document there is nothing to leave out; the row is not looked at.
            rows.append(np.maximum(drawn[:, None, :] - np.eye(n_documents), 0).reshape(-1, n_documents))
        return cls(np.concatenate(rows), method, level, None, drawn)

    def interval(self, values: Array, *, squared: bool | NDArray[np.bool_] = False, null: float = 0.0) -> Interval:
        """Interval and two-sided test, (...), of an estimand with `values` (replicate, ...) at :attr:`weights`.

        `squared` says whether it is a mean of squares (see :func:`posstats.stats.inference.resample.interval`).
        """
        n_documents, n_drawn = self.weights.shape[1], len(self.drawn)
        estimate, left_out, rest = values[0], values[1 : n_documents + 1], values[n_documents + 1 :]
        replicates, error = rest[:n_drawn] if n_drawn else None, None
        if self.method == "studentized":
            left = rest[n_drawn:].reshape(n_drawn, n_documents, *values.shape[1:])
            counts = self.drawn.reshape(n_drawn, *([1] * estimate.ndim), n_documents)
            error = jackknife_error(np.moveaxis(left, 1, -1), counts)
        return interval(
            estimate,
            left_out,
            replicates,
            error,
            pairs=self.pairs,
            pair_left_out=None if self.pairs is None else rest,
            squared=squared,
            method=self.method,
            level=self.level,
            null=null,
        )


def mean_at(sums: Array, sequences: Array, weights: Array) -> Array:
    """Mean over sequences at document weights: ``sum_g c_g sums_g / sum_g c_g n_g``, (replicate, ...).

    `sums`, (document, ...), are over the n_g `sequences`, (document,), of each; `weights` are (replicate, document).
    NaN in a replicate without a sequence.
    """
    total = (weights @ sequences).reshape(-1, *([1] * (sums.ndim - 1)))
    values = np.tensordot(weights, sums, axes=1)
    return np.divide(values, total, out=np.full_like(values, np.nan), where=total > 0)


def sums_at(values: Array, weights: Array) -> Array:
    """Sums (replicate, head, ...) of `values` (document, head, ...) at document `weights` (replicate, document).

    Head by head: the last digit does not depend on how many heads there are.
    """
    by_head = [np.tensordot(weights, np.ascontiguousarray(values[:, h]), axes=1) for h in range(values.shape[1])]
    return np.stack(by_head, axis=1)


def ratio_at(above: Array, below: Array, weights: Array) -> Array:
    """Ratio (replicate, ...) of two weighted sums over documents, never a mean of ratios; NaN where the lower is 0."""
    numerator, denominator = (np.tensordot(weights, sums, axes=1) for sums in (above, below))
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)


def evaluate_at(function: Callable[[Array], Array], weights: Array, block_bytes: int, row_bytes: int) -> Array:
    """Evaluate a function of weights, (replicate, document) to (replicate, ...), in blocks of rows.

    What it holds at once, `row_bytes` per row, stays below `block_bytes`, or is one row.
    """
    size = max(1, block_bytes // max(1, row_bytes))
    return np.concatenate([function(weights[start : start + size]) for start in range(0, len(weights), size)])
