"""The headline table: lines taken from many results, and footnotes that let it stand by itself."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from posstats.dataset.comparable import model_of
from posstats.dataset.store import open_dump
from posstats.dataset.terms import few_documents_note, repeated_documents_note
from posstats.results.cells import model_name
from posstats.results.table import Table
from posstats.vocabulary import Note

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
#: Where the name of a quantity goes on with the condition, heads or threshold of one row.
_PARTICULARS = re.compile(r",| by | under | from ")


def headline_table(rows: Sequence[Mapping[str, Any]], dumps: Mapping[str, Path], level: float) -> Table:
    """Make the headline table; its footnotes say what every line rests on.

    Rows are lines as :class:`posstats.study.findings.Quantity` has them, each with its `dump`; dumps are name -> file.
    """
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    # Counts stay whole numbers beside estimates.
    frame["estimate"] = pd.Series([row["estimate"] for row in rows], dtype=object)
    notes = [Note(f"{100 * level:g}% intervals. Resampling unit: document.", "intervals")]
    described: dict[str, dict[str, object]] = {}
    analysed: list[Note] = []
    for name, path in dumps.items():
        with open_dump(path) as dataset:
            described[name] = describe(dataset)
            analysed.append(Note(f"Analysed of {name}: {_analysed(dataset)}.", "analysed"))
    notes += [Note(f"{name}: {facts['description']}.", "dump") for name, facts in described.items()]
    shared = [Note(text, "rests on") for text in _shared(rows)]
    notes += [*analysed, *shared, *([Note(_SINGLE, "rests on")] if shared else [])]
    settings = {"level": level, "resampling_unit": "document", "dumps": described}
    return Table(frame, "Where absolute position comes from", notes=tuple(notes), level=level, settings=settings)


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


def describe(dataset: xr.Dataset) -> dict[str, object]:
    """Return what a dump is, as data and in a line.

    `model`, whether it is `simulated`, `n_sequences`, `n_tokens`, `n_documents`, `warnings` (what makes intervals less
    reliable, a list of str), and `description`, all of it in words.
    """
    documents = len(set(dataset.document.values.tolist()))
    model = model_name(model_of(dataset))
    simulated = model == "simulated"
    model = SIMULATED if simulated else model
    n_sequences, n_tokens = dataset.sizes["sequence"], 2 * dataset.sizes["query"]
    text = f"{model}, {n_sequences} sequences of {n_tokens} tokens from {documents} documents"
    if "bos_token" in dataset.attrs:
        text += f", BOS {dataset.attrs['bos_token']}" if dataset.attrs["bos_token"] else ", no BOS"
    source = dataset.attrs.get("sequences")
    text += f" ({source})" if source else ""
    warnings = [*repeated_documents_note(dataset), *few_documents_note(documents)]
    return {
        "model": model,
        "simulated": simulated,
        "n_sequences": n_sequences,
        "n_tokens": n_tokens,
        "n_documents": documents,
        "warnings": warnings,
        "description": " ".join("; ".join([text, *warnings]).split()),
    }


def _analysed(dataset: xr.Dataset) -> str:
    """Offsets, the queries that all of them leave, and conditions."""
    offsets = dataset.offset.values.tolist()
    return (
        f"offsets {', '.join(map(str, offsets))} tokens; max offset < i < Q is i = {max(offsets) + 1} to "
        f"{dataset.sizes['query'] - 1}; conditions {', '.join(map(str, dataset.condition.values.tolist()))}"
    )
