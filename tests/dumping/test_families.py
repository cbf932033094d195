"""Every rotary family against its own eager attention: the recorder adds nothing and loses nothing."""

import sys

import numpy as np
import pytest
import torch

from posstats.dumping.model.load import embed, model_facts
from posstats.dumping.recorder.closedness import closedness
from posstats.dumping.recorder.forward import Substitute
from posstats.dumping.recorder.layers import watch_layers
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.recorder.structure import (
    decoder_of,
    inverse_frequencies,
    layers_of,
    reset_dynamic_rope,
    text_config,
)
from tests import tiny
from tests.explicit import explicit_statistics

T = 40
OFFSETS = (0, 1, 2, 4, 8, 16)
IDS = torch.randint(3, 97, (2, T), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.arange(T)[None]
ANCHOR = 5
#: What a trajectory may depart from that of its input alone, in a closed system.
CLOSED = {"float64": 1e-9, "float32": 1e-4}
#: Layers in which some query does not see all keys before it.
LOCAL = {
    "mistral": (0, 1, 2),
    "qwen2": (1, 2),
    "qwen3": (2,),
    "gemma2": (0, 2),
    "gemma3": (0, 2),
    "gpt_oss": (0, 2),
    "olmo3": (0, 2),
    "cohere2": (0, 2),
    "llama4": (0, 2),
}
#: Layers without rotary embeddings.
WITHOUT_ROPE = {"smollm3": 1, "llama4": 1, "cohere2": 1}


class Own:
    """What the model says by itself: the statistics of its eager attention, hidden states under default attention."""

    def __init__(self, model):
        decoder = decoder_of(model)
        left = []
        hook = layers_of(model)[-1].register_forward_hook(lambda *call: left.append(call[-1]))
        with torch.no_grad():
            streams = decoder(input_ids=IDS, output_hidden_states=True, use_cache=False).hidden_states
            self.streams = torch.stack([*streams[:-1], left[0]], 1).double().numpy()  # the last one comes normalised
            own = model.config._attn_implementation
            model.set_attn_implementation("eager")
            reset_dynamic_rope(model)
            home = sys.modules[type(decoder).__module__]
            eager, self.layers, self.visible = home.eager_attention_forward, [], []

            def spying(module, query, key, value, mask, *args, scaling, softcap=None, **options):
                extra = {} if softcap is None else {"softcap": softcap}
                output, weights = eager(module, query, key, value, mask, *args, scaling=scaling, **extra, **options)
                self._keep(module, query, key, value, mask[0, 0] == 0, scaling, softcap, weights, output)
                return output, weights

            home.eager_attention_forward = spying
            decoder(input_ids=IDS, output_attentions=True, use_cache=False)
            home.eager_attention_forward = eager
            model.set_attn_implementation(own)
        hook.remove()
        reset_dynamic_rope(model)
        self.visible = np.stack(self.visible)

    def _keep(self, module, query, key, value, visible, scaling, softcap, weights, output):
        """Take the statistics of a layer's logits, once they are known to give its own weights and outputs."""
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1).double() for x in (key, value))
        logits = query.double() @ key.mT * scaling
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        sinks = getattr(module, "sinks", None)
        learned = None if sinks is None else sinks.detach().double().numpy()
        found = explicit_statistics(
            logits.numpy(), visible.numpy(), value.numpy(), OFFSETS, learned=learned, anchor=ANCHOR
        )
        tolerance = 1e-9 if query.dtype == torch.float64 else 1e-4
        np.testing.assert_allclose(found["weights"], weights.double(), atol=tolerance)
        np.testing.assert_allclose(found["output"], output.transpose(1, 2).double(), atol=tolerance)
        self.layers.append(found)
        self.visible.append(visible.numpy())


def check(model, record, own, tolerance):
    """Compare what was recorded with what the model's own attention and residual stream give."""
    for name in own.layers[0]:
        if name not in ("weights", "output"):
            expected = np.stack([layer[name] for layer in own.layers], 1)
            np.testing.assert_allclose(getattr(record, name), expected, rtol=tolerance, atol=tolerance, err_msg=name)
    magnitude = abs(own.streams).reshape(*own.streams.shape[:2], -1)
    np.testing.assert_allclose(record.residual_median, np.median(magnitude, axis=-1), rtol=tolerance)
    np.testing.assert_allclose(record.trajectory, own.streams[:, :, 0], atol=tolerance)
    np.testing.assert_allclose(record.residual_norm, np.linalg.norm(own.streams, axis=-1), rtol=tolerance)
    np.testing.assert_allclose(record.residual_sample, own.streams[:, :, [0, 7]], atol=tolerance)
    depths = text_config(model).num_hidden_layers + 1
    assert record.trajectory.shape == (2, depths, text_config(model).hidden_size)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_family(family, dtype, tolerance):
    model = tiny.build(family, dtype)
    own = Own(model)
    with Recorder(model, length=T, offsets=OFFSETS, probes=(0, 7)) as recorder:
        record = recorder.record(embed(model, IDS), POSITIONS, anchor=ANCHOR)
        visible, sinks = recorder.visible_keys, recorder.learned_sink
    assert record.logit.dtype == np.dtype(dtype)
    check(model, record, own, tolerance)
    for departure in (record.trajectory_departure, closedness(model, embed(model, IDS))):
        assert departure.shape == (2, 4)
        assert departure.dtype == np.dtype(dtype)
        assert (departure <= CLOSED[dtype]).all()

    np.testing.assert_array_equal(visible, own.visible.sum(-1))
    for layer in range(3):
        window = visible[layer].max()
        assert (window < T) == (layer in LOCAL.get(family, ()))
    if family == "gpt_oss":
        np.testing.assert_allclose(sinks, torch.stack([x.self_attn.sinks for x in layers_of(model)]).detach())
    else:
        assert np.isneginf(sinks).all()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rotary_facts(family):
    model = tiny.build(family)
    expected = [layer != WITHOUT_ROPE.get(family) for layer in range(3)]
    np.testing.assert_array_equal(watch_layers(model).rotary, expected)
    facts = model_facts(model, tiny.tokenizer(), length=T)
    np.testing.assert_array_equal(facts["rope_layers"], expected)
    assert all(isinstance(value, str | int | np.ndarray) for value in facts.values())
    if family == "gemma3":
        local, everywhere = (facts[f"inverse_frequencies_{kind}_attention"] for kind in ("sliding", "full"))
        np.testing.assert_allclose(local, 1e4 ** -(np.arange(8) / 8), rtol=1e-6)
        np.testing.assert_allclose(everywhere, 1e6 ** -(np.arange(8) / 8) / 8, rtol=1e-6)
    else:
        channels = {"gpt_neox": 6, "phi": 6, "stablelm": 6}.get(family, facts["head_dim"])
        frequencies = [value for name, value in facts.items() if name.startswith("inverse_frequencies")]
        assert {x.shape for x in frequencies} == {(channels // 2,)}


def test_rescaled_frequencies_depend_on_the_length_and_on_nothing_else():
    for family in ("llama-dynamic", "llama-longrope"):
        model = tiny.build(family)
        short, long = inverse_frequencies(model, 8)[""], inverse_frequencies(model, T)[""]
        assert not np.allclose(short, long)
        np.testing.assert_array_equal(inverse_frequencies(model, 8)[""], short)


def test_recordings_do_not_depend_on_what_was_recorded_before():
    model = tiny.build("llama-dynamic", "float64")
    with Recorder(model, length=T, offsets=OFFSETS) as recorder:
        first = recorder.record(embed(model, IDS), POSITIONS)
        recorder.record(embed(model, IDS), POSITIONS + 60)
        again = recorder.record(embed(model, IDS), POSITIONS)
    np.testing.assert_array_equal(first.logit, again.logit)


@pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f != "llama-dynamic"])
def test_shifting_all_positions_changes_nothing(family):
    model = tiny.build(family, "float64")
    with Recorder(model, length=T, offsets=OFFSETS) as recorder:
        here = recorder.record(embed(model, IDS), POSITIONS)
        there = recorder.record(embed(model, IDS), POSITIONS + 50)
    for name in (
        "logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum", "attention_received",
        "linear_r2_position", "trajectory", "head_output",
    ):  # fmt: skip
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), atol=1e-9)
    assert (there.trajectory_departure <= CLOSED["float64"]).all()


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox", "gemma2", "gemma3", "granite", "gpt_oss", "llama4"])
def test_another_trajectory_from_some_depth_on(family):
    model = tiny.build(family, "float64")
    inputs, other = embed(model, IDS), embed(model, torch.tensor([[90]]))
    with Recorder(model, length=T, offsets=OFFSETS, probes=(0, 7)) as recorder:
        alone = recorder.record(other.expand(1, T, -1), POSITIONS).trajectory  # whatever stands behind it
        baseline = recorder.record(inputs, POSITIONS)
        swapped = [
            recorder.record(inputs, POSITIONS, substitute=Substitute(other[0].expand(2, -1), depth))
            for depth in range(3)
        ]
        replaced = recorder.record(torch.cat([other.expand(2, 1, -1), inputs[:, 1:]], 1), POSITIONS)
    for depth, found in enumerate(swapped):
        # Nothing happens before the block; at its input, nothing but to position 0.
        for name in found.__slots__:
            before, after = getattr(baseline, name), getattr(found, name)
            np.testing.assert_array_equal(before[:, :depth], after[:, :depth], err_msg=name)
        np.testing.assert_array_equal(found.residual_norm[:, depth, 1:], baseline.residual_norm[:, depth, 1:])
        assert np.nanmax(abs(found.sink_logit[:, depth] - baseline.sink_logit[:, depth])) > 1e-2

        # From there on the trajectory is that of the other token alone: a closed system.
        expected = np.repeat(alone[:, depth:], 2, axis=0)
        np.testing.assert_allclose(found.trajectory[:, depth:], expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(found.residual_sample[:, :, 0], found.trajectory)
        assert (found.residual_median[:, depth:] != baseline.residual_median[:, depth:]).any()
        np.testing.assert_allclose(found.residual_norm[..., 0], np.linalg.norm(found.trajectory, axis=-1), rtol=1e-12)
        assert (found.trajectory_departure <= CLOSED["float64"]).all()
    for name in replaced.__slots__:
        np.testing.assert_array_equal(getattr(swapped[0], name), getattr(replaced, name), err_msg=name)
