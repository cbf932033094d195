"""The ledger of claims: what follows for each claim, and the rows it follows from."""

from typing import Any

from markupsafe import Markup

from posstats.report.elements import identifier, render
from posstats.report.reading import Results, WrittenTable
from posstats.results.cells import model_name
from posstats.results.verdicts import WHOLE

#: Columns that say which ledger a row is of; they are in the caption.
_WHICH = ("model", "dump", "kind")
#: The verdict stands before what it follows from.
_IN_FRONT = ["claim", "part", "verdict", "reason", "criterion", "quantity", "condition"]
_SHARED = {"n": "documents:", "runs": "training runs:"}


def claims_html(results: Results) -> list[Markup]:
    """Return verdicts and ledger of every dump that has them."""
    ledgers = {name: tables["claims"] for name in results.described if "claims" in (tables := results.tables(name))}
    return [_html(table, name) for name, table in ledgers.items() if {"claim", "verdict"} <= set(table.headings)]


def _html(table: WrittenTable, dump: str) -> Markup:
    rows: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(table.raw):
        rows.setdefault(tuple(row.get(name, "") for name in _WHICH), []).append(number)
    ledgers = [_ledger(table, dump, which, numbers) for which, numbers in rows.items()]
    return render(
        "claims.html", dump=dump, table=table, ledgers=ledgers, badge=_badge, first=_IN_FRONT,
        mark=lambda row, column: _badge(row) if column == "verdict" else "whole" if row["part"] == WHOLE else "",
    )  # fmt: skip


def _ledger(table: WrittenTable, dump: str, which: tuple[str, ...], numbers: list[int]) -> dict[str, Any]:
    """One model's part of a table, as the template shows it."""
    raw = [table.raw[number] for number in numbers]
    # The rule repeats the criterion, q adjusts p; what all rows share is in the caption. Files have every column.
    shared = {name: raw[0][name] for name in _SHARED if name in raw[0] and len({row[name] for row in raw}) == 1}
    return {
        "name": identifier("ledger", dump, *which),
        "caption": f"Claims of {dump}: {', '.join(filter(None, (model_name(which[0]), *which[1:])))}",
        "rests_on": "".join(f", {_SHARED[name]} {value}" for name, value in shared.items()),
        "rows": numbers,
        "wholes": [row for row in raw if row["part"] == WHOLE],
        "leave_out": [*_WHICH, "rule", "p", *shared],
    }


def _badge(row: dict[str, str]) -> str:
    return f"verdict {identifier(row['verdict'])}"
