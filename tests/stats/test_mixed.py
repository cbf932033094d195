from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.inference.mixed import fit_mixed
from tests.refused import refused

REFERENCES = Path(__file__).parents[1] / "references"


@pytest.fixture
def data():
    return pd.read_csv(REFERENCES / "mixed_data.csv")


def simulate(rng, n_layers=12, n_heads=6, layer_sd=0.2, head_sd=0.1, mean=0.3):
    layers = np.repeat(np.arange(n_layers), n_heads)
    return mean + rng.normal(scale=layer_sd, size=n_layers)[layers] + rng.normal(
        scale=head_sd, size=layers.size
    ), layers


@pytest.mark.parametrize("kind", ["", " variances", " covariance"])
@pytest.mark.parametrize("model", ["mean", "depth"])
def test_equals_r(data, model, kind):
    """The packages nlme and lme4 without sampling errors, metafor with variances and with a whole covariance."""
    sampling = {
        "": None,
        " variances": data["variance"],
        " covariance": np.diag(data["variance"]) + np.outer(data["loading"], data["loading"]),
    }[kind]
    covariates = data[["depth"]] if model == "depth" else None
    fit = fit_mixed(data["y"], data["layer"], covariates, sampling)
    expected = pd.read_csv(REFERENCES / "mixed_expected.csv")
    expected = expected[expected["model"] == model + kind]
    assert expected["software"].nunique() == (1 if kind else 2)
    for _, reference in expected.groupby("software"):
        value = reference.set_index("quantity")["value"]
        for k in range(fit.estimate.size):
            np.testing.assert_allclose(fit.estimate[k], value[f"estimate{k}"], rtol=1e-5)
            np.testing.assert_allclose(fit.se[k], value[f"se{k}"], rtol=2e-5)
        np.testing.assert_allclose(fit.layer_variance, value["layer_variance"], rtol=1e-4)
        np.testing.assert_allclose(fit.head_variance, value["head_variance"], rtol=1e-4)
        if not kind:  # metafor adds a constant for the design
            np.testing.assert_allclose(fit.log_likelihood, value["log_likelihood"], rtol=1e-8)
    assert fit.converged
    assert fit.notes == ()


def test_equals_statsmodels(data):
    scaled = data["y"] * 10  # MixedLM calls a variance below 0.01, in whatever units, a boundary
    reference = sm.MixedLM(scaled, np.ones(len(data)), groups=data["layer"]).fit(reml=True)
    fit = fit_mixed(scaled, data["layer"])
    np.testing.assert_allclose(fit.estimate[0], reference.fe_params.iloc[0], rtol=1e-6)
    np.testing.assert_allclose(fit.se[0], reference.bse_fe.iloc[0], rtol=1e-4)
    np.testing.assert_allclose(fit.layer_variance, reference.cov_re.iloc[0, 0], rtol=1e-3)
    np.testing.assert_allclose(fit.head_variance, reference.scale, rtol=1e-3)


def test_equal_layers_give_the_t_test_of_layer_means():
    y, layers = simulate(np.random.default_rng(0))
    fit = fit_mixed(y, layers)
    means = y.reshape(12, 6).mean(axis=1)
    reference = stats.ttest_1samp(means, 0)
    within = y.reshape(12, 6).var(axis=1, ddof=1).mean()
    np.testing.assert_allclose([fit.t[0], fit.p[0]], [reference.statistic, reference.pvalue], rtol=1e-6)
    np.testing.assert_allclose(fit.head_variance, within, rtol=1e-5)
    np.testing.assert_allclose(fit.layer_variance, means.var(ddof=1) - within / 6, rtol=1e-5)
    limits = np.array(reference.confidence_interval(0.9))
    np.testing.assert_allclose(np.ravel(fit.interval(0.9)), limits, rtol=1e-6)


def test_units_do_not_matter():
    y, layers = simulate(np.random.default_rng(1))
    fit, small = fit_mixed(y, layers), fit_mixed(y * 1e-6, layers)
    np.testing.assert_allclose(small.t, fit.t, rtol=1e-6)
    np.testing.assert_allclose(small.layer_variance * 1e12, fit.layer_variance, rtol=1e-5)
    assert small.notes == ()


def test_variances_estimated_as_zero_are_said_aloud():
    rng = np.random.default_rng(2)
    y = rng.normal(size=(10, 8))
    y -= y.mean(axis=1, keepdims=True)  # layers differ less than their heads would make them by chance
    fit = fit_mixed(y.ravel() + 0.5, np.repeat(np.arange(10), 8))
    assert fit.converged
    assert fit.layer_variance == 0
    assert any("between layers is estimated as zero" in note for note in fit.notes)
    known = fit_mixed(np.repeat(rng.normal(size=10), 8), np.repeat(np.arange(10), 8), sampling=np.full(80, 0.5))
    assert any("between heads of a layer is estimated as zero" in note for note in known.notes)


def test_undefined_heads_are_left_out_and_counted():
    y, layers = simulate(np.random.default_rng(3))
    holes = np.array([0, 13, 70])
    sampling = np.full(y.size, 0.001)
    with_holes = y.copy()
    with_holes[holes] = np.nan
    fit = fit_mixed(with_holes, layers, sampling=sampling)
    rest = fit_mixed(np.delete(y, holes), np.delete(layers, holes), sampling=np.delete(sampling, holes))
    assert (fit.n_heads, fit.n_excluded, fit.n_layers) == (69, 3, 12)
    np.testing.assert_array_equal(fit.estimate, rest.estimate)
    assert "3 heads without a defined estimate" in fit.notes[0]


def test_simulation_bias_and_coverage():
    """Variances unbiased, intervals cover, and heads taken for independent would not."""
    rng = np.random.default_rng(4)
    fits, naive = [], []
    for _ in range(120):
        y, layers = simulate(rng, n_layers=8, n_heads=5)
        fits.append(fit_mixed(y, layers))
        naive.append(stats.ttest_1samp(y, 0.3).pvalue > 0.05)
    layer_variance = np.array([fit.layer_variance for fit in fits])
    head_variance = np.array([fit.head_variance for fit in fits])
    for values, truth in ((layer_variance, 0.04), (head_variance, 0.01)):
        assert abs(values.mean() - truth) < 3.5 * values.std() / np.sqrt(len(values))
    covered = np.mean([fit.interval()[0][0] <= 0.3 <= fit.interval()[1][0] for fit in fits])
    assert abs(covered - 0.95) < 3.5 * np.sqrt(0.95 * 0.05 / 120)
    assert np.mean(naive) < 0.85
    assert all(fit.converged for fit in fits)


def test_errors_that_all_heads_share_need_the_whole_sampling_covariance():
    rng = np.random.default_rng(5)
    shared = np.full((60, 60), 0.05) + 0.01 * np.eye(60)
    covered = {"whole": [], "diagonal": []}
    for _ in range(60):
        y, layers = simulate(rng, n_layers=10, n_heads=6, layer_sd=0.1)
        y = y + np.sqrt(0.05) * rng.normal() + np.sqrt(0.01) * rng.normal(size=60)
        for name, sampling in (("whole", shared), ("diagonal", np.diag(shared))):
            low, high = fit_mixed(y, layers, sampling=sampling).interval()
            covered[name].append(low[0] <= 0.3 <= high[0])
    assert np.mean(covered["whole"]) > 0.88
    assert np.mean(covered["diagonal"]) < 0.75


def test_degrees_of_freedom():
    y, layers = simulate(np.random.default_rng(6))
    assert fit_mixed(y, layers).df == 11
    assert fit_mixed(y, layers, covariates=layers[:, None] / 11).df == 10
    assert fit_mixed(y, layers, sampling=np.full(72, 0.01), sampling_df=7).df == 7


def test_arguments():
    y, layers = simulate(np.random.default_rng(7))
    refused(DesignError, r"2 layers are too few for 1 fixed effect", fit_mixed, y[:12], layers[:12])
    refused(DesignError, "one head per layer", fit_mixed, y[::6], layers[::6])
    assert fit_mixed(y[::6], layers[::6], sampling=np.full(12, 0.01)).n_heads == 12
    refused(DesignError, "no head has an estimate", fit_mixed, np.full(4, np.nan), [0, 0, 1, 1], sampling=np.eye(4))
    refused(DesignError, "do not vary", fit_mixed, np.full(72, 0.1), layers)
    refused(DesignError, "collinear", fit_mixed, y, layers, covariates=np.ones((72, 1)))
    refused(InputError, r"must be \(head,\)", fit_mixed, y, layers[:-1])
    refused(InputError, "covariates must be", fit_mixed, y, layers, covariates=layers)
    refused(InputError, "sampling must be", fit_mixed, y, layers, sampling=np.ones(3))
    refused(InputError, "positive semidefinite", fit_mixed, y, layers, sampling=np.full(72, -0.1))
    y[0] = np.inf
    refused(NumericalError, "finite or NaN", fit_mixed, y, layers)
