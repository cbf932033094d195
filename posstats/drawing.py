"""What figures have in common: axes, palette, captions, maps."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from posstats.results import Result

#: Okabe and Ito's palette, yellow left out (too faint for lines on white).
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Lines that are no data.
GREY = "0.55"


def axes_of(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure of a size in inches that no pyplot state knows about."""
    return Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax


def level_of(result: Result) -> float:
    """Confidence level of a result's intervals."""
    return float(str(result.settings["level"]))


def captioned(ax: Axes, result: Result, before: str = "") -> Axes:
    """Name the intervals: their level and the resampling unit."""
    documents = result.settings["n_documents"]
    text = f"{before}bars: {100 * level_of(result):g}% intervals, resampling unit: document (G = {documents})"
    ax.set_title(text, fontsize="small", loc="left")
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
