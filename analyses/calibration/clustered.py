"""Do the clustered tests of the position regression keep their level where documents are unequally large?

``python -m analyses.calibration.clustered --docs docs`` simulates responses without a position effect, tests them with
:func:`posstats.stats.regression.fit_position`, and writes docs/calibration/clustered.csv and its table anew.
"""

import argparse
import logging
import multiprocessing
import os
import re
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from posstats.stats.inference.documents import effective_documents
from posstats.stats.pair_products.terms import Array
from posstats.stats.regression import document_means, fit_position, position_basis

SEED = 20262
#: Data sets that are drawn together; part of the seeds.
CHUNK = 500
#: Sequences of each document.
DESIGNS = {
    "12 x 1 and 12": [1] * 12 + [12],
    "23 x 1 and 12": [1] * 23 + [12],
    "40, 20, 13, ..., 1": [40, 20, 13, 10, 8, 7, 6, 5, 4, 3, 2, 1],
    "12 x (1, 2, 3, 4)": [1, 2, 3, 4] * 12,
    "8 x 4": [4] * 8,
    "24 x 2": [2] * 24,
    "48 x 1": [1] * 48,
}
#: Part of the variance between sequences that the sequences of a document share.
SHARED = (0.0, 0.3, 0.8)
#: Standardised noise -> its distribution.
NOISE = {"gaussian": stats.norm(), "t, 3 df": stats.t(3, scale=3**-0.5), "exponential": stats.expon(loc=-1)}
QUERIES = np.arange(17, 190, 16)
OFFSETS = 2
LEVEL = 0.05
#: What is asked of the rates at 0.05.
REQUIRED = (0.035, 0.065)


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of data set."""

    design: str
    shared: float
    noise: str

    def response(self, rng: np.random.Generator, heads: int) -> tuple[Array, Array]:
        """Response (sequence, head, query, offset) without a mean effect of position, and the document labels."""
        counts = DESIGNS[self.design]
        documents = np.repeat(np.arange(len(counts)), counts)

        def draw(*size: int) -> Array:
            return NOISE[self.noise].rvs(size=size, random_state=rng)

        # Smooth curves in log position, of the document and of the sequence, and white noise.
        x = np.log2(QUERIES + 1.0)
        curves = np.linalg.qr(np.vander(x - x.mean(), 4, increasing=True))[0][:, 1:] * np.sqrt(len(x))
        own = np.sqrt(1 - self.shared) * draw(documents.size, heads, 3)
        of_document = np.sqrt(self.shared) * draw(len(counts), heads, 3)[documents]
        return ((own + of_document) @ curves.T)[..., None] + draw(documents.size, heads, len(x), OFFSETS), documents

    def p_values(self, seed: np.random.SeedSequence, heads: int) -> dict[str, Array]:
        """p-values of the slope and of the spline, and of the slope as the first edition had them."""
        response, documents = self.response(np.random.default_rng(seed), heads)
        fits = {kind: fit_position(response, documents, QUERIES, kind) for kind in ("linear", "spline")}
        basis = position_basis(QUERIES).values
        slopes = response.mean(axis=-1) @ np.linalg.pinv(basis - basis.mean(axis=0)).T
        return {
            "slope": fits["linear"].p[:, 0],
            "spline": fits["spline"].f_p,
            "former slope": _former(slopes, documents),
        }


def _former(slopes: Array, documents: Array) -> Array:
    """CR1, the factor G / (G - 1) for all documents, with t(G - 1)."""
    by_document, counts = document_means(slopes[..., 0], documents)
    w = (counts / counts.sum())[:, None]
    g, b = len(counts), (w * by_document).sum(axis=0)
    se = np.sqrt(g / (g - 1) * ((w * (by_document - b)) ** 2).sum(axis=0))
    return 2 * stats.t.sf(np.abs(b) / se, g - 1)


def cells() -> list[Cell]:
    """What is run, in this order. The position in the list is part of the seeds: add at the end."""
    return [Cell(*values) for values in product(DESIGNS, SHARED, NOISE)]


def _run(job: tuple[int, int]) -> tuple[int, dict[str, Array]]:
    number = job[0]
    return number, cells()[number].p_values(np.random.SeedSequence(SEED, spawn_key=job), CHUNK)


def row(cell: Cell, p: dict[str, Array]) -> dict[str, object]:
    """Rejection rates of one cell; a test that is not defined does not reject."""
    counts = DESIGNS[cell.design]
    documents = np.repeat(np.arange(len(counts)), counts)
    df = fit_position(np.zeros((len(documents), len(QUERIES), 1)), documents, QUERIES, "linear").df
    return {
        "design": cell.design,
        "documents": len(counts),
        "effective": effective_documents(counts),
        "df": df,
        "shared": cell.shared,
        "noise": cell.noise,
        "datasets": len(p["slope"]),
        **{f"{name}_below_0.05".replace(" ", "_"): (values < LEVEL).mean() for name, values in p.items()},
        **{f"{name}_below_0.01": (p[name] < 0.01).mean() for name in ("slope", "spline")},
        "spline_undefined": int(np.isnan(p["spline"]).sum()),
    }


def _markdown(table: pd.DataFrame) -> str:
    """Rates of slope and spline per design, a column per noise and shared part; "(!)" outside what is asked for."""

    def mark(rate: float) -> str:
        return f"{rate:.3f}" + ("" if REQUIRED[0] <= rate <= REQUIRED[1] else " (!)")

    kinds = list(product(NOISE, SHARED))
    header = ["test", "sequences of the documents", *(f"{noise}, {shared:g}" for noise, shared in kinds)]
    lines = [header, ["---"] * len(header)]
    names = {"slope": "slope, t", "spline": "spline, joint F", "former_slope": "slope, first edition"}
    for test, name in names.items():
        wide = table.pivot_table(index="design", columns=["noise", "shared"], values=f"{test}_below_0.05", sort=False)
        lines += [[name, design, *(mark(wide.loc[design, kind]) for kind in kinds)] for design in wide.index]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Command line of the study."""
    parser = argparse.ArgumentParser(prog="python -m analyses.calibration.clustered", description=__doc__)
    parser.add_argument("--datasets", type=int, default=10_000, help=f"data sets per cell, in steps of {CHUNK}")
    parser.add_argument("--docs", type=Path, required=True, help="folder in which table and CSV are written anew")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # spawned processes read this on import
    jobs = list(product(range(len(cells())), range(-(-options.datasets // CHUNK))))
    gathered: dict[int, list[dict[str, Array]]] = {}
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for k, (number, p) in enumerate(pool.imap(_run, jobs), start=1):
            gathered.setdefault(number, []).append(p)
            if k % 50 == 0:
                logging.info("%d/%d  %.0f s", k, len(jobs), time.monotonic() - started)
    rows = []
    for number, parts in sorted(gathered.items()):
        rows.append(row(cells()[number], {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}))
    table = pd.DataFrame(rows)
    table.to_csv(options.docs / "calibration" / "clustered.csv", index=False, float_format="%.5g", lineterminator="\n")
    page = options.docs / "calibration.md"
    pattern = r"(<!-- table: clustered -->\n).*?(\n<!-- end -->)"
    text = re.sub(pattern, lambda m: m[1] + _markdown(table) + m[2], page.read_text(encoding="utf-8"), flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
