"""``posstats report``: the results of an analysis as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from posstats.cli.options import DEFAULT_CONFIG, BosToken, Profile, Quiet, asked, examples, reporting

EPILOG = examples("report --profile quick", "report data/mine.h5 --results results --out mine.html")


def report(
    dumps: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Dumps named to posstats analyze. Without any, those of the configuration."
        ),
    ] = None,
    config: Annotated[Path, typer.Option(help="The configuration of the analysis.")] = DEFAULT_CONFIG,
    profile: Profile = None,
    model: Annotated[str | None, typer.Option(help="The model named to posstats analyze, if one was.")] = None,
    bos_token: BosToken = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the results, in place of the configured one.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The page.", show_default="report.html in the folder of the results")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the results of an analysis as one HTML page.

    Everything is in the page: headline numbers, claims, figures, a table of heads to sort and filter, all tables, a
    methods paragraph with the settings filled in, versions and digests. It needs no network and no other file. Name the
    configuration, profile, model, BOS token and dumps as for posstats analyze, which has to have run.
    """
    from posstats.report.page import write_report
    from posstats.report.reading import outdated_answers, read_results

    settings, paths, folder = asked(dumps, config, profile, model, bos_token, results)
    found = read_results(folder, paths, [Path(name).stem for name in settings.analyses.files])
    with reporting(quiet):
        outdated = outdated_answers(settings, paths, folder)
    page = write_report(found, settings, out or folder / "report.html", outdated=outdated)
    if not quiet:
        typer.echo(f"report: {page}")
