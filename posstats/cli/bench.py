"""``posstats bench``: run the benchmark of the source tree."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from posstats.cli.options import Model, examples
from posstats.errors import InputError
from posstats.vocabulary import DEFAULT_MODEL

EPILOG = examples("bench --quick", "bench --part estimators")
#: The source tree that this package lies in, unless it was installed without one.
ROOT = Path(__file__).parents[2]


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: does it run, not how fast.")] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure only this, repeatable: dump or estimators, or one of the sections of analyses/bench.",
            show_default="all",
        ),
    ] = None,
    model: Model = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("analyses/results/bench"),
) -> None:
    """Measure speed and memory of recording and estimating on this machine, as make bench does.

    The benchmark is part of the source tree, not of the installed package: it needs a clone of the repository.

    On two processors --quick takes minutes (four where other work ran beside it) and the whole something like an hour,
    which --part cuts short. Every sample goes to bench.json and the tables to bench.md, in the folder of
    --out: by default analyses/results/bench, in the current folder. docs/bench.md says what is measured.
    """
    if not (ROOT / "analyses" / "bench").is_dir():
        raise InputError(
            "the benchmark is part of the source tree, which is not here: clone the repository and run make bench"
        )
    named = str(Path(model).resolve()) if Path(model).exists() else model
    command = [sys.executable, "-m", "analyses.bench", "--model", named, "--out", str(out.resolve())]
    command += ["--quick"] * quick
    for name in part or ():
        command += ["--part", name]
    answer = subprocess.run(command, cwd=ROOT, check=False)
    raise typer.Exit(answer.returncode)
