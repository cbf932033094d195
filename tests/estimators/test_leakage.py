"""The public estimators: against the plain brute force, against scipy, and their refusals."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import posstats as ps
from posstats.dataset.blocks import field_blocks
from posstats.dataset.store import write_dump
from posstats.dataset.terms import select_condition
from posstats.errors import DesignError, FewDocumentsWarning, InputError, NumericalError
from posstats.stats.inference.bootstrap_t import bootstrap_square_interval
from posstats.stats.inference.limits import replicates
from posstats.stats.inference.options import CHOICES
from posstats.stats.inference.ratios import JointSpread, fieller_set, ratio_p
from posstats.stats.inference.resample import document_weights, jackknife_error
from posstats.stats.inference.squares import SquareSpread, square_interval
from posstats.stats.pair_products.components import analysed_queries, leakage_statistics, octave_bins
from posstats.stats.synthetic.design import Effects, Noise
from posstats.tables.headline import headline_table
from tests import brute
from tests.sealed import sealed

LENGTH = 48
QUERIES = LENGTH // 2
OFFSETS = (0, 1, 3)
DOCUMENTS = ["a", "b", "b", "c", "d", "e", "f"]
TERMS = ("relative", "mask", "sink", "redistribution", "residual", "mask_first", "mask_last")

pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")


def logits(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    n = len(DOCUMENTS)
    values = 0.4 * rng.normal(size=(n, 2, 2, LENGTH, LENGTH)) - 0.1 * np.arange(LENGTH)[:, None]
    values[..., 0] += scale * (1.5 + 0.2 * rng.normal(size=(n, 2, 2, 1)))
    decay = scale * np.exp(-np.arange(LENGTH) / 4)
    return values + decay[:, None] * np.linspace(0, 1, LENGTH)


@pytest.fixture(scope="module")
def dump():
    return brute.dump_dataset({"baseline": logits(1), "bos=mean": logits(2, 0.6)}, DOCUMENTS, OFFSETS)


@pytest.fixture(scope="module")
def oracle(dump):
    return {name: brute.BruteDump(dump, name) for name in ("baseline", "bos=mean")}


def bins():
    labelled = {f"[{low}, {high})": range(low, high) for low, high in octave_bins(QUERIES)}
    return labelled | {"[2, 16)": range(2, 16)}


def pick(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1, where
    return table.iloc[0]


@pytest.mark.parametrize("condition", ["baseline", "bos=mean"])
def test_leakage_equals_brute_force(dump, oracle, condition):
    result = ps.leakage(dump, n_resamples=99).table
    expected = oracle[condition]
    assert pick(result, condition=condition, queries="all").estimate == pytest.approx(
        expected.leakage().sum(), rel=1e-8
    )
    for low, high in octave_bins(QUERIES):
        row = pick(result, condition=condition, queries=f"[{low}, {high})")
        assert row.estimate == pytest.approx(expected.leakage(range(low, high)).sum(), rel=1e-8)


def test_shares_equal_brute_force_pooled_and_by_head(dump, oracle):
    options = {"n_resamples": 99, "octaves": False}
    pooled = ps.shares(dump, **options).table
    by_head = ps.shares(dump, by=["layer", "head"], **options).table
    for condition, expected in oracle.items():
        for term in TERMS:
            row = pick(pooled, condition=condition, queries="all", term=term)
            assert row.estimate == pytest.approx(float(expected.pooled_shares()[term]), rel=1e-8, abs=1e-9)
            values = expected.shares()[term]
            for layer, head in np.ndindex(2, 2):
                row = pick(by_head, condition=condition, term=term, layer=layer, head=head)
                assert row.estimate == pytest.approx(values[layer, head], rel=1e-8, abs=1e-9)
    assert (by_head.note == "").all()


def test_shares_by_octave_equal_brute_force(dump, oracle):
    table = ps.shares(dump, n_resamples=99).table
    for low, high in octave_bins(QUERIES):
        for term in TERMS:
            row = pick(table, condition="baseline", queries=f"[{low}, {high})", term=term)
            expected = oracle["baseline"].pooled_shares(range(low, high))[term]
            assert row.estimate == pytest.approx(float(expected), rel=1e-8, abs=1e-9)


def test_magnitude_equals_brute_force(dump, oracle):
    table = ps.magnitude(dump, n_resamples=99).table
    by_layer = ps.magnitude(dump, by="layer", n_resamples=99).table
    for condition, expected in oracle.items():
        for label, queries in bins().items():
            for term in ("log_attention", "mask", "sink", "redistribution", "residual"):
                values = expected.magnitude(term, queries)
                row = pick(table, condition=condition, queries=label, term=term)
                assert row.estimate == pytest.approx(values.sum(), rel=1e-8, abs=1e-9)
                row = pick(by_layer, condition=condition, queries=label, term=term, layer=1)
                assert row.estimate == pytest.approx(values[1].sum(), rel=1e-8, abs=1e-9)


def test_removal_equals_brute_force(dump, oracle):
    table = ps.removal(dump, "bos=mean", n_resamples=99).table
    for label, queries in bins().items():
        row = pick(table, queries=label)
        for column, name in (("magnitude", "bos=mean"), ("baseline_magnitude", "baseline")):
            assert row[column] == pytest.approx(oracle[name].magnitude("residual", queries).sum(), rel=1e-8, abs=1e-9)
        expected = brute.removal(oracle["baseline"], oracle["bos=mean"], queries)
        assert row.estimate == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("order", ["shapley", "mask_first", "mask_last"])
def test_size_equals_brute_force(dump, order):
    table = ps.size(dump, order=order, n_resamples=99).table
    expected = brute.BruteDump(dump, "baseline", order=order)
    for label, queries in {"all": None, **bins()}.items():
        for term in ("log_attention", "mask", "sink", "redistribution", "residual"):
            if label != "[2, 16)":
                row = pick(table, condition="baseline", queries=label, term=term)
                assert row.estimate == pytest.approx(expected.size(term, queries).sum(), rel=1e-8, abs=1e-9)


def test_leakage_by_offset_adds_up(dump, oracle):
    table = ps.leakage(dump, by=["layer", "head", "offset"], octaves=False).table
    expected = oracle["baseline"].cross_by_offset("log_attention", "log_attention")
    for (layer, head, o), value in np.ndenumerate(expected):
        row = pick(table, condition="baseline", layer=layer, head=head, offset=OFFSETS[o])
        assert row.estimate == pytest.approx(value, rel=1e-8)
    whole = ps.leakage(dump, octaves=False).table.estimate
    by_condition = table.groupby("condition", sort=False).estimate.sum()
    np.testing.assert_allclose(by_condition, whole, rtol=1e-10)


def test_shares_in_either_order_equal_brute_force(dump):
    tables = {order: ps.shares(dump, order=order, octaves=False).table for order in ("mask_first", "mask_last")}
    for order, table in tables.items():
        expected = brute.BruteDump(dump, "baseline", order=order).pooled_shares()
        rows = table[table.condition == "baseline"].set_index("term")
        assert rows.estimate["mask"] == rows.estimate[order]
        for term in TERMS:
            assert rows.estimate[term] == pytest.approx(expected[term], rel=1e-8, abs=1e-9)


def test_ratios_without_significant_denominators_are_printed():
    noise = Noise(condition=0.5)
    ds = ps.simulate(n=40, length=48, strength=0.0, conditions=["baseline", "bos=mean"], noise=noise, seed=1).dataset
    table = ps.removal(ds, "bos=mean", n_resamples=99).table
    assert (table.note == "").all()
    assert table.low.notna().all()
    assert (table.baseline_q > 0.05).any()


def test_offsets_restrict_the_estimate(dump):
    restricted = ps.leakage(dump, offsets=[0, 1], octaves=False, n_resamples=99).table
    oracle = brute.BruteDump(dump.sel(offset=[0, 1]), "baseline")
    assert restricted.estimate[0] == pytest.approx(oracle.leakage().sum(), rel=1e-8)


def test_bootstrap_limits_stand_beside_those_of_moments(dump):
    """Limits of replicates, of which each and its errors come from the estimator's brute force."""
    weights = document_weights(6, 99, seed=5)
    sequences = np.array([1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    assert np.bincount(np.unique(dump.document, return_inverse=True)[1]).tolist() == sequences.tolist()

    def at(w):
        return brute.BruteDump(dump, "baseline", weights=w).leakage().sum()

    values = [at(w) for w in weights]
    errors = [
        jackknife_error(np.array([at(w - one) if w @ one and np.count_nonzero(w - one) > 1 else at(w)
                                  for one in np.eye(6)]), w)
        for w in weights[:3]
    ]  # fmt: skip
    row = ps.leakage(dump, octaves=False, n_resamples=99, seed=5).table.iloc[0]
    assert row.method == "moments"
    grams = sum(
        leakage_statistics(field, analysed_queries(dump.sizes["query"], dump.offset.values), dump.offset.values)
        .gram[:, 0].sum(axis=0)
        for block in field_blocks(select_condition(ps.decompose(dump), "baseline")) for field in block.fields()
    )  # fmt: skip
    found = replicates(grams, sequences, weights)
    np.testing.assert_allclose(found[0], values, rtol=1e-8)
    np.testing.assert_allclose(found[1][:3], errors, rtol=1e-8)
    left_out = np.array([at(1 - one) for one in np.eye(6)])
    spread = SquareSpread.of(at(np.ones(6)), left_out, grams, sequences)
    expected = bootstrap_square_interval(spread, *found)
    np.testing.assert_allclose([row.boot_low, row.boot_high], [expected.low, expected.high], rtol=1e-8)
    expected = square_interval(spread)
    np.testing.assert_allclose([row.low, row.high], [expected.low, expected.high], rtol=1e-8)


@pytest.mark.parametrize("method", CHOICES)
def test_every_interval_method_brackets_a_clear_estimate(method):
    ds = ps.simulate(n=30, length=48, seed=1).dataset
    for estimator in (ps.leakage, ps.shares):
        row = estimator(ds, octaves=False, method=method, n_resamples=400).sel(queries="all").table.iloc[-1]
        assert row.low < row.estimate < row.high
        assert row.low > 0


def test_rows_say_how_their_intervals_were_made(dump):
    made = {
        ("share", None, ()): "bootstrap_t", ("share", "t", ()): "fieller", ("share", None, "head"): "fieller",
        ("share", "bootstrap", "head"): "bootstrap_t", ("leakage", None, ()): "moments",
    }  # fmt: skip
    for (what, method, by), expected in made.items():
        estimator = ps.shares if what == "share" else ps.leakage
        found = estimator(dump, by=by, method=method, octaves=False, n_resamples=99)
        assert set(found.table.method) == {expected} == {found.settings["interval"]}
        drawn = method == "bootstrap" or (method is None and not by)
        assert ("n_resamples" in found.settings) == drawn
        assert ("boot_low" in found.table) == (drawn and what == "leakage")


def test_sets_of_shares_are_those_of_the_joint_jackknife(dump):
    """Numerator and denominator with all documents and without each, from the brute force."""
    sequences = np.array([1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    parts = [
        (one.cross("mask", "log_attention").sum(), one.cross("log_attention", "log_attention").sum())
        for one in (brute.BruteDump(dump, "baseline", weights=w) for w in [np.ones(6), *(1 - np.eye(6))])
    ]
    above, below = np.array(parts).T
    spread = JointSpread.of(above[0], below[0], above[1:], below[1:], sequences)
    row = pick(ps.shares(dump, method="t", octaves=False).table, condition="baseline", term="mask")
    expected = fieller_set(spread)
    assert row.set == ("interval", "rays", "line")[int(expected.shape)]
    limits = (row.low, row.high) if row.set == "interval" else (row.gap_low, row.gap_high)
    np.testing.assert_allclose(limits, (expected.low, expected.high), rtol=1e-3)
    assert row.p == pytest.approx(float(ratio_p(spread)), rel=1e-3)


def test_every_share_has_its_range_over_the_orders(dump):
    table = ps.shares(dump, octaves=False, n_resamples=99).table.query("condition == 'baseline'").set_index("term")
    by_order = [
        ps.shares(dump, order=order, octaves=False, method="t").table.query("condition == 'baseline'")
        .set_index("term").estimate
        for order in ("mask_first", "mask_last")
    ]  # fmt: skip
    for term in ("mask", "sink", "redistribution", "residual"):
        ends = sorted(one[term] for one in by_order)
        np.testing.assert_allclose(table.loc[term, ["order_low", "order_high"]].astype(float), ends, rtol=1e-12)
        assert ends[0] <= table.estimate[term] + 1e-12 <= ends[1] + 2e-12


def test_no_interval_of_a_mean_of_squares_lies_below_0_and_weak_ratios_have_sets_without_end():
    seen = set()
    for seed in range(12):
        conditions, noise = ["baseline", "bos=mean"], Noise(condition=0.5)
        ds = ps.simulate(n=16, length=48, strength=0.0, conditions=conditions, noise=noise, seed=seed).dataset
        for squares in (ps.leakage(ds, n_permutations=9), ps.magnitude(ds, n_permutations=9)):
            table = squares.table
            assert (table.low >= 0).all()
            assert (table.high >= 0).all()
        table = ps.removal(ds, "bos=mean", n_permutations=9, n_resamples=199).table
        seen |= set(table.set)
        rays = table[table.set == "rays"]
        assert (rays.gap_low < rays.gap_high).all()
        assert np.isinf(rays[["low", "high"]]).all(axis=None)
        assert ((rays.estimate <= rays.gap_low) | (rays.estimate >= rays.gap_high)).all()
        assert table[table.set != "rays"].gap_low.isna().all()
    assert {"rays", "line"} <= seen


def test_the_interval_and_the_p_of_a_ratio_agree():
    """A set holds 0 just where the test of 0 does not reject, t or bootstrap."""
    for seed in range(6):
        ds = ps.simulate(n=24, length=64, layers=2, seed=seed).dataset
        for method in ("t", "bootstrap"):
            table = ps.shares(ds, by="layer", method=method, n_resamples=399, n_permutations=9).table.dropna(subset="p")
            inside = (table.low <= 0) & (table.high >= 0)
            gap = (table.gap_low < 0) & (table.gap_high > 0)
            # The p of B replicates is a multiple of 1 / (B + 1), and so is that at which the set is cut.
            decided = (table.p - 0.05).abs() > 1 / 400
            assert ((inside & ~gap) == (table.p > 0.05))[decided].all()


def test_one_seed_gives_one_result_and_prefixes_agree(dump):
    first = ps.shares(dump, by="layer", n_resamples=99, seed=3, method="bootstrap").table
    pd.testing.assert_frame_equal(first, ps.shares(dump, by="layer", n_resamples=99, seed=3, method="bootstrap").table)
    other = ps.shares(dump, by="layer", n_resamples=99, seed=4, method="bootstrap").table
    assert not first.low.equals(other.low)
    # Layers in another order, or lazily in chunks: not a bit changes.
    reversed_layers = ps.shares(
        dump.isel(layer=[1, 0]), by="layer", n_resamples=99, seed=3, method="bootstrap"
    ).table.sort_values(["condition", "layer"], kind="stable")
    lazy = ps.shares(dump.chunk(layer=1, condition=1), by="layer", n_resamples=99, seed=3, method="bootstrap").table
    pd.testing.assert_frame_equal(first, reversed_layers.reset_index(drop=True))
    pd.testing.assert_frame_equal(first, lazy)


def test_terms_and_dump_give_the_same_result(dump):
    options = {"n_resamples": 99, "octaves": False}
    pd.testing.assert_frame_equal(ps.shares(dump, **options).table, ps.shares(ps.decompose(dump), **options).table)


def test_nothing_is_withheld_for_want_of_significance():
    ds = ps.simulate(n=40, length=48, conditions={"baseline": Effects(flat=True)}, seed=2).dataset
    table = ps.shares(ds, octaves=False, n_resamples=99).table
    assert (table.leakage_q > 0.05).all()
    assert table.estimate.notna().all()
    quiet = Noise(logit=0.0, denominator=0.0, sink=0.0)
    ds = ps.simulate(n=40, length=48, conditions={"baseline": Effects(flat=True)}, noise=quiet).dataset
    table = ps.shares(ds, octaves=False, n_resamples=99).table
    assert (table.note == "no leakage beyond rounding").all()
    assert table.estimate.isna().all()


def test_documents_counted_twice_are_noted(tmp_path):
    ds = ps.simulate(n=6, length=20, offsets=(0, 1), seed=0).dataset
    assert "not independent" not in ps.shares(ds, octaves=False).notes[-1]
    again = ds.assign_coords(
        document=("sequence", [f"copy of {name}" for name in ds.document.values]),
        sequence=ds.sequence + len(ds.sequence),
    )
    twice = xr.concat(
        [ds, again.isel(sequence=slice(0, 4))], "sequence", data_vars="minimal", coords="minimal", compat="override"
    )
    note = "4 of 10 documents have the tokens of another: they are not independent"
    assert note in ps.shares(twice, octaves=False).notes
    assert note in ps.claims(twice, which=["C2"]).notes
    table = headline_table([], {"twice": write_dump(twice, tmp_path / "t.h5")}, 0.95)
    assert f"; {note}; only 10 documents" in table.notes[1]


def test_a_head_that_holds_nothing_but_rounding_is_no_finding():
    ds = ps.simulate(n=24, length=32, heads=2, offsets=(0, 1), conditions=["baseline", "bos=mean"], seed=0).dataset
    dead = {"head": 1}  # one whose queries are 0: uniform attention, of which only the mask tells the position
    for name in ("logit", "sink_logit", "steady_logit"):
        ds[name][dead] = ds[name][dead] * 0.0
    with np.errstate(divide="ignore"):
        keys = xr.DataArray(np.log(np.arange(16.0)), dims="query")
    ds["log_denominator_rest"][dead] = xr.zeros_like(ds["log_denominator_rest"][dead]) + keys
    ds["steady_log_sum"][dead] = 0.0 * ds["steady_log_sum"][dead] + np.log(np.arange(1.0, 17.0))
    ds = sealed(ds)
    table = ps.shares(ds, by="head", octaves=False).table.query("head == 1").set_index("term")
    assert table.estimate["mask"].tolist() == pytest.approx([1.0, 1.0])
    assert table.estimate["residual"].abs().max() < 1e-12
    assert table.p[["mask", "mask_first", "mask_last"]].isna().all()
    assert (table.p[["sink", "redistribution", "residual"]] == 1).all()
    assert (table.note["mask"] == "documents do not differ beyond rounding: no test").all()
    assert (table.note["residual"] == "nothing beyond rounding").all()
    removed = ps.removal(ds, "bos=mean", by="head").table.query("head == 1")
    assert removed.estimate.isna().all()
    assert (removed.note == "nothing to remove beyond rounding").all()


def test_known_removal_is_recovered():
    simulation = ps.simulate(n=64, length=48, strength=3.0, conditions=["baseline", "bos=zero"], removal=0.4, seed=0)
    row = pick(ps.removal(simulation.dataset, "bos=zero", n_resamples=200).table, queries="[2, 16)")
    assert row.low < simulation.truth.removal("bos=zero", range(2, 16)) < row.high
    assert row.high - row.low < 0.4


def test_result_faces(dump):
    result = ps.shares(dump, by="layer", octaves=False, n_resamples=99)
    assert "layer" in result.summary()
    assert "<table" in result._repr_html_()
    assert repr(result) == result.summary()
    ds = result.to_dataset()
    assert set(ds.sizes) == {"condition", "layer", "queries", "term"}
    assert ds.estimate.attrs["units"] == "1"
    assert "resampling unit document" in result.summary()
    frame = result.to_dataframe()
    frame.loc[:, "estimate"] = 0.0
    assert not result.table.estimate.eq(0).all()


def test_results_refuse_parts_that_miss_the_whole(dump):
    result = ps.shares(dump, octaves=False, n_resamples=99)
    wrong = result.table.copy()
    wrong.loc[wrong.term == "mask", ["estimate", "high"]] += 0.1
    with pytest.raises(NumericalError, match="miss the whole"):
        type(result)(wrong, result.settings)


class TestRefusals:
    def test_few_documents(self, dump):
        with pytest.raises(DesignError, match=r"4 documents.* at least 5"):
            ps.leakage(dump.isel(sequence=[0, 1, 3, 4]))

    def test_few_documents_are_a_warning_in_the_table(self, dump):
        with pytest.warns(FewDocumentsWarning, match=r"6 documents of unequal size count as 5\.4"):
            result = ps.leakage(dump, octaves=False, n_resamples=99)
        assert "6 documents of unequal size count as 5.4" in result.summary()
        with pytest.warns(FewDocumentsWarning, match="only 6 documents"):
            ps.leakage(dump.isel(sequence=[0, 1, 3, 4, 5, 6]), octaves=False, n_resamples=99)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "wald"}, "'t', 'bootstrap'"),
            ({"level": 95}, "between 0 and 1"),
            ({"n_resamples": 98}, "whole number from 99"),
            ({"by": ["query"]}, "layer"),
            ({"offsets": [7]}, "must be chosen from 0, 1, 3"),
            ({"adjust": "bonferroni"}, "bh"),
            ({"seed": -1}, "from 0 to"),
        ],
    )
    def test_options(self, dump, options, message):
        with pytest.raises(InputError, match=message):
            ps.leakage(dump, **options)

    def test_unknown_condition(self, dump):
        with pytest.raises(InputError, match="chosen from bos=mean; there is no bos=zero"):
            ps.removal(dump, "bos=zero")

    def test_not_a_dump(self):
        with pytest.raises(InputError, match="lacks logit"):
            ps.leakage(xr.Dataset({"x": 1}))

    def test_nan_logits(self, dump):
        broken = dump.copy(deep=True)
        broken.logit[0, 2, 1, 0, 10, 0] = np.nan
        with pytest.raises(NumericalError, match="do not add up"):
            ps.leakage(broken)

    def test_infinite_logits(self, dump):
        broken = dump.copy(deep=True)
        broken.sink_logit[0, 2, 1, 0, 10] = np.inf
        with pytest.raises(NumericalError, match="infinite"):
            ps.leakage(sealed(broken))

    def test_offset_outside_the_window(self):
        ds = brute.dump_dataset({"baseline": logits(1)}, DOCUMENTS, OFFSETS, visible=brute.causal(LENGTH, window=3))
        with pytest.raises(DesignError, match=r"\[3\] lie outside the window of layer 0, which shows 3 keys"):
            ps.leakage(ds)
        assert ps.leakage(ds, offsets=[0, 1], octaves=False, n_resamples=99).table.estimate.notna().all()
