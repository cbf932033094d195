"""Estimates of any result with their intervals, one below the other."""

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posstats.arguments import shown, text
from posstats.errors import InputError
from posstats.results.cells import unit_text

if TYPE_CHECKING:
    from posstats.results.base import Result

#: Most rows that can be read in one figure.
_MOST = 200
#: Inches per row.
_ROW = 0.22


def axes_of(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure of a size in inches that no pyplot state knows about."""
    if ax is not None and not isinstance(ax, Axes):
        raise InputError(f"ax must be axes of matplotlib, or None for a figure of its own, not {shown(ax)}.")
    return Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax


def forest(result: "Result", ax: Axes | None = None, label: str | None = None) -> Axes:
    """Draw estimates and intervals of a result, a row each; :meth:`posstats.results.base.Result.plot` documents it."""
    table = result.table
    if not {"estimate", "low", "high"} <= set(table):
        raise InputError(f"{result.title} has several numbers in a row, and no estimate with an interval to draw.")
    if not 0 < len(table) <= _MOST:
        raise InputError(f"{result.title} has {len(table)} rows, a figure 1 to {_MOST}: choose some with .sel(...).")
    ax = axes_of(ax, (6.4, 1.2 + _ROW * len(table)))
    before = sum(str(line.get_gid()) == "estimates" for line in ax.lines)
    at = [row + 0.2 * before for row in range(len(table))]
    name = None if label is None else text("label", label)
    (points,) = ax.plot(table.estimate, at, "o", markersize=4, color=f"C{before % 10}", label=name, gid="estimates")
    ax.hlines(at, table.low, table.high, color=points.get_color(), linewidth=1)
    varying = [key for key in result.keys if table[key].nunique() > 1] or result.keys
    units = [f" ({unit_text(unit)})" if unit_text(unit) else "" for unit in table.get("unit", [""] * len(table))]
    keys = table[varying].itertuples(index=False)
    rows = [", ".join(map(str, row)) + unit for row, unit in zip(keys, units, strict=True)]
    if not before:
        ax.set_yticks(range(len(table)), rows, fontsize="small")
        ax.invert_yaxis()
        ax.set_ylabel(", ".join(varying))
        ax.set_xlabel(f"estimate ({unit_text(result.units)})" if unit_text(result.units) else "estimate")
        level = float(str(result.settings.get("level", 0.95)))
        ax.set_title(f"{result.title}, lines: {100 * level:g}% intervals", fontsize="small", loc="left")
    if name is not None:
        ax.legend(frameon=False, fontsize="small")
    return ax
