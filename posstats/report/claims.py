"""The ledger of claims: what follows for each claim, and the rows it follows from."""

from html import escape

from posstats.report.elements import downloads, identifier, paragraphs, table_html
from posstats.report.reading import Results, WrittenTable
from posstats.results.cells import model_name
from posstats.results.verdicts import WHOLE

#: Columns that say which ledger a row is of; they are in the caption.
_WHICH = ("model", "dump", "kind")
#: The verdict stands before what it follows from.
_IN_FRONT = ("claim", "part", "verdict", "reason", "criterion", "quantity", "condition")
_SHARED = {"n": "documents:", "runs": "training runs:"}
_ABSENT = (
    "There is no ledger of claims among these results: no verdict on the claims of arXiv:2606.06160 can be given here. "
    "Name claims.py under [analyses] files in the configuration and run posstats analyze to have one."
)


def claims_html(results: Results) -> str:
    """Return verdicts and ledgers of all dumps, or a sentence that there are none."""
    parts = [
        _ledger(tables["claims"], name)
        for name in results.described
        if "claims" in (tables := results.tables(name)) and {"claim", "verdict"} <= set(tables["claims"].headings)
    ]
    return "".join(parts) or f'<p class="absent">{escape(_ABSENT)}</p>'


def _ledger(table: WrittenTable, dump: str) -> str:
    parts = [f"<h3>{escape(dump)}</h3>"]
    rows: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(table.raw):
        rows.setdefault(tuple(row.get(name, "") for name in _WHICH), []).append(number)
    for which, numbers in rows.items():
        wholes = [table.raw[number] for number in numbers if table.raw[number]["part"] == WHOLE]
        verdicts = "".join(
            f'<li><b>{escape(row["claim"])}</b> <span class="{_badge(row)}">{escape(row["verdict"])}</span> '
            f"{escape(row['criterion'])}</li>"
            for row in wholes
        )
        caption = f"Claims of {dump}: {', '.join(filter(None, (model_name(which[0]), *which[1:])))}"
        # The rule repeats the criterion, q adjusts p; what all rows share is in the caption. Files have every column.
        same = {name: table.raw[numbers[0]][name] for name in ("n", "runs")
                if name in table.headings and len({table.raw[number][name] for number in numbers}) == 1}  # fmt: skip
        rests_on = "".join(f", {text} {same[name]}" for name, text in _SHARED.items() if name in same)
        shown = table_html(
            table, caption + rests_on, rows=numbers, leave_out=(*_WHICH, "rule", "p", *same), first=_IN_FRONT,
            kind="cards ledger",
            mark=lambda row, column: _badge(row) if column == "verdict" else "whole" if row["part"] == WHOLE else "",
        )  # fmt: skip
        parts.append(
            f'<p class="note">{escape(caption)}.</p><ul class="verdicts">{verdicts}</ul>'
            f'<details id="{identifier("ledger", dump, *which)}"><summary>The ledger: every part of every criterion, '
            f"with the numbers its verdict follows from</summary>{shown}</details>"
        )
    return "".join(parts) + paragraphs(table.notes) + downloads(table, f"{dump}-{table.name}")


def _badge(row: dict[str, str]) -> str:
    return f"verdict {identifier(row['verdict'])}"
