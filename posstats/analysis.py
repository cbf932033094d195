"""Run analysis files on dumps: ask each question of each dump, write tables and figures.

An analysis file defines ``analyse(ds, inference) -> Findings``. It is given an open dump and never loads a model.
Findings are kept with a digest of everything they rest on (the bytes of the dump and of the code, the settings, the
versions of the libraries), and are computed again only when that has changed.
"""

import hashlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
from matplotlib.axes import Axes

from posstats.cluster import connected
from posstats.config import AnalysisConfig, InferenceConfig
from posstats.errors import DumpError, FewDocumentsWarning, InputError
from posstats.figures import save_figure
from posstats.headline import HEADLINE, headline_table
from posstats.progress import progress
from posstats.provenance import code_digest, file_digest
from posstats.results import Result
from posstats.side_by_side import in_processes
from posstats.store import open_dump
from posstats.tables import Table, rests_on, to_text, write_table

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One line of the headline table.

    Attributes
    ----------
    quantity : str
        What is estimated.
    unit : str
        Unit of the estimate and its interval.
    estimate : int or float
    low, high, p, q : float
        Interval and tests; NaN where there are none.
    note : str
        What is to be kept in mind.
    rests_on : dict of str to str
        What the headline table says below its rows: :func:`posstats.tables.rests_on` of the result it was taken from.
    """

    quantity: str
    unit: str
    estimate: float
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    q: float = float("nan")
    note: str = ""
    rests_on: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, quantity: str, unit: str, result: Result, /, **where: object) -> "Quantity":
        """Take the one row of a result whose key columns have the given values."""
        table = result.table
        for name, value in where.items():
            table = table[table[name] == value]
        if len(table) != 1:
            raise InputError(f"{quantity}: {len(table)} rows of {result.title} match {where}, not one")
        row = table.iloc[0]
        numbers = {name: float(row[name]) for name in ("estimate", "low", "high", "p", "q") if name in row}
        return cls(quantity, unit, **numbers, note=str(row.get("note", "")), rests_on=rests_on(result))


@dataclass(frozen=True, slots=True)
class Findings:
    """What an analysis file returns.

    Attributes
    ----------
    tables : dict of str to Result or Table
        File name without ending -> table.
    figures : dict of str to matplotlib.axes.Axes
        File name without ending -> axes of the figure.
    headline : sequence of Quantity
        Its lines of the headline table.
    closing : Table, optional
        Shown after the headline table.
    """

    tables: Mapping[str, Result | Table] = field(default_factory=dict)
    figures: Mapping[str, Axes] = field(default_factory=dict)
    headline: Sequence[Quantity] = ()
    closing: Table | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """One question asked of one dump."""

    dump_name: str
    dump: Path
    file: Path
    folder: Path
    inference: InferenceConfig
    rests_on: "_Basis"
    scheduler: str | None
    state: tuple[int, ...]

    @property
    def label(self) -> str:
        return _label(self.file, self.dump_name)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([asdict(self.rests_on), self.dump_name]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Basis:
    """Digests of what an answer rests on, kept apart so that it can be said which of them has changed."""

    recording: str
    settings: str
    code: str


def run_analyses(
    config: AnalysisConfig,
    dumps: Mapping[str, Path],
    folder: Path,
    *,
    scheduler: str | None = None,
    show: bool = True,
) -> Table:
    """Ask every question of every dump and write the answers.

    Parameters
    ----------
    config : AnalysisConfig
        Its `analyses`, `inference` and `run` are used.
    dumps : mapping of str to Path
        Name of a dump -> its file.
    folder : Path
        Tables and figures go to a folder per dump in it; the headline table to itself.
    scheduler : str, optional
        Address of a ``dask.distributed`` scheduler whose workers do the work; results do not depend on it.
    show : bool
        Whether to show progress.

    Returns
    -------
    Table
        The headline table.

    Raises
    ------
    PosstatsError
        If a dump cannot be read, an analysis file is missing or defines no `analyse`, or the data do not support an
        estimate.
    """
    files = _files(config)
    tasks = list(_tasks(config, dumps, files, folder, scheduler))
    headline = {task: found for task in tasks if (found := _current(task)) is not None}
    # One question after the other, each of all dumps: short tasks come last and fill the gaps between workers.
    missing = sorted((task for task in tasks if task not in headline), key=lambda task: files.index(task.file))
    if not missing:
        logger.info("results are current: nothing they rest on has changed since they were computed")
    else:
        # If an analysis fails, the table of the earlier answers must not stay beside the new ones.
        for path in folder.glob(f"{HEADLINE}.*"):
            path.unlink()
    with progress("analyses", len(missing), unit="question", show=show and bool(missing)) as bar:
        for task, quantities in _computed(missing, config.run.workers):
            headline[task] = quantities
            logger.info("finished %s", task.label)
            bar.update()
    rows = [{"dump": task.dump_name, **quantity} for task in tasks for quantity in headline[task]]
    table = headline_table(rows, dumps, config.inference.level)
    write_table(table, folder, HEADLINE)
    return table


def closing_tables(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> list[str]:
    """What is shown after the headline table, as text: of every dump what its analyses close with.

    Parameters
    ----------
    config, dumps, folder
        As for :func:`run_analyses`, which has been called with them.

    Returns
    -------
    list of str
        Titles that several dumps share are told apart by the names of the dumps.
    """
    found: list[tuple[str, str]] = []
    for task in _tasks(config, dumps, _files(config), folder):
        text = json.loads((task.folder / _MANIFEST).read_text(encoding="utf-8"))["closing"]
        if text:
            found.append((task.dump_name, text))
    titles = [text.partition("\n")[0] for _, text in found]
    return [
        text if titles.count(title) == 1 else text.replace(title, f"{title} ({name})", 1)
        for (name, text), title in zip(found, titles, strict=True)
    ]


def outstanding(config: AnalysisConfig, dumps: Mapping[str, Path | None], folder: Path) -> dict[str, bool]:
    """Say which questions :func:`run_analyses` would have to answer anew.

    Parameters
    ----------
    config, folder
        As for :func:`run_analyses`.
    dumps : mapping of str to Path or None
        Name of a dump -> its file; None where it is not there yet, and everything has to be answered.

    Returns
    -------
    dict of str to bool
        "QUESTION of DUMP" -> whether it has to be computed.

    Raises
    ------
    PosstatsError
        If a dump cannot be read or an analysis file is missing.
    """
    files = _files(config)
    there = {name: path for name, path in dumps.items() if path is not None}
    found = {task.label: _current(task) is None for task in _tasks(config, there, files, folder)}
    labels = [_label(file, name) for name in dumps for file in files]
    return {label: found.get(label, True) for label in labels}


def changes(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> dict[tuple[str, str], list[str]]:
    """Say what has changed, since the answers were computed, of what they rest on.

    Parameters
    ----------
    config, dumps, folder
        As for :func:`run_analyses`.

    Returns
    -------
    dict of (str, str) to list of str
        Question and dump -> those of "recording", "settings" and "code" (its own, the analysis file's, the versions of
        the libraries) that have changed; questions that have a current answer, or none, are left out.

    Raises
    ------
    PosstatsError
        If a dump cannot be read or an analysis file is missing.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for task in _tasks(config, dumps, _files(config), folder):
        manifest = task.folder / _MANIFEST
        if manifest.is_file():
            then = json.loads(manifest.read_text(encoding="utf-8")).get("rests_on", {})
            now = asdict(task.rests_on)
            found[task.file.stem, task.dump_name] = [name for name in now if then.get(name) != now[name]]
    return {asked: changed for asked, changed in found.items() if changed}


def _files(config: AnalysisConfig) -> list[Path]:
    files = [config.folder / name for name in config.analyses.files]
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no analysis file {file}, named under [analyses] files")
    return files


def _label(file: Path, dump: str) -> str:
    return f"{file.stem} of {dump}"


def _tasks(
    config: AnalysisConfig,
    dumps: Mapping[str, Path],
    files: Sequence[Path],
    folder: Path,
    scheduler: str | None = None,
) -> Iterator[_Task]:
    code = code_digest()
    settings = hashlib.sha256(json.dumps(asdict(config.inference), sort_keys=True).encode()).hexdigest()
    for name, path in dumps.items():
        with open_dump(path):  # says what is wrong with it before anything is computed
            pass
        state = _state(path)
        content = file_digest(path)
        for file in files:
            asked = hashlib.sha256(f"{code}\n{file_digest(file)}".encode()).hexdigest()
            basis = _Basis(content, settings, asked)
            yield _Task(name, path, file, folder / name / file.stem, config.inference, basis, scheduler, state)


def _computed(tasks: Sequence[_Task], workers: int) -> Iterator[tuple[_Task, list[dict[str, Any]]]]:
    return in_processes(_compute, tasks, workers)


def _compute(task: _Task) -> list[dict[str, Any]]:
    """Run one analysis, write its files, then the manifest that declares them current."""
    analyse = _load(task.file)
    manifest = task.folder / _MANIFEST
    manifest.unlink(missing_ok=True)
    with (
        connected(task.scheduler),  # the work of estimators goes there; what little this process computes stays with it
        open_dump(task.dump) as dataset,
        warnings.catch_warnings(),
        # The tasks run side by side; threads within each would only contend.
        dask.config.set(scheduler="synchronous"),
    ):
        # Every table carries this warning as a footnote, and the headline table too.
        warnings.simplefilter("ignore", FewDocumentsWarning)
        findings = analyse(dataset, task.inference)
    if _state(task.dump) != task.state:
        raise DumpError(f"{task.dump} was changed while it was analysed: analyse it again once it is whole")
    task.folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, table in findings.tables.items():
        written += write_table(table, task.folder, name)
    for name, axes in findings.figures.items():
        written += save_figure(axes, task.folder, name)
    for stale in set(task.folder.iterdir()) - set(written):
        stale.unlink()
    headline = [asdict(quantity) for quantity in findings.headline]
    record = {
        "digest": task.digest,
        "rests_on": asdict(task.rests_on),
        "files": {path.name: file_digest(path) for path in sorted(written)},
        "headline": headline,
        "closing": "" if findings.closing is None else to_text(findings.closing),
    }
    manifest.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return headline


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file, without reading it."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _current(task: _Task) -> list[dict[str, Any]] | None:
    """The headline of an earlier run if nothing it rests on has changed and its files are as it left them."""
    try:
        record = json.loads((task.folder / _MANIFEST).read_text(encoding="utf-8"))
        same = record["digest"] == task.digest and all(
            file_digest(task.folder / name) == digest for name, digest in record["files"].items()
        )
        return record["headline"] if same else None
    except (OSError, ValueError, KeyError):
        return None


def _load(file: Path) -> Any:
    """The function `analyse` of an analysis file."""
    spec = importlib.util.spec_from_file_location(f"posstats_analysis_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "analyse", None)):
        raise InputError(f"{file} does not define analyse(ds, inference)")
    return module.analyse
