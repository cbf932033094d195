"""Tables of the whole comparison, and the page that is committed."""

import importlib.metadata
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import posstats as ps
from analyses.architectures.models import Entry, dump_path
from analyses.architectures.tasks import ARCHITECTURES, CONTRAST, LEDGER, Task, plan, run_all
from posstats.execution.provenance import LIBRARIES
from posstats.stats.inference.options import Inference
from posstats.study.config import AnalysisConfig
from posstats.tables import Table, to_markdown, write_table
from posstats.vocabulary import ADAPTED, EARLY_BIN, FEW_DOCUMENTS, VARIANT

#: Name of the committed page, and of the folder of tables beside it.
PAGE, TABLES = "claims-results.md", "claims"
_RECORDED_WITH = ("posstats_version", "torch_version", "transformers_version")
_KINDS = {VARIANT: "Inference-time variants", ADAPTED: "Adapted models"}


def write(
    variants: Sequence[Entry],
    adapted: Sequence[Entry],
    config: AnalysisConfig,
    inference: Inference,
    out: Path,
    docs: Path | None = None,
) -> dict[str, Table]:
    """Compute what is not current and write all tables.

    Parameters
    ----------
    variants, adapted : sequence of Entry
        Models whose dumps are there.
    config : AnalysisConfig
        With which they were recorded.
    inference : Inference
        How estimates are resampled and tested.
    out : Path
        Folder of the tables.
    docs : Path, optional
        Folder that gets the page and a copy of the tables.

    Returns
    -------
    dict of str to Table
        By file name without ending.
    """
    sides = [[(entry, dump_path(config, entry)) for entry in entries] for entries in (variants, adapted)]
    tasks = plan(sides[0], sides[1], out / "tasks", inference)
    run_all(tasks, workers=config.run.workers)
    notes = _notes(sides[0][0][1], config, inference)
    tables = _tables(tasks, notes, inference.level)
    for name, table in tables.items():
        write_table(table, out, name)
    (out / PAGE).write_text(page(tables, notes), encoding="utf-8")
    if docs is not None:
        shutil.copy(out / PAGE, docs / PAGE)
        for name, table in tables.items():
            write_table(table, docs / TABLES, name)
    return tables


def _tables(tasks: Sequence[Task], notes: Sequence[str], level: float) -> dict[str, Table]:
    tables = {}
    for kind, title in _KINDS.items():
        chosen = [task for task in tasks if task.kind == kind]
        slug = title.lower().replace(" ", "-")

        def gathered(what: str, chosen: Sequence[Task] = chosen) -> pd.DataFrame | None:
            frames = [task.table() for task in chosen if task.what == what]
            return pd.concat(frames, ignore_index=True).drop(columns="kind of models") if frames else None

        ledger, c6, contrasts = (gathered(what) for what in (LEDGER, ARCHITECTURES, CONTRAST))
        if ledger is None:
            continue
        whole = ledger[ledger.part == "claim"].pivot_table(
            index="model", columns="claim", values="verdict", aggfunc="first", sort=False
        )
        tables[f"{slug}-verdicts"] = Table(whole.reset_index(), f"{title}: verdicts", notes=tuple(notes), level=level)
        tables[f"{slug}-ledger"] = Table(ledger, f"{title}: ledger", notes=tuple(notes), level=level)
        if c6 is not None:
            tables[f"{slug}-c6"] = Table(c6, f"{title}: C6, the architectures", notes=tuple(notes), level=level)
        if contrasts is not None:
            tables[f"{slug}-contrasts"] = Table(contrasts, f"{title}: contrasts", notes=tuple(notes), level=level)
    return tables


def _notes(dump: Path, config: AnalysisConfig, inference: Inference) -> list[str]:
    with ps.open_dump(dump) as ds:
        recorded = ", ".join(f"{name.removesuffix('_version')} {ds.attrs[name]}" for name in _RECORDED_WITH)
        described = f"{ds.sizes['sequence']} sequences of {ds.sizes['token']} iid tokens, the same for every model"
        if ds.attrs["bos_token"]:
            described += f", BOS {ds.attrs['bos_token']}"
        documents = ds.sizes["sequence"]  # a sequence of iid tokens is its own document
    analysed = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    few = [f"Only {documents} documents: intervals are reliable from {FEW_DOCUMENTS} documents on."]
    return [
        *(few if documents < FEW_DOCUMENTS else []),
        f"{described}; conditions {', '.join(config.record.conditions)}.",
        f"{100 * inference.level:g}% intervals. Resampling unit: document; where runs are replicated, training run and "
        "document.",
        f"Recorded with {recorded}; analysed with {analysed}, Python {platform.python_version()}.",
    ]


def page(tables: dict[str, Table], notes: Sequence[str]) -> str:
    """The committed page: verdicts, C6, and the contrasts that it rests on."""
    parts = [
        "# The claims, on variants and on adapted models\n",
        "Written by `make claims`; [architectures.md](architectures.md) says what the models are, "
        "[method.md](method.md) (section 9) what is claimed, by which criterion. The whole ledger and all contrasts "
        "are in [claims](claims), as CSV, JSON, Markdown and LaTeX.\n",
        "\n".join(f"- {note}" for note in notes) + "\n",
    ]
    for title in _KINDS.values():
        slug = title.lower().replace(" ", "-")
        shown = [
            _shown(tables[name]) for name in (f"{slug}-verdicts", f"{slug}-c6", f"{slug}-contrasts") if name in tables
        ]
        parts += [f"## {title}\n", *(f"{to_markdown(table)}\n" for table in shown)]
    return "\n".join(parts)


def _shown(table: Table) -> Table:
    """A table without what the page says above, and of contrasts the rows that the claims speak of."""
    frame = table.frame
    if "contrast" in frame:
        frame = frame[
            (frame.queries == EARLY_BIN) & frame.quantity.isin(["removal", "slope"]) | (frame.quantity == "share")
        ]
        columns = ["contrast", "runs", "quantity", "term", "condition", "queries", "unit", "estimate", "low", "high"]
        frame = frame[[*columns, "p", "q", "note"]]
    elif "rule" in frame:
        columns = ["model", "part", "quantity", "condition", "estimate", "low", "high", "p", "q", "n", "runs", "rule"]
        frame = frame[[*columns, "verdict", "reason"]]
    return Table(frame, table.title, table.units, (), table.level)
