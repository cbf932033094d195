"""Tables for people and for papers: CSV with raw numbers, Markdown and LaTeX with three significant digits.

Every table says what its numbers rest on: level and method of the intervals, the resampling unit, how many documents
and sequences, and the family over which q-values are adjusted.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from posstats.results import position0
from posstats.results.base import LeakageResult, MagnitudeResult, PositionResult, RemovalResult, Result, ShareResult
from posstats.results.cells import View, column_cells, in_order, interval_cells, is_text, one_line, unit_cell, unit_text
from posstats.results.claims import ClaimsResult, ContrastResult
from posstats.results.comparison import ModelLevelResult, ModelSlopeResult
from posstats.results.decoding import DecodingResult, DiscriminationResult
from posstats.stats.inference.resample import INTERVAL_METHODS
from posstats.tables.latex import tex, tex_number, tex_text

_FAMILIES = {
    LeakageResult: "all rows of the same condition and queries",
    ShareResult: "all rows of the same condition, queries and term",
    MagnitudeResult: "all rows of the same condition, queries and term",
    RemovalResult: "all rows of the same condition and queries",
    PositionResult: "all heads of the same condition and term",
    position0.SinkResult: "all heads of the same condition",
    position0.SinkContrastResult: "all rows of the same contrast",
    position0.TrajectoryResult: "all depths of the same condition and quantity",
    position0.IdentificationResult: "all rows of the same condition and heads",
    position0.ReaderResult: "all rows of the same quantity",
    DecodingResult: "all layers of the same condition and part",
    DiscriminationResult: "all layers of the same condition and part",
    ContrastResult: "all rows of the same contrast and quantity",
    ClaimsResult: "all p-values of one ledger, that is of one model and dump",
}
_ALL = "max offset < i < Q"
#: Which queries the rows are about.
_QUERIES = {
    LeakageResult: f"{_ALL} (bin all), summed over the offsets: compare leakage at the same offsets only",
    ShareResult: f"{_ALL} (bin all)",
    MagnitudeResult: "those of the bin (early: 2 <= i < 16), departing from the mean over i >= T/2",
    RemovalResult: "those of the bin (early: 2 <= i < 16), departing from the mean over i >= T/2",
    PositionResult: _ALL,
    position0.SinkResult: "i >= 16",
    position0.SinkContrastResult: "i >= 16; under bos@P, i >= P + 16",
    position0.IdentificationResult: "i >= 16",
    position0.ReaderResult: _ALL,
    DecodingResult: _ALL,
}
#: The test of p and its null hypothesis, in quotation marks; in braces, settings of the result.
_NULLS = {
    LeakageResult: 'one-sided sign-flip test of "no absolute position" ({n_permutations} flips)',
    ShareResult: 'two-sided test of "the share is 0"',
    MagnitudeResult: 'one-sided sign-flip test of "the departure has no mean in the bin" ({n_permutations} flips), for '
    "log attention, logit drift and residual",
    RemovalResult: 'two-sided test of "nothing is removed"',
    PositionResult: 'two-sided t test of "the slope is 0"; spline p, F test of "all spline coefficients are 0"',
    position0.SinkResult: 'two-sided test of "the mean attention is {sink_epsilon}": heads significantly below it have '
    "a small p and q too, sink reading says which lie above",
    position0.SinkContrastResult: 'two-sided test of "no difference"',
    position0.TrajectoryResult: 'two-sided test of "between first tokens is as within one"; the others are described, '
    "not tested",
    position0.IdentificationResult: 'one-sided permutation test of "heads pass on nothing of the first token" '
    "({n_permutations} permutations of whole documents)",
    position0.ReaderResult: 'two-sided test of "no difference" and of "the ratio is 1"; of one kind of heads, '
    'one-sided sign-flip test of "nothing moves in common" ({n_permutations} flips)',
    DecodingResult: 'two-sided test of "the score, or part, is 0"',
    DiscriminationResult: 'two-sided test of "the AUC is 1/2", of a part that it is 0',
    ModelLevelResult: 'two-sided test of "the mean over heads is 0"',
    ModelSlopeResult: 'two-sided test of "the mean over heads is 0"',
    ContrastResult: 'two-sided test of "no difference", of one side that it is 0; of leakage or a magnitude of one '
    "run, one-sided sign-flip test ({n_permutations} flips)",
    ClaimsResult: 'that of the estimate, two-sided of "it is 0", of leakage and magnitudes one-sided by sign flips, of '
    'the number of sink-reading heads of "no head is above the threshold"',
}
_ADJUSTMENTS = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "holm": "Holm"}
#: Characters in a line of a footnote on a terminal.
_WIDTH = 110
#: LaTeX tables with more rows than this break over pages.
_LONG = 40


@dataclass(frozen=True, slots=True)
class Table:
    """Raw numbers and what a reader needs to know about them.

    Attributes
    ----------
    frame : pandas.DataFrame
        Raw numbers, never rounded.
    title : str
        One line.
    units : dict of str to str
        Unit of a column, where it has one.
    notes : tuple of str
        Footnotes: what the numbers rest on, warnings.
    level : float
        Confidence level of the interval `low` .. `high`.
    on_terminal : tuple of str, optional
        What stands in the place of many footnotes where the table is printed as text.
    """

    frame: pd.DataFrame
    title: str
    units: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    level: float = 0.95
    on_terminal: tuple[str, ...] | None = None


def rests_on(result: Result) -> dict[str, str]:
    """Say what the numbers of a result rest on.

    Parameters
    ----------
    result : Result
        Any result of the estimators.

    Returns
    -------
    dict of str to str
        Those that apply of "intervals" (their method), "queries", "p" (test and null hypothesis) and "q" (adjustment
        and family).

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.leakage(ps.simulate(n=30, length=32, seed=0).dataset, octaves=False, n_permutations=99)
    >>> rests_on(result)["p"]
    'one-sided sign-flip test of "no absolute position" (99 flips)'
    """
    settings, kind = result.settings, type(result)
    if "interval" in settings:
        source = INTERVAL_METHODS[str(settings["interval"])]
        if "n_resamples" in settings:  # a jackknife draws no replicates
            source += f"; {settings['n_resamples']} bootstrap replicates, seed {settings['seed']}"
    else:
        source = str(settings.get("standard_errors", ""))
    found = {"intervals": source} if source else {}
    if kind in _QUERIES:
        found["queries"] = _QUERIES[kind]
    if kind in _NULLS:
        found["p"] = _NULLS[kind].format_map(settings)
    if kind in _FAMILIES and "adjustment" in settings:
        found["q"] = f"{_ADJUSTMENTS[str(settings['adjustment'])]} over {_FAMILIES[kind]}"
    return found


def table_of(result: Result) -> Table:
    """Turn a result object into a table with units and footnotes.

    Parameters
    ----------
    result : Result
        Any result of the estimators.

    Returns
    -------
    Table

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.leakage(ps.simulate(n=30, length=32, seed=0).dataset, octaves=False, n_resamples=99)
    >>> table_of(result).notes[1]
    'Offsets 0, 1, 2, 4, 8 tokens. Logarithms are natural.'
    """
    units = {name: unit for name, unit in result.all_units.items() if unit_text(unit) and name in result.table}
    settings = result.settings
    level = float(str(settings.get("level", 0.95)))
    said = rests_on(result)
    notes = [
        f"{_percent(level)} intervals: {said.get('intervals', '')}. Resampling unit: document "
        f"(G = {settings.get('n_documents')} documents, N = {settings.get('n_sequences')} sequences).",
    ]
    if offsets := _offsets(settings):
        notes.append(f"Offsets {', '.join(map(str, offsets))} tokens. Logarithms are natural.")
    if "queries" in said:
        notes.append(f"Queries i, T tokens: {said['queries']}.")
    notes += [f"{name}: {said[name]}." for name in ("p", "q") if name in said]
    notes += [f"Note: {note}." for note in result.notes]
    order = in_order(result.table.columns.tolist())
    return Table(result.table[order], result.title, units, tuple(notes), level)


def to_csv(table: Table) -> str:
    r"""Raw numbers: every digit that distinguishes them, the same bytes for the same numbers.

    Parameters
    ----------
    table : Table

    Returns
    -------
    str

    Examples
    --------
    >>> to_csv(Table(pd.DataFrame({"layer": [0], "estimate": [0.1 + 0.2]}), "example"))
    'layer,estimate\n0,0.30000000000000004\n'
    """
    return table.frame.to_csv(index=False, lineterminator="\n")


def to_markdown(table: Table) -> str:
    """Markdown with three significant digits, units in the header, footnotes below.

    Parameters
    ----------
    table : Table

    Returns
    -------
    str

    Examples
    --------
    >>> print(to_markdown(Table(pd.DataFrame({"layer": [0], "estimate": [0.3]}), "Example", {"estimate": "nats"})))
    ### Example
    <BLANKLINE>
    | layer | estimate (nats) |
    | ---: | ---: |
    | 0 | 0.300 |
    """
    header, cells, left = _formatted(table)
    lines = [
        f"### {one_line(table.title)}",
        "",
        _markdown_row(header),
        _markdown_row([":---" if x else "---:" for x in left]),
    ]
    lines += [_markdown_row(row) for row in cells]
    if table.notes:
        lines += ["", *(f"- {one_line(note)}" for note in table.notes)]
    return "\n".join(lines)


def to_latex(table: Table | Result, label: str = "") -> str:
    r"""LaTeX for booktabs (and longtable where there are more than 40 rows), everything escaped.

    Parameters
    ----------
    table : Table or Result
        Of a result, the table that :func:`table_of` makes of it.
    label : str
        Label for ``\ref``, without the leading ``tab:``.

    Returns
    -------
    str

    Examples
    --------
    >>> print(to_latex(Table(pd.DataFrame({"term": ["redistribution"], "p": [1e-6]}), "Example"), "example"))
    % needs \usepackage{booktabs}
    \begin{table}
    \centering
    \caption{Example}
    \label{tab:example}
    \begin{tabular}{lr}
    \toprule
    term & p \\
    \midrule
    redistribution & $1.00 \times 10^{-6}$ \\
    \bottomrule
    \end{tabular}
    \end{table}
    """
    table = table_of(table) if isinstance(table, Result) else table
    header, cells, left = _formatted(table)
    columns = "".join("l" if x else "r" for x in left)
    kinds = [tex_text if text else tex_number for text in left]
    rows = [" & ".join(map(tex_text, header)) + r" \\"]
    rows += [" & ".join(kind(cell) for kind, cell in zip(kinds, row, strict=True)) + r" \\" for row in cells]
    caption = rf"\caption{{{tex(table.title)}}}"
    mark = rf"\label{{tab:{label}}}"
    notes = [r"{\footnotesize " + " ".join(map(tex, table.notes)) + r"\par}"] if table.notes else []
    if len(cells) > _LONG:
        head = [r"\toprule", rows[0], r"\midrule"]
        lines = [
            r"% needs \usepackage{booktabs,longtable}",
            rf"\begin{{longtable}}{{{columns}}}", caption, mark + r" \\", *head, r"\endfirsthead", *head, r"\endhead",
            r"\bottomrule", r"\endfoot", *rows[1:], r"\end{longtable}", *notes,
        ]  # fmt: skip
    else:
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}", r"\centering", caption, mark, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rows[0],
            r"\midrule", *rows[1:], r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}",
        ]  # fmt: skip
    return "\n".join(lines)


def to_text(table: Table) -> str:
    """Aligned text for a terminal.

    Parameters
    ----------
    table : Table

    Returns
    -------
    str

    Examples
    --------
    >>> print(to_text(Table(pd.DataFrame({"term": ["mask", "sink"], "estimate": [0.5, -0.25]}), "Example")))
    Example
    term  estimate
    --------------
    mask     0.500
    sink    -0.250
    """
    shown = table.notes if table.on_terminal is None else table.on_terminal
    notes = [textwrap.fill(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in shown]
    return "\n".join([table.title, _formatted(table).text(), *notes])


def write_table(table: Table | Result, folder: str | Path, name: str) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX.

    Parameters
    ----------
    table : Table or Result
    folder : str or Path
        Created if need be.
    name : str
        File name without ending.

    Returns
    -------
    list of Path
        The three files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = table_of(table) if isinstance(table, Result) else table
    contents = {"csv": to_csv(table), "md": to_markdown(table), "tex": to_latex(table, name.replace("_", "-"))}
    paths = [folder / f"{name}.{ending}" for ending in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_text(content.rstrip("\n") + "\n", encoding="utf-8", newline="\n")
    return paths


def _percent(level: float) -> str:
    return f"{100 * level:g}%"


def _offsets(settings: Mapping[str, object]) -> tuple[int, ...]:
    offsets = settings.get("offsets", ())
    return offsets if isinstance(offsets, tuple) else ()


def _formatted(table: Table) -> View:
    """Header, cells, and which columns are text; the limits of an interval share a column."""
    frame = table.frame
    header, columns, left = [], [], []
    for name in map(str, frame.columns):
        if name == "high" and "low" in frame:
            continue
        unit = unit_text(table.units.get(name, ""))
        if name == "low" and "high" in frame:
            title, column = f"{_percent(table.level)} interval", interval_cells(frame)
        else:
            title, column = name.replace("_", " "), column_cells(frame, name)
        header.append(f"{title} ({unit})" if unit else title)
        columns.append([unit_cell(cell) for cell in column] if name == "unit" else column)
        left.append(is_text(frame[name]))
    return View(header, [list(row) for row in zip(*columns, strict=True)], left)


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"
