"""Figures: axes in, axes out. Nothing is computed here, no global style is touched, nothing is shown.

Every function takes ``ax=None`` and returns the Axes it drew on; without `ax` it makes a figure of its own, which no
pyplot state knows about. Colours are those of Okabe and Ito, told apart with any colour vision; markers differ too.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from posstats.arguments import choice, file_name, labels, number, path_of, shown
from posstats.errors import InputError
from posstats.execution.files import writing
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
    zero_line,
)
from posstats.results.base import MagnitudeResult, RemovalResult, Result, ShareResult, check_result
from posstats.results.verdicts import CLAIMED_REMOVAL
from posstats.vocabulary import BASELINE, RESIDUAL

_TERM_STYLE = {
    "mask": ("#0072B2", "o"),
    RESIDUAL: ("#D55E00", "s"),
    "sink": ("#009E73", "^"),
    "logit_drift": ("#CC79A7", "D"),
    "denominator_drift": ("#56B4E9", "v"),
}
_DPI = 150
#: What to leave out of the files, so that the same figure gives the same bytes.
_METADATA = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}


def shares_by_layer(result: ShareResult, ax: Axes | None = None, *, terms: Sequence[str] = ("mask", RESIDUAL)) -> Axes:
    """Shares of leakage against the layer, with intervals.

    Parameters
    ----------
    result : ShareResult
        Of ``shares(..., by=["layer"])``; its one condition, and its queries "all".
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    terms : sequence of str
        Terms to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result is not by layer, or has several conditions.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=32, layers=3, seed=0).dataset
    >>> ax = shares_by_layer(ps.shares(ds, by=["layer"], octaves=False, n_resamples=99))
    >>> ax.get_xlabel()
    'layer'
    """
    check_result(result, ShareResult, of="posstats.shares(..., by=['layer'])")
    terms = labels("terms", terms, list(_TERM_STYLE), "text")
    table = _one_condition(result, ["layer", "term"])
    ax = axes_of(ax, (6.4, 3.6))
    for term in terms:
        colour, marker = _TERM_STYLE[term]
        rows = table[table.term == term].sort_values("layer")
        interval_line(ax, rows.layer, rows, colour, marker, term.replace("_", " "))
    withheld = np.unique(table.layer[table.estimate.isna()])
    if len(withheld):
        bottom = ax.get_xaxis_transform()
        ax.plot(
            withheld, np.full(len(withheld), 0.02), "x", color=GREY, transform=bottom, label="leakage not significant"
        )
    for value in (0, 1):
        zero_line(ax, value)
    counting_axis(ax, "layer")
    ax.set_ylabel("share of leakage (fraction)")
    legend_below(ax, ncols=3)
    return captioned(ax, result)


def head_map(result: ShareResult, ax: Axes | None = None, *, term: str = RESIDUAL) -> Axes:
    """Layer by head map of a term's share, with significance marked.

    A dot marks a share that differs from 0 (q below 1 - level); grey cells with a cross are withheld, because the head
    shows no significant leakage.

    Parameters
    ----------
    result : ShareResult
        Of ``shares(..., by=["layer", "head"])``, one condition.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    term : str
        Term to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result is not by layer and head, or has several conditions.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=32, layers=2, seed=0).dataset
    >>> ax = head_map(ps.shares(ds, by=["layer", "head"], octaves=False, n_resamples=99))
    >>> ax.get_ylabel()
    'head'
    """
    check_result(result, ShareResult, of="posstats.shares(..., by=['layer', 'head'])")
    table = _one_condition(result, ["layer", "head", "term"])
    term = choice("term", term, table.term.unique())
    table = table[table.term == term]
    share, q = (table.pivot(index="head", columns="layer", values=name) for name in ("estimate", "q"))
    layers, heads = share.columns.to_numpy(), share.index.to_numpy()
    ax = map_axes(ax, layers, heads)
    sizes = np.abs(table.estimate.dropna())
    # A share of little leakage can be far from 0 .. 1; a few of them must not flatten the colours of the others.
    reach = max(1.0, float(np.quantile(sizes, 0.95))) if len(sizes) else 1.0
    colours = mpl.colormaps["PuOr_r"].with_extremes(bad="0.85")
    image = ax.imshow(
        np.ma.masked_invalid(share.to_numpy()), cmap=colours, vmin=-reach, vmax=reach, aspect="auto", origin="lower"
    )
    alpha = 1 - level_of(result)
    for marker, chosen, label in (
        (".", q.to_numpy() < alpha, f"differs from 0 (q < {alpha:.2g})"),
        ("x", share.isna().to_numpy(), "withheld: leakage not significant"),
    ):
        rows, columns = np.nonzero(chosen)
        ax.plot(columns, rows, marker, color="black", markersize=3.5, label=label)
    legend_below(ax, ncols=1)
    bar = ax.figure.colorbar(image, ax=ax, extend="both" if (sizes > reach).any() else "neither")
    bar.set_label(f"{term.replace('_', ' ')} share (fraction)")
    return captioned(ax, result, drawn="q over all heads")


def magnitude_by_octave(
    result: MagnitudeResult, ax: Axes | None = None, *, term: str = RESIDUAL, conditions: Sequence[str] | None = None
) -> Axes:
    """Magnitude of a term by octave of the query, one line per condition, with intervals.

    Parameters
    ----------
    result : MagnitudeResult
        Of ``magnitude(...)``, pooled over heads and layers.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    term : str
        Term to draw.
    conditions : sequence of str, optional
        Conditions to draw; all of the result if not given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result is by layer or head, or lacks a condition.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=64, conditions=["baseline", "bos=mean"], seed=0).dataset
    >>> ax = magnitude_by_octave(ps.magnitude(ds, n_resamples=99))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['baseline', 'bos=mean']
    """
    check_result(result, MagnitudeResult, of="posstats.magnitude")
    table = _pooled(result)
    table = table[table.term == choice("term", term, table.term.unique())]
    ax = axes_of(ax, (6.4, 3.6))
    _octave_lines(ax, table, conditions)
    # Magnitudes fall by orders of magnitude; but an estimate or a limit below 0 must be seen too.
    if (table.low > 0).all():
        ax.set_yscale("log")
    else:
        zero_line(ax)
    ax.set_ylabel(f"{term.replace('_', ' ')} magnitude (nats²)")
    legend_below(ax)
    return captioned(ax, result)


def removal_by_octave(
    result: RemovalResult,
    ax: Axes | None = None,
    *,
    reference: float | None = CLAIMED_REMOVAL,
    conditions: Sequence[str] | None = None,
) -> Axes:
    """Share of the residual-stream magnitude that each condition removes, by octave of the query.

    Parameters
    ----------
    result : RemovalResult
        Of ``removal(...)``, pooled over heads and layers.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    reference : float, optional
        A line to compare with; by default the 0.40 that the abstract of arXiv:2606.06160 states.
    conditions : sequence of str, optional
        Conditions to draw; all of the result if not given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the result is by layer or head, or lacks a condition.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=64, conditions=["baseline", "bos=mean"], seed=0).dataset
    >>> removal_by_octave(ps.removal(ds, "bos=mean", n_resamples=99)).get_ylabel()
    'magnitude removed (fraction)'
    """
    check_result(result, RemovalResult, of="posstats.removal")
    reference = None if reference is None else number("reference", reference)
    table = _pooled(result)
    ax = axes_of(ax, (6.4, 3.6))
    # The baseline's colour stays the baseline's in both figures by octave.
    _octave_lines(ax, table, conditions, first=1)
    zero_line(ax)
    withheld = [octave for octave in _octaves(table) if table.estimate[table.queries == octave].isna().all()]
    if withheld:
        at, bottom = [_octaves(table).index(octave) for octave in withheld], ax.get_xaxis_transform()
        ax.plot(at, np.full(len(at), 0.02), "x", color=GREY, transform=bottom, label="withheld: nothing to remove")
    if reference is not None:
        ax.axhline(
            reference, color="black", linewidth=1, linestyle="--", label=f"{reference:.2f} (paper, early queries)"
        )
    legend_below(ax)
    ax.set_ylabel("magnitude removed (fraction)")
    return captioned(ax, result)


def save_figure(ax: Axes, folder: str | Path, name: str) -> list[Path]:
    """Save the figure of some axes as PNG and PDF; the same figure gives the same bytes.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Any axes of the figure.
    folder : str or Path
        Created if need be.
    name : str
        File name without ending.

    Returns
    -------
    list of Path
        The two files.

    Raises
    ------
    InputError
        If the axes have been removed from their figure, or the folder cannot be written to.
    """
    if not isinstance(ax, Axes):
        raise InputError(f"Save axes of matplotlib, as every figure returns, not {shown(ax)}.")
    folder, name = path_of("folder", folder), file_name("name", name)
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("These axes belong to no figure; nothing can be saved.")
    paths = {folder / f"{name}.{ending}": metadata for ending, metadata in _METADATA.items()}
    # Fonts embedded as TrueType: text in the PDF stays text.
    with writing(folder), mpl.rc_context({"pdf.fonttype": 42}):
        for path, metadata in paths.items():
            figure.savefig(path, dpi=_DPI, bbox_inches="tight", metadata=metadata)
    return list(paths)


def _one_condition(result: Result, keys: list[str]) -> pd.DataFrame:
    table = result.table
    if list(result.keys) != ["condition", *keys[:-1], "queries", keys[-1]] or len(np.unique(table.condition)) != 1:
        raise InputError(
            f"This figure needs one condition and the key columns {', '.join(keys)}; the table has the columns "
            f"{', '.join(result.keys)} and the conditions {', '.join(np.unique(table.condition))}."
        )
    return table[table.queries == "all"]


def _pooled(result: Result) -> pd.DataFrame:
    if {"layer", "head"} & set(result.table):
        raise InputError("This figure needs a result pooled over layers and heads; leave out by=.")
    return result.table


def _octave_lines(ax: Axes, table: pd.DataFrame, conditions: Sequence[str] | None, first: int = 0) -> None:
    """Lines over octaves, side by side so that their intervals do not cover each other."""
    present = list(dict.fromkeys(table.condition))
    chosen = labels("conditions", conditions, present, "text")
    octaves = _octaves(table)
    for k, name in enumerate(chosen):
        rows = table[table.condition == name].set_index("queries").loc[octaves]
        style = 0 if name == BASELINE else k + first
        at = np.arange(len(octaves)) + 0.5 * ((k + 0.5) / len(chosen) - 0.5)
        interval_line(ax, at, rows, COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)], name)
    ax.set_xticks(np.arange(len(octaves)), labels=octaves)
    ax.set_xlim(-0.6, len(octaves) - 0.4)  # octaves whose numbers are all withheld keep their place
    ax.set_xlabel("query position i, by octave (tokens)")


def _octaves(table: pd.DataFrame) -> list[str]:
    """Labels of the bins that do not overlap: the octaves, without the early queries they add up to."""
    found: list[str] = []
    reached = 0
    for label in dict.fromkeys(table.queries):
        low, high = (int(edge) for edge in label.strip("[)").split(", "))
        if low >= reached:
            found.append(label)
            reached = high
    return found
