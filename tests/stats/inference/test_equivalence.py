"""One-sided tests and equivalence against scipy and statsmodels."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from posstats.errors import InputError
from posstats.stats.inference.equivalence import (
    VERDICTS,
    equivalence,
    interval_verdict,
    one_sided_p,
    ratio_equivalence,
)
from posstats.stats.inference.ratios import JointSpread, fieller_set


def sample(seed, n=20, mean=1.0):
    x = np.random.default_rng(seed).normal(mean, 0.3, size=n)
    return x, x.mean(), stats.sem(x), n - 1


@pytest.mark.parametrize("alternative", ["greater", "less"])
def test_one_sided_p_is_scipys(alternative):
    x, estimate, se, df = sample(0)
    found = one_sided_p(estimate, se, df, 0.9, alternative)
    np.testing.assert_allclose(found, stats.ttest_1samp(x, 0.9, alternative=alternative).pvalue)


def test_inside_is_statsmodels_tost():
    for seed in range(10):
        x, estimate, se, df = sample(seed)
        found = equivalence(estimate, se, df, (0.9, 1.1))
        np.testing.assert_allclose(found.p_inside, DescrStatsW(x).ttost_mean(0.9, 1.1)[0])


def test_verdicts_are_those_of_the_intervals():
    rng = np.random.default_rng(1)
    estimate, se, df = rng.normal(size=500), rng.exponential(size=500) / 2, 12.0
    found = equivalence(estimate, se, df, (-0.4, 0.7))
    for level, expected in ((0.90, "supported"), (0.95, "contradicted")):
        half = stats.t.ppf(0.5 + level / 2, df) * se
        said = interval_verdict(estimate - half, estimate + half, (-0.4, 0.7)) == expected
        np.testing.assert_array_equal(found.verdict == expected, said)
    assert set(found.verdict) == set(VERDICTS[:3])


def test_limits():
    estimate, se = np.array([1.0, 2.0, 0.5, np.nan, 1.0]), np.array([0.0, 0.0, 0.0, 1.0, np.nan])
    found = equivalence(estimate, se, 9.0, (0.5, 1.5))
    assert found.verdict.tolist() == ["supported", "contradicted", "inconclusive", "undefined", "undefined"]
    assert one_sided_p(np.array(0.0), np.array(0.0), 9.0) == 1
    assert interval_verdict(np.array([np.nan]), np.array([1.0]), (0, 1)).tolist() == ["undefined"]


def test_at_the_end_of_the_margin_it_is_supported_in_a_twentieth():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(20_000, 20))
    se = x.std(axis=1, ddof=1) / np.sqrt(20)
    rate = (equivalence(x.mean(axis=1), se, 19.0, (-3.0, 0.0)).verdict == "supported").mean()
    assert abs(rate - 0.05) < 0.006
    both = equivalence(x.mean(axis=1), se, 19.0, (0.0, 3.0)).verdict == "contradicted"
    assert abs(both.mean() - 0.025) < 0.005


def test_a_ratio_needs_no_strong_denominator():
    covariance = np.broadcast_to(np.eye(2) * 0.01, (3, 2, 2))
    spread = JointSpread(np.array([10.0, 10.0, 0.2]), np.array([10.0, 5.0, 0.2]), covariance, np.full(3, 40.0))
    found = ratio_equivalence(spread, (0.9, 1.1))
    assert found.verdict.tolist() == ["supported", "contradicted", "inconclusive"]
    wide = fieller_set(spread, 0.9)
    assert wide.inside(0.9, 1.1).tolist() == [True, False, False]


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="lower end below its upper end, not 1 and 1"):
        equivalence(0.0, 1.0, 9, (1, 1))
    with pytest.raises(InputError, match=r"in \[0.5, 1\), not 0.4"):
        equivalence(0.0, 1.0, 9, (0, 1), level=0.4)
    with pytest.raises(InputError, match="'greater' or 'less', not 'larger'"):
        one_sided_p(0.0, 1.0, 9, alternative="larger")
