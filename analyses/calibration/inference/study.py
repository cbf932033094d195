"""Run the study: simulate, save as it goes, tabulate."""

import argparse
import logging
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from analyses.calibration.inference import tables, trials
from analyses.calibration.inference.designs import CONTENT, SPECTRA, Family, Ratios, Runs, Squares

SEED = 20261
#: Data sets that are drawn together; part of the seeds.
CHUNK = 500
SIZES = (16, 24, 48, 96)
EFFECTS = (0, 1, 2, 5, 20, 100)
UNEQUAL = ("1 to 4", "12 and ones", "40, 20, 13 ...")


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of trial and its design."""

    kind: str
    design: Squares | Ratios | Runs | Family

    @property
    def name(self) -> str:
        """Of its file, and of its seeds."""
        return f"{self.kind}-" + "_".join(str(value).replace(" ", "") for value in astuple(self.design))

    def draw(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Data sets `start` .. `stop` - 1, `start` a multiple of the chunk."""
        seed = np.random.SeedSequence(SEED, spawn_key=(zlib.crc32(self.name.encode()), start // CHUNK))
        trial: Callable = getattr(trials, self.kind)
        return trial(self.design, np.random.default_rng(seed), stop - start)


def cells() -> list[Cell]:
    """What is run."""
    out = [cell for spectrum in SPECTRA for cell in (*_squares(spectrum), *_ratios(spectrum))]
    out += [Cell("runs", Runs(k, paired, x)) for k in (2, 3, 5) for paired in (True, False) for x in (0, 1, 4, 8)]
    for values, n in ((10, 16), (10, 48), (64, 16), (64, 48)):
        out += [Cell("families", Family(values, correlation, n)) for correlation in (0.0, 0.8)]
    return [*out, *_bootstrap()]


def _squares(spectrum: str) -> Iterator[Cell]:
    for n in SIZES:
        for effect in EFFECTS:
            for direction in ("leading", "any") if spectrum != "one" and effect else ("leading",):
                yield Cell("squares", Squares("gaussian", spectrum, direction, effect, "equal", n))
    effects = (0, 2, 20, 100)
    for n, content, effect in product((16, 48), CONTENT[1:], effects):
        yield Cell("squares", Squares(content, spectrum, "leading", effect, "equal", n))
    for n, sizes, effect in product((24, 48), UNEQUAL, effects):
        yield Cell("squares", Squares("gaussian", spectrum, "leading", effect, sizes, n))


def _ratios(spectrum: str) -> Iterator[Cell]:
    for kind in ("share", "removal"):
        for n, effect in product(SIZES, EFFECTS[1:]):
            yield Cell("ratios", Ratios(kind, "gaussian", spectrum, effect, n))
        for n, content, effect in product((16, 48), CONTENT[1:], (2, 20, 100)):
            yield Cell("ratios", Ratios(kind, content, spectrum, effect, n))


def _bootstrap() -> Iterator[Cell]:
    contents = ("gaussian", "lognormal")
    for n in (16, 48):
        for spectrum, content, effect in product(("one", "decaying", "many"), contents, (0, 2, 20, 100)):
            yield Cell("bootstrap_squares", Squares(content, spectrum, "leading", effect, "equal", n))
        designs = product(("one", "decaying"), ("share", "removal"), contents, (2, 20, 100))
        for spectrum, kind, content, effect in designs:
            yield Cell("bootstrap_ratios", Ratios(kind, content, spectrum, effect, n))


def chunks(datasets: int) -> Iterator[tuple[int, int]]:
    """Where chunks start and stop."""
    for start in range(0, datasets, CHUNK):
        yield start, min(start + CHUNK, datasets)


def main() -> None:
    """Command line of the study."""
    parser = argparse.ArgumentParser(prog="python -m analyses.calibration.inference", description=__doc__)
    parser.add_argument("--datasets", type=int, default=2000, help="simulated data sets per cell")
    parser.add_argument("--out", type=Path, default=Path("analyses/results/calibration-inference"))
    parser.add_argument("--docs", type=Path, help="folder in which the tables are written anew")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for number, cell in enumerate(cells(), start=1):
        file = options.out / f"{cell.name}-{options.datasets}.npz"
        if file.exists():
            continue
        drawn = [cell.draw(start, stop) for start, stop in chunks(options.datasets)]
        partial = file.with_suffix(".partial")
        with partial.open("wb") as stream:
            np.savez(stream, **{name: np.concatenate([one[name] for one in drawn]) for name in drawn[0]})
        partial.replace(file)
        logging.info("%d/%d  %.0f s  %s", number, len(cells()), time.monotonic() - started, cell.name)
    if options.docs is not None:
        tables.write(cells(), options.out, options.datasets, options.docs)
