"""The benchmark runs and measures what it says; its numbers are not tested."""

import importlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from posstats.dataset.blocks import layer_fields
from posstats.dataset.simulate import simulate
from posstats.dataset.terms import decompose, select_condition
from posstats.dumping.recorder.recorder import Recorder
from posstats.stats.inference.resample import document_weights
from tests import tiny

OFFSETS = (0, 1, 4)


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmark, which is no part of the installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))
        names = ("harness", "eager", "estimators", "report", "study")
        yield SimpleNamespace(**{name: importlib.import_module(f"analyses.bench.{name}") for name in names})


def test_repeats_are_interleaved_and_compared_in_pairs(bench):
    order = []
    samples = bench.harness.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == list("ababab")
    known = {
        "a": [bench.harness.Sample(1.0, 2.0), bench.harness.Sample(4.0, 2.0)],
        "b": [bench.harness.Sample(2.0, 1.0)] * 2,
    }
    result = bench.harness.compared(known, over="a", under="b", scale=10)
    assert result["wall"]["ratio"] == {"min": 5.0, "median": 12.5, "max": 20.0}
    assert result["cpu"]["ratio"]["median"] == 20.0
    assert len(samples["a"]) == len(samples["b"]) == 3


def test_cpu_time_does_not_run_while_a_job_sleeps(bench):
    sample = bench.harness.timed(lambda: time.sleep(0.05))
    assert sample.wall >= 0.05 > sample.cpu


def test_peak_memory_sees_what_was_taken_and_given_back(bench):
    np.ones(30_000_000)  # before the block: it must not count
    with bench.harness.peak_memory() as peak:
        np.ones(10_000_000)
    assert 75e6 < peak.beyond < 100e6
    assert peak.baseline > 0


def test_eager_reductions_find_what_the_recorder_records(bench):
    model = tiny.build("llama", "float64")
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 90, (2, 40)))
    before = model.config._attn_implementation
    with bench.eager.eager(model):
        layers = bench.eager.eager_statistics(model, ids, OFFSETS)
    assert model.config._attn_implementation == before
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(ids)
    with Recorder(model, length=40, offsets=OFFSETS) as recorder:
        record = recorder.record(embedded, torch.arange(40)[None])
    for layer, found in enumerate(layers):
        for name, values in found.items():
            expected = getattr(record, name)[:, layer]
            # The softmax of eager attention is taken in float32 whatever the model's format.
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4, err_msg=f"{name} of layer {layer}")


def test_logits_reduce_as_the_weights_do(bench):
    logits = torch.randn((1, 2, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = logits.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), torch.finfo(torch.float64).min)
    found = bench.eager.reduce_logits(logits, OFFSETS)
    assert torch.equal(found["logit"][0, 1, 5], torch.stack([logits[0, 1, 5, 5 - d] for d in OFFSETS]))
    rows = range(9, 12)
    expected = [np.mean([logits[0, 0, r, r - d] for r in rows]) for d in range(6)]
    np.testing.assert_allclose(found["steady_logit"][0, 0], expected)
    expected = [np.mean([logits[0, 0, r, r - d : r + 1].logsumexp(0) for r in rows]) for d in range(6)]
    np.testing.assert_allclose(found["steady_log_sum"][0, 0], expected)


def test_replicates_one_by_one_equal_replicates_at_once(bench):
    ds = simulate(n=8, length=32, heads=2, offsets=OFFSETS, seed=0).dataset
    ((_, field),) = layer_fields(select_condition(decompose(ds), "baseline"))
    weights = document_weights(8, 6, 0)
    one_by_one = [bench.estimators.components_of(field, row) for row in weights]
    np.testing.assert_allclose(one_by_one, bench.estimators.replicates_of(field, weights), rtol=1e-9, atol=1e-12)


def test_a_part_writes_numbers_and_a_table(bench, monkeypatch, tmp_path, capsys):
    part = "estimators"
    size = bench.estimators.Size(24, 1, 2, 96, 99, 2, 1)
    # In this process: a fresh one spends its time on imports.
    monkeypatch.setattr(bench.estimators, "alone", lambda job, *arguments: job(*arguments))
    monkeypatch.setattr(bench.study, "Size", lambda *_: size)
    bench.study.main(["--quick", "--part", part, "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert set(kept) == {part}
    assert kept[part]["measured"]["size"]["length"] == 96
    assert set(kept[part]["measured"]["analyses"]) == set(bench.estimators.METHODS)
    table = (tmp_path / "bench.md").read_text()
    assert table == bench.report.markdown(kept)
    assert table in capsys.readouterr().out
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["bench.json", "bench.md"]
