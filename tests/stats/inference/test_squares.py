"""Means of squares: exact parts against brute force and closed forms, limits, invariances, coverage."""

import itertools

import numpy as np
import pytest
from scipy import stats

from posstats.errors import DesignError, InputError
from posstats.stats.inference.resample import document_pairs, interval, jackknife_error
from posstats.stats.inference.squares import (
    SquareSpread,
    crossing,
    pair_gram,
    pair_interactions,
    pair_number,
    seen_singly,
    single_deviations,
    square_interval,
)

UNEQUAL = np.array([4.0, 1, 2, 3, 1, 1, 2])


def products(x):
    """(..., document, q) -> products of different documents."""
    gram = x @ np.swapaxes(x, -1, -2)
    diagonal = np.arange(x.shape[-2])
    gram[..., diagonal, diagonal] = 0
    return gram


def without(gram, n, *left):
    """The mean over pairs of sequences, by loops, without some documents."""
    kept = [g for g in range(len(n)) if g not in left]
    pairs = list(itertools.permutations(kept, 2))
    return sum(gram[..., g, h] for g, h in pairs) / sum(n[g] * n[h] for g, h in pairs)


def measured(gram, n):
    left_out = np.stack([without(gram, n, g) for g in range(len(n))])
    return SquareSpread.of(without(gram, n), left_out, gram, n)


def draw(rng, datasets, n_documents, spectrum, square):
    """Gaussian documents (data set, document, q) with a mean of the given square in a random direction."""
    mu = rng.normal(size=(datasets, 1, len(spectrum)))
    mu *= np.sqrt(square) / np.linalg.norm(mu, axis=-1, keepdims=True)
    return mu + rng.normal(size=(datasets, n_documents, len(spectrum))) * np.sqrt(spectrum)


def unit(spectrum, n):
    return np.sqrt(2 * (np.asarray(spectrum) ** 2).sum() / (n * (n - 1)))


# ---- the parts, exactly


def test_interactions_are_what_u_centring_leaves():
    rng = np.random.default_rng(0)
    gram = products(rng.normal(size=(9, 4)))
    g = len(gram)
    expected = np.zeros_like(gram)
    for a, b in itertools.permutations(range(g), 2):
        rows = (gram[a].sum() + gram[b].sum()) / (g - 2)
        expected[a, b] = gram[a, b] - rows + gram.sum() / ((g - 1) * (g - 2))
    found = pair_interactions(gram, np.ones(g)) * g * (g - 1)
    np.testing.assert_allclose(found, expected * np.sqrt((g - 1) / (g - 3)), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-12)


def test_second_part_is_unbiased_and_the_first_too():
    rng, g, spectrum, square = np.random.default_rng(1), 10, np.array([1.0, 0.5, 0.2]), 0.3
    x = draw(rng, 4000, g, spectrum, 0.0) + np.sqrt(square) * np.array([1.0, 0, 0])
    gram = products(x)
    spread = measured(gram, np.ones(g))
    # Var of a U-statistic of order 2: 4 mu'S mu / G + 2 tr S^2 / (G (G-1)).
    for found, exact in ((spread.second, unit(spectrum, g) ** 2), (spread.first, 4 * square * spectrum[0] / g)):
        assert abs(found.mean() - exact) < 4 * found.std() / np.sqrt(len(found))
    third = 8 * (spectrum**3).sum() / (g * (g - 1)) ** 1.5
    raw = spread.third  # cut at 0, so a little larger
    assert third < raw.mean() + 4 * raw.std() / np.sqrt(len(raw)) < 1.5 * third
    both = spread.first + spread.second
    assert abs(both.mean() / spread.estimate.var() - 1) < 0.1


def test_the_jackknife_sees_an_interaction_as_often_as_said():
    n = UNEQUAL
    for a, b in itertools.combinations(range(len(n)), 2):
        gram = np.zeros((len(n), len(n)))
        gram[a, b] = gram[b, a] = 1.0
        left_out = np.array([without(gram, n, g) for g in range(len(n))])
        seen = (single_deviations(without(gram, n), left_out, n) ** 2).sum()
        np.testing.assert_allclose(seen, 2 * seen_singly(n)[a, b] / pair_number(n) ** 2)


def test_equal_documents_have_the_delete_one_jackknife():
    gram = products(np.random.default_rng(2).normal(size=(8, 3)))
    n = np.ones(8)
    left_out = np.array([without(gram, n, g) for g in range(8)])
    deviations = single_deviations(without(gram, n), left_out, n)
    np.testing.assert_allclose(np.sqrt((deviations**2).sum()), jackknife_error(left_out))


def test_weighted_mean_has_hc2_deviations():
    rng = np.random.default_rng(3)
    sums = rng.normal(size=7) * UNEQUAL
    total = UNEQUAL.sum()
    mean = sums.sum() / total
    found = single_deviations(mean, (sums.sum() - sums) / (total - UNEQUAL), UNEQUAL)
    residual = (sums - UNEQUAL * mean) / total
    np.testing.assert_allclose((found**2).sum(), (residual**2 / (1 - UNEQUAL / total)).sum())


def test_products_come_back_from_leaving_pairs_out():
    gram = products(np.random.default_rng(4).normal(size=(2, 7, 3)))
    n, pairs = UNEQUAL, document_pairs(7, at_most=21)
    left_out = np.stack([without(gram, n, g) for g in range(7)])
    pair_left_out = np.stack([without(gram, n, *pair) for pair in pairs])
    np.testing.assert_allclose(pair_gram(without(gram, n), left_out, pairs, pair_left_out, n), gram, atol=1e-10)
    with pytest.raises(DesignError, match="need all 21 pairs, not 20"):
        pair_gram(without(gram, n), left_out, pairs[:20], pair_left_out[:20], n)


def test_pairs_need_five_documents():
    with pytest.raises(DesignError, match="at least 5 documents"):
        pair_interactions(np.zeros((4, 4)), np.ones(4))


# ---- the distribution


def known(estimate, spectrum, first=0.0, growth=0.0):
    """A spread whose parts are known: lambda / N are the eigenvalues, documents without number."""
    scale = np.asarray(spectrum)
    values = [estimate, first, first, 2 * (scale**2).sum(axis=0), growth, 8 * (scale**3).sum(axis=0), 1e12]
    return SquareSpread(*(np.asarray(value, dtype=float) for value in np.broadcast_arrays(*values)))


def test_one_direction_without_effect_is_a_centred_chi_square():
    value = np.array([-0.9, -0.5, 0.0, 1.0, 3.0, 8.0])
    np.testing.assert_allclose(known(value * 0.1, [[0.1]]).below(np.zeros(6)), stats.chi2.cdf(value + 1, 1), atol=1e-6)


@pytest.mark.parametrize("spectrum", [[1.0, 1.0, 1.0], [1.0, 0.15, 0.05, 0.02], 1 / np.arange(1, 20), np.ones(40)])
def test_a_mixture_of_chi_squares_by_three_cumulants(spectrum):
    """Against two million draws of the exact distribution, in the upper tail that tests use."""
    weights, rng = np.asarray(spectrum), np.random.default_rng(12)
    drawn = np.zeros(2_000_000)
    for weight in weights:
        drawn += weight * (rng.chisquare(1, size=len(drawn)) - 1)
    value = np.quantile(drawn, [0.8, 0.9, 0.95, 0.975, 0.99])
    found = 1 - known(value, weights[:, None]).below(np.zeros(5))
    np.testing.assert_allclose(found, [0.2, 0.1, 0.05, 0.025, 0.01], rtol=0.08)


def test_far_from_zero_it_is_normal():
    at = known(np.array([100.0]), [[1.0]], first=400.0, growth=4.0)
    x = np.array([60.0, 140.0])
    z = (100 - x) / np.sqrt(2 + 4 * x)
    np.testing.assert_allclose(at.below(x), stats.ncx2.cdf(101, 1, x), atol=0.01)
    np.testing.assert_allclose(at.below(x), stats.norm.cdf(z), atol=0.03)


def test_in_one_direction_the_test_of_zero_is_the_t_test():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 24)) + 0.3
    exact = stats.ttest_1samp(x, 0, axis=1).pvalue
    p = square_interval(measured(products(x[..., None]), np.ones(24))).p
    tail = (exact > 0.02) & (exact < 0.1)
    assert 0.85 < np.median(p[tail] / exact[tail]) < 1.1
    np.testing.assert_allclose(stats.spearmanr(p, exact).statistic, 1, atol=0.01)


# ---- limits and invariances


def test_nothing_varies():
    gram = np.full((6, 6), 2.0) - 2.0 * np.eye(6)
    found = square_interval(measured(gram, np.ones(6)))
    np.testing.assert_allclose([found.estimate, found.low, found.high], 2.0, atol=1e-9)
    assert found.p == 0
    zero = square_interval(measured(np.zeros((6, 6)), np.ones(6)))
    assert (zero.estimate, zero.low, zero.high, zero.p) == (0, 0, 0, 1)


def test_undefined_values_stay_undefined():
    gram = products(np.random.default_rng(13).normal(size=(3, 8, 2)))
    n = np.ones(8)
    left_out = np.stack([without(gram, n, g) for g in range(8)])
    estimate = without(gram, n)
    left_out[2, 0] = gram[1, 0, 1] = gram[1, 1, 0] = np.nan
    found = square_interval(SquareSpread.of(estimate, left_out, gram, n))
    for values in (found.low, found.high, found.p):
        assert np.isnan(values).tolist() == [True, True, False]


def test_one_document_dominates():
    n = np.array([200.0, *np.ones(11)])
    x = np.random.default_rng(6).normal(size=(50, 12, 3)) * n[:, None]
    found = square_interval(measured(products(x), n))
    assert np.isfinite(found.low).all()
    assert (found.high > found.estimate).all()
    assert (found.low == 0).mean() > 0.8


def test_limits_are_ordered_and_never_below_zero():
    rng = np.random.default_rng(7)
    for spectrum in (np.ones(1), np.ones(40)):
        spread = measured(products(draw(rng, 500, 12, spectrum, 0.0)), np.ones(12))
        found = square_interval(spread)
        assert (found.low >= 0).all()
        assert (found.high >= found.low).all()
        assert (found.high > 0).all()
        assert (found.low[found.estimate < 0] == 0).all()
        grid = np.linspace(0, 5, 40) * unit(spectrum, 12)
        falls = np.diff([spread.below(np.full(500, x)) for x in grid], axis=0)
        assert (falls < 1e-3).mean() > 0.99
        assert falls.max() < 0.05
        # The interval and the one-sided test agree about 0.
        np.testing.assert_array_equal(found.low > 0, found.p < 0.05)


def test_units_signs_and_order_do_not_matter():
    rng = np.random.default_rng(8)
    x = draw(rng, 20, 7, np.array([1.0, 0.3]), 0.5) * UNEQUAL[:, None]
    order, turn = rng.permutation(7), stats.ortho_group.rvs(2, random_state=1)
    plain = square_interval(measured(products(x), UNEQUAL))
    for changed, n, factor in (
        (-x, UNEQUAL, 1),
        (3 * x, UNEQUAL, 9),
        (x[:, order], UNEQUAL[order], 1),
        (x @ turn, UNEQUAL, 1),
    ):
        found = square_interval(measured(products(changed), n))
        for name in ("estimate", "low", "high", "se"):
            np.testing.assert_allclose(getattr(found, name), factor * getattr(plain, name), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(found.p, plain.p, atol=1e-10)


def test_a_higher_level_is_a_longer_interval():
    spread = measured(products(draw(np.random.default_rng(9), 50, 16, np.ones(3), 0.5)), np.ones(16))
    short, long = square_interval(spread, 0.9), square_interval(spread, 0.99)
    assert (long.low <= short.low).all()
    assert (long.high > short.high).all()
    with pytest.raises(InputError, match="between 0 and 1, not 1"):
        square_interval(spread, 1.0)


# ---- coverage


@pytest.mark.parametrize(
    "spectrum", [np.ones(1), np.array([1.0, 0.15, 0.05, 0.02]), np.ones(40)], ids=["one", "few", "many"]
)
@pytest.mark.parametrize("effect", [0, 2, 20])
def test_coverage(spectrum, effect):
    """1,200 data sets: a coverage below 0.89 or above 0.99 fails nearly always."""
    g, datasets = 24, 1200
    truth = effect * unit(spectrum, g)
    rng = np.random.default_rng([10, effect, len(spectrum)])
    spread = measured(products(draw(rng, datasets, g, spectrum, truth)), np.ones(g))
    found = square_interval(spread)
    covered = int(((found.low <= truth) & (truth <= found.high)).sum())
    assert 0.915 * datasets < covered < 0.98 * datasets


@pytest.mark.parametrize("effect", [1, 2])
def test_what_was_done_before_fails_the_same_bounds(effect):
    """The plain and the capped jackknife of the first edition, in one direction near 0."""
    g, datasets, spectrum = 24, 1200, np.ones(1)
    truth = effect * unit(spectrum, g)
    gram = products(draw(np.random.default_rng(11), datasets, g, spectrum, truth))
    n, pairs = np.ones(g), document_pairs(g)
    left_out = np.stack([without(gram, n, k) for k in range(g)])
    estimate = without(gram, n)
    total, rows = gram.sum(axis=(1, 2)), gram.sum(axis=2)
    one, two = pairs.T
    pair_left_out = (total[:, None] - 2 * (rows[:, one] + rows[:, two]) + 2 * gram[:, one, two]).T / ((g - 2) * (g - 3))
    options = {"pairs": pairs, "pair_left_out": pair_left_out, "squared": True, "method": "corrected_jackknife"}
    for found in (interval(estimate, left_out), interval(estimate, left_out, **options)):
        assert ((found.low <= truth) & (truth <= found.high)).sum() < 0.915 * datasets


def test_a_limit_is_where_a_condition_begins_to_hold():
    low, high = np.zeros(4), np.array([1.0, 1.0, 1.0, 0.0])
    start = np.array([0.3, 700.0, np.inf, 0.0])
    np.testing.assert_allclose(crossing(lambda x: x >= start, low, high), start, rtol=1e-9)
