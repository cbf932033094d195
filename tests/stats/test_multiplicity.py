import numpy as np
import pytest
from scipy.stats import false_discovery_control

from posstats.errors import InputError
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.inference.options import METHODS


@pytest.fixture
def p_values():
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.uniform(size=400), rng.uniform(high=1e-3, size=112), [0.0, 1.0, 0.5, 0.5]])
    return rng.permutation(p)


@pytest.mark.parametrize("method", ["bh", "by"])
def test_equals_scipy(p_values, method):
    np.testing.assert_allclose(adjust(p_values, method).q, false_discovery_control(p_values, method=method), rtol=1e-12)


@pytest.mark.parametrize("method", ["bh", "by"])
def test_step_up_equals_its_definition(p_values, method):
    """The least p[(j)] m / j over all ranks j from that of the test on, times 1 + 1/2 + ... + 1/m for BY."""
    m, running, expected = p_values.size, 1.0, np.empty(p_values.size)
    dependence = sum(1 / k for k in range(1, m + 1)) if method == "by" else 1.0
    for rank, index in reversed(list(enumerate(np.argsort(p_values, kind="stable"), start=1))):
        running = min(running, dependence * p_values[index] * m / rank)
        expected[index] = running
    np.testing.assert_allclose(adjust(p_values, method).q, expected, rtol=1e-12)


def test_holm_equals_its_definition(p_values):
    order = np.argsort(p_values, kind="stable")
    m, running, expected = p_values.size, 0.0, np.empty(p_values.size)
    for rank, index in enumerate(order):
        running = max(running, (m - rank) * p_values[index])
        expected[index] = min(1.0, running)
    np.testing.assert_allclose(adjust(p_values, "holm").q, expected, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_order_and_shape_do_not_matter(p_values, method):
    order = np.random.default_rng(1).permutation(p_values.size)
    np.testing.assert_array_equal(adjust(p_values[order], method).q, adjust(p_values, method).q[order])
    square = p_values.reshape(4, -1)
    np.testing.assert_array_equal(adjust(square, method).q, adjust(p_values, method).q.reshape(4, -1))


@pytest.mark.parametrize("method", METHODS)
def test_nan_is_excluded_and_counted(p_values, method):
    p = np.insert(p_values, [0, 7, 100], np.nan)
    adjusted = adjust(p, method)
    assert (adjusted.n_tests, adjusted.n_excluded) == (p_values.size, 3)
    np.testing.assert_array_equal(np.isnan(adjusted.q), np.isnan(p))
    np.testing.assert_array_equal(adjusted.q[~np.isnan(p)], adjust(p_values, method).q)


def test_a_family_without_a_single_test():
    adjusted = adjust([np.nan, np.nan])
    assert (adjusted.n_tests, adjusted.n_excluded) == (0, 2)
    assert np.isnan(adjusted.q).all()


@pytest.mark.parametrize("p", [[0.5, -1e-9], [1.1], [np.inf], ["0.5"], [True]])
def test_values_that_are_no_p_values(p):
    with pytest.raises(InputError, match="p-values must"):
        adjust(p)


def test_unknown_method():
    with pytest.raises(InputError, match="allowed: bh, by, holm"):
        adjust([0.5], "bonferroni")


def _binomial_band(rate, n):
    return 3.5 * np.sqrt(rate * (1 - rate) / n)


def test_512_true_nulls_reject_at_the_promised_rate():
    """With every null true the false discovery rate is the chance of a single rejection: exactly 0.05 for BH."""
    rng = np.random.default_rng(2)
    families = rng.uniform(size=(3000, 512))
    harmonic = (1 / np.arange(1, 513)).sum()
    promised = {"bh": 0.05, "by": 0.05 / harmonic, "holm": 1 - (1 - 0.05 / 512) ** 512}
    # Holm in statsmodels collects garbage at every call: whether it rejects at all is seen in the smallest p-value.
    smallest = np.minimum(512 * families.min(axis=1), 1)
    assert [adjust(p, "holm").q.min() for p in families[:50]] == smallest[:50].tolist()
    smallest_q = {method: np.array([adjust(p, method).q.min() for p in families]) for method in ("bh", "by")}
    for method, q in (smallest_q | {"holm": smallest}).items():
        any_rejection, rate = np.mean(q <= 0.05), promised[method]
        assert abs(any_rejection - rate) <= _binomial_band(rate, len(families)), (method, any_rejection)


def test_false_discovery_rate_beside_true_effects():
    """Independent tests: BH's false discovery rate is 0.05 times the share of true nulls, here 412 of 512."""
    rng = np.random.default_rng(3)
    proportions = []
    for _ in range(1000):
        p = rng.uniform(size=512)
        p[:100] *= 1e-3
        rejected = adjust(p).q <= 0.05
        proportions.append(rejected[100:].sum() / max(1, rejected.sum()))
    standard_error = np.std(proportions) / np.sqrt(len(proportions))
    assert abs(np.mean(proportions) - 0.05 * 412 / 512) <= 3.5 * standard_error
