"""Simultaneous bands against closed forms, counts against closed testing by enumeration."""

import itertools

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from posstats.errors import InputError
from posstats.stats.inference.bands import count_above, simultaneous_band

N = 21


def with_deviations(columns):
    """Values whose jackknife deviations are these columns, (document, value)."""
    return np.zeros(columns.shape[1]), -columns / np.sqrt(1 - 1 / len(columns))


def orthogonal(k):
    """k exactly uncorrelated sets of deviations that add up to 0."""
    basis = np.linalg.qr(np.column_stack([np.ones(N), np.random.default_rng(0).normal(size=(N, k))]))[0]
    return basis[:, 1:]


@pytest.mark.parametrize("k", [1, 3, 12])
def test_independent_values_have_sidaks_quantile(k):
    band = simultaneous_band(*with_deviations(orthogonal(k)), np.ones(N), n_draws=100_000)
    each = 1 - 2 * stats.t.sf(band.critical, N - 1)
    assert abs(each**k - 0.95) < 0.003
    np.testing.assert_allclose(band.se, 1.0)
    np.testing.assert_allclose(band.high, band.critical)


def test_values_that_move_together_cost_nothing():
    band = simultaneous_band(*with_deviations(np.repeat(orthogonal(1), 8, axis=1)), np.ones(N), n_draws=100_000)
    assert abs(band.critical - stats.t.ppf(0.975, N - 1)) < 0.03


def test_adjusted_p_and_band_say_the_same():
    rng = np.random.default_rng(1)
    estimate, left_out = with_deviations(orthogonal(10))
    shift = rng.normal(size=10) * 4
    band = simultaneous_band(estimate + shift, left_out + shift, np.ones(N), null=0.3)
    outside = (band.low > 0.3) | (band.high < 0.3)
    assert 0 < outside.sum() < 10
    np.testing.assert_array_equal(band.p <= 0.05, outside)
    assert (band.p >= 2 * stats.t.sf(np.abs(band.estimate - 0.3) / band.se, N - 1) - 0.005).all()


def test_values_without_spread_take_no_part():
    columns = orthogonal(3)
    columns[:, 1] = 0
    estimate, left_out = with_deviations(columns)
    left_out[:, 2] = np.nan
    band = simultaneous_band(estimate, left_out, np.ones(N), n_draws=50_000)
    assert abs(band.critical - stats.t.ppf(0.975, N - 1)) < 0.04
    assert (band.low[1], band.high[1]) == (0, 0)
    assert np.isnan([band.p[1], band.p[2], band.low[2]]).all()
    nothing = simultaneous_band(np.ones(2), np.ones((N, 2)), np.ones(N))
    assert nothing.low.tolist() == [1, 1]
    assert nothing.critical == 0


def test_one_seed_gives_one_band_and_units_do_not_matter():
    estimate, left_out = with_deviations(orthogonal(4))
    one, two = (simultaneous_band(f * estimate, f * left_out, np.ones(N), seed=3) for f in (1, -50))
    assert one.critical == pytest.approx(two.critical, rel=1e-12)
    assert simultaneous_band(estimate, left_out, np.ones(N), seed=4).critical != one.critical


@pytest.mark.parametrize("n", [12, 40])
def test_coverage_of_the_band(n):
    """500 data sets of 8 correlated means; bands that each hold at 0.95 alone fail the same bounds."""
    rng, all_in, alone = np.random.default_rng(n), 0, 0
    for k in range(500):
        x = rng.normal(size=(n, 8)) + 0.7 * rng.normal(size=(n, 1))
        mean = x.mean(axis=0)
        band = simultaneous_band(mean, (x.sum(axis=0) - x) / (n - 1), np.ones(n), n_draws=2000, seed=k)
        all_in += bool(((band.low <= 0) & (band.high >= 0)).all())
        alone += bool((np.abs(mean) <= stats.t.ppf(0.975, n - 1) * band.se).all())
    assert 0.915 * 500 < all_in < 0.985 * 500
    assert alone < 0.915 * 500


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="n_draws must be at least 100, not 99"):
        simultaneous_band(np.zeros(2), np.zeros((N, 2)), np.ones(N), n_draws=99)
    with pytest.raises(InputError, match=r"between 0 and 1, not 1\.5"):
        simultaneous_band(np.zeros(2), np.zeros((N, 2)), np.ones(N), level=1.5)


# ---- counts


def rejected(p, alpha, simes):
    p = np.sort(p)
    bounds = alpha * (np.arange(1, len(p) + 1) if simes else 1) / len(p)
    return bool((p <= bounds).any())


def by_enumeration(p, alpha, simes):
    """Family size less the largest subset that no local test rejects."""
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(p)), k) for k in range(1, len(p) + 1))
    kept = [len(subset) for subset in subsets if not rejected(p[list(subset)], alpha, simes)]
    return len(p) - max(kept, default=0)


@pytest.mark.parametrize("simes", [False, True])
def test_counts_are_those_of_closed_testing(simes):
    rng, differs = np.random.default_rng(2), 0
    for _ in range(150):
        p = rng.uniform(size=7) ** rng.choice([1, 4, 8], size=7)
        p = np.where(rng.uniform(size=7) < 0.5, rng.uniform(0, 0.03, size=7), p)
        p = np.where(rng.uniform(size=7) < 0.3, 1 - p, p)
        found = count_above(0.5 - p, p, 0.0, simes=simes)
        assert found.low == by_enumeration(p, 0.025, simes)
        assert found.high == 7 - by_enumeration(1 - p, 0.025, simes)
        assert (found.n, max(found.low, found.high)) == (7, found.high)
        differs += found.low > count_above(0.5 - p, p, 0.0).low
    assert (differs > 0) == simes


def test_bonferroni_counts_are_holms_rejections():
    p = np.random.default_rng(3).uniform(size=60) ** 6
    found = count_above(1 - p, p, 0.5)
    assert found.low == multipletests(p, 0.025, method="holm")[0].sum() > 0


def test_undefined_values_are_no_part_of_the_family():
    p = np.array([np.nan, 1e-9, 1 - 1e-9])
    found = count_above(np.array([np.nan, 1.0, 0.0]), p, 0.5)
    assert (found.estimate, found.low, found.high, found.n) == (1, 1, 1, 2)
    empty = count_above(np.array([np.nan]), np.array([np.nan]), 0.5)
    assert (empty.estimate, empty.low, empty.high, empty.n) == (0, 0, 0, 0)
