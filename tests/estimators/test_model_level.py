"""Model-level statements: heads recomputed by brute force, the fit by the kernel, coverage with known truth."""

import numpy as np
import pytest

import posstats as ps
from posstats.errors import DesignError, InputError, NumericalError
from posstats.estimators.model_level import model_level
from posstats.stats.inference.mixed import fit_mixed
from posstats.stats.synthetic.design import Effects, Noise
from tests import brute
from tests.estimators.test_leakage import LENGTH, OFFSETS
from tests.refused import refused
from tests.sealed import sealed

pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
DOCUMENTS = ["a", "b", "b", "c", "d", "e", "f", "g", "h"]
RESIDUAL_TERMS = ("sink", "redistribution")


def logits(seed, n_layers=4):
    """Heads that differ in their sink and in a drift along the keys."""
    rng = np.random.default_rng(seed)
    shape = (len(DOCUMENTS), n_layers, 2, LENGTH, LENGTH)
    values = 0.3 * rng.normal(size=shape)
    values[..., 0] += np.linspace(0.5, 2.5, 2 * n_layers).reshape(n_layers, 2, 1)
    return values + np.linspace(0, 0.6, n_layers)[:, None, None, None] * np.log1p(np.arange(LENGTH))


@pytest.fixture(scope="module")
def dump():
    return brute.dump_dataset({"baseline": logits(1)}, DOCUMENTS, OFFSETS)


@pytest.fixture(scope="module")
def oracle(dump):
    return brute.BruteDump(dump, "baseline")


def without(document):
    """The brute-force estimates from all other documents."""
    return [0.0 if d == document else 1.0 for d in sorted(set(DOCUMENTS))]


def by_layer_and_head(result):
    return result.heads.set_index(["layer", "head"])


@pytest.mark.parametrize("term", ["mask", "sink", "redistribution", "residual"])
def test_shares_of_heads_are_those_of_the_public_estimator(dump, oracle, term):
    result = model_level(dump, term=term, level=0.9, seed=3)
    heads = by_layer_and_head(result)
    public = ps.shares(dump, by=["layer", "head"], octaves=False, level=0.9, seed=3, n_resamples=99).table
    public = public[public.term == term].set_index(["layer", "head"])
    brute_shares = oracle.shares()[term]
    assert heads.estimate.notna().sum() >= 6
    for at, row in heads.iterrows():
        np.testing.assert_allclose([row.leakage, row.leakage_q], public.loc[at, ["leakage", "leakage_q"]].astype(float))
        np.testing.assert_allclose(row.estimate, public.estimate[at], rtol=1e-9, atol=1e-12)
        if not np.isnan(row.se):  # without the second order, which the joint jackknife of the public one keeps
            assert row.se <= public.se[at] * 1.2
        if not np.isnan(row.estimate):
            np.testing.assert_allclose(row.estimate, brute_shares[at], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("term", ["log_attention", "mask", "sink", "redistribution", "residual"])
def test_slopes_of_heads_and_their_jackknife_equal_brute_force(dump, oracle, term):
    heads = by_layer_and_head(model_level(dump, term=term, measure="slope"))
    queries = oracle.default_queries()
    x = np.log2(np.array(queries) + 1.0)

    def slopes(one):
        """From all sequences that count, (layer, head)."""
        weights = np.array(one.weights)
        mean = np.tensordot(weights, one.terms[term][..., queries, :].mean(axis=-1), axes=1) / weights.sum()
        return np.polyfit(x, mean.reshape(-1, len(queries)).T, 1)[0].reshape(mean.shape[:2])

    estimate = slopes(oracle)
    left_out = [slopes(brute.BruteDump(dump, "baseline", weights=without(d))) for d in sorted(set(DOCUMENTS))]
    g = len(left_out)
    se = np.sqrt((g - 1) / g * ((left_out - np.mean(left_out, axis=0)) ** 2).sum(axis=0))
    for at, row in heads.iterrows():
        np.testing.assert_allclose(row.estimate, estimate[at], rtol=1e-8, atol=1e-12)
        # The mask counted last follows the steady state up to third order in its change.
        np.testing.assert_allclose(row.se, se[at], rtol=1e-5, atol=1e-12)


def test_slopes_agree_with_the_position_tests():
    ds = ps.simulate(n=12, layers=3, heads=2, length=48, window=[None, 20, None], seed=1).dataset
    table = ps.position_tests(ds).table
    for term in ("log_attention", "mask", "sink", "redistribution"):
        ours = by_layer_and_head(model_level(ds, term=term, measure="slope"))
        theirs = table[table.term == term].set_index(["layer", "head"])
        np.testing.assert_allclose(ours.estimate, theirs.estimate, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(ours.se, theirs.se, rtol=1e-7)


def test_row_is_the_mixed_fit_with_pooled_covariances(dump):
    """The sampling covariance written out: means of the jackknife over heads, pairs within and between layers."""
    result = model_level(dump, term="sink", measure="slope", level=0.8)
    labels = sorted(set(DOCUMENTS))
    left_out = np.stack(
        [
            model_level(dump.isel(sequence=[n for n, d in enumerate(DOCUMENTS) if d != gone]), term="sink",
                        measure="slope").heads.estimate
            for gone in labels
        ]
    )  # fmt: skip
    heads, row = result.heads, result.table.iloc[0]
    g = len(labels)
    jackknife = (g - 1) ** 2 / g * np.cov(left_out.T)
    layer = heads.layer.to_numpy()
    covariance = np.eye(len(heads)) * np.diag(jackknife).mean()
    for same in (True, False):
        pairs = [(a, b) for a in range(8) for b in range(8) if a != b and (layer[a] == layer[b]) == same]
        mean = np.mean([jackknife[pair] for pair in pairs])
        for pair in pairs:
            covariance[pair] = mean
    assert np.linalg.eigvalsh(covariance)[0] > 0
    fit = fit_mixed(heads.estimate, layer, sampling=covariance, sampling_df=len(labels) - 1)
    low, high = fit.interval(0.8)
    np.testing.assert_allclose(
        row[["estimate", "se", "low", "high", "p"]].astype(float),
        [fit.estimate[0], fit.se[0], low[0], high[0], fit.p[0]],
        rtol=1e-5,
    )
    np.testing.assert_allclose([row.layer_sd**2, row.head_sd**2], [fit.layer_variance, fit.head_variance], rtol=1e-4)
    assert (row.df, row.n_layers, row.n_heads, row.n_excluded) == (3, 4, 8, 0)


def test_known_mean_and_standard_deviations_are_recovered():
    """Slopes of heads drawn around a mean, many noisy heads and few documents: the interval covers, head_sd is right.

    With the whole jackknife covariance, of rank 19 for 60 heads, head_sd would come out half too large.
    """
    covered, head_sd, layer_sd = [], [], []
    for seed in range(16):
        rng = np.random.default_rng([seed, 5])
        slope = 0.1 + 0.05 * rng.normal(size=(12, 1)) + 0.03 * rng.normal(size=(12, 5))
        drift = slope[..., None] * np.log2(np.arange(32) + 1.0)
        ds = ps.simulate(
            n=20, layers=12, heads=5, length=64, offsets=[0, 1],
            conditions={"baseline": Effects(query_drift=drift)},
            noise=Noise(logit=1.0, head=0.3, autocorrelation=0.5), seed=seed,
        ).dataset  # fmt: skip
        result = model_level(ds, term="redistribution", measure="slope")
        row = result.table.iloc[0]
        covered.append(row.low <= 0.1 <= row.high)
        head_sd.append(row.head_sd)
        layer_sd.append(row.layer_sd)
        assert row.converged
    assert result.heads.se.mean() > 0.03  # heads are no better known than they differ
    assert sum(covered) >= 13  # of 16: 0.999 likely at a coverage of 0.95
    assert np.mean(head_sd) == pytest.approx(0.03, abs=0.008)
    assert np.mean(layer_sd) == pytest.approx(0.05, abs=0.01)


def test_heads_that_are_known_well_count_no_more_than_others():
    """Heads whose terms nearly cancel the mask leak little, so their shares are large and uncertain.

    Weighing heads by precision would be off by a whole standard error here.
    """
    errors, head_sd, truth_sd = [], [], []
    for seed in range(10):
        rng = np.random.default_rng([seed, 6])
        strength = 1.0 + 0.5 * rng.normal(size=(10, 1)) + 0.3 * rng.normal(size=(10, 4))
        drift = -2 * strength[..., None] / (np.arange(48) + 1.0)
        simulation = ps.simulate(
            n=32, layers=10, heads=4, length=96, offsets=[0, 1, 4],
            conditions={"baseline": Effects(denominator_drift=drift)}, seed=seed,
        )  # fmt: skip
        row = model_level(simulation.dataset, n_permutations=199).table.iloc[0]
        share = simulation.truth.share("residual")[0]
        errors.append((row.estimate - share.mean()) / row.se)
        head_sd.append(row.head_sd)
        truth_sd.append(np.sqrt(share.var(axis=1, ddof=1).mean()))
    assert abs(np.mean(errors)) < 0.6  # of a standard error of one model
    assert np.mean(head_sd) == pytest.approx(np.mean(truth_sd), rel=0.25)


def test_heads_without_leakage_are_excluded_and_counted():
    # In every third head the denominator cancels all absolute position.
    flat = ps.simulate(n=30, layers=4, heads=3, length=96, conditions={"baseline": Effects(flat=True)}, seed=3).dataset
    ds = ps.simulate(n=30, layers=4, heads=3, length=96, seed=3).dataset
    for name in ("logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum"):
        ds[name] = ds[name].where(ds["head"] != 2, flat[name])
    result = model_level(sealed(ds))
    row = result.table.iloc[0]
    heads = by_layer_and_head(result)
    assert heads.xs(2, level="head").estimate.isna().all()
    assert (heads.xs(2, level="head").note == "withheld: leakage is not significant").all()
    assert (row.n_heads, row.n_excluded) == (8, 4)
    assert "4 heads without a defined estimate are left out" in row.note
    assert np.isfinite([row.estimate, row.se, row.low, row.high, row.p]).all()


def test_a_condition_that_cannot_be_fitted_says_so_and_spares_the_others():
    flat = {"baseline": Effects(sink=-0.5), "repeat": Effects(flat=True)}
    ds = ps.simulate(n=30, layers=3, heads=3, length=48, conditions=flat, seed=2).dataset
    table = model_level(ds).table.set_index("condition")
    assert np.isfinite(table.estimate["baseline"])
    assert table.loc["repeat", ["estimate", "se", "low", "high", "p", "layer_sd"]].isna().all()
    assert table.note["repeat"].startswith("withheld: ")
    assert "leak significantly, and 3 are needed" in table.note["repeat"]
    assert not table.converged["repeat"]


def test_estimates_that_do_not_vary_are_said():
    """The slope of the mask where all logits are equal is the same in every head."""
    uniform = np.zeros((6, 3, 2, LENGTH, LENGTH))
    uniform[..., 0] = np.arange(6)[:, None, None, None]  # sequences differ in what the mask does not see
    ds = brute.dump_dataset({"baseline": uniform}, list("abcdef"), OFFSETS)
    row = model_level(ds, term="mask", measure="slope").table.iloc[0]
    assert np.isnan(row.estimate)
    assert row.note.startswith("withheld: the estimates do not vary")


def test_zero_variance_is_said():
    ds = ps.simulate(n=30, layers=4, heads=3, length=48, seed=0).dataset  # all heads alike
    row = model_level(ds, term="mask").table.iloc[0]
    assert row.layer_sd == pytest.approx(0, abs=1e-3) or row.head_sd == pytest.approx(0, abs=1e-3)
    assert "estimated as zero" in row.note


def test_result_faces(dump):
    share, slope = model_level(dump), model_level(dump, measure="slope")
    assert (share.units, slope.units) == ("1", "nats per doubling of position")
    assert dict(share.to_dataset().sizes) == {"condition": 1, "term": 1}
    assert "measure share" in share.summary()
    assert "leakage" not in slope.heads
    broken = share.heads.assign(estimate=np.nan)
    with pytest.raises(NumericalError, match="do not add up"):
        type(share)(share.table, share.settings, share.notes, broken)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"measure": "mean"}, "'share', 'slope'"),
            ({"term": "relative"}, "term of a share must be one of"),
            ({"term": "log_attention"}, "term of a share must be one of"),
            ({"term": "relative", "measure": "slope"}, "term of a slope must be one of"),
            ({"level": 0}, "between 0 and 1"),
            ({"seed": -1}, "from 0 to"),
            ({"n_permutations": 0}, "n_permutations"),
            ({"adjust": "none"}, "bh"),
            ({"offsets": [9]}, "there is no 9"),
        ],
    )
    def test_options(self, dump, options, message):
        refused(InputError, message, model_level, dump, **options)

    def test_layers(self, dump):
        refused(DesignError, r"2 layer.* at least 3", model_level, dump.isel(layer=[0, 1]))

    def test_documents(self, dump):
        refused(DesignError, r"3 documents.* at least 5", model_level, dump.isel(sequence=[0, 1, 3]))

    def test_nan(self, dump):
        broken = dump.copy(deep=True)
        broken.logit[0, 2, 1, 0, 10, 0] = np.nan
        for measure in ("share", "slope"):
            refused(NumericalError, "do not add up", model_level, broken, measure=measure)
