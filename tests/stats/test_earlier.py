import numpy as np
import pytest
import statsmodels.api as sm

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.earlier import (
    diagonal_centred,
    explicit_offsets,
    linear_position_r2,
    massive_activations,
    sink_rate,
)
from posstats.stats.synthetic.simulate import explicit_logits, record_logits
from tests.refused import refused

LENGTH, OFFSETS = 48, (0, 1, 2, 4, 8)
POSITION = np.arange(LENGTH)
ANALYSED = POSITION[: LENGTH // 2]
#: One effect each on top of a relative profile that is far from a line.
FIELDS = {
    "relative": {},
    "sink": {"sink_column": 4.0},
    "linear": {"query_drift": 0.02 * POSITION},
    "log": {"query_drift": np.log(POSITION + 1.0)},
    "noise": {"noise": 1.0},
}


def attention(logits):
    weights = np.tril(np.exp(logits - logits.max(axis=-1, keepdims=True)))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def logits():
    """One noisy head pair with a sink and a drift, (sequence, head, query, key)."""
    return explicit_logits(LENGTH, 5, 2, sink_column=2.0, query_drift=0.3 * np.log(POSITION + 1.0), noise=1.0, seed=1)


@pytest.fixture(scope="module")
def fields():
    return {name: explicit_logits(LENGTH, 6, 1, seed=2, **effect) for name, effect in FIELDS.items()}


def explicit_regression(y, i, j):
    columns = sm.add_constant(np.column_stack([i - j, i]).astype(float))
    return sm.OLS(y, columns[:, :2]).fit().rsquared, sm.OLS(y, columns).fit().rsquared


def test_linear_position_equals_statsmodels_on_all_causal_pairs(logits):
    result = linear_position_r2(*explicit_offsets(logits))
    i, j = np.tril_indices(LENGTH)
    for n in range(5):
        for head in range(2):
            relative, full = explicit_regression(logits[n, head, i, j], i, j)
            np.testing.assert_allclose(result.r2_relative[n, head], relative, rtol=1e-9)
            np.testing.assert_allclose(result.r2_full[n, head], full, rtol=1e-9)
            np.testing.assert_allclose(result.delta[n, head], full - relative, rtol=1e-7)
    assert result.n_pairs == LENGTH * (LENGTH + 1) // 2


def test_the_full_design_is_rank_deficient(logits):
    """Offset, query and key in one design: one of the four columns is never there."""
    result = linear_position_r2(*explicit_offsets(logits))
    assert (result.rank, result.n_columns) == (3, 4)
    i, j = np.tril_indices(LENGTH)
    everything = np.column_stack([np.ones(i.size), i - j, i, j])
    assert np.linalg.matrix_rank(everything) == 3


def test_diagonal_centred_equals_a_loop_over_diagonals(logits):
    result = diagonal_centred(*explicit_offsets(logits))
    recorded = record_logits({"baseline": logits}, OFFSETS)
    sparse = diagonal_centred(recorded.logit[0, :, 0], OFFSETS)
    for head in range(2):
        mean = logits[:, head].mean(axis=0)
        everywhere = [np.diagonal(mean, -d) for d in POSITION]
        ordinary = [np.diagonal(mean[: len(ANALYSED)], -d)[1:] for d in OFFSETS]
        for diagonals, ours in ((everywhere, result), (ordinary, sparse)):
            left = np.concatenate([diagonal - diagonal.mean() for diagonal in diagonals])
            total = np.concatenate(diagonals)
            np.testing.assert_allclose(ours.rms[head], np.sqrt((left**2).mean()), rtol=1e-9)
            np.testing.assert_allclose(ours.fraction[head], left.var() / total.var(), rtol=1e-9)
    assert result.n_pairs == LENGTH * (LENGTH + 1) // 2


def test_what_the_earlier_metrics_make_of_known_fields(fields):
    """The traps that this package exists for: each metric is right about one thing and blind to another."""
    delta = {name: linear_position_r2(*explicit_offsets(field)).delta.mean() for name, field in fields.items()}
    left = {name: diagonal_centred(*explicit_offsets(field)).fraction[0] for name, field in fields.items()}
    rate = {name: sink_rate(attention(field)[..., 0]).rate for name, field in fields.items()}
    assert abs(delta["relative"]) < 1e-12
    assert left["relative"] < 1e-12
    assert delta["linear"] > 0.1
    # A sink of 4 nats: the line sees next to nothing of what the diagonals show and the sink rate flags outright.
    assert delta["sink"] < 0.1 * left["sink"]
    assert rate["sink"] == 1.0
    assert all(value == 0.0 for name, value in rate.items() if name != "sink")
    # A logarithm bends: the line loses a good part of it.
    assert delta["log"] < 0.9 * left["log"]
    # Content noise alone, no position at all: the diagonals report its variance / N as if it were position.
    expected = 1 / 6 * (1 - LENGTH / (LENGTH * (LENGTH + 1) / 2))  # one mean taken off per diagonal
    noise = diagonal_centred(*explicit_offsets(fields["noise"]))
    np.testing.assert_allclose(noise.rms[0] ** 2, expected, rtol=0.1)


def test_noise_dilutes_the_line_but_not_the_trend():
    clean, noisy = (
        linear_position_r2(
            *explicit_offsets(explicit_logits(LENGTH, 20, query_drift=0.02 * POSITION, noise=noise, seed=3))
        )
        for noise in (0.0, 2.0)
    )
    assert noisy.delta.mean() < 0.3 * clean.delta.mean()


def test_sink_rate_equals_its_definition(logits):
    first = attention(logits)[..., 0]
    result = sink_rate(first, length=32, epsilon=0.2)
    importance = np.array([[first[n, h, :32].sum() / 32 for h in range(2)] for n in range(5)])
    np.testing.assert_allclose(result.importance, importance)
    np.testing.assert_allclose(result.by_head, (importance > 0.2).mean(axis=0))
    assert result.rate == (importance > 0.2).mean()
    assert (first[..., 0] == 1).all()  # query 0 counts


def test_massive_activations_equal_their_definition():
    rng = np.random.default_rng(4)
    hidden = rng.normal(scale=0.05, size=(3, 10, 32))
    hidden[0, 0, 5], hidden[0, 4, 6] = 150.0, -99.0  # the second is below 100
    hidden[1] *= 100
    hidden[1, 0, 5] = -2000.0  # above 100, but below 1,000 times the median
    result = massive_activations(hidden)
    assert np.argwhere(result.flags).tolist() == [[0, 0, 5]]
    assert result.count.tolist() == [1, 0, 0]
    np.testing.assert_allclose(result.largest[:2], [150.0, 2000.0])
    np.testing.assert_allclose(result.median[1], np.median(np.abs(hidden[1])))
    alone = massive_activations(hidden[:, :1], median=result.median)  # position 0 alone, as a dump keeps it
    np.testing.assert_array_equal(alone.flags, result.flags[:, :1])


def test_logits_that_do_not_vary():
    flat = np.ones((3, LENGTH, LENGTH))
    assert np.isnan(linear_position_r2(*explicit_offsets(flat)).delta).all()
    centred = diagonal_centred(*explicit_offsets(flat))
    assert np.isnan(centred.fraction)
    assert centred.rms == 0


def test_arguments(logits):
    logit, offsets = explicit_offsets(logits)
    refused(InputError, "as many keys as queries", explicit_offsets, logits[..., :-1])
    refused(InputError, "distinct integer offsets", linear_position_r2, logit, offsets[:-1])
    refused(DesignError, "do not tell offset and position apart", linear_position_r2, logit[..., :1], offsets[:1])
    refused(DesignError, "no pair", diagonal_centred, np.full((2, 4, 1), np.nan), [1])
    broken = logit.copy()
    broken[0, 0, 20, 3] = np.nan
    refused(NumericalError, "same pairs in every sequence", diagonal_centred, broken, offsets)
    refused(InputError, "49 queries", sink_rate, attention(logits)[..., 0], length=49)
    refused(InputError, r"lie in \[0, 1\]", sink_rate, logits[..., 0])
    refused(InputError, "token, hidden", massive_activations, np.ones(3))
    refused(NumericalError, "finite", massive_activations, np.full((2, 3), np.nan))
