"""``posstats analyze``: from a configuration, or from dumps, to the headline table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posstats.cli.costs import cost_facts, cost_text
from posstats.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    BosToken,
    Profile,
    Quiet,
    Scheduler,
    asked,
    examples,
    print_json,
    reporting,
)
from posstats.study.config import AnalysisConfig

if TYPE_CHECKING:
    from posstats.dumping.run.cost import Cost

EPILOG = examples(
    "analyze --profile quick",
    "analyze --model path/to/model",
    "analyze --model path/to/model --dry-run",
    "analyze --model path/to/qwen --bos-token '<|endoftext|>'",
    "analyze data/mine.h5 data/other.h5 --results results",
    "analyze data/mine.h5 --scheduler local",
)


def analyze(
    dumps: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Dumps to analyse. Without any, those of the configuration."),
    ] = None,
    config: Annotated[
        Path,
        typer.Option(
            help="The configuration, a TOML file that explains its keys; also where dumps are named: its questions are "
            "asked of them."
        ),
    ] = DEFAULT_CONFIG,
    profile: Profile = None,
    model: Annotated[
        str | None, typer.Option(help="Record this model in place of the configured one: folder, .gguf file, hub id.")
    ] = None,
    bos_token: BosToken = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the results, in place of the configured one.")] = None,
    scheduler: Scheduler = "none",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be recorded and computed, and what dumps cost; write nothing."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Record what a configuration asks for, analyse it, and print the headline table and the ledger of the claims.

    Dumps and results that are current are reused. Tables (CSV, JSON, Markdown, LaTeX) and figures (PNG, PDF) go to the
    folder of the results. Dumps named on the command line are analysed as they are, without torch; which questions are
    asked of them a configuration still says: outside a clone of the repository name one with --config. With --scheduler
    the analyses are spread over workers (docs/scale.md); what is to be recorded is recorded here: record large dumps
    with posstats dump --scheduler first.
    """
    from posstats.execution.cluster import scheduler as scheduler_at
    from posstats.results.table import to_text
    from posstats.study.analysis import closing_tables, run_analyses
    from posstats.study.recording import estimate_dumps, record_dumps

    settings, paths, folder = asked(dumps, config, profile, model, bos_token, results)
    wanted = {} if dumps else {paths[name]: entry for name, entry in settings.dumps.items()}
    with reporting(quiet):
        if dry_run:
            costs = estimate_dumps(settings, wanted, overwrite=True) if wanted else {}
            _tell(settings, paths, folder, costs, as_json)
            return
        with scheduler_at(scheduler) as address:  # before anything is recorded: does it answer?
            if wanted:
                record_dumps(settings, wanted, overwrite=True, show=not quiet)
            headline = run_analyses(settings, paths, folder, scheduler=address, show=not quiet)
    if as_json:
        print_json({"results": str(folder), "notes": headline.notes, "headline": headline.frame.to_dict("records")})
    else:
        typer.echo("\n\n".join([to_text(headline), *closing_tables(settings, paths, folder)]))
        if not quiet:
            typer.echo(f"tables and figures: {folder}")


def _tell(
    settings: AnalysisConfig, paths: dict[str, Path], folder: Path, costs: dict[Path, Cost], as_json: bool
) -> None:
    """Say what would be recorded and computed."""
    from posstats.study.analysis import outstanding

    # What is to be recorded anew is not there yet, whatever lies in its place.
    there = {name: None if path in costs and costs[path].left else path for name, path in paths.items()}
    todo = outstanding(settings, there, folder)
    if as_json:
        print_json({"dumps": [cost_facts(path, cost) for path, cost in costs.items()], "to_compute": todo})
        return
    for path, cost in costs.items():
        typer.echo(cost_text(path, cost))
    labels = [label for label, needed in todo.items() if needed]
    typer.echo(f"{len(labels)} of {len(todo)} questions would be computed, into {folder}")
    for label in labels:
        typer.echo(f"  {label}")
