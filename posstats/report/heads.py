"""One row per head: what every table by head says of it, side by side, to be sorted and filtered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from posstats.report.elements import identifier, render
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
    "undefined": ("has no leakage to share out", 2, "estimate"),
    "slope": ("log attention has a slope on position", 3, "q"),
    "spline": ("log attention varies with position (spline)", 3, "spline_q"),
    "sink": ("reads position 0", 4, "sink_reading"),
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """Where a cell is taken from; `row` is None where the table has none of this head."""

    table: WrittenTable
    row: int | None
    column: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Row:
    """What the tables say of one head, and the filters that it meets."""

    layer: int
    head: int
    meets: list[str]
    cells: list[_Cell]


def heads_html(tables: Mapping[str, WrittenTable], dump: str, level: float) -> Markup:
    """Return the per-head table of a dump with its filters; empty where no table is by head.

    A q-value is significant below 1 - `level`.
    """
    groups = {k: (group, tables[group.table]) for k, group in enumerate(_GROUPS) if group.table in tables}
    if not groups:
        return Markup()
    numbers = {k: group.rows(table) for k, (group, table) in groups.items()}
    filters = {key: entry for key, entry in _FILTERS.items() if entry[1] in groups}
    rows = []
    for layer, head in sorted(set().union(*numbers.values())):
        at = {k: numbers[k].get((layer, head)) for k in groups}
        raw = {k: groups[k][1].raw[row] for k, row in at.items() if row is not None}
        meets = [key for key, (_, k, column) in filters.items() if k in raw and _meets(raw[k], column, level)]
        cells = [
            _Cell(table, at[k], column, _kind(group.columns, column, k in raw and _is_finding(raw[k], column, level)))
            for k, (group, table) in groups.items()
            for column in group.columns
        ]
        rows.append(_Row(layer, head, meets, cells))
    counts = Counter(key for row in rows for key in row.meets)
    return render(
        "heads.html",
        name=identifier("heads", dump),
        caption=_caption(dump, level, "sinks" in tables),
        groups=list(groups.values()),
        layers={layer: layer for layer in sorted({row.layer for row in rows})},
        filters={key: f"{text} ({counts[key]})" for key, (text, *_) in filters.items()},
        rows=rows,
    )


def _kind(columns: Sequence[str], column: str, strong: bool) -> str:
    return " ".join([*(["first"] if column == columns[0] else []), *(["significant"] if strong else [])])


def _caption(dump: str, level: float, sinks: bool) -> str:
    said = f"Heads of {dump}; q in bold is below {1 - level:.2g}"
    return said + ("; of attention on position 0, only where the head lies above the threshold" if sinks else "")


def _is_finding(row: Mapping[str, str], column: str, level: float) -> bool:
    """Whether a q-value stands for what its heading says: that of a head below the threshold of sinks does not."""
    asked = column in ("q", "leakage_q", "spline_q") and row.get("sink_reading", "True") == "True"
    return asked and _meets(row, column, level)


def _meets(row: Mapping[str, str], column: str, level: float) -> bool:
    value = row[column]
    if column == "sink_reading":
        return value == "True"
    if column == "estimate":
        return value == ""
    return value != "" and float(value) < 1 - level
