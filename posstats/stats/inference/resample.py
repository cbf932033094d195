"""Cluster bootstrap and jackknife over documents: weights, standard errors, intervals, p-values (docs/method.md, 4)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from posstats.arguments import choice, fraction
from posstats.errors import DesignError, InputError
from posstats.stats.inference.options import DEFAULT_METHOD, INTERVAL_METHODS
from posstats.stats.pair_products.terms import Array

#: Pairs of documents left out by the corrected jackknife: all of them up to 28 documents, a balanced choice beyond. Its
#: calibration (docs/calibration.md) was measured with this many.
MAXIMUM_PAIRS = 399


def document_weights(n_documents: int, n_resamples: int, seed: int) -> Array:
    """Draw documents with replacement and count them: (replicate, document), each row sums to `n_documents`.

    Every replicate has a random generator of its own, the child of one seed, so the first 100 of 1,000 replicates
    equal a run of 100, and neither workers nor chunks change a number. A draw of one single document holds no pair of
    documents and is drawn again.

    >>> bool((document_weights(5, 10, seed=1)[:4] == document_weights(5, 4, seed=1)).all())
    True
    """
    if n_resamples < 1:
        raise InputError(f"n_resamples must be at least 1, not {n_resamples}.")
    if n_documents < 2:
        raise DesignError(f"Resampling needs at least 2 documents, not {n_documents}.")
    weights = np.empty((n_resamples, n_documents))
    for row, child in zip(weights, np.random.SeedSequence(seed).spawn(n_resamples), strict=True):
        rng = np.random.default_rng(child)
        while True:
            row[:] = np.bincount(rng.integers(n_documents, size=n_documents), minlength=n_documents)
            if np.count_nonzero(row) > 1:
                break
    return weights


def document_pairs(n_documents: int, at_most: int = MAXIMUM_PAIRS) -> NDArray[np.int64]:
    """Pairs of documents to leave out together: all, or a part in which every document occurs equally often.

    (pair, 2). Round k holds the pairs (g, g + k), counted in a circle; no random numbers are involved. At least one
    round of `n_documents` pairs is returned, whatever `at_most` is.

    >>> document_pairs(4).tolist()
    [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]]
    >>> document_pairs(6, at_most=11).tolist()
    [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0]]
    """
    if n_documents < 4:
        raise DesignError(f"Leaving pairs of documents out needs at least 4 documents, not {n_documents}.")
    first = np.arange(n_documents)
    every = n_documents * (n_documents - 1) // 2
    rounds = n_documents // 2 if every <= at_most else max(1, min(at_most // n_documents, (n_documents - 1) // 2))
    pairs = np.concatenate([np.stack([first, (first + k) % n_documents], axis=1) for k in range(1, rounds + 1)])
    return pairs[:every]  # the round half way across holds every pair twice


def leave_out_weights(n_documents: int, pairs: NDArray[np.int64] | None = None) -> Array:
    """Document weights of a jackknife: ones, ones without each document, then without each pair of `pairs`.

    >>> leave_out_weights(3).tolist()
    [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    whole = np.concatenate([np.ones((1, n_documents)), 1 - np.eye(n_documents)])
    return whole if pairs is None else np.concatenate([whole, pair_weights(n_documents, pairs)])


def pair_weights(n_documents: int, pairs: NDArray[np.int64]) -> Array:
    """Document weights, shape (pair, document): ones, and 0 for the two documents of the pair."""
    weights = np.ones((len(pairs), n_documents))
    np.put_along_axis(weights, pairs, 0.0, axis=1)
    return weights


def jackknife_error(left_out: Array, weights: Array | None = None, axis: int = -1) -> Array:
    """Delete-one jackknife standard error: ``sqrt((G-1)/G sum_g c_g (theta_(g) - mean)^2)``, (...).

    `left_out` are values with one copy of each document, along `axis`, left out. `weights` c_g, G in sum, broadcast
    against them and say how often each document is present; ones if not given.
    """
    c = np.ones_like(left_out) if weights is None else np.broadcast_to(weights, left_out.shape)
    total = c.sum(axis=axis, keepdims=True)
    values = np.where(c > 0, left_out, 0.0)
    mean = (c * values).sum(axis=axis, keepdims=True) / total
    spread = (c * (values - mean) ** 2).sum(axis=axis, keepdims=True)
    return np.squeeze(np.sqrt((total - 1) / total * spread), axis=axis)


@dataclass(frozen=True, slots=True)
class CorrectedError:
    """Jackknife standard error without its second-order bias; every field is (...)."""

    se: Array
    #: Degrees of freedom ``(G-1) r^2`` with r the share of the jackknife's variance that is left (Satterthwaite): the
    #: correction subtracts without removing noise.
    df: Array
    #: The part of the variance that only pairs of documents contribute.
    second_order: Array


def corrected_error(estimate: Array, left_out: Array, pairs: NDArray[np.int64], pair_left_out: Array) -> CorrectedError:
    """Jackknife standard error without its second-order bias.

    A mean of products over pairs of documents varies through what single documents contribute (first order) and
    through what only pairs do (second order). The jackknife counts the second order twice: harmless where the signal
    is strong, but it makes intervals too long where signal and noise are of one size. The second order is seen in
    ``Q[g,h] = G theta - (G-1) (theta_(g) + theta_(h)) + (G-2) theta_(g,h)``, in which constants and first order
    cancel; its mean square is rescaled so that the variance of any mean over pairs is estimated without bias. Never
    less than half of the jackknife's variance is left, the share that a pure second order deserves.

    `estimate` is (...); `left_out`, (document, ...), without one document; `pair_left_out`, (pair, ...), without both
    of `pairs` (:func:`document_pairs`).

    B. Efron and C. Stein (1981), The jackknife estimate of variance, Annals of Statistics 9, 586-596,
    doi:10.1214/aos/1176345462: the jackknife's bias and Q. The scale used here is exact for means over pairs, and the
    degrees of freedom are ours; both are checked by simulation in docs/calibration.md.

    >>> x = np.random.default_rng(0).normal(size=12)  # sample mean: nothing to correct
    >>> pairs = document_pairs(12)
    >>> left_out = (x.sum() - x) / 11
    >>> error = corrected_error(x.mean(), left_out, pairs, (x.sum() - x[pairs].sum(axis=1)) / 10)
    >>> bool(np.isclose(error.se, jackknife_error(left_out))), round(float(error.df), 6)
    (True, 11.0)
    """
    g = len(left_out)
    variance = jackknife_error(np.moveaxis(left_out, 0, -1)) ** 2
    with np.errstate(invalid="ignore"):
        q = g * estimate - (g - 1) * left_out[pairs].sum(axis=1) + (g - 2) * pair_left_out
        # E Q^2 in units of the second-order variance component d^2, and what the jackknife adds: 2 d^2 / ((G-1)(G-2)).
        scale = 4 / (g - 1) ** 2 * (1 + 2 / (g - 2) + 2 / ((g - 2) * (g - 3)))
        excess = np.minimum(2 / ((g - 1) * (g - 2)) * (q**2).mean(axis=0) / scale, variance / 2)
        left = np.divide(variance - excess, variance, out=np.ones_like(variance), where=variance > 0)
    # Of d^2 the variance of a mean over pairs holds 2 d^2 / (G (G-1)).
    return CorrectedError(np.sqrt(variance - excess), (g - 1) * left**2, excess * (g - 2) / g)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval and test, one per trailing element; every field is (...)."""

    #: Estimate, jackknife standard error (corrected if the method is) and interval limits, in the estimand's units.
    estimate: Array
    se: Array
    low: Array
    high: Array
    #: Two-sided p-value of "the estimand is `null`", from t(df) on the standard error. For a mean of squares
    #: :func:`posstats.stats.inference.sign_flips.sign_flip_test` is the test to use.
    p: Array
    #: Degrees of freedom: documents minus one, fewer if the standard error is corrected.
    df: Array
    #: Replicates in which the estimand was not finite (a ratio without a denominator); they are left out.
    n_undefined: NDArray[np.int64]

    def at(self, k: int) -> "Interval":
        """The k-th along the first axis."""
        return Interval(*(getattr(self, one.name)[k] for one in fields(self)))


def interval(
    estimate: Array,
    left_out: Array,
    replicates: Array | None = None,
    replicate_error: Array | None = None,
    *,
    pairs: NDArray[np.int64] | None = None,
    pair_left_out: Array | None = None,
    squared: bool | NDArray[np.bool_] = False,
    method: str = DEFAULT_METHOD,
    level: float = 0.95,
    null: float = 0.0,
) -> Interval:
    """Confidence interval and two-sided test of `null` for an estimate, by resampling documents.

    Limits and p are NaN where the standard error or every replicate is undefined.

    Parameters
    ----------
    estimate, left_out : ndarray, shapes (...) and (document, ...)
        The estimate, and without each document.
    replicates, replicate_error : ndarray, shape (replicate, ...), optional
        Bootstrap replicates, which every method but the two jackknives needs, and the jackknife standard error within
        each of them, which "studentized" needs.
    pairs, pair_left_out : ndarray, shapes (pair, 2) and (pair, ...), optional
        Documents left out together and the estimate without them; needed by "corrected_jackknife" only.
    squared : bool, or ndarray of bool that broadcasts to (...)
        Whether the estimand is a mean of squares, as leakage and magnitudes are. The first-order part of its variance
        is then proportional to the estimand itself, so that a low estimate comes with a standard error that is too
        small; the corrected jackknife solves ``(x - estimate)^2 = t^2 V(x)`` for its limits (a score interval).
    method : str
        One of :data:`INTERVAL_METHODS`.

    Raises
    ------
    InputError
        If the method or level is not allowed, or the method lacks what it needs.
    """
    choice("method", method, INTERVAL_METHODS)
    fraction("level", level)
    estimate = np.asarray(estimate)
    growth = np.zeros(estimate.shape)
    if method == "corrected_jackknife":
        if pairs is None or pair_left_out is None:
            raise InputError("The corrected jackknife needs the estimate without pairs of documents.")
        error = corrected_error(estimate, left_out, pairs, pair_left_out)
        se, df, resampled = error.se, error.df, pair_left_out
        # Where the estimate is within its error, its size says nothing about how the variance grows: bound it.
        size = np.maximum(estimate, se)
        np.divide(se**2 - error.second_order, size, out=growth, where=squared & (size > 0))
    else:
        se = jackknife_error(np.moveaxis(left_out, 0, -1))
        df = np.full(se.shape, len(left_out) - 1.0)
        if method != "jackknife" and replicates is None:
            raise InputError(f"The {method} interval needs bootstrap replicates.")
        resampled = left_out if replicates is None else replicates
    defined = np.isfinite(resampled)
    alpha = 1 - level
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (estimate - null) / se
        p = np.where(se > 0, 2 * sps.t.sf(np.abs(t), df), np.nan)
    low, high = LIMITS[method](Ingredients(estimate, se, df, growth, left_out, resampled, replicate_error), alpha)
    # A single undefined leave-one-out value or no defined replicate leaves nothing to trust.
    bad = ~np.isfinite(se) | ~defined.any(axis=0)
    low, high, p = (np.where(bad, np.nan, x) for x in (low, high, p))
    return Interval(estimate, se, low, high, p, df, (~defined).sum(axis=0))


def replicate_blocks(n_replicates: int, n_documents: int, n_values: int, limit: float = 2**26) -> Iterator[slice]:
    """Blocks of replicates whose leave-one-out arrays stay below `limit` bytes."""
    size = max(1, int(limit // (8 * max(1, n_documents * n_values))))
    for start in range(0, n_replicates, size):
        yield slice(start, min(start + size, n_replicates))


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a method may use, as :func:`posstats.stats.inference.resample.interval` takes it.

    `df` belongs to `se`, and the variance at another value x than the estimate is ``se^2 + growth (x - estimate)``.
    """

    estimate: Array
    se: Array
    df: Array
    growth: Array
    left_out: Array
    replicates: Array
    replicate_error: Array | None


def _quantiles(replicates: Array, levels: Array) -> Array:
    """Quantiles over defined replicates at levels of shape (2, ...), one pair per trailing element."""
    flat = replicates.reshape(len(replicates), -1)
    wanted = np.broadcast_to(levels, (2, *replicates.shape[1:])).reshape(2, -1)
    result = np.full(wanted.shape, np.nan)
    for k in range(flat.shape[1]):
        values = flat[np.isfinite(flat[:, k]), k]
        if len(values) and np.isfinite(wanted[:, k]).all():
            result[:, k] = np.quantile(values, wanted[:, k])
    return result.reshape(2, *replicates.shape[1:])


def _percentile(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    low, high = _quantiles(x.replicates, _tails(alpha / 2, x))
    return low, high


def _tails(tail: float, x: Ingredients) -> Array:
    return np.array([tail, 1 - tail]).reshape(2, *([1] * x.estimate.ndim))


def _basic(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    low, high = _percentile(x, alpha)
    return 2 * x.estimate - high, 2 * x.estimate - low


def _expanded(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    g = len(x.left_out)
    tail = sps.norm.cdf(np.sqrt(g / (g - 1)) * sps.t.ppf(alpha / 2, g - 1))
    low, high = _quantiles(x.replicates, _tails(float(tail), x))
    return low, high


def _bca(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    finite = np.isfinite(x.replicates)
    n = np.maximum(finite.sum(axis=0), 1)
    below = (finite & (x.replicates < x.estimate)).sum(axis=0) + 0.5 * (x.replicates == x.estimate).sum(axis=0)
    z0 = sps.norm.ppf(np.clip(below / n, 0.5 / n, 1 - 0.5 / n))
    deviation = x.left_out.mean(axis=0) - x.left_out
    with np.errstate(invalid="ignore", divide="ignore"):
        acceleration = (deviation**3).sum(axis=0) / (6 * (deviation**2).sum(axis=0) ** 1.5)
    acceleration = np.nan_to_num(acceleration)  # no spread, no skewness
    z = sps.norm.ppf(_tails(alpha / 2, x))
    levels = sps.norm.cdf(z0 + (z0 + z) / (1 - acceleration * (z0 + z)))
    low, high = _quantiles(x.replicates, levels)
    return low, high


def _jackknife(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    """Roots of ``(x - estimate)^2 = t^2 (se^2 + growth (x - estimate))``; plus and minus t se where nothing grows."""
    t = sps.t.ppf(1 - alpha / 2, x.df)
    middle = x.estimate + t**2 * x.growth / 2
    half = t * np.sqrt(x.se**2 + (t * x.growth / 2) ** 2)
    return middle - half, middle + half


def _studentized(x: Ingredients, alpha: float) -> tuple[Array, Array]:
    if x.replicate_error is None:
        raise InputError("The studentized interval needs the standard error of every replicate.")
    with np.errstate(invalid="ignore", divide="ignore"):
        pivot = (x.replicates - x.estimate) / x.replicate_error
    low, high = _quantiles(pivot, _tails(alpha / 2, x))
    return x.estimate - high * x.se, x.estimate - low * x.se


#: Interval method -> function of the ingredients and alpha that returns (low, high).
LIMITS: dict[str, Callable[[Ingredients, float], tuple[Array, Array]]] = {
    "studentized": _studentized,
    "jackknife": _jackknife,
    "corrected_jackknife": _jackknife,
    "bca": _bca,
    "expanded": _expanded,
    "percentile": _percentile,
    "basic": _basic,
}
