"""Fieller sets: what they hold is what the test does not reject, whatever their shape."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from posstats.errors import InputError
from posstats.stats.inference.ratios import (
    INTERVAL,
    LINE,
    RAYS,
    SHAPES,
    UNDEFINED,
    JointSpread,
    RatioSet,
    fieller_set,
    ratio_p,
)
from posstats.stats.inference.squares import single_deviations


def random_spread(rng, size, df=20.0):
    root = rng.normal(size=(size, 2, 2)) * rng.exponential(size=(size, 1, 1))
    above, below = rng.normal(size=(2, size)) * 2
    return JointSpread(above, below, root @ np.swapaxes(root, 1, 2), np.full(size, df))


def test_a_set_holds_what_the_test_does_not_reject():
    spread = random_spread(np.random.default_rng(0), 400)
    found = fieller_set(spread)
    assert set(found.shape) == {INTERVAL, RAYS, LINE}
    t2 = stats.t.ppf(0.975, 20) ** 2
    for x in (-50.0, -3.0, -1.0, -0.2, 0.0, 0.1, 0.7, 1.0, 2.5, 40.0):
        accepted = (spread.above - x * spread.below) ** 2 <= t2 * spread.variance(x)
        np.testing.assert_array_equal(found.contains(x), accepted)
        np.testing.assert_array_equal(ratio_p(spread, x) >= 0.05, accepted)
    assert found.contains(found.estimate).all()


def test_answers_about_a_set_agree_with_what_it_holds():
    found = fieller_set(random_spread(np.random.default_rng(1), 300))
    grid = np.concatenate([-np.geomspace(1e6, 1e-3, 200), [0.0], np.geomspace(1e-3, 1e6, 200)])
    held = np.array([found.contains(x) for x in grid])
    low, high = -0.5, 1.2
    between = ((grid >= low) & (grid <= high))[:, None]
    for answer, forbidden in (
        (found.above(low), (grid <= low)[:, None] & held),
        (found.below(high), (grid >= high)[:, None] & held),
        (found.inside(low, high), ~between & held),
        (found.outside(low, high), between & held),
    ):
        assert answer.any()
        assert not (answer & forbidden.any(axis=0)).any()


def test_independent_parts_have_the_textbook_limits():
    a, b, va, vb, t = 3.0, 2.0, 0.04, 0.09, stats.t.ppf(0.975, 30)
    found = fieller_set(JointSpread(np.array(a), np.array(b), np.diag([va, vb]), np.array(30.0)))
    g = t**2 * vb / b**2
    half = t / b * np.sqrt((1 - g) * va + a**2 / b**2 * vb) / (1 - g)
    np.testing.assert_allclose([found.low, found.high], [a / b / (1 - g) - half, a / b / (1 - g) + half])


def test_a_certain_denominator_leaves_a_t_interval():
    found = fieller_set(JointSpread(np.array(3.0), np.array(2.0), np.diag([0.04, 0.0]), np.array(30.0)))
    half = stats.t.ppf(0.975, 30) * 0.1
    np.testing.assert_allclose([found.low, found.high], [1.5 - half, 1.5 + half])


def test_a_denominator_of_zero_has_no_end_and_no_estimate():
    spread = JointSpread(np.array([5.0, 0.5]), np.zeros(2), np.broadcast_to(np.eye(2), (2, 2, 2)), np.full(2, 30.0))
    found = fieller_set(spread)
    assert found.shape.tolist() == [RAYS, LINE]
    assert np.isnan(found.estimate).all()
    np.testing.assert_allclose(found.low[0], -found.high[0])  # as far to either side
    assert not found.contains(0.0)[0]
    assert found.contains(1e9).all()


def test_without_spread_or_number_a_set_is_undefined():
    spread = JointSpread(np.array([0.0, np.nan]), np.array([0.0, 1.0]), np.zeros((2, 2, 2)), np.full(2, 9.0))
    found = fieller_set(spread)
    assert found.shape.tolist() == [UNDEFINED, UNDEFINED]
    assert not (found.contains(0.0) | found.above(-1.0)).any()
    assert found.text() == ["undefined", "undefined"]
    point = fieller_set(JointSpread(np.array(1.0), np.array(4.0), np.zeros((2, 2)), np.array(9.0)))
    assert (point.low, point.high, int(point.shape)) == (0.25, 0.25, INTERVAL)


def test_sets_print_as_what_they_are():
    limits = np.array([0.25, -2.0, -np.inf, np.nan]), np.array([0.5, 3.0, np.inf, np.nan])
    found = RatioSet(np.array([0.3, 4.0, 1.0, np.nan]), *limits, np.arange(4))
    assert len(SHAPES) == 4
    assert str(found).splitlines() == ["[0.25, 0.5]", "(-inf, -2] or [3, inf)", "(-inf, inf)", "undefined"]
    assert str(found.complement()).splitlines() == ["[0.5, 0.75]", "(-inf, -2] or [3, inf)", "(-inf, inf)", "undefined"]


def test_units_and_complement():
    spread = random_spread(np.random.default_rng(2), 100)
    plain = fieller_set(spread)
    turned = np.array([[4.0, -2.0], [-2.0, 1.0]])  # numerator times -2
    other = fieller_set(JointSpread(-2 * spread.above, spread.below, spread.covariance * turned, spread.df))
    np.testing.assert_array_equal(other.shape, plain.shape)
    np.testing.assert_allclose(other.low, -2 * plain.high)
    for x in (-1.0, 0.3, 2.0):
        np.testing.assert_array_equal(plain.complement().contains(1 - x), plain.contains(x))


def test_bad_levels_are_refused():
    with pytest.raises(InputError, match="between 0 and 1, not 0"):
        fieller_set(random_spread(np.random.default_rng(3), 2), 0)


# ---- from documents


def paired(rng, datasets, g, q, square):
    """A share of one half whose denominator is `square`: products, estimates, estimates without each document."""
    mu = np.sqrt(square / q)
    y = mu + rng.normal(size=(datasets, g, q))
    x = 0.5 * y + 0.5 * rng.normal(size=(datasets, g, q))
    grams = []
    for one in (x, y):
        gram = one @ y.transpose(0, 2, 1)
        gram = (gram + gram.transpose(0, 2, 1)) / 2
        gram[:, np.arange(g), np.arange(g)] = 0
        grams.append(gram)
    whole = [gram.sum(axis=(1, 2)) / (g * (g - 1)) for gram in grams]
    left = [((gram.sum(axis=(1, 2))[:, None] - 2 * gram.sum(axis=2)) / ((g - 1) * (g - 2))).T for gram in grams]
    return whole, left, tuple(grams)


def test_joint_variance_is_that_of_every_difference():
    whole, left, grams = paired(np.random.default_rng(4), 5, 12, 6, 1.0)
    n = np.ones(12)
    spread = JointSpread.of(*whole, *left, n)
    for x in (-2.0, 0.0, 0.5, 3.0):
        deviations = single_deviations(whole[0] - x * whole[1], left[0] - x * left[1], n)
        np.testing.assert_allclose(spread.variance(x), (deviations**2).sum(axis=-1))
        corrected = JointSpread.of(*whole, *left, n, grams).variance(x)
        assert (corrected <= spread.variance(x) * (1 + 1e-9)).all()
        assert (corrected >= spread.variance(x) * (0.5 - 1e-9)).all()


def test_scaling_a_part_scales_its_variance():
    whole, left, grams = paired(np.random.default_rng(5), 5, 12, 6, 1.0)
    n = np.ones(12)
    plain = JointSpread.of(*whole, *left, n, grams)
    scaled = JointSpread.of(1e3 * whole[0], whole[1], 1e3 * left[0], left[1], n, (1e3 * grams[0], grams[1]))
    np.testing.assert_allclose(scaled.covariance, plain.covariance * np.array([[1e6, 1e3], [1e3, 1.0]]), rtol=1e-6)
    np.testing.assert_allclose(scaled.df, plain.df)


@pytest.mark.parametrize("strength", [2, 20, 100])
def test_coverage_over_all_data_sets(strength):
    """1,000 data sets each, all of them counted. Without the covariance of the parts the same bounds fail."""
    g, q, datasets = 24, 10, 1000
    unit = np.sqrt(2 * q / (g * (g - 1)))
    whole, left, grams = paired(np.random.default_rng([6, strength]), datasets, g, q, strength * unit)
    spread = JointSpread.of(*whole, *left, np.ones(g), grams)
    found = fieller_set(spread)
    # Where the denominator is weak most sets have no end, and they cover too often.
    most = 1.0 if strength == 2 else 0.98
    assert 0.925 * datasets < found.contains(0.5).sum() <= most * datasets
    assert ((found.shape == INTERVAL).mean() < 0.5) == (strength == 2)
    if strength == 100:
        apart = replace(spread, covariance=spread.covariance * np.eye(2))
        assert fieller_set(apart).contains(0.5).sum() > most * datasets
