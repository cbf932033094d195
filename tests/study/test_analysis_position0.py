"""Analysis files of position 0: tables that can be written, the right headlines, nothing where nothing was dumped."""

import importlib.util
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import posstats as ps
from posstats.dataset.store import write_dump
from posstats.results.table import table_of, to_text
from posstats.stats.inference.options import Inference
from posstats.tables.headline import headline_table
from tests import position0

ANALYSES = Path(__file__).parents[2] / "analyses"


@pytest.fixture(scope="module")
def ds():
    return position0.synthetic(n=24, tokens=3)


@pytest.fixture(scope="module")
def findings(ds):
    return {name: analyse(name)(ds, Inference(n_permutations=99)) for name in ("sinks", "trajectory", "readers")}


@pytest.fixture(scope="module")
def every_condition(ds):
    """Whatever some analysis asks for, the controls being no controls here."""
    more = {"bos=mean": "bos=token:7", "shift=3": "baseline", "repeat": "baseline"}
    names = ds.condition.values.tolist()
    controls = {f"control_{name}_float64": 1e-12 for name in ("shift", "repeat", "closed")}
    return ds.sel(condition=[*names, *more.values()]).assign_coords(condition=[*names, *more]).assign_attrs(controls)


@pytest.fixture(scope="module")
def everything(every_condition):
    """Headline lines of every analysis file."""
    files = [file.stem for file in sorted(ANALYSES.glob("*.py")) if "def analyse(" in file.read_text()]
    found = {name: analyse(name)(every_condition, Inference(n_permutations=99)).headline for name in files}
    assert all(found.values())
    return found


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


def documented_rows(name, section):
    """Patterns of the rows of the headline table in a document; "..." stands for anything."""
    text = (ANALYSES.parent / name).read_text(encoding="utf-8").partition(section)[2].partition("\n## ")[0]
    firsts = re.findall(r"^\| ([^|]+) \|", text.partition("| row |")[2], re.MULTILINE)
    rows = [row for first in firsts for row in re.findall(r"`([^`]+)`", first) or first.split("; ")]
    return [re.escape(row).replace(re.escape("..."), ".+") for row in rows]


@pytest.mark.parametrize(
    ("name", "section"),
    [("README.md", "## Reading the table"), ("docs/columns.md", "## Columns of the headline table")],
)
def test_every_headline_quantity_is_documented(everything, name, section):
    rows = documented_rows(name, section)
    quantities = [line.quantity for lines in everything.values() for line in lines]
    assert [quantity for quantity in quantities if not any(re.fullmatch(row, quantity) for row in rows)] == []
    # A row that no analysis writes documents nothing.
    assert [row for row in rows if not any(re.fullmatch(row, quantity) for quantity in quantities)] == []


def test_footnotes_of_the_headline_table_let_it_stand_alone(everything, every_condition, tmp_path):
    path = write_dump(every_condition.assign_attrs(model="toy", sequences="iid tokens"), tmp_path / "toy.h5")
    lines = [{"dump": "toy", **asdict(line)} for lines in everything.values() for line in lines]
    table = headline_table(lines, {"toy": path}, 0.95)
    notes = {note.partition(": ")[0]: note for note in table.notes}
    assert "24 sequences of 80 tokens from 24 documents (iid tokens)" in notes["toy"]
    assert (
        "offsets 0, 1, 2 tokens; max offset < i < Q is i = 3 to 39; conditions baseline, bos="
        in (notes["Analysed of toy"])
    )
    for said in (
        "interval, means of squares by matched moments",
        "max offset < i < Q",
        'one-sided sign-flip test of "no absolute position"',
        "compare leakage at the same offsets only",
        "q, Benjamini-Hochberg over all rows",
    ):
        assert said in notes["leakage"]
    assert "one-sided permutation test" in notes["first token identified"]
    assert 'the mean attention is 0.3": heads significantly below it have a small p' in notes["sink-reading heads"]
    # Every line that has an interval or a test is named, and pooled lines have a q that is p.
    named = ", ".join(notes)
    pooled = [line for line in lines if np.isfinite(line["p"]) and line["quantity"].endswith(("share", "leakage"))]
    assert all(line["quantity"] in named and line["p"] == line["q"] for line in pooled)
    assert table.notes[-1].startswith("Where a family holds a single p")
    # On a terminal the table is followed by a few lines.
    assert len(to_text(table).splitlines()) < len(lines) + 9


def test_dumps_without_what_is_asked(ds):
    plain = ds.isel(condition=[0]).drop_vars("trajectory_departure")
    inference = Inference(n_permutations=99)
    assert not analyse("readers")(plain, inference).tables
    assert not analyse("trajectory")(plain, inference).tables
    assert set(analyse("sinks")(plain, inference).tables) == {"sinks"}
