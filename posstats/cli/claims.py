"""``posstats claims``: the ledger of claims of dumps."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posstats.cli.options import AsJson, Quiet, examples, print_json, reporting
from posstats.errors import InputError
from posstats.results.verdicts import CRITERIA
from posstats.stats.inference.options import METHODS, Inference

if TYPE_CHECKING:
    import pandas as pd

    from posstats.results.claims import ClaimsResult

EPILOG = examples(
    "claims data/random.h5",
    "claims data/standard.h5 data/ntk.h5 data/window.h5 --which C6",
    "claims data/random.h5 --csv > claims.csv",
)
_PRINTED = ["claim", "part", "quantity", "unit", "condition", "estimate", "low", "high", "p", "q", "verdict", "reason"]
_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Inference)}


def claims(
    dumps: Annotated[list[Path], typer.Argument(metavar="FILE", help="One or several dumps.")],
    which: Annotated[
        list[str] | None,
        typer.Option(
            "--which",
            "-w",
            help=f"Claim to test, repeatable: {', '.join(CRITERIA)}.",
            show_default="all",
            autocompletion=lambda: list(CRITERIA),
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of intervals.")] = _DEFAULTS["level"],
    resamples: Annotated[int, typer.Option(help="Bootstrap replicates.")] = _DEFAULTS["n_resamples"],
    permutations: Annotated[int, typer.Option(help="Sign flips of each test.")] = _DEFAULTS["n_permutations"],
    adjust: Annotated[
        str,
        typer.Option(
            help=f"Adjustment of p-values over a ledger: {', '.join(METHODS)}.",
            autocompletion=lambda: list(METHODS),
        ),
    ] = _DEFAULTS["adjust"],
    seed: Annotated[int, typer.Option(help="Seed of replicates and sign flips.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder that gets claims.csv, .json, .md and .tex.")] = None,
    as_json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the whole ledger as CSV, raw numbers.")] = False,
    quiet: Quiet = False,
) -> None:
    """Put the claims C1 to C9 to dumps, and print what follows.

    Every dump has a ledger: a row for each part of each criterion, with estimate, interval, p, q and verdict, and one
    for the claim. A claim that a dump cannot speak to says which condition is missing. C6 compares dumps of one model
    under several architectures. Criteria were fixed in advance: docs/claims.md.
    """  # fmt: skip
    from posstats.dataset.store import open_dump
    from posstats.ledger.claims import claims as ledger_of
    from posstats.results.table import table_of, to_csv, write_table

    if as_json and csv:
        raise InputError("give --json or --csv, not both")
    inference = Inference(level, None, resamples, permutations, adjust, seed)
    with reporting(quiet), ExitStack() as files:
        opened = [files.enter_context(open_dump(path)) for path in dumps]
        result = ledger_of(opened, which=tuple(which or CRITERIA), **inference.options())
    if out is not None:
        write_table(result, out, "claims")
    if as_json:
        print_json({"settings": result.settings, "notes": result.notes, "claims": result.table.to_dict("records")})
    elif csv:
        typer.echo(to_csv(table_of(result)), nl=False)
    else:
        typer.echo(_text(result))


def _text(result: ClaimsResult) -> str:
    """A table per ledger, narrow enough for a terminal, and what all of them rest on."""
    from posstats.results.table import Table, table_of, to_text

    whole = table_of(result)
    parts = []
    for (model, dump, kind), rows in result.table.groupby(["model", "dump", "kind"], sort=False):
        # A criterion and its rule are the same for every dump; docs/claims.md has them.
        shown: pd.DataFrame = rows[_PRINTED]
        parts.append(to_text(Table(shown, f"{model} on {dump} ({kind})", level=whole.level)))
    return "\n\n".join([*parts, "\n".join(whole.notes)])
