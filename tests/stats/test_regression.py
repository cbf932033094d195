from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from patsy import dmatrix
from scipy import stats

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.regression import fit_coefficients, fit_position, position_basis

REFERENCES = Path(__file__).parents[1] / "references"
OFFSETS = 3


def simulate(documents, queries, heads=(), seed=0, slope=0.2):
    """Response (sequence, *heads, query, offset) with slopes that differ between documents and sequences."""
    rng = np.random.default_rng(seed)
    documents, x = np.asarray(documents), np.log2(np.asarray(queries) + 1.0)
    _, code = np.unique(documents, return_inverse=True)
    by_document = rng.normal(slope, 0.3, size=(code.max() + 1, *heads))[code]
    slopes = by_document + rng.normal(0, 0.1, size=(documents.size, *heads))
    noise = rng.standard_t(4, size=(documents.size, *heads, x.size, OFFSETS))
    return slopes[..., None, None] * x[:, None] + np.array([0.0, -1.0, 2.0]) + noise


def statsmodels_fit(response, documents, basis):
    """The same regression, row by row: response (sequence, query, offset)."""
    n, n_queries, n_offsets = response.shape
    intercepts = np.tile(np.eye(n_offsets), (n * n_queries, 1))
    columns = np.tile(np.repeat(basis.values, n_offsets, axis=0), (n, 1))
    groups = np.repeat(documents, n_queries * n_offsets)
    model = sm.OLS(response.ravel(), np.hstack([intercepts, columns]))
    return model.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True), n_offsets


@pytest.mark.parametrize("kind", ["linear", "spline"])
@pytest.mark.parametrize("documents", [np.arange(12), np.repeat([5, 3, 9, 1, 4, 7], [1, 4, 2, 1, 3, 2])])
def test_equals_statsmodels_row_by_row(kind, documents):
    queries = np.arange(17, 60, 3)
    response = simulate(documents, queries, heads=(2, 2))
    basis = position_basis(queries, kind)
    fit = fit_position(response, documents, queries, kind)
    k = len(basis.names)
    for head in np.ndindex(2, 2):
        reference, first = statsmodels_fit(response[:, *head], documents, basis)
        rows = reference.nobs
        factor = (rows - 1) / (rows - first - k)  # the part of statsmodels' factor that ours leaves out
        tested = slice(first, None)
        t = reference.tvalues[tested] * np.sqrt(factor)
        np.testing.assert_allclose(fit.coefficients[head], reference.params[tested], rtol=1e-8)
        np.testing.assert_allclose(fit.standard_errors[head], reference.bse[tested] / np.sqrt(factor), rtol=1e-8)
        np.testing.assert_allclose(fit.covariance[head], reference.cov_params()[tested, tested] / factor, rtol=1e-8)
        np.testing.assert_allclose(fit.t[head], t, rtol=1e-8)
        np.testing.assert_allclose(fit.p[head], 2 * stats.t.sf(np.abs(t), reference.df_resid_inference), rtol=1e-8)
        joint = reference.f_test(np.eye(first + k)[tested])
        assert joint.df_denom == fit.df
        np.testing.assert_allclose(fit.wald[head] / k, joint.fvalue * factor, rtol=1e-8)
        hotelling = joint.fvalue * factor * (fit.df + 1 - k) / fit.df
        np.testing.assert_allclose(fit.f[head], hotelling, rtol=1e-8)
        np.testing.assert_allclose(fit.f_p[head], stats.f.sf(hotelling, k, fit.df + 1 - k), rtol=1e-8)


@pytest.mark.parametrize("kind", ["linear", "spline"])
def test_equals_sandwich_and_clubsandwich_in_r(kind):
    data = pd.read_csv(REFERENCES / "position_regression_data.csv")
    expected = pd.read_csv(REFERENCES / "position_regression_expected.csv")
    expected = expected[expected["model"] == kind]
    queries, offsets = np.unique(data["query"]), np.unique(data["offset"])
    response = data["y"].to_numpy().reshape(-1, queries.size, offsets.size)
    documents = data["document"].to_numpy()[:: queries.size * offsets.size]
    fit = fit_position(response, documents, queries, kind)

    def value(covariance, quantity):
        chosen = expected[(expected["covariance"] == covariance) & (expected["quantity"] == quantity)]
        return chosen.sort_values("parameter")["value"].to_numpy()

    np.testing.assert_allclose(fit.coefficients, value("none", "coefficient"), rtol=1e-9)
    g = fit.n_documents
    for name in ("clubSandwich CR1", "sandwich G/(G-1)"):
        np.testing.assert_allclose(fit.covariance.ravel(), value(name, "covariance"), rtol=1e-9)
    for name in ("clubSandwich CR0", "sandwich CR0"):
        np.testing.assert_allclose(fit.covariance.ravel() * (g - 1) / g, value(name, "covariance"), rtol=1e-9)
    np.testing.assert_allclose(fit.wald / len(fit.names), value("clubSandwich CR1", "naive F")[0], rtol=1e-9)
    if kind == "linear":
        np.testing.assert_allclose(fit.p, value("clubSandwich CR1", "naive t p"), rtol=1e-9)


def test_one_sequence_per_document_is_a_one_sample_t_test_and_hotelling():
    queries = np.arange(20, 80)
    response = simulate(np.arange(10), queries)
    linear = fit_position(response, np.arange(10), queries, "linear")
    slopes = [np.polyfit(np.log2(queries + 1), y.mean(axis=1), 1)[0] for y in response]
    reference = stats.ttest_1samp(slopes, 0)
    np.testing.assert_allclose([linear.t[0], linear.p[0]], [reference.statistic, reference.pvalue], rtol=1e-9)
    np.testing.assert_allclose([linear.f, linear.f_p], [reference.statistic**2, reference.pvalue], rtol=1e-9)
    spline = fit_position(response, np.arange(10), queries, "spline")
    assert spline.f_df == (3, 7)
    x = position_basis(queries, "spline").values
    x = np.column_stack([np.ones(queries.size), x])
    b = np.linalg.lstsq(x, response.mean(axis=2).T, rcond=None)[0][1:]
    t_squared = 10 * b.mean(axis=1) @ np.linalg.solve(np.cov(b), b.mean(axis=1))
    np.testing.assert_allclose(spline.f, t_squared * (10 - 3) / (3 * 9), rtol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "spline"])
def test_coefficients_of_the_terms_add_up_to_those_of_log_attention(kind):
    queries = np.arange(17, 40)
    terms = [simulate(np.arange(8), queries, heads=(3,), seed=seed) for seed in range(5)]
    parts = [fit_position(term, np.arange(8), queries, kind).coefficients for term in terms]
    whole = fit_position(sum(terms), np.arange(8), queries, kind).coefficients
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-10)


def test_a_known_line_and_a_known_curve_are_recovered():
    queries = np.arange(15, 128)
    x = np.log2(queries + 1.0)
    noise = np.random.default_rng(0).normal(scale=1e-6, size=(6, queries.size, 1))
    line = fit_position((2 - 0.7 * x)[:, None] + noise, np.arange(6), queries, "linear")
    np.testing.assert_allclose(line.coefficients, [-0.7], atol=1e-5)
    bent = fit_position((2 - 0.7 * x)[:, None] + noise, np.arange(6), queries, "spline")
    np.testing.assert_allclose(bent.coefficients, [-0.7, -1.4, -2.1], atol=1e-5)


def test_spline_spans_the_natural_spline_of_patsy():
    queries = np.arange(17, 191)
    basis = position_basis(queries, "spline")
    inner, lower, upper = basis.knots[1:-1], basis.knots[0], basis.knots[-1]
    reference = dmatrix(
        "cr(x, knots=inner, lower_bound=lower, upper_bound=upper) - 1",
        {"x": np.log2(queries + 1.0), "inner": inner, "lower": lower, "upper": upper},
    )
    ours = np.column_stack([np.ones(queries.size), basis.values])
    assert np.linalg.matrix_rank(ours) == 4 == np.linalg.matrix_rank(reference)
    fitted = ours @ np.linalg.lstsq(ours, np.asarray(reference), rcond=None)[0]
    np.testing.assert_allclose(fitted, reference, atol=1e-10)


@pytest.mark.parametrize("n_documents", [8, 16, 32, 64])
def test_type_i_error(n_documents):
    """No position effect, two sequences per document that share their document's random slope, heavy tails."""
    documents, queries, heads = np.repeat(np.arange(n_documents), 2), np.arange(17, 190, 12), 3000
    response = simulate(documents, queries, heads=(heads,), slope=0.0, seed=n_documents)
    band = 3.5 * np.sqrt(0.05 * 0.95 / heads)
    for kind in ("linear", "spline"):
        fit = fit_position(response, documents, queries, kind)
        assert abs((fit.f_p <= 0.05).mean() - 0.05) <= band, kind
        assert (np.abs((fit.p <= 0.05).mean(axis=0) - 0.05) <= band).all(), kind


def test_sequences_taken_for_documents_would_reject_far_too_often():
    documents, queries = np.repeat(np.arange(16), 4), np.arange(17, 190, 12)
    response = simulate(documents, queries, heads=(1000,), slope=0.0)
    naive = fit_position(response, np.arange(documents.size), queries, "linear")
    assert (naive.p <= 0.05).mean() > 0.15


def test_a_response_without_variation_between_documents_is_nan_and_counted():
    queries = np.arange(17, 60)
    mask = -np.log(queries + 1.0)[:, None] * np.ones(OFFSETS)
    response = simulate(np.arange(8), queries, heads=(3,))
    response[:, 1] = mask
    response[:, 2] = -3.0
    fit = fit_position(response, np.arange(8), queries, "linear")
    np.testing.assert_allclose(fit.coefficients[1:, 0], [-np.log(2), 0], atol=1e-12)
    assert np.isfinite([fit.t[0], fit.p[0]]).all()
    assert np.isfinite(fit.f_p[0])
    assert np.isnan([fit.t[1:], fit.p[1:]]).all()
    assert np.isnan([fit.wald[1:], fit.f_p[1:]]).all()
    assert fit.n_degenerate == 2


def test_collinear_coefficients_make_the_joint_test_nan_and_counted():
    b = np.random.default_rng(0).normal(size=(9, 1))
    fit = fit_coefficients(np.hstack([b, 2 * b]))
    assert np.isfinite(fit.p).all()
    assert np.isnan(fit.f_p)
    assert fit.n_degenerate == 1


def test_float32_is_summed_in_double_precision():
    queries = np.arange(17, 60)
    response = simulate(np.arange(8), queries) - 1000.0
    single = response.astype(np.float32)
    np.testing.assert_allclose(
        fit_position(single, np.arange(8), queries, "linear").t,
        fit_position(single.astype(np.float64), np.arange(8), queries, "linear").t,
        rtol=1e-12,
    )


def test_too_few_documents():
    queries = np.arange(17, 60)
    with pytest.raises(DesignError, match=r"4 documents are too few .* at least 5"):
        fit_position(simulate(np.repeat(np.arange(4), 3), queries), np.repeat(np.arange(4), 3), queries, "linear")
    wide = position_basis(queries, "spline", df=6)
    with pytest.raises(DesignError, match=r"6 documents are too few to test 6 .* at least 7"):
        fit_position(simulate(np.arange(6), queries), np.arange(6), queries, wide)


@pytest.mark.parametrize(
    ("queries", "kind", "message"),
    [
        ([20], "linear", "rank 0"),
        ([], "linear", "no query"),
        ([20, 30, 40], "spline", "too few"),
        ([20, 1000, 1001, 1002], "spline", "rank"),
    ],
)
def test_designs_that_cannot_be_estimated(queries, kind, message):
    with pytest.raises(DesignError, match=message):
        position_basis(np.array(queries, dtype=int), kind)


@pytest.mark.parametrize(
    ("queries", "kind", "df", "message"),
    [
        ([3, 3, 4], "linear", 3, "distinct"),
        ([-1, 4], "linear", 3, "non-negative"),
        ([1.5, 2.5], "linear", 3, "integers"),
        ([1, 2, 3, 4], "cubic", 3, "allowed: linear, spline"),
        ([1, 2, 3, 4], "spline", 1, "at least 2"),
    ],
)
def test_arguments_of_the_basis(queries, kind, df, message):
    with pytest.raises(InputError, match=message):
        position_basis(queries, kind, df)


def test_arguments_of_the_fit():
    queries = np.arange(17, 60)
    response = simulate(np.arange(8), queries)
    with pytest.raises(InputError, match="43 queries, got shape"):
        fit_position(response[:, 1:], np.arange(8), queries, "linear")
    with pytest.raises(InputError, match="one label for each of 8 sequences"):
        fit_position(response, np.arange(7), queries, "linear")
    response[0, 0, 0] = np.nan
    with pytest.raises(NumericalError, match="not finite"):
        fit_position(response, np.arange(8), queries, "linear")
    with pytest.raises(NumericalError, match="finite"):
        fit_coefficients(np.full((6, 1), np.inf))
    with pytest.raises(InputError, match=r"document, \.\.\., parameter"):
        fit_coefficients(np.ones(6))
    with pytest.raises(InputError, match="per document"):
        fit_coefficients(np.ones((6, 1)), counts=[1, 1, 1, 1, 1, 0])
