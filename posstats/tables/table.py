"""Tables for people, papers and programs: one view, written as JSON, CSV, Markdown, LaTeX and text.

Every table says what its numbers rest on: level and method of the intervals, the resampling unit, how many documents
and sequences, and the family over which q-values are adjusted. CSV and JSON hold raw numbers, the others three
significant digits; JSON holds everything, and :meth:`Table.read` gives the table back.
"""

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posstats.arguments import file_name, path_of, shown, text
from posstats.errors import InputError
from posstats.execution.files import writing
from posstats.results.base import Result, check_result
from posstats.results.cells import View, in_order, is_text, one_line, view_of
from posstats.results.columns import COLUMNS
from posstats.tables.latex import tex, tex_number, tex_text
from posstats.vocabulary import Note

#: Characters in a line of a footnote on a terminal.
_WIDTH = 110
#: LaTeX tables with more rows than this break over pages.
_LONG = 40
#: Kinds of footnotes that a terminal has no room for, and what it says in their place.
_NOT_ON_TERMINAL = ("analysed", "rests on")
_MORE = (
    "Offsets, queries, tests with their null hypotheses, and families of q of every line stand below the table in "
    "headline.md."
)
#: Type of a column in JSON -> dtype of the column, types of its values in JSON.
_TYPES: dict[str, tuple[Any, set[type]]] = {
    "integer": (np.int64, {int}),
    "number": (np.float64, {int, float, type(None)}),
    "boolean": (np.bool_, {bool}),
    "text": (pd.Series([""]).dtype, {str}),
    "mixed": (object, {int, float, bool, str, type(None)}),
}
#: What :attr:`Table.rests_on` has -> what it is called in JSON.
_STATED = {"intervals": "intervals", "queries": "queries", "p": "null", "q": "family"}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Raw numbers and what a reader needs to know about them.

    Two tables are equal if they say the same: every digit, every unit, setting and note.

    Attributes
    ----------
    frame : pandas.DataFrame
        Raw numbers, never rounded.
    title : str
        One line.
    units : dict of str to str
        Unit of a column, where it has one.
    notes : tuple of str
        Footnotes: what the numbers rest on, warnings; a :class:`posstats.vocabulary.Note` says of which kind.
    level : float
        Confidence level of the interval `low` .. `high`.
    settings : dict
        What the numbers rest on, as data.
    rests_on : dict of str to str
        The same in words, as :attr:`posstats.results.base.Result.rests_on` has it.
    """

    frame: pd.DataFrame
    title: str
    units: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    level: float = 0.95
    settings: Mapping[str, Any] = field(default_factory=dict)
    rests_on: Mapping[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and to_json(self) == to_json(other)

    @property
    def view(self) -> View:
        """Cells as people see them; the limits of the interval share a cell."""
        return view_of(self.frame, self.units, self.level)

    @classmethod
    def read(cls, path: str | Path) -> "Table":
        """Read a table that was written as JSON.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        Table
            Equal to the table that was written.

        Raises
        ------
        InputError
            If the file cannot be read, or is not such a table.

        Examples
        --------
        >>> import tempfile
        >>> table = Table(pd.DataFrame({"layer": [0], "estimate": [0.1 + 0.2]}), "Example", {"estimate": "nats"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = write_table(table, folder, "example")
        ...     Table.read(f"{folder}/example.json") == table
        True
        """
        try:
            return cls.from_json(path_of("path", path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path} as a table: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> "Table":
        """Return the table of which :func:`to_json` wrote the text; raise ValueError where it is not such a text."""
        try:
            record = json.loads(text)
            columns, rows = record["columns"], record["rows"]
            if any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
                raise ValueError(f"a row does not hold {len(columns)} values")
            values = {column["name"]: _values(column, [row[k] for row in rows]) for k, column in enumerate(columns)}
            return cls(
                pd.DataFrame(values),
                str(record["title"]),
                {column["name"]: str(column["unit"]) for column in columns if column["unit"]},
                tuple(Note(str(note["text"]), str(note["kind"])) for note in record["notes"]),
                float(record["level"]),
                dict(record["settings"]),
                {name: str(record[key]) for name, key in _STATED.items() if record[key]},
            )
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not as posstats writes it, {type(error).__name__}: {error}") from error


def _values(column: Mapping[str, str], values: list[Any]) -> pd.Series:
    """Values of a column of JSON; an absent number is NaN."""
    dtype, allowed = _TYPES[column["type"]]
    if others := [value for value in values if type(value) not in allowed]:
        raise ValueError(f"the column {column['name']} of type {column['type']} holds {others[0]!r}")
    return pd.Series([math.nan if value is None else value for value in values], dtype=dtype)


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
    check_result(result, Result, of="an estimator")
    units = {name: unit for name, unit in result.all_units.items() if unit and name in result.table}
    settings, stated = result.settings, result.rests_on
    level = float(str(settings.get("level", 0.95)))
    size = f"G = {settings.get('n_documents')} documents, N = {settings.get('n_sequences')} sequences"
    intervals = f"{100 * level:g}% intervals: {stated.get('intervals', '')}. Resampling unit: document ({size})."
    notes = [Note(intervals, "intervals")]
    if isinstance(offsets := settings.get("offsets"), tuple):
        notes.append(Note(f"Offsets {', '.join(map(str, offsets))} tokens. Logarithms are natural.", "offsets"))
    if "queries" in stated:
        notes.append(Note(f"Queries i, T tokens: {stated['queries']}.", "queries"))
    notes += [Note(f"{name}: {stated[name]}.", name) for name in ("p", "q") if name in stated]
    notes += [Note(f"Note: {note}.", Note(note).kind) for note in result.notes]
    order = in_order(result.table.columns.tolist())
    return Table(result.table[order], result.title, units, tuple(notes), level, settings, stated)


def to_json(table: Table | Result) -> str:
    """Everything there is to know of a table: facts, settings, notes by kind, columns, and a line for each row.

    Parameters
    ----------
    table : Table or Result

    Returns
    -------
    str

    Examples
    --------
    >>> text = to_json(Table(pd.DataFrame({"layer": [0], "estimate": [0.1 + 0.2]}), "Example", {"estimate": "nats"}))
    >>> json.loads(text)["rows"]
    [[0, 0.30000000000000004]]
    """
    table = _as_table(table)
    frame = table.frame
    names = list(map(str, frame.columns))
    record = {
        "title": table.title,
        "level": table.level,
        **{key: table.rests_on.get(name, "") for name, key in _STATED.items()},
        "settings": table.settings,
        "notes": [{"kind": Note(note).kind, "text": note} for note in table.notes],
        "columns": [
            {"name": name, "type": _type(frame[name])}
            | {"unit": table.units.get(name, ""), "meaning": COLUMNS.get(name, "")}
            for name in names
        ],
    }
    head = json.dumps(record, indent=1, ensure_ascii=False, default=np.generic.item).removesuffix("\n}")
    cells = zip(*([_cell(value) for value in frame[name].tolist()] for name in names), strict=True)
    return head + ',\n "rows": [\n' + ",\n".join(f"  [{', '.join(row)}]" for row in cells) + "\n ]\n}"


def _type(column: pd.Series) -> str:
    """Name of the type of a column's values, a key of `_TYPES`."""
    kind = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}.get(column.dtype.kind)
    if kind is None:
        return "text" if is_text(column) and all(isinstance(value, str) for value in column) else "mixed"
    return kind if kind == "number" or column.notna().all() else "mixed"


def _cell(value: Any) -> str:
    """A value as JSON spells it, which has no words for what is absent or infinite: null, and a number out of range."""
    if pd.isna(value):
        return "null"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return json.dumps(value, ensure_ascii=False, default=np.generic.item)


def _as_table(table: object) -> Table:
    """A table, or that of a result."""
    if not isinstance(table, Table | Result):
        raise InputError(f"This takes a table or a result of an estimator, not {shown(table)}.")
    return table_of(table) if isinstance(table, Result) else table


def to_csv(table: Table | Result) -> str:
    r"""Raw numbers: every digit that distinguishes them, the same bytes for the same numbers.

    Parameters
    ----------
    table : Table or Result

    Returns
    -------
    str

    Examples
    --------
    >>> to_csv(Table(pd.DataFrame({"layer": [0], "estimate": [0.1 + 0.2]}), "example"))
    'layer,estimate\n0,0.30000000000000004\n'
    """
    frame = _as_table(table).frame
    text = frame.to_csv(index=False, lineterminator="\n")
    # A carriage return in a name is put between quotation marks only where it could end a line.
    return frame.to_csv(index=False, lineterminator="\r\n") if "\r" in text else text


def to_markdown(table: Table | Result) -> str:
    """Markdown with three significant digits, units in the header, footnotes below.

    Parameters
    ----------
    table : Table or Result

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
    table = _as_table(table)
    _, header, cells, left = table.view
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
    >>> print(to_latex(Table(pd.DataFrame({"term": ["logit_drift"], "p": [1e-6]}), "Example"), "example"))
    % needs \usepackage{booktabs}
    \begin{table}
    \centering
    \caption{Example}
    \label{tab:example}
    \begin{tabular}{lr}
    \toprule
    term & p \\
    \midrule
    logit\_drift & $1.00 \times 10^{-6}$ \\
    \bottomrule
    \end{tabular}
    \end{table}
    """
    table, label = _as_table(table), text("label", label)
    _, header, cells, left = table.view
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


def to_text(table: Table | Result) -> str:
    """Aligned text for a terminal.

    Parameters
    ----------
    table : Table or Result

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
    table = _as_table(table)
    shown = [note for note in table.notes if Note(note).kind not in _NOT_ON_TERMINAL]
    shown += [_MORE] if len(shown) < len(table.notes) else []
    notes = [textwrap.fill(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in shown]
    return "\n".join([table.title, table.view.text(), *notes])


def write_table(table: Table | Result, folder: str | Path, name: str) -> list[Path]:
    """Write a table as CSV, JSON, Markdown and LaTeX.

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
        The four files.

    Raises
    ------
    InputError
        If it is neither a table nor a result, or the folder cannot be written to.
    """
    table, folder, name = _as_table(table), path_of("folder", folder), file_name("name", name)
    contents = contents_of(table, name)
    with writing(folder):
        for file, content in contents.items():
            (folder / file).write_text(content, encoding="utf-8", newline="\n")
    return [folder / file for file in contents]


def contents_of(table: Table | Result, name: str) -> dict[str, str]:
    """Return the contents of a table's files by file name."""
    table = _as_table(table)
    contents = {
        "csv": to_csv(table),
        "json": to_json(table),
        "md": to_markdown(table),
        "tex": to_latex(table, name.replace("_", "-")),
    }
    return {f"{name}.{ending}": content.rstrip("\n") + "\n" for ending, content in contents.items()}


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"
