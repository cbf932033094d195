"""From the saved numbers to CSV tables and those of docs/calibration-inference.md."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from analyses.calibration.inference.study import Cell

#: What a cell's numbers are reduced to: all rates and means but of lengths, whose median says more.
MEDIANS = ("length", "half width")
#: Coverage asked for: from 24 documents on, and with 16.
REQUIRED = {24: (0.93, 0.97), 16: (0.92, 0.97)}


def summary(cell: "Cell", folder: Path, datasets: int) -> dict[str, object]:
    """One row: the design, and a mean or median of every number."""
    row: dict[str, object] = asdict(cell.design) | {"datasets": datasets}
    with np.load(folder / f"{cell.name}-{datasets}.npz") as saved:
        for name in saved.files:
            values = saved[name]
            if name == "p":
                row["p below 0.05"] = (values < 0.05).mean()
            elif name.endswith(MEDIANS):
                row[name] = np.median(values)
            elif name != "pairing" or not np.isnan(values).any():
                row[name] = values.mean()
    return row


def write(cells: Iterable["Cell"], folder: Path, datasets: int, docs: Path) -> None:
    """Write a CSV file per kind below `docs`/calibration, and the tables of `docs`/calibration-inference.md anew."""
    rows: dict[str, list[dict[str, object]]] = {}
    for cell in cells:
        rows.setdefault(cell.kind, []).append(summary(cell, folder, datasets))
    tables = {kind: pd.DataFrame(found) for kind, found in rows.items()}
    for kind, table in tables.items():
        file = docs / "calibration" / f"inference_{kind}.csv"
        table.to_csv(file, index=False, float_format="%.4g", lineterminator="\n")
    squares, ratios = tables["squares"], tables["ratios"]
    plain = (squares.content == "gaussian") & (squares.sizes == "equal")
    covered = "mixture|covered"
    shown = {
        "squares": _coverage(squares[plain], ["spectrum", "direction"], covered, "n"),
        "squares by effect": _coverage(squares[plain], ["spectrum", "direction"], covered, "effect"),
        "squares, t": _coverage(squares[plain], ["spectrum", "direction"], "score t|covered", "effect"),
        "squares, content": _coverage(squares[squares.content != "gaussian"], ["content", "n", "spectrum"], covered),
        "squares, sizes": _coverage(squares[squares.sizes != "equal"], ["sizes", "n", "spectrum"], covered),
        "ratios": _coverage(ratios[ratios.content == "gaussian"], ["kind", "spectrum", "n"], "corrected|covered"),
        "ratios, shapes": _coverage(
            ratios[ratios.content == "gaussian"], ["kind", "spectrum", "n"], "corrected|interval"
        ),
        "ratios, content": _coverage(
            ratios[ratios.content != "gaussian"], ["content", "n", "kind"], "corrected|covered"
        ),
        "bootstrap squares": _against(tables["bootstrap_squares"], ["content", "spectrum", "n"], "mixture"),
        "bootstrap ratios": _against(tables["bootstrap_ratios"], ["kind", "content", "spectrum", "n"], "jackknife"),
        "runs": _runs(tables["runs"]),
        "families": _families(tables["families"]),
    }
    page = docs / "calibration-inference.md"
    text = page.read_text(encoding="utf-8")
    for name, lines in shown.items():
        pattern = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)"
        table = _markdown(lines) + "\n"
        text = re.sub(pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.3f}", f"{values.max():.3f}"
    return low if low == high else f"{low} to {high}"


def _coverage(table: pd.DataFrame, keys: list[str], value: str, over: str = "effect") -> Iterator[list[str]]:
    """Smallest and largest value per group; coverages outside what is asked for carry "(!)"."""
    columns = sorted(table[over].unique())
    heading = "N" if over == "n" else "effect"
    yield [*keys, *(f"{heading} = {column}" for column in columns)]
    for key, group in table.groupby(keys, sort=False):
        cells = []
        for column in columns:
            chosen = group[group[over] == column]
            marked = value.endswith("covered") and any(
                not REQUIRED[16 if n < 24 else 24][0] <= rate <= REQUIRED[24][1]
                for n, rate in zip(chosen.n, chosen[value], strict=True)
            )
            cells.append((_range(chosen[value]) + (" (!)" if marked else "")) if len(chosen) else "-")
        yield [*map(str, key), *cells]


def _against(table: pd.DataFrame, keys: list[str], other: str) -> Iterator[list[str]]:
    """Coverage of the bootstrap-t after that of the other quantiles, per effect."""
    effects = sorted(table.effect.unique())
    yield [*keys, *(f"effect = {effect}: {other} / bootstrap-t" for effect in effects)]
    for key, group in table.groupby(keys, sort=False):
        at = group.set_index("effect")
        cells = [f"{at[f'{other}|covered'][e]:.3f} / {at['bootstrap-t|covered'][e]:.3f}" for e in effects]
        yield [*map(str, key), *cells]


def _runs(table: pd.DataFrame) -> Iterator[list[str]]:
    yield ["runs", "paired", "run effect", "coverage", "Satterthwaite alone", "mean df", "half width (document errors)"]
    for row in table.to_dict("records"):
        yield [
            str(row["k"]),
            "yes" if row["paired"] else "no",
            str(row["effect"]),
            f"{row['covered']:.3f}",
            f"{row['satterthwaite|covered']:.3f}",
            f"{row['df']:.1f}",
            f"{row['half width']:.1f}",
        ]


def _families(table: pd.DataFrame) -> Iterator[list[str]]:
    yield [
        "values",
        "correlation",
        "N",
        "band",
        "critical value",
        "count, Holm",
        "count, Simes",
        "mean lower limit of both",
    ]
    for row in table.to_dict("records"):
        yield [
            str(row["values"]),
            str(row["correlation"]),
            str(row["n"]),
            f"{row['band|covered']:.3f}",
            f"{row['critical']:.2f}",
            f"{row['holm|covered']:.3f}",
            f"{row['simes|covered']:.3f}",
            f"{row['holm|low']:.1f}, {row['simes|low']:.1f} of {row['values'] // 4}",
        ]


def _markdown(rows: Iterator[list[str]]) -> str:
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
