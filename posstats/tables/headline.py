"""The headline table: lines taken from many results, and footnotes that let it stand by itself."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from posstats.dataset.comparable import model_of
from posstats.dataset.store import open_dump
from posstats.dataset.terms import repeated_documents_note
from posstats.results.cells import model_name
from posstats.tables.table import Table
from posstats.vocabulary import FEW_DOCUMENTS

#: Name of its files, without ending.
HEADLINE = "headline"
#: What a dump of ``posstats simulate`` is of, where others name their model.
SIMULATED = "simulated data"
_COLUMNS = ["dump", "quantity", "unit", "estimate", "low", "high", "p", "q", "note"]
#: What lines rest on -> how a footnote says so.
_KINDS = {"intervals": "interval, {}", "queries": "queries i, {}", "p": "p, {}", "q": "q, {}"}
_SINGLE = (
    "Where a family holds a single p, as that of a number pooled over all heads and layers under one condition does, q "
    "equals p. Counts of heads rest on the q of every head. T tokens, position 0 is the first."
)
_MORE = (
    "Offsets, queries, tests with their null hypotheses, and families of q of every line stand below the table in "
    f"{HEADLINE}.md."
)
#: Where the name of a quantity goes on with the condition, heads or threshold of one row.
_PARTICULARS = re.compile(r",| by | under | from ")


def headline_table(rows: Sequence[Mapping[str, Any]], dumps: Mapping[str, Path], level: float) -> Table:
    """Make the headline table.

    Parameters
    ----------
    rows : sequence of mapping
        Lines, as :class:`posstats.study.findings.Quantity` has them, each with its `dump`.
    dumps : mapping of str to Path
        Name of a dump -> its file.
    level : float
        Confidence level of the intervals.

    Returns
    -------
    Table
        Its footnotes say what every line rests on.
    """
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    # Counts stay whole numbers beside estimates.
    frame["estimate"] = pd.Series([row["estimate"] for row in rows], dtype=object)
    level_note = f"{100 * level:g}% intervals. Resampling unit: document."
    described: list[str] = []
    analysed: list[str] = []
    for name, path in dumps.items():
        with open_dump(path) as dataset:
            described.append(f"{name}: {_described(dataset)}.")
            analysed.append(f"Analysed of {name}: {_analysed(dataset)}.")
    shared = list(_shared(rows))
    return Table(
        frame,
        "Where absolute position comes from",
        # What dumps are comes before footnotes that could begin with the name of one.
        notes=(level_note, *described, *analysed, *shared, *([_SINGLE] if shared else [])),
        level=level,
        on_terminal=(level_note, *described, *([_MORE] if shared else [])),
    )


def _shared(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A footnote for the lines that rest on the same, with their names."""
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        said = dict(row["rests_on"])
        if pd.isna(row["low"]):
            said.pop("intervals", None)
        text = "; ".join(start.format(said[kind]) for kind, start in _KINDS.items() if kind in said)
        if text:
            groups.setdefault(text, {})[_PARTICULARS.split(row["quantity"])[0]] = None
    for text, names in groups.items():
        yield f"{', '.join(names)}: {text}."


def _described(dataset: xr.Dataset) -> str:
    documents = len(set(dataset.document.values.tolist()))
    model = model_name(model_of(dataset))
    model = SIMULATED if model == "simulated" else model
    described = (
        f"{model}, {dataset.sizes['sequence']} sequences of {dataset.sizes['query']} tokens from {documents} documents"
    )
    if "bos_token" in dataset.attrs:
        described += f", BOS {dataset.attrs['bos_token']}" if dataset.attrs["bos_token"] else ", no BOS"
    source = dataset.attrs.get("sequences")
    described += f" ({source})" if source else ""
    described += "".join(f"; {note}" for note in repeated_documents_note(dataset))
    if documents < FEW_DOCUMENTS:
        described += f"; only {documents} documents: intervals are reliable from {FEW_DOCUMENTS} on"
    return " ".join(described.split())


def _analysed(dataset: xr.Dataset) -> str:
    """Offsets, the queries that all of them leave, and conditions."""
    offsets = dataset.offset.values.tolist()
    return (
        f"offsets {', '.join(map(str, offsets))} tokens; max offset < i < Q is i = {max(offsets) + 1} to "
        f"{dataset.sizes['query'] - 1}; conditions {', '.join(map(str, dataset.condition.values.tolist()))}"
    )
