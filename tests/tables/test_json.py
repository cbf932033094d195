"""JSON beside CSV: everything there is to know of a table comes back, to the last digit."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posstats.errors import InputError
from posstats.results.columns import COLUMNS
from posstats.results.table import Table, table_of, to_csv, to_json, to_latex, to_markdown, to_text, write_table
from posstats.vocabulary import Note
from tests.refused import refused

#: Names that mean something to one of the formats.
HOSTILE = [
    "two\nlines", "tab\tand\rreturn", "<script>alert(1)</script>", "$x^2$", r"back\slash", '=HYPERLINK("http://a.b")',
    '"quoted", comma', "Infinity", "NaN", "null", "", " ", "\u2028", "α²–", "&amp;", "'", "{{ 7 * 7 }}", "{% raw %}",
    "1e999",
]  # fmt: skip
EXAMPLE = Table(pd.DataFrame({"layer": [0, 1], "estimate": [0.5, np.nan]}), "Example", {"estimate": "nats"})


class TestRoundTrip:
    def test_every_result_comes_back_equal(self, results, tmp_path):
        for one in results:
            table = table_of(one)
            write_table(one, tmp_path, "table")
            back = Table.read(tmp_path / "table.json")
            assert back == table
            pd.testing.assert_frame_equal(back.frame, table.frame, check_exact=True)
            assert [note.kind for note in back.notes] == [note.kind for note in table.notes]
            assert (back.notes, back.units, back.rests_on) == (table.notes, table.units, table.rests_on)
            assert back.level == table.level
            assert {k: tuple(v) if isinstance(v, list) else v for k, v in back.settings.items()} == one.settings
            for spell in (to_csv, to_json, to_markdown, to_latex, to_text):
                assert spell(back) == spell(table) == spell(one)

    def test_what_a_program_reads_without_posstats(self, results):
        for one in results:
            record = json.loads(to_json(one), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
            assert record["title"] == one.title
            assert (record["null"], record["family"]) == (one.rests_on.get("p", ""), one.rests_on.get("q", ""))
            assert {column["name"]: column["meaning"] for column in record["columns"]}.items() <= COLUMNS.items()
            assert all(column["unit"] == one.units for column in record["columns"] if column["name"] == "estimate")
            rows = list(csv.reader(io.StringIO(to_csv(one), newline="")))
            assert [column["name"] for column in record["columns"]] == rows[0]
            spelled = [["" if value is None else str(value) for value in row] for row in record["rows"]]
            assert spelled == rows[1:]

    @given(st.lists(st.floats(width=64), min_size=1), st.text(), st.integers(-(2**63), 2**63 - 1))
    def test_every_number_and_text_comes_back(self, numbers, text, whole):
        frame = pd.DataFrame({"estimate": numbers, "note": [text] * len(numbers), "n": [whole] * len(numbers)})
        back = Table.from_json(to_json(Table(frame, text))).frame
        assert np.array_equal(back.estimate, frame.estimate, equal_nan=True)
        assert np.signbit(back.estimate.dropna()).tolist() == np.signbit(frame.estimate.dropna()).tolist()
        assert (back.note.tolist(), back.n.tolist()) == (frame.note.tolist(), frame.n.tolist())

    def test_types_are_kept(self):
        frame = pd.DataFrame(
            {
                "integer": [1, -2, 3],
                "number": [1.0, np.inf, -np.inf],
                "boolean": [True, False, True],
                "text": ["1", "nan", "Infinity"],
                "counts and shares": pd.Series([7, 0.25, np.nan], dtype=object),
                "holds": pd.Series([True, None, False], dtype=object),
            }
        )
        table = Table(frame, "Types")
        record = json.loads(to_json(table))
        types = [column["type"] for column in record["columns"]]
        assert types == ["integer", "number", "boolean", "text", "mixed", "mixed"]
        back = Table.from_json(to_json(table)).frame
        pd.testing.assert_frame_equal(back.iloc[:, :4], frame.iloc[:, :4])
        assert [type(value) for value in back["counts and shares"]] == [int, float, float]
        assert back.holds.tolist()[::2] == [True, False]
        assert to_csv(Table.from_json(to_json(table))) == to_csv(table)

    def test_a_table_without_rows(self):
        table = Table(pd.DataFrame({"term": [], "estimate": np.zeros(0)}), "Empty")
        assert Table.from_json(to_json(table)) == table

    @pytest.mark.parametrize(
        "other",
        [
            replace(EXAMPLE, frame=EXAMPLE.frame.assign(estimate=[np.nextafter(0.5, 1), np.nan])),
            replace(EXAMPLE, frame=EXAMPLE.frame.assign(layer=[0.0, 1.0])),
            replace(EXAMPLE, title="Another"),
            replace(EXAMPLE, units={}),
            replace(EXAMPLE, level=0.9),
            replace(EXAMPLE, settings={"seed": 1}),
            replace(EXAMPLE, rests_on={"p": "none"}),
            replace(EXAMPLE, notes=("few",)),
            "Example",
        ],
    )
    def test_tables_that_say_something_else_differ(self, other):
        assert other != EXAMPLE

    def test_notes_that_differ_in_kind_differ(self):
        design, inference = (replace(EXAMPLE, notes=(Note("few", kind),)) for kind in ("design", "inference"))
        assert design != inference


class TestNotesByKind:
    def test_footnotes_of_results_have_a_kind(self, results):
        for one in results:
            kinds = [note.kind for note in table_of(one).notes]
            assert kinds[0] == "intervals"
            assert set(kinds) <= {"intervals", "offsets", "queries", "p", "q", "design", "inference"}
            assert kinds.count("p") == ("p" in one.table)

    def test_the_kind_of_a_warning_is_kept(self, results):
        (contrast,) = (one for one in results if type(one).__name__ == "ContrastResult")
        assert [note for note in table_of(contrast).notes if note.kind == "design"] == [f"Note: {contrast.notes[0]}."]

    def test_a_terminal_has_no_room_for_what_single_lines_rest_on(self):
        notes = (Note("95% intervals.", "intervals"), Note("mask share: p, t.", "rests on"))
        text = to_text(replace(EXAMPLE, notes=notes))
        assert "95% intervals." in text
        assert "mask share: p" not in text
        assert "headline.md" in text
        assert "headline.md" not in to_text(replace(EXAMPLE, notes=notes[:1]))


class TestHostileNames:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_they_survive_as_data(self, name, tmp_path):
        frame = pd.DataFrame({"dump": [name, "plain"], "estimate": [0.5, 0.25]})
        table = Table(frame, name, {"estimate": name}, (Note(name, "design"),), settings={"dumps": {name: [name]}})
        write_table(table, tmp_path, "table")
        back = Table.read(tmp_path / "table.json")
        assert back == table
        assert back.frame.dump.tolist() == [name, "plain"]
        assert (back.title, back.notes, back.settings) == (name, (name,), {"dumps": {name: [name]}})
        with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, strict=True))
        assert [row[0] for row in rows] == ["dump", name, "plain"]
        # A row stays a row.
        assert len(to_markdown(table).splitlines()) == 8
        assert sum(line.endswith(r" \\") for line in to_latex(table).splitlines()) == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("", "Expecting value"),
            ("{", "Expecting property name"),
            ("[]", "not as posstats writes it"),
            ("[" * 100_000, "not as posstats writes it"),
            ("null", "not as posstats writes it"),
            ({"rows": None}, "not as posstats writes it"),
            ({"rows": [[0]]}, "a row does not hold 2 values"),
            ({"rows": [0]}, "a row does not hold 2 values"),
            ({"rows": [[0.5, 1.0]]}, "the column layer of type integer holds 0.5"),
            ({"rows": [[True, 1.0]]}, "the column layer of type integer holds True"),
            ({"rows": [[None, 1.0]]}, "the column layer of type integer holds None"),
            ({"rows": [[0, "1"]]}, "the column estimate of type number holds '1'"),
            ({"rows": [[0, ""]]}, "the column estimate of type number holds ''"),
            ({"rows": [[0, {}]]}, "the column estimate of type number holds {}"),
            ({"rows": [[2**70, 1.0]]}, "not as posstats writes it"),
            ({"columns": [{"name": "layer", "type": "whole"}]}, "."),
            ({"columns": 3}, "not as posstats writes it"),
            ({"notes": ["few"]}, "not as posstats writes it"),
            ({"level": "high"}, "could not convert"),
            ({"level": None}, "not as posstats writes it"),
            ({"settings": 3}, "not as posstats writes it"),
        ],
    )
    def test_json_that_is_no_table(self, change, words, tmp_path):
        text = change if isinstance(change, str) else json.dumps(json.loads(to_json(EXAMPLE)) | change)
        (tmp_path / "t.json").write_text(text, encoding="utf-8")
        refused(InputError, rf"cannot read .*t\.json as a table: .*{words}", Table.read, tmp_path / "t.json")

    @pytest.mark.parametrize("key", sorted(json.loads(to_json(EXAMPLE))))
    def test_json_that_lacks_something(self, key, tmp_path):
        record = json.loads(to_json(EXAMPLE))
        del record[key]
        (tmp_path / "t.json").write_text(json.dumps(record), encoding="utf-8")
        refused(InputError, f"KeyError: '{key}'", Table.read, tmp_path / "t.json")

    def test_a_file_that_is_not_there_or_not_text(self, tmp_path):
        refused(InputError, r"cannot read .*gone\.json as a table", Table.read, tmp_path / "gone.json")
        (tmp_path / "t.json").write_bytes(b"\xff\xfe\x00")
        refused(InputError, "as a table", Table.read, tmp_path / "t.json")
