"""What a dry run says a dump will take: what every file costs is counted once, and batches as they are recorded."""

import pytest

from posstats.dumping.inputs.sequences import random_sequences
from posstats.dumping.run import cost
from posstats.dumping.run.cost import _Rehearsal, estimate_cost
from posstats.dumping.run.options import RecordOptions
from tests import tiny

CONDITIONS = ("baseline", "bos=mean", "bos=none")


@pytest.fixture
def measured(monkeypatch):
    """Rehearsals of a machine of known speed, and what they were of."""
    calls = []

    def measure(_model, _sequences, _plan, count, batch):
        calls.append((count, batch))
        return _Rehearsal(count, speed["pass"] * count, speed["file"] + 0.01 * count, 0.5)

    speed = {"pass": 0.1, "file": 3.0, "calls": calls}
    monkeypatch.setattr(cost, "_measure", measure)
    return speed


def estimated(tmp_path, n=40, batch=8):
    sequences = random_sequences(tiny.tokenizer(), n=n, length=16)
    options = RecordOptions(CONDITIONS, offsets=(0,), batch_size=batch)
    return estimate_cost(tiny.build("llama"), sequences, tmp_path / "d.h5", options)


def test_what_a_file_costs_is_counted_once(measured, tmp_path):
    found = estimated(tmp_path)
    assert found.seconds == pytest.approx(120 * 0.1 + 3 + 120 * 0.01)
    assert found.file_bytes == found.value_bytes // 2
    # The first pass of a process counts for nothing.
    assert measured["calls"] == [(1, 1), (1, 1), (16, 8)]


def test_a_slow_model_is_tried_on_as_little_as_tells(measured, tmp_path):
    measured["pass"] = 2.5  # two batches of 8 would take 40 s, one takes 20
    assert estimated(tmp_path).seconds == pytest.approx(120 * 2.5 + 3 + 120 * 0.01)
    assert measured["calls"].pop() == (8, 8)
    measured["pass"], measured["calls"][:] = 50.0, []
    assert estimated(tmp_path).seconds == pytest.approx(120 * (50 + 3.01))
    assert measured["calls"] == [(1, 1)]


def test_a_batch_is_never_larger_than_the_dump(measured, tmp_path):
    estimated(tmp_path, n=6, batch=8)
    assert measured["calls"].pop() == (6, 6)
