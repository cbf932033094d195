"""Read back what an analysis wrote: its tables, its figures, and the recordings they rest on.

Everything is read from JSON: a table from the file beside its CSV, an answer from its manifest. The page shows numbers
rounded for people and keeps the number itself behind each cell.
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posstats.dataset.store import open_dump
from posstats.errors import InputError
from posstats.results.table import Table, contents_of
from posstats.study.analysis import changes
from posstats.study.config import AnalysisConfig
from posstats.tables.headline import HEADLINE

logger = logging.getLogger(__name__)

#: Columns of the headline table that its lines must agree in.
_LINE = ("quantity", "unit", "estimate", "low", "high", "p", "q", "note")
_AGAIN = "run posstats analyze again"
#: Sizes of a dump, as the headline table and as the dump has them.
_SIZES = ("n_sequences", "n_tokens", "n_documents")


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table as it lies in the folder of the results."""

    #: File name without ending.
    name: str
    #: Where its files are.
    folder: Path
    table: Table
    #: Column -> heading with its unit. The limits of an interval share the heading of `low`.
    headings: dict[str, str]
    #: A row each, by column: every digit, as the CSV spells it, and the cell for people (`low` holds the interval).
    raw: tuple[dict[str, str], ...]
    shown: tuple[dict[str, str], ...]
    #: Columns that are set as numbers.
    numeric: frozenset[str]

    @property
    def title(self) -> str:
        """Its title."""
        return self.table.title

    @property
    def notes(self) -> tuple[str, ...]:
        """Its footnotes."""
        return self.table.notes

    @property
    def by_head(self) -> bool:
        """Whether a row is about one head."""
        return {"layer", "head"} <= set(self.headings)

    def file(self, ending: str) -> Path:
        """One of its files."""
        return self.folder / f"{self.name}.{ending}"

    def find(self, **where: str) -> list[int]:
        """Numbers of the rows whose columns have the given values; a column that the table lacks rules nothing out."""
        asked = {name: value for name, value in where.items() if name in self.headings}
        return [k for k, row in enumerate(self.raw) if all(row[name] == value for name, value in asked.items())]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one question asked of one dump has left."""

    #: Name of the dump, and of the analysis file.
    dump: str
    question: str
    #: Of everything the answer rests on.
    digest: str
    #: Its lines of the headline table, values as CSV spells them.
    headline: tuple[dict[str, str], ...]
    tables: dict[str, WrittenTable]
    #: File name without ending -> the PNG; the PDF lies beside it.
    figures: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Recording:
    """What a dump says of itself."""

    path: Path
    #: Size of every dimension; of `n_sequences`, `n_tokens` and `n_documents` too.
    sizes: dict[str, int]
    conditions: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Described:
    """What the headline table says of a dump (:func:`posstats.tables.headline.describe`)."""

    model: str
    simulated: bool
    n_sequences: int
    n_tokens: int
    n_documents: int
    warnings: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Results:
    """Everything the page is made from."""

    folder: Path
    headline: WrittenTable
    #: Confidence level of the intervals.
    level: float
    #: Dump -> what the headline table says of it.
    described: dict[str, Described]
    #: Dump -> what its file says, None where the file is not here.
    recordings: dict[str, Recording | None]
    answers: tuple[Answer, ...]
    #: Questions of the configuration that have no answer here.
    missing: tuple[str, ...] = field(default=())

    def tables(self, dump: str) -> dict[str, WrittenTable]:
        """Tables of one dump by name; of a name that was taken, by question and name."""
        named: dict[str, WrittenTable] = {}
        for answer in self.answers:
            for name, table in answer.tables.items() if answer.dump == dump else ():
                named[f"{answer.question}-{name}" if name in named else name] = table
        return named

    def figures(self, dump: str) -> list[Path]:
        """Figures of one dump."""
        return [path for answer in self.answers if answer.dump == dump for path in answer.figures.values()]


def read_results(folder: Path, dumps: Mapping[str, Path], questions: Sequence[str]) -> Results:
    """Read what `posstats analyze` wrote to `folder`.

    `dumps`: name -> file, which may be absent; `questions`: names of the analysis files, without ending. Raises
    InputError if there are no results, a file is not as the analysis left it, or a dump is not the one they rest on.
    """
    if not (folder / f"{HEADLINE}.csv").is_file():
        raise InputError(f"there are no results in {folder}; run posstats analyze first")
    headline = read_table(folder, HEADLINE)
    described = _described(headline)
    recordings = {name: _recording(path) if path.is_file() else None for name, path in dumps.items()}
    for name, recording in recordings.items():
        if name not in described:
            raise InputError(f"the results in {folder} know no dump {name!r}; {_AGAIN}")
        if recording and any(recording.sizes[size] != getattr(described[name], size) for size in _SIZES):
            n_sequences, n_tokens, n_documents = (recording.sizes[size] for size in _SIZES)
            raise InputError(
                f"{recording.path} holds {n_sequences} sequences of {n_tokens} tokens from {n_documents} documents, "
                f"while the results in {folder} rest on {described[name].description}; {_AGAIN}"
            )
    answers: list[Answer] = []
    missing: list[str] = []
    for name in dumps:
        for question in questions:
            answer = _answer(folder / name / question, name, question)
            if answer is None:
                missing.append(f"{question} of {name}")
            else:
                answers.append(answer)
    _check_headline(headline, {name: [one for one in answers if one.dump == name] for name in dumps}, bool(missing))
    described = {name: described[name] for name in dumps}
    return Results(folder, headline, headline.table.level, described, recordings, tuple(answers), tuple(missing))


def outdated_answers(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> list[str]:
    """Return "QUESTION of DUMP" of the answers computed with other code; refuse those of another recording or settings.

    The page describes recording and settings beside the numbers, so it must not be written where they are not theirs:
    InputError. Other code or library versions, which mostly give the same numbers, are logged as a warning.
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
    """Read a table that :func:`posstats.results.table.write_table` wrote, by its file name without ending.

    Raises InputError if its JSON cannot be read or is not of a table.

    >>> import tempfile
    >>> import pandas as pd
    >>> from posstats.results.table import Table, write_table
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
        table = Table.read(folder / f"{name}.json")
    except InputError as error:
        raise InputError(f"{error}; {_AGAIN}") from error
    view = table.view
    return WrittenTable(
        name,
        folder,
        table,
        dict(zip(view.names, view.header, strict=True)),
        tuple({str(key): _spelled(value) for key, value in row.items()} for row in table.frame.to_dict("records")),
        tuple(dict(zip(view.names, row, strict=True)) for row in view.rows),
        frozenset(name for name, left in zip(view.names, view.left, strict=True) if not left),
    )


def _described(headline: WrittenTable) -> dict[str, Described]:
    try:
        dumps = headline.table.settings["dumps"]
        return {name: Described(**facts | {"warnings": tuple(facts["warnings"])}) for name, facts in dumps.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{headline.file('json')} does not say what dumps it is about: {error}; {_AGAIN}") from error


def _answer(folder: Path, dump: str, question: str) -> Answer | None:
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return None
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        digest, files = str(record["digest"]), dict(record["files"])
        headline = tuple({key: _spelled(line[key]) for key in _LINE} for line in record["headline"])
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


def _check_headline(headline: WrittenTable, answers: Mapping[str, Sequence[Answer]], incomplete: bool) -> None:
    """Raise InputError unless the lines of the headline table are those of the answers, in each of its files."""
    other = "the headline table {} is not that of the answers about {} that lie beside it; {}"
    for name, given in answers.items():
        raw = [{key: headline.raw[row][key] for key in _LINE} for row in headline.find(dump=name)]
        expected = [line for answer in given for line in answer.headline]
        # Where an answer is missing, so is what its lines could be compared with.
        if not (all(line in raw for line in expected) if incomplete else raw == expected):
            raise InputError(other.format(headline.file("json"), name, _AGAIN))
    for file, content in contents_of(headline.table, headline.name).items():
        path = headline.folder / file
        if not path.is_file() or path.read_bytes() != content.encode():
            raise InputError(other.format(path, ", ".join(answers), _AGAIN))


def _spelled(value: Any) -> str:
    """A value as CSV spells it."""
    return "" if isinstance(value, float) and math.isnan(value) else str(value)


def _recording(path: Path) -> Recording:
    with open_dump(path) as dataset:
        sizes = {str(name): size for name, size in dataset.sizes.items()}
        own = (sizes["sequence"], 2 * sizes["query"], len(set(dataset.document.values.tolist())))
        return Recording(
            path,
            sizes | dict(zip(_SIZES, own, strict=True)),
            tuple(map(str, dataset.condition.values)),
            {str(name): value for name, value in dataset.attrs.items()},
        )
