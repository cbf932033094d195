"""Contrasts: against the estimators of one model, deletion of documents, known truth; coverage over training runs."""

import numpy as np
import pytest
from scipy import stats as sps

import posstats as ps
from posstats.errors import DesignError, FewDocumentsWarning, InputError, NumericalError
from posstats.results.claims import ContrastResult
from posstats.stats.contrast import RunValues, contrast_runs, depth_slope
from posstats.stats.synthetic.design import Effects
from tests.refused import refused

SIZE = {"n": 24, "length": 40, "layers": 3, "heads": 2, "offsets": (0, 1, 2)}
QUICK = {"n_permutations": 199}
COLUMNS = ["estimate", "se", "low", "high"]


def dump(strength=1.0, seed=0, **changes):
    options = SIZE | {"conditions": ["baseline", "bos=mean"], "strength": strength, "seed": seed} | changes
    return ps.simulate(**options).dataset


@pytest.fixture(scope="module")
def pair():
    """Two models on the same sequences."""
    return dump(1.0), dump(3.0)


@pytest.fixture(scope="module")
def both(pair):
    return ps.contrast(*pair, condition="bos=mean", **QUICK)


def pick(result, contrast, **where):
    table = result.table[result.table.contrast == contrast]
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1, where
    return table.iloc[0]


def of_one_model(ds, quantity, queries, term):
    """The row of the estimator for one model."""
    few = {"n_resamples": 99} | QUICK
    table = {
        "leakage": lambda: ps.leakage(ds.sel(condition=["baseline"]), octaves=False, **few),
        "share": lambda: ps.shares(ds.sel(condition=["baseline"]), octaves=False, **few),
        "magnitude": lambda: ps.magnitude(ds.sel(condition=["baseline"]), **few),
        "removal": lambda: ps.removal(ds, "bos=mean", **few),
    }[quantity]().table
    table = table[table.queries == queries]
    return (table if "term" not in table else table[table.term == term]).iloc[0]


VALUES = [
    ("leakage", "all", "log_attention"),
    ("share", "all", "mask"),
    ("share", "all", "residual"),
    ("magnitude", "[2, 16)", "residual"),
    ("magnitude", "[4, 8)", "residual"),
    ("removal", "[2, 16)", "residual"),
]


@pytest.mark.parametrize(("quantity", "queries", "term"), VALUES)
def test_sides_are_those_of_the_estimators_and_the_contrast_their_difference(pair, both, quantity, queries, term):
    where = {"quantity": quantity, "queries": queries, "term": term}
    rows = [of_one_model(ds, quantity, queries, term) for ds in pair]
    for label, row in zip("ab", rows, strict=True):
        side = pick(both, label, **where)
        assert side.estimate == pytest.approx(row.estimate, rel=1e-7)
        # A contrast rests on the corrected jackknife; estimates of one dump have intervals of their own.
        assert max(side.low, row.low) <= row.estimate <= min(side.high, row.high)
    found = pick(both, "b - a", **where)
    assert found.estimate == pytest.approx(rows[1].estimate - rows[0].estimate, rel=1e-9, abs=1e-12)
    assert both.settings["documents"] == "paired"
    assert both.settings["runs"] == "not replicated"


def without(ds, g):
    return ds.isel(sequence=[n for n in range(ds.sizes["sequence"]) if n != g])


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
def test_paired_error_is_that_of_deleting_documents_from_both(pair):
    small = [ds.isel(sequence=slice(7)) for ds in pair]
    result = ps.contrast(*small, **QUICK)

    def differences(drop):
        kept = [(ds if drop is None else without(ds, drop)).sel(condition=["baseline"]) for ds in small]
        values = []
        for ds in kept:
            table = ps.magnitude(ds, by="layer", n_permutations=9).table
            rows = table[(table.term == "residual") & (table.queries == "[2, 16)")].sort_values("layer")
            share = ps.shares(ds, octaves=False, n_permutations=9, level=0.01).table.set_index("term").estimate
            slope = np.polyfit(np.linspace(0, 1, 3), rows.estimate, 1)[0]
            values.append([rows.estimate.sum(), share["residual"], slope])
        return np.subtract(values[1], values[0])

    left_out = np.array([differences(g) for g in range(7)])
    se = np.sqrt(6 / 7 * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    rows = [
        pick(result, "b - a", quantity="magnitude", queries="[2, 16)"),
        pick(result, "b - a", quantity="share", term="residual"),
        pick(result, "b - a", quantity="slope"),
    ]
    np.testing.assert_allclose([row.estimate for row in rows], differences(None), rtol=1e-7)
    for row, plain in zip(rows, se, strict=True):
        assert plain / np.sqrt(2) * (1 - 1e-4) <= row.se <= plain * (1 + 1e-4)  # the second order is counted once
        half = sps.t.ppf(0.975, row.df) * row.se
        np.testing.assert_allclose([row.low, row.high], [row.estimate - half, row.estimate + half], rtol=1e-7)
        assert row.p == pytest.approx(2 * sps.t.sf(abs(row.estimate / row.se), row.df), rel=1e-6)


def test_swapping_the_sides_turns_the_difference_round(pair, both):
    swapped = ps.contrast(*pair[::-1], condition="bos=mean", **QUICK).table
    one, other = (table[table.contrast == "b - a"].reset_index(drop=True) for table in (both.table, swapped))
    np.testing.assert_allclose(one.estimate, -other.estimate, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one.low, -other.high, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(one.p, other.p, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
def test_sequences_in_another_order_are_put_in_order(pair):
    options = {"quantities": ["share", "size"], **QUICK}
    expected = ps.contrast(*pair, **options)
    turned = ps.contrast(
        pair[0], pair[1].isel(sequence=np.random.default_rng(0).permutation(len(pair[1].sequence))), **options
    )
    assert turned.settings["documents"] == "paired"
    np.testing.assert_allclose(turned.table.se, expected.table.se, rtol=1e-9)
    assert "sequences of b are put in the order of those of a" in turned.notes
    fewer = ps.contrast(pair[0], pair[1].isel(sequence=slice(1, None)), **options)
    assert fewer.settings["documents"] == "independent"
    assert any("not the same sequences: they count as independent" in note for note in fewer.notes)


def test_sizes_are_those_of_the_estimator_and_a_detectable_effect_is_found_in_four_of_five(pair):
    result = ps.contrast(*pair, quantities=["size"], **QUICK)
    for label, ds in zip("ab", pair, strict=True):
        table = ps.size(ds.sel(condition=["baseline"]), octaves=False, method="t").table.set_index("term")
        assert pick(result, label, quantity="size").estimate == pytest.approx(table.estimate["residual"], rel=1e-9)
    row = pick(result, "b - a", quantity="size")
    t = sps.t.ppf(0.975, row.df)
    assert sps.nct.sf(t, row.df, row.detectable / row.se) == pytest.approx(0.8, abs=1e-3)
    assert np.isnan(row.pairing)


def test_other_sequences_are_independent_and_variances_add(pair):
    other = dump(3.0, seed=1, n=30)
    result = ps.contrast(pair[0], other, quantities=["share", "slope"], **QUICK)
    assert result.settings["documents"] == "independent"
    assert result.settings["n_documents"] == "24 and 30"
    for quantity in ("share", "slope"):
        a, b, difference = (pick(result, label, quantity=quantity, term="residual") for label in ("a", "b", "b - a"))
        assert difference.se == pytest.approx(np.hypot(a.se, b.se))
        df = (a.se**2 + b.se**2) ** 2 / (a.se**4 / a.df + b.se**4 / b.df)
        assert difference.df == pytest.approx(df)
        half = sps.t.ppf(0.975, df) * difference.se
        assert difference.high - difference.estimate == pytest.approx(half)


def test_models_of_different_size_are_compared_with_a_note(pair):
    result = ps.contrast(pair[0], dump(3.0, layers=2, heads=3), quantities=["share"], **QUICK)
    assert any("2 x 3 layers x heads" in note for note in result.notes)


def test_known_truth_is_recovered():
    weak = ps.simulate(**SIZE | {"n": 40}, strength=0.5, seed=3)
    rising = {
        "baseline": Effects(
            denominator_drift=-np.linspace(1, 3, 3)[:, None, None] / (np.arange(SIZE["length"] / 2) + 1)
        ),
    }
    strong = ps.simulate(**SIZE | {"n": 40}, conditions=rising, seed=3)
    result = ps.contrast(weak.dataset, strong.dataset, labels=("weak", "strong"), **QUICK)
    early, name = range(2, 16), "strong - weak"
    by_layer = [one.truth.magnitude("residual", early)[0].sum(axis=1) for one in (weak, strong)]
    truth = {
        "leakage": strong.truth.leakage().sum() - weak.truth.leakage().sum(),
        "magnitude": by_layer[1].sum() - by_layer[0].sum(),
        "slope": depth_slope(by_layer[1]) - depth_slope(by_layer[0]),
        "share": (strong.truth.share("residual", pooled=True) - weak.truth.share("residual", pooled=True))[0],
    }
    for quantity, value in truth.items():
        where = {"queries": "[2, 16)"} if quantity == "magnitude" else {}
        where |= {"term": "residual"} if quantity == "share" else {}
        row = pick(result, name, quantity=quantity, **where)
        assert abs(row.estimate - value) < 3.5 * row.se, quantity  # 4 of them, one data set
    assert pick(result, name, quantity="slope").low > 0


def test_nothing_is_said_of_shares_of_nothing():
    flat = {"baseline": Effects(flat=True)}
    empty, full = (ps.simulate(**SIZE, conditions=c, seed=5).dataset for c in (flat, ["baseline"]))
    result = ps.contrast(empty, full, quantities=["leakage", "share"], **QUICK)
    shares = result.table[result.table.quantity == "share"].set_index("contrast")
    assert (shares.note == "").all()  # not significant, and printed all the same
    assert shares.estimate.notna().all()
    assert pick(result, "b - a", quantity="leakage").low > 0


@pytest.fixture(scope="module")
def runs():
    """Three runs of two architectures: the same sequences, weights of their own."""
    return [[dump(s) for s in strengths] for strengths in ((0.9, 1.0, 1.2), (2.0, 2.6, 2.3))]


@pytest.fixture(scope="module")
def over_runs(runs):
    return ps.contrast(*runs, condition="bos=mean", **QUICK)


class TestRuns:
    def test_the_estimate_is_the_mean_over_runs_of_the_difference(self, runs, over_runs):
        first = runs[0][0]
        single = [ps.contrast(first, b, quantities=["share", "slope"], **QUICK) for b in runs[1]]
        for quantity in ("share", "slope"):
            b = [pick(one, "b", quantity=quantity, term="residual").estimate for one in single]
            row = pick(over_runs, "b", quantity=quantity, term="residual")
            assert row.estimate == pytest.approx(np.mean(b))
            assert row.se_runs == pytest.approx(np.std(b, ddof=1) / np.sqrt(3))
            assert row.se == pytest.approx(np.hypot(row.se_runs, row.se_documents))

    def test_both_variances_enter(self, over_runs):
        table = over_runs.table[over_runs.table.contrast == "b - a"].dropna(subset=["estimate"])
        np.testing.assert_allclose(table.se, np.hypot(table.se_runs, table.se_documents))
        row = pick(over_runs, "b - a", quantity="magnitude", queries="[2, 16)")
        assert 2 <= row.df <= 4 + 23
        assert over_runs.settings["runs"] == "3 and 3, independent"
        assert over_runs.settings["resampling_unit"] == "training run and document"

    def test_there_is_no_p_of_absence_over_documents_alone(self, over_runs):
        assert np.isnan(pick(over_runs, "a", quantity="leakage").p)
        assert pick(over_runs, "b - a", quantity="leakage").p < 0.05

    def test_paired_runs_have_the_variance_of_their_differences(self, runs):
        options = {"quantities": ["share"], "pair_runs": True} | QUICK
        row = pick(ps.contrast(*runs, **options), "b - a", term="residual")
        differences = [
            pick(ps.contrast(a, b, quantities=["share"], **QUICK), "b - a", term="residual").estimate
            for a, b in zip(*runs, strict=True)
        ]
        assert row.estimate == pytest.approx(np.mean(differences))
        assert row.se_runs == pytest.approx(np.std(differences, ddof=1) / np.sqrt(3))

    def test_refusals(self, runs, pair):
        refused(DesignError, "replicated on one side only", ps.contrast, pair[0], runs[1], **QUICK)
        refused(DesignError, "as many on both sides", ps.contrast, runs[0][:2], runs[1], pair_runs=True, **QUICK)
        refused(DesignError, "the same sequences", ps.contrast, [pair[0], dump(1.0, seed=9)], runs[1], **QUICK)
        refused(DesignError, "number of layers and heads", ps.contrast, [pair[0], dump(1.0, heads=3)], runs[1], **QUICK)
        refused(DesignError, "same weights occur twice", ps.contrast, [runs[0][0], runs[0][0].copy()], runs[1], **QUICK)
        same = [ds.assign_attrs(weights_sha256="abc") for ds in runs[0]]
        refused(DesignError, "same weights occur twice", ps.contrast, same, runs[1], **QUICK)


class TestDesign:
    def test_lengths_and_offsets_must_agree(self, pair):
        with pytest.raises(DesignError, match="16 and of"):
            ps.contrast(pair[0], dump(length=32))
        with pytest.raises(DesignError, match="dump the same offsets"):
            ps.contrast(pair[0], dump(offsets=(0, 1)))

    def test_kinds_are_not_mixed_unsaid(self, pair):
        variant = pair[1].assign_attrs(model_kind="inference-time variant", model_variant="ntk_factor=8")
        refused(DesignError, "allow_mixed=True", ps.contrast, pair[0], variant)
        result = ps.contrast(pair[0], variant, quantities=["share"], allow_mixed=True, **QUICK)
        assert "models of different kinds are compared: inference-time variant, trained" in result.notes
        adapted = pair[1].assign_attrs(model_kind="adapted")
        assert "adapted, trained" in ps.contrast(pair[0], adapted, quantities=["share"], **QUICK).notes[-1]

    @pytest.mark.parametrize(
        "attrs", [{"inference_time_window": 64}, {"layer_types": '["full_attention", "sliding_attention"]'}]
    )
    def test_a_window_must_bind(self, pair, attrs):
        refused(DesignError, "never binds", ps.contrast, pair[0], pair[1].assign_attrs(attrs))
        narrow = dump(window=8).assign_attrs(attrs)
        assert len(ps.contrast(pair[0], narrow, quantities=["share"], **QUICK).table) == 6

    def test_options(self, pair):
        for options, message in [
            ({"quantities": ["slopes"]}, "chosen from leakage"),
            ({"quantities": []}, "at least one"),
            ({"quantities": ["removal"]}, "needs condition="),
            ({"condition": "baseline"}, "chosen from bos=mean"),
            ({"condition": "bos=zero"}, "chosen from bos=mean"),
            ({"method": "bootstrap"}, "method of a contrast must be one of 't'"),
            ({"level": 1.5}, "level"),
            ({"labels": ("x", "x")}, "two different names"),
            ({"adjust": "none"}, "'bh', 'by', 'holm'"),
        ]:
            refused(InputError, message, ps.contrast, *pair, **options)
        refused(DesignError, r"\[2, 17\) is no bin", ps.contrast, *pair, slope_queries=(2, 17))
        refused(DesignError, "at least 2 layers", ps.contrast, dump(layers=1), dump(layers=1), quantities=["slope"])
        refused(InputError, "on either side", ps.contrast, pair[0], [])
        refused(InputError, "lacks token_id", ps.contrast, ps.decompose(pair[0]), pair[1])

    def test_one_layer_has_no_slope_by_default(self):
        result = ps.contrast(dump(layers=1), dump(2.0, layers=1), **QUICK)
        assert set(result.table.quantity) == {"leakage", "share", "size", "magnitude"}

    def test_few_documents_warn_and_are_noted(self, pair):
        few = [ds.isel(sequence=slice(8)) for ds in pair]
        with pytest.warns(FewDocumentsWarning):
            result = ps.contrast(*few, quantities=["share"], **QUICK)
        assert any("only 8 documents" in note for note in result.notes)


def test_a_difference_that_misses_its_sides_is_refused(both):
    table = both.table.copy()
    table.loc[table.index[2], "estimate"] += 1.0
    refused(NumericalError, "misses its two sides", ContrastResult, table, both.settings)


def test_as_a_dataset(both):
    ds = both.to_dataset()
    assert ds.sizes == {"row": len(both.table)}
    assert ds.attrs["documents"] == "paired"


class TestCoverage:
    """Intervals over runs and documents with known truth: a mean over documents with effects of runs and of documents.

    Fixed beforehand: at least 0.93 in every design, as asked of every interval at nominal 0.95; more is allowed, since
    what belongs to one document in one run is counted twice. A failure needs two binomial standard errors more.
    """

    N = 4000

    def values(self, rng, k, g, run, document, single, shared):
        """Runs of one architecture: `shared` (document, value) is common to both architectures."""
        effect = document * rng.normal(size=(g, 1, self.N)) + shared[:, None]
        x = effect + single * rng.normal(size=(g, k, self.N)) + run * rng.normal(size=(1, k, self.N))
        mean = x.mean(axis=0)
        return RunValues(mean, (g * mean - x) / (g - 1), np.empty((0, 2), dtype=int), np.empty((0, k, self.N)))

    def covered(self, k, g, run, *, seed, same=True, pair_runs=False, document=1.0, single=1.0):
        rng = np.random.default_rng(seed)
        shared = 2 * rng.normal(size=(g, self.N))
        sides = [
            self.values(
                rng, k, g, run / np.sqrt(g), document, single, shared if same else 2 * rng.normal(size=(g, self.N))
            )
            for _ in range(2)
        ]
        found = contrast_runs(sides, same_documents=same, pair_runs=pair_runs, method="jackknife")
        assert abs(found.estimate.mean()) < 5 * found.estimate.std() / np.sqrt(self.N)
        return float(((found.low <= 0) & (found.high >= 0)).mean()), float((found.p < 0.05).mean())

    # Standard deviation of runs in units of the standard error over documents of one run.
    @pytest.mark.parametrize("run", [0.0, 1.0, 4.0])
    @pytest.mark.parametrize(("k", "g"), [(3, 24), (3, 48), (5, 48)])
    @pytest.mark.parametrize("how", ["same documents", "paired runs", "other documents"])
    def test_runs_and_documents(self, k, g, run, how):
        coverage, rejected = self.covered(
            k, g, run, same=how != "other documents", pair_runs=how == "paired runs", seed=[k, g, int(run), len(how)]
        )
        print(f"{how}, k={k}, G={g}, run={run}: {coverage:.3f}")
        assert coverage >= 0.93 - 2 * np.sqrt(0.93 * 0.07 / self.N)
        assert rejected == pytest.approx(1 - coverage, abs=1e-3)

    @pytest.mark.parametrize("same", [True, False])
    def test_one_run_each_speaks_of_documents(self, same):
        coverage, _ = self.covered(1, 24, 0.0, same=same, seed=1)
        assert 0.93 - 0.01 <= coverage <= 0.97 + 0.01

    def test_documents_alone_miss_the_variance_of_runs(self):
        """What would be claimed of an architecture from one run of each."""
        coverage, _ = self.covered(1, 48, 4.0, seed=2)
        assert coverage < 0.6


def test_depth_slope_of_one_layer_is_refused():
    refused(DesignError, "at least 2 layers", depth_slope, np.ones((3, 1)))
