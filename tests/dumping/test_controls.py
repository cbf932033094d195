"""Known answers beside a dump: in float64 from the weights as they are, and what a model that breaks them shows."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import posstats as ps
from posstats.cli.app import app
from posstats.dumping.model.load import embed
from posstats.dumping.recorder.structure import decoder_of, layers_of
from posstats.dumping.run.controls import control_facts
from tests import tiny

NAMES = ("closed", "shift", "repeat")


def controls(model, n=6, length=40):
    facts = control_facts(model, ps.random_sequences(tiny.tokenizer(), n=n, length=length, seed=1))
    return [facts[f"control_{name}"] for name in NAMES], [facts[f"control_{name}_float64"] for name in NAMES], facts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma2", "gpt_neox", "llama4", "qwen3_moe", "gpt_oss"])
def test_rounding_goes_away_in_float64_and_the_model_stays_as_it_was(family, dtype):
    model = tiny.build(family, dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    experts = getattr(model.config, "_experts_implementation", None)
    own, wide, facts = controls(model)
    expected = NAMES[:2] if family == "gpt_oss" else NAMES
    assert (np.array(wide[: len(expected)]) < 1e-11).all()
    if dtype != "float64":
        assert own[1] > 1e3 * wide[1]
    if family == "gpt_oss":  # its learned sinks take the more the fewer keys there are: repeated tokens then differ
        assert np.isnan([own[2], wide[2]]).all()
        assert "no repeat" in facts["control_note"]
    else:
        assert facts["control_note"] == ""
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {value.dtype for value in model.state_dict().values()} == {value.dtype for value in before.values()}
    assert getattr(model.config, "_experts_implementation", None) == experts
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in layers_of(model))


def test_a_model_that_reads_absolute_positions_fails_in_float64_too():
    """By as much as the model's own attention says, pair by pair."""
    model = tiny.build("llama", "float64")
    model.set_attn_implementation("eager")
    decoder_of(model).register_forward_pre_hook(
        lambda _module, args, given: (
            args,
            given | {"inputs_embeds": given["inputs_embeds"] + 0.01 * given["position_ids"][..., None]},
        ),
        with_kwargs=True,
    )
    own, wide, _ = controls(model)
    seqs = ps.random_sequences(tiny.tokenizer(), n=6, length=40, seed=1)
    ids = torch.from_numpy(seqs.ids[:2])

    def log_attention(ids, shift=0):
        options = {"position_ids": torch.arange(40)[None] + shift, "output_attentions": True, "use_cache": False}
        with torch.inference_mode():
            found = decoder_of(model)(inputs_embeds=embed(model, ids), **options).attentions
        return torch.stack(found).log()[..., :20, :20].numpy()

    plain, moved, repeated = log_attention(ids), log_attention(ids, 64), log_attention(ids[:, 1:2].expand(-1, 40))
    shift = repeat = 0.0
    for i in range(20):
        last = repeated[..., 19, 19 - i :]  # of the query that sees most keys, the nearest i + 1
        expected = last - np.log(np.exp(last).sum(-1, keepdims=True))
        shift = max(shift, abs(moved[..., i, : i + 1] - plain[..., i, : i + 1]).max())
        repeat = max(repeat, abs(repeated[..., i, : i + 1] - expected).max())
    assert min(shift, repeat) > 1e-3
    np.testing.assert_allclose(wide[1:], [shift, repeat], rtol=1e-8)
    np.testing.assert_allclose(own, wide, atol=1e-11)
    assert wide[0] < 1e-11  # position 0 still sees itself alone


def test_a_model_in_which_position_0_is_not_closed():
    model = tiny.build("llama")

    def mix(_module, args, given):
        stream = args[0] if args else given["hidden_states"]
        mixed = torch.cat([stream[:, :1] + 0.01 * stream[:, -1:], stream[:, 1:]], 1)
        return ((mixed, *args[1:]), given) if args else (args, given | {"hidden_states": mixed})

    layers_of(model)[1].register_forward_pre_hook(mix, with_kwargs=True)
    own, wide, _ = controls(model)
    assert wide[0] > 1e-3
    assert wide[0] == pytest.approx(own[0], rel=0.05)


def test_no_room_for_a_shift():
    _, wide, facts = controls(tiny.build("llama", max_position_embeddings=40))
    assert np.isnan(wide[1])
    assert facts["control_note"] == "no shift: the model allows 40 positions"
    assert max(wide[0], wide[2]) < 1e-11


def test_a_dump_has_them_and_inspect_says_what_they_mean(tmp_path):
    model, seqs = tiny.build("llama"), ps.random_sequences(tiny.tokenizer(), n=6, length=40, seed=1)
    path = ps.dump(model, seqs, tmp_path / "a.h5", offsets=[0, 1], progress=False)
    own, wide, facts = controls(model)
    with ps.open_dump(path) as ds:
        for name, value in facts.items():
            assert ds.attrs[name] == value
    shown = CliRunner().invoke(app, ["inspect", str(path)]).output
    for name, value in zip(NAMES, own, strict=True):
        (line,) = (line for line in shown.splitlines() if line.strip().startswith(name))
        assert f"{value:.1e}" in line
        assert "rounding" in line
    found = json.loads(CliRunner().invoke(app, ["inspect", str(path), "--json"]).output)["attributes"]
    assert [found[f"control_{name}_float64"] for name in NAMES] == wide
