"""Gemma 3 270M, windows in most layers and a rotary base for each kind: recorded as its own attention has it."""

from pathlib import Path

import numpy as np
import pytest
import torch

import posstats as ps
from posstats.dumping.model.load import embed, model_facts
from posstats.errors import ModelError
from posstats.vocabulary import WINDOWED_MODEL

MODELS = Path(__file__).parents[2] / "data" / "models"
#: Longer than two windows of 512, so that analysed queries lie beyond one; in plain English, written for this test.
LENGTH, OFFSETS = 1088, (0, 1, 16)
TEXT = (
    "The harbour was quiet when the fishing boats came back in the early evening. A few children stood on the wall and "
    "watched the men carry baskets of mackerel to the small market behind the church. An old woman, who had sold bread "
    "there for thirty years, asked the youngest fisherman whether the storm that the radio had promised would come "
    "after all. He looked at the sky for a moment, shrugged, and said that the wind had turned to the south, which was "
    "usually a good sign at this time of the year. Nobody believed him entirely, because he had been wrong before, but "
    "everyone hoped that he was right. Later that night the rain began, softly at first, and then so hard that the "
    "gutters could not hold the water and it ran down the narrow streets towards the sea."
)
pytestmark = [pytest.mark.gemma, pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")]


@pytest.fixture(scope="module")
def gemma():
    """The model and its tokenizer, converted once."""
    try:
        return ps.load_model(WINDOWED_MODEL, device="cpu", models_dir=MODELS)
    except ModelError as error:
        if "not installed" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def dump(gemma, tmp_path_factory):
    model, tokenizer = gemma
    seqs = ps.random_sequences(tokenizer, n=5, length=LENGTH)
    path = tmp_path_factory.mktemp("gemma") / "a.h5"
    return ps.open_dump(ps.dump(model, seqs, path, offsets=OFFSETS, tokenizer=tokenizer, progress=False))


@pytest.fixture(scope="module")
def attention(gemma, dump):
    """Its own eager attention on the first sequence, (layer, head, query, key)."""
    model, _ = gemma
    ids = torch.from_numpy(dump.token_id.values[0, :1])
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            found = model.model(inputs_embeds=embed(model, ids), output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(own)
    return np.stack([one[0].double().numpy() for one in found])


def test_what_the_file_says_of_it(gemma):
    model, tokenizer = gemma
    text = model.config
    full = [layer for layer, kind in enumerate(text.layer_types) if kind == "full_attention"]
    assert full == [5, 11, 17]
    assert text.sliding_window == 512
    assert {kind: one["rope_theta"] for kind, one in text.rope_parameters.items()} == {
        "full_attention": 1e6, "sliding_attention": 1e4,
    }  # fmt: skip
    assert (text.head_dim, text.num_attention_heads, text.num_key_value_heads, text.query_pre_attn_scalar) == (
        256, 4, 1, 256,
    )  # fmt: skip
    row = model.get_input_embeddings().weight[100]
    torch.testing.assert_close(embed(model, torch.tensor([[100]]))[0, 0], row * 640**0.5)
    for layer in model.model.layers:  # learned about 1, of which transformers keeps what is beyond it
        assert layer.self_attn.q_norm.weight.shape == layer.self_attn.k_norm.weight.shape == (256,)
    assert tokenizer("Hello world").input_ids == [2, 9259, 1902]
    facts = model_facts(model, tokenizer)
    assert {"inverse_frequencies_full_attention", "inverse_frequencies_sliding_attention"} <= set(facts)
    frequencies = facts["inverse_frequencies_sliding_attention"]
    np.testing.assert_allclose(frequencies, 1e4 ** (-np.arange(0, 256, 2) / 256), rtol=1e-5)
    assert (facts["model"], facts["model_kind"]) == (WINDOWED_MODEL, "trained")


def test_it_reads_plain_english(gemma):
    """And worse with one rotary base for all layers: the file was read as it is meant."""
    model, tokenizer = gemma
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    one_base = {"sliding_attention": {"rope_theta": 1e6}}
    other, _ = ps.load_model(WINDOWED_MODEL, device="cpu", models_dir=MODELS, rope_parameters=one_base)
    with torch.inference_mode():
        loss, worse = (float(one(ids, labels=ids).loss) for one in (model, other))
    assert loss < 3.2 < worse


def test_windows_by_layer(dump, attention):
    keys = (attention[:, :, : LENGTH // 2] > 0).any(1).sum(-1)  # some head gives every visible key a positive weight
    np.testing.assert_array_equal(dump.visible_keys.values, keys)
    assert dump.layer_window.values.tolist() == [0 if layer % 6 == 5 else 512 for layer in range(18)]


def test_recorded_as_its_own_attention_has_it(dump, attention):
    terms = ps.decompose(dump.isel(condition=[0]), reference="pooled")
    terms_sum = terms.relative + terms.mask + terms.sink + terms.redistribution
    for column, offset in enumerate(OFFSETS):
        query = np.arange(max(offset + 1, 1), LENGTH // 2)
        expected = np.log(attention[:, :, query, query - offset])
        for found in (terms.log_attention, terms_sum):  # exactly, beyond the window too
            ours = found.transpose("condition", "sequence", "layer", "head", "query", "offset").values
            np.testing.assert_allclose(ours[0, 0][:, :, query, column], expected, atol=2e-3)
    seen = attention[..., : LENGTH // 2, 0]
    logit, rest = (dump[name].values[0, 0].astype(float) for name in ("sink_logit", "log_denominator_rest"))
    with np.errstate(invalid="ignore"):  # NaN where position 0 is out of sight
        first = np.exp(logit - np.logaddexp(logit, rest))
    np.testing.assert_allclose(np.nan_to_num(first[..., 1:]), seen[..., 1:], atol=2e-4)
    received = dump.attention_received.values[0, 0]
    queries = np.array(dump.attrs["received_queries"])
    for key in (0, 1, 300, 543):
        later = attention[:, :, queries[queries >= key + 16], key]
        count = (later > 0).any(1, keepdims=True).sum(-1)
        expected = np.divide(later.sum(-1), count, out=np.full(later.shape[:2], np.nan), where=count > 0)
        np.testing.assert_allclose(received[..., key], expected, atol=1e-4)


def test_known_answers_hold_in_float64(dump):
    for name in ("closed", "shift", "repeat"):
        assert dump.attrs[f"control_{name}_float64"] < 1e-9
    assert (dump.trajectory_departure < 1e-4).all()
