"""Known answers of docs/method.md, section 10, on models of real architecture, dumped and read back."""

import numpy as np
import pytest
import torch

import posstats as ps
from posstats import Sequences
from tests import brute, tiny

OFFSETS = (0, 1, 2, 4)
RESIDUAL_TERMS = ("sink", "redistribution")
RECORDED = (
    "logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum", "trajectory", "residual_norm",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")


def sequences(n, length, bos=False):
    ids = np.random.default_rng(0).integers(3, 97, size=(n, length))
    if bos:
        ids[:, 0] = 1
    options = {"bos_id": 1, "bos_token": "<bos>"} if bos else {}
    return Sequences(ids, np.arange(n), source="iid tokens", ordinary=np.arange(3, 97), **options)


def recorded(model, path, n=6, length=24, conditions=("baseline",), offsets=OFFSETS, bos=False):
    ps.dump(model, sequences(n, length, bos), path, conditions=conditions, offsets=offsets, progress=False)
    return ps.open_dump(path).load()


def true_log_attention(model, ids):
    """Log attention of the model's own eager path, (sequence, layer, head, query, key)."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = model(torch.as_tensor(ids), output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    with np.errstate(divide="ignore"):
        return np.log(np.stack([layer.numpy() for layer in attentions], axis=1))


def identity_error(ds, log_attention, name="baseline"):
    """Largest departure of the sum of the four terms from the model's own log attention, in nats."""
    terms = ps.decompose(ds.sel(condition=[name])).isel(condition=0)
    total = sum(terms[term] for term in ("relative", "mask", *RESIDUAL_TERMS))
    total = total.transpose("sequence", "layer", "head", "query", "offset").values
    worst, compared = 0.0, 0
    for o, d in enumerate(ds.offset.values.tolist()):
        i = np.arange(d + 1, ds.sizes["query"])
        expected = log_attention[..., i, i - d]
        got = total[..., i, o]
        seen = np.isfinite(expected)
        assert (np.isfinite(got) == seen).all()
        worst = max(worst, np.abs(got - expected)[seen].max())
        compared += seen.sum()
    assert compared > 0
    return worst


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_neox", "qwen3", "gpt_oss"])
def test_identity_in_float64(family, tmp_path):
    model = tiny.build(family, "float64")
    ds = recorded(model, tmp_path / "d.h5")
    assert identity_error(ds, true_log_attention(model, ds.token_id.values[0])) < 1e-9


@pytest.mark.model
def test_identity_on_the_default_model(default_model, tmp_path):
    model, tokenizer = default_model
    seqs = ps.random_sequences(tokenizer, n=5, length=40, seed=1)
    ps.dump(model, seqs, tmp_path / "d.h5", tokenizer=tokenizer, progress=False)
    ds = ps.open_dump(tmp_path / "d.h5").load()
    assert identity_error(ds, true_log_attention(model, seqs.ids)) < 1e-3


def test_uniform_logits(tmp_path):
    model = tiny.build("llama", "float64")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    terms = ps.decompose(recorded(model, tmp_path / "d.h5"))
    # 12 keys of the steady state against the i + 1 of a query.
    mask = terms["mask"].isel(query=slice(1, None))
    expected = np.broadcast_to(np.log(12 / np.arange(2, 13)), mask.shape)
    np.testing.assert_allclose(mask, expected, atol=1e-12)
    np.testing.assert_allclose(terms["relative"], -np.log(12), atol=1e-12)
    for name in RESIDUAL_TERMS:
        assert float(np.abs(terms[name]).max()) < 1e-12


def test_sliding_window(tmp_path):
    window = 11  # of every layer of the tiny Mistral
    terms = ps.decompose(recorded(tiny.build("mistral", "float64"), tmp_path / "d.h5", length=48))
    late = terms.isel(query=slice(window - 1, None))
    assert float(np.abs(late["mask"]).max()) < 1e-12
    assert float(np.abs(terms["sink"].isel(query=slice(window, None))).max()) == 0.0
    assert float(np.abs(terms["sink"].isel(query=slice(1, window))).max()) > 1e-3


def residual_alone(ds, condition):
    """Largest residual term of sequences decomposed by themselves, the mask counted first, in nats."""
    terms = ps.decompose(ds.sel(condition=[condition]), order="mask_first", reference="sequence")
    return max(float(np.abs(terms[name]).max()) for name in RESIDUAL_TERMS)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-9)])
def test_repeat_has_no_residual_terms_untrained(dtype, tolerance, tmp_path):
    ds = recorded(tiny.build("llama", dtype), tmp_path / "d.h5", conditions=("baseline", "repeat"))
    assert residual_alone(ds, "repeat") < tolerance
    assert residual_alone(ds, "baseline") > 0.1


def test_shift_changes_nothing_in_float64(tmp_path):
    ds = recorded(tiny.build("llama", "float64"), tmp_path / "d.h5", conditions=("baseline", "shift=64"))
    for name in RECORDED:
        first, second = (ds[name].sel(condition=c).values for c in ("baseline", "shift=64"))
        finite = np.isfinite(first)
        assert (finite == np.isfinite(second)).all()
        np.testing.assert_allclose(first[finite], second[finite], atol=1e-9, rtol=1e-9)


@pytest.mark.model
def test_repeat_and_shift_on_the_default_model(default_model, tmp_path):
    model, tokenizer = default_model
    seqs = ps.random_sequences(tokenizer, n=5, length=40, seed=2)
    conditions = ("baseline", "shift=64", "repeat")
    ps.dump(model, seqs, tmp_path / "d.h5", conditions=conditions, tokenizer=tokenizer, progress=False)
    ds = ps.open_dump(tmp_path / "d.h5").load()
    for name in ("logit", "sink_logit", "log_denominator_rest"):
        shifted, baseline = (ds[name].sel(condition=c).values for c in ("shift=64", "baseline"))
        finite = np.isfinite(baseline)
        assert np.abs(shifted[finite] - baseline[finite]).max() < 1e-3
    assert residual_alone(ds, "repeat") < 1e-3
    assert residual_alone(ds, "baseline") > 1


def test_mask_alone_at_layer_0_on_iid_tokens_without_bos(tmp_path):
    # Scatter of the logits lowers the mean log-sum over few keys more than that over many, which no mask does. The
    # answer holds where that scatter is small.
    model = tiny.build("llama", "float64")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(0.03)
    ds = recorded(model, tmp_path / "d.h5", n=64, length=48)
    # A level at which chance alone fails the test once in a thousand models.
    table = ps.shares(ds.sel(layer=[0]), octaves=False, n_resamples=99, level=0.999).table.set_index("term")
    assert table.low["mask"] < 1 < table.high["mask"]
    assert table.low["residual"] < 0 < table.high["residual"]
    assert table.se["mask"] < 0.01


@pytest.mark.model
def test_mask_alone_at_layer_0_of_the_default_model(default_model, tmp_path):
    model, tokenizer = default_model
    layers, model.model.layers = model.model.layers, model.model.layers[:1]
    n_layers, model.config.num_hidden_layers = model.config.num_hidden_layers, 1
    try:
        seqs = ps.random_sequences(tokenizer, n=48, length=64, bos=False, seed=0)
        ps.dump(model, seqs, tmp_path / "d.h5", tokenizer=tokenizer, progress=False)
    finally:
        model.model.layers, model.config.num_hidden_layers = layers, n_layers
    table = ps.shares(ps.open_dump(tmp_path / "d.h5"), octaves=False, n_resamples=99).table.set_index("term")
    assert table.low["mask"] < 1 < table.high["mask"]
    assert table.low["residual"] < 0 < table.high["residual"]


def test_a_dump_of_a_model_agrees_with_brute_force(tmp_path):
    """End to end: explicit logits of the model's own attention against the estimators on the dump."""
    model = tiny.build("llama", "float64")
    ds = recorded(model, tmp_path / "d.h5", n=6, length=40, conditions=("baseline", "bos=none"), bos=True)
    oracle = {}
    for k, name in enumerate(("baseline", "bos=none")):
        # Attention tells logits up to a constant per query, which no term depends on.
        log_a = true_log_attention(model, ds.token_id.values[k])
        oracle[name] = brute.Brute(np.where(np.isfinite(log_a), log_a, 0.0), range(6), OFFSETS)
    table = ps.shares(ds, octaves=False, n_resamples=99, level=0.5).table
    for name, expected in oracle.items():
        rows = table[table.condition == name].set_index("term")
        assert ps.leakage(ds.sel(condition=[name]), octaves=False, n_resamples=99).table.estimate[0] == pytest.approx(
            expected.leakage().sum(), rel=1e-8
        )
        for term, value in expected.pooled_shares().items():
            assert rows.estimate[term] == pytest.approx(float(value), rel=1e-8, abs=1e-9)
    row = ps.removal(ds, "bos=none", n_resamples=99).table.set_index("queries").loc["[2, 16)"]
    assert row.estimate == pytest.approx(brute.removal(oracle["baseline"], oracle["bos=none"], range(2, 16)), rel=1e-8)
