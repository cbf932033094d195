"""Sinks: attention on position 0 against loops and scipy, and models whose sinks follow the token or the position."""

import numpy as np
import pytest
from scipy import stats

import posstats as ps
from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.position0 import late_attention
from tests import constructed, position0
from tests.refused import refused
from tests.sealed import sealed

CONDITIONS = ["baseline", "bos=none", "bos=token:5", "bos@8", "bos@20", "shift=3"]


@pytest.fixture(scope="module")
def ds():
    return position0.synthetic()


@pytest.fixture(scope="module")
def result(ds):
    return ps.sinks(ds)


def by_sequence(ds, condition="baseline"):
    """Mean attention of every sequence, layer and head, by loops."""
    shape = ds.sizes["sequence"], ds.sizes["layer"], ds.sizes["head"]
    return np.array([position0.attention(ds, condition, *at) for at in np.ndindex(shape)]).reshape(shape)


class TestAttention:
    def test_estimate_interval_and_test_of_a_mean(self, ds, result):
        values = by_sequence(ds)
        rows = result.table[result.table.condition == "baseline"].set_index(["layer", "head"])
        for layer, head in np.ndindex(values.shape[1:]):
            x, row = values[:, layer, head], rows.loc[(layer, head)]
            test = stats.ttest_1samp(x, 0.3)
            assert row.estimate == pytest.approx(x.mean(), abs=1e-12)
            assert row.p == pytest.approx(test.pvalue, rel=1e-6)
            limits = test.confidence_interval(0.95)
            np.testing.assert_allclose([row.low, row.high], limits, rtol=1e-9)

    def test_family_is_all_heads_of_a_condition(self, result):
        for _, rows in result.table.groupby("condition"):
            np.testing.assert_allclose(rows.q, adjust(rows.p.to_numpy()).q)

    def test_sink_reading_takes_estimate_and_q(self, result):
        table = result.table
        expected = (table.estimate > 0.3) & (table.q < 0.05)
        assert (table.sink_reading == expected).all()
        assert 0 < expected.sum() < len(expected)
        # Significantly below the threshold is not sink-reading.
        assert ((table.estimate < 0.3) & (table.q < 0.05)).any()

    def test_sequences_of_a_document_are_one_unit(self):
        ds = position0.synthetic(n=8, sequences_per_document=[1, 2, 1, 1, 3, 1, 1, 2])
        with pytest.warns(ps.errors.FewDocumentsWarning):
            row = ps.sinks(ds).table.iloc[0]
        x = by_sequence(ds)[:, 0, 0]
        assert row.estimate == pytest.approx(x.mean())
        documents = ds.document.values
        left_out = np.array([x[documents != label].mean() for label in np.unique(documents)])
        assert row.se == pytest.approx(np.sqrt(7 / 8 * ((left_out - left_out.mean()) ** 2).sum()))

    def test_fraction_and_ratio_of_norms(self, ds, result):
        row = result.table.iloc[4]
        at = {"condition": row.condition, "layer": row.layer, "head": row["head"]}
        assert row.output_fraction == pytest.approx(float(ds.sink_output_fraction.sel(at).mean()))
        first, others = (ds[name].sel(at).values for name in ("sink_value_norm", "value_norm"))
        assert row.value_norm_ratio == pytest.approx(first.sum() / others.sum())
        left_out = [np.delete(first, g).sum() / np.delete(others, g).sum() for g in range(len(first))]
        error = np.sqrt(23 / 24 * ((left_out - np.mean(left_out)) ** 2).sum())
        half = stats.t.ppf(0.975, 23) * error
        np.testing.assert_allclose(
            [row.value_norm_ratio_low, row.value_norm_ratio_high],
            [row.value_norm_ratio - half, row.value_norm_ratio + half],
        )

    def test_without_value_norms_the_rest_stands(self, ds, result):
        found = ps.sinks(ds.drop_vars(["value_norm", "sink_value_norm"]))
        assert found.table.value_norm_ratio.isna().all()
        assert any("no value norms" in note for note in found.notes)
        np.testing.assert_array_equal(found.table.estimate, result.table.estimate)

    @pytest.mark.parametrize("method", ["t", "bootstrap"])
    def test_every_interval_method(self, ds, result, method):
        found = ps.sinks(ds.sel(condition=["baseline"]), method=method, n_resamples=400).table
        reference = result.table[result.table.condition == "baseline"]
        width = found.high - found.low
        np.testing.assert_allclose(width, reference.high - reference.low, rtol=0.4)
        assert found.estimate.between(found.low, found.high).all()


class TestEdges:
    def test_window_that_hides_position_0(self):
        ds = position0.synthetic(window=[None, 8])
        rows = ps.sinks(ds).table
        hidden = rows[rows.layer == 1]
        assert (hidden.estimate == 0).all()
        assert not hidden.sink_reading.any()
        assert hidden[["se", "low", "high", "p", "q"]].isna().all(axis=None)
        assert hidden.note.str.contains("outside the window at every query").all()
        family = rows[(rows.condition == "baseline") & (rows.layer == 0)]
        np.testing.assert_allclose(family.q, adjust(family.p.to_numpy()).q)

    def test_window_that_hides_position_0_from_late_queries(self):
        ds = position0.synthetic(window=[None, 24])
        rows = ps.sinks(ds.sel(condition=["baseline"])).table.set_index(["layer", "head"])
        assert "seen by 8 of the 24 queries" in rows.note[1, 0]
        assert rows.note[0, 0] == ""
        assert rows.estimate[1, 0] == pytest.approx(by_sequence(ds)[:, 1, 0].mean())

    def test_documents_that_do_not_differ(self, ds):
        same = ds.copy(deep=True)
        for name in ("sink_logit", "log_denominator_rest"):
            same[name].values[:] = same[name].values[:, :1]
        row = ps.sinks(sealed(same)).table.iloc[0]
        assert row.p == pytest.approx(2 * 0.5**24)
        assert row[["se", "low", "high"]].isna().all()
        assert "sign test" in row.note
        assert row.sink_reading

    def test_not_finite(self, ds):
        broken = ds.copy(deep=True)
        broken["sink_logit"].values[0, 0, 0, 0, 20] = np.nan
        refused(NumericalError, "sink_logit must be a number", ps.sinks, sealed(broken))

    def test_bad_input(self, ds):
        refused(DesignError, "i >= 16", ps.sinks, position0.synthetic(length=16))
        refused(InputError, "epsilon", ps.sinks, ds, epsilon=1.0)
        refused(InputError, "sink_output_fraction", ps.sinks, ps.decompose(ds))
        refused(InputError, "anchor_attention", ps.sinks, ds.drop_vars("anchor_attention"))
        refused(InputError, "bh", ps.sinks, ds, adjust="none")

    def test_learned_sink_belongs_to_the_denominator(self):
        rest = np.log(3 + np.exp(1.0))  # three keys of logit 0 and a learned sink of 1
        found = late_attention(np.array([0.0]), np.array([rest]), np.array([4]), first=0)
        assert found == pytest.approx(1 / (4 + np.exp(1.0)))


class TestContrasts:
    def test_paired_difference_over_the_sink_reading_heads(self, ds, result):
        baseline, select = by_sequence(ds), position0.selecting_sequences(ds)
        chosen = baseline[select].mean(axis=0) > 0.3
        other = by_sequence(ds, "bos=token:7")
        x, y = (values[~select][:, chosen].mean(axis=1) for values in (other, baseline))
        table = result.contrasts.table
        row = table[(table.condition == "bos=token:7") & (table.contrast == "minus_baseline")].iloc[0]
        test = stats.ttest_rel(x, y)
        assert row.n_heads == chosen.sum()
        assert row.estimate == pytest.approx((x - y).mean())
        assert row.p == pytest.approx(test.pvalue)
        np.testing.assert_allclose([row.low, row.high], test.confidence_interval(0.95))

    def test_bos_against_position_0(self, ds, result):
        select = position0.selecting_sequences(ds)
        chosen = by_sequence(ds)[select].mean(axis=0) > 0.3
        one = ds.sel(condition="bos@4")
        x, y = (
            one[name].transpose("sequence", "layer", "head").values[~select][:, chosen].mean(axis=1)
            for name in ("anchor_attention", "anchor_sink_attention")
        )
        row = result.contrasts.table.query("contrast == 'bos_minus_position0'").iloc[0]
        assert (row.attention, row.reference_attention) == pytest.approx((x.mean(), y.mean()))
        assert row.p == pytest.approx(stats.ttest_rel(x, y).pvalue)

    def test_family_is_one_contrast(self, result):
        for _, rows in result.contrasts.table.groupby("contrast"):
            np.testing.assert_allclose(rows.q, adjust(rows.p.to_numpy()).q)

    def test_no_sink_reading_head(self, ds):
        contrasts = ps.sinks(ds, epsilon=0.999).contrasts.table
        assert contrasts[["estimate", "low", "high", "p", "q"]].isna().all(axis=None)
        assert (contrasts.note == "no head is sink-reading under the baseline").all()
        assert (contrasts.n_heads == 0).all()

    def test_no_query_behind_the_bos_token(self, ds):
        far = ds.copy(deep=True)
        for name in ("anchor_attention", "anchor_sink_attention"):
            far[name].values[:] = np.nan
        row = ps.sinks(sealed(far)).contrasts.table.query("contrast == 'bos_minus_position0'").iloc[0]
        assert np.isnan(row.estimate)
        assert "16 or more behind" in row.note

    def test_nothing_changed(self, ds):
        same = ds.copy(deep=True)
        for name in ("sink_logit", "log_denominator_rest"):
            same[name].loc[{"condition": "bos@4"}] = same[name].sel(condition="baseline").values
        row = (
            ps.sinks(sealed(same))
            .contrasts.table.query("condition == 'bos@4' and contrast == 'minus_baseline'")
            .iloc[0]
        )
        assert (row.estimate, row.p) == (0, 1)
        assert row.note == "no difference beyond rounding"

    def test_without_a_baseline_there_is_nothing_to_compare(self, ds):
        found = ps.sinks(ds.sel(condition=["bos=token:7"]))
        assert len(found.contrasts.table) == 0
        assert len(ps.sinks(ds.sel(condition="bos=token:7")).table) == len(found.table)


class TestResult:
    def test_wrong_arithmetic_cannot_exist(self, result):
        wrong = result.table.copy()
        wrong.loc[0, "sink_reading"] = not wrong.sink_reading[0]
        with pytest.raises(NumericalError, match="flagged against"):
            type(result)(wrong, result.settings, contrasts=result.contrasts)
        contrasts = result.contrasts.table.copy()
        contrasts.loc[0, ["estimate", "high"]] += 0.1
        with pytest.raises(NumericalError, match="two means"):
            type(result.contrasts)(contrasts, result.settings)

    def test_faces(self, result):
        assert dict(result.to_dataset().sizes) == {"condition": 5, "layer": 2, "head": 3}
        assert "sink_reading" in result.summary()
        assert "<table" in result.contrasts._repr_html_()
        assert result.contrasts.to_dataset().sizes["contrast"] == 2


@pytest.fixture(scope="module", params=["token", "position"])
def anchored(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("anchored") / "d.h5"
    model, seqs = constructed.build(reads=request.param), constructed.sequences()
    return request.param, ps.dump(model, seqs, path, conditions=CONDITIONS, offsets=(0, 1, 2), progress=False)


class TestConstructed:
    def test_the_one_sink_reading_head_is_found(self, anchored):
        with ps.open_dump(anchored[1]) as ds:
            rows = ps.sinks(ds).table.query("condition == 'baseline'")
        assert rows[rows.sink_reading][["layer", "head"]].to_numpy().tolist() == [[1, 0]]

    def test_anchor(self, anchored):
        kind, path = anchored
        with ps.open_dump(path) as ds:
            result = ps.sinks(ds)
        rows = result.contrasts.table.set_index(["contrast", "condition"])
        follows = rows.loc["bos_minus_position0"]
        assert follows.index.tolist() == ["bos@8", "bos@20"]
        moved = rows.loc["minus_baseline"]
        if kind == "token":
            assert (follows.low > 0.3).all()
            assert (moved.high[["bos=none", "bos=token:5", "bos@8"]] < -0.3).all()
        else:
            assert (follows.high < -0.3).all()
            assert (moved.estimate.abs() < 0.05).all()
        assert moved.p["shift=3"] == 1
        assert (rows.q.dropna() <= 1).all()

    def test_lazy_and_loaded_data_agree(self, anchored):
        with ps.open_dump(anchored[1]) as ds:
            lazy, loaded = ps.sinks(ds), ps.sinks(ds.load())
        for one, other in ((lazy, loaded), (lazy.contrasts, loaded.contrasts)):
            assert one.table.equals(other.table)
