"""The regression behind a row of the position tests as a statsmodels results object."""

import numpy as np
import pytest
import statsmodels.formula.api as smf
from statsmodels.regression.linear_model import RegressionResultsWrapper

import posstats as ps
from posstats.errors import DumpError, InputError
from tests import brute
from tests.estimators.test_leakage import DOCUMENTS, LENGTH, OFFSETS, logits, pick
from tests.stats.test_regression import BruteCR2

pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
TESTED = ("log_attention", "mask", "sink", "redistribution")
SLOPE = "log2(i+1)"


@pytest.fixture(scope="module")
def dump():
    return brute.dump_dataset({"baseline": logits(1), "bos=mean": logits(2, 0.6)}, DOCUMENTS, OFFSETS)


@pytest.fixture(scope="module", params=["estimated", "fixed"])
def tests(dump, request):
    return ps.position_tests(dump, reference=request.param, level=0.9)


def assert_equals_row(fit, row, level):
    assert isinstance(fit, RegressionResultsWrapper)
    low, high = fit.conf_int(1 - level).loc[SLOPE]
    own = [fit.params[SLOPE], fit.bse[SLOPE], fit.tvalues[SLOPE], fit.pvalues[SLOPE], low, high]
    np.testing.assert_allclose(own, row[["estimate", "se", "t", "p", "low", "high"]].astype(float), rtol=0, atol=1e-10)
    assert fit.df_resid_inference == pytest.approx(row.df, rel=1e-12)


@pytest.mark.parametrize("term", TESTED)
@pytest.mark.parametrize("condition", ["baseline", "bos=mean"])
def test_equals_the_table(tests, condition, term):
    for layer, head in np.ndindex(2, 2):
        row = pick(tests.table, condition=condition, layer=layer, head=head, term=term)
        if np.isnan(row.p):
            assert (term, tests.settings["reference"]) == ("mask", "fixed")
            continue
        fit = tests.model(condition=condition, layer=layer, head=head, term=term)
        assert_equals_row(fit, row, level=0.9)


@pytest.mark.parametrize("term", ["log_attention", "sink", "redistribution"])
def test_rows_are_the_values_of_the_term(dump, term):
    """Against the brute force, and statsmodels' own formula on those rows."""
    fit = ps.position_tests(dump, reference="fixed").model(condition="baseline", layer=1, head=0, term=term)
    values = brute.BruteDump(dump, "baseline").terms[term]
    rows = fit.model.data.orig_endog.rename("y").reset_index()
    index = np.array(OFFSETS).tolist()
    expected = [values[row.sequence, 1, 0, row.query, index.index(row.offset)] for row in rows.itertuples(name="Row")]
    np.testing.assert_allclose(rows.y, expected, rtol=1e-8, atol=1e-10)
    rows["document"] = np.array(DOCUMENTS)[rows.sequence]
    rows["x"] = np.log2(rows["query"] + 1)
    oracle = smf.ols("y ~ C(offset) - 1 + x", rows).fit()
    covariance = BruteCR2(oracle.model.exog, oracle.resid, rows.document.to_numpy(), np.eye(4)).covariance
    assert fit.params[SLOPE] == pytest.approx(oracle.params["x"], rel=1e-8)
    np.testing.assert_allclose(fit.cov_params(), covariance, rtol=1e-7, atol=1e-14)
    assert fit.params["offset=0"] == pytest.approx(oracle.params["C(offset)[0]"], rel=1e-8)
    assert fit.rsquared == pytest.approx(oracle.rsquared, rel=1e-8)


def test_terms_give_the_same(dump):
    expected = ps.position_tests(dump).model(condition="bos=mean", layer=0, head=1, term="mask")
    of_terms = ps.position_tests(ps.decompose(dump)).model(condition="bos=mean", layer=0, head=1, term="mask")
    np.testing.assert_allclose(of_terms.params, expected.params, rtol=1e-9)
    np.testing.assert_allclose(of_terms.bse, expected.bse, rtol=1e-8)


def test_rows_are_read_from_the_file_as_long_as_it_is_open(tmp_path):
    ps.write_dump(ps.simulate(n=8, length=32, seed=0).dataset, tmp_path / "dump.h5")
    with ps.open_dump(tmp_path / "dump.h5") as ds:
        tests = ps.position_tests(ds)
        row = pick(tests.table, layer=0, head=1, term="mask")
        assert_equals_row(tests.model(layer=0, head=1, term="mask"), row, level=0.95)
    with pytest.raises(DumpError, match=r"dump.h5 was closed; keep a dump open"):
        tests.model(layer=0, head=1, term="mask")


def test_some_offsets_and_shuffled_labels(dump):
    """Labels select, not positions; the offsets of the tests are those of the model."""
    one = dump.sel(condition=["baseline"]).isel(layer=[1, 0], head=[1, 0]).assign_coords(head=[7, 3], layer=[4, 2])
    tests = ps.position_tests(one, offsets=[0, 3])
    for layer in (2, 4):
        for head in (3, 7):
            row = pick(tests.table, layer=layer, head=head, term="redistribution")
            fit = tests.model(layer=layer, head=head, term="redistribution")
            assert_equals_row(fit, row, level=0.95)
    assert fit.params.index.tolist() == ["offset=0", "offset=3", SLOPE]
    assert fit.nobs == len(DOCUMENTS) * (LENGTH // 2 - 4) * 2


def test_summary_says_what_was_fitted(tests):
    text = tests.model(condition="baseline", layer=0, head=0, term="sink").summary().as_text()
    for part in ("sink", "offset=1", SLOPE, "cluster", "within 6 documents"):
        assert part in text, part
    assert ".refit" not in repr(tests)


REFUSED = [
    ({"layer": 2}, "layer must be one of 0, 1, not 2"),
    ({"layer": "0"}, "layer must be one of 0, 1, not '0'"),
    ({"head": True}, "head must be one of 0, 1, not True"),
    ({"head": [0]}, r"head must be one of 0, 1, not \[0\]"),
    ({"term": "residual"}, "term must be one of log_attention, relative, mask, .* not 'residual'"),
    ({"term": None}, "term must be one of .* not None"),
    ({"condition": None}, "condition must be one of baseline, bos=mean, not None"),
    ({"condition": "bos=zero"}, "condition must be one of baseline, bos=mean, not 'bos=zero'"),
    ({"term": "relative"}, "'relative' does not vary between documents in head 1 of layer 0"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED)
def test_refusals(tests, changed, words):
    with pytest.raises(InputError, match=words):
        tests.model(**({"condition": "baseline", "layer": 0, "head": 1, "term": "sink"} | changed))


def test_a_mask_that_is_taken_as_known_has_no_regression(dump):
    tests = ps.position_tests(dump.sel(condition=["baseline"]), order="mask_first", reference="fixed")
    with pytest.raises(InputError, match="'mask' does not vary between documents"):
        tests.model(layer=0, head=0, term="mask")


def test_a_result_without_its_dataset(tests):
    bare = type(tests)(tests.table, tests.settings, tests.notes)
    with pytest.raises(InputError, match="call position_tests"):
        bare.model(condition="baseline", layer=0, head=0, term="sink")
