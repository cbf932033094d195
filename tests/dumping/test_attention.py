"""What is recorded of a layer, against the whole query-by-key matrix in float64; masks."""

import numpy as np
import pytest
import torch
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from posstats.dumping.recorder import gathered, masks
from posstats.dumping.recorder import statistics as recorded
from posstats.dumping.recorder.gathered import Wanted, by_lag, log_prefix_sums
from posstats.dumping.recorder.masks import compact_mask, first_visible, visible_start
from posstats.dumping.recorder.median import magnitude_median
from posstats.dumping.recorder.statistics import (
    AttentionInputs,
    layer_statistics,
    output_fraction,
    single_output,
    value_norms,
)
from posstats.errors import ModelError
from posstats.stats.earlier import explicit_offsets, linear_position_r2
from posstats.vocabulary import analysed_half, received_queries, reference_queries
from tests.explicit import explicit_statistics

OFFSETS = (0, 1, 2, 4, 8, 16)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def first_keys(length, mask):
    """First visible key of each query under a causal mask, a window, or chunks of a number of tokens."""
    position = torch.arange(length)
    kind, size = mask if isinstance(mask, tuple) else ("window", mask or length)
    return position - position % size if kind == "chunks" else (position - size + 1).clamp_min(0)


def inputs(
    length, *, mask=None, heads=6, kv_heads=2, channels=16, sink=0.0, learned=None, softcap=None, seed=0, batch=2
):
    """Random queries, keys and values; ``sink`` draws the queries of half the heads towards key 0."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn((batch, count, length, channels), generator=generator) for count in (heads, kv_heads, kv_heads)
    )
    key[:, :, 0] = 1.0
    query[:, ::2] += sink
    return AttentionInputs(query, key, value, first_keys(length, mask), channels**-0.5, softcap, learned)


def changed(x, dtype, device="cpu"):
    """The same layer in another dtype and place."""
    query, key, value = (y.to(device, dtype) for y in (x.query, x.key, x.value))
    learned = None if x.learned_sink is None else x.learned_sink.to(device, dtype)
    return AttentionInputs(query, key, value, x.first.to(device), x.scaling, x.softcap, learned)


def logits_and_mask(x):
    """All logits of a layer, (batch, head, query, key), in float64, and which are visible."""
    x = changed(x, torch.float64)
    group = x.query.shape[1] // x.key.shape[1]
    logits = x.query @ x.key.repeat_interleave(group, 1).mT * x.scaling
    if x.softcap is not None:
        logits = x.softcap * torch.tanh(logits / x.softcap)
    position = torch.arange(logits.shape[-1])
    return logits.numpy(), ((position <= position[:, None]) & (position >= x.first[:, None])).numpy()


def explicit(x, offsets, anchor=None):
    """The same statistics from the whole matrix."""
    logits, visible = logits_and_mask(x)
    value = x.value.double().repeat_interleave(x.query.shape[1] // x.value.shape[1], 1).numpy()
    learned = None if x.learned_sink is None else x.learned_sink.double().numpy()
    found = explicit_statistics(logits, visible, value, offsets, learned=learned, anchor=anchor)
    return {name: values for name, values in found.items() if name != "weights"}


def compare(found, expected, tolerance, names=None):
    for name in names or expected:
        actual = getattr(found, name).double().cpu().numpy()
        np.testing.assert_allclose(actual, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


MASKS = [None, 1, 7, 25, ("chunks", 10), ("chunks", 16)]


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("mask", MASKS)
def test_whole_matrix(mask, softcap, monkeypatch):
    x = changed(inputs(52, mask=mask, softcap=softcap, learned=torch.linspace(-1, 2, 6)), torch.float64)
    expected = explicit(x, OFFSETS, anchor=5)
    for rows in (1, 17, 1000):  # blocks of unequal size, too
        monkeypatch.setattr(recorded, "_BLOCK_BYTES", {"cpu": 0})
        monkeypatch.setattr(recorded, "FEWEST_ROWS", rows)
        found = layer_statistics(x, Wanted(52, OFFSETS), anchor=5)
        assert found.finite
        compare(found, expected, 1e-10)
    assert np.isnan(expected["steady_logit"]).any() == (mask is not None)


@pytest.mark.parametrize("mask", [None, 5, 300, ("chunks", 100)])
@pytest.mark.parametrize("sink", [0.0, 6.0])
@pytest.mark.parametrize("length", [4, 60, 332, 1024])
def test_single_precision(length, sink, mask):
    compare_single_precision(length, sink, mask, "cpu")


def compare_single_precision(length, sink, mask, device):
    learned = torch.linspace(-3, 3, 6) if mask == 5 else None
    x = inputs(length, mask=mask, sink=sink, learned=learned, batch=1)
    offsets = tuple(d for d in OFFSETS if d < length // 2)
    expected = explicit(x, offsets, min(3, length - 1))
    found = layer_statistics(changed(x, torch.float32, device), Wanted(length, offsets), min(3, length - 1))
    if sink and mask is None and length > 4:  # position 0 takes all the attention, and the rest is still accurate
        rest, first = expected["log_denominator_rest"], expected["sink_logit"]
        assert (np.exp(first - np.logaddexp(first, rest))[..., 1:] > 0.9999).any()
    exact = {name for name in expected if name not in ("logit", "sink_logit", "log_denominator_rest")}
    compare(found, expected, 3e-5, exact)
    compare(found, expected, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_float32_statistics(dtype):
    compare_half_precision(dtype, "cpu")


def compare_half_precision(dtype, device):
    x = changed(inputs(200), dtype, device)
    found = layer_statistics(x, Wanted(200, OFFSETS), 20)
    assert found.output.dtype == dtype
    assert {getattr(found, name).dtype for name in ("logit", "steady_log_sum", "head_output")} == {torch.float32}
    expected = explicit(changed(x, dtype), OFFSETS, 20)
    compare(found, expected, 3e-5, [name for name in expected if name != "output"])
    compare(found, expected, 1e-2, ["output"])


@needs_gpu
@pytest.mark.parametrize("mask", [None, 300])
def test_a_gpu(mask):
    for length in (4, 332, 1024):
        compare_single_precision(length, 6.0, mask, "cuda")
    for dtype in (torch.bfloat16, torch.float16):
        compare_half_precision(dtype, "cuda")


def test_linear_r2_is_the_metric_of_every_pair():
    """Against the least squares of :mod:`posstats.stats.earlier`, and a plane that the logits are."""
    x = changed(inputs(24, batch=3), torch.float64)
    logits, _ = logits_and_mask(x)
    found = layer_statistics(x, Wanted(24, (0,)))
    for row in range(3):
        one = linear_position_r2(*explicit_offsets(logits[[row]]))
        np.testing.assert_allclose(found.linear_r2_offset[row], one.r2_relative[0], atol=1e-12)
        np.testing.assert_allclose(found.linear_r2_position[row], one.r2_full[0], atol=1e-12)
    position = torch.arange(24, dtype=torch.float64)
    query, key = torch.ones(2, 1, 1, 24, 2, dtype=torch.float64)
    query[..., 0], key[..., 1] = 0.3 * position, -0.1 * position  # s = 0.3 i - 0.1 j
    plane = layer_statistics(AttentionInputs(query, key, key, torch.zeros(24).long(), 1.0), Wanted(24, (0,)))
    assert plane.linear_r2_position.item() == pytest.approx(1.0)
    assert plane.linear_r2_offset.item() < 0.9


def test_linear_r2_of_logits_that_do_not_vary_is_not_a_number():
    for constant in (0.0, 3.7):
        query, key = torch.full((2, 1, 2, 40, 4), constant)
        found = layer_statistics(AttentionInputs(query, key, key, torch.zeros(40).long(), 0.3), Wanted(40, (0,)))
        assert found.linear_r2_offset.isnan().all()
        assert found.linear_r2_position.isnan().all()
    alone = layer_statistics(inputs(40, mask=1), Wanted(40, (0,)))  # every query sees itself: no offset but 0
    assert alone.linear_r2_offset.isnan().all()
    assert alone.linear_r2_position.isnan().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_noticed(value):
    for place in (0, 30, 63):
        x = inputs(64)
        x.key[1, 0, place, 3] = value
        assert not layer_statistics(x, Wanted(64, (0,))).finite


def test_views_and_sums_along_lags():
    block = torch.arange(12.0).reshape(1, 3, 4)  # queries 1, 2, 3 of the keys 3 .. 0
    found = by_lag(block)[0]
    for row, query in enumerate((1, 2, 3)):
        assert found[row, : query + 1].tolist() == [block[0, row, 3 - (query - d)].item() for d in range(query + 1)]
    logits = torch.randn(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    expected = [logits[:, : m + 1].logsumexp(-1) for m in range(50)]
    torch.testing.assert_close(log_prefix_sums(logits), torch.stack(expected, -1))
    # The exponential of the first logit vanishes beside the last one in single precision.
    steep = torch.linspace(0, 200, 50)
    torch.testing.assert_close(log_prefix_sums(steep)[:3], steep[:3].logcumsumexp(0))
    assert -np.log(torch.finfo(torch.float32).tiny) > gathered._SAFE_SPREAD


def test_queries():
    assert reference_queries(256) == list(range(192, 256))
    assert reference_queries(40) == list(range(30, 40))
    for length in (4, 8, 40, 256, 300, 1000, 4096):
        for queries, first, most in (
            (reference_queries(length), 3 * length // 4, 64),
            (received_queries(length), length // 4, 32),
        ):
            assert len(queries) == min(length - first, most)
            assert len(set(np.diff(queries))) <= 1
            assert first <= queries[0] <= queries[-1] == length - 1
            assert 2 * (queries[0] - first) <= length - first, "they span most of what they are to span"
        assert analysed_half(length) == length // 2


@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 1, 4), (2, 40, 48), (1, 7, 33), (4, 64, 64)])
def test_median(shape):
    stream = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    stream[:, 0] *= 1000
    for one in (stream, stream.double(), stream.bfloat16(), torch.zeros(shape), stream.sign(), stream.cumsum(-1)):
        found = magnitude_median(one)
        assert found.dtype == torch.promote_types(one.dtype, torch.float32)
        expected = np.median(abs(one.to(found.dtype).numpy()).reshape(shape[0], -1), axis=-1)
        np.testing.assert_array_equal(found, expected)


def test_a_sample_that_misleads():
    """The values that are looked at first are all larger than the others."""
    stream = torch.rand(1, 100, 37, generator=torch.Generator().manual_seed(0))
    stream.flatten()[::37] += 5
    np.testing.assert_array_equal(magnitude_median(stream), np.median(stream))


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
    short = layer_statistics(inputs(16), Wanted(16, (0,)))
    assert short.head_output.isnan().all()
    assert short.sink_output_fraction.isnan().all()
    for anchor, absent in ((None, True), (4, True), (3, False)):  # the query 20 would be the first behind 4
        found = layer_statistics(inputs(20), Wanted(20, (0,)), anchor)
        assert found.anchor_attention.isnan().all() == absent
        assert found.anchor_sink_attention.isnan().all() == absent
    # Keys of the first half that no sampled query sees from 16 tokens away.
    assert layer_statistics(inputs(40, mask=16), Wanted(40, (0,))).attention_received.isnan().all()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("learned", [None, torch.linspace(-1, 2, 6)])
def test_a_token_alone(softcap, learned):
    x = changed(inputs(4, softcap=softcap, learned=learned), torch.float64)
    alone = AttentionInputs(x.query[:, :, :1], x.key[:, :, :1], x.value[:, :, :1], x.first[:1], *list_of(x))
    torch.testing.assert_close(single_output(alone), layer_statistics(x, Wanted(4, (0,))).output[:, :, :1])


def list_of(x):
    return x.scaling, x.softcap, x.learned_sink


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
