"""Result objects: one tidy table each, which feeds data frame, dataset, text and HTML, and checks its arithmetic."""

from dataclasses import dataclass, field, fields
from html import escape
from typing import ClassVar

import pandas as pd
import xarray as xr

from posstats.errors import NumericalError
from posstats.results.cells import View, unit_text, view_of
from posstats.results.columns import COLUMNS
from posstats.vocabulary import RESIDUAL, RESIDUAL_TERMS, TERMS

#: Columns that say which estimate a row is.
KEYS = ("condition", "contrast", "layer", "head", "queries", "offset", "term")
#: Columns in the unit of the result itself.
IN_UNITS = ("estimate", "se", "low", "high")
#: Rows that a view of a result shows.
SHOWN = 40


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
    #: Unit of estimates, errors and limits; empty where every row has its own, in the column `unit`.
    units: ClassVar[str] = ""
    #: Column -> unit, of the columns that have another one.
    column_units: ClassVar[dict[str, str]] = {}

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

    @property
    def all_units(self) -> dict[str, str]:
        """Column -> unit, those of the estimates first."""
        return dict.fromkeys(IN_UNITS, self.units) | self.column_units

    def to_dataset(self) -> xr.Dataset:
        """Return the table as a dataset: key columns become dimensions, the others variables with units."""
        ds = self._as_arrays()
        units = {name: unit or "see the variable unit" for name, unit in self.all_units.items()}
        for name in map(str, ds.variables):
            described = {"units": units.get(name), "long_name": COLUMNS.get(name)}
            ds[name].attrs = {key: text for key, text in described.items() if text}
        ds.attrs = {key: str(value) for key, value in self.settings.items()} | {"title": self.title}
        return ds

    def _as_arrays(self) -> xr.Dataset:
        return self.table.set_index(self.keys).to_xarray()

    def summary(self, rows: int = SHOWN) -> str:
        """Return the table as text, at most `rows` rows, with settings and notes."""
        return "\n".join([self._heading(), self._view(rows).text(), *self._below(rows)])

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(line)}</p>" for line in self._below(SHOWN))
        heading, table = escape(self._heading()), self._view(SHOWN).html()
        return f'<div style="overflow-x:auto"><h4>{heading}</h4>{table}{below}</div>'

    def _heading(self) -> str:
        units = unit_text(self.units)
        return f"{self.title} ({units})" if units else self.title

    def _view(self, rows: int) -> View:
        return view_of(self.table.head(rows), self.column_units)

    def _below(self, rows: int) -> list[str]:
        """What stands below the rows shown: how many are not, what they rest on, what to keep in mind."""
        hidden = len(self.table) - rows
        beside = [f".{one.name}" for one in fields(self) if one.name not in Result.__slots__]
        return [
            *([f"... {hidden} more rows in .table"] if hidden > 0 else []),
            ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in self.settings.items()),
            *([f"more in {' and '.join(beside)}"] if beside else []),
            *(f"note: {note}" for note in self.notes),
        ]


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

    Beside the terms, `mask_first` and `mask_last` are the mask's share in either order. Columns added: two-sided `p`
    and `q` of "the share is 0", `leakage` (nats squared), `leakage_q`, and `note` where nothing leaks beyond rounding.
    """

    title: ClassVar[str] = "Shares of absolute-position leakage"
    units: ClassVar[str] = "1"
    column_units: ClassVar[dict[str, str]] = {"leakage": "nats^2", "content_scatter": "nats"}

    def check(self) -> None:
        """Raise NumericalError unless the four shares sum to 1 and the residual to its two terms."""
        Result.check(self)
        wide = _wide(self.table, "estimate").dropna()
        if len(wide):
            scale = wide.abs().max(axis=1)
            _require_sum(self.title, wide[list(TERMS)].sum(axis=1), pd.Series(1.0, wide.index), scale)
            _require_sum(self.title, wide[list(RESIDUAL_TERMS)].sum(axis=1), wide[RESIDUAL], scale)


@dataclass(frozen=True, slots=True, repr=False)
class SizeResult(Result):
    """How much absolute position each term carries by itself: ``C(term, term)`` summed over offsets, nats squared.

    Columns added: sign-flip `p` and `q` of "the term has no absolute position", for the terms that can be tested.
    """

    title: ClassVar[str] = "Size of terms"
    units: ClassVar[str] = "nats^2"


@dataclass(frozen=True, slots=True, repr=False)
class MagnitudeResult(Result):
    """How far each term is from the steady state: pair product of the term itself.

    Columns added: sign-flip `p` and `q` of "the departure has no mean in this bin", for the terms that can be tested.
    """

    title: ClassVar[str] = "Magnitude of terms"
    units: ClassVar[str] = "nats^2"


@dataclass(frozen=True, slots=True, repr=False)
class RemovalResult(Result):
    """How much of the residual-stream magnitude a condition removes: 1 - magnitude(condition) / magnitude(baseline).

    Columns added: two-sided `p` and `q` of "nothing is removed", `magnitude` and `baseline_magnitude` (nats squared),
    `baseline_q` of "there is nothing to remove", and `note` where there is nothing beyond rounding.
    """

    title: ClassVar[str] = "Removal of the residual-stream component"
    units: ClassVar[str] = "1"
    column_units: ClassVar[dict[str, str]] = {"magnitude": "nats^2", "baseline_magnitude": "nats^2"}

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
        """Raise NumericalError unless the slopes of the four terms add up to the slope of log attention."""
        Result.check(self)
        wide = _wide(self.table, "estimate")
        scale = wide.abs().max(axis=1)
        _require_sum(self.title, wide[list(TERMS)].sum(axis=1), wide["log_attention"], scale)
