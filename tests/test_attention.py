"""The recorder: its two paths against each other, its manners, and what it refuses."""

import logging

import numpy as np
import pytest
import torch
from transformers import AttentionInterface
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from posstats.dump.attention import Recorder
from posstats.dump.fused import fused_statistics, lag_sums, obstacle, window_of
from posstats.dump.masks import compact_mask, first_visible, visible_start
from posstats.dump.models import embed, load_model
from posstats.dump.statistics import AttentionInputs, blocked_statistics, output_fraction, sum_diagonals
from posstats.dump.structure import narrow_window
from posstats.errors import InputError, ModelError, NumericalError
from tests import tiny

OFFSETS = (0, 1, 2, 4, 8, 16)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def inputs(
    length, *, window=None, heads=6, kv_heads=2, channels=16, sink=0.0, learned=None, seed=0, batch=2, scale=1.0
):
    """Random queries, keys and values; ``sink`` draws the queries of half the heads towards key 0."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn((batch, count, length, channels), generator=generator) * scale
        for count in (heads, kv_heads, kv_heads)
    )
    key[:, :, 0] = 1.0
    query[:, ::2] += sink
    first = torch.zeros(length, dtype=torch.long)
    if window is not None:
        first = (torch.arange(length) - window + 1).clamp_min(0)
    return AttentionInputs(query, key, value, first, channels**-0.5, learned_sink=learned)


def changed(x, dtype, device="cpu"):
    """The same layer in another dtype and place."""
    query, key, value = (y.to(device, dtype) for y in (x.query, x.key, x.value))
    learned = None if x.learned_sink is None else x.learned_sink.to(device, dtype)
    return AttentionInputs(query, key, value, x.first.to(device), x.scaling, x.softcap, learned)


def attention_on_sink(statistics):
    total = torch.logaddexp(statistics.sink_logit, statistics.log_denominator_rest)
    return (statistics.sink_logit - total).exp()


def explicit(x):
    """Logits and denominators from the whole query-by-key matrix in float64."""
    x = changed(x, torch.float64)
    group = x.query.shape[1] // x.key.shape[1]
    logits = x.query @ x.key.repeat_interleave(group, 1).transpose(-1, -2) * x.scaling
    if x.softcap is not None:
        logits = x.softcap * torch.tanh(logits / x.softcap)
    position = torch.arange(logits.shape[-1])
    visible = (position <= position[:, None]) & (position >= x.first[:, None])
    return logits, visible


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 7])
def test_blocked_path_equals_the_whole_matrix(window, softcap, monkeypatch):
    monkeypatch.setattr("posstats.dump.statistics._BLOCK_BYTES", 40_000)  # several blocks of unequal size
    x = inputs(50, window=window, learned=torch.linspace(-1, 2, 6).double())
    x = changed(AttentionInputs(x.query, x.key, x.value, x.first, x.scaling, softcap, x.learned_sink), torch.float64)
    logits, visible = explicit(x)
    found = blocked_statistics(x, OFFSETS)
    hidden = logits.masked_fill(~visible, -torch.inf)
    learned = x.learned_sink[:, None]
    rest = torch.logaddexp(hidden[..., 1:].logsumexp(-1), learned)
    torch.testing.assert_close(found.log_denominator_rest, rest)
    weights = (hidden - torch.logaddexp(rest, hidden[..., 0])[..., None]).exp()
    torch.testing.assert_close(found.output, weights @ x.value.repeat_interleave(3, 1))
    for lag in range(50):
        kept = torch.where(visible, logits, 0.0)[..., 1:]
        torch.testing.assert_close(found.logit_sum_by_lag[..., lag], kept.diagonal(-lag - 1, -2, -1).sum(-1))
    for column, offset in enumerate(OFFSETS):
        known = torch.isfinite(hidden.diagonal(-offset, -2, -1)[0, 0])
        known[0] = False  # key 0
        expected = logits.diagonal(-offset, -2, -1).masked_fill(~known, torch.nan)
        torch.testing.assert_close(found.logit[..., offset:, column], expected, equal_nan=True)
    sink_part = weights[..., :1] * x.value.repeat_interleave(3, 1)[:, :, :1]
    norms = sink_part.norm(dim=-1), (found.output - sink_part).norm(dim=-1)
    torch.testing.assert_close(found.sink_output_fraction, (norms[0] / (norms[0] + norms[1]))[..., 16:].mean(-1))


def compare_paths(length, sink, window, device):
    """Fused path in float32 against the blocked path in float64."""
    learned = torch.linspace(-3, 3, 6) if window == 5 else None
    x = inputs(length, window=window and min(window, length), sink=sink, learned=learned, batch=1)
    oracle = blocked_statistics(changed(x, torch.float64), [d for d in OFFSETS if d < length])
    layer = changed(x, torch.float32, device)
    assert obstacle(layer) is None
    found = fused_statistics(layer, [d for d in OFFSETS if d < length])

    def close(name, **tolerance):
        actual = getattr(found, name).double().cpu()
        torch.testing.assert_close(actual, getattr(oracle, name), rtol=0, equal_nan=True, **tolerance)

    if sink and window is None and length > 2:
        assert (attention_on_sink(oracle)[..., 1:] > 0.9999).any()
    close("output", atol=1e-5)
    close("logit", atol=1e-4)
    close("sink_logit", atol=1e-4)
    close("log_denominator_rest", atol=1e-3)
    close("sink_output_fraction", atol=1e-5)
    # Relative to the sum of the magnitudes of what was summed.
    logits, visible = explicit(x)
    size = torch.where(visible, logits.abs(), 0.0)[..., 1:]
    size = torch.stack([size.diagonal(-lag - 1, -2, -1).sum(-1) for lag in range(length)], -1)
    error = (found.logit_sum_by_lag.double().cpu() - oracle.logit_sum_by_lag).abs()
    assert (error <= 1e-5 * size.clamp_min(1)).all()


def compare_half_precision(dtype, device):
    """Both paths in half precision against the blocked path in float64."""
    x = changed(inputs(200), dtype, device)
    oracle = blocked_statistics(changed(x, torch.float64), OFFSETS)
    for found in (fused_statistics(x, OFFSETS), blocked_statistics(x, OFFSETS)):
        assert found.output.dtype == dtype
        assert found.logit.dtype == found.log_denominator_rest.dtype == torch.float32
        for name, tolerance in (("log_denominator_rest", 1e-3), ("logit", 2e-2), ("output", 3e-2)):
            torch.testing.assert_close(
                getattr(found, name).double().cpu(),
                getattr(oracle, name).cpu(),
                atol=tolerance,
                rtol=tolerance,
                equal_nan=True,
            )


@pytest.mark.parametrize("window", [None, 5, 300])
@pytest.mark.parametrize("sink", [0.0, 6.0])
@pytest.mark.parametrize("length", [2, 60, 333, 1024])
def test_fused_path_equals_blocked_path_in_float64(length, sink, window):
    compare_paths(length, sink, window, "cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_float32_statistics(dtype):
    compare_half_precision(dtype, "cpu")


@needs_gpu
@pytest.mark.parametrize("window", [None, 300])
def test_fused_path_on_a_gpu(window):
    for length in (2, 333, 1024):
        compare_paths(length, 6.0, window, "cuda")
    for dtype in (torch.bfloat16, torch.float16):
        compare_half_precision(dtype, "cuda")


def test_longest_lags_keep_their_precision():
    # Queries and keys of trained models share large components: rounding of the transform must not reach the few
    # logits of the longest lags.
    x = inputs(1000, heads=2, kv_heads=1, channels=64, batch=1)
    x.query.add_(3.0)
    x.key.add_(3.0)
    exact = lag_sums(x.query.double(), x.key.double(), x.scaling, 1000)
    error = (lag_sums(x.query, x.key, x.scaling, 1000) - exact).abs() / exact.abs().clamp_min(1)
    assert error.max() < 1e-5


def test_output_fraction():
    sink, rest = torch.zeros(1, 1, 20), torch.ones(1, 1, 20)
    assert output_fraction(sink, rest) == 0
    assert output_fraction(rest, rest) == 0.5
    assert output_fraction(sink, sink) == 0
    assert output_fraction(rest[..., :16], rest[..., :16]).isnan()


def test_sum_diagonals():
    block = torch.tensor([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])  # queries 2, 3 of keys 3, 2, 1, descending
    np.testing.assert_array_equal(sum_diagonals(block), [2 + 30, 1 + 20, 10])


class TestMasks:
    def test_compact_form_equals_the_dense_one(self, monkeypatch):
        monkeypatch.setattr("posstats.dump.masks._BLOCK_CELLS", 200)
        left = torch.zeros(2, dtype=torch.long)
        for rule, expected in (
            (sliding_window_causal_mask_function(4), [0, 0, 0, 0, 1, 2, 3, 4, 5]),
            (chunked_causal_mask_function(4, left), [0, 0, 0, 0, 4, 4, 4, 4, 8]),
        ):
            for vmap in (False, True):
                found = compact_mask(2, 9, 9, mask_function=rule, use_vmap=vmap)
                np.testing.assert_array_equal(visible_start(found, 9, 0), expected)
        narrowed = compact_mask(1, 9, 9, mask_function=rule, window=2)
        np.testing.assert_array_equal(visible_start(narrowed, 9, 0), [0, 0, 1, 2, 4, 4, 5, 6, 8])

    def test_dense_masks_are_read_too(self):
        visible = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)[None, None]
        additive = torch.zeros(1, 1, 4, 4).masked_fill(~visible, torch.finfo(torch.float32).min)
        for mask in (visible, additive):
            np.testing.assert_array_equal(visible_start(mask, 4, 0), [0, 0, 1, 2])

    def test_refusals(self):
        causal = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
        holed = causal.clone()
        holed[..., 3, 1] = False
        for mask in (torch.ones_like(causal), holed):
            with pytest.raises(ModelError, match="contiguous run of keys"):
                first_visible(mask, 3)
        with pytest.raises(ModelError, match="differs between sequences"):
            first_visible(torch.cat([causal, holed]), 3)
        with pytest.raises(ModelError, match="layer 2 passes no mask"):
            visible_start(None, 4, 2)
        with pytest.raises(ModelError, match="position bias"):
            visible_start(torch.zeros(1, 1, 4, 4).masked_fill(~causal, -torch.inf) + 0.5, 4, 2)
        with pytest.raises(ModelError, match="shape"):
            visible_start(causal, 5, 2)
        with pytest.raises(ModelError, match="padding"):
            compact_mask(1, 4, 4, mask_function=causal_mask_function, attention_mask=torch.ones(1, 4))

    def test_windows_are_told_from_other_masks(self):
        assert window_of(torch.zeros(5, dtype=torch.long)) == 5
        assert window_of(torch.tensor([0, 0, 1, 2, 3])) == 2
        assert window_of(torch.tensor([0, 0, 2, 2, 4])) is None


@pytest.fixture(scope="module")
def llama():
    return tiny.build("llama")


def ids(length, batch=2):
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(3))


class TestRecorder:
    def test_attention_comes_back_after_errors(self, llama):
        before = llama.config._attn_implementation
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in llama.modules())
        recorder = Recorder(llama, length=8, offsets=(0,))
        with pytest.raises(InputError, match="this recorder takes"), recorder:
            recorder.record(embed(llama, ids(9)), torch.arange(9)[None])
        assert llama.config._attn_implementation == before
        assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in llama.modules()) == hooks
        with pytest.raises(InputError, match="inside its `with` block"):
            recorder.record(embed(llama, ids(8)), torch.arange(8)[None])

    def test_masks_are_known_before_the_first_recording(self, llama):
        with Recorder(llama, length=8, offsets=(0,)) as recorder:
            np.testing.assert_array_equal(recorder.visible_keys, np.tile(np.arange(1, 9), (3, 1)))
            assert recorder.visible_keys.dtype == np.int32
        with pytest.raises(InputError, match="nothing has been recorded"):
            _ = Recorder(llama, length=8, offsets=(0,)).learned_sink

    def test_path_is_logged(self, llama, caplog):
        with caplog.at_level(logging.INFO, "posstats"), Recorder(llama, length=8, offsets=(0,)) as recorder:
            recorder.record(embed(llama, ids(8)), torch.arange(8)[None])
            recorder.record(embed(llama, ids(8)), torch.arange(8)[None])
        assert [r.getMessage() for r in caplog.records] == [f"layer {i}: fused" for i in range(3)]

    def test_paths_of_several_kinds_are_listed(self):
        model = tiny.build("llama", sliding_window=None)
        with Recorder(model, length=8, offsets=(0,)) as recorder:
            recorder._paths = {0: "fused", 1: "blocked (why)", 2: "fused"}
            recorder._first = dict.fromkeys(range(3), torch.zeros(8, dtype=torch.long))
            assert recorder.path == "layers 0, 2: fused; layers 1: blocked (why)"

    def test_fused_on_request_only_where_possible(self):
        model = tiny.build("gemma2")
        with (
            Recorder(model, length=8, offsets=(0,), path="fused") as recorder,
            pytest.raises(ModelError, match="soft-cap"),
        ):
            recorder.record(embed(model, ids(8)), torch.arange(8)[None])

    def test_batch_size_does_not_matter(self):
        model = tiny.build("mistral", "float64")
        with Recorder(model, length=30, offsets=OFFSETS, probes=(3,)) as recorder:
            together = recorder.record(embed(model, ids(30, 3)), torch.arange(30)[None])
            for row in range(3):
                alone = recorder.record(embed(model, ids(30, 3)[row : row + 1]), torch.arange(30)[None])
                for name in together.__slots__:
                    np.testing.assert_allclose(getattr(alone, name)[0], getattr(together, name)[row], atol=1e-12)

    def test_single_token(self, llama):
        with Recorder(llama, length=1, offsets=(0,)) as recorder:
            record = recorder.record(embed(llama, ids(1)), torch.zeros(1, 1, dtype=torch.long))
        assert np.isneginf(record.log_denominator_rest).all()
        assert np.isnan(record.logit).all()
        assert (record.logit_sum_by_lag == 0).all()
        assert np.isfinite(record.sink_logit).all()
        assert record.residual_sample is None

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"offsets": (0, 8)}, "offset 8 is outside 0 .. 7"),
            ({"offsets": ()}, "at least one offset"),
            ({"probes": (-1,)}, "probe -1 is outside"),
            ({"path": "quick"}, "path must be one of auto, fused, blocked"),
        ],
    )
    def test_bad_arguments(self, llama, changes, message):
        with pytest.raises(InputError, match=message):
            Recorder(llama, **{"length": 8, "offsets": (0,), **changes})

    def test_bad_shapes(self, llama):
        with Recorder(llama, length=8, offsets=(0,)) as recorder:
            with pytest.raises(InputError, match="this recorder takes"):
                recorder.record(embed(llama, ids(9)), torch.arange(9)[None])
            with pytest.raises(InputError, match="positions"):
                recorder.record(embed(llama, ids(8)), torch.arange(8))

    def test_changing_masks_are_refused(self, llama):
        packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])  # transformers takes a restart for two packed sequences
        with Recorder(llama, length=8, offsets=(0,)) as recorder:
            recorder.record(embed(llama, ids(8)), torch.arange(8)[None])
            with pytest.raises(ModelError, match="mask of layer 0 changes"):
                recorder.record(embed(llama, ids(8)), packed)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("model.layers.1.self_attn.q_proj.weight", "attention logits of layer 1"),
            ("model.layers.0.mlp.down_proj.weight", "residual stream after layer 0"),
            ("model.layers.2.mlp.up_proj.weight", "residual stream after the last layer"),
        ],
    )
    def test_numbers_that_are_not_finite_are_named(self, place, message, value):
        model = tiny.build("llama")
        with torch.no_grad():
            model.get_parameter(place).fill_(value)
        with Recorder(model, length=8, offsets=(0,)) as recorder, pytest.raises(NumericalError, match=message):
            recorder.record(embed(model, ids(8)), torch.arange(8)[None])

    def test_embeddings_that_are_not_finite_are_named(self, llama):
        broken = embed(llama, ids(8)).clone()
        broken[1, 3, 0] = torch.nan
        with Recorder(llama, length=8, offsets=(0,)) as recorder, pytest.raises(NumericalError, match="the embeddings"):
            recorder.record(broken, torch.arange(8)[None])

    def test_training_mode_is_left_and_restored(self):
        model = tiny.build("llama", attention_dropout=0.5).train()
        with Recorder(model, length=8, offsets=(0,)) as recorder:
            first, second = (recorder.record(embed(model, ids(8)), torch.arange(8)[None]) for _ in range(2))
        assert model.training
        np.testing.assert_array_equal(first.logit, second.logit)

    def test_position_bias_is_refused(self, llama):
        with Recorder(llama, length=8, offsets=(0,)) as recorder:
            recorder.record(embed(llama, ids(8)), torch.arange(8)[None])
        attend = AttentionInterface()["posstats"]
        with pytest.raises(ModelError, match="not called through Recorder"):
            attend(llama, *torch.zeros(3, 1, 1, 4, 4), None)


def test_window_of_a_llama_equals_its_own_attention_under_that_window():
    model = tiny.build("llama", "float64")
    narrow_window(model, 6)
    with Recorder(model, length=30, offsets=OFFSETS) as recorder:
        record = recorder.record(embed(model, ids(30)), torch.arange(30)[None])
        np.testing.assert_array_equal(recorder.visible_keys, np.tile(np.minimum(np.arange(30) + 1, 6), (3, 1)))
    assert np.isnan(record.sink_logit[..., 6:]).all()
    with torch.no_grad():
        own = model.model(input_ids=ids(30), output_hidden_states=True).hidden_states
    np.testing.assert_allclose(record.trajectory[:, 2], own[2][:, 0], atol=1e-12)
    np.testing.assert_allclose(record.residual_norm[:, 2], own[2].norm(dim=-1), rtol=1e-12)


def test_window_narrows_the_models_own():
    model = tiny.build("gemma3", "float64")
    narrow_window(model, 14)
    with Recorder(model, length=30, offsets=OFFSETS) as recorder:
        assert recorder.visible_keys.max(1).tolist() == [10, 14, 10]
    capped = tiny.build("gemma2", "float64")
    narrow_window(capped, 4)
    with Recorder(capped, length=30, offsets=OFFSETS) as recorder:
        record = recorder.record(embed(capped, ids(30)), torch.arange(30)[None])
        assert recorder.visible_keys.max(1).tolist() == [4, 4, 4]
    with torch.no_grad():
        own = capped.model(input_ids=ids(30), output_hidden_states=True).hidden_states
    np.testing.assert_allclose(record.residual_norm[:, 2], own[2].norm(dim=-1), rtol=1e-12)
    with pytest.raises(InputError, match="at least 1 token"):
        narrow_window(model, 0)


@pytest.mark.model
def test_default_model_against_its_eager_attention(default_model):
    model, tokenizer = default_model
    length = 128
    text = tokenizer(["The five terms of log attention sum to it. " * 40, "Where does position come from? " * 60])
    tokens = torch.tensor([[1, *row[: length - 1]] for row in text["input_ids"]])
    with Recorder(model, length=length, offsets=OFFSETS) as recorder:
        record = recorder.record(embed(model, tokens), torch.arange(length)[None])
        assert recorder.path == "fused"
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            eager = model.model(input_ids=tokens, output_attentions=True, output_hidden_states=True, use_cache=False)
    finally:
        model.set_attn_implementation(own)
    expected = torch.stack(eager.attentions, 1).double().log().numpy()
    log_z = np.logaddexp(record.sink_logit.astype(np.float64), record.log_denominator_rest)
    np.testing.assert_allclose(record.sink_logit - log_z, expected[..., 0], atol=1e-3)
    for column, offset in enumerate(OFFSETS):
        query = np.arange(offset + 1, length)
        found = record.logit[..., query, column] - log_z[..., query]
        np.testing.assert_allclose(found, expected[..., query, query - offset], atol=1e-3)
    np.testing.assert_allclose(record.trajectory[:, 12], eager.hidden_states[12][:, 0], rtol=1e-3, atol=1e-2)


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpu_records_what_the_cpu_records(dtype, tmp_path):
    tiny.build("mistral", dtype).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    records = []
    for device in ("cpu", "cuda"):
        model, _ = load_model(tmp_path, dtype=dtype, device=device)
        with Recorder(model, length=64, offsets=OFFSETS) as recorder:
            records.append(recorder.record(embed(model, ids(64)), torch.arange(64, device=device)[None]))
    tolerance = 1e-3 if dtype == "float32" else 0.3
    np.testing.assert_allclose(records[1].logit, records[0].logit, atol=tolerance)
