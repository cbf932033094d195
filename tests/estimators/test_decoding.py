"""Decoding from a labelled dump: against the kernels on features built by hand, closed forms, and refusals."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import posstats as ps
from posstats.errors import DesignError, FewDocumentsWarning, InputError, NumericalError
from posstats.estimators.decoding import decode, discriminate
from posstats.stats.decoding import scores as kernels
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.inference.resample import jackknife_error
from posstats.stats.synthetic.design import Noise
from tests import brute
from tests.refused import refused
from tests.sealed import sealed

OFFSETS, LENGTH = (0, 1, 4), 40
SCORES = ("denominator", "residual", "both")
pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")


@pytest.fixture(scope="module")
def dump():
    """Two layers, two conditions, documents of one to three sequences."""
    counts = [1, 3, 1, 2, 1, 1, 2, 1, 1, 1, 2, 1]
    return ps.simulate(
        n=12, sequences_per_document=counts, length=LENGTH, layers=2, heads=2, offsets=OFFSETS,
        conditions=["baseline", "bos=mean"], seed=3,
    ).dataset  # fmt: skip


@pytest.fixture(scope="module")
def windowed():
    """The first layer sees everything, the second 8 keys."""
    return ps.simulate(n=12, length=LENGTH, layers=2, heads=2, offsets=OFFSETS, window=[None, 8], seed=4).dataset


@pytest.fixture(scope="module")
def with_stream(dump):
    probes = [2, 6, 10, 20, 30, 39]
    depth = np.arange(3)
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(2, dump.sizes["sequence"], 3, len(probes), 8))
    sample[..., 0] += depth[:, None] * np.log2(np.array(probes) + 1.0)  # the deeper, the clearer
    ds = dump.assign(residual_sample=(("condition", "sequence", "depth", "probe", "hidden"), sample))
    return ds.assign_coords(probe=probes)


def features(ds, condition, layer, queries):
    """Features of both groups, loop by loop."""
    one = ds.sel(condition=condition, layer=layer)
    sink, rest, logit = (one[name].values for name in ("sink_logit", "log_denominator_rest", "logit"))
    n_heads = ds.sizes["head"]
    denominator = np.empty((ds.sizes["sequence"], len(queries), n_heads))
    residual = np.empty((ds.sizes["sequence"], len(queries), n_heads * (1 + len(OFFSETS))))
    for n, (k, i), h in itertools.product(range(len(denominator)), enumerate(queries), range(n_heads)):
        denominator[n, k, h] = np.log(np.exp(rest[n, h, i]) + np.exp(sink[n, h, i]))
        residual[n, k, h] = sink[n, h, i]
        residual[n, k, n_heads + h * len(OFFSETS) : n_heads + (h + 1) * len(OFFSETS)] = logit[n, h, i]
    return denominator, residual


def pick(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    return table.set_index("part")


@pytest.mark.parametrize("condition", ["baseline", "bos=mean"])
def test_decode_equals_the_kernel_on_features_built_by_hand(dump, condition):
    queries = np.arange(max(OFFSETS) + 1, LENGTH - 1)
    result = decode(dump, n_folds=4, seed=7, level=0.9)
    for layer in (0, 1):
        denominator, residual = features(dump, condition, layer, queries)
        expected = kernels.decode(denominator, residual, queries, dump.document.values, n_folds=4, seed=7)
        rows = pick(result.table, condition=condition, layer=layer)
        parts, left_out = expected.parts(), expected.left_out_parts()
        for name, row in rows.iterrows():
            estimate, se = getattr(parts, name), jackknife_error(getattr(left_out, name))
            np.testing.assert_allclose([row.estimate, row.se], [estimate, se], rtol=1e-8)
            half = stats.t.ppf(0.95, 11) * se
            np.testing.assert_allclose([row.low, row.high], [estimate - half, estimate + half], rtol=1e-8)
            np.testing.assert_allclose(row.p, 2 * stats.t.sf(abs(estimate / se), 11), rtol=1e-6)
    assert result.settings["n_queries"] == len(queries)
    assert "12 documents of unequal size count as 10.0" in result.summary()


def test_parts_are_complete_and_families_are_layers(dump):
    table = decode(dump).table
    assert len(table) == 2 * 2 * 8
    assert table.columns.tolist() == [
        "condition", "layer", "part", "estimate", "se", "low", "high", "p", "q", "note",
    ]  # fmt: skip
    wide = table.pivot(index=["condition", "layer"], columns="part", values="estimate")
    np.testing.assert_allclose(wide.shapley_denominator + wide.shapley_residual, wide.both)
    np.testing.assert_allclose(wide.unique_residual + wide.common, wide.residual)
    for _, family in table.groupby(["condition", "part"]):
        np.testing.assert_allclose(family.q, adjust(family.p.to_numpy()).q)


def test_denominator_of_uniform_attention_is_a_perfect_clue():
    """Equal logits without content: log Z = log(i + 1), and the residual features know nothing."""
    n, length = 10, 24
    uniform = np.zeros((n, 1, length, length))
    rng = np.random.default_rng(0)
    uniform += 1e-3 * rng.normal(size=uniform.shape)  # R-squared of constants would have no interval
    ds = brute.dump_dataset({"baseline": uniform}, list(range(n)), OFFSETS)
    rows = pick(decode(ds).table)
    assert rows.estimate["denominator"] > 0.9999
    assert abs(rows.estimate["residual"]) < 0.05
    np.testing.assert_allclose(rows.estimate["shapley_denominator"], 1, atol=0.03)


def test_sink_logit_tells_the_position_where_offset_logits_cannot():
    """Logits that depend on the offset alone: the one on position 0 is at offset i."""
    length = 32
    lag = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    relative = -np.sqrt(lag) + 1e-3 * np.random.default_rng(0).normal(size=(10, 1, length, length))
    ds = brute.dump_dataset({"baseline": relative}, list(range(10)), OFFSETS)
    assert pick(decode(ds).table).estimate["residual"] > 0.95
    assert abs(pick(decode(ds, features="offset_logits").table).estimate["residual"]) < 0.05


def test_lazy_data_layers_and_order_change_nothing(dump):
    table = decode(dump).table
    pd.testing.assert_frame_equal(table, decode(dump.chunk(layer=1, condition=1)).table)
    swapped = decode(dump, layers=[1, 0]).table.sort_values(["condition", "layer"], kind="stable")
    pd.testing.assert_frame_equal(table, swapped.reset_index(drop=True))
    single = decode(dump.sel(condition="baseline"), layers=[1]).table
    columns = ["estimate", "se", "low", "high", "p"]
    expected = pick(table, condition="baseline", layer=1)[columns]
    pd.testing.assert_frame_equal(single.set_index("part")[columns], expected)
    assert not decode(dump, seed=1).table.estimate.equals(table.estimate)


def test_documents_are_never_split(dump):
    """Three copies of every sequence within its own document: no new evidence, so nothing changes."""
    once = dump.isel(sequence=[0, 1, 4, 5, 7, 8, 9, 11, 12, 13])
    tripled = once.isel(sequence=np.repeat(np.arange(10), 3))
    for question in (decode, lambda ds: discriminate(ds, 8, 30)):
        first, second = question(once).table, question(tripled).table
        np.testing.assert_allclose(first.estimate, second.estimate, atol=1e-9)
        np.testing.assert_allclose(first.se, second.se, atol=1e-9)


def test_window_leaves_the_sink_logit_out_and_says_so(windowed):
    queries = np.arange(max(OFFSETS) + 1, LENGTH - 1)
    table = decode(windowed).table
    assert (table[table.layer == 0].note == "").all()
    assert table[table.layer == 1].note.str.contains("sink logit left out").all()
    one = windowed.sel(condition="baseline", layer=1)
    rest = one.log_denominator_rest.transpose("sequence", "query", "head").values[:, queries]
    sink = one.sink_logit.transpose("sequence", "query", "head").values[:, queries]
    denominator = np.log(np.exp(rest) + np.nan_to_num(np.exp(sink)))
    logit = one.logit.transpose("sequence", "query", "head", "offset").values[:, queries]
    expected = kernels.decode(denominator, logit.reshape(12, len(queries), -1), queries, windowed.document.values)
    for name in SCORES:
        row = pick(table, layer=1).loc[name]
        np.testing.assert_allclose(row.estimate, getattr(expected.parts(), name), rtol=1e-8)
    # Two positions that both see position 0 keep its logit.
    assert not discriminate(windowed, 5, 7).table.note.str.contains("sink logit").any()


def test_stream_features_are_those_the_layer_reads(dump, with_stream):
    table = decode(with_stream, features="stream", n_folds=4).table
    probes = [6, 10, 20, 30]  # 2 is within the largest offset, 39 is the last query
    for layer in (0, 1):
        denominator, _ = features(dump, "baseline", layer, probes)
        stream = with_stream.residual_sample.sel(condition="baseline", depth=layer).values[:, 1:5]
        expected = kernels.decode(denominator, stream, probes, dump.document.values, n_folds=4).parts()
        rows = pick(table, condition="baseline", layer=layer)
        np.testing.assert_allclose(rows.estimate["residual"], expected.residual, rtol=1e-8)
        np.testing.assert_allclose(rows.estimate["both"], expected.both, rtol=1e-8)
    assert pick(table, condition="baseline", layer=1).estimate["residual"] > 0.2
    separate = discriminate(with_stream, 6, 30, features="stream", n_folds=4)
    assert separate.settings["features"] == "stream"


class TestDiscriminate:
    def test_equals_the_kernel_with_intervals_on_the_logit_scale(self, dump):
        result = discriminate(dump, 20, 26, n_folds=4, seed=2)
        checked = 0
        for layer in (0, 1):
            denominator, residual = features(dump, "bos=mean", layer, [20, 26])
            expected = kernels.discriminate(denominator, residual, dump.document.values, n_folds=4, seed=2)
            rows = pick(result.table, condition="bos=mean", layer=layer)
            errors = jackknife_error(expected.left_out.T)
            for name, auc, se in zip(SCORES, expected.auc(), errors, strict=True):
                assert rows.estimate[name] == pytest.approx(auc)
                if 0 < auc < 1:
                    half = stats.t.ppf(0.975, 11) * se / (auc * (1 - auc))
                    odds = np.exp(np.log(auc / (1 - auc)) + half * np.array([-1, 1]))
                    np.testing.assert_allclose(rows.loc[name, ["low", "high"]].astype(float), odds / (1 + odds))
                    p = 2 * stats.t.sf(abs(auc - 0.5) / se, 11)
                    assert rows.p[name] == pytest.approx(max(p, 2 * 0.5**expected.n_independent))
                    checked += 1
        assert checked >= 3

    def test_ceiling_is_bounded_and_said(self):
        ds = ps.simulate(n=24, length=LENGTH, heads=3, noise=Noise(0.1, 0.01, 0.01), seed=1).dataset
        result = discriminate(ds, 10, 35, level=0.9)
        rows = pick(result.table)
        pairs = 10  # folds of 5, 5, 5, 5 and 4 documents
        assert rows.estimate["denominator"] == 1
        assert rows.low["denominator"] == pytest.approx(stats.binomtest(pairs, pairs).proportion_ci(0.9, "exact").low)
        assert rows.high["denominator"] == 1
        assert rows.p["denominator"] == pytest.approx(stats.binomtest(pairs, pairs).pvalue)
        assert "exact binomial limit over 10 disjoint pairs" in rows.note["denominator"]
        parts = rows.drop(list(SCORES))
        assert parts[["se", "low", "high", "p", "q"]].isna().all(axis=None)
        assert parts.note.str.contains("at its limit").all()
        np.testing.assert_allclose(
            rows.estimate["shapley_denominator"] + rows.estimate["shapley_residual"], rows.estimate["both"] - 0.5
        )

    def test_scores_that_do_not_vary_have_no_interval(self):
        """All attention features equal at both positions: every comparison ties."""
        ds = ps.simulate(n=12, length=LENGTH, heads=1, offsets=OFFSETS, seed=1).dataset
        blind = ds.copy(deep=True)
        for name in ("logit", "sink_logit", "log_denominator_rest"):
            blind[name][:] = 1.0
        rows = pick(discriminate(sealed(blind), 10, 20).table)
        assert (rows.estimate[list(SCORES)] == 0.5).all()
        assert rows[["se", "low", "high", "p"]].isna().all(axis=None)
        assert rows.note.str.contains("does not vary").all()

    def test_positions_must_be_analysed(self, dump, with_stream):
        for first, second in ((4, 20), (20, 39), (20, 20), (30, 20)):
            refused(InputError, r"among 5 .. 38 \(max offset < i < T - 1\)", discriminate, dump, first, second)
        refused(InputError, r"among 6, 10, 20, 30 .*probes only", discriminate, with_stream, 6, 12, features="stream")

    def test_folds_need_two_documents_each(self, dump):
        refused(DesignError, "at most 6 folds", discriminate, dump, 10, 20, n_folds=7)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"features": "values"}, "'logits', 'offset_logits', 'stream'"),
            ({"features": "stream"}, "probes.*lacks residual_sample"),
            ({"layers": [0, 7]}, "chosen from 0, 1; there is no 7"),
            ({"layers": []}, "at least one entry"),
            ({"offsets": [3]}, "chosen from 0, 1, 4; there is no 3"),
            ({"n_folds": 2}, "from 3 to"),
            ({"level": 1.5}, "between 0 and 1"),
            ({"seed": -1}, "from 0 to"),
            ({"adjust": "none"}, "bh"),
        ],
    )
    def test_options(self, dump, options, message):
        refused(InputError, message, decode, dump, **options)

    def test_terms_are_not_a_dump(self, dump):
        refused(InputError, r"reads a dump.*lacks logit", decode, ps.decompose(dump))

    def test_documents(self, dump):
        refused(DesignError, r"2 documents.* at least 5", decode, dump.isel(sequence=[0, 1]))
        refused(DesignError, "12 documents cannot be split into 13 folds", decode, dump, n_folds=13)
        with pytest.warns(FewDocumentsWarning, match=r"12 documents of unequal size count as 10\.0"):
            decode(dump)

    def test_offset_outside_the_window(self):
        ds = ps.simulate(n=12, length=LENGTH, offsets=OFFSETS, window=3, seed=4).dataset
        refused(DesignError, r"\[4\] lie outside the window of layer 0", decode, ds)
        assert decode(ds, offsets=[0, 1]).table.estimate.notna().all()

    def test_too_few_probes(self, with_stream):
        with pytest.raises(DesignError, match=r"1 of the probes \[2, 39, 20\]"):
            decode(with_stream.sel(probe=[2, 39, 20]), features="stream")

    @pytest.mark.parametrize("name", ["logit", "sink_logit", "log_denominator_rest"])
    def test_nan_is_not_taken_for_a_window(self, dump, name):
        broken = dump.copy(deep=True)
        broken[name][0, 2, 1, 0, 10] = np.nan
        refused(NumericalError, "must be finite", decode, broken)

    def test_results_refuse_parts_that_miss_the_whole(self, dump):
        result = decode(dump)
        for part in ("shapley_residual", "common"):
            wrong = result.table.copy()
            wrong.loc[wrong.part == part, ["estimate", "high"]] += 0.1
            with pytest.raises(NumericalError, match="miss the whole"):
                type(result)(wrong, result.settings)


def test_result_faces(dump):
    result = discriminate(dump, 10, 30)
    ds = result.to_dataset()
    assert dict(ds.sizes) == {"condition": 2, "layer": 2, "part": 8}
    assert ds.estimate.attrs["units"] == "1"
    assert "first 10, second 30" in result.summary()
    assert "<table" in result._repr_html_()
