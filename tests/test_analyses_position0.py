"""Analysis files of position 0: tables that can be written, the right headlines, nothing where nothing was dumped."""

import importlib.util
from pathlib import Path

import pytest

import posstats as ps
from posstats.config import InferenceConfig
from posstats.tables import table_of
from tests import position0

ANALYSES = Path(__file__).parents[1] / "analyses"


@pytest.fixture(scope="module")
def ds():
    return position0.synthetic(n=24, tokens=3)


@pytest.fixture(scope="module")
def findings(ds):
    return {name: analyse(name)(ds, InferenceConfig(n_permutations=99)) for name in ("sinks", "trajectory", "readers")}


def analyse(name):
    spec = importlib.util.spec_from_file_location(f"analysis_{name}", ANALYSES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.analyse


def test_tables_and_figures(findings):
    assert set(findings["sinks"].tables) == {"sinks", "sink_contrasts"}
    assert set(findings["trajectory"].tables) == {"trajectory", "first_token"}
    assert set(findings["readers"].tables) == {"readers"}
    drawn = set().union(*(one.figures for one in findings.values()))
    assert drawn == {
        "attention_on_position_0", "anchoring", "trajectory_by_depth", "first_token_by_layer", "displacement_by_depth",
    }  # fmt: skip
    for one in findings.values():
        for table in one.tables.values():
            assert table_of(table).notes[0].startswith("95% intervals")
            assert any(note.startswith("q: Benjamini-Hochberg") for note in table_of(table).notes)


def test_headlines(findings, ds):
    lines = {line.quantity: line for one in findings.values() for line in one.headline}
    heads = ps.sinks(ds).table.query("condition == 'baseline'")
    assert lines["sink-reading heads"].estimate == heads.sink_reading.sum()
    assert lines["sink-reading heads"].note == "of 6"
    largest = float(ds.trajectory_departure.max())
    assert lines["largest departure of position 0 from running alone"].estimate == pytest.approx(largest)
    moved = ps.readers(ds, n_permutations=99).table.set_index(["condition", "quantity"])
    expected = moved.estimate["bos=token:7", "difference"]
    assert lines["sink-reading minus other heads moved by bos=token:7"].estimate == expected
    anchored = lines["attention on BOS minus position 0 under bos@4"]
    assert anchored.low < anchored.estimate < anchored.high
    assert "first token identified from sink-reading heads, bos=tokens:3" in lines


def test_dumps_without_what_is_asked(ds):
    plain = ds.isel(condition=[0]).drop_vars("trajectory_departure")
    inference = InferenceConfig(n_permutations=99)
    assert not analyse("readers")(plain, inference).tables
    assert not analyse("trajectory")(plain, inference).tables
    assert set(analyse("sinks")(plain, inference).tables) == {"sinks"}
