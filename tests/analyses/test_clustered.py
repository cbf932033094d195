"""The calibration of the clustered tests: the committed rates, and a part of them drawn anew."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

ROOT = Path(__file__).parents[2]
SYMMETRIC = ("gaussian", "t, 3 df")
VERY_UNEQUAL = ("12 x 1 and 12", "23 x 1 and 12", "40, 20, 13, ..., 1")


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("analyses.calibration.clustered")


@pytest.fixture(scope="module")
def committed():
    return pd.read_csv(ROOT / "docs" / "calibration" / "clustered.csv")


def test_the_committed_table_has_every_cell_with_enough_data_sets(study, committed):
    listed = [(cell.design, cell.shared, cell.noise) for cell in study.cells()]
    assert list(committed[["design", "shared", "noise"]].itertuples(index=False, name=None)) == listed
    assert (committed.datasets >= 4000).all()


def test_the_committed_rates_are_as_the_page_says(study, committed):
    low, high = study.REQUIRED
    symmetric = committed[committed.noise.isin(SYMMETRIC)]
    outside = symmetric[~symmetric["slope_below_0.05"].between(low, high)]
    assert set(outside.design) == {"12 x 1 and 12"}
    assert set(outside.shared) == {0.0}
    few = symmetric.design.isin(VERY_UNEQUAL)
    assert symmetric["spline_below_0.05"][~few].between(low, high).all()
    assert (symmetric["spline_below_0.05"][few] < low).all()
    assert (symmetric["former_slope_below_0.05"][few] > high).all()


@pytest.mark.parametrize("design", ["40, 20, 13, ..., 1", "24 x 2"])
def test_other_data_sets_reject_as_often(study, committed, design):
    p = study.Cell(design, 0.3, "gaussian").p_values(np.random.SeedSequence(7), 1000)
    where = (committed.design == design) & (committed.shared == 0.3) & (committed.noise == "gaussian")
    row = committed[where].iloc[0]
    for name, values in p.items():
        rate, rejected = row[f"{name}_below_0.05".replace(" ", "_")], int((values < 0.05).sum())
        assert stats.binom.cdf(rejected, 1000, rate) > 1e-4, name
        assert stats.binom.sf(rejected - 1, 1000, rate) > 1e-4, name


def test_the_former_test_is_that_of_statsmodels(study):
    """Up to statsmodels' factor (n - 1) / (n - K)."""
    cell = study.Cell("12 x 1 and 12", 0.3, "gaussian")
    seed = np.random.SeedSequence(1)
    p = cell.p_values(seed, 2)["former slope"]
    response, documents = cell.response(np.random.default_rng(seed), 2)
    n, _, n_queries, n_offsets = response.shape
    columns = np.repeat(np.log2(study.QUERIES + 1), n_offsets)
    design = np.column_stack([np.tile(np.eye(n_offsets), (n * n_queries, 1)), np.tile(columns, n)])
    groups = np.repeat(documents, n_queries * n_offsets)
    for head in range(2):
        fit = sm.OLS(response[:, head].ravel(), design).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
        t = fit.tvalues[-1] * np.sqrt((fit.nobs - 1) / (fit.nobs - 3))
        assert p[head] == pytest.approx(2 * stats.t.sf(abs(t), 12), rel=1e-8)


def test_a_chunk_has_its_own_seed(study):
    first, second = (study._run((40, chunk))[1]["slope"] for chunk in (0, 1))
    assert not np.isin(first, second).any()
    np.testing.assert_array_equal(study._run((40, 0))[1]["slope"], first)
