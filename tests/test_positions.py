"""Position regressions equal statsmodels OLS with clustered covariance."""

import numpy as np
import pytest
import statsmodels.api as sm

import posstats as ps
from posstats.errors import InputError
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.pair_products.terms import ORDERS
from tests import brute
from tests.test_estimates import DOCUMENTS, OFFSETS, QUERIES, logits

pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
TERMS = ("log_attention", "relative", "mask", "sink", "redistribution")


@pytest.fixture(scope="module")
def dump():
    return brute.dump_dataset({"baseline": logits(1)}, DOCUMENTS, OFFSETS)


@pytest.mark.parametrize("term", ["log_attention", "mask", "sink", "redistribution"])
def test_slopes_equal_statsmodels(dump, term):
    table = ps.position_tests(dump, reference="fixed").table
    oracle = brute.BruteDump(dump, "baseline")
    queries = oracle.default_queries()
    for layer, head in np.ndindex(2, 2):
        response, design, groups = [], [], []
        for n, document in enumerate(DOCUMENTS):
            for i in queries:
                for o in range(len(OFFSETS)):
                    response.append(oracle.terms[term][n, layer, head, i, o])
                    design.append([*np.eye(len(OFFSETS))[o], np.log2(i + 1)])
                    groups.append(ord(document))
        n, k, g = len(response), len(OFFSETS) + 1, len(set(DOCUMENTS))
        fit = sm.OLS(response, np.array(design)).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
        factor = np.sqrt((n - 1) / (n - k))  # statsmodels multiplies by (n-1)/(n-k) beside G/(G-1)
        row = table.query("layer == @layer and head == @head and term == @term").iloc[0]
        assert row.estimate == pytest.approx(fit.params[-1], rel=1e-8, abs=1e-10)
        assert row.se == pytest.approx(fit.bse[-1] / factor, rel=1e-8)
        assert row.t == pytest.approx(fit.tvalues[-1] * factor, rel=1e-8)
        assert row.df == g - 1
        # p of the rescaled statistic, from the same t(G-1)
        from scipy import stats

        assert row.p == pytest.approx(2 * stats.t.sf(abs(fit.tvalues[-1] * factor), g - 1), rel=1e-8)


def test_estimated_reference_changes_only_the_terms_that_use_it(dump):
    fixed, estimated = (
        ps.position_tests(dump, reference=kind, order="mask_first").table.set_index(["layer", "head", "term"])
        for kind in ("fixed", "estimated")
    )
    np.testing.assert_allclose(fixed.estimate, estimated.estimate, rtol=1e-9, atol=1e-12)
    whole = (one.se.xs("log_attention", level=2) for one in (fixed, estimated))
    np.testing.assert_allclose(*whole, rtol=1e-9)
    for term in ("mask", "sink", "redistribution"):
        assert (np.abs(fixed.se.xs(term, level=2) / estimated.se.xs(term, level=2) - 1) > 1e-3).any()
    mask = estimated.xs("mask", level=2)
    assert (mask.se > 0).all()
    assert mask.p.notna().all()
    assert fixed.xs("mask", level=2).p.isna().all()  # known exactly: nothing to test


@pytest.mark.parametrize("order", ORDERS)
def test_standard_error_of_the_mask_slope_is_its_jackknife(dump, order):
    """Against delete-one estimates of the whole decomposition, one sequence per document."""
    one_each = dump.isel(sequence=[0, 1, 3, 4, 5, 6])
    row = ps.position_tests(one_each, order=order).table.query("layer == 1 and head == 0 and term == 'mask'").iloc[0]
    queries = np.arange(max(OFFSETS) + 1, QUERIES)
    slopes = []
    for n in range(6):
        rest = one_each.isel(sequence=[m for m in range(6) if m != n])
        mask = ps.decompose(rest, order=order)["mask"].mean("sequence").values[0, 1, 0, queries]
        slopes.append(np.polyfit(np.log2(queries + 1), mask, 1)[0])
    jackknife = np.sqrt(5 / 6 * np.sum((slopes - np.mean(slopes)) ** 2))
    # The mask counted last follows the steady state up to third order in its change.
    assert row.se == pytest.approx(jackknife, rel=1e-8 if order == "mask_first" else 1e-4)


def test_slopes_of_terms_add_up_and_families_are_adjusted(dump):
    table = ps.position_tests(dump).table
    wide = table.pivot_table(index=["layer", "head"], columns="term", values="estimate")
    np.testing.assert_allclose(wide[list(TERMS[1:])].sum(axis=1), wide["log_attention"], rtol=1e-9)
    for term in TERMS:
        family = table[table.term == term]
        np.testing.assert_allclose(family.q, adjust(family.p.to_numpy()).q)
        np.testing.assert_allclose(family.spline_q, adjust(family.spline_p.to_numpy()).q)
    assert table[table.term == "relative"].p.isna().all()


def test_known_slope_is_recovered():
    from posstats.stats.synthetic.design import Effects

    drift = 0.3 * np.log2(np.arange(24) + 1.0)
    simulation = ps.simulate(n=64, length=48, conditions={"baseline": Effects(query_drift=drift)}, seed=4)
    table = ps.position_tests(simulation.dataset).table
    for term in ("log_attention", "mask", "redistribution"):
        truth = simulation.truth.slope(term)[0, 0]
        rows = table[table.term == term].sort_values("head")
        assert (np.abs(rows.estimate - truth) < 4 * rows.se).all()
    assert (table[table.term == "redistribution"].q < 0.05).all()


def test_options_are_checked(dump):
    with pytest.raises(InputError, match="estimated, fixed"):
        ps.position_tests(dump, reference="none")
