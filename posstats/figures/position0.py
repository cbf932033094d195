"""Figures of position 0: sinks, trajectory, identification, readers. As in figures.py, axes in and axes out."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from posstats.arguments import choice
from posstats.errors import InputError
from posstats.figures.drawing import (
    COLOURS,
    GREY,
    MARKERS,
    axes_of,
    captioned,
    counting_axis,
    interval_line,
    legend_below,
    level_of,
    map_axes,
    say_why,
    zero_line,
)
from posstats.results.base import check_result
from posstats.results.position0 import IdentificationResult, ReaderResult, SinkResult, TrajectoryResult
from posstats.vocabulary import BASELINE

_QUANTITIES = {"within": ("#0072B2", "o"), "between": ("#D55E00", "s"), "departure": ("#009E73", "^")}
_HEADS = {"sink_reading": ("#D55E00", "s", "sink-reading heads"), "other": ("#0072B2", "o", "other heads")}


def attention_map(result: SinkResult, ax: Axes | None = None, *, condition: str = BASELINE) -> Axes:
    """Layer by head map of the mean attention on position 0; a dot marks sink-reading heads.

    Parameters
    ----------
    result : SinkResult
        Of :func:`posstats.sinks`.
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
    >>> ax = attention_map(ps.sinks(ps.simulate(n=30, length=64, layers=2, seed=0).dataset))
    >>> ax.get_ylabel()
    'head'
    """
    check_result(result, SinkResult, of="posstats.sinks")
    table = _rows(result.table, condition=condition)
    attention, reading = (
        table.pivot(index="head", columns="layer", values=name) for name in ("estimate", "sink_reading")
    )
    layers, heads = attention.columns.to_numpy(), attention.index.to_numpy()
    ax = map_axes(ax, layers, heads)
    image = ax.imshow(
        attention.to_numpy(), cmap=mpl.colormaps["cividis"], vmin=0, vmax=1, aspect="auto", origin="lower"
    )
    epsilon = float(str(result.settings["sink_epsilon"]))
    rows, columns = np.nonzero(reading.to_numpy(bool))
    ax.plot(columns, rows, ".", color="white", markeredgecolor="black", markeredgewidth=0.4, markersize=6)
    reading_is = (
        f"{condition}: mean attention on position 0, i ≥ 16\n"
        f"dots: sink-reading, above {epsilon:g} with q < {1 - level_of(result):.2g}\n"
    )
    ax.figure.colorbar(image, ax=ax).set_label("attention (fraction)")
    return captioned(ax, result, reading_is, drawn="q over all heads")


def distance_by_depth(result: TrajectoryResult, ax: Axes | None = None, *, condition: str = BASELINE) -> Axes:
    """Relative distances of trajectories and their departure from running alone, by depth, on a log scale.

    Distances below a ten-thousandth of what rounding may do, 0 itself included, are drawn there: a log scale has no 0,
    and the title says where. Points are means; bars are intervals of the distance between first
    tokens.

    Parameters
    ----------
    result : TrajectoryResult
        Of :func:`posstats.trajectory`.
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
    >>> ds = ps.simulate(n=30, length=32, layers=2, seed=0).dataset
    >>> ds["trajectory_departure"] = 0 * ds.residual_norm.isel(token=0, drop=True)
    >>> distance_by_depth(ps.trajectory(ds)).get_xlabel()
    'depth (blocks passed)'
    """
    check_result(result, TrajectoryResult, of="posstats.trajectory")
    table = _rows(result.table, condition=condition)
    tolerance = float(table.tolerance.max())
    ax = axes_of(ax, (6.4, 3.6))
    floor = tolerance * 1e-4
    for quantity, (colour, marker) in _QUANTITIES.items():
        rows = table[table.quantity == quantity].sort_values("depth")
        if rows.empty:
            continue
        # A limit at or below 0 is cut at the lower edge of a log scale.
        at = np.maximum(rows.estimate, floor)
        rows = rows.assign(estimate=at, low=np.maximum(rows.low, floor), high=np.maximum(rows.high, at))
        label = {"departure": "from running alone"}.get(quantity, f"{quantity} first tokens")
        interval_line(ax, rows.depth, rows, colour, marker, label, bars=quantity == "between")
    ax.axhline(tolerance, color=GREY, linewidth=0.8, linestyle="--", label=f"rounding, {tolerance:g}")
    ax.set_yscale("log")
    counting_axis(ax, "depth (blocks passed)")
    ax.set_ylabel("relative distance (fraction)")
    legend_below(ax)
    drawn = table.estimate[table.quantity.isin(_QUANTITIES)]
    below = f"; 0, and what is below {floor:g}, is drawn at {floor:g}" if (drawn < floor).any() else ""
    return captioned(ax, result, f"{condition}{below}\n")


def identification_by_layer(result: IdentificationResult, ax: Axes | None = None) -> Axes:
    """Accuracy with which the first token is identified from what heads pass on, by layer.

    Parameters
    ----------
    result : IdentificationResult
        The `identification` of :func:`posstats.trajectory`, with rows of one condition.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result has no condition or several.
    """
    check_result(result, IdentificationResult, of="posstats.trajectory(...).identification")
    table = result.table
    if table.condition.nunique() != 1:
        raise InputError(f"This figure needs one condition; the result has {table.condition.nunique()}.")
    ax = axes_of(ax, (6.4, 3.6))
    by_layer = table[table.layers != "all"]
    for (heads, rows), (colour, marker, label) in zip(
        by_layer.groupby("heads", sort=False), _HEADS.values(), strict=True
    ):
        everywhere = table[(table.layers == "all") & (table.heads == heads)].estimate.iloc[0]
        said = "none in some fold" if np.isnan(everywhere) else f"all layers: {everywhere:.2f}"
        interval_line(ax, rows.layers.astype(int), rows, colour, marker, f"{label} ({said})")
    chance = float(table.chance.iloc[0])
    ax.axhline(chance, color=GREY, linewidth=0.8, linestyle="--", label=f"chance, {chance:.3g}")
    ax.set_ylim(-0.03, 1.03)
    counting_axis(ax, "layer")
    ax.set_ylabel("first token identified (fraction)")
    legend_below(ax, ncols=1)
    return captioned(ax, result)


def displacement_by_depth(result: ReaderResult, ax: Axes | None = None) -> Axes:
    """Displacement of the residual terms against the depth from which on the trajectory is another token's.

    Parameters
    ----------
    result : ReaderResult
        Of :func:`posstats.readers`; several tokens are drawn with a line each.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=48, conditions=["baseline", "bos=token:7"], seed=0).dataset
    >>> displacement_by_depth(ps.readers(ds, epsilon=0.06)).get_ylabel()
    'displacement of the residual (nats²)'
    """
    check_result(result, ReaderResult, of="posstats.readers")
    table = result.table
    ax = axes_of(ax, (6.4, 3.6))
    counting_axis(ax, "depth of the replacement (blocks passed)")
    ax.set_ylabel("displacement of the residual (nats²)")
    shown = table[table.quantity.isin(_HEADS)]
    if shown.estimate.isna().all():
        return say_why(ax, _reasons(shown))
    tokens = list(dict.fromkeys(table.token))
    for k, token in enumerate(tokens):
        for quantity, (colour, marker, label) in _HEADS.items():
            rows = table[(table.token == token) & (table.quantity == quantity)].sort_values("depth")
            several = len(tokens) > 1
            marker = MARKERS[k % len(MARKERS)] if several else marker
            interval_line(ax, rows.depth, rows, colour, marker, f"{label}, token {token}" if several else label)
    if (shown.low > 0).all():
        ax.set_yscale("log")
    else:
        zero_line(ax)
    legend_below(ax)
    return captioned(ax, result)


def anchoring_by_position(result: SinkResult, ax: Axes | None = None) -> Axes:
    """Attention on the BOS token at P and on position 0, over the sink-reading heads, against P.

    Parameters
    ----------
    result : SinkResult
        Of :func:`posstats.sinks`, of a dump with conditions `bos@P`.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result has no condition `bos@P`.
    """
    check_result(result, SinkResult, of="posstats.sinks")
    table = result.contrasts.table
    table = table[table.contrast == "bos_minus_position0"]
    if table.empty:
        raise InputError("This figure needs conditions bos@P, and the dump has none.")
    ax = axes_of(ax, (6.4, 3.6))
    ax.set_xlabel("position P of the BOS token (tokens)")
    ax.set_ylabel("mean attention (fraction)")
    if table.estimate.isna().all():
        return say_why(ax, _reasons(table))
    at = [name.removeprefix("bos@") for name in table.condition]
    for column, label, colour, marker in (
        ("attention", "BOS token at P", COLOURS[1], "s"),
        ("reference_attention", "position 0", COLOURS[2], "o"),
    ):
        ax.plot(range(len(at)), table[column], color=colour, marker=marker, markersize=4, linewidth=1, label=label)
    interval_line(ax, range(len(at)), table, "black", "D", "difference")
    # A P without a number has its tick too, which an axis of names leaves out.
    ax.set_xticks(range(len(at)), labels=at)
    ax.set_xlim(-0.5, len(at) - 0.5)
    zero_line(ax)
    legend_below(ax)
    return captioned(ax, result, "sink-reading heads\n")


def _reasons(table: pd.DataFrame) -> str:
    """Why rows without numbers have none."""
    return "; ".join(dict.fromkeys(table.note.astype(str)))


def _rows(table: pd.DataFrame, *, condition: str) -> pd.DataFrame:
    return table[table.condition == choice("condition", condition, table.condition.unique())]
