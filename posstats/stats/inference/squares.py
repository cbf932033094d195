"""Intervals and tests of means of squares, valid at and near 0 (docs/method.md, section 4).

Leakage, sizes and magnitudes are mean products over pairs of documents, ``sum_{g != h} <x_g, x_h> / pairs``: estimates
of a squared mean. Near 0 such an estimate is a centred sum of squares, skewed, with a variance that single documents do
not show; far from 0 it is linear in the documents. Both, and what lies between, follow from two things: the estimate
without each document, and what each pair of documents contributes beyond them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from posstats.errors import DesignError, InputError
from posstats.stats.pair_products.terms import Array

Flags = NDArray[np.bool_]
#: Halvings of a bracket (to 1e-13 of its width) and doublings of its width when a limit is searched.
_HALVINGS = 44
_DOUBLINGS = 60
#: Degrees of freedom from which on a chi-square is a normal distribution, and Student's t too, for every purpose.
_NORMAL = 1e8


def pair_interactions(gram: Array, sequences: Array) -> Array:
    """What each pair of documents contributes to a mean of pair products beyond what its documents do singly.

    The products of document means are split into ``k_gh = a_g + a_h + q_gh`` by least squares over pairs of distinct
    documents: the U-centring of Székely & Rizzo (2014), with which ``sum q^2 / (G (G-3))`` estimates the mean square of
    an interaction without bias. Every document counts once in the fit, however many sequences it has: a large one
    would otherwise fit itself, and hide what it does.

    Parameters
    ----------
    gram : ndarray, shape (..., document, document)
        Symmetric products of per-document sums, ``<x_g, x_h>``; the diagonal is not read.
    sequences : ndarray, shape (document,)
        Number of sequences of each document, n_g.

    Returns
    -------
    ndarray, shape (..., document, document)
        ``sqrt((G-1) / (G-3)) n_g n_h q_gh / pairs``, pairs = ``(sum n)^2 - sum n^2``; symmetric, zero diagonal.

    Raises
    ------
    DesignError
        With fewer than 5 documents.

    Notes
    -----
    G. J. Székely and M. L. Rizzo (2014), Partial distance correlation with methods for dissimilarities, Annals of
    Statistics 42, 2382-2412, doi:10.1214/14-AOS1255.

    Examples
    --------
    >>> x = np.arange(6.0)
    >>> single = x[:, None] + x  # nothing but what single documents do
    >>> bool(np.allclose(pair_interactions(single, np.ones(6)), 0))
    True
    """
    n = np.asarray(sequences, dtype=np.float64)
    if len(n) < 5:
        raise DesignError(f"What pairs of documents contribute needs at least 5 documents to be seen, not {len(n)}.")
    g, off = len(n), ~np.eye(len(n), dtype=bool)
    sizes = np.outer(n, n)
    means = np.where(off, gram, 0.0) / sizes
    rows = means.sum(axis=-1) / (g - 2)
    whole = rows.sum(axis=-1)[..., None, None] / (g - 1)
    rest = means - rows[..., :, None] - rows[..., None, :] + whole
    return np.where(off, sizes * rest * np.sqrt((g - 1) / (g - 3)), 0.0) / pair_number(n)


def pair_number(sequences: Array) -> float:
    """Ordered pairs of sequences from distinct documents, ``(sum n)^2 - sum n^2``."""
    return float(sequences.sum() ** 2 - (sequences**2).sum())


def pair_gram(
    estimate: Array, left_out: Array, pairs: NDArray[np.int64], pair_left_out: Array, sequences: Array
) -> Array:
    """Products of documents, reconstructed from an estimate without each and without every pair of them.

    For a mean of pair products they are the products themselves; for an estimate that also depends on a reference,
    re-estimated whenever documents are left out, they include what a pair changes in it.

    Parameters
    ----------
    estimate : ndarray, shape (...)
    left_out : ndarray, shape (document, ...)
        Without one document.
    pairs : ndarray of int, shape (pair, 2)
        All pairs, each once (``document_pairs(G, at_most=G * (G - 1) // 2)``).
    pair_left_out : ndarray, shape (pair, ...)
        Without both.
    sequences : ndarray, shape (document,)

    Returns
    -------
    ndarray, shape (..., document, document)
        ``(P theta - P_(g) theta_(g) - P_(h) theta_(h) + P_(gh) theta_(gh)) / 2``, P the ordered pairs of sequences
        left.
    """
    n = np.asarray(sequences, dtype=np.float64)
    if len(pairs) != len(n) * (len(n) - 1) // 2:
        raise DesignError(f"Products of documents need all {len(n) * (len(n) - 1) // 2} pairs, not {len(pairs)}.")
    total, squares = n.sum(), (n**2).sum()
    column = (-1, *([1] * np.ndim(estimate)))
    without = (((total - n) ** 2 - squares + n**2).reshape(column)) * left_out
    one, two = pairs.T
    both = ((total - n[one] - n[two]) ** 2 - squares + n[one] ** 2 + n[two] ** 2).reshape(column) * pair_left_out
    values = (pair_number(n) * np.asarray(estimate) - without[one] - without[two] + both) / 2
    gram = np.zeros((*np.shape(estimate), len(n), len(n)))
    gram[..., one, two] = gram[..., two, one] = np.moveaxis(values, 0, -1)
    return gram


def single_deviations(estimate: Array, left_out: Array, sequences: Array) -> Array:
    """What each document does to an estimate; the sum of squares is its jackknife variance.

    ``sqrt(1 - n_g / n) (theta - theta_(g))``: for documents of one size the delete-one jackknife. For others it divides
    a document's residual by the root of the share that the mean leaves it (HC2, as CR2 does in a regression), where the
    plain jackknife divides by that share and makes large documents count too much.

    Parameters
    ----------
    estimate : ndarray, shape (...)
    left_out : ndarray, shape (document, ...)
    sequences : ndarray, shape (document,)

    Returns
    -------
    ndarray, shape (..., document)
    """
    n = np.asarray(sequences, dtype=np.float64)
    return np.moveaxis(estimate - left_out, 0, -1) * np.sqrt(1 - n / n.sum())


@dataclass(frozen=True, slots=True)
class SquareSpread:
    """How the estimate of a mean of squares varies, as a function of the true value x; every field is (...).

    Attributes
    ----------
    estimate : ndarray
    jackknife : ndarray
        Jackknife variance at x = estimate, in which the second part counts about twice.
    first : ndarray
        Variance through single documents, at x = estimate; an unbiased estimate, which may fall below 0.
    second : ndarray
        Variance through pairs of documents, the same at every x: all that is left at x = 0.
    growth : ndarray
        How the first part grows with x.
    third : ndarray
        Third cumulant of the second part.
    df : ndarray
        Degrees of freedom of the documents' covariance: their effective number minus 1.
    """

    estimate: Array
    jackknife: Array
    first: Array
    second: Array
    growth: Array
    third: Array
    df: Array

    @classmethod
    def of(cls, estimate: Array, left_out: Array, gram: Array, sequences: Array) -> "SquareSpread":
        """Measure it.

        Parameters
        ----------
        estimate : ndarray, shape (...)
            ``sum_{g != h} gram_gh / pairs``, the reference re-estimated or not.
        left_out : ndarray, shape (document, ...)
            The same without one document.
        gram : ndarray, shape (..., document, document)
            Products of per-document sums, or :func:`pair_gram`.
        sequences : ndarray, shape (document,)

        Returns
        -------
        SquareSpread
        """
        n = np.asarray(sequences, dtype=np.float64)
        estimate = np.asarray(estimate, dtype=np.float64)
        pairs = pair_interactions(gram, n)
        squares = pairs**2
        single = single_deviations(estimate, left_out, n)
        jackknife = (single**2).sum(axis=-1)
        second = 2 * squares.sum(axis=(-2, -1))
        first = jackknife - (squares * seen_singly(n)).sum(axis=(-2, -1))
        applied = (pairs @ single[..., None])[..., 0]
        third = 8 * _triangle_scale(len(n)) * np.maximum(((pairs @ pairs) * pairs).sum(axis=(-2, -1)), 0.0)
        df = np.full(estimate.shape, n.sum() ** 2 / (n**2).sum() - 1)
        along = np.maximum((single * applied).sum(axis=-1) - third / 2, 0.0)
        growth = 4 * _divide(third / 4 + along, second + np.maximum(first, 0.0))
        growth = np.maximum(growth, _divide(first, np.maximum(estimate, 2 * np.sqrt(second))))
        return cls(estimate, jackknife, first, second, growth, third, df)

    def variance(self, x: Array) -> Array:
        """Variance that an estimate of the true value x >= 0 would have.

        ``V(x) = second + clip(first + growth (x - estimate), 0, growth x)``, first and estimate not below 0: the
        measured first part, moved along the line on which the two go together, and 0 at x = 0, where single documents
        have nothing to say.
        """
        return self.second + self._first(x)

    def _first(self, x: Array) -> Array:
        line = np.maximum(self.first, 0.0) + self.growth * (x - np.maximum(self.estimate, 0.0))
        return np.clip(line, 0.0, self.growth * np.maximum(x, 0.0))

    def below(self, x: Array) -> Array:
        """Probability of an estimate as low as this if the true value is x >= 0; falls with x.

        The estimate less x, over the root of V(x), as a chi-square with the same skewness, centred and scaled; a normal
        distribution where that is 0. In one direction and at x = 0 this is exact but for the noise of V, which enters
        as in Student's t.
        """
        first = self._first(x)
        variance = self.second + first
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = (self.estimate - x) / np.sqrt(variance)
            third = np.maximum(self.third + 1.5 * self.growth * first, 0.0)
            shape = np.clip(8 * variance**3 / third**2, 1.0, _NORMAL)
            share = first / variance
            z = _normal_score(pivot, shape, self.df * shape / (1 - share) ** 2)
            p = special.stdtr(np.minimum(self.df / share**2, _NORMAL), z)
        certain = np.where(self.estimate < x, 0.0, 1.0)
        return np.where(variance > 0, p, certain)

    def p_zero(self) -> Array:
        """p-value of "the true value is 0" against "it is larger"; NaN where anything is undefined."""
        p = np.where(self.second > 0, 1 - self.below(np.zeros_like(self.estimate)), self.estimate <= 0)
        return np.where(np.isfinite(self.first + self.second + self.growth), p, np.nan)


def check_level(level: float) -> None:
    """Raise InputError unless a confidence level lies in (0, 1)."""
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}.")


def seen_singly(n: Array) -> Array:
    """Of the squared interaction of each ordered pair, how much the squared single deviations add up to."""
    left = (n.sum() - n) ** 2 - (n**2).sum() + n**2  # ordered pairs of sequences without a document
    # theta_(g) has an interaction 2 P / P_(g) times where the pair is without g, and theta has it 2 times.
    change = 2 * (1 - pair_number(n) / left)
    weight = 1 - n / n.sum()
    elsewhere = weight * change**2
    own = 4 * weight
    both = elsewhere.sum() - np.add.outer(elsewhere, elsewhere) + np.add.outer(own, own)
    return both / 2  # ordered pairs: each interaction is met twice


def _triangle_scale(n: int) -> float:
    """Makes the trace of the cubed interactions that of independent documents: 1 direction gets the skewness of 1.

    The trace that U-centring leaves of ``tr S^3`` is N (N-3) (N^4 - 8 N^3 + 19 N^2 - 4 N - 16) / ((N-1) (N-2)^2),
    enumerated over all signs of one direction for N = 4 to 12; the tests check it by simulation.
    """
    centred = n * (n - 3) * (n**4 - 8 * n**3 + 19 * n**2 - 4 * n - 16) / ((n - 1) * (n - 2) ** 2)
    return float((n * (n - 1)) ** 1.5 / (centred * ((n - 1) / (n - 3)) ** 1.5))


def _divide(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def _normal_score(pivot: Array, shape: Array, df: Array) -> Array:
    """Normal score of a pivot: a chi-square of `shape` over one of `df`, each by its own number, centred and scaled."""
    value = np.maximum(1 + np.sqrt(2 / shape) * pivot, 0.0)
    shape, df, value = np.broadcast_arrays(shape, np.minimum(df, _NORMAL), value)
    score = np.asarray(special.ndtri(special.fdtr(shape, df, value)))
    far = score > 0  # the smaller tail keeps its digits
    score[far] = -special.ndtri(special.fdtrc(shape[far], df[far], value[far]))
    return score


@dataclass(frozen=True, slots=True)
class SquareInterval:
    """Interval and test of a mean of squares; every field is (...).

    Attributes
    ----------
    estimate : ndarray
        May be negative, where the true value cannot be.
    se : ndarray
        Standard error at the estimate, for planning and for reading; the interval does not come from it.
    low, high : ndarray
        Limits, 0 <= low <= high.
    p : ndarray
        Of "the true value is 0" against "it is larger".
    """

    estimate: Array
    se: Array
    low: Array
    high: Array
    p: Array


def square_interval(spread: SquareSpread, level: float = 0.95) -> SquareInterval:
    """Confidence interval of a mean of squares by test inversion.

    It holds each x >= 0 that two one-sided tests do not reject: that an estimate is so low (at ``alpha s(x)``) and that
    it is so high (at ``alpha (1 - s(x))``). The share s grows from 0 at x = 0, where nothing is below, to 1/2 far from
    it: the level is alpha at every x, 0 is never rejected by a low estimate, and no interval is empty or below 0.

    Parameters
    ----------
    spread : SquareSpread
    level : float
        Confidence level, in (0, 1).

    Returns
    -------
    SquareInterval
    """
    check_level(level)
    alpha = 1 - level

    def share(x: Array) -> Array:
        variance = spread.variance(x)
        return 0.5 * _divide(x**2, x**2 + variance)

    def too_low(x: Array) -> Flags:
        return spread.below(x) < alpha * share(x)

    def low_enough(x: Array) -> Flags:
        return 1 - spread.below(x) >= alpha * (1 - share(x))

    zero = np.zeros_like(spread.estimate)
    size = np.maximum(spread.estimate, 0.0)
    step = np.sqrt(spread.variance(size))
    high = crossing(too_low, size, size + step)
    low = crossing(low_enough, zero, size)
    return SquareInterval(spread.estimate, step, np.minimum(low, high), high, spread.p_zero())


def crossing(beyond: Callable[[Array], Flags], low: Array, high: Array) -> Array:
    """Where a condition begins to hold above `low`: `low` itself if it holds there, infinite if it never does."""
    for _ in range(_DOUBLINGS):
        short = ~beyond(high)
        if not short.any():
            break
        high = np.where(short, 2 * high - low, high)
    start, holds = low, beyond(low)
    never = ~beyond(high) & (high > low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        past = beyond(middle)
        low, high = np.where(past, low, middle), np.where(past, middle, high)
    return np.where(holds, start, np.where(never, np.inf, high))
