"""Run analysis files on dumps: ask each question of each dump, write tables and figures.

An analysis file defines ``analyse(ds, inference) -> Findings``. It is given an open dump and never loads a model.
Findings are kept with a digest of everything they rest on (the bytes of the dump and of the code, the settings, the
versions of the libraries), and are computed again only when that has changed.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import multiprocessing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from posstats.config import AnalysisConfig, InferenceConfig
from posstats.errors import FewDocumentsWarning, InputError
from posstats.figures import save_figure
from posstats.progress import progress
from posstats.results import Result
from posstats.side_by_side import single_threaded
from posstats.store import open_dump
from posstats.tables import Table, to_text, write_table
from posstats.vocabulary import FEW_DOCUMENTS

logger = logging.getLogger(__name__)

#: What results are computed and drawn with.
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "xarray", "dask", "matplotlib")
_MANIFEST = "manifest.json"
_HEADLINE = ["dump", "quantity", "unit", "estimate", "low", "high", "p", "q", "note"]


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
    """

    quantity: str
    unit: str
    estimate: float
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    q: float = float("nan")
    note: str = ""

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
        return cls(quantity, unit, **numbers, note=str(row.get("note", "")))


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
    digest: str

    @property
    def label(self) -> str:
        return _label(self.file, self.dump_name)


def run_analyses(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path, *, show: bool = True) -> Table:
    """Ask every question of every dump and write the answers.

    Parameters
    ----------
    config : AnalysisConfig
        Its `analyses`, `inference` and `run` are used.
    dumps : mapping of str to Path
        Name of a dump -> its file.
    folder : Path
        Tables and figures go to a folder per dump in it; the headline table to itself.
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
    tasks = list(_tasks(config, dumps, files, folder))
    headline = {task: found for task in tasks if (found := _current(task)) is not None}
    # One question after the other, each of all dumps: short tasks come last and fill the gaps between workers.
    missing = sorted((task for task in tasks if task not in headline), key=lambda task: files.index(task.file))
    if not missing:
        logger.info("results are current: nothing they rest on has changed since they were computed")
    with progress("analyses", len(missing), unit="question", show=show and bool(missing)) as bar:
        for task, quantities in _computed(missing, config.run.workers):
            headline[task] = quantities
            logger.info("finished %s", task.label)
            bar.update()
    return _headline_table(config, dumps, [(task, headline[task]) for task in tasks], folder)


def closing_tables(config: AnalysisConfig, dumps: Mapping[str, Path], folder: Path) -> list[str]:
    """What is shown after the headline table, as text: of every dump what its analyses close with.

    Parameters
    ----------
    config, dumps, folder
        As for :func:`run_analyses`, which has been called with them.

    Returns
    -------
    list of str
    """
    found = []
    for task in _tasks(config, dumps, _files(config), folder):
        text = json.loads((task.folder / _MANIFEST).read_text(encoding="utf-8"))["closing"]
        if text:
            found.append(text)
    return found


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


def _files(config: AnalysisConfig) -> list[Path]:
    files = [config.folder / name for name in config.analyses.files]
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no analysis file {file}, named under [analyses] files")
    return files


def _label(file: Path, dump: str) -> str:
    return f"{file.stem} of {dump}"


def _tasks(config: AnalysisConfig, dumps: Mapping[str, Path], files: Sequence[Path], folder: Path) -> Iterator[_Task]:
    code = code_digest()
    settings = json.dumps(asdict(config.inference), sort_keys=True)
    for name, path in dumps.items():
        with open_dump(path):  # says what is wrong with it before anything is computed
            pass
        content = _file_digest(path)
        for file in files:
            parts = [code, settings, content, _file_digest(file), name]
            digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
            yield _Task(name, path, file, folder / name / file.stem, config.inference, digest)


def _computed(tasks: Sequence[_Task], workers: int) -> Iterator[tuple[_Task, list[dict[str, Any]]]]:
    if not tasks:
        return
    # Fresh processes: forking one that runs threads (torch, dask) is not safe.
    context = multiprocessing.get_context("spawn")
    with single_threaded(), ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context) as pool:
        futures = {pool.submit(_compute, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _compute(task: _Task) -> list[dict[str, Any]]:
    """Run one analysis, write its files, then the manifest that declares them current."""
    analyse = _load(task.file)
    manifest = task.folder / _MANIFEST
    manifest.unlink(missing_ok=True)
    # The tasks run side by side; threads within each would only contend.
    with open_dump(task.dump) as dataset, warnings.catch_warnings(), dask.config.set(scheduler="synchronous"):
        # Every table carries this warning as a footnote, and the headline table too.
        warnings.simplefilter("ignore", FewDocumentsWarning)
        findings = analyse(dataset, task.inference)
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
        "files": {path.name: _file_digest(path) for path in sorted(written)},
        "headline": headline,
        "closing": "" if findings.closing is None else to_text(findings.closing),
    }
    manifest.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return headline


def _current(task: _Task) -> list[dict[str, Any]] | None:
    """The headline of an earlier run if nothing it rests on has changed and its files are as it left them."""
    try:
        record = json.loads((task.folder / _MANIFEST).read_text(encoding="utf-8"))
        same = record["digest"] == task.digest and all(
            _file_digest(task.folder / name) == digest for name, digest in record["files"].items()
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


def _headline_table(
    config: AnalysisConfig,
    dumps: Mapping[str, Path],
    found: Sequence[tuple[_Task, list[dict[str, Any]]]],
    folder: Path,
) -> Table:
    rows = [{"dump": task.dump_name, **quantity} for task, quantities in found for quantity in quantities]
    frame = pd.DataFrame(rows, columns=_HEADLINE)
    # Counts stay whole numbers beside estimates.
    frame["estimate"] = pd.Series([row["estimate"] for row in rows], dtype=object)
    level = config.inference.level
    notes = [f"{100 * level:g}% intervals. Resampling unit: document."]
    for name, path in dumps.items():
        with open_dump(path) as dataset:
            notes.append(f"{name}: {_described(dataset)}.")
    table = Table(frame, "Where absolute position comes from", notes=tuple(notes), level=level)
    write_table(table, folder, "headline")
    return table


def _described(dataset: xr.Dataset) -> str:
    documents = len(set(dataset.document.values.tolist()))
    described = (
        f"{dataset.attrs.get('model', 'unnamed model')}, {dataset.sizes['sequence']} sequences of "
        f"{dataset.sizes['query']} tokens from {documents} documents"
    )
    if "bos_token" in dataset.attrs:
        described += f", BOS {dataset.attrs['bos_token']}" if dataset.attrs["bos_token"] else ", no BOS"
    source = dataset.attrs.get("sequences")
    described += f" ({source})" if source else ""
    if documents < FEW_DOCUMENTS:
        described += f"; only {documents} documents: intervals are reliable from {FEW_DOCUMENTS} on"
    return described


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_digest() -> str:
    """Digest of the package's own source and of the versions it computes with.

    Returns
    -------
    str
        SHA-256 in hexadecimal; results that rest on the same data and digest are the same.
    """
    package = Path(__file__).parent
    parts = [f"{path.relative_to(package)} {_file_digest(path)}" for path in sorted(package.rglob("*.py"))]
    parts += [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
