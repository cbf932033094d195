"""Run the study: simulate, save as it goes, tabulate."""

import argparse
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyses.calibration import designs, tables, trials
from posstats.execution.files import replacing
from posstats.execution.kept import keep, kept
from posstats.execution.parallel import in_processes
from posstats.execution.provenance import code_digest, file_digest

SEED = 20260
CHUNK = 25
SIZES = (16, 24, 48, 96)
#: What is there to see what breaks, at a small and a usual number of documents; unequal documents as many as there are.
SECONDARY = [(name, n) for name in ("heavy tails", "skewed", "two levels") for n in (16, 48)]
SECONDARY += [("one large", 24), ("very unequal", 12)]
#: Little or nothing to find.
ABSENT = [(name, n) for name in ("weak", "none", "flat") for n in (16, 48)]
SHAPES = ("trend", "bump", "early")
SHAPE_SIZES = (0.025, 0.05, 0.075, 0.1, 0.15)
POWER_SIZE = 32
FAMILY_SIZE = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of trial, of which `share` times the number of datasets are run."""

    name: str
    trial: Callable[[np.random.SeedSequence], dict[str, float]]
    share: float = 1.0


def cells() -> list[Cell]:
    """What is run, in this order. The position in the list is part of the seeds: add at the end."""
    kinds = {"coverage": trials.coverage_trial, "level": trials.level_trial, "decoding": trials.decoding_trial}
    default = [("default", n) for n in SIZES]
    plan = [("coverage", *one) for one in default + SECONDARY + ABSENT]
    plan += [("level", *one) for one in default + SECONDARY]
    plan += [("decoding", *one) for one in [*default, ("two levels", 16), ("two levels", 48)]]
    out = []
    for kind, scenario, n in plan:
        out.append(Cell(f"{kind}-{scenario.replace(' ', '_')}-{n}", functools.partial(kinds[kind], scenario, n)))
    for shape, size in itertools.product(SHAPES, SHAPE_SIZES):
        trial = functools.partial(trials.power_trial, shape, size, POWER_SIZE)
        out.append(Cell(f"power-{shape}-{size}", trial, share=0.4))
    trial = functools.partial(trials.family_trial, FAMILY_SIZE)
    out.append(Cell(f"family-default-{FAMILY_SIZE}", trial, share=0.4))
    return out


@dataclass(frozen=True, slots=True)
class Chunk:
    """Datasets `start` .. `stop` - 1 of a cell."""

    cell: Cell
    number: int
    start: int
    stop: int
    folder: Path

    @property
    def file(self) -> Path:
        """Where its numbers are saved."""
        return self.folder / f"{self.cell.name}-{self.start:05d}-{self.stop:05d}.npz"

    @property
    def rests_on(self) -> dict[str, list[str]]:
        """What its numbers depend on besides its name."""
        return {"code": [code_digest(), *(file_digest(Path(module.__file__)) for module in (designs, trials))]}

    @property
    def current(self) -> bool:
        """Whether its numbers are there, from the code of now."""
        return kept(self.file.with_suffix(".json"), self.rests_on) is not None

    def run(self) -> None:
        """Simulate and save. The seed of a dataset is its own, whoever runs it and however it is chunked."""
        seeds = (np.random.SeedSequence(SEED, spawn_key=(self.number, k)) for k in range(self.start, self.stop))
        rows = [self.cell.trial(seed) for seed in seeds]
        values = np.array([list(row.values()) for row in rows], dtype=np.float64)
        with replacing(self.file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, names=np.array(list(rows[0])), values=values)
        keep(self.file.with_suffix(".json"), self.rests_on, [self.file])


def chunks(n_datasets: int, folder: Path) -> Iterator[Chunk]:
    """Everything to run: some data sets of every cell, then some more, so that a part of the study has all cells."""
    for start in range(0, n_datasets, CHUNK):
        for number, cell in enumerate(cells()):
            stop = min(start + CHUNK, max(1, round(cell.share * n_datasets)))
            if start < stop:
                yield Chunk(cell, number, start, stop, folder)


def main() -> None:
    """Command line of the study."""
    parser = argparse.ArgumentParser(prog="python -m analyses.calibration", description=__doc__)
    parser.add_argument("--datasets", type=int, default=1000, help="simulated datasets per cell")
    parser.add_argument("--out", type=Path, default=Path("analyses/results/calibration"), help="folder of the numbers")
    parser.add_argument("--docs", type=Path, help="folder in which tables and figure are written anew")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.out.mkdir(parents=True, exist_ok=True)
    todo = [chunk for chunk in chunks(options.datasets, options.out) if not chunk.current]
    started = time.monotonic()
    for k, (chunk, _) in enumerate(in_processes(Chunk.run, todo, options.processes), start=1):
        logging.info("%d/%d  %.0f s  %s", k, len(todo), time.monotonic() - started, chunk.file.name)
    if options.docs is not None:
        tables.write(options.out, options.docs)
