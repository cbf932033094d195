"""Runs against scipy's t tests, detectable effects against the noncentral t, coverage with few runs."""

import numpy as np
import pytest
from scipy import optimize, stats

from posstats.errors import DesignError
from posstats.stats.inference.runs import contrast_of_runs, detectable_effect, satterthwaite


def two_sides(k, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(k, 3)), 0.5 + 2 * rng.normal(size=(k, 3))]


def test_without_document_noise_paired_runs_are_a_paired_t_test():
    sides = two_sides(5)
    found = contrast_of_runs(sides, np.zeros(3), 40.0, paired=True)
    expected = stats.ttest_rel(sides[1], sides[0])
    np.testing.assert_allclose(found.p, expected.pvalue)
    np.testing.assert_allclose(found.df, 4)
    np.testing.assert_allclose(found.low, expected.confidence_interval().low)
    np.testing.assert_allclose(found.pairing, [np.corrcoef(sides[0][:, v], sides[1][:, v])[0, 1] for v in range(3)])


def test_without_document_noise_other_runs_are_welchs_test():
    sides = [two_sides(5)[0], two_sides(4, 1)[1]]
    found = contrast_of_runs(sides, np.zeros(3), 40.0, paired=False)
    np.testing.assert_allclose(found.p, stats.ttest_ind(sides[1], sides[0], equal_var=False).pvalue)
    assert np.isnan(found.pairing).all()
    assert not found.two_runs


@pytest.mark.parametrize(("k", "paired"), [(2, True), (2, False), (3, True), (3, False)])
def test_few_runs_have_no_more_than_their_own_degrees_of_freedom(k, paired):
    found = contrast_of_runs(two_sides(k), np.full(3, 1e4), 40.0, paired=paired)
    np.testing.assert_allclose(found.df, k - 1)
    assert found.two_runs == (k == 2)
    many = contrast_of_runs(two_sides(5), np.full(3, 1e4), 40.0, paired=paired)
    assert (many.df > 39).all()


def test_a_single_side_is_a_mean_over_runs():
    runs = two_sides(4)[0]
    found = contrast_of_runs([runs], np.full(3, 0.01), 30.0, paired=False)
    np.testing.assert_allclose(found.estimate, runs.mean(axis=0))
    np.testing.assert_allclose(found.se**2, runs.var(axis=0, ddof=1) / 4 + 0.01)
    np.testing.assert_allclose(found.se**2, found.se_documents**2 + found.se_runs**2)


def test_runs_that_agree_leave_the_documents():
    same = np.ones((3, 1))
    found = contrast_of_runs([same, same], np.array([0.04]), 17.0, paired=True)
    assert (found.df[0], found.se_runs[0]) == (17, 0)
    assert np.isnan(found.pairing[0])
    nothing = contrast_of_runs([same, same], np.zeros(1), 17.0, paired=True)
    assert nothing.se[0] == 0
    assert np.isnan([nothing.p[0], nothing.df[0]]).all()


def test_satterthwaite_by_hand():
    variances, dfs = np.array([[3.0], [1.0]]), np.array([[4.0], [10.0]])
    np.testing.assert_allclose(satterthwaite(variances, dfs, cautious=False), 16 / (9 / 4 + 1 / 10))
    np.testing.assert_allclose(satterthwaite(variances, dfs, cautious=True), 4)


@pytest.mark.parametrize("df", [2, 5, 10, 40, 1000])
def test_detectable_effect_is_near_the_noncentral_t(df):
    critical = stats.t.ppf(0.975, df)

    def power(effect):
        return stats.nct.sf(critical, df, effect) + stats.nct.cdf(-critical, df, effect) - 0.8

    exact = optimize.brentq(power, 0.5, 7)
    found = detectable_effect(np.array(1.0), np.array(float(df)))
    np.testing.assert_allclose(found, exact, rtol=2e-3)


@pytest.mark.parametrize("paired", [True, False])
def test_coverage_of_two_runs(paired):
    """Run effects of 4 document errors; of paired runs Satterthwaite alone fails what the cautious df keeps."""
    rng, n, size = np.random.default_rng(1), 48, 4000
    documents = rng.normal(size=(2, n, size))
    effects = 4 / np.sqrt(n) * rng.normal(size=(2, 2, size))
    sides = [documents[s].mean(axis=0) + effects[s] for s in range(2)]
    variance = (documents[1] - documents[0]).var(axis=0, ddof=1) / n
    found = contrast_of_runs(sides, variance, n - 1.0, paired=paired)
    covered = ((found.low <= 0) & (found.high >= 0)).mean()
    assert covered > 0.935
    if paired:
        parts = np.stack([variance, (sides[1] - sides[0]).var(axis=0, ddof=1) / 2])
        plain = stats.t.ppf(0.975, satterthwaite(parts, np.array([[n - 1.0], [1.0]]), cautious=False))
        assert (np.abs(found.estimate) <= plain * found.se).mean() < 0.93


def test_mistakes_are_refused():
    with pytest.raises(DesignError, match="at least 2 runs on every side"):
        contrast_of_runs([np.ones((1, 2)), np.ones((3, 2))], np.ones(2), 9.0, paired=False)
    with pytest.raises(DesignError, match="as many on both sides, not 2 and 3"):
        contrast_of_runs([np.ones((2, 2)), np.ones((3, 2))], np.ones(2), 9.0, paired=True)
