"""What is recorded of a layer: both paths against the whole matrix and against each other; masks."""

import numpy as np
import pytest
import torch
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from posstats.dumping.recorder import fused, masks
from posstats.dumping.recorder import statistics as blocked
from posstats.dumping.recorder.fused import fused_statistics, lag_sums, obstacle, window_of
from posstats.dumping.recorder.masks import compact_mask, first_visible, visible_start
from posstats.dumping.recorder.statistics import (
    AttentionInputs,
    anchored_attention,
    blocked_statistics,
    mean_output,
    output_fraction,
    sum_diagonals,
    value_norms,
)
from posstats.errors import ModelError

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
@pytest.mark.parametrize("window", [None, 7, 25])
def test_blocked_path_equals_the_whole_matrix(window, softcap, monkeypatch):
    monkeypatch.setattr(blocked, "_BLOCK_BYTES", 40_000)  # several blocks of unequal size
    x = inputs(50, window=window, learned=torch.linspace(-1, 2, 6).double())
    x = changed(AttentionInputs(x.query, x.key, x.value, x.first, x.scaling, softcap, x.learned_sink), torch.float64)
    logits, visible = explicit(x)
    found = blocked_statistics(x, OFFSETS, anchor=5)
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
    torch.testing.assert_close(found.anchor_attention, weights[..., 21:, 5].mean(-1))
    torch.testing.assert_close(found.anchor_sink_attention, weights[..., 21:, 0].mean(-1))
    assert (found.anchor_attention == 0).all() == (window == 7)
    norm = x.value.pow(2).sum(-1).sqrt().repeat_interleave(3, 1)
    torch.testing.assert_close(found.sink_value_norm, norm[..., 0])
    torch.testing.assert_close(found.value_norm, norm[..., 1:].sum(-1) / 49)
    torch.testing.assert_close(found.head_output, (weights @ x.value.repeat_interleave(3, 1))[:, :, 16:].sum(2) / 34)


def compare_paths(length, sink, window, device):
    """Fused path in float32 against the blocked path in float64."""
    learned = torch.linspace(-3, 3, 6) if window == 5 else None
    x = inputs(length, window=window and min(window, length), sink=sink, learned=learned, batch=1)
    offsets, anchor = [d for d in OFFSETS if d < length], min(3, length - 1)
    oracle = blocked_statistics(changed(x, torch.float64), offsets, anchor)
    layer = changed(x, torch.float32, device)
    assert obstacle(layer) is None
    found = fused_statistics(layer, offsets, anchor)

    def close(name, **tolerance):
        actual = getattr(found, name).double().cpu()
        torch.testing.assert_close(actual, getattr(oracle, name), rtol=0, equal_nan=True, **tolerance)

    if sink and window is None and length > 2:
        assert (attention_on_sink(oracle)[..., 1:] > 0.9999).any()
    close("output", atol=1e-5)
    close("logit", atol=1e-4)
    close("sink_logit", atol=1e-4)
    close("log_denominator_rest", atol=1e-3)
    for name in ("sink_output_fraction", "sink_value_norm", "value_norm", "head_output"):
        close(name, atol=1e-5)
    for name in ("anchor_attention", "anchor_sink_attention"):
        close(name, atol=1e-5)
        assert getattr(oracle, name).isnan().all() == (length == 2)
    # Relative to the sum of the magnitudes of what was summed.
    logits, visible = explicit(x)
    size = torch.where(visible, logits.abs(), 0.0)[..., 1:]
    size = torch.stack([size.diagonal(-lag - 1, -2, -1).sum(-1) for lag in range(length)], -1)
    error = (found.logit_sum_by_lag.double().cpu() - oracle.logit_sum_by_lag).abs()
    assert (error <= 1e-5 * size.clamp_min(1)).all()


def compare_half_precision(dtype, device):
    """Both paths in half precision against the blocked path in float64."""
    x = changed(inputs(200), dtype, device)
    oracle = blocked_statistics(changed(x, torch.float64), OFFSETS, 20)
    for found in (fused_statistics(x, OFFSETS, 20), blocked_statistics(x, OFFSETS, 20)):
        assert found.output.dtype == dtype
        assert found.logit.dtype == found.log_denominator_rest.dtype == torch.float32
        for name, tolerance in (
            ("log_denominator_rest", 1e-3),
            ("logit", 1e-5),
            ("sink_logit", 1e-5),
            ("output", 3e-2),
            ("value_norm", 1e-5),
            ("sink_value_norm", 1e-5),
            ("head_output", 1e-2),
            ("anchor_attention", 1e-4),
            ("anchor_sink_attention", 1e-4),
        ):
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


def test_a_kernel_that_cannot_be_trusted_is_not_used(monkeypatch):
    layer = inputs(30)
    genuine = fused._kernel

    def missing(*_):
        raise AttributeError("no such operator\nand details")

    def wrong(*args):
        output, log_sum = genuine(*args)
        return output, log_sum + 1

    for kernel, reason in (
        (missing, "no fused kernel for torch.float32 on cpu: no such operator"),
        (wrong, "the fused kernel for torch.float32 on cpu does not reproduce output"),
    ):
        fused._kernel_obstacle.cache_clear()
        monkeypatch.setattr(fused, "_kernel", kernel)
        assert obstacle(layer) == reason
    monkeypatch.undo()
    fused._kernel_obstacle.cache_clear()
    assert obstacle(layer) is None


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


def test_what_does_not_apply_is_not_a_number():
    value = torch.ones(1, 1, 20, 4)
    first, others = value_norms(value[:, :, :1], 3)
    assert first.tolist() == [[2.0, 2.0, 2.0]]
    assert others.isnan().all()
    assert value_norms(value, 1)[1] == 2.0
    assert mean_output(value[:, :, :16]).isnan().all()
    assert (mean_output(value) == 1).all()
    layer, zeros = inputs(20), torch.zeros(2, 6, 20)
    for anchor in (None, 4):  # the query 20 would be the first
        for found in anchored_attention(layer, zeros, zeros, anchor):
            assert found.shape == (2, 6)
            assert found.isnan().all()
    assert not any(found.isnan().any() for found in anchored_attention(layer, zeros, zeros, 3))


def test_sum_diagonals():
    block = torch.tensor([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])  # queries 2, 3 of keys 3, 2, 1, descending
    np.testing.assert_array_equal(sum_diagonals(block), [2 + 30, 1 + 20, 10])


class TestMasks:
    def test_compact_form_equals_the_dense_one(self, monkeypatch):
        monkeypatch.setattr(masks, "_BLOCK_CELLS", 200)
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
