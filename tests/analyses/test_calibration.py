"""Coverage and type I error by simulation: the study of analyses/calibration, reduced to what a test can afford."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import posstats as ps
from posstats.dataset.simulate import recorded_dataset
from posstats.errors import DesignError, InputError
from posstats.stats.inference.resample import corrected_error, document_pairs, interval, jackknife_error, pair_weights
from posstats.stats.inference.sign_flips import random_signs, sign_flip_test
from tests.refused import refused

ROOT = Path(__file__).parents[2]
N_DATASETS = 120


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("analyses.calibration.study")


@pytest.fixture(scope="module")
def trials(study):
    return study.trials


def run(trial, n_datasets, seed):
    rows = [trial(child) for child in np.random.SeedSequence(seed).spawn(n_datasets)]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def plausible(count, n, rate, error=1e-4):
    """Whether a count fits a binomial rate; `error` is what remains after some dozens of looks."""
    return error / 2 < stats.binom.cdf(count, n, rate) and stats.binom.sf(count - 1, n, rate) > error / 2


# ---- the corrected jackknife, exactly


def u_statistic(kernel, weights):
    """Mean over pairs of distinct documents, (row,)."""
    total = np.einsum("rg,gh,rh->r", weights, kernel, weights)
    return total / (weights.sum(axis=1) ** 2 - (weights**2).sum(axis=1))


def pair_means(x):
    """Mean product of different documents, and without one or two of them; (document, query) in."""
    kernel = x @ x.T / x.shape[1]
    np.fill_diagonal(kernel, 0)
    n = len(x)
    pairs = document_pairs(n, at_most=2000)
    values = [u_statistic(kernel, w) for w in (np.ones((1, n)), 1 - np.eye(n), pair_weights(n, pairs))]
    return values[0][0], values[1], pairs, values[2]


@pytest.mark.parametrize("mean", [0.0, 0.3, 2.0])
def test_corrected_variance_of_a_mean_over_pairs_is_unbiased(mean):
    n, queries, rng = 12, 10, np.random.default_rng(0)
    exact = (4 * (n - 2) * mean**2 + 2 * (1 + 2 * mean**2)) / (n * (n - 1)) / queries  # unit variance
    plain, corrected, second = [], [], []
    for _ in range(1000):
        estimate, left_out, pairs, pair_left_out = pair_means(mean + rng.normal(size=(n, queries)))
        plain.append(jackknife_error(left_out) ** 2)
        error = corrected_error(estimate, left_out, pairs, pair_left_out)
        corrected.append(error.se**2)
        second.append(error.second_order)
        assert n - 1 >= error.df >= (n - 1) / 4
    slack = 4 * np.std(corrected) / np.sqrt(1000)
    # Without any signal half of the jackknife's variance is often the floor, which makes the average a little larger.
    assert exact - slack < np.mean(corrected) < exact * (1.4 if mean == 0 else 1.02) + slack
    if mean == 0:
        assert np.mean(plain) > 1.8 * exact
    else:
        np.testing.assert_allclose(np.mean(second), 2 / (n * (n - 1)) / queries, rtol=0.1)


def test_a_part_of_the_pairs_is_enough():
    x = 0.5 + np.random.default_rng(1).normal(size=(40, 10))
    estimate, left_out, pairs, pair_left_out = pair_means(x)
    whole = corrected_error(estimate, left_out, pairs, pair_left_out)
    some = document_pairs(40, at_most=400)
    assert len(some) == 400
    assert (np.bincount(some.ravel()) == 20).all()
    index = {frozenset(pair): k for k, pair in enumerate(pairs.tolist())}
    chosen = [index[frozenset(pair)] for pair in some.tolist()]
    part = corrected_error(estimate, left_out, some, pair_left_out[chosen])
    np.testing.assert_allclose([part.se, part.df], [whole.se, whole.df], rtol=0.1)


@pytest.mark.parametrize("mean", [0.0, 0.3, 2.0])
def test_limits_of_a_mean_of_squares_are_t_errors_away(mean):
    """The error at a limit is the one an estimate of that size would have: more above the estimate, less below."""
    estimate, left_out, pairs, pair_left_out = pair_means(mean + np.random.default_rng(2).normal(size=(20, 10)))
    error = corrected_error(estimate, left_out, pairs, pair_left_out)
    options = {"pairs": pairs, "pair_left_out": pair_left_out, "method": "corrected_jackknife"}
    found = interval(estimate, left_out, squared=True, **options)
    assert found.high - estimate > estimate - found.low > 0
    t = stats.t.ppf(0.975, error.df)
    for limit in (found.low, found.high):
        first_order = (error.se**2 - error.second_order) * (1 + (limit - estimate) / max(estimate, error.se))
        np.testing.assert_allclose((limit - estimate) ** 2, t**2 * (first_order + error.second_order))
    both = [np.stack([x, x], axis=-1) for x in (estimate, left_out)]
    options["pair_left_out"] = np.stack([pair_left_out, pair_left_out], axis=-1)
    mixed = interval(*both, squared=np.array([True, False]), **options)
    np.testing.assert_allclose(mixed.high[0], found.high)
    np.testing.assert_allclose(mixed.high[1] - estimate, estimate - mixed.low[1])


@pytest.mark.parametrize("n", [4, 5, 6, 17, 32])
def test_pairs_are_all_pairs_once(n):
    pairs = document_pairs(n, at_most=2000)
    assert len(pairs) == len({frozenset(pair) for pair in pairs.tolist()}) == n * (n - 1) // 2
    assert (pair_weights(n, pairs).sum(axis=1) == n - 2).all()


def test_pairs_need_documents():
    refused(DesignError, "at least 4 documents, not 3", document_pairs, 3)


def test_interval_says_what_it_lacks():
    x = np.arange(6.0)
    refused(InputError, "needs the estimate without pairs", interval, x.mean(), x, method="corrected_jackknife")
    refused(InputError, "needs bootstrap replicates", interval, x.mean(), x, method="studentized")
    refused(InputError, "standard error of every replicate", interval, x.mean(), x, x, method="studentized")


def test_many_gram_matrices_give_the_p_values_of_one():
    rng = np.random.default_rng(2)
    fields = rng.normal(size=(40, 9, 6)) + rng.uniform(0, 0.5, size=(40, 1, 1))
    gram = fields @ fields.transpose(0, 2, 1)
    gram[:, np.arange(9), np.arange(9)] = 0
    signs = random_signs(9, 400, seed=3)
    together = sign_flip_test(gram.reshape(5, 8, 9, 9), signs)
    assert together.shape == (5, 8)
    np.testing.assert_array_equal(together.ravel(), [sign_flip_test(one, signs) for one in gram])


# ---- coverage


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
@pytest.mark.parametrize("method", ["t", "bootstrap"])
def test_limits_are_those_that_the_estimators_print(trials, monkeypatch, method):
    seed = np.random.SeedSequence(7)
    recorded = trials.simulate_terms(trials.designs.signal_design("two levels", 12), seed)
    monkeypatch.setattr(trials, "_drawn", lambda n, _: trials.document_weights(n, 199, 3))
    found = trials.intervals(recorded, seed)
    ds = recorded_dataset(recorded, trials.designs.LENGTH, {})
    base = ds.sel(condition=["baseline"])
    for by, group in (((), "pooled"), (("layer", "head"), "head 1")):
        options = {"by": by, "method": method, "n_resamples": 199, "seed": 3}
        bins = {"magnitude": ps.magnitude(base, **options), "removal": ps.removal(ds, "changed", **options)}
        rows = {f"{name} {x}": bins[name].table.query(f"queries == '{x}'") for name in bins for x in trials._BINS}
        rows = {name: one.query("term == 'residual'") if "term" in one else one for name, one in rows.items()}
        rows["leakage"] = ps.leakage(base, **options).table.query("queries == 'all'")
        rows["share of residual"] = ps.shares(base, **options).table.query("queries == 'all' and term == 'residual'")
        for name, row in rows.items():
            row = row.iloc[-1]  # of heads, the last
            squares = name.startswith(("leakage", "magnitude"))
            ends = ("boot_low", "boot_high") if squares and method == "bootstrap" else ("low", "high")
            expected = [row.estimate, *(row[end] for end in ends), row.se]
            key = f"{name}, {group}"
            actual = [found[f"{key}|estimate"], *(found[f"{key}|{method}|{what}"] for what in ("low", "high", "se"))]
            np.testing.assert_allclose(actual, expected, rtol=1e-7, err_msg=key)


def test_the_truth_in_the_gap_of_two_rays_is_missed(study):
    ends = {"low": -np.inf, "high": np.inf, "se": 1.0}
    rows = [ends | {"gap_low": low, "gap_high": high} for low, high in ((0.0, 1.0), (1.0, 2.0), (np.nan, np.nan))]
    frame = study.tables.pd.DataFrame(rows).add_prefix("share|t|")
    found = study.tables._covered(frame, "share", "t", true=0.5, sd=1.0)
    assert (found["coverage"], found["truth_in_gap"], found["rays"], found["line"]) == (2 / 3, 1 / 3, 2 / 3, 1 / 3)


def test_every_family_is_covered(trials, study):
    found = run(lambda seed: trials.coverage_trial("two levels", 32, seed), N_DATASETS, seed=1)
    truth = trials.true_values(trials.designs.signal_design("two levels", 32))
    for name, true in truth.items():
        low, high = (found[f"{name}|{study.tables.default(name)}|{side}"] for side in ("low", "high"))
        covered = int(((low <= true) & (true <= high)).sum())
        assert plausible(covered, N_DATASETS, 0.95), (name, covered)
        estimate = found[f"{name}|estimate"]
        assert abs(estimate.mean() - true) < 0.4 * estimate.std(), name
    assert {study.tables.family(name) for name in truth} == set(study.tables.FAMILIES) - {"decoding"}
    # The plug-in estimate of leakage counts content noise as position.
    plug_in = found["leakage, pooled|plug_in"]
    assert plug_in.mean() - truth["leakage, pooled"] > 0.8 * plug_in.std()


def test_decoding_is_covered(trials):
    found = run(lambda seed: trials.decoding_trial("default", 16, seed), N_DATASETS, seed=2)
    for name in trials.decoding_names():
        true = found[f"{name}|estimate"].mean()
        covered = int(((found[f"{name}|t|low"] <= true) & (true <= found[f"{name}|t|high"])).sum())
        assert plausible(covered, N_DATASETS, 0.95), (name, covered)


# ---- tests under the null


@pytest.mark.parametrize("scenario", ["default", "two levels"])
def test_tests_keep_their_level(trials, scenario):
    p_values = run(lambda seed: trials.level_trial(scenario, 16, seed), N_DATASETS, seed=3)
    for name, p in p_values.items():
        assert (p > 0).all(), name
        rejected = int((p < 0.05).sum())
        # Never too often. Any test of what is close to a pure second order, reject too rarely.
        assert stats.binom.sf(rejected - 1, N_DATASETS, 0.05) > 1e-4, (name, rejected)
        if name.startswith(("leakage", "slope", "spline")):
            assert plausible(rejected, N_DATASETS, 0.05), (name, rejected)


def test_power_grows_with_the_effect(trials):
    small, large = (
        run(lambda seed, size=size: trials.power_trial("trend", size, 32, seed), 40, seed=4) for size in (0.025, 0.15)
    )
    for name in large:
        assert (large[name] < 0.05).mean() > 0.9 > (small[name] < 0.05).mean(), name


# ---- the study itself


def test_a_dataset_has_its_own_seed(study, tmp_path):
    cell = study.Cell("level-default-8", lambda seed: {"draw": float(np.random.default_rng(seed).random())})
    for start, stop in ((0, 4), (0, 2), (2, 4)):
        study.Chunk(cell, 3, start, stop, tmp_path).run()
    values = {file.name: np.load(file)["values"][:, 0] for file in sorted(tmp_path.glob("*.npz"))}
    whole, first, second = (values[f"level-default-8-{a:05d}-{b:05d}.npz"] for a, b in ((0, 4), (0, 2), (2, 4)))
    np.testing.assert_array_equal(whole, np.concatenate([first, second]))
    assert len(set(whole)) == 4


def test_the_study_lists_every_cell_once(study):
    names = [cell.name for cell in study.cells()]
    assert len(names) == len(set(names))
