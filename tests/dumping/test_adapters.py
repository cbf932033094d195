"""Adapters: training is deterministic and paired by seed, loading merges what was trained, mistakes are named."""

import csv
import functools
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import posstats as ps
from posstats.dumping.model.adapters import CONFIG, RECORD, TENSORS, read_adapter
from posstats.dumping.model.checkpoints import weights_digest
from posstats.dumping.model.load import max_length, model_facts
from posstats.errors import InputError, ModelError
from tests import trained
from tests.trained import CORPUS, SETTINGS, fit, torch_as_it_was, train

COMMITTED = trained.ROOT / "data" / "adapters"
corpus, study = (trained.package(f"analyses.train.{name}") for name in ("corpus", "study"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return trained.save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base, tmp_path_factory):
    """Architecture -> folder of a finished run."""
    folder = tmp_path_factory.mktemp("adapters")
    return {name: train(base, folder, name, 0) for name in ("standard", "ntk")}


def record_of(folder):
    return json.loads((folder / RECORD).read_text(encoding="utf-8"))


def losses(folder):
    with (folder / "loss.csv").open(encoding="utf-8") as file:
        return np.array([float(row["loss"]) for row in csv.DictReader(file)])


@pytest.fixture
def copied(adapters, tmp_path):
    """A copy of a finished run that may be spoilt."""
    return Path(shutil.copytree(adapters["standard"], tmp_path / "copy"))


# ---- training


def test_training_lowers_the_loss_and_says_what_it_did(adapters, base):
    folder, record = adapters["standard"], record_of(adapters["standard"])
    assert {path.name for path in folder.iterdir()} == {CONFIG, TENSORS, RECORD, "loss.csv"}
    assert record["held_out_loss"]["after"] < record["held_out_loss"]["before"]
    assert len(losses(folder)) == record["steps"] == 12
    assert record["base_weights_sha256"] == weights_digest(dict(ps.load_model(base, device="cpu")[0].state_dict()))
    assert record["text"]["sha256"] == CORPUS.sha256
    assert record["bos_token"] == "<bos>"
    tensors = load_file(folder / TENSORS)
    assert weights_digest(tensors) == record["adapter_sha256"]
    assert sum(tensor.numel() for tensor in tensors.values()) == record["trained_numbers"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}


def test_the_same_run_gives_the_same_bytes(base, adapters, tmp_path):
    again = train(base, tmp_path, "standard", 0)
    for file in again.iterdir():
        assert file.read_bytes() == (adapters["standard"] / file.name).read_bytes(), file.name


def test_another_seed_is_another_run(base, adapters, tmp_path):
    other = train(base, tmp_path, "standard", 1, steps=3, warmup=1)
    assert losses(other)[0] != losses(adapters["standard"])[0]


def test_runs_of_one_seed_differ_in_nothing_but_the_architecture(base, adapters, tmp_path, monkeypatch):
    monkeypatch.setitem(fit.ARCHITECTURES, "window", {"sliding_window": 1000})  # shows every key: standard, spelled so
    same = train(base, tmp_path, "window", 0)
    np.testing.assert_allclose(losses(same), losses(adapters["standard"]), rtol=1e-4)
    assert losses(adapters["ntk"])[0] != losses(adapters["standard"])[0]


def test_an_interrupted_run_leaves_nothing(base, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(base, tmp_path, "standard", 0, steps=3, warmup=0)
    assert not list(tmp_path.iterdir())


def test_finished_runs_are_skipped_and_other_settings_refused(adapters):
    folder = adapters["standard"].parent
    assert study.finished(fit.Run("standard", 0), SETTINGS, folder)
    assert not study.finished(fit.Run("standard", 7), SETTINGS, folder)
    with pytest.raises(InputError, match=r"other settings \(steps 12 -> 50\); give another --out"):
        study.finished(fit.Run("standard", 0), replace(SETTINGS, steps=50), folder)


def test_the_command_line_trains_tabulates_and_compares(base, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "read_corpus", lambda: CORPUS)
    monkeypatch.setattr(study, "Settings", functools.partial(fit.Settings, **asdict(SETTINGS)))
    arguments = ["--seeds", "1", "--model", str(base), "--architecture", "standard", "--architecture", "ntk"]
    with torch_as_it_was():
        for out in ("first", "second"):
            study.main([*arguments, "--out", str(tmp_path / out), "--against", str(tmp_path / "first")])
    assert (tmp_path / "first" / "runs.csv").read_text().count("\n") == 3
    assert "standard-0: the same numbers as in" in capsys.readouterr().out


# ---- loading


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loading_adds_exactly_what_was_trained(adapters, base, dtype):
    plain, _ = ps.load_model(base, dtype=dtype, device="cpu")
    model, _ = ps.load_model(base, dtype=dtype, device="cpu", adapter=adapters["standard"])
    assert type(model) is type(plain)
    tensors = {name: value.double() for name, value in load_file(adapters["standard"] / TENSORS).items()}
    changed = 0
    for name, weight in plain.state_dict().items():
        key = f"base_model.model.{name.removesuffix('.weight')}.lora_{{}}.weight"
        expected = weight.double()
        if key.format("A") in tensors:
            expected = expected + 16 / 4 * tensors[key.format("B")] @ tensors[key.format("A")]
            changed += 1
        tolerance = 1e-12 if dtype == "float64" else 1e-6
        torch.testing.assert_close(model.state_dict()[name].double(), expected, rtol=tolerance, atol=tolerance)
    assert changed == 3 * 4


def test_the_loss_in_the_record_is_that_of_the_model_as_loaded(adapters, base):
    for name, folder in adapters.items():
        model, tokenizer = ps.load_model(base, device="cpu", adapter=folder)
        held_out = ps.text_sequences(tokenizer, CORPUS.held_out, SETTINGS.held_out, SETTINGS.length, seed=0)
        assert fit.held_out_loss(model, held_out.ids) == pytest.approx(
            record_of(folder)["held_out_loss"]["after"], rel=1e-5
        ), name


def test_an_adapter_brings_its_architecture(adapters, base, tmp_path):
    model, tokenizer = ps.load_model(base, device="cpu", adapter=adapters["ntk"])
    facts = model_facts(model, tokenizer)
    assert facts["model_kind"] == "adapted"
    assert facts["model_variant"] == "ntk_factor=8"
    assert (facts["adapter_architecture"], facts["adapter_seed"], facts["adapter_steps"]) == ("ntk", 0, 12)
    assert facts["weights_sha256"] == weights_digest(dict(model.state_dict()))
    assert max_length(model) == 8 * 128
    same_rope, _ = ps.load_model(base, device="cpu", ntk_factor=8)
    assert facts["inverse_frequencies"].tolist() == model_facts(same_rope)["inverse_frequencies"].tolist()
    sequences = ps.random_sequences(tokenizer, n=5, length=20)
    with ps.open_dump(ps.dump(model, sequences, tmp_path / "a.h5", offsets=[0], progress=False)) as ds:
        assert ds.attrs["model_kind"] == "adapted"
        assert ds.attrs["adapter_sha256"] == record_of(adapters["ntk"])["adapter_sha256"]


def test_a_window_comes_with_the_adapter(copied, base):
    record = record_of(copied) | {"architecture": "window", "variant": {"sliding_window": 9}}
    (copied / RECORD).write_text(json.dumps(record))
    model, _ = ps.load_model(base, device="cpu", adapter=copied)
    assert model_facts(model)["inference_time_window"] == 9


# ---- mistakes


def test_other_weights_are_refused(adapters, tmp_path):
    trained.save_base(tmp_path, seed=1)
    with pytest.raises(ModelError, match=r"continues weights with the digest .*load it on the model it was trained on"):
        ps.load_model(tmp_path, device="cpu", adapter=adapters["standard"])


@pytest.mark.parametrize("name", [RECORD, CONFIG, TENSORS])
def test_a_missing_file_is_named_and_no_pickle_is_read(copied, base, name):
    (copied / name).rename(copied / "adapter_model.bin")
    with pytest.raises(ModelError, match=rf"is no adapter, it has no {name}"):
        ps.load_model(base, device="cpu", adapter=copied)


def test_other_numbers_than_those_trained_are_refused(copied, base):
    tensors = load_file(copied / TENSORS)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, copied / TENSORS)
    with pytest.raises(ModelError, match="does not hold the numbers that its record is about"):
        ps.load_model(base, device="cpu", adapter=copied)


def test_numbers_that_do_not_fit_are_refused(copied, base):
    config = json.loads((copied / CONFIG).read_text())
    (copied / CONFIG).write_text(json.dumps(config | {"r": 5}))
    with pytest.raises(ModelError, match="does not fit the model"):
        ps.load_model(base, device="cpu", adapter=copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"variant": {"heads": 3}}, "heads is no architecture"), ({"steps": "many"}, "does not describe an adapter")],
)
def test_a_record_must_be_one(copied, change, message):
    (copied / RECORD).write_text(json.dumps(record_of(copied) | change))
    with pytest.raises(ModelError, match=message):
        read_adapter(copied)


def test_an_architecture_beside_an_adapter_is_refused(adapters, base):
    with pytest.raises(InputError, match="an adapter brings the architecture"):
        ps.load_model(base, device="cpu", adapter=adapters["ntk"], sliding_window=8)


# ---- text


def test_docstrings_are_read_in_the_order_of_lines_without_running():
    text = corpus.docstrings(
        'raise SystemExit\nclass A:\n    """Second."""\n    def f(self):\n        """Third."""\n'
        'def g():\n    "Fourth \\d."\n'
    )
    assert text == "Second.\n\nThird.\n\nFourth \\d."


def test_the_corpus_is_the_same_every_time_and_parts_are_disjoint(monkeypatch):
    monkeypatch.setattr(corpus, "DISTRIBUTIONS", ("h5py", "xarray"))
    found = corpus.read_corpus()
    assert found == corpus.read_corpus()
    assert not set(found.train) & set(found.held_out)
    assert len(found.train) > 15 * len(found.held_out) > 0
    assert not any("/tests/" in label for label in found.train)
    assert found.facts()["sources"][0] == "pydoc_data.topics"


# ---- what is committed

RUNS = [f"{architecture}-{seed}" for architecture in fit.ARCHITECTURES for seed in range(3)]


def test_all_runs_are_committed_and_listed():
    assert sorted(file.parent.name for file in COMMITTED.glob(f"*/{RECORD}")) == sorted(RUNS)
    table = study.tabulate(COMMITTED)
    assert (COMMITTED / "runs.csv").read_text(encoding="utf-8") == table.to_csv(index=False, lineterminator="\n")
    documented = (trained.ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    for architecture, runs in table.groupby("architecture"):
        before, after = runs.held_out_loss_before, ", ".join(f"{loss:.3f}" for loss in runs.held_out_loss_after)
        assert before.nunique() == 1  # that of the base under this architecture
        assert f"| `{architecture}` | {before.iloc[0]:.3f} | {after} |" in documented


@pytest.mark.parametrize("name", RUNS)
def test_committed_adapters_are_whole(name):
    folder, architecture = COMMITTED / name, name.split("-")[0]
    adapter, record = read_adapter(folder), record_of(folder)
    assert adapter.architecture == architecture
    assert record["variant"] == fit.ARCHITECTURES[architecture]
    assert record["settings"] == json.loads(json.dumps(asdict(fit.Settings())))
    assert weights_digest(load_file(folder / TENSORS)) == adapter.adapter_sha256
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    assert len(losses(folder)) == adapter.steps
    assert np.isfinite(losses(folder)).all()
