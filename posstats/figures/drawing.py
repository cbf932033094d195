"""What figures have in common: axes, palette, captions, maps."""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from posstats.results.base import Result
from posstats.results.forest import axes_of as axes_of

#: Okabe and Ito's palette, told apart with any colour vision; yellow left out (too faint for lines on white).
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Lines that are no data.
GREY = "0.55"
#: Inches from the x axis to a legend below it: tick labels and the label of the axis lie between.
_BELOW = 0.48


def level_of(result: Result) -> float:
    """Confidence level of a result's intervals."""
    return float(str(result.settings["level"]))


def captioned(ax: Axes, result: Result, before: str = "", *, drawn: str = "bars: {level} intervals") -> Axes:
    """Name what is drawn of the inference, the intervals and their level, and the resampling unit."""
    said = drawn.format(level=f"{100 * level_of(result):g}%")
    unit, documents = result.settings.get("resampling_unit", "document"), result.settings["n_documents"]
    ax.set_title(f"{before}{said}, resampling unit: {unit} (G = {documents})", fontsize="small", loc="left")
    return ax


def interval_line(
    ax: Axes, at: Any, rows: pd.DataFrame, colour: str, marker: str, label: str, *, bars: bool = True
) -> None:
    """Draw a line through estimates, with their intervals as bars if wanted.

    An estimate below 0 of what cannot be has its bar upwards alone, and a set without an end has no bar.
    """
    spread = np.array([rows.estimate - rows.low, rows.high - rows.estimate], dtype=np.float64)
    spread = np.where(np.isfinite(spread), np.maximum(spread, 0.0), np.nan)
    ax.errorbar(
        at, rows.estimate, yerr=spread if bars else None, label=label,
        color=colour, marker=marker, markersize=4, linewidth=1, capsize=2,
    )  # fmt: skip


def counting_axis(ax: Axes, label: str) -> None:
    """Label an x axis of layers or depths, which has ticks at whole numbers."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(label)


def zero_line(ax: Axes, value: float = 0.0) -> None:
    """Draw a thin line at a value that estimates are read against."""
    ax.axhline(value, color=GREY, linewidth=0.8, linestyle=":", zorder=0)


def legend_below(ax: Axes, **options: Any) -> None:
    """A legend below the label of the x axis, that covers no point whatever the numbers and the size of the axes."""
    ax.legend(
        frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 0.0), borderaxespad=0,
        bbox_transform=ax.transAxes + ScaledTranslation(0, -_BELOW, ax.figure.dpi_scale_trans),
        **{"ncols": 2, **options},
    )  # fmt: skip


def say_why(ax: Axes, why: str) -> Axes:
    """Axes that have nothing to draw: the reason in the place of lines and ticks, whoever looks at PDF or PNG alone."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, textwrap.fill(why, 60), transform=ax.transAxes, ha="center", va="center", fontsize="small")
    return ax


def map_axes(ax: Axes | None, layers: NDArray[np.integer], heads: NDArray[np.integer]) -> Axes:
    """Axes of a map of layers and heads, labelled at no more than sixteen places."""
    ax = axes_of(ax, (max(6.4, 0.24 * len(layers) + 2.2), max(2.4, 0.24 * len(heads) + 1.2)))
    for axis, values in ((ax.xaxis, layers), (ax.yaxis, heads)):
        step = max(1, round(len(values) / 16))
        axis.set_ticks(np.arange(0, len(values), step), labels=[str(value) for value in values[::step]])
    ax.set_xlabel("layer")
    ax.set_ylabel("head")
    return ax
