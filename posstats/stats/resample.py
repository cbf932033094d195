"""Cluster bootstrap and jackknife over documents: weights, standard errors, intervals, p-values (docs/method.md, 4)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from posstats.errors import DesignError, InputError
from posstats.stats.terms import Array

#: Interval methods: name -> what it does.
INTERVAL_METHODS = {
    "studentized": "bootstrap-t: replicates divided by their own jackknife standard error",
    "jackknife": "estimate +- t(G-1) times the jackknife standard error",
    "bca": "bias-corrected and accelerated percentile",
    "expanded": "percentile at levels widened from normal to t(G-1) and by sqrt(G/(G-1))",
    "percentile": "percentile of the replicates",
    "basic": "percentile reflected at the estimate",
}
DEFAULT_METHOD = "jackknife"


def document_weights(n_documents: int, n_resamples: int, seed: int) -> Array:
    """Draw documents with replacement and count them: one row per replicate.

    Every replicate has a random generator of its own, the child of one seed, so the first 100 of 1,000 replicates equal
    a run of 100, and neither workers nor chunks change a number. A draw of one single document holds no pair of
    documents and is drawn again.

    Parameters
    ----------
    n_documents, n_resamples : int
    seed : int

    Returns
    -------
    ndarray, shape (replicate, document)
        Counts; each row sums to `n_documents`.

    Examples
    --------
    >>> document_weights(5, 2, seed=0).sum(axis=1).tolist()
    [5.0, 5.0]
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


def random_signs(n_documents: int, n_permutations: int, seed: int) -> Array:
    """Random signs for the sign-flip test, shape (permutation, document), on a stream apart from the bootstrap's."""
    if n_permutations < 1:
        raise InputError(f"n_permutations must be at least 1, not {n_permutations}.")
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    return rng.choice(np.array([-1.0, 1.0]), size=(n_permutations, n_documents))


def sign_flip_test(gram: Array, signs: Array) -> Array:
    """Sign-flip test of "no absolute position": is the pair product of log attention larger than chance gives?

    Under the null the expected centred field of every document is zero, and flipping the sign of all of a document's
    field leaves its distribution unchanged (exactly for symmetric noise, to first order otherwise). Documents are
    the exchangeable units, so heads, layers and queries of one document flip together.

    Parameters
    ----------
    gram : ndarray, shape (..., document, document)
        Products of per-document sums of log attention, zero diagonal; summed over heads to pool.
    signs : ndarray, shape (permutation, document)
        Random signs +-1.

    Returns
    -------
    ndarray, shape (...)
        ``(b + 1) / (n + 1)`` with b the number of flips whose statistic reaches the observed one.

    Examples
    --------
    >>> signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(999, 8))
    >>> field = np.ones((8, 3))  # every document moves the same way
    >>> gram = field @ field.T
    >>> np.fill_diagonal(gram, 0)
    >>> bool(sign_flip_test(gram, signs) < 0.05)
    True
    """
    observed = gram.sum(axis=(-1, -2))
    flipped = np.einsum("pg,...pg->...p", signs, signs @ gram)
    # A flip that reproduces the observed statistic must count, whatever the rounding.
    reach = flipped >= (observed - 1e-9 * np.abs(gram).sum(axis=(-1, -2)))[..., None]
    return (reach.sum(axis=-1) + 1.0) / (len(signs) + 1.0)


def jackknife_error(left_out: Array, weights: Array | None = None, axis: int = -1) -> Array:
    """Delete-one jackknife standard error.

    Parameters
    ----------
    left_out : ndarray, shape (..., document)
        Values with one copy of each document left out.
    weights : ndarray broadcasting against `left_out`, optional
        How often each document is present; ones if not given.
    axis : int
        The document axis.

    Returns
    -------
    ndarray, shape (...)
        ``sqrt((G-1)/G sum_g c_g (theta_(g) - mean)^2)`` with G the sum of the weights.
    """
    c = np.ones_like(left_out) if weights is None else np.broadcast_to(weights, left_out.shape)
    total = c.sum(axis=axis, keepdims=True)
    values = np.where(c > 0, left_out, 0.0)
    mean = (c * values).sum(axis=axis, keepdims=True) / total
    spread = (c * (values - mean) ** 2).sum(axis=axis, keepdims=True)
    return np.squeeze(np.sqrt((total - 1) / total * spread), axis=axis)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval and test, one per trailing element.

    Attributes
    ----------
    estimate, se, low, high : ndarray, shape (...)
        Estimate, jackknife standard error and interval limits, in the estimand's units.
    p : ndarray, shape (...)
        Two-sided p-value of "the estimand is `null`", from t(G-1) on the jackknife standard error.
    n_undefined : ndarray of int, shape (...)
        Replicates in which the estimand was not finite (a ratio without a denominator); they are left out.
    """

    estimate: Array
    se: Array
    low: Array
    high: Array
    p: Array
    n_undefined: NDArray[np.int64]


def interval(
    estimate: Array,
    left_out: Array,
    replicates: Array,
    replicate_error: Array | None = None,
    *,
    method: str = DEFAULT_METHOD,
    level: float = 0.95,
    null: float = 0.0,
) -> Interval:
    """Confidence interval and two-sided test of a cluster-bootstrapped estimate.

    Parameters
    ----------
    estimate : ndarray, shape (...)
    left_out : ndarray, shape (document, ...)
        Estimate with one document left out.
    replicates : ndarray, shape (replicate, ...)
    replicate_error : ndarray, shape (replicate, ...), optional
        Jackknife standard error within each replicate; needed by "studentized" only.
    method : str
        One of :data:`INTERVAL_METHODS`.
    level : float
        Confidence level in (0, 1).
    null : float
        Value tested.

    Returns
    -------
    Interval

    Raises
    ------
    InputError
        If the method or level is not allowed.

    Examples
    --------
    >>> x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> loo = (x.sum() - x) / 4
    >>> result = interval(x.mean(), loo, x.mean() + np.zeros(10), method="jackknife")
    >>> round(float(result.se), 4)  # the standard error of a mean
    0.7071
    """
    check_interval_options(method, level)
    n_documents = len(left_out)
    se = jackknife_error(np.moveaxis(left_out, 0, -1))
    defined = np.isfinite(replicates)
    n_undefined = (~defined).sum(axis=0)
    alpha = 1 - level
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (estimate - null) / se
        p = np.where(se > 0, 2 * sps.t.sf(np.abs(t), n_documents - 1), np.nan)
    low, high = _LIMITS[method](
        _Ingredients(np.asarray(estimate), se, left_out, replicates, replicate_error, n_documents), alpha
    )
    # A single undefined leave-one-out value or no defined replicate leaves nothing to trust.
    bad = ~np.isfinite(se) | ~defined.any(axis=0)
    low, high, p = (np.where(bad, np.nan, x) for x in (low, high, p))
    return Interval(np.asarray(estimate), se, low, high, p, n_undefined)


def check_interval_options(method: str, level: float) -> None:
    """Raise InputError unless the interval method is known and the level lies in (0, 1)."""
    if method not in INTERVAL_METHODS:
        raise InputError(f"Unknown interval method {method!r}; choose one of {', '.join(INTERVAL_METHODS)}.")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}.")


@dataclass(frozen=True, slots=True)
class _Ingredients:
    estimate: Array
    se: Array
    left_out: Array
    replicates: Array
    replicate_error: Array | None
    n_documents: int


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


def _percentile(x: _Ingredients, alpha: float) -> tuple[Array, Array]:
    low, high = _quantiles(x.replicates, _tails(alpha / 2, x))
    return low, high


def _tails(tail: float, x: _Ingredients) -> Array:
    return np.array([tail, 1 - tail]).reshape(2, *([1] * x.estimate.ndim))


def _basic(x: _Ingredients, alpha: float) -> tuple[Array, Array]:
    low, high = _percentile(x, alpha)
    return 2 * x.estimate - high, 2 * x.estimate - low


def _expanded(x: _Ingredients, alpha: float) -> tuple[Array, Array]:
    g = x.n_documents
    tail = sps.norm.cdf(np.sqrt(g / (g - 1)) * sps.t.ppf(alpha / 2, g - 1))
    low, high = _quantiles(x.replicates, _tails(float(tail), x))
    return low, high


def _bca(x: _Ingredients, alpha: float) -> tuple[Array, Array]:
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


def _jackknife(x: _Ingredients, alpha: float) -> tuple[Array, Array]:
    half = sps.t.ppf(1 - alpha / 2, x.n_documents - 1) * x.se
    return x.estimate - half, x.estimate + half


def _studentized(x: _Ingredients, alpha: float) -> tuple[Array, Array]:
    if x.replicate_error is None:
        raise InputError("The studentized interval needs the standard error of every replicate.")
    with np.errstate(invalid="ignore", divide="ignore"):
        pivot = (x.replicates - x.estimate) / x.replicate_error
    low, high = _quantiles(pivot, _tails(alpha / 2, x))
    return x.estimate - high * x.se, x.estimate - low * x.se


_LIMITS: dict[str, Callable[[_Ingredients, float], tuple[Array, Array]]] = {
    "studentized": _studentized,
    "jackknife": _jackknife,
    "bca": _bca,
    "expanded": _expanded,
    "percentile": _percentile,
    "basic": _basic,
}


def replicate_blocks(n_replicates: int, n_documents: int, n_values: int, limit: float = 2**26) -> Iterator[slice]:
    """Blocks of replicates whose leave-one-out arrays stay below `limit` bytes."""
    size = max(1, int(limit // (8 * max(1, n_documents * n_values))))
    for start in range(0, n_replicates, size):
        yield slice(start, min(start + size, n_replicates))
