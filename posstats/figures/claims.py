"""Figures of claims and contrasts. As in figures.py, axes in and axes out."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from posstats.arguments import text
from posstats.errors import InputError
from posstats.figures.drawing import GREY, axes_of, captioned, level_of
from posstats.results.base import check_result
from posstats.results.cells import model_name
from posstats.results.claims import ClaimsResult, ContrastResult
from posstats.results.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE, SUPPORTED

#: Verdict -> colour and mark, those of the list in the report; the marks say it without colour too.
_VERDICTS = {
    SUPPORTED: ("#009E73", "✓"),
    CONTRADICTED: ("#D55E00", "✗"),
    INCONCLUSIVE: ("#F0E442", "?"),
    NOT_TESTABLE: ("0.88", ""),
}
_SIDES = (("#0072B2", "o"), ("#D55E00", "s"), ("#000000", "D"))


def verdict_grid(result: ClaimsResult, ax: Axes | None = None) -> Axes:
    """Verdicts of all claims: a row per model and dump, a column per claim.

    Parameters
    ----------
    result : ClaimsResult
        Of :func:`posstats.claims`.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=32, layers=2, seed=0).dataset
    >>> verdict_grid(ps.claims(ds, n_resamples=99, n_permutations=99)).get_yticklabels()[0].get_text()
    'simulated, unnamed sequences'
    """
    check_result(result, ClaimsResult, of="posstats.claims")
    verdicts = result.verdicts()
    ax = axes_of(ax, (8.0, 1.0 + 0.34 * len(verdicts)))
    for row, (_, found) in enumerate(verdicts.iterrows()):
        for column, verdict in enumerate(found):
            if verdict:
                colour, mark = _VERDICTS[str(verdict)]
                ax.barh(row, 0.94, left=column + 0.03, height=0.9, color=colour)
                ax.text(column + 0.5, row, mark, ha="center", va="center", fontsize="medium")
    ax.set_xlim(0, verdicts.shape[1])
    ax.set_ylim(len(verdicts) - 0.5, -0.5)
    ax.set_xticks([k + 0.5 for k in range(verdicts.shape[1])], labels=verdicts.columns.tolist())
    ax.set_yticks(range(len(verdicts)), labels=[f"{model_name(m)}, {of}" for m, of in verdicts.index], fontsize="small")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    patches = [Patch(color=colour, label=f"{name} {mark}".strip()) for name, (colour, mark) in _VERDICTS.items()]
    ax.legend(
        handles=patches, ncols=len(patches), frameon=False, fontsize="small", loc="upper right", bbox_to_anchor=(1, 0)
    )
    ax.xaxis.tick_top()
    runs = ", those of C6 over training runs too" if result.table.runs.max() > 1 else ""
    return captioned(ax, result, drawn=f"verdicts from {{level}} intervals{runs}")


def contrast_by_quantity(
    results: ContrastResult | Sequence[ContrastResult], ax: Axes | None = None, *, quantity: str = "share",
    term: str = "residual", queries: str | None = None,
) -> Axes:  # fmt: skip
    """One quantity of both sides of contrasts, and their differences, with intervals.

    Parameters
    ----------
    results : ContrastResult or sequence of ContrastResult
        Of :func:`posstats.contrast`.
    ax : matplotlib.axes.Axes, optional
        Where to draw.
    quantity, term : str
        What to draw.
    queries : str, optional
        Bin to draw; needed where the quantity has several.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If a result does not hold exactly one such row per side.

    Examples
    --------
    >>> import posstats as ps
    >>> a, b = (ps.simulate(n=30, length=32, strength=s, seed=0).dataset for s in (1.0, 2.0))
    >>> ax = contrast_by_quantity(ps.contrast(a, b, quantities=["share"], n_permutations=99))
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['a', 'b', 'b - a']
    """
    results = list(results) if isinstance(results, Sequence) and not isinstance(results, str) else [results]
    given: list[object] = [*results] or [results]
    for result in given:
        check_result(result, ContrastResult, of="posstats.contrast")
    quantity, term = text("quantity", quantity), text("term", term)
    queries = None if queries is None else text("queries", queries)
    labels: list[str] = []
    unit, level = "", 0.0
    ax = axes_of(ax, (6.4, 1.0 + 0.9 * len(results)))
    for result in results:
        table = result.table[(result.table.quantity == quantity) & (result.table.term == term)]
        table = table if queries is None else table[table.queries == queries]
        if len(table) != len(_SIDES):
            raise InputError(
                f"{len(table)} rows are {quantity} of {term}, not one per side and one of the difference; choose "
                f"queries= from {', '.join(table.queries.unique()) or 'what the result holds'}."
            )
        unit, level = str(table.unit.iloc[0]), level_of(result)
        for (_, row), (colour, marker) in zip(table.iterrows(), _SIDES, strict=True):
            spread = [[row.estimate - row.low], [row.high - row.estimate]]
            ax.errorbar(row.estimate, len(labels), xerr=spread, color=colour, marker=marker, markersize=5, capsize=3)
            labels.append(str(row.contrast))
    ax.axvline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    ax.set_yticks(range(len(labels)), labels=labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    units = unit.replace("^2", "²")
    ax.set_xlabel(f"{term} {quantity}" + (f" ({units})" if units != "1" else " (fraction)"))
    unit_of, documents = (
        ", ".join(dict.fromkeys(str(result.settings[key]) for result in results))
        for key in ("resampling_unit", "n_documents")
    )
    ax.set_title(
        f"bars: {100 * level:g}% intervals, resampling unit: {unit_of} (G = {documents})", fontsize="small", loc="left"
    )
    return ax
