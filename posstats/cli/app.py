"""The command line ``posstats``: what the subcommands are, and how it ends.

Each subcommand is a function in a module of its own under :mod:`posstats.cli`. To add one, write the module and
register it here.
"""

import sys
from typing import Annotated

import typer

from posstats._version import __version__
from posstats.cli import analyze, bench, claims, dump, inspect, models, report, simulate
from posstats.errors import PosstatsError

#: Exit code of a user's mistake.
_MISTAKE = 2

app = typer.Typer(
    name="posstats",
    help="Where does absolute position come from in a decoder-only transformer with rotary embeddings?\n\n"
    "Record a model's attention once (dump), then split it into what the causal mask and what the residual stream "
    "contribute, with intervals and tests (analyze), see which claims that supports (claims), and have it on one page "
    "(report).",
    epilog="Start with: posstats analyze --config analyses/default.toml --profile quick",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of a study.
app.command(epilog=models.EPILOG)(models.models)
app.command(epilog=dump.EPILOG)(dump.dump)
app.command(epilog=inspect.EPILOG)(inspect.inspect)
app.command(epilog=analyze.EPILOG)(analyze.analyze)
app.command(epilog=claims.EPILOG)(claims.claims)
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=simulate.EPILOG)(simulate.simulate)
app.command(epilog=bench.EPILOG)(bench.bench)


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line on stderr and exit code 2."""
    try:
        app(prog_name="posstats")  # however it was started, as by python -m
    except PosstatsError as error:
        _end(str(error))
    except OSError as error:
        # A file or folder that cannot be read or written, of which the user is told; anything else is ours.
        if error.filename is None or error.strerror is None:
            raise
        _end(f"{error.filename}: {error.strerror}")
    except MemoryError as error:
        _end(f"there is not enough memory ({error or 'out of memory'}): docs/scale.md says what needs how much")


def _end(message: str) -> None:
    print(f"posstats: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(_MISTAKE)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"posstats {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
