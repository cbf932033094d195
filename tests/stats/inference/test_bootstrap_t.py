"""Bootstrap-t: critical values of pivots against the t distribution, and where it must not be used."""

import numpy as np
import pytest
from scipy import stats

from posstats.errors import InputError
from posstats.stats.inference.bootstrap_t import bootstrap_critical, bootstrap_square_interval
from posstats.stats.inference.resample import document_weights, jackknife_error
from posstats.stats.inference.squares import SquareSpread, square_interval


def resampled(gram, weights):
    """Mean products at every weight, with the jackknife error of each: (replicate, data set)."""
    n = gram.shape[-1]
    squares = (weights**2).sum(axis=1)
    left = (n - 1) ** 2 - (squares[:, None] - weights**2 + (weights - 1) ** 2)
    applied = weights @ gram  # (data set, replicate, document)
    whole = (applied * weights).sum(axis=-1)
    without = (whole[..., None] - 2 * applied) / np.where(left > 0, left, 1)
    return (whole / (n**2 - squares)).T, jackknife_error(without, weights).T


def spreads(rng, datasets, n, q, square):
    x = np.sqrt(square / q) + rng.normal(size=(datasets, n, q))
    gram = x @ x.transpose(0, 2, 1)
    gram[:, np.arange(n), np.arange(n)] = 0
    whole, rows = gram.sum(axis=(1, 2)), gram.sum(axis=2)
    left_out = ((whole[:, None] - 2 * rows) / ((n - 1) * (n - 2))).T
    return SquareSpread.of(whole / (n * (n - 1)), left_out, gram, np.ones(n)), gram


def test_the_pivot_of_a_mean_is_students():
    n = 30
    x = np.random.default_rng(0).normal(size=n)
    weights = document_weights(n, 4000, seed=1)
    values = weights @ x / n
    left = (weights @ x)[:, None] - x
    critical = bootstrap_critical(x.mean(), values, jackknife_error(left / (n - 1), weights))
    assert abs(critical - stats.t.ppf(0.975, n - 1)) < 0.2
    assert critical < bootstrap_critical(x.mean(), values, jackknife_error(left / (n - 1), weights), 0.99)


def test_a_replicate_without_error_is_infinitely_far():
    values = np.linspace(-1, 1, 200)
    error = np.ones(200)
    error[:20] = 0.0
    assert bootstrap_critical(np.array(0.0), values, error) == np.inf
    assert np.isfinite(bootstrap_critical(np.array(0.0), values, error, 0.85))


def test_few_replicates_are_refused():
    with pytest.raises(InputError, match="at least 99 replicates, not 98"):
        bootstrap_critical(np.array(0.0), np.zeros(98), np.ones(98))


def test_far_from_zero_it_agrees_with_the_quantiles_of_the_mixture():
    spread, gram = spreads(np.random.default_rng(2), 60, 40, 6, 4.0)
    values, errors = resampled(gram, document_weights(40, 999, seed=3))
    found, mixture = bootstrap_square_interval(spread, values, errors), square_interval(spread)
    ratio = (found.high - found.low) / (mixture.high - mixture.low)
    assert abs(np.median(ratio) - 1) < 0.08
    assert (np.abs(found.low - mixture.low) < 0.35 * (mixture.high - mixture.low)).all()


def test_near_zero_in_one_direction_it_misses_a_weak_truth():
    """What docs/method.md warns of, so that nobody makes it the default there."""
    unit = np.sqrt(2 / (24 * 23))
    spread, gram = spreads(np.random.default_rng(4), 400, 24, 1, 2 * unit)
    values, errors = resampled(gram, document_weights(24, 199, seed=5))
    found, mixture = bootstrap_square_interval(spread, values, errors), square_interval(spread)
    rates = [((x.low <= 2 * unit) & (2 * unit <= x.high)).mean() for x in (found, mixture)]
    assert rates[0] < 0.88 < 0.92 < rates[1]
    assert (found.low >= 0).all()
    assert (found.high >= found.low).all()


def test_nothing_varies():
    gram = (np.ones((6, 6)) - np.eye(6))[None]
    spread = SquareSpread.of(np.ones(1), np.ones((6, 1)), gram, np.ones(6))
    found = bootstrap_square_interval(spread, np.ones((99, 1)), np.zeros((99, 1)))
    np.testing.assert_allclose([found.low, found.high], 1.0, atol=1e-9)
