"""Rows of a result: what every estimator prepares, withholds, adjusts and says about its documents."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.dataset.door import whole_recording
from posstats.dataset.terms import (
    check_offsets_visible,
    document_codes,
    document_settings,
    few_documents,
    repeated_documents_note,
    select_condition,
)
from posstats.stats.inference.multiplicity import adjust as adjust_p
from posstats.stats.inference.options import Inference
from posstats.stats.inference.replicates import Replicates, mean_at
from posstats.stats.inference.resample import Interval
from posstats.stats.pair_products.components import document_sums
from posstats.stats.pair_products.terms import Array

#: What float64 leaves of numbers of order 1 that should vanish: spreads, standard errors, nats squared up to it are
#: rounding.
ROUNDING = 1e-12
NUMBERS = ("estimate", "se", "low", "high", "p")


def prepare(
    data: object, offsets: object, inference: Inference
) -> tuple[xr.Dataset, tuple[str, ...], dict[str, object]]:
    """Terms, notes and settings shared by all estimates; every check that needs no computation happens here."""
    terms = whole_recording(data, offsets)
    check_offsets_visible(terms)
    codes, _ = document_codes(terms)
    notes = few_documents(codes) + repeated_documents_note(terms)
    settings = document_settings(codes)
    settings |= {"offsets": tuple(terms.offset.values.tolist()), "adjustment": inference.adjust}
    return terms, notes, settings


def conditions(terms: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """Name and data of every condition."""
    return [(str(name), select_condition(terms, name)) for name in terms.condition.values.tolist()]


def withheld(table: pd.DataFrame, q: pd.Series, whole: pd.Series, inference: Inference, why: str) -> pd.DataFrame:
    """Withhold a ratio whose denominator is not significantly above 0, or its test where nothing varies; say so."""
    weak = ~(q < 1 - inference.level) | ~(whole > ROUNDING)
    table.loc[weak, ["estimate", "se", "low", "high", "p"]] = np.nan
    point = ~weak & (table.se <= ROUNDING) & (table.get("term", "") != "relative")
    table.loc[point, "p"] = np.nan  # a division by rounding would make what is rounding the most significant of all
    table["note"] = np.select(
        [weak, point], [f"withheld: {why}", "documents do not differ beyond rounding: no test"], ""
    )
    return table


def adjusted(table: pd.DataFrame, family: list[str], inference: Inference, columns: dict[str, str]) -> pd.DataFrame:
    """Add q columns, adjusted within each family of rows."""
    for p, q in columns.items():
        table[q] = table.groupby(family, sort=False)[p].transform(
            lambda x: adjust_p(x.to_numpy(float), inference.adjust).q
        )
    return table


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Key columns first."""
    first = [name for name in ("condition", "layer", "head", "queries", "term") if name in table]
    return table[first + [name for name in table if name not in first]]


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of a dump, how they are resampled, and what every result says about them."""

    #: (sequence,): document of each sequence.
    code: NDArray[np.int64]
    #: (document,): number of sequences of each document.
    sequences: Array
    replicates: Replicates
    settings: dict[str, object]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, data: xr.Dataset, inference: Inference) -> "Documents":
        """Of a dataset; DesignError with fewer than 5, a warning with fewer than 24."""
        code, n_documents = document_codes(data)
        notes = few_documents(code)
        settings = document_settings(code)
        settings |= {name: value for name, value in inference.settings().items() if name != "n_permutations"}
        replicates = Replicates.of(
            n_documents, inference.interval, inference.level, inference.n_resamples, inference.seed
        )
        return cls(code, np.bincount(code).astype(np.float64), replicates, settings, notes)

    def sums(self, values: Array) -> Array:
        """Sums over the sequences of each document."""
        return document_sums(values, self.code)

    def mean(self, sums: Array, null: float = 0.0) -> Interval:
        """Interval of the mean over sequences, of per-document sums."""
        return self.replicates.interval(mean_at(sums, self.sequences, self.replicates.weights), null=null)

    def cell(self, x: Interval, at: tuple[int, ...], null: float, rounding: float = ROUNDING) -> dict[str, object]:
        """One row's estimate, interval, p and note; without spread between documents, a sign test or none."""
        row = {name: float(getattr(x, name)[at]) for name in NUMBERS}
        away = abs(row["estimate"] - null)
        if np.isfinite(away) and away <= rounding:
            return row | {"p": 1.0, "note": "no difference beyond rounding"}
        if row["se"] <= ROUNDING:
            nan = dict.fromkeys(("se", "low", "high"), np.nan)
            p = float(min(1.0, 2 * 0.5 ** len(self.sequences)))
            return row | nan | {"p": p, "note": "documents do not differ beyond rounding: no interval, sign test"}
        return row | {"note": "" if np.isfinite(row["p"]) else "no interval: undefined without some document"}
