"""Two dumps count as the same only if the same model made them, and only what can be recorded exactly is recorded."""

import numpy as np
import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import posstats as ps
from posstats.dumping.model.adapters import peft_wraps
from posstats.dumping.model.identity import interventions
from posstats.dumping.model.load import embed, model_facts
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.run.options import RecordOptions
from posstats.dumping.run.plan import make_plan
from posstats.errors import DumpError, ModelError
from tests import tiny
from tests.refused import refused

LENGTH = 24


@pytest.fixture
def llama():
    return tiny.build("llama")


def ids(length=LENGTH, batch=2):
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(3))


def settings(model):
    """The digest that decides whether a dump is reused or taken up."""
    rows = np.arange(5 * LENGTH).reshape(5, LENGTH) % 90 + 3
    sequences = ps.Sequences(rows, document=np.arange(5), source="counting")
    return make_plan(model, sequences, RecordOptions(offsets=[0])).attrs["settings_sha256"]


def record(model):
    with Recorder(model, length=LENGTH, offsets=(0, 1)) as recorder:
        return recorder.record(embed(model, ids()), torch.arange(LENGTH)[None])


class TestSettings:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_the_same_model_is_the_same(self, dtype):
        assert settings(tiny.build("llama", dtype)) == settings(tiny.build("llama", dtype))

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("mistral", {"sliding_window": 5}),
            ("gemma2", {"attn_logit_softcapping": 50.0}),
            ("llama", {"rms_norm_eps": 1e-2}),
            ("llama", {"hidden_act": "gelu"}),
            ("granite", {"attention_multiplier": 1.0}),
        ],
    )
    def test_configuration(self, family, changes):
        assert settings(tiny.build(family)) != settings(tiny.build(family, **changes))

    def test_weights_changed_in_memory(self, tmp_path, llama):
        llama.save_pretrained(tmp_path / "model")
        tiny.tokenizer().save_pretrained(tmp_path / "model")
        loaded, _ = ps.load_model(tmp_path / "model", device="cpu")
        before = model_facts(loaded)
        loaded.model.layers[0].self_attn.o_proj.weight.data.zero_()
        assert model_facts(loaded)["weights_sha256"] != before["weights_sha256"]

    def test_hooks_and_exchanged_functions_are_never_the_same(self, llama):
        plain = settings(llama)
        handle = llama.model.layers[1].self_attn.register_forward_hook(lambda *_: None)
        assert len({plain, settings(llama), settings(llama)}) == 3
        assert "model.layers.1.self_attn" in model_facts(llama)["interventions"]
        handle.remove()
        llama.model.layers[2].mlp.forward = lambda x: 0 * x
        assert len({plain, settings(llama), settings(llama)}) == 3
        del llama.model.layers[2].mlp.forward
        assert settings(llama) == plain

    def test_output_capture_of_transformers_changes_nothing(self, llama):
        plain = settings(llama)
        with torch.inference_mode():
            llama(ids(), output_hidden_states=True, output_attentions=True)
        assert settings(llama) == plain

    def test_a_finished_dump_of_a_hooked_model_is_not_reused(self, tmp_path, llama):
        sequences = ps.random_sequences(tiny.tokenizer(), n=5, length=LENGTH)
        llama.model.layers[1].self_attn.register_forward_hook(lambda _m, _a, output: (0 * output[0], *output[1:]))
        path = ps.dump(llama, sequences, tmp_path / "x.h5", offsets=[0], progress=False)
        refused(DumpError, "other settings", ps.dump, llama, sequences, path, offsets=[0], progress=False)

    def test_an_adapter_switched_off_is_another_model(self, llama):
        peft = pytest.importorskip("peft")
        with peft_wraps():
            adapted = peft.get_peft_model(llama, peft.LoraConfig(r=2, target_modules=["q_proj"]))
        on = interventions(adapted)
        with adapted.disable_adapter():
            off = interventions(adapted)
        assert (on, off) == ("adapters default on", "adapters default off")


class TestKind:
    @pytest.fixture
    def folder(self, tmp_path):
        tiny.build("mistral").save_pretrained(tmp_path / "model")
        tiny.tokenizer().save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    def test_a_configuration_changed_by_hand_makes_a_variant(self, folder):
        config = transformers.AutoConfig.from_pretrained(folder)
        config.sliding_window = 5
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config)
        facts = model_facts(model)
        assert facts["model_kind"] == "inference-time variant"
        assert facts["model_variant"] == "changed sliding_window"

    def test_changed_after_loading(self, folder):
        model, _ = ps.load_model(folder, device="cpu", ntk_factor=2)
        assert model_facts(model)["model_variant"] == "ntk_factor=2"
        model.config.sliding_window = 5
        assert model_facts(model)["model_variant"] == "ntk_factor=2, changed sliding_window"

    def test_as_it_was_trained(self, folder):
        for model in (
            transformers.AutoModelForCausalLM.from_pretrained(folder),
            ps.load_model(folder, device="cpu")[0],
        ):
            assert (model_facts(model)["model_kind"], model_facts(model)["model_variant"]) == ("trained", "")


class TestRefused:
    def test_an_attention_function_of_ones_own(self, llama):
        def cold(*args, scaling, **kwargs):
            return sdpa_attention_forward(*args, scaling=scaling / 2, **kwargs)

        AttentionInterface.register("cold", cold)
        AttentionMaskInterface.register("cold", sdpa_mask)
        llama.set_attn_implementation("cold")
        refused(ModelError, "computes its attention by 'cold'", record, llama)

    def test_an_exchanged_sdpa(self, llama, monkeypatch):
        monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", lambda *_, **__: None)
        refused(ModelError, "which is not transformers' own", record, llama)

    def test_sparse_attention(self):
        """Which keys it chooses reaches its attention function beside the mask."""
        config = transformers.DeepseekV32Config(
            vocab_size=97, hidden_size=48, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=4, kv_lora_rank=16,
            q_lora_rank=16, qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8, n_group=1, topk_group=1,
            num_experts_per_tok=2, first_k_dense_replace=1, max_position_embeddings=128, index_n_heads=2,
            index_head_dim=16, index_topk=8,
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        refused(ModelError, "hands indices to its attention", record, model)

    def test_one_block_in_two_places(self, llama):
        llama.model.layers[2] = llama.model.layers[0]
        refused(ModelError, "one block in several places", record, llama)

    def test_a_block_that_calls_attention_twice_and_one_that_never_does(self, llama):
        class Twice(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, hidden_states, **kwargs):
                return self.inner(hidden_states=self.inner(hidden_states=hidden_states, **kwargs)[0], **kwargs)

        class Never(torch.nn.Module):
            def forward(self, hidden_states, **_):
                return hidden_states, None

        llama.model.layers[0].self_attn = Twice(llama.model.layers[0].self_attn)
        llama.model.layers[1].self_attn = Never()
        refused(ModelError, "first 1 blocks of LlamaForCausalLM called attention 2 times", record, llama)

    def test_a_model_that_is_being_recorded(self, llama):
        with Recorder(llama, length=LENGTH, offsets=(0,)), pytest.raises(ModelError, match="being recorded already"):
            record(llama)
        assert np.isfinite(record(llama).residual_norm).all()
