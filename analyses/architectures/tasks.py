"""What is computed from the dumps, task by task: ledgers and contrasts, kept and computed again only when needed."""

import logging
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import dask
import pandas as pd
import xarray as xr

import posstats as ps
from analyses.architectures.models import REPLACEMENTS, Entry
from posstats.errors import DesignError, FewDocumentsWarning
from posstats.execution.kept import keep, kept
from posstats.execution.parallel import in_processes
from posstats.execution.progress import progress
from posstats.execution.provenance import code_digest, file_digest
from posstats.results.verdicts import CRITERIA
from posstats.stats.inference.options import Inference
from posstats.vocabulary import ADAPTED, BASELINE, VARIANT

logger = logging.getLogger(__name__)

LEDGER, ARCHITECTURES, CONTRAST = "ledger", "architectures", "contrast"
QUANTITIES = ("leakage", "share", "removal", "slope")
#: Columns in which nothing is an empty text, not a missing number.
_TEXTS = ("condition", "criterion", "note", "queries", "reason", "rule", "term", "unit")
_PAIRS = (("standard", "ntk"), ("standard", "window"), ("ntk", "window"))


@dataclass(frozen=True, slots=True)
class Task:
    """One table to compute.

    Attributes
    ----------
    what : str
        "ledger" (every claim about one model), "architectures" (C6, of several models) or "contrast".
    kind : str
        Of the models: tables never mix inference-time variants with adapted models.
    name : str
        Name of its file.
    labels : tuple of str
        What the sides are called.
    sides : tuple of tuple of Path
        Dumps: one side, or for a contrast two; several in a side are training runs.
    folder : Path
        Where the table is kept.
    inference : Inference
        Level, replicates, sign flips, adjustment, seed.
    """

    what: str
    kind: str
    name: str
    labels: tuple[str, ...]
    sides: tuple[tuple[Path, ...], ...]
    folder: Path
    inference: Inference

    @property
    def file(self) -> Path:
        """The table."""
        return self.folder / f"{self.name}.csv"

    def run(self) -> str:
        """Compute and keep the table, unless what it rests on is as it was; returns a line to log."""
        manifest = self.file.with_suffix(".json")
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(scheduler="synchronous"))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", FewDocumentsWarning)  # every table carries it as a note
            sides = [[stack.enter_context(ps.open_dump(path)) for path in side] for side in self.sides]
            rests_on = {
                "recordings": [[ds.attrs["settings_sha256"] for ds in side] for side in sides],
                "settings": asdict(self.inference),
                "code": [code_digest(), file_digest(Path(__file__))],
                "question": [self.what, self.kind, self.labels, REPLACEMENTS],
            }
            if kept(manifest, rests_on) is not None:
                return f"{self.name} is current"
            manifest.unlink(missing_ok=True)
            table = self._contrast(*sides) if self.what == CONTRAST else self._claims(sides[0])
        table.insert(0, "kind of models", self.kind)
        table.to_csv(self.file, index=False, lineterminator="\n")
        keep(manifest, rests_on, [self.file])
        return f"{self.name} is finished"

    def table(self) -> pd.DataFrame:
        """The table as it was kept."""
        frame = pd.read_csv(self.file, dtype=dict.fromkeys(_TEXTS, str))
        return frame.fillna({name: "" for name in _TEXTS if name in frame})

    def _claims(self, dumps: list[xr.Dataset]) -> pd.DataFrame:
        if self.what == ARCHITECTURES:  # C6 rests on the baseline; the rest of a ledger is asked of each model alone
            dumps = [ds.sel(condition=[BASELINE]) for ds in dumps]
        asked = [claim for claim in CRITERIA if (claim == "C6") == (self.what == ARCHITECTURES)]
        return ps.claims(dumps, which=asked, **self.inference.options()).table.copy()

    def _contrast(self, a: list[xr.Dataset], b: list[xr.Dataset]) -> pd.DataFrame:
        used = [BASELINE, *REPLACEMENTS]
        result = ps.contrast(
            [ds.sel(condition=used) for ds in a],
            [ds.sel(condition=used) for ds in b],
            quantities=QUANTITIES,
            condition=REPLACEMENTS,
            labels=(self.labels[0], self.labels[1]),
            pair_runs=len(a) > 1,
            # A variant is held against the model it is a variant of, and the table says so.
            allow_mixed=self.kind == VARIANT,
            level=self.inference.level,
            n_permutations=self.inference.n_permutations,
            seed=self.inference.seed,
            adjust=self.inference.adjust,
        )
        return result.table.assign(runs=len(a))


def plan(
    variants: Sequence[tuple[Entry, Path]],
    adapted: Sequence[tuple[Entry, Path]],
    folder: Path,
    inference: Inference,
) -> list[Task]:
    """What is computed.

    Parameters
    ----------
    variants : sequence of (Entry, Path)
        The model as it was trained, then its inference-time variants, with their dumps.
    adapted : sequence of (Entry, Path)
        Adapted models; runs of the same seed are paired.
    folder : Path
        Where the tables are kept.
    inference : Inference
        How estimates are resampled and tested.

    Returns
    -------
    list of Task

    Raises
    ------
    DesignError
        If an adapted architecture lacks a run that another has.
    """
    tasks: list[Task] = []

    def add(what: str, kind: str, name: str, labels: tuple[str, ...], *sides: Sequence[tuple[Entry, Path]]) -> None:
        paths = tuple(tuple(path for _, path in side) for side in sides)
        tasks.append(Task(what, kind, name, labels, paths, folder, inference))

    for kind, models in ((VARIANT, variants), (ADAPTED, adapted)):
        for entry, path in models:
            add(LEDGER, kind, f"ledger-{entry.name}", (entry.name,), [(entry, path)])
        if len(models) > 1:
            add(ARCHITECTURES, kind, f"architectures-{kind.split()[-1]}", (kind,), models)
    for one in variants[1:]:
        add(CONTRAST, VARIANT, f"contrast-{one[0].name}", ("standard", one[0].name), variants[:1], [one])
    runs = {name: [one for one in adapted if one[0].architecture == name] for pair in _PAIRS for name in pair}
    seeds = {name: tuple(entry.seed for entry, _ in side) for name, side in runs.items()}
    if len(set(seeds.values())) > 1:
        raise DesignError(f"every adapted architecture needs runs of the same seeds, and there are {seeds}")
    for first, second in _PAIRS:
        if runs[first]:
            add(CONTRAST, ADAPTED, f"contrast-adapted-{first}-{second}", (first, second), runs[first], runs[second])
    return tasks


def run_all(tasks: Sequence[Task], *, workers: int, show: bool = True) -> None:
    """Compute what is not current, several tasks at once.

    Parameters
    ----------
    tasks : sequence of Task
        What to compute.
    workers : int
        Processes at once.
    show : bool
        Whether to show progress.
    """
    for folder in {task.folder for task in tasks}:
        folder.mkdir(parents=True, exist_ok=True)
    with progress("claims", len(tasks), unit="table", show=show) as bar:
        for _, line in in_processes(Task.run, tasks, workers):
            logger.info("%s", line)
            bar.update()
