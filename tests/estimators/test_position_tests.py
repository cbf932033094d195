"""Position regressions equal statsmodels OLS, with a brute-force CR2 covariance clustered by document."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

import posstats as ps
from posstats.errors import FewDocumentsWarning, InputError
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.pair_products.terms import ORDERS
from tests import brute
from tests.estimators.test_leakage import DOCUMENTS, OFFSETS, QUERIES, logits
from tests.sealed import sealed
from tests.stats.test_regression import BruteCR2

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
        fit = sm.OLS(response, np.array(design)).fit()
        brute_cr2 = BruteCR2(np.array(design), fit.resid, np.array(groups), np.eye(len(OFFSETS) + 1)[-1:])
        row = table.query("layer == @layer and head == @head and term == @term").iloc[0]
        assert row.estimate == pytest.approx(fit.params[-1], rel=1e-8, abs=1e-10)
        assert row.se == pytest.approx(np.sqrt(brute_cr2.covariance[0, 0]), rel=1e-8)
        assert row.t == pytest.approx(fit.params[-1] / row.se, rel=1e-8)
        assert row.df == pytest.approx(brute_cr2.df[0], rel=1e-8)
        assert row.p == pytest.approx(2 * stats.t.sf(abs(row.t), row.df), rel=1e-8)
        low, high = row.estimate + row.se * stats.t.ppf([0.025, 0.975], row.df)
        assert (row.low, row.high) == pytest.approx((low, high), rel=1e-8)


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


def unequal(counts, seed=0):
    """A simulated dump with as many sequences per document."""
    ds = ps.simulate(n=sum(counts), length=32, seed=seed).dataset
    return ds.assign_coords(document=("sequence", np.repeat(np.arange(len(counts)), counts).astype(str)))


def test_unequal_documents_are_counted_by_what_they_are_worth():
    counts = [12] + [1] * 24
    with pytest.warns(FewDocumentsWarning, match=r"25 documents of unequal size count as 7.7: .* from 24"):
        result = ps.position_tests(unequal(counts))
    assert result.settings["effective_documents"] == 7.7
    assert any("count as 7.7" in note for note in result.notes)
    assert (result.table.df < 8).all()
    equal = ps.position_tests(unequal([1] * 25))
    assert "effective_documents" not in equal.settings
    assert not any("documents" in note for note in equal.notes)
    np.testing.assert_allclose(equal.table.df, 24, rtol=1e-12)


def test_a_document_that_carries_more_than_a_quarter_is_mentioned():
    ds = unequal([1] * 25)
    assert ps.position_tests(ds).notes == ()
    odd = ds.copy(deep=True)
    odd["sink_logit"][:, 7, 0, 0] += 40 * np.log2(odd["query"] + 1)  # one head of one document, against all others
    result = ps.position_tests(sealed(odd), reference="fixed")
    (note,) = result.notes
    tested = result.table.p.notna().sum()
    assert f" in 2 of {tested} slopes, up to 0." in note  # log attention and sink


def test_options_are_checked(dump):
    with pytest.raises(InputError, match="'estimated', 'fixed'"):
        ps.position_tests(dump, reference="none")
