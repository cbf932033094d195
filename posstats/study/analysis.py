"""Run analysis files on dumps: ask each question of each dump, write tables and figures.

An analysis file defines ``analyse(ds, inference) -> Findings``. It is given an open dump and never loads a model.
Findings are kept with a digest of everything they rest on (the bytes of the dump and of the code, the settings, the
versions of the libraries), and are computed again only when that has changed.
"""

import hashlib
import importlib.util
import json
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import dask
import numpy as np

from posstats.dataset.store import open_dump
from posstats.errors import DumpError, FewDocumentsWarning, InputError, PosstatsError
from posstats.execution.cluster import connected
from posstats.execution.kept import keep, kept, rested_on
from posstats.execution.parallel import in_processes
from posstats.execution.progress import progress
from posstats.execution.provenance import code_digest, file_digest
from posstats.figures.leakage import save_figure
from posstats.results.table import Table, to_json, to_text, write_table
from posstats.stats.inference.options import Inference
from posstats.study.config import AnalysisConfig
from posstats.study.findings import Findings, Quantity
from posstats.tables.headline import HEADLINE, headline_table
from posstats.vocabulary import BASELINE

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class _Task:
    """One question asked of one dump."""

    dump_name: str
    dump: Path
    file: Path
    folder: Path
    inference: Inference
    rests_on: dict[str, str] = field(hash=False)  # digests, apart so that it can be said which of them has changed
    scheduler: str | None
    state: tuple[int, ...]

    @property
    def label(self) -> str:
        return _label(self.file, self.dump_name)

    @property
    def manifest(self) -> Path:
        return self.folder / _MANIFEST


def run_analyses(
    config: AnalysisConfig,
    dumps: Mapping[str, Path],
    folder: Path,
    *,
    scheduler: str | None = None,
    show: bool = True,
) -> Table:
    """Ask every question of every dump (name -> file), write the answers and return the headline table.

    Tables and figures go to a folder per dump in `folder`; the headline table to itself. `scheduler` is the address of
    a ``dask.distributed`` scheduler whose workers do the work; results do not depend on it. Raises PosstatsError if a
    dump cannot be read, an analysis file is missing or defines no `analyse`, or the data do not support an estimate.
    """
    files = _files(config)
    tasks = list(_tasks(config, dumps, files, folder, scheduler))
    headline = {task: found for task in tasks if (found := _current(task)) is not None}
    # One question after the other, each of all dumps: short tasks come last and fill the gaps between workers.
    missing = sorted((task for task in tasks if task not in headline), key=lambda task: files.index(task.file))
    if not missing:
        logger.info("results are current: nothing they rest on has changed since they were computed")
    else:
        settings = missing[0].rests_on["settings"]
        if any(rested_on(task.manifest).get("settings", settings) != settings for task in missing):
            logger.info("replacing results in %s, which were computed with other settings under [inference]", folder)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):  # a folder that cannot be written to is told of before anything is computed
            pass
        # If an analysis fails, the table of the earlier answers must not stay beside the new ones.
        for path in filter(Path.is_file, folder.glob(f"{HEADLINE}.*")):
            path.unlink()
    with progress("analyses", len(missing), unit="question", show=show and bool(missing)) as bar:
        for task, quantities in in_processes(_compute, missing, config.run.workers):
            headline[task] = quantities
            logger.info("finished %s", task.label)
            bar.update()
    rows = [{"dump": task.dump_name, **quantity} for task in tasks for quantity in headline[task]]
    table = headline_table(rows, dumps, config.inference.level)
    write_table(table, folder, HEADLINE)
    return table


def closing_tables(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> list[str]:
    """Return, as text, what is shown after the headline table: of every dump what its analyses close with.

    To be called with the arguments of :func:`run_analyses`, after it. Titles that several dumps share are told apart by
    the names of the dumps.
    """
    closing: list[tuple[str, Table]] = []
    for task in _tasks(config, dumps, _files(config), folder):
        text = json.loads(task.manifest.read_text(encoding="utf-8"))["closing"]
        closing += [(task.dump_name, Table.from_json(text))] if text else []
    titles = [table.title for _, table in closing]
    return [
        to_text(table if titles.count(table.title) == 1 else replace(table, title=f"{table.title} ({name})"))
        for name, table in closing
    ]


def outstanding(config: AnalysisConfig, dumps: Mapping[str, Path | None], folder: Path) -> dict[str, bool]:
    """Return "QUESTION of DUMP" -> whether :func:`run_analyses` would compute it, given the same arguments.

    A dump that is None is not there yet: everything has to be computed. Raises as :func:`run_analyses` does before it
    computes.
    """
    files = _files(config)
    there = {name: path for name, path in dumps.items() if path is not None}
    found = {task.label: _current(task) is None for task in _tasks(config, there, files, folder)}
    labels = [_label(file, name) for name in dumps for file in files]
    return {label: found.get(label, True) for label in labels}


def changes(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> dict[tuple[str, str], list[str]]:
    """Return what has changed, since the answers were computed, of what they rest on.

    (question, dump) -> those of "recording", "settings" and "code" (its own, the analysis file's, the versions of the
    libraries) that have changed; questions that have a current answer, or none, are left out. Of a dump whose file is
    not there, settings and code are looked at.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for task in _tasks(config, dumps, _files(config), folder, absent=True):
        if task.manifest.is_file():
            found[task.file.stem, task.dump_name] = _changed(task)
    return {asked: changed for asked, changed in found.items() if changed}


def _files(config: AnalysisConfig) -> list[Path]:
    files = [config.folder / name for name in config.analyses.files]
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no analysis file {file}, named under [analyses] files")
    stems = [file.stem for file in files]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise InputError(f"results are kept by the names of analysis files, and {', '.join(twice)} is named twice")
    return files


def _label(file: Path, dump: str) -> str:
    return f"{file.stem} of {dump}"


def _tasks(
    config: AnalysisConfig,
    dumps: Mapping[str, Path],
    files: Sequence[Path],
    folder: Path,
    scheduler: str | None = None,
    *,
    absent: bool = False,
) -> Iterator[_Task]:
    code = code_digest()
    settings = hashlib.sha256(json.dumps(asdict(config.inference), sort_keys=True).encode()).hexdigest()
    for name, path in dumps.items():
        content = ""
        state: tuple[int, ...] = ()
        if path.is_file() or not absent:
            with open_dump(path) as dataset:  # says what is wrong with it before anything is computed
                conditions = dataset.condition.values.tolist()
            state = _state(path)
            content = file_digest(path)
            if BASELINE not in conditions:
                raise InputError(
                    f"{path} was recorded without the condition {BASELINE}, which the others are compared with; it has "
                    f"{', '.join(conditions)}: dump with -c {BASELINE} too"
                )
        for file in files:
            asked = hashlib.sha256(f"{code}\n{file_digest(file)}".encode()).hexdigest()
            basis = {"recording": content, "settings": settings, "code": asked}
            yield _Task(name, path, file, folder / name / file.stem, config.inference, basis, scheduler, state)


def _compute(task: _Task) -> list[dict[str, Any]]:
    """Run one analysis, write its files, then the manifest that declares them current."""
    with _said_by(task):
        analyse = _load(task.file)
    task.manifest.unlink(missing_ok=True)
    with (
        connected(task.scheduler),  # the work of estimators goes there; what little this process computes stays with it
        open_dump(task.dump) as dataset,
        warnings.catch_warnings(),
        # The tasks run side by side; threads within each would only contend.
        dask.config.set(scheduler="synchronous"),
    ):
        # Every table carries this warning as a footnote, and the headline table too.
        warnings.simplefilter("ignore", FewDocumentsWarning)
        with _said_by(task):
            findings = analyse(dataset, task.inference)
            if not isinstance(findings, Findings):
                raise InputError(f"analyse must return Findings, not {type(findings).__name__}")
    if _state(task.dump) != task.state:
        raise DumpError(f"{task.dump} was changed while it was analysed: analyse it again once it is whole")
    task.folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, table in findings.tables.items():
        written += write_table(table, task.folder, name)
    for name, axes in findings.figures.items():
        written += save_figure(axes, task.folder, name)
    for stale in set(filter(Path.is_file, task.folder.iterdir())) - set(written):
        stale.unlink()
    # Numbers as they are read back, whatever numpy made of them.
    headline = json.loads(json.dumps([asdict(quantity) for quantity in findings.headline], default=np.generic.item))
    closing = "" if findings.closing is None else to_json(findings.closing)
    keep(task.manifest, task.rests_on, written, headline=headline, closing=closing)
    return headline


@contextmanager
def _said_by(task: _Task) -> Iterator[None]:
    """Errors name the question and the dump; a mistake in the analysis file is told as one, with its line."""
    try:
        yield
    except PosstatsError as error:
        raise type(error)(f"{task.label}: {error}") from error
    except (Exception, SystemExit) as error:
        package, file = Path(__file__).parents[1], task.file.resolve()
        frames = [(Path(one.filename).resolve(), one.lineno) for one in traceback.extract_tb(error.__traceback__)]
        inside = [one for one in frames if one[0] != Path(__file__) and (one[0] == file or package in one[0].parents)]
        if inside and inside[-1][0] != file:
            raise  # a fault of posstats
        place = f", line {inside[-1][1]}" if inside else ""
        raise InputError(f"{task.label}: {task.file}{place}: {type(error).__name__}: {error}") from error


def _changed(task: _Task) -> list[str]:
    """Which digests of what a question rests on differ from those that its answer was computed with."""
    then = rested_on(task.manifest)
    return [name for name, digest in task.rests_on.items() if digest and then.get(name) != digest]


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file, without reading it."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _current(task: _Task) -> list[dict[str, Any]] | None:
    """The headline of an earlier run if nothing it rests on has changed and its files are as it left them."""
    record = kept(task.manifest, task.rests_on) or {}
    try:
        whole = [asdict(Quantity(**quantity)) for quantity in record["headline"]]
        if record["closing"] != "":
            Table.from_json(record["closing"])  # it can be shown
        return whole
    except (ValueError, KeyError, TypeError):
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
