"""Result objects: one tidy table each, which feeds data frame, dataset, text and HTML, and checks its arithmetic."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from posstats.errors import NumericalError
from posstats.vocabulary import RESIDUAL, RESIDUAL_TERMS, TERMS

#: Columns that say which estimate a row is.
KEYS = ("condition", "contrast", "layer", "head", "queries", "term")


def format_number(value: object) -> str:
    """Format one table cell for people: three significant digits, small p-values included; empty where not a number.

    Examples
    --------
    >>> [format_number(v) for v in (0.12345, 12345.678, 1e-12, float("nan"), 7, "mask")]
    ['0.123', '1.23e+04', '1e-12', '', '7', 'mask']
    """
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.3g}"
    return str(value)


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Estimates with intervals in one tidy table.

    Attributes
    ----------
    table : pandas.DataFrame
        One row per estimate. Key columns (`condition`, `layer`, `head`, `queries`, `term`, those that apply), then
        `estimate`, `se`, `low`, `high` and whatever the result adds; raw numbers, never rounded.
    settings : dict
        What the numbers rest on: level, interval method, replicates, seed, documents, sequences, offsets, family of q.
    notes : tuple of str
        Warnings that belong beside the numbers.
    """

    table: pd.DataFrame
    settings: dict[str, object]
    notes: tuple[str, ...] = field(default=())

    title: ClassVar[str] = "Result"
    units: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise NumericalError where an estimate lies outside a symmetric interval or the parts miss the whole."""
        rows = self.table.dropna(subset=["estimate", "low", "high"])
        if (rows.low > rows.high).any():
            raise NumericalError(f"{self.title}: an interval has its lower limit above its upper limit.")

    @property
    def keys(self) -> list[str]:
        """Key columns of this table."""
        return [name for name in KEYS if name in self.table]

    def to_dataframe(self) -> pd.DataFrame:
        """Return a copy of the tidy table."""
        return self.table.copy()

    def to_dataset(self) -> xr.Dataset:
        """Return the table as a dataset: key columns become dimensions, the others variables with units."""
        ds = self.table.set_index(self.keys).to_xarray()
        for name in ("estimate", "se", "low", "high"):
            ds[name].attrs["units"] = self.units
        ds.attrs = {key: str(value) for key, value in self.settings.items()} | {"title": self.title}
        return ds

    def summary(self, rows: int = 40) -> str:
        """Return the table as text, at most `rows` rows, with settings and notes."""
        shown = self.table.head(rows).map(format_number)
        lines = [f"{self.title} ({self.units})" if self.units else self.title, shown.to_string(index=False)]
        if len(self.table) > rows:
            lines.append(f"... {len(self.table) - rows} more rows in .table")
        return "\n".join([*lines, self._settings_line(), *(f"note: {note}" for note in self.notes)])

    def _settings_line(self) -> str:
        return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in self.settings.items())

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        notes = "".join(f"<p><b>note:</b> {note}</p>" for note in self.notes)
        body = self.table.head(200).map(format_number).to_html(index=False, border=0)
        return f"<h4>{self.title} ({self.units})</h4>{body}<p>{self._settings_line()}</p>{notes}"


def _wide(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column with the terms side by side."""
    keys = [name for name in KEYS if name in table and name != "term"]
    return table.pivot_table(index=keys, columns="term", values=column, dropna=False, sort=False)


def _require_sum(title: str, parts: pd.Series, whole: pd.Series, scale: pd.Series) -> None:
    error = ((parts - whole).abs() / (1.0 + scale.abs())).max()
    if error > 1e-6:
        raise NumericalError(f"{title}: the parts miss the whole by {error:.3g}; this result cannot be trusted.")


@dataclass(frozen=True, slots=True, repr=False)
class LeakageResult(Result):
    """How much absolute position log attention carries: ``C(y, y)`` summed over offsets, in nats squared.

    Columns added: `p` of the sign-flip test of "no absolute position", `q` over the family of rows with the same
    condition and queries.
    """

    title: ClassVar[str] = "Absolute-position leakage"
    units: ClassVar[str] = "nats^2"


@dataclass(frozen=True, slots=True, repr=False)
class ShareResult(Result):
    """Whose the leakage is: ``C(term, y) / C(y, y)``, a ratio of sums over the pooled heads and layers.

    Columns added: two-sided `p` and `q` of "the share is 0", `leakage` (nats squared), `leakage_q`, and `note` where
    leakage itself is not significant and the share is withheld (NaN).
    """

    title: ClassVar[str] = "Shares of absolute-position leakage"
    units: ClassVar[str] = "1"

    def check(self) -> None:
        """Raise NumericalError unless the five shares sum to 1 and the residual to its three terms."""
        Result.check(self)
        wide = _wide(self.table, "estimate").dropna()
        if len(wide):
            scale = wide.abs().max(axis=1)
            _require_sum(self.title, wide[list(TERMS)].sum(axis=1), pd.Series(1.0, wide.index), scale)
            _require_sum(self.title, wide[list(RESIDUAL_TERMS)].sum(axis=1), wide[RESIDUAL], scale)


@dataclass(frozen=True, slots=True, repr=False)
class MagnitudeResult(Result):
    """How far each term is from its long-context value: pair product of its departure from the mean over i >= T/2.

    Columns added: sign-flip `p` and `q` of "the departure has no mean in this bin", for the terms that can be tested.
    """

    title: ClassVar[str] = "Magnitude of terms"
    units: ClassVar[str] = "nats^2"


@dataclass(frozen=True, slots=True, repr=False)
class RemovalResult(Result):
    """How much of the residual-stream magnitude a condition removes: 1 - magnitude(condition) / magnitude(baseline).

    Columns added: two-sided `p` and `q` of "nothing is removed", `magnitude` and `baseline_magnitude` (nats squared),
    `baseline_q` of "there is nothing to remove", and `note` where that is not rejected and the removal is withheld.
    """

    title: ClassVar[str] = "Removal of the residual-stream component"
    units: ClassVar[str] = "1"

    def check(self) -> None:
        """Raise NumericalError unless the estimate follows from the two magnitudes."""
        Result.check(self)
        rows = self.table.dropna(subset=["estimate"])
        if len(rows):
            expected = 1 - rows.magnitude / rows.baseline_magnitude
            _require_sum(self.title, expected, rows.estimate, rows.estimate)


@dataclass(frozen=True, slots=True, repr=False)
class PositionResult(Result):
    """Slope of each term on log2(i + 1), clustered by document, and the joint test of a natural spline.

    Columns added: `t`, `df`, `p`, `q` of the slope; `spline_f`, `spline_df1`, `spline_df2`, `spline_p`, `spline_q`
    (Hotelling). `estimate` is in nats per doubling of position.
    """

    title: ClassVar[str] = "Position regression"
    units: ClassVar[str] = "nats per doubling of position"

    def check(self) -> None:
        """Raise NumericalError unless the slopes of the five terms add up to the slope of log attention."""
        Result.check(self)
        wide = _wide(self.table, "estimate")
        scale = wide.abs().max(axis=1)
        _require_sum(self.title, wide[list(TERMS)].sum(axis=1), wide["log_attention"], scale)
