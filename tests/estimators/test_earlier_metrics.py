"""Earlier metrics beside ours: against explicit recomputation, and what each makes of fields with a known answer."""

import numpy as np
import pytest
import statsmodels.api as sm

import posstats as ps
from posstats.errors import DesignError, InputError, NumericalError
from posstats.estimators.earlier_metrics import TRAPS, earlier_metrics, trap_table
from posstats.stats.synthetic.design import Effects
from tests import brute
from tests.refused import refused
from tests.sealed import sealed

OFFSETS, LENGTH = (0, 1, 4), 40
TERMS = ("mask", "sink", "redistribution", "residual")
pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")


@pytest.fixture(scope="module")
def dump():
    """Two layers, the second with a window of 8; some documents hold several sequences; a stream with outliers."""
    ds = ps.simulate(
        n=9, sequences_per_document=[1, 2, 1, 1, 3, 1, 1, 2, 1], length=LENGTH, layers=2, heads=3, offsets=OFFSETS,
        conditions={"baseline": Effects(sink=-0.8, query_drift=0.01 * np.arange(LENGTH // 2)), "bos=zero": Effects()},
        window=[None, 8], seed=5,
    ).dataset  # fmt: skip
    ds["trajectory"] *= 0.1
    ds["trajectory"][0, 3:, 1, 2] = -500.0  # massive in the stream that layer 1 reads, in most sequences
    ds["residual_norm"][0, :, 1, 0] = 500.0
    return sealed(ds)


@pytest.fixture(scope="module")
def result(dump):
    return earlier_metrics(dump, n_resamples=99, sink_length=30)


@pytest.fixture(scope="module")
def traps():
    return trap_table().table.set_index("field")


def rows(result, condition, layer):
    table = result.table
    return table[(table.condition == condition) & (table.layer == layer)].iloc[0]


@pytest.mark.parametrize("condition", ["baseline", "bos=zero"])
@pytest.mark.parametrize("layer", [0, 1])
class TestAgainstRecomputation:
    def test_linear(self, dump, result, condition, layer):
        one = dump.sel(condition=condition, layer=layer)
        delta = []
        for head in range(3):
            y, i, j = [], [], []
            for n in range(dump.sizes["sequence"]):
                for query in range(LENGTH // 2):
                    values = one.logit.values[n, head, query]
                    pairs = [(query - d, s) for d, s in zip(OFFSETS, values, strict=True) if not np.isnan(s)]
                    first = one.sink_logit.values[n, head, query]
                    pairs += [] if np.isnan(first) else [(0, first)]
                    for key, s in pairs:
                        y.append(s)
                        i.append(query)
                        j.append(key)
            i, j = np.array(i), np.array(j)
            fits = [sm.OLS(y, sm.add_constant(np.column_stack(x).astype(float))).fit() for x in ([i - j], [i - j, i])]
            delta.append(fits[1].rsquared - fits[0].rsquared)
        assert rows(result, condition, layer).linear_delta_r2 == pytest.approx(np.mean(delta), rel=1e-6)

    def test_diagonals(self, dump, result, condition, layer):
        mean = dump.logit.sel(condition=condition, layer=layer).mean("sequence").values
        fraction, square = [], []
        for head in range(3):
            diagonals = [column[~np.isnan(column)] for column in mean[head].T]
            left = np.concatenate([diagonal - diagonal.mean() for diagonal in diagonals])
            fraction.append(left.var() / np.concatenate(diagonals).var())
            square.append((left**2).mean())
        row = rows(result, condition, layer)
        assert row.diagonal_fraction == pytest.approx(np.mean(fraction), rel=1e-8)
        assert row.diagonal_rms == pytest.approx(np.sqrt(np.mean(square)), rel=1e-8)

    def test_sink_rate(self, dump, result, condition, layer):
        one = dump.sel(condition=condition, layer=layer).isel(query=slice(30))
        e0 = np.nan_to_num(np.exp(one.sink_logit.values))
        attention = e0 / (e0 + np.exp(one.log_denominator_rest.values))
        assert rows(result, condition, layer).sink_rate == pytest.approx((attention.mean(axis=-1) > 0.3).mean())

    def test_ours(self, dump, result, condition, layer):
        row = rows(result, condition, layer)
        options = {"by": "layer", "octaves": False, "n_resamples": 99}
        leak = ps.leakage(dump, **options).table.query("condition == @condition and layer == @layer").iloc[0]
        share = ps.shares(dump, **options).table.query(
            "condition == @condition and layer == @layer and term == 'residual'"
        ).iloc[0]  # fmt: skip
        ours = row[["leakage", "leakage_low", "leakage_high", "leakage_q"]].astype(float)
        np.testing.assert_allclose(ours, leak[["estimate", "low", "high", "q"]].astype(float))
        ours = row[["residual_share", "residual_share_low", "residual_share_high"]].astype(float)
        np.testing.assert_allclose(ours, share[["estimate", "low", "high"]].astype(float))
        assert row.note == share.note


def test_stream_that_the_layer_reads(dump, result):
    n = dump.sizes["sequence"]
    assert rows(result, "baseline", 1).massive_activations == pytest.approx((n - 3) / n)
    for condition, layer in (("baseline", 0), ("bos=zero", 0), ("bos=zero", 1)):
        assert rows(result, condition, layer).massive_activations == 0
    norm = dump.residual_norm.sel(condition="baseline", depth=1).values
    ratio = np.mean([500.0 / np.median(one[1:]) for one in norm])
    assert rows(result, "baseline", 1).first_norm_ratio == pytest.approx(ratio)


def test_constant_logits_are_noted():
    ds = ps.simulate(n=8, length=LENGTH, heads=2, offsets=OFFSETS, conditions={"baseline": Effects(flat=True)}).dataset
    row = earlier_metrics(ds, n_resamples=99).table.iloc[0]
    assert np.isfinite(row.residual_share)
    assert row.note == ""
    stream = ds[["trajectory", "residual_norm"]]
    ds = brute.dump_dataset({"baseline": np.zeros((8, 1, 2, LENGTH, LENGTH))}, list(range(8)), OFFSETS)
    ds = sealed(ds.assign({name: stream[name] for name in stream}))
    row = earlier_metrics(ds, n_resamples=99).table.iloc[0]
    assert np.isnan(row.linear_delta_r2)
    assert np.isnan(row.diagonal_fraction)
    assert row.note == "nothing beyond rounding; the logits do not vary"
    assert row.residual_share == pytest.approx(0, abs=1e-9)


def test_options_of_the_comparison(dump):
    for options, message in (
        ({"sink_length": 0}, "sink_length"),
        ({"offsets": [7]}, "must be chosen from"),
        ({"adjust": "none"}, "bh"),
        ({"level": 2}, "between 0 and 1"),
    ):
        refused(InputError, message, earlier_metrics, dump, **options)
    with pytest.raises(InputError, match="lacks logit"):
        earlier_metrics(dump.drop_vars("logit"))
    with pytest.raises(InputError, match="lacks trajectory"):
        earlier_metrics(dump.drop_vars("trajectory"))
    with pytest.raises(DesignError, match="at least 5"):
        earlier_metrics(dump.isel(sequence=[0, 1, 2]))
    restricted = earlier_metrics(dump, offsets=[0, 1], n_resamples=99)
    expected = earlier_metrics(dump.sel(offset=[0, 1]), n_resamples=99)
    assert restricted.table.equals(expected.table)


def test_faces_of_the_comparison(result):
    ds = result.to_dataset()
    assert dict(ds.sizes) == {"condition": 2, "layer": 2}
    assert ds.leakage.attrs["units"] == "nats^2"
    assert "sink epsilon 0.3" in result.summary()
    upside_down = result.table.assign(leakage_low=result.table.leakage_high + 1)
    with pytest.raises(NumericalError, match="lower limit above"):
        type(result)(upside_down, result.settings)
    with pytest.raises(NumericalError, match=r"outside \[0, 1\]"):
        type(result)(result.table.assign(sink_rate=1.2), result.settings)
    with pytest.raises(NumericalError, match="lacks leakage"):
        type(result)(result.table.drop(columns="leakage"), result.settings)


class TestTraps:
    """Each effect lands on its term, and stands beside what the earlier metrics make of it."""

    def test_relative_logits_leak_through_the_mask_alone(self, traps):
        row = traps.loc["relative"]
        # But for position 0, which lies nearer than the farthest key of the steady state (docs/method.md, section 2).
        assert row.share_mask == pytest.approx(1, abs=0.02)
        assert row.magnitude_redistribution == pytest.approx(0, abs=1e-9)
        assert row.magnitude_sink < 0.01 * row.magnitude_mask
        # The earlier metrics see nothing at all: the mask is no part of a logit.
        assert row.linear_delta_r2 == pytest.approx(0, abs=1e-9)
        assert row.diagonal_fraction == pytest.approx(0, abs=1e-9)
        assert row.sink_rate == 0

    def test_sink_column_is_the_sink(self, traps):
        row = traps.loc["sink column"]
        assert row.magnitude_sink > 1
        assert row.share_sink == pytest.approx(row.share_residual)
        assert abs(row.share_sink) > 0.1
        assert row.magnitude_redistribution == pytest.approx(0, abs=1e-9)
        assert row.share_redistribution == pytest.approx(0, abs=1e-9)
        # A single column hardly tilts a line.
        assert row.linear_delta_r2 < 0.05 * row.diagonal_fraction
        assert row.sink_rate == 1

    @pytest.mark.parametrize("field", ["linear query term", "log(i+1) query term"])
    def test_query_terms_drift_in_the_logits_and_cancel_in_the_softmax(self, traps, field):
        row = traps.loc[field]
        assert row.leakage == pytest.approx(traps.leakage["relative"], rel=1e-9)
        ours = [name for name in traps if name.startswith(("share", "magnitude"))]
        np.testing.assert_allclose(row[ours].astype(float), traps.loc["relative", ours].astype(float), atol=1e-9)
        # The line calls it position, although attention is what it was without the term.
        assert row.linear_delta_r2 > 0.3

    def test_key_term_changes_attention(self, traps):
        row = traps.loc["log(j+1) key term"]
        assert row.leakage != pytest.approx(traps.leakage["relative"], rel=0.1)
        assert row.magnitude_redistribution > 0.05
        assert abs(row.share_redistribution) > 0.05

    def test_noise_is_no_position(self):
        """Of the mask alone, content included."""
        row = trap_table(n=96).table.set_index("field").loc["iid noise"]
        assert row.share_mask == pytest.approx(1, abs=0.1)
        for term in TERMS[1:]:
            assert row[f"share_{term}"] == pytest.approx(0, abs=0.1)
            assert row[f"magnitude_{term}"] == pytest.approx(0, abs=0.03)

    def test_diagonals_count_noise_and_ours_do_not(self, traps):
        row = traps.loc["iid noise"]
        assert row.diagonal_fraction > 0.1
        assert abs(row.magnitude_residual) < 0.03 * row.magnitude_mask

    def test_labels(self, traps):
        assert traps.index.tolist() == list(TRAPS)
        assert traps.expected.tolist() == list(TRAPS.values())
        shares = traps[[f"share_{term}" for term in TERMS]]
        assert shares.notna().all(axis=None)
        assert trap_table(seed=1).table.iloc[:5].equals(trap_table().table.iloc[:5])  # the seed is that of the noise

    def test_options(self):
        for options, message in (
            ({"length": 31}, "from 32"),
            ({"length": 34}, "multiple of 4"),
            ({"n": 7}, "at least 8"),
            ({"noise": -1.0}, "noise"),
            ({"length": 32, "offsets": [0, 15]}, "there is no 15"),
        ):
            with pytest.raises(InputError, match=message):
                trap_table(**options)
        with pytest.raises(DesignError, match="too large for 16 analysed queries"):
            trap_table(length=32, offsets=[0, 14])

    def test_faces(self):
        result = trap_table(n=8)
        assert dict(result.to_dataset().sizes) == {"field": 6}
        wrong = result.table.assign(share_mask=result.table.share_mask + 0.1)
        with pytest.raises(NumericalError, match="miss their sum"):
            type(result)(wrong, result.settings)
