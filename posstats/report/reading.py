"""Read back what an analysis wrote: its tables, its figures, and the recordings they rest on.

Every table is read twice: from the CSV, whose digits are the numbers, and from the Markdown beside it, which has title,
units, footnotes and the numbers rounded for people. The page shows the latter and keeps the former behind each cell.
"""

import csv
import hashlib
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from posstats.dataset.store import open_dump
from posstats.errors import InputError
from posstats.results.cells import column_cells, interval_cells
from posstats.study.analysis import changes
from posstats.study.config import AnalysisConfig

logger = logging.getLogger(__name__)

#: Columns of the headline table that its lines must agree in.
_LINE = ("quantity", "unit", "estimate", "low", "high", "p", "q", "note")
_AGAIN = "run posstats analyze again"


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table as it lies in the folder of the results.

    Attributes
    ----------
    name : str
        File name without ending.
    folder : Path
        Where its files are.
    title : str
        One line.
    headings : dict of str to str
        Column -> heading with its unit. The limits of an interval share the heading of `low`.
    raw, shown : tuple of dict of str to str
        A row each, by column: the digits of the CSV, and the text of the Markdown (`low` holds the interval).
    numeric : frozenset of str
        Columns that are set as numbers.
    notes : tuple of str
        Footnotes.
    """

    name: str
    folder: Path
    title: str
    headings: dict[str, str]
    raw: tuple[dict[str, str], ...]
    shown: tuple[dict[str, str], ...]
    numeric: frozenset[str]
    notes: tuple[str, ...]

    def file(self, ending: str) -> Path:
        """One of its files."""
        return self.folder / f"{self.name}.{ending}"

    def find(self, **where: str) -> list[int]:
        """Numbers of the rows whose columns have the given values; a column that the table lacks rules nothing out."""
        asked = {name: value for name, value in where.items() if name in self.headings}
        return [k for k, row in enumerate(self.raw) if all(row[name] == value for name, value in asked.items())]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one question asked of one dump has left.

    Attributes
    ----------
    dump, question : str
        Name of the dump, and of the analysis file.
    digest : str
        Of everything the answer rests on.
    headline : tuple of dict
        Its lines of the headline table.
    tables : dict of str to WrittenTable
    figures : dict of str to Path
        File name without ending -> the PNG; the PDF lies beside it.
    """

    dump: str
    question: str
    digest: str
    headline: tuple[dict[str, Any], ...]
    tables: dict[str, WrittenTable]
    figures: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Recording:
    """What a dump says of itself.

    Attributes
    ----------
    path : Path
    sizes : dict of str to int
        Size of every dimension.
    documents : int
    conditions : tuple of str
    offsets : tuple of int
    attributes : dict of str to object
    """

    path: Path
    sizes: dict[str, int]
    documents: int
    conditions: tuple[str, ...]
    offsets: tuple[int, ...]
    attributes: dict[str, Any]

    @property
    def design(self) -> str:
        """Sequences, tokens and documents, in the words of the headline table's footnote."""
        return f"{self.sizes['sequence']} sequences of {self.sizes['query']} tokens from {self.documents} documents"


@dataclass(frozen=True, slots=True)
class Results:
    """Everything the page is made from.

    Attributes
    ----------
    folder : Path
    headline : WrittenTable
    level : float
        Confidence level of the intervals.
    described : dict of str to str
        Dump -> what the headline table says of it.
    recordings : dict of str to Recording or None
        Dump -> what its file says, None where the file is not here.
    answers : tuple of Answer
    missing : tuple of str
        Questions of the configuration that have no answer here.
    """

    folder: Path
    headline: WrittenTable
    level: float
    described: dict[str, str]
    recordings: dict[str, Recording | None]
    answers: tuple[Answer, ...]
    missing: tuple[str, ...] = field(default=())

    def tables(self, dump: str) -> dict[str, WrittenTable]:
        """Tables of one dump by name; of a name that was taken, by question and name."""
        found: dict[str, WrittenTable] = {}
        for one in self.answers:
            for name, table in one.tables.items() if one.dump == dump else ():
                found[f"{one.question}-{name}" if name in found else name] = table
        return found


def read_results(folder: Path, dumps: Mapping[str, Path], questions: Sequence[str]) -> Results:
    """Read the results of an analysis.

    Parameters
    ----------
    folder : Path
        Where `posstats analyze` wrote them.
    dumps : mapping of str to Path
        Name of a dump -> its file, which may be absent.
    questions : sequence of str
        Names of the analysis files, without ending.

    Returns
    -------
    Results

    Raises
    ------
    InputError
        If there are no results, a file is not as the analysis left it, or a dump is not the one they rest on.
    """
    if not (folder / "headline.csv").is_file():
        raise InputError(f"there are no results in {folder}; run posstats analyze first")
    headline = read_table(folder, "headline")
    level = re.match(r"([\d.]+)% intervals", " ".join(headline.notes[:1]))
    if level is None:
        raise InputError(f"{folder / 'headline.md'} does not say which level its intervals have; {_AGAIN}")
    described = {name: _after(headline.notes, f"{name}: ") for name in dumps}
    recordings = {name: _recording(path) if path.is_file() else None for name, path in dumps.items()}
    for name, recording in recordings.items():
        if not described[name]:
            raise InputError(f"the results in {folder} know no dump {name!r}; {_AGAIN}")
        if recording is not None and recording.design not in described[name]:
            raise InputError(
                f"{recording.path} holds {recording.design}, while the results in {folder} rest on {described[name]}; "
                f"{_AGAIN}"
            )
    answers, missing = [], []
    for name in dumps:
        for question in questions:
            answer = _answer(folder / name / question, name, question)
            if answer is None:
                missing.append(f"{question} of {name}")
            else:
                answers.append(answer)
    _check_headline(headline, folder, {name: [one for one in answers if one.dump == name] for name in dumps}, missing)
    return Results(
        folder, headline, float(level[1]) / 100, described, recordings, tuple(answers), tuple(missing)
    )  # fmt: skip


def outdated_answers(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> list[str]:
    """Refuse results of another recording or other settings, and say which are those of other code.

    The page describes recording and settings beside the numbers, so it must not be written where they are not theirs.
    Other code or library versions, which mostly give the same numbers, are logged as a warning.

    Parameters
    ----------
    config : AnalysisConfig
    dumps : mapping of str to Path
        Name of a dump -> its file, which may be absent.
    folder : Path
        Of the results.

    Returns
    -------
    list of str
        "QUESTION of DUMP" of the answers computed with other code.

    Raises
    ------
    InputError
        If an answer rests on another recording or other settings.
    """
    changed = changes(config, dumps, folder)
    for name, path in dumps.items():
        if any("recording" in what for (_, dump), what in changed.items() if dump == name):
            raise InputError(
                f"{path} is another recording than the one that the results in {folder} were computed from; {_AGAIN}"
            )
    if any("settings" in what for what in changed.values()):
        raise InputError(
            f"the results in {folder} were computed with other settings under [inference]; {_AGAIN}, or name the "
            "configuration and profile that they were computed with"
        )
    labels = [f"{question} of {dump}" for question, dump in changed]
    if labels:
        logger.warning("warning: code or library versions have changed since: %s; %s", ", ".join(labels), _AGAIN)
    return labels


def read_table(folder: Path, name: str) -> WrittenTable:
    """Read a table that :func:`posstats.tables.table.write_table` wrote.

    Parameters
    ----------
    folder : Path
    name : str
        File name without ending.

    Returns
    -------
    WrittenTable

    Raises
    ------
    InputError
        If its CSV and Markdown cannot be read or are not of the same table.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from posstats.tables.table import Table, write_table
    >>> frame = pd.DataFrame({"layer": [0], "estimate": [2 / 3], "low": [0.5], "high": [0.75]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_table(Table(frame, "Example", {"estimate": "nats"}), folder, "example")
    ...     table = read_table(Path(folder), "example")
    >>> table.headings
    {'layer': 'layer', 'estimate': 'estimate (nats)', 'low': '95% interval'}
    >>> table.raw[0]["estimate"], table.shown[0]["estimate"], table.shown[0]["low"]
    ('0.6666666666666666', '0.667', '[0.500, 0.750]')
    """
    try:
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file)
        lines = (folder / f"{name}.md").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"cannot read the table {folder / name} as CSV and Markdown: {error}; {_AGAIN}") from error
    grid = [_cells(line) for line in lines if line.startswith("|")]
    one_heading = [column for column in columns if not (column == "high" and "low" in columns)]
    if len(grid) != len(rows) + 2 or any(len(cells) != len(one_heading) for cells in grid):
        raise InputError(f"{name}.csv and {name}.md in {folder} are not of the same table; {_AGAIN}")
    headings, alignment, *shown = grid
    return WrittenTable(
        name,
        folder,
        lines[0].removeprefix("### "),
        dict(zip(one_heading, headings, strict=True)),
        tuple(dict(zip(columns, row, strict=True)) for row in rows),
        tuple(dict(zip(one_heading, cells, strict=True)) for cells in shown),
        frozenset(column for column, mark in zip(one_heading, alignment, strict=True) if mark == "---:"),
        tuple(line.removeprefix("- ") for line in lines if line.startswith("- ")),
    )


def _cells(line: str) -> list[str]:
    r"""Cells of a row of Markdown, in which ``\|`` and ``\\`` stand for the characters themselves."""
    found = re.findall(r" ((?:\\.|[^\\|])*) \|", line[1:])
    return [re.sub(r"\\(.)", r"\1", cell).strip() for cell in found]


def _after(notes: Sequence[str], start: str) -> str:
    return next((note.removeprefix(start).removesuffix(".") for note in notes if note.startswith(start)), "")


def _answer(folder: Path, dump: str, question: str) -> Answer | None:
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return None
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        digest, files = str(record["digest"]), dict(record["files"])
        headline = tuple(dict(line) for line in record["headline"])
        contents = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
        dict(record["rests_on"])  # what :func:`posstats.study.analysis.changes` looks at
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the results in {folder} are not whole: {error}; {_AGAIN}") from error
    for name, expected in files.items():
        if contents[name] != expected:
            raise InputError(f"{folder / name} has changed since it was computed; {_AGAIN}")
    paths = [folder / name for name in files]
    return Answer(
        dump,
        question,
        digest,
        headline,
        {path.stem: read_table(folder, path.stem) for path in paths if path.suffix == ".csv"},
        {path.stem: path for path in paths if path.suffix == ".png"},
    )


def _check_headline(
    headline: WrittenTable, folder: Path, answers: Mapping[str, Sequence[Answer]], missing: Sequence[str]
) -> None:
    """Raise InputError unless the lines of the headline table are those of the answers, as they were rounded."""
    for name, found in answers.items():
        rows = headline.find(dump=name)
        raw = [_line(headline.raw[row]) for row in rows]
        expected = [_line(line) for one in found for line in one.headline]
        # Where an answer is missing, so is what its lines could be compared with.
        same = all(line in raw for line in expected) if missing else raw == expected
        shown = all(_rounded(headline.raw[row]).items() <= headline.shown[row].items() for row in rows)
        if not (same and shown):
            raise InputError(
                f"the headline table in {folder} is not that of the answers about {name} that lie beside it; {_AGAIN}"
            )


def _rounded(row: Mapping[str, str]) -> dict[str, str]:
    """Estimate, interval, p and q of a line as tables print them."""
    frame = pd.DataFrame({name: [_number(row[name])] for name in ("estimate", "low", "high", "p", "q")}, dtype=object)
    cells = {name: column_cells(frame, name)[0] for name in ("estimate", "p", "q")}
    return cells | {"low": interval_cells(frame)[0]}


def _line(line: Mapping[str, Any]) -> dict[str, str]:
    """A line of the headline table, its numbers as CSV spells them."""
    return {name: _spelled(line[name]) for name in _LINE}


def _spelled(value: Any) -> str:
    return "" if isinstance(value, float) and math.isnan(value) else str(value)


def _number(text: str) -> float | int:
    """The number that a cell of CSV spells."""
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text or "nan")


def _recording(path: Path) -> Recording:
    with open_dump(path) as dataset:
        return Recording(
            path,
            {str(name): size for name, size in dataset.sizes.items()},
            len(set(dataset.document.values.tolist())),
            tuple(map(str, dataset.condition.values)),
            tuple(dataset.offset.values.tolist()),
            {str(name): value for name, value in dataset.attrs.items()},
        )
