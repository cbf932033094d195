"""What an analysis file returns: tables, figures, and its lines of the headline table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.axes import Axes

from posstats.errors import InputError
from posstats.results.base import Result
from posstats.tables.table import Table


@dataclass(frozen=True, slots=True)
class Quantity:
    """One line of the headline table."""

    quantity: str
    #: Unit of the estimate and its interval.
    unit: str
    estimate: float
    #: Interval and tests; NaN where there are none.
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    q: float = float("nan")
    #: What is to be kept in mind.
    note: str = ""
    #: What the headline table says below its rows: :attr:`posstats.results.base.Result.rests_on` of the result.
    rests_on: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def absent(cls, quantity: str, unit: str, why: str) -> "Quantity":
        """Make a line of a quantity that the dump does not support, with the reason in place of the number."""
        return cls(quantity, unit, float("nan"), note=why)

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
        return cls(quantity, unit, **numbers, note=str(row.get("note", "")), rests_on=result.rests_on)

    def noted(self, note: str) -> "Quantity":
        """Return the line with more to be kept in mind, after what its note says already.

        >>> Quantity("share", "fraction", 0.5, note="few documents").noted("chance 0.125").note
        'few documents; chance 0.125'
        """
        return replace(self, note="; ".join(filter(None, (self.note, note))))


@dataclass(frozen=True, slots=True)
class Findings:
    """What an analysis file returns."""

    #: File name without ending -> table, or axes of the figure.
    tables: Mapping[str, Result | Table] = field(default_factory=dict)
    figures: Mapping[str, Axes] = field(default_factory=dict)
    #: Its lines of the headline table, and a table that is shown after it.
    headline: Sequence[Quantity] = ()
    closing: Table | None = None

    def __post_init__(self) -> None:
        for name in (*self.tables, *self.figures):
            if Path(name).name != name or name.startswith("."):
                raise InputError(f"{name!r} cannot be the name of a file, which a table or figure has without ending")
        for what, kinds, found in (
            ("tables", (Result, Table), self.tables.values()),
            ("figures", (Axes,), self.figures.values()),
            ("headline", (Quantity,), self.headline),
        ):
            for one in found:
                if not isinstance(one, kinds):
                    expected = " or ".join(kind.__name__ for kind in kinds)
                    raise InputError(f"{what} of Findings hold {expected}, not {type(one).__name__}")
