"""A table as people see it: cells of three significant digits, as text for a terminal and as HTML for a notebook."""

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

import numpy as np
import pandas as pd

from posstats.results.columns import COLUMNS
from posstats.vocabulary import is_path

#: What a p or q below it is printed as being below.
_SMALLEST_P = "1e-6"


#: Lower limits of intervals that get one cell -> heading in a table that stands by itself.
_TITLES = {"low": "{:g}% interval", "boot_low": "bootstrap interval", "order_low": "range over orders"}
#: Columns that the cell of the interval shows.
_IN_THE_INTERVAL = ("set", "gap_low", "gap_high")


class View(NamedTuple):
    """Cells of a table, ready to be shown."""

    #: Columns of the table; the limits of an interval share that of the lower one.
    names: list[str]
    #: A heading per column.
    header: list[str]
    #: Cells, row by row.
    rows: list[list[str]]
    #: Which columns hold text, and are set flush left.
    left: list[bool]

    def text(self) -> str:
        """Return aligned columns under a ruled header."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

        def line(row: list[str]) -> str:
            cells = zip(row, widths, self.left, strict=True)
            return "  ".join(cell.ljust(width) if left else cell.rjust(width) for cell, width, left in cells).rstrip()

        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([line(self.header), rule, *map(line, self.rows)])

    def html(self) -> str:
        """Return an HTML table, everything escaped."""

        def row(tag: str, cells: list[str]) -> str:
            styles = ("left" if left else "right;white-space:nowrap" for left in self.left)
            styled = zip(cells, styles, strict=True)
            inside = (f'<{tag} style="text-align:{style}">{escape(cell)}</{tag}>' for cell, style in styled)
            return f"<tr>{''.join(inside)}</tr>"

        body = "".join(row("td", cells) for cells in self.rows)
        return f"<table><thead>{row('th', self.header)}</thead><tbody>{body}</tbody></table>"


def significant(value: object, digits: int = 3) -> str:
    """Three significant digits, trailing zeros kept; powers of ten for the very small and large; "–" for NaN.

    >>> [significant(v) for v in (0.1, -12.345, 123.4, 0.0, 3.2e-9, 54321.0, float("nan"), 7, "mask")]
    ['0.100', '-12.3', '123', '0', '3.20e-09', '5.43e+04', '–', '7', 'mask']
    """
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if value is None or value is pd.NA:
        return "–"
    if not isinstance(value, float | np.floating):
        return str(value)
    if np.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if np.isinf(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    if not 1e-3 <= abs(rounded) < 1e4:
        return f"{rounded:.{digits - 1}e}"
    return f"{rounded:.{max(0, digits - 1 - int(np.floor(np.log10(abs(rounded)))))}f}"


def column_cells(frame: pd.DataFrame, name: str) -> list[str]:
    """Cells of a column, with the digits that the columns beside it ask for.

    An estimate with an interval beside it gets as many significant digits as the limits do, three or more: rounding to
    the same digits keeps order, so it never moves an estimate out of its own interval. A p or q below 1e-6 is printed
    as that, for no tail of a t distribution is known further out.

    >>> frame = pd.DataFrame({"estimate": [35.171, 0.7], "low": [35.162, 0.184], "high": [35.183, 1.22]})
    >>> column_cells(frame, "estimate"), column_cells(pd.DataFrame({"p": [1.36e-158, 0.0123]}), "p")
    (['35.17', '0.700'], ['<1e-6', '0.0123'])
    """
    values = frame[name].tolist()
    low, high = ("low", "high") if name == "estimate" else (f"{name}_low", f"{name}_high")
    if low in frame and high in frame:
        limits = zip(frame[low], frame[high], strict=True)
        return [significant(value, _digits(*pair) or 3) for value, pair in zip(values, limits, strict=True)]
    if name in ("p", "q") or name.endswith(("_p", "_q")):
        return [f"<{_SMALLEST_P}" if _is_number(x) and 0 <= x < float(_SMALLEST_P) else significant(x) for x in values]
    return [significant(value) for value in values]


def _is_number(value: object) -> bool:
    return isinstance(value, float | int | np.number) and not isinstance(value, bool)


def interval_cells(frame: pd.DataFrame, low: str = "low", high: str = "high") -> list[str]:
    """Cells that hold both limits of intervals, "–" where there is none.

    Limits get as many digits, up to six, as tell them apart; of limits that six do not, the cell says that they agree.
    A set of two rays is written as such.

    >>> interval_cells(pd.DataFrame({"low": [0.1, np.nan, 5.4321e-7, 1.5], "high": [0.25, np.nan, 5.4329e-7, 1.5]}))
    ['[0.100, 0.250]', '–', '[5.432e-07, 5.433e-07]', 'both 1.50']
    """
    cells = ["–" if pd.isna(a) else _interval(a, b) for a, b in zip(frame[low], frame[high], strict=True)]
    if low == "low" and "gap_low" in frame:
        for k, (a, b) in enumerate(zip(frame.gap_low, frame.gap_high, strict=True)):
            if not pd.isna(a):
                digits = _digits(a, b)
                cells[k] = f"(-inf, {significant(a, digits or 3)}] or [{significant(b, digits or 3)}, inf)"
    return cells


def _interval(low: float, high: float) -> str:
    if np.isinf(low) and np.isinf(high):
        return "(-inf, inf)"
    digits = _digits(low, high)
    return f"[{significant(low, digits)}, {significant(high, digits)}]" if digits else f"both {significant(low)}"


def _digits(low: float, high: float) -> int | None:
    """Fewest significant digits, three or more, that tell two limits apart; None where six do not."""
    return next((d for d in range(3, 7) if significant(low, d) != significant(high, d)), None)


def in_order(names: list[str]) -> list[str]:
    """Columns in the order of :data:`posstats.results.columns.COLUMNS`; what is not in it comes last, as it came."""
    known = {name: place for place, name in enumerate(COLUMNS)}
    return sorted(names, key=lambda name: known.get(name, len(known)))


def unit_text(units: str) -> str:
    """A unit as it is written for people; nothing for numbers without one.

    >>> unit_text("nats^2"), unit_text("1")
    ('nats²', '')
    """
    return "" if units == "1" else units.replace("^2", "²")


def unit_cell(units: str) -> str:
    """A unit in a column of units, where that of a ratio has a name too: "fraction".

    >>> unit_cell("nats^2"), unit_cell("1"), unit_cell("fraction"), unit_cell("")
    ('nats²', 'fraction', 'fraction', '')
    """
    return "fraction" if units == "1" else unit_text(units)


def model_name(model: str) -> str:
    """A model as headings name it: of one that lies in a folder of this machine, the folder's or file's own name.

    >>> model_name("/home/me/models/mine"), model_name("./mine.gguf, sliding_window=32"), model_name("org/model")
    ('mine', 'mine.gguf, sliding_window=32', 'org/model')
    """
    path, comma, rest = model.partition(", ")
    if not is_path(path):
        return model
    return (path.replace("\\", "/").rstrip("/").rpartition("/")[2] or path) + comma + rest


def one_line(text: str) -> str:
    r"""Text on one line, whatever breaks a name holds.

    >>> one_line("a  folder"), one_line("two\nlines")
    ('a  folder', 'two lines')
    """
    return text if text.isprintable() else " ".join(text.split())


def is_text(column: pd.Series) -> bool:
    """Whether a column holds text."""
    return any(isinstance(value, str) for value in column)


def view_of(frame: pd.DataFrame, units: Mapping[str, str], level: float | None = None) -> View:
    """Cells of a table, each under a heading with its unit.

    With `level`, for a table that stands by itself, headings are words, and that of the interval names its level.
    Without, headings are the names of columns in their usual order (metrics side by side in that of the frame), every
    interval has a cell, and a column of notes that says nothing is left out.

    >>> frame = pd.DataFrame({"layer": [0, 1], "estimate": [0.5, 2.0], "low": [0.25, 1.0], "high": [1.0, 4.0]})
    >>> print(view_of(frame, {"estimate": "nats^2"}).text())
    layer  estimate (nats²)    [low, high]
    --------------------------------------
        0             0.500  [0.250, 1.00]
        1              2.00   [1.00, 4.00]
    >>> view_of(frame, {"estimate": "nats^2"}, level=0.95).header
    ['layer', 'estimate (nats²)', '95% interval']
    """
    alone = level is not None
    names = [str(column) for column in frame]
    lows = [name for name in (_TITLES if alone else names) if name.endswith("low")]
    limits = {low: f"{low[:-3]}high" for low in lows if low in names and f"{low[:-3]}high" in names}
    shown, header, columns = [], [], []
    for name in names if alone or "estimate" not in names else in_order(names):
        silent = not alone and name in ("note", "reason") and not frame[name].astype(bool).any()
        if silent or name in limits.values() or name in _IN_THE_INTERVAL:
            continue
        title = name.replace("_", " ") if alone else name
        if name in limits:
            title = _TITLES[name].format(100 * level) if level is not None else "[low, high]"
            title = f"[{name}, {limits[name]}]" if level is None and name in _TITLES and name != "low" else title
        unit = unit_text(units.get(name, "")) if alone or name not in limits else ""
        cells = interval_cells(frame, name, limits[name]) if name in limits else column_cells(frame, name)
        shown.append(name)
        header.append(f"{title} ({unit})" if unit else title)
        columns.append([unit_cell(cell) for cell in cells] if name == "unit" else cells)
    left = [name not in limits and is_text(frame[name]) for name in shown]
    return View(shown, header, [list(row) for row in zip(*columns, strict=True)], left)
