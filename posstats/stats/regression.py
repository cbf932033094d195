"""Regression of log attention, or of one of its terms, on query position (docs/method.md, section 4).

The model per head is ``y[n, i, d] = intercept[d] + sum_k coefficient[k] * basis_k(log2(i + 1)) + error``: ordinary
least squares with an intercept per offset and a covariance clustered by document. Every sequence has the same
design, which makes the algebra short. By Frisch-Waugh-Lovell the coefficients of a sequence are the least-squares
coefficients of its mean over offsets on the centred basis, the estimate is their mean over sequences, and a cluster's
score is proportional to ``m_g (b_g - b)``, with ``b_g`` the mean over the ``m_g`` sequences of document g. The
clustered test is therefore a one-sample test on per-document coefficients: a t test, and Hotelling's T-squared for all
coefficients jointly; with equally many sequences per document it is exactly that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.interpolate import CubicSpline
from statsmodels.regression.linear_model import OLS, RegressionResultsWrapper

from posstats.errors import DesignError, InputError, NumericalError
from posstats.vocabulary import MINIMUM_DOCUMENTS

#: Spread between documents below this multiple of the response's own size is rounding, not variation.
_ROUNDING = 1e-12
#: A basis direction this much shorter than the longest is no direction of its own: a dozen queries crowded at one end
#: of the range would otherwise yield coefficients that are all amplified noise.
_COLLINEAR = 1e-4


@dataclass(frozen=True, slots=True)
class Basis:
    """Functions of query position that enter the regression.

    Attributes
    ----------
    kind : str
        "linear" or "spline".
    values : ndarray, (query, parameter)
        The basis at the analysed queries, not centred (the offset intercepts absorb any constant).
    names : tuple of str, (parameter,)
        What a coefficient is. "log2(i+1)": nats per doubling of position. "i=A to i=B": the change of the fitted
        natural spline, in nats, from the first knot to the knot at query B (knots lie between integers in general).
    knots : ndarray, (knot,)
        Knots in log2(i+1), outermost included; empty for "linear".
    """

    kind: str
    values: NDArray[np.float64]
    names: tuple[str, ...]
    knots: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PositionFit:
    """Position regression of many heads; ``...`` stands for the head axes of the response.

    Attributes
    ----------
    names : tuple of str, (parameter,)
        What each coefficient is, see :class:`Basis`.
    coefficients : ndarray, (..., parameter)
        Least-squares estimates, in nats per unit of the basis.
    covariance : ndarray, (..., parameter, parameter)
        Covariance clustered by document, with the factor G / (G - 1).
    standard_errors, t : ndarray, (..., parameter)
        Clustered standard errors and t statistics. t is NaN where the documents do not differ beyond rounding.
    df : int
        Degrees of freedom of t: G - 1.
    p : ndarray, (..., parameter)
        Two-sided p-values from t(G - 1); NaN where t is.
    wald : ndarray, (...)
        ``b' V^-1 b`` over all coefficients: Hotelling's T-squared. NaN where the covariance is singular to rounding.
    f : ndarray, (...)
        ``wald * (G - k) / (k * (G - 1))``, with k coefficients.
    f_df : tuple of int
        Degrees of freedom of f: (k, G - k).
    f_p : ndarray, (...)
        p-value of the joint test, from the upper tail of F(k, G - k).
    n_documents, n_sequences : int
        Number of clusters G and of sequences.
    n_degenerate : int
        Number of joint tests that are NaN because there is no variation between documents to test against.
    """

    names: tuple[str, ...]
    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    t: NDArray[np.float64]
    df: int
    p: NDArray[np.float64]
    wald: NDArray[np.float64]
    f: NDArray[np.float64]
    f_df: tuple[int, int]
    f_p: NDArray[np.float64]
    n_documents: int
    n_sequences: int
    n_degenerate: int


def position_basis(queries: ArrayLike, kind: str = "linear", df: int = 3) -> Basis:
    """Basis functions of query position, in log2(i + 1).

    The spline is the natural cubic spline (linear beyond the outermost knots, which are the first and last query) with
    ``df + 1`` knots equally spaced in log2(i + 1), so that every octave gets its share; the constant is left to the
    intercepts, which leaves ``df`` coefficients. It spans the same functions as ``splines::ns`` in R or ``cr`` in patsy
    with the same knots; the coefficients here are the spline's values at the knots relative to the first.

    Parameters
    ----------
    queries : array_like of int, (query,)
        Analysed query positions i, distinct.
    kind : {"linear", "spline"}
        Linear in log2(i + 1), or the natural cubic spline.
    df : int
        Coefficients of the spline; ignored for "linear".

    Returns
    -------
    Basis

    Raises
    ------
    InputError
        If the kind is unknown, ``df`` is below 2, or the queries are not distinct positions.
    DesignError
        If the queries are too few, or too unevenly spread, for the basis to have full rank beside an intercept.

    Examples
    --------
    >>> import numpy as np
    >>> basis = position_basis(np.arange(15, 128), "spline")
    >>> basis.names
    ('i=15 to i=31', 'i=15 to i=63', 'i=15 to i=127')
    >>> (2**basis.knots - 1).round(6)
    array([ 15.,  31.,  63., 127.])
    """
    positions = np.asarray(queries)
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or (positions < 0).any():
        raise InputError("queries must be a one-dimensional array of non-negative integers")
    if np.unique(positions).size != positions.size:
        raise InputError("queries must be distinct")
    if positions.size == 0:
        raise DesignError("there is no query to analyse")
    x = np.log2(positions + 1.0)
    if kind == "linear":
        basis = Basis(kind, x[:, None], ("log2(i+1)",), np.empty(0))
    elif kind == "spline":
        if df < 2:
            raise InputError(f"a natural cubic spline needs df of at least 2, got {df}; use kind='linear' for df 1")
        if positions.size < df + 1:
            raise DesignError(f"{positions.size} queries are too few for a spline with {df} df; {df + 1} are needed")
        knots = np.linspace(x.min(), x.max(), df + 1)
        # The cardinal splines (1 at one knot, 0 at the others) sum to 1: without the first they span all but constants.
        cardinal = CubicSpline(knots, np.eye(df + 1), bc_type="natural")(x)
        at = [f"{2**knot - 1:.4g}" for knot in knots]
        basis = Basis(kind, cardinal[:, 1:], tuple(f"i={at[0]} to i={end}" for end in at[1:]), knots)
    else:
        raise InputError(f"unknown basis {kind!r}; allowed: linear, spline")
    singular = np.linalg.svd(basis.values - basis.values.mean(axis=0), compute_uv=False)
    rank = int((singular > _COLLINEAR * singular[0]).sum())
    if rank < len(basis.names):
        raise DesignError(
            f"the {kind} basis has rank {rank} beside an intercept at {positions.size} queries; "
            f"{len(basis.names)} is needed: use more queries, spread over more octaves"
        )
    return basis


def document_means(values: NDArray[np.float64], documents: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Mean over the sequences of each document.

    Parameters
    ----------
    values : ndarray, (sequence, ...)
        One row per sequence.
    documents : array_like, (sequence,)
        Document label of each sequence.

    Returns
    -------
    means : ndarray, (document, ...)
        Documents in sorted order of their labels.
    counts : ndarray of int, (document,)
        Number of sequences of each document.

    Raises
    ------
    InputError
        If there is not exactly one label per sequence.
    """
    labels = np.asarray(documents)
    if labels.shape != values.shape[:1]:
        raise InputError(f"documents needs one label for each of {values.shape[0]} sequences, got shape {labels.shape}")
    _, code, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((counts.size, *values.shape[1:]))
    np.add.at(sums, code, values)
    return sums / counts.reshape(-1, *[1] * (values.ndim - 1)), counts


def fit_position(response: ArrayLike, documents: ArrayLike, queries: ArrayLike, basis: str | Basis) -> PositionFit:
    """Regress each head's response on query position, with errors clustered by document.

    Equals ordinary least squares on offset indicators and the basis, with ``cov_type="cluster"`` and t(G - 1). The
    small-sample factor is G / (G - 1) ("CR1" in R's clubSandwich); statsmodels multiplies the covariance further by
    (n - 1) / (n - K), with n rows and K columns. The joint test uses Hotelling's F(k, G - k), exact for normal
    per-document coefficients, where statsmodels refers ``wald / k`` to F(k, G - 1). Linear in the response: the
    coefficients of terms that add up to log attention add up to the coefficients of log attention.

    Parameters
    ----------
    response : array_like, (sequence, ..., query, offset)
        Values in nats; the axes between are heads (layers, terms), each fitted by itself. Finite.
    documents : array_like, (sequence,)
        Document label of each sequence: the cluster.
    queries : array_like of int, (query,)
        Query positions of the response's query axis.
    basis : {"linear", "spline"} or Basis
        A kind of :func:`position_basis`, or a basis made by it for the same queries.

    Returns
    -------
    PositionFit

    Raises
    ------
    InputError
        If shapes do not match.
    DesignError
        If there are fewer documents than the coefficients need or than 5, or the basis is rank-deficient.
    NumericalError
        If the response is not finite.

    Notes
    -----
    A response that is the same in every document (``relative`` and ``mask`` are: they are made of the stationary
    reference, which pools the documents) has no between-document spread here, and its t and p are NaN. Test those
    with :func:`fit_coefficients` on jackknife pseudo-values, which re-estimate the reference.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> queries = np.arange(20, 60)
    >>> noise = rng.normal(size=(12, 3, 40, 2))  # sequence, head, query, offset
    >>> response = 0.5 * np.log2(queries + 1)[:, None] + noise
    >>> fit = fit_position(response, documents=np.arange(12), queries=queries, basis="linear")
    >>> fit.coefficients.shape, fit.df, bool((fit.p < 0.05).all())
    ((3, 1), 11, True)
    """
    design = position_basis(queries, basis) if isinstance(basis, str) else basis
    y = np.asarray(response)
    n_queries = design.values.shape[0]
    if y.ndim < 3 or y.shape[-2] != n_queries or np.shape(queries) != (n_queries,) or y.shape[-1] == 0:
        raise InputError(
            f"response must have axes (sequence, ..., query, offset) with {n_queries} queries, got shape {y.shape}"
        )
    over_offsets = y.mean(axis=-1, dtype=np.float64)
    if not np.isfinite(over_offsets).all():
        raise NumericalError(
            "the response is not finite at every analysed query and offset; choose queries above the "
            "largest offset, where every key j = i - offset is at least 1"
        )
    projection = np.linalg.pinv(design.values - design.values.mean(axis=0))
    by_document, counts = document_means(over_offsets @ projection.T, documents)
    size = np.abs(over_offsets).max(axis=(0, -1), initial=0.0)[..., None] * np.abs(projection).sum(axis=1)
    return fit_coefficients(by_document, counts, names=design.names, rounding=_ROUNDING * size)


def fit_coefficients(
    by_document: ArrayLike,
    counts: ArrayLike | None = None,
    names: tuple[str, ...] | None = None,
    rounding: ArrayLike = 0.0,
) -> PositionFit:
    """Clustered tests of coefficients that are already reduced to one set per document.

    ``b = sum_g m_g b_g / N`` and ``V = G / (G - 1) * sum_g m_g^2 (b_g - b)(b_g - b)' / N^2``, with ``m_g`` sequences in
    document g and N in all. The values may be jackknife pseudo-values of any smooth statistic.

    Parameters
    ----------
    by_document : array_like, (document, ..., parameter)
        Coefficients of each document.
    counts : array_like of int, (document,), optional
        Sequences of each document; one each by default.
    names : tuple of str, (parameter,), optional
        Names of the coefficients; their numbers by default.
    rounding : array_like, broadcast to (..., parameter)
        Standard errors up to this are rounding: the test is NaN there instead of a division by noise.

    Returns
    -------
    PositionFit

    Raises
    ------
    InputError
        If shapes do not match or a count is below 1.
    DesignError
        If there are fewer than 5 documents, or not more documents than coefficients.
    NumericalError
        If a coefficient is not finite.

    Examples
    --------
    >>> fit = fit_coefficients([[1.0], [2.0], [3.0], [4.0], [5.0]])
    >>> fit.coefficients, fit.t.round(3), fit.p.round(4)
    (array([3.]), array([4.243]), array([0.0132]))
    """
    b_g = np.asarray(by_document, dtype=np.float64)
    if b_g.ndim < 2:
        raise InputError(f"by_document must have axes (document, ..., parameter), got shape {b_g.shape}")
    n_documents, k = b_g.shape[0], b_g.shape[-1]
    labels = tuple(map(str, range(k))) if names is None else names
    m = np.ones(n_documents) if counts is None else np.asarray(counts, dtype=np.float64)
    if m.shape != (n_documents,) or (m < 1).any() or len(labels) != k:
        raise InputError("counts needs one number of at least 1 per document, and names one name per coefficient")
    if n_documents < max(MINIMUM_DOCUMENTS, k + 1):
        raise DesignError(
            f"{n_documents} documents are too few to test {k} coefficient(s) clustered by document; "
            f"at least {max(MINIMUM_DOCUMENTS, k + 1)} are needed"
        )
    if not np.isfinite(b_g).all():
        raise NumericalError("coefficients per document must be finite")
    weight = (m / m.sum()).reshape(-1, *[1] * (b_g.ndim - 1))
    b = (weight * b_g).sum(axis=0)
    score = np.moveaxis((b_g - b) * weight, 0, -2)
    covariance = n_documents / (n_documents - 1) * np.matmul(np.swapaxes(score, -1, -2), score)
    standard_errors = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    varies = standard_errors > np.broadcast_to(rounding, standard_errors.shape)
    t = np.divide(b, standard_errors, out=np.full(b.shape, np.nan), where=varies)
    wald = _wald(b, covariance, standard_errors, varies.all(axis=-1))
    f = wald * (n_documents - k) / (k * (n_documents - 1))
    return PositionFit(
        names=labels,
        coefficients=b,
        covariance=covariance,
        standard_errors=standard_errors,
        t=t,
        df=n_documents - 1,
        p=2 * stats.t.sf(np.abs(t), n_documents - 1),
        wald=wald,
        f=f,
        f_df=(k, n_documents - k),
        f_p=stats.f.sf(f, k, n_documents - k),
        n_documents=n_documents,
        n_sequences=int(m.sum()),
        n_degenerate=int(np.isnan(wald).sum()),
    )


def fit_rows(response: ArrayLike, design: ArrayLike, documents: ArrayLike) -> RegressionResultsWrapper:
    """Fit ordinary least squares row by row, with the covariance of :func:`fit_position` for all columns.

    ``statsmodels`` has no factor G / (G - 1) by itself: its own correction multiplies by (n - 1) / (n - K) too.

    Parameters
    ----------
    response : array_like, (row,)
        Values in nats; labels of a pandas object are kept.
    design : array_like, (row, column)
        Columns of the regression, those of the intercepts included.
    documents : array_like, (row,)
        Document label of each row: the cluster.

    Returns
    -------
    statsmodels.regression.linear_model.RegressionResultsWrapper
        Tests and intervals refer to t(G - 1).

    Examples
    --------
    >>> import numpy as np
    >>> x, documents = np.tile([1.0, 2.0, 4.0], 6), np.repeat(np.arange(6), 3)
    >>> y = 2.0 + 0.1 * (1 + documents) * x
    >>> fit = fit_rows(y, np.column_stack([np.ones(18), x]), documents)
    >>> fit.params.round(3), fit.bse.round(4), fit.df_resid_inference
    (array([2.  , 0.35]), array([0.    , 0.0764]), 5)
    """
    labels, code = np.unique(np.asarray(documents), return_inverse=True)
    plain = OLS(response, design).fit()
    fit = plain.get_robustcov_results("cluster", use_t=True, groups=code, use_correction=False)
    fit.cov_params_default *= labels.size / (labels.size - 1)
    fit.cov_kwds["description"] = (
        f"Standard Errors are robust to correlation within {labels.size} documents, with the factor G / (G - 1)"
    )
    return RegressionResultsWrapper(fit)


def _wald(
    b: NDArray[np.float64],
    covariance: NDArray[np.float64],
    standard_errors: NDArray[np.float64],
    testable: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """``b' V^-1 b`` where V is regular, NaN elsewhere; on the correlation scale, so units cannot spoil the solve."""
    wald = np.full(b.shape[:-1], np.nan)
    se = standard_errors[testable]
    correlation = covariance[testable] / (se[:, :, None] * se[:, None, :])
    regular = np.linalg.eigvalsh(correlation)[:, 0] > _ROUNDING
    z = (b[testable] / se)[regular]
    statistic = np.full(se.shape[0], np.nan)
    statistic[regular] = np.einsum("hk,hk->h", z, np.linalg.solve(correlation[regular], z[..., None])[..., 0])
    wald[testable] = statistic
    return wald
