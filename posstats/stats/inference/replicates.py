"""Evaluate any function of document weights and make its interval: estimands that are no sums of components."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """Document weights at which an estimand is evaluated, in the order in which :meth:`interval` takes its values.

    Attributes
    ----------
    weights : ndarray, shape (replicate, document)
        Ones (the estimate); ones without each document; then what the method needs: ones without pairs of documents, or
        bootstrap counts, followed for "studentized" by each count with one copy of each document left out.
    method : str
        One of :data:`posstats.stats.inference.options.RESAMPLING`.
    level : float
        Confidence level.
    pairs : ndarray of int, shape (pair, 2), or None
        Documents left out together.
    drawn : ndarray, shape (drawn, document)
        The bootstrap counts alone.
    """

    weights: Array
    method: str
    level: float
    pairs: NDArray[np.int64] | None
    drawn: Array

    @classmethod
    def of(
        cls,
        n_documents: int,
        method: str = "jackknife",
        level: float = 0.95,
        n_resamples: int = 2000,
        seed: int = 0,
    ) -> "Replicates":
        """Weights that a method needs.

        Parameters
        ----------
        n_documents : int
        method : str
            Interval method.
        level : float
        n_resamples, seed : int
            Of the bootstrap; the jackknifes draw nothing.

        Returns
        -------
        Replicates

        Examples
        --------
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
        # Where a replicate lacks the document there is nothing to leave out; the row is not looked at.
        fewer = np.maximum(drawn[:, None, :] - np.eye(n_documents), 0).reshape(-1, n_documents)
        return cls(np.concatenate([whole, drawn, fewer]), method, level, None, drawn)

    def interval(self, values: Array, *, squared: bool | NDArray[np.bool_] = False, null: float = 0.0) -> Interval:
        """Interval and two-sided test of an estimand.

        Parameters
        ----------
        values : ndarray, shape (replicate, ...)
            The estimand at every row of :attr:`weights`.
        squared : bool or ndarray of bool
            Whether it is a mean of squares (see :func:`posstats.stats.inference.resample.interval`).
        null : float
            Value tested.

        Returns
        -------
        Interval
            Of shape (...).
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
    """Mean over sequences at document weights.

    Parameters
    ----------
    sums : ndarray, shape (document, ...)
        Sums over the sequences of each document.
    sequences : ndarray, shape (document,)
        Number of sequences of each document.
    weights : ndarray, shape (replicate, document)

    Returns
    -------
    ndarray, shape (replicate, ...)
        ``sum_g c_g sums_g / sum_g c_g n_g``; NaN in a replicate without a sequence.
    """
    total = (weights @ sequences).reshape(-1, *([1] * (sums.ndim - 1)))
    values = np.tensordot(weights, sums, axes=1)
    return np.divide(values, total, out=np.full_like(values, np.nan), where=total > 0)


def ratio_at(above: Array, below: Array, weights: Array) -> Array:
    """Ratio of two weighted sums, never a mean of ratios; NaN where the lower one is 0.

    Parameters
    ----------
    above, below : ndarray, shape (document, ...)
    weights : ndarray, shape (replicate, document)

    Returns
    -------
    ndarray, shape (replicate, ...)
    """
    numerator, denominator = (np.tensordot(weights, sums, axes=1) for sums in (above, below))
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)


def evaluate_at(function: Callable[[Array], Array], weights: Array, block_bytes: int, row_bytes: int) -> Array:
    """Evaluate a function of document weights in blocks of rows, so that what it holds at once stays bounded.

    Parameters
    ----------
    function : callable
        From (replicate, document) to (replicate, ...).
    weights : ndarray, shape (replicate, document)
    block_bytes, row_bytes : int
        Bound, and what the function holds per row.

    Returns
    -------
    ndarray, shape (replicate, ...)
    """
    size = max(1, block_bytes // max(1, row_bytes))
    return np.concatenate([function(weights[start : start + size]) for start in range(0, len(weights), size)])
