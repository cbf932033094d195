"""Readers of the trajectory: displacement against a loop over pairs, and models in which it is known who reads it."""

import numpy as np
import pytest
from scipy import stats

import posstats as ps
from posstats.dataset.blocks import layer_fields
from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.pair_products.components import analysed_queries
from posstats.stats.position0 import Displacement
from tests import constructed, position0
from tests.sealed import sealed

T = "trajectory=token:"


@pytest.fixture(scope="module")
def ds():
    """One condition differs from the baseline by more than chance, in the heads 0."""
    ds = position0.synthetic(n=24, length=72, layers=3)
    for name, by in (("bos=token:7", 1.5), (f"{T}7@1", 0.7)):
        ds["sink_logit"].loc[{"condition": name, "head": 0}] -= by
    return sealed(ds)


@pytest.fixture(scope="module")
def result(ds):
    return ps.readers(ds)


def brute(ds, condition, layer, head):
    queries = analysed_queries(ds.sizes["query"], ds.offset.values)
    return position0.displacement(ps.decompose(ds), condition, "baseline", layer, head, queries)


def reading_heads(ds):
    baseline = ds.sel(condition=["baseline"])
    table = ps.sinks(baseline).table
    return (table.pivot(index="layer", columns="head", values="estimate") > 0.3).to_numpy()


def moved(ds, condition, layer):
    """Displacement of one layer, from its fields."""
    terms = ps.decompose(ds).isel(layer=[layer])
    fields = [next(layer_fields(terms.sel(condition=name)))[1] for name in (condition, "baseline")]
    return Displacement.of(*fields, analysed_queries(ds.sizes["query"], ds.offset.values))


class TestDisplacement:
    def test_against_a_loop_over_pairs(self, ds):
        found = moved(ds, "bos=token:7", 1).at(np.ones((1, 24)))[0]
        expected = [brute(ds, "bos=token:7", 1, head) for head in range(3)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)

    def test_weights_of_0_and_2_are_documents_left_out_and_doubled(self):
        ds = position0.synthetic(n=6, length=60, sequences_per_document=[1, 2, 1, 1, 2, 1])
        labels = np.unique(ds.document.values)
        weights = np.array([[1, 1, 0, 1, 1, 1], [0, 1, 1, 2, 1, 1]], dtype=float)
        found = moved(ds, f"{T}7@1", 0).at(weights)
        without = ds.isel(sequence=ds.document.values != labels[2])
        # Exact but for the mask counted last, which follows the steady state up to third order in its change.
        np.testing.assert_allclose(found[0], [brute(without, f"{T}7@1", 0, head) for head in range(3)], rtol=1e-5)
        drawn = np.concatenate([np.flatnonzero(ds.document.values == label) for label in labels[[1, 2, 3, 3, 4, 5]]])
        twice = ds.isel(sequence=drawn)  # a document drawn twice keeps its label, and makes no pair with itself
        np.testing.assert_allclose(found[1], [brute(twice, f"{T}7@1", 0, head) for head in range(3)], rtol=1e-5)

    def test_products_add_up_to_the_estimate(self, ds):
        one = moved(ds, f"{T}7@1", 2)
        total = one.products().sum(axis=(1, 2)) / (24 * 23)
        np.testing.assert_allclose(total, one.at(np.ones((1, 24)))[0], rtol=1e-9)

    def test_noise_contributes_nothing(self):
        """Independent noise on both sides: the mean over many heads is 0 within its error."""
        ds = position0.synthetic(n=16, length=72, layers=1, heads=60)
        rng = np.random.default_rng(1)
        for name in ("baseline", "bos=token:7"):
            ds["sink_logit"].loc[{"condition": name}] = -3.0
            noise = ds["logit"].sel(condition=name)
            ds["logit"].loc[{"condition": name}] = noise + rng.normal(size=noise.shape[:3])[..., None, None]
            for same in ("steady_logit", "steady_log_sum", "log_denominator_rest"):
                ds[same].loc[{"condition": name}] = ds[same].sel(condition="baseline")
        found = moved(sealed(ds), "bos=token:7", 0).at(np.ones((1, 16)))[0]
        plug_in = 2 / 16  # what the square of the mean difference would be
        assert abs(found.mean()) < 4 * found.std() / np.sqrt(60)
        assert abs(found.mean()) < plug_in / 2


class TestResult:
    def test_groups_weigh_layers_by_their_sink_reading_heads(self, ds, result):
        chosen = reading_heads(ds)
        assert chosen.any(axis=1).sum() > 1
        for condition, depth in (("bos=token:7", 0), (f"{T}7@1", 1)):
            sink, other, n = 0.0, 0.0, 0
            for layer in range(depth, 3):
                values = np.array([brute(ds, condition, layer, head) for head in range(3)])
                if chosen[layer].any() and not chosen[layer].all():
                    sink += values[chosen[layer]].sum()
                    other += chosen[layer].sum() * values[~chosen[layer]].mean()
                    n += chosen[layer].sum()
            rows = result.table[result.table.condition == condition].set_index("quantity")
            assert rows.estimate["sink_reading"] == pytest.approx(sink / n)
            assert rows.estimate["other"] == pytest.approx(other / n)
            assert rows.estimate["difference"] == pytest.approx((sink - other) / n)
            assert rows.n_heads["sink_reading"] == n
            assert set(rows.depth) == {depth}
            assert set(rows.token) == {7}

    def test_the_difference_is_found(self, result):
        rows = result.table.set_index(["quantity", "condition"])
        assert (rows.low["difference"] > 0).all()
        assert (rows.p["sink_reading"] < 1e-3).all()
        assert (rows.unit["ratio"] == "1").all()

    def test_ratio_is_withheld_where_the_others_do_not_move(self, result):
        rows = result.table.set_index(["quantity", "condition"])
        weak = ~(rows.q["other"] < 0.05)
        assert weak.any()
        assert rows.estimate["ratio"][weak].isna().all()
        assert rows.note["ratio"][weak].str.startswith("withheld").all()

    def test_jackknife_leaves_whole_documents_out(self, ds):
        small = ds.isel(layer=[0])
        row = ps.readers(small, method="t").table.query("quantity == 'difference' and depth == 0").iloc[0]
        chosen = reading_heads(ds)[0]
        left_out = []
        for label in ds.document.values:
            values = moved(small.isel(sequence=ds.document.values != label), "bos=token:7", 0).at(np.ones((1, 23)))[0]
            left_out.append(values[chosen].mean() - values[~chosen].mean())
        error = np.sqrt(23 / 24 * ((left_out - np.mean(left_out)) ** 2).sum())
        assert error / np.sqrt(2) < row.se <= error  # the second order, which the jackknife counts twice, is less
        assert row.high - row.estimate > stats.t.ppf(0.975, 23) * row.se

    def test_studentized(self, ds):
        small = ds.isel(layer=[0], sequence=slice(0, 8))
        with pytest.warns(ps.errors.FewDocumentsWarning):
            found = ps.readers(small, method="bootstrap", n_resamples=99, n_permutations=99).table
        rows = found[(found.quantity == "difference") & (found.depth == 0)]
        assert rows.estimate.between(rows.low, rows.high).all()

    def test_nothing_changed(self, ds):
        same = ds.copy(deep=True)
        for name in ("logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum"):
            same[name].values[:] = same[name].values[:1]
        table = ps.readers(sealed(same)).table
        rows = table[table.quantity != "ratio"]
        assert (rows.estimate.abs() < 1e-24).all()
        assert (rows.p == 1).all()
        assert (rows.note == "no difference beyond rounding").all()
        ratios = table[table.quantity == "ratio"]
        assert ratios.estimate.isna().all()
        assert ratios.note.str.startswith("withheld").all()

    def test_no_head_to_compare(self, ds):
        table = ps.readers(ds, epsilon=0.999).table
        assert table[["estimate", "low", "high", "p", "q"]].isna().all(axis=None)
        assert table.note.str.contains("no layer from").all()

    def test_bad_input(self, ds):
        with pytest.raises(InputError, match="trajectory=token:ID@L"):
            ps.readers(ds.sel(condition=["baseline", "bos@4"]))
        with pytest.raises(InputError, match="baseline"):
            ps.readers(ds.drop_sel(condition="baseline"))
        with pytest.raises(InputError, match="estimated from a dump"):
            ps.readers(ds.drop_vars("logit"))
        with pytest.raises(DesignError, match="i >= 16"):
            ps.readers(position0.synthetic(length=32))
        broken = ds.copy(deep=True)
        broken["logit"].values[0, 0, 0, 0, 20] = np.nan
        with pytest.raises(NumericalError):
            ps.readers(broken)

    def test_one_seed_one_result(self, ds, result):
        assert ps.readers(ds).table.equals(result.table)

    def test_wrong_arithmetic_cannot_exist(self, result):
        wrong = result.table.copy()
        wrong.loc[wrong.quantity == "difference", ["estimate", "high"]] += 1.0
        with pytest.raises(NumericalError, match="do not follow"):
            type(result)(wrong, result.settings)

    def test_faces(self, result):
        assert dict(result.to_dataset().sizes) == {"condition": 2, "quantity": 4}
        assert "nats²" in result.summary()


class TestConstructed:
    """Token 2 differs from BOS in what nothing reads; token 5 lacks the flag that head 0 of block 1 looks for."""

    def dump(self, path, conditions, **options):
        model, seqs = constructed.build(**options), constructed.sequences()
        ps.dump(model, seqs, path, conditions=["baseline", *conditions], offsets=(0, 1, 2), progress=False)
        return ps.open_dump(path)

    def test_the_head_that_reads_it_is_moved(self, tmp_path):
        with self.dump(tmp_path / "d.h5", ["bos=token:5", f"{T}5@0", f"{T}5@1"]) as ds:
            rows = ps.readers(ds).table.set_index(["quantity", "condition"])
        assert (rows.low["difference"] > 0).all()
        assert (rows.low["ratio"].dropna() > 1).all()
        assert (rows.p["difference"] < 1e-6).all()
        first, second = (rows.estimate.xs(name, level="condition") for name in ("bos=token:5", f"{T}5@0"))
        np.testing.assert_allclose(first, second, rtol=1e-9)

    def test_a_trajectory_that_nothing_reads_moves_nothing(self, tmp_path):
        with self.dump(tmp_path / "d.h5", [f"{T}2@0", f"{T}2@1"]) as ds:
            assert float(np.abs(ds.trajectory[0] - ds.trajectory[1]).max()) > 0.5
            table = ps.readers(ds).table
        assert (table[table.quantity != "ratio"].p == 1).all()
        assert (table[table.quantity != "ratio"].estimate.abs() < 1e-18).all()

    def test_a_head_that_reads_the_position_does_not_care_whose_it_is(self, tmp_path):
        with self.dump(tmp_path / "d.h5", [f"{T}5@1"], reads="position") as ds:
            rows = ps.readers(ds).table.set_index("quantity")
        assert rows.estimate["sink_reading"] < 1e-3
        assert not rows.low["difference"] > 0

    def test_other_heads_can_be_moved_more(self, tmp_path):
        with self.dump(tmp_path / "d.h5", [f"{T}2@0", f"{T}2@1"], other_reads_twin=True) as ds:
            rows = ps.readers(ds).table.set_index(["quantity", "condition"])
        assert (rows.high["difference"] < 0).all()

    def test_no_head_reads_position_0(self, tmp_path):
        with self.dump(tmp_path / "d.h5", [f"{T}5@1"], reads="nothing") as ds:
            assert ps.readers(ds).table.estimate.isna().all()
            assert not ps.sinks(ds).table.sink_reading.any()
