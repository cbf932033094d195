"""The recorder's manners: what it restores, what it says, what it refuses, and the windows it sees."""

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from posstats.dumping.inputs.sequences import random_sequences
from posstats.dumping.model.load import embed, load_model
from posstats.dumping.recorder.closedness import closedness
from posstats.dumping.recorder.forward import Pass, Substitute, departure
from posstats.dumping.recorder.gathered import Wanted
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.recorder.statistics import AttentionInputs, layer_statistics
from posstats.dumping.recorder.structure import narrow_window
from posstats.dumping.run.dump import dump
from posstats.errors import InputError, ModelError, NumericalError
from tests import tiny

OFFSETS = (0, 1, 2, 4, 8, 16)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


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

    def test_batch_size_does_not_matter(self):
        model = tiny.build("mistral", "float64")
        with Recorder(model, length=40, offsets=OFFSETS, probes=(3,)) as recorder:
            together = recorder.record(embed(model, ids(40, 3)), torch.arange(40)[None])
            for row in range(3):
                alone = recorder.record(embed(model, ids(40, 3)[row : row + 1]), torch.arange(40)[None])
                for name in together.__slots__:
                    np.testing.assert_allclose(getattr(alone, name)[0], getattr(together, name)[row], atol=1e-12)

    def test_shortest_sequence(self, llama):
        with Recorder(llama, length=4, offsets=(0, 1)) as recorder:
            record = recorder.record(embed(llama, ids(4)), torch.arange(4)[None])
        assert np.isneginf(record.log_denominator_rest[..., 0]).all()
        assert np.isnan(record.logit[..., 0, :]).all()
        assert np.isfinite(record.steady_log_sum).all()
        assert np.isfinite(record.sink_logit).all()
        assert np.isnan(record.attention_received).all()
        assert record.residual_sample is None

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"offsets": (0, 4)},
                r"offset must be a whole number from 0 to 3, not 4",
            ),
            ({"offsets": ()}, "at least one offset"),
            ({"probes": (-1,)}, "probe must be a whole number from 0 to 7, not -1"),
            ({"length": 30}, "the length must be a multiple of 4 tokens, .* not 30"),
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

    def test_anchor_and_substitute_outside_the_recorder(self, llama):
        with Recorder(llama, length=8, offsets=(0,)) as recorder:
            for anchor in (0, 8):
                with pytest.raises(InputError, match=rf"anchor {anchor} is outside 1 \.\. 7"):
                    recorder.record(embed(llama, ids(8)), torch.arange(8)[None], anchor=anchor)
            for depth in (-1, 3):
                substitute = Substitute(torch.zeros(2, 48), depth)
                with pytest.raises(InputError, match=rf"depth {depth} is outside 0 \.\. 2"):
                    recorder.record(embed(llama, ids(8)), torch.arange(8)[None], substitute=substitute)

    def test_every_distinct_input_runs_alone_once(self, llama, monkeypatch):
        run, batches = Recorder._run, []

        def counting(recorder, current, inputs_embeds, position_ids):
            batches.append((tuple(inputs_embeds.shape[:2]), position_ids.tolist()))
            return run(recorder, current, inputs_embeds, position_ids)

        monkeypatch.setattr(Recorder, "_run", counting)
        tokens, positions = ids(8, 5), torch.arange(8)[None]
        with Recorder(llama, length=8, offsets=(0,)) as recorder:
            for first, distinct in ((torch.ones(5), 1), (torch.tensor([4, 5, 4, 6, 5]), 3)):
                tokens[:, 0] = first
                batches.clear()
                found = recorder.record(embed(llama, tokens), positions + 3).trajectory_departure
                assert batches == [((distinct, 1), [[3]] * distinct), ((5, 8), (positions + 3).tolist())]
                assert (found <= 1e-4).all()

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

    def test_first_embedding_that_is_not_finite_is_named(self, llama):
        broken = embed(llama, ids(8)).clone()
        broken[:, 0, 0] = torch.nan
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


def test_layers_with_fewer_channels_are_padded():
    current = Pass(torch.zeros(1, 20, 4), 2)
    for depth, channels in enumerate((3, 5)):
        current.keep_residual(depth, torch.ones(1, 20, 4))
        x = torch.ones(1, 2, 20, channels)
        inputs = AttentionInputs(x, x, x, torch.zeros(20, dtype=torch.long), 1.0)
        current.keep(layer_statistics(inputs, Wanted(20, (0,))))
    current.keep_residual(2, torch.ones(1, 20, 4))
    found = current.finish(torch.ones(1, 3, 4)).head_output
    assert found.shape == (1, 2, 2, 5)
    assert np.isnan(found[:, 0, :, 3:]).all()
    np.testing.assert_allclose(found[:, 0, :, :3], 1, rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], 1, rtol=1e-6)


class TestLeaks:
    """What is not closed does not pass for closed."""

    def test_bidirectional_model_is_refused_and_measured(self, tmp_path):
        model = tiny.build("llama", is_causal=False)
        model.set_attn_implementation("eager")  # which, unlike the others, takes no mask for no mask
        found = closedness(model, embed(model, ids(40)))
        assert (found[:, 0] == 0).all()
        assert (found[:, 1:] > 0.1).all()
        seqs = random_sequences(tiny.tokenizer(), n=6, length=40)
        with pytest.raises(ModelError, match=r"the mask of layer .* is not causal"):
            dump(model, seqs, tmp_path / "a.h5", offsets=(0,), progress=False)

    def test_leak_beside_the_mask_is_recorded(self):
        model = tiny.build("llama")

        def leaking(_module, _args, output):
            return output + 0.1 * output.mean(1, keepdim=True)

        model.model.layers[1].register_forward_hook(leaking)
        inputs = embed(model, ids(40))
        with Recorder(model, length=40, offsets=(0,)) as recorder:
            recorded = recorder.record(inputs, torch.arange(40)[None]).trajectory_departure
        for found in (recorded, closedness(model, inputs)):
            assert (found[:, :2] <= 1e-4).all()
            assert (found[:, 2:] > 0.01).all()

    @pytest.mark.parametrize("window", [1, 6])
    def test_a_window_is_no_leak(self, window):
        model = tiny.build("llama", "float64")
        narrow_window(model, window)
        assert (closedness(model, embed(model, ids(40)), torch.arange(40)[None] + 5) <= 1e-9).all()
        assert model.config._attn_implementation.startswith("posstats_window")

    def test_departure_of_zero_vectors(self):
        zero, one = torch.zeros(1, 4), torch.ones(1, 4)
        assert departure(zero, zero) == 0
        assert departure(one, zero) == torch.inf
        assert departure(zero, one) == 1


def test_window_of_a_llama_equals_its_own_attention_under_that_window():
    model = tiny.build("llama", "float64")
    narrow_window(model, 6)
    with Recorder(model, length=40, offsets=OFFSETS) as recorder:
        record = recorder.record(embed(model, ids(40)), torch.arange(40)[None])
        np.testing.assert_array_equal(recorder.visible_keys, np.tile(np.minimum(np.arange(40) + 1, 6), (3, 1)))
    assert np.isnan(record.sink_logit[..., 6:]).all()
    with torch.no_grad():
        own = model.model(input_ids=ids(40), output_hidden_states=True).hidden_states
    np.testing.assert_allclose(record.trajectory[:, 2], own[2][:, 0], atol=1e-12)
    np.testing.assert_allclose(record.residual_norm[:, 2], own[2].norm(dim=-1), rtol=1e-12)


def test_window_narrows_the_models_own():
    model = tiny.build("gemma3", "float64")
    narrow_window(model, 14)
    with Recorder(model, length=40, offsets=OFFSETS) as recorder:
        assert recorder.visible_keys.max(1).tolist() == [10, 14, 10]
    capped = tiny.build("gemma2", "float64")
    narrow_window(capped, 4)
    with Recorder(capped, length=40, offsets=OFFSETS) as recorder:
        record = recorder.record(embed(capped, ids(40)), torch.arange(40)[None])
        assert recorder.visible_keys.max(1).tolist() == [4, 4, 4]
    with torch.no_grad():
        own = capped.model(input_ids=ids(40), output_hidden_states=True).hidden_states
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
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            eager = model.model(input_ids=tokens, output_attentions=True, output_hidden_states=True, use_cache=False)
    finally:
        model.set_attn_implementation(own)
    expected = torch.stack(eager.attentions, 1).double().log().numpy()
    log_z = np.logaddexp(record.sink_logit.astype(np.float64), record.log_denominator_rest)
    np.testing.assert_allclose(record.sink_logit - log_z, expected[..., : length // 2, 0], atol=1e-3)
    for column, offset in enumerate(OFFSETS):
        query = np.arange(offset + 1, length // 2)
        found = record.logit[..., query, column] - log_z[..., query]
        np.testing.assert_allclose(found, expected[..., query, query - offset], atol=1e-3)
    np.testing.assert_allclose(record.trajectory[:, 12], eager.hidden_states[12][:, 0], rtol=1e-3, atol=1e-2)
    assert (record.trajectory_departure <= 1e-4).all()


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
