"""Pieces of the page: tables, figures, downloads. Text in, HTML out, everything escaped."""

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from posstats.report.captions import caption_of
from posstats.report.reading import WrittenTable
from posstats.results.columns import COLUMNS

_MEDIA = {
    "csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex", "png": "image/png", "pdf": "application/pdf",
}  # fmt: skip
_FORMATS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}


def data_uri(path: Path) -> str:
    """Return the content of a file as a ``data:`` URI."""
    return f"data:{_MEDIA[path.suffix[1:]]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def identifier(*parts: str) -> str:
    """Return an id of an element made from names.

    Examples
    --------
    >>> identifier("figure", "random", "shares_by_layer")
    'figure-random-shares-by-layer'
    """
    return re.sub(r"[\W_]+", "-", "-".join(parts).lower()).strip("-")


def paragraphs(lines: Iterable[str], kind: str = "note") -> str:
    """Return a paragraph for each line."""
    return "".join(f'<p class="{kind}">{escape(line)}</p>' for line in lines)


def cell(table: WrittenTable, row: int, column: str, kind: str = "") -> str:
    """Return a table cell: the rounded text, with the number behind it as ``data-value`` and tooltip."""
    raw, shown = table.raw[row][column], table.shown[row][column]
    attributes = [f'data-value="{escape(raw)}"', f'data-label="{escape(table.headings[column])}"']
    if column == "low" and "high" in table.raw[row]:
        high = table.raw[row]["high"]
        attributes.append(f'data-high="{escape(high)}"')
        raw = f"{raw} to {high}" if raw else ""
    kind = f"{'number' if column in table.numeric else 'text'} {kind}".strip()
    if raw and raw != shown and column in table.numeric:
        attributes.append(f'title="{escape(raw)}"')
    return f'<td role="cell" class="{kind}" {" ".join(attributes)}>{escape(shown)}</td>'


def heading(text: str, column: str, numeric: bool) -> str:
    """Return a heading of a column, with what the column means as tooltip."""
    meaning = f' title="{escape(COLUMNS[column])}"' if column in COLUMNS else ""
    kind = "number" if numeric else "text"
    return f'<th scope="col" role="columnheader" class="{kind}"{meaning}>{escape(text)}</th>'


def table_html(
    table: WrittenTable,
    caption: str,
    *,
    rows: Sequence[int] | None = None,
    leave_out: Sequence[str] = (),
    first: Sequence[str] = (),
    kind: str = "",
    mark: Callable[[dict[str, str], str], str] = lambda _row, _column: "",
) -> str:
    """Return a sortable table in a frame that scrolls by itself where the screen is too narrow.

    Parameters
    ----------
    table : WrittenTable
    caption : str
        What the table is, in a line.
    rows : sequence of int, optional
        Rows to show; all by default.
    leave_out : sequence of str
        Columns not to show.
    first : sequence of str
        Columns that come before the others.
    kind : str
        A class of the table: "cards" sets each row as a card on a narrow screen.
    mark : callable
        From a row's raw values and a column to a class of the cell.

    Returns
    -------
    str
    """
    columns = [column for column in table.headings if column not in leave_out]
    columns.sort(key=lambda column: first.index(column) if column in first else len(first))
    head = "".join(heading(table.headings[column], column, column in table.numeric) for column in columns)
    numbers = range(len(table.raw)) if rows is None else rows
    body = "\n".join(
        '<tr role="row">'
        + "".join(cell(table, number, column, mark(table.raw[number], column)) for column in columns)
        + "</tr>"
        for number in numbers
    )
    return framed(caption, f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>', body, kind)


def framed(caption: str, head: str, body: str, kind: str = "") -> str:
    """Return a table in a frame that can be scrolled, with the keyboard too."""
    # Roles are spelled out because a table that is set as cards would lose them.
    return (
        f'<div class="frame" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="sortable {kind}" role="table"><caption>{escape(caption)}</caption>\n{head}\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table></div>'
    )


def downloads(table: WrittenTable, name: str, endings: Sequence[str] = tuple(_FORMATS)) -> str:
    """Return links that hold the files of a table themselves, to be saved under a name."""
    links = [
        f'<a download="{escape(f"{name}.{ending}")}" href="{data_uri(table.file(ending))}">{_FORMATS[ending]}</a>'
        for ending in endings
        if table.file(ending).is_file()
    ]
    return f'<p class="downloads">Save {escape(table.name)} as {" · ".join(links)}</p>'


def figure_html(path: Path, dump: str) -> str:
    """Return a figure with alternative text, a caption that says what to look at, and its PDF to save."""
    caption = caption_of(path.stem)
    vector = path.with_suffix(".pdf")
    save = (
        f' <a download="{escape(f"{dump}-{path.stem}.pdf")}" href="{data_uri(vector)}">Save as PDF</a>'
        if vector.is_file()
        else ""
    )
    return (
        f'<figure id="{identifier("figure", dump, path.stem)}">'
        f'<img src="{data_uri(path)}" alt="{escape(f"{caption.shows} Dump: {dump}.")}">'
        f"<figcaption><b>{escape(caption.shows)}</b> {escape(caption.look)}{save}</figcaption></figure>"
    )
