"""Regression of log attention, or of one of its terms, on query position (docs/method.md, section 4).

The model per head is ``y[n, i, d] = intercept[d] + sum_k coefficient[k] * basis_k(log2(i + 1)) + error``: ordinary
least squares with an intercept per offset and a covariance clustered by document. Every sequence has the same
design, which makes the algebra short. By Frisch-Waugh-Lovell the coefficients of a sequence are the least-squares
coefficients of its mean over offsets on the centred basis, the estimate is their mean over sequences, and a cluster's
score is proportional to ``m_g (b_g - b)``, with ``b_g`` the mean over the ``m_g`` sequences of document g. The
clustered test is therefore a one-sample test on per-document coefficients: a t test, and Hotelling's T-squared for all
coefficients jointly; with equally many sequences per document it is exactly that.

With unequal documents the covariance is CR2 (bias-reduced linearization: Bell & McCaffrey 2002, Survey Methodology 28,
169; Pustejovsky & Tipton 2018, doi:10.1080/07350015.2016.1247004), unbiased where sequences are independent and alike.
Its adjustment of a document is ``(I - H_gg)^(-1/2)``, H the hat matrix. Document g stacks the same design ``m_g``
times, so with ``w_g = m_g / N`` the matrix ``H_gg`` is ``w_g`` times a projection that keeps the document's score, and
the adjustment multiplies the score by ``(1 - w_g)^(-1/2)``: one number per document, for all heads and coefficients.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.interpolate import CubicSpline
from statsmodels.regression.linear_model import OLS, RegressionResultsWrapper

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.inference.documents import leverage
from posstats.vocabulary import MINIMUM_DOCUMENTS

#: Spread between documents below this multiple of the response's own size is rounding, not variation.
_ROUNDING = 1e-12
#: A basis direction this much shorter than the longest is no direction of its own: a dozen queries crowded at one end
#: of the range would otherwise yield coefficients that are all amplified noise.
_COLLINEAR = 1e-4


@dataclass(frozen=True, slots=True)
class Basis:
    """Functions of query position that enter the regression."""

    #: "linear" or "spline".
    kind: str
    #: (query, parameter): the basis at the analysed queries, not centred (the offset intercepts absorb any constant).
    values: NDArray[np.float64]
    #: What a coefficient is. "log2(i+1)": nats per doubling of position. "i=A to i=B": the change of the fitted
    #: natural spline, in nats, from the first knot to the knot at query B (knots lie between integers in general).
    names: tuple[str, ...]
    #: Knots in log2(i+1), outermost included; empty for "linear".
    knots: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PositionFit:
    """Position regression of many heads; ``...`` stands for the head axes of the response."""

    #: (parameter,): what each coefficient is, see :class:`Basis`.
    names: tuple[str, ...]
    #: (..., parameter): least-squares estimates, in nats per unit of the basis.
    coefficients: NDArray[np.float64]
    #: (..., parameter, parameter): clustered by document (CR2).
    covariance: NDArray[np.float64]
    #: (..., parameter): clustered standard errors and t statistics; t is NaN where documents do not differ beyond
    #: rounding.
    standard_errors: NDArray[np.float64]
    t: NDArray[np.float64]
    #: Degrees of freedom nu of t (:func:`clustered_df`): G - 1 with equally large documents.
    df: float
    #: (..., parameter): two-sided p-values from t(nu); NaN where t is.
    p: NDArray[np.float64]
    #: (...): ``b' V^-1 b`` over all coefficients, Hotelling's T-squared; NaN where V is singular to rounding.
    wald: NDArray[np.float64]
    #: (...): ``wald * (nu - k + 1) / (k * nu)``, with k coefficients; NaN where wald is, or nu is at most k - 1.
    f: NDArray[np.float64]
    #: Degrees of freedom of f: (k, nu - k + 1).
    f_df: tuple[int, float]
    #: (...): p-value of the joint test, from the upper tail of F(k, nu - k + 1).
    f_p: NDArray[np.float64]
    #: (..., parameter): part of the sum over documents that one document carries
    #: (:func:`posstats.stats.inference.documents.leverage`).
    leverage: NDArray[np.float64]
    n_documents: int
    n_sequences: int
    #: Number of joint tests that are NaN: the documents do not vary, or hardly more than one of them counts.
    n_degenerate: int


def position_basis(queries: ArrayLike, kind: str = "linear", df: int = 3) -> Basis:
    """Basis functions of query position, in log2(i + 1), at distinct analysed `queries` i: "linear" or "spline".

    The spline is the natural cubic spline (linear beyond the outermost knots, which are the first and last query) with
    ``df + 1`` knots equally spaced in log2(i + 1), so that every octave gets its share; the constant is left to the
    intercepts, which leaves ``df`` coefficients. It spans the same functions as ``splines::ns`` in R or ``cr`` in
    patsy with the same knots; the coefficients here are the spline's values at the knots relative to the first.

    Raises
    ------
    InputError
        If the kind is unknown, ``df`` is below 2, or the queries are not distinct positions.
    DesignError
        If the queries are too few, or too unevenly spread, for the basis to have full rank beside an intercept.

    Examples
    --------
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
    """Means (document, ...) over the sequences of each document, in sorted order of labels, and counts (document,).

    Raises InputError if `documents` does not hold one label for each row of `values`, (sequence, ...).
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

    Equals ordinary least squares on offset indicators and the basis with R's clubSandwich: covariance "CR2",
    Satterthwaite's (Bell and McCaffrey's) t, and the joint test "HTZ" (approximate Hotelling T-squared, AHT). With
    equally large documents the covariance is that of ``cov_type="cluster"`` in statsmodels up to its factor
    (n - 1) / (n - K), with n rows and K columns, and the joint test is Hotelling's F(k, G - k), exact for normal
    per-document coefficients, where statsmodels refers ``wald / k`` to F(k, G - 1). Linear in the response: the
    coefficients of terms that add up to log attention add up to the coefficients of log attention.

    `response`, (sequence, ..., query, offset), is in nats; the axes between are heads (layers, terms), each fitted by
    itself. `documents`, (sequence,), label the clusters. `basis` is a kind of :func:`position_basis`, or what it
    returned for the same `queries`.

    A response that is the same in every document (``relative`` and ``mask`` are: they are made of the stationary
    reference, which pools the documents) has no between-document spread here, and its t and p are NaN. Test those
    with :func:`fit_coefficients` on jackknife pseudo-values, which re-estimate the reference.

    Raises
    ------
    InputError
        If shapes do not match.
    DesignError
        If there are fewer documents than the coefficients need or than 5, or the basis is rank-deficient.
    NumericalError
        If the response is not finite.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> queries = np.arange(20, 60)
    >>> noise = rng.normal(size=(12, 3, 40, 2))  # sequence, head, query, offset
    >>> response = 0.5 * np.log2(queries + 1)[:, None] + noise
    >>> fit = fit_position(response, documents=np.arange(12), queries=queries, basis="linear")
    >>> fit.coefficients.shape, round(fit.df, 9), bool((fit.p < 0.05).all())
    ((3, 1), 11.0, True)
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
    """Clustered tests of coefficients that are already reduced to one set per document, (document, ..., parameter).

    ``b = sum_g w_g b_g`` and ``V = sum_g w_g^2 / (1 - w_g) (b_g - b)(b_g - b)'``, with ``w_g = m_g / N``, ``m_g``
    sequences in document g (`counts`, one each by default) and N in all. The values may be jackknife pseudo-values of
    any smooth statistic. Standard errors up to `rounding`, which broadcasts to (..., parameter), are rounding: the
    test is NaN there instead of a division by noise.

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
    w = m / m.sum()
    weight, adjustment = (one.reshape(-1, *[1] * (b_g.ndim - 1)) for one in (w, 1 / np.sqrt(1 - w)))
    b = (weight * b_g).sum(axis=0)
    score = np.moveaxis((b_g - b) * weight * adjustment, 0, -2)
    covariance = np.matmul(np.swapaxes(score, -1, -2), score)
    standard_errors = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    varies = standard_errors > np.broadcast_to(rounding, standard_errors.shape)
    t = np.divide(b, standard_errors, out=np.full(b.shape, np.nan), where=varies)
    wald = _wald(b, covariance, standard_errors, varies.all(axis=-1))
    df = clustered_df(m)
    f_df = df - k + 1
    f = wald * f_df / (k * df) if f_df > 0 else np.full_like(wald, np.nan)
    return PositionFit(
        names=labels,
        coefficients=b,
        covariance=covariance,
        standard_errors=standard_errors,
        t=t,
        df=df,
        p=2 * stats.t.sf(np.abs(t), df),
        wald=wald,
        f=f,
        f_df=(k, f_df),
        f_p=stats.f.sf(f, k, f_df),
        leverage=leverage(weight * b_g),
        n_documents=n_documents,
        n_sequences=int(m.sum()),
        n_degenerate=int(np.isnan(f).sum()),
    )


def clustered_df(counts: ArrayLike) -> float:
    """Return the degrees of freedom of a clustered test: Satterthwaite's, as Bell and McCaffrey (2002) have them.

    Those of a chi-squared variable with the mean and variance that ``V`` has if sequences are independent and alike,
    ``nu = 1 / (sum_g w_g^2 + sum_{g != h} w_g^2 w_h^2 / ((1 - w_g) (1 - w_h)))``. Every sequence has the same design,
    so nu is the same for every coefficient, and for Zhang's joint test of several (AHT). `counts`, (document,), need
    only be in proportion to ``w_g``.

    >>> round(clustered_df([2] * 24), 9), round(clustered_df([12] + [1] * 23), 2)
    (23.0, 6.96)
    """
    w = np.asarray(counts, dtype=np.float64)
    w = w / w.sum()
    shared = w**2 / (1 - w)
    return float(1 / ((w**2).sum() + shared.sum() ** 2 - (shared**2).sum()))


def fit_rows(response: ArrayLike, design: ArrayLike, documents: ArrayLike) -> RegressionResultsWrapper:
    """Fit ordinary least squares row by row, with covariance and degrees of freedom of :func:`fit_position`.

    CR2 for all columns, which ``statsmodels`` does not have, in a results object of ``statsmodels``: tests and
    intervals refer to t(nu), see :func:`clustered_df`; joint tests of several columns have no AHT here. Rows of
    different sequences have the same `design`, (row, column), intercepts included. `response`, (row,), is in nats;
    labels of a pandas object are kept. `documents`, (row,), label the clusters.

    >>> x, documents = np.tile([1.0, 2.0, 4.0], 6), np.repeat(np.arange(6), 3)
    >>> y = 2.0 + 0.1 * (1 + documents) * x
    >>> fit = fit_rows(y, np.column_stack([np.ones(18), x]), documents)
    >>> fit.params.round(3), fit.bse.round(4), round(fit.df_resid_inference, 9)
    (array([2.  , 0.35]), array([0.    , 0.0764]), 5.0)
    """
    _, code, counts = np.unique(np.asarray(documents), return_inverse=True, return_counts=True)
    fit = OLS(response, design).fit().get_robustcov_results("cluster", use_t=True, groups=code)
    score = np.zeros((counts.size, fit.model.exog.shape[1]))
    np.add.at(score, code, fit.model.exog * fit.resid[:, None])
    score /= np.sqrt(1 - counts[:, None] / code.size)
    fit.cov_params_default = fit.normalized_cov_params @ (score.T @ score) @ fit.normalized_cov_params
    fit.df_resid_inference = clustered_df(counts)
    fit.cov_kwds["description"] = (
        f"Standard Errors are robust to correlation within {counts.size} documents (CR2); "
        f"t has {fit.df_resid_inference:.1f} degrees of freedom (Bell and McCaffrey)."
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
