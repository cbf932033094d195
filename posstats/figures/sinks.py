"""Figures of sinks at any key and of reach. As in leakage.py, axes in and axes out."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize

from posstats.arguments import choice, whole_number
from posstats.figures.drawing import COLOURS, GREY, axes_of, captioned, counting_axis, legend_below, say_why
from posstats.results.base import check_result
from posstats.results.reach import ReachResult
from posstats.results.sinks import KeySinkResult
from posstats.vocabulary import BASELINE


def sink_map(result: KeySinkResult, ax: Axes | None = None, *, condition: str = BASELINE) -> Axes:
    """Layer by key map of the number of sinks per sequence, on a log scale; white where there is none.

    Parameters
    ----------
    result : KeySinkResult
        Of ``posstats.sinks(..., keys="all")``.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    condition : str
        Condition to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result lacks the condition.

    Examples
    --------
    >>> import posstats as ps
    >>> weights = np.tril(np.ones((30, 1, 1, 64, 64)))
    >>> weights[..., 5] *= 200  # all queries behind key 5 read it
    >>> weights /= weights.sum(-1, keepdims=True)
    >>> ds = ps.from_attention(weights, tokens=np.ones((30, 64), int), offsets=(0, 1))
    >>> sink_map(ps.sinks(ds, keys="all", n_permutations=9)).get_ylabel()
    'layer'
    """
    check_result(result, KeySinkResult, of="posstats.sinks(..., keys='all')")
    table = _rows(result.by_key.table, condition)
    table = table[table.layers != "all"].astype({"layers": int})
    wide = table.pivot(index="layers", columns="key", values="estimate")
    ax = axes_of(ax, (6.4, max(2.4, 0.12 * len(wide) + 1.4)))
    ax.set_xlabel("key position j (tokens)")
    ax.set_ylabel("layer")
    values = wide.to_numpy()
    if not (values > 0).any():
        return captioned(say_why(ax, "no key is a sink"), result, f"{condition}\n")
    smallest = 1 / float(str(result.settings["n_sequences"]))
    image = ax.imshow(
        np.where(values > 0, values, np.nan), cmap=mpl.colormaps["cividis"], aspect="auto", origin="lower",
        norm=LogNorm(smallest, max(values.max(), 2 * smallest)), interpolation="nearest",
        extent=(-0.5, values.shape[1] - 0.5, wide.index.min() - 0.5, wide.index.max() + 0.5),
    )  # fmt: skip
    ax.figure.colorbar(image, ax=ax).set_label("sinks (per sequence)")
    return captioned(ax, result, f"{condition}: attention received above {result.settings['sink_threshold']}\n",
                     drawn="{level} intervals in the table")  # fmt: skip


def sink_tokens(result: KeySinkResult, ax: Axes | None = None, *, condition: str = BASELINE, n: int = 10) -> Axes:
    """Tokens with most sinks beyond position 0: at first occurrences, expected there in any order, and in all.

    Parameters
    ----------
    result : KeySinkResult
        Of ``posstats.sinks(..., keys="all")``.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    condition : str
        Condition to draw.
    n : int
        Most tokens to draw, 1 to 100.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result lacks the condition, or `n` is not allowed.

    Examples
    --------
    >>> import posstats as ps
    >>> weights = np.tril(np.ones((30, 1, 1, 64, 64)))
    >>> weights[..., 5] *= 200  # all queries behind key 5 read it
    >>> weights /= weights.sum(-1, keepdims=True)
    >>> ds = ps.from_attention(weights, tokens=np.ones((30, 64), int), offsets=(0, 1))
    >>> sink_tokens(ps.sinks(ds, keys="all", n_permutations=9)).get_ylabel()
    'token (id)'
    """
    check_result(result, KeySinkResult, of="posstats.sinks(..., keys='all')")
    n = whole_number("n", n, 1, 100)
    table = _rows(result.by_token.table, condition)
    table = table.assign(beyond=table.n_sinks * (1 - table.position_0_share))
    table = table[table.beyond > 0.5].nlargest(n, "beyond", keep="first")
    ax = axes_of(ax, (6.4, max(2.4, 0.24 * len(table) + 1.6)))
    ax.set_xlabel("sinks beyond position 0 (number in all sequences)")
    ax.set_ylabel("token (id)")
    if table.empty:
        return captioned(say_why(ax, "no token beyond position 0 is a sink"), result, f"{condition}\n")
    at = np.arange(len(table))[::-1]
    ax.barh(at, table.beyond, color="0.8", label="all")
    ax.barh(at, table.n_first, height=0.5, color=COLOURS[2], label="at a first occurrence")
    ax.plot(table.expected_first, at, "D", color=COLOURS[1], markersize=4, label="expected there in any order")
    ax.set_yticks(at, labels=table.token.astype(str))
    legend_below(ax, ncols=3)
    return captioned(ax, result, f"{condition}\n", drawn="{level} intervals in the table")


def reach_by_layer(result: ReachResult, ax: Axes | None = None, *, condition: str = BASELINE) -> Axes:
    """Residual magnitude by layer and query in windows, with the horizon of position 0 drawn in.

    A horizon beyond the analysed queries is drawn at the top. Only layers with a window are drawn. White cells have an
    estimate at or below 0.

    Parameters
    ----------
    result : ReachResult
        Of :func:`posstats.reach`.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    condition : str
        Condition to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result lacks the condition.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=64, layers=2, window=8, offsets=(0, 1), seed=0).dataset
    >>> reach_by_layer(ps.reach(ds, n_permutations=99)).get_xlabel()
    'layer'
    """
    check_result(result, ReachResult, of="posstats.reach")
    table = _rows(result.table, condition).dropna(subset=["first_window"])
    ax = axes_of(ax, (6.4, 3.6))
    corners = [
        [(x, y) for x, y in zip(row.layer + np.array([-0.5, 0.5, 0.5, -0.5]),
                                np.array([row.first_window, row.last_window]).repeat(2), strict=True)]
        for row in table.itertuples()
    ]  # fmt: skip
    largest = max(float(table.estimate.max()), np.finfo(np.float64).tiny)
    colours = mpl.colormaps["cividis"].with_extremes(under="white")
    cells = PolyCollection(corners, cmap=colours, norm=Normalize(0, largest), edgecolor=GREY, linewidth=0.3)
    cells.set_array(np.where(table.estimate > 0, table.estimate, -1.0))
    ax.add_collection(cells)
    by_layer = table.groupby("layer").first()
    top = float(table.last_window.max())
    ends = ((by_layer.horizon + 1) / by_layer.window).clip(upper=top)
    for k, (layer, end) in enumerate(zip(by_layer.index.to_numpy(float), ends, strict=True)):
        ax.plot([layer - 0.5, layer + 0.5], [end, end], color=COLOURS[1], linewidth=2,
                label=None if k else "horizon of position 0")  # fmt: skip
    ax.set_xlim(table.layer.min() - 0.5, table.layer.max() + 0.5)
    ax.set_ylim(0, top)
    counting_axis(ax, "layer")
    ax.set_ylabel("query i / W (windows)")
    ax.figure.colorbar(cells, ax=ax).set_label("residual magnitude (nats²)")
    legend_below(ax, ncols=1)
    return captioned(ax, result, f"{condition}\n", drawn="{level} intervals in the table")


def _rows(table: pd.DataFrame, condition: str) -> pd.DataFrame:
    return table[table.condition == choice("condition", condition, table.condition.unique())]
