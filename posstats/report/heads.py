"""One row per head: what every table by head says of it, side by side, to be sorted and filtered."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from posstats.report.elements import cell, framed, heading, identifier
from posstats.report.reading import WrittenTable
from posstats.vocabulary import BASELINE, LOG_ATTENTION, RESIDUAL


@dataclass(frozen=True, slots=True)
class _Group:
    """Columns taken from one table: those rows of the baseline that are about one term."""

    title: str
    table: str
    term: str
    columns: tuple[str, ...]

    def rows(self, table: WrittenTable) -> dict[tuple[int, int], int]:
        """Layer and head -> number of the row."""
        found = table.find(condition=BASELINE, term=self.term)
        return {(int(table.raw[k]["layer"]), int(table.raw[k]["head"])): k for k in found}


_GROUPS = (
    _Group("Leakage", "shares_by_head", "mask", ("leakage", "leakage_q")),
    _Group("Share of the mask", "shares_by_head", "mask", ("estimate", "low", "q")),
    _Group("Share of the residual stream", "shares_by_head", RESIDUAL, ("estimate", "low", "q", "note")),
    _Group("Log attention on position", "position_tests", LOG_ATTENTION, ("estimate", "low", "q", "spline_q")),
    _Group("Attention on position 0", "sinks", "", ("estimate", "low", "q", "sink_reading")),
)
#: Filter -> which of the groups above, by number, and the column that decides.
_FILTERS = {
    "leakage": ("leakage is significant", 0, "leakage_q"),
    "mask": ("mask share is significant", 1, "q"),
    "residual": ("residual share is significant", 2, "q"),
    "withheld": ("share is withheld", 2, "note"),
    "slope": ("log attention has a slope on position", 3, "q"),
    "spline": ("log attention varies with position (spline)", 3, "spline_q"),
    "sink": ("reads position 0", 4, "sink_reading"),
}


def heads_html(tables: Mapping[str, WrittenTable], dump: str, level: float) -> str:
    """Return the per-head table of a dump with its filters; empty where no table is by head.

    Parameters
    ----------
    tables : mapping of str to WrittenTable
        Tables of the dump by name.
    dump : str
        Its name.
    level : float
        A q-value is significant below 1 - level.

    Returns
    -------
    str
    """
    groups = {k: (group, tables[group.table]) for k, group in enumerate(_GROUPS) if group.table in tables}
    if not groups:
        return ""
    rows = {k: group.rows(table) for k, (group, table) in groups.items()}
    heads = sorted(set().union(*rows.values()))
    filters = {key: entry for key, entry in _FILTERS.items() if entry[1] in groups}
    top = '<td role="cell"></td>' + "".join(
        f'<th scope="colgroup" role="columnheader" colspan="{len(group.columns)}">{escape(group.title)}</th>'
        for group, _ in groups.values()
    )
    bottom = '<th scope="col" role="columnheader" class="text" title="layer and head">head</th>' + "".join(
        heading(table.headings[column], column, column in table.numeric)
        for group, table in groups.values()
        for column in group.columns
    )
    body, counts = [], dict.fromkeys(filters, 0)
    for number, head in enumerate(heads):
        cells, met = [], []
        for key, (_, k, column) in filters.items():
            if head in rows[k] and _meets(groups[k][1].raw[rows[k][head]][column], column, level):
                met.append(key)
                counts[key] += 1
        for k, (group, table) in groups.items():
            for place, column in enumerate(group.columns):
                kind = "first" if place == 0 else ""
                if head not in rows[k]:
                    cells.append(f'<td role="cell" class="number {kind}" data-value="">–</td>')
                    continue
                strong = _is_finding(table.raw[rows[k][head]], column, level)
                cells.append(cell(table, rows[k][head], column, f"{kind} {'significant' if strong else ''}".strip()))
        layer, index = head
        body.append(
            f'<tr role="row" data-layer="{layer}" data-head="{index}" data-meets="{" ".join(met)}">'
            f'<th scope="row" role="rowheader" data-value="{number}">L{layer}H{index}</th>{"".join(cells)}</tr>'
        )
    layers = sorted({layer for layer, _ in heads})
    thead = f'<thead role="rowgroup"><tr role="row">{top}</tr><tr role="row">{bottom}</tr></thead>'
    name = identifier("heads", dump)
    return (
        f'<div class="heads" id="{name}"><div class="filters" hidden>'
        + _select(f"{name}-layer", "layer", "Layer", {str(layer): str(layer) for layer in layers})
        + _select(
            f"{name}-meets", "meets", "Heads whose", {key: f"{filters[key][0]} ({counts[key]})" for key in filters}
        )
        + f'<output aria-live="polite">{len(heads)} of {len(heads)} heads</output></div>'
        + framed(_caption(dump, level, "sinks" in tables), thead, "\n".join(body), "wide")
        + "</div>"
    )


def _caption(dump: str, level: float, sinks: bool) -> str:
    said = f"Heads of {dump}; q in bold is below {1 - level:.2g}"
    return said + ("; of attention on position 0, only where the head lies above the threshold" if sinks else "")


def _is_finding(row: Mapping[str, str], column: str, level: float) -> bool:
    """Whether a q-value stands for what its heading says: that of a head below the threshold of sinks does not."""
    asked = column in ("q", "leakage_q", "spline_q") and row.get("sink_reading", "True") == "True"
    return asked and _meets(row[column], column, level)


def _meets(value: str, column: str, level: float) -> bool:
    if column == "sink_reading":
        return value == "True"
    if column == "note":
        return value.startswith("withheld")
    return value != "" and float(value) < 1 - level


def _select(name: str, key: str, label: str, options: Mapping[str, str]) -> str:
    entries = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options.items())
    return (
        f'<label for="{name}">{label}</label> <select id="{name}" data-key="{key}"><option value="">all</option>'
        f"{entries}</select> "
    )
