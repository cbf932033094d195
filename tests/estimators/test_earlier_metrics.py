"""Earlier metrics beside ours: against explicit recomputation, and what each makes of fields with a known answer."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from transformers.models.llama import modeling_llama

import posstats as ps
from posstats.errors import DesignError, InputError, NumericalError
from posstats.estimators.earlier_metrics import TRAPS, earlier_metrics, trap_table
from posstats.stats.synthetic.design import Effects
from posstats.vocabulary import reference_queries
from tests import brute, tiny
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


def logits_of(model, ids):
    """Logits (sequence, layer, head, query, key) of a Llama, from its own queries and keys, in plain numpy loops."""
    found = []

    def keep(module, query, key, value, mask, **options):
        s = torch.einsum("nhqc,nhkc->nhqk", query, key.repeat_interleave(query.shape[1] // key.shape[1], 1))
        found.append((s * options["scaling"]).double().numpy())
        return own(module, query, key, value, mask, **options)

    own, modeling_llama.eager_attention_forward = modeling_llama.eager_attention_forward, keep
    try:
        with torch.inference_mode():
            streams = model(torch.as_tensor(ids), output_hidden_states=True).hidden_states
    finally:
        modeling_llama.eager_attention_forward = own
    return np.stack(found, axis=1), np.stack([one.double().numpy() for one in streams], axis=1)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A dump of a tiny random Llama with massive features at position 0, its logits and its streams."""
    model = tiny.build("llama", "float64")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        model.get_input_embeddings().weight[1] *= 10  # of the BOS: its own median is not that of the sequence
        model.get_input_embeddings().weight[1, :3] = torch.tensor([3e4, 1e3, 150.0])
    seqs = ps.random_sequences(tiny.tokenizer(), n=5, length=32, seed=3)
    path = ps.dump(model, seqs, tmp_path_factory.mktemp("dumps") / "real.h5", offsets=OFFSETS, progress=False)
    return ps.open_dump(path), *logits_of(model, seqs.ids)


class TestAgainstWholeMatrices:
    """Every pair of query and key of a real architecture, one at a time."""

    def test_line(self, real):
        dump, logits, _ = real
        i, j = np.tril_indices(logits.shape[-1])
        designs = [sm.add_constant(np.column_stack(x).astype(float)) for x in ([i - j], [i - j, i])]
        table = earlier_metrics(dump, n_resamples=99).table
        for layer in range(3):
            delta = []
            for n in range(5):
                for head in range(4):
                    relative, full = (sm.OLS(logits[n, layer, head, i, j], x).fit().rsquared for x in designs)
                    delta.append(full - relative)
            assert table.linear_delta_r2[layer] == pytest.approx(np.mean(delta), rel=1e-7)

    def test_map_of_diagonals(self, real):
        dump, logits, _ = real
        table = earlier_metrics(dump, n_resamples=99).table
        half = logits.shape[-1] // 2
        for layer in range(3):
            total = np.zeros((half, half))
            for n in range(5):
                for head in range(4):
                    total += logits[n, layer, head, :half, :half]
            diagonals = [[total[i, i - d] / 20 for i in range(d, half)] for d in OFFSETS]
            left = np.concatenate([np.subtract(one, np.mean(one)) for one in diagonals])
            assert table.diagonal_rms[layer] == pytest.approx(np.sqrt(np.mean(left**2)), rel=1e-9)
            assert table.diagonal_fraction[layer] == pytest.approx(left.var() / np.concatenate(diagonals).var())

    def test_massive_activations(self, real):
        dump, _, streams = real
        table = earlier_metrics(dump, n_resamples=99).table
        expected = []
        for layer in range(3):
            counts = []
            for n in range(5):
                stream = abs(streams[n, layer])
                counts.append(sum(x > 100 and x >= 1000 * np.median(stream) for x in stream[0]))
            expected.append(np.mean(counts))
        assert table.massive_activations.tolist() == expected
        assert expected[0] == 2

    def test_content_scatter(self, real):
        dump, logits, _ = real
        table = ps.size(dump, by=("layer", "head"), octaves=False, n_resamples=99).table
        length = logits.shape[-1]
        for row in table.itertuples():
            by_lag = []
            for d in range(length // 2):
                values = []
                for n in range(5):
                    for r in reference_queries(length):
                        line = logits[n, row.layer, row.head, r, r - length // 2 + 1 : r + 1]
                        values.append(line[-1 - d] - np.log(np.exp(line).sum()))
                by_lag.append(np.var(values))
            assert row.content_scatter == pytest.approx(np.sqrt(np.mean(by_lag)), rel=1e-9)


@pytest.mark.parametrize("condition", ["baseline", "bos=zero"])
@pytest.mark.parametrize("layer", [0, 1])
class TestAgainstRecomputation:
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
    assert result.table[["massive_activations", "linear_delta_r2"]].isna().all(axis=None)
    assert any("lacks linear_r2_offset, linear_r2_position, residual_median" in note for note in result.notes)
    median = dump.residual_norm.isel(token=0, drop=True) * 0 + 0.05
    result = earlier_metrics(dump.assign(residual_median=median), n_resamples=99)
    assert rows(result, "baseline", 1).massive_activations == pytest.approx((n - 3) / n)
    for condition, layer in (("baseline", 0), ("bos=zero", 0), ("bos=zero", 1)):
        assert rows(result, condition, layer).massive_activations == 0


def test_offsets_beyond_the_keys_of_late_queries_count_for_the_earlier_metrics_alone():
    wide = ps.simulate(n=9, length=LENGTH, layers=2, offsets=(0, 1, 12), window=[None, 8], seed=5).dataset
    result = earlier_metrics(wide, n_resamples=99)
    near = earlier_metrics(wide.sel(offset=[0, 1]), n_resamples=99)
    assert result.table.leakage.equals(near.table.leakage)
    assert result.table.diagonal_rms[0] != near.table.diagonal_rms[0]
    assert any("leave out offsets" in note for note in result.notes)


def test_norm_of_the_stream(dump, result):
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
