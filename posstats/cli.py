"""The command line: ``posstats dump``, ``posstats analyze``, ``posstats inspect``."""

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

import posstats
from posstats.analysis import run_analyses
from posstats.config import DumpConfig, ModelConfig, RecordConfig, RunConfig, SequencesConfig, load_config
from posstats.errors import InputError, PosstatsError
from posstats.recording import record_dumps
from posstats.store import open_dump
from posstats.tables import to_text
from posstats.vocabulary import BASELINE, CONDITIONS, DEFAULT_LENGTH, DEFAULT_OFFSETS, DEFAULT_SEQUENCES

#: Exit code of a user's mistake.
_MISTAKE = 2

app = typer.Typer(
    name="posstats",
    help="Where does absolute position come from in a decoder-only transformer with rotary embeddings?\n\n"
    "Record a model's attention once (dump), then split it into what the causal mask and what the residual stream "
    "contribute, with intervals and tests (analyze).\n\n"
    "Start with: posstats analyze --config analyses/default.toml --profile quick",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notices; results, warnings, errors.")]


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line on stderr and exit code 2."""
    try:
        app()
    except PosstatsError as error:
        print(f"posstats: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(_MISTAKE)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"posstats {posstats.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def dump(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The dump to write, such as data/mine.h5.")],
    model: Annotated[
        str, typer.Option(help="smollm2-135m (embedded), a local folder, a .gguf file, or a hub id.")
    ] = "smollm2-135m",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    ntk_factor: Annotated[
        float | None, typer.Option(help="Inference-time variant: NTK-aware scaling of plain RoPE by this factor.")
    ] = None,
    sliding_window: Annotated[
        int | None, typer.Option(help="Inference-time variant: every query sees at most this many keys.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="Folder of a low-rank adapter; it brings its own architecture.")
    ] = None,
    source: Annotated[
        str, typer.Option(help="random: independent tokens. text: random crops of text, see --text.")
    ] = "random",
    text: Annotated[
        str | None,
        typer.Option(
            help="A folder (every file a document), a .jsonl file or a text file; without it, the topics of Python's "
            "own help."
        ),
    ] = None,
    n: Annotated[int, typer.Option("--sequences", "-n", help="How many sequences.")] = DEFAULT_SEQUENCES,
    length: Annotated[int, typer.Option("--length", "-t", help="Tokens in each, BOS counted.")] = DEFAULT_LENGTH,
    bos: Annotated[bool, typer.Option(help="Whether a BOS token stands at position 0.")] = True,
    bos_token: Annotated[
        str | None, typer.Option(help="Which token that is, by spelling or id; else the tokenizer's choice.")
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--condition",
            "-c",
            help=f"Intervention on the input, repeatable: {', '.join(CONDITIONS)}.",
            show_default=BASELINE,
        ),
    ] = None,
    offset: Annotated[
        list[int] | None,
        typer.Option(
            "--offset",
            "-d",
            help="Distance from query to key at which logits are kept, repeatable.",
            show_default=", ".join(map(str, DEFAULT_OFFSETS)),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sequences and of what conditions draw.")] = 0,
    device: Annotated[str | None, typer.Option(help="Torch device; else a GPU if there is one.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences per forward pass; else what memory allows.")] = None,
    models: Annotated[str, typer.Option(help="Folder of converted models.")] = "data/models",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dump that has other settings.")] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Record the K-th of N shares only. Processes that share a file system may work at once; the last one "
            "joins the dump.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Record a model's attention into one labelled HDF5 file.

    A finished dump with the same settings is reused, and an unfinished one is taken up where it stopped. Read the file
    with posstats.open_dump, xarray, h5py or ncdump.

    Example: posstats dump data/mine.h5 --model path/to/model -c baseline -c bos=mean
    """  # fmt: skip
    token: str | int | None = int(bos_token) if bos_token is not None and bos_token.isdecimal() else bos_token
    with _reporting(quiet):
        record_dumps(
            {path: DumpConfig(source, text)},
            ModelConfig(model, revision, dtype, ntk_factor, sliding_window, adapter),
            SequencesConfig(n, length, bos, token, seed),
            RecordConfig(tuple(condition or (BASELINE,)), tuple(offset or DEFAULT_OFFSETS), seed),
            RunConfig(models=models, device=device, batch_size=batch_size),
            overwrite=overwrite,
            shard=None if shard is None else _shard(shard),
            show=not quiet,
        )


def _shard(text: str) -> tuple[int, int]:
    k, slash, n = text.partition("/")
    if not (slash and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise InputError(f"--shard takes K/N with K from 1 to N, such as 1/4, not {text!r}")
    return int(k), int(n)


@app.command()
def analyze(
    dumps: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Dumps to analyse. Without any, those of the configuration."),
    ] = None,
    config: Annotated[Path, typer.Option(help="The configuration, a TOML file that explains its keys.")] = Path(
        "analyses/default.toml"
    ),
    profile: Annotated[str | None, typer.Option(help="A profile of the configuration, such as quick.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Record this model in place of the configured one: folder, .gguf file, hub id.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the results, in place of the configured one.")] = None,
    quiet: Quiet = False,
) -> None:
    """Record what a configuration asks for, analyse it, and print the headline table.

    Dumps and results that are current are reused. Tables (CSV, Markdown, LaTeX) and figures (PNG, PDF) go to the
    folder of the results. Dumps named on the command line are analysed as they are, without torch.

    Example: posstats analyze --model path/to/model
    """  # fmt: skip
    settings = load_config(config, profile=profile, model=model)
    if results is not None:
        settings = replace(settings, run=replace(settings.run, results=str(results)))
    with _reporting(quiet):
        if dumps:
            if model is not None:
                raise InputError("give dumps to analyse or a model to record, not both")
            paths = {path.stem: path for path in dumps}
            if len(paths) < len(dumps):
                raise InputError("two dumps have the same file name; results are kept by that name")
            folder = Path(settings.run.results)
        else:
            paths = {name: settings.dump_path(name) for name in settings.dumps}
            folder = settings.results_folder()
            record_dumps(
                {paths[name]: entry for name, entry in settings.dumps.items()},
                settings.model, settings.sequences, settings.record, settings.run, overwrite=True, show=not quiet,
            )  # fmt: skip
        headline = run_analyses(settings, paths, folder, show=not quiet)
    typer.echo(to_text(headline))
    if not quiet:
        typer.echo(f"tables and figures: {folder}")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The dump to look at.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is in a dump: model, conditions, sizes, settings.

    Ends with exit code 2 where the file is no whole dump.
    """
    with open_dump(path) as dataset:
        facts: dict[str, Any] = {
            "file": str(path),
            "bytes": path.stat().st_size,
            "complete": True,
            "sizes": {str(name): size for name, size in dataset.sizes.items()},
            "documents": len(set(dataset.document.values.tolist())),
            "conditions": [str(name) for name in dataset.condition.values],
            "offsets": dataset.offset.values.tolist(),
            "attributes": {name: _plain(value) for name, value in sorted(dataset.attrs.items())},
        }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    sizes = facts["sizes"]
    typer.echo(f"{path}: a whole posstats dump, {facts['bytes'] / 1e6:.1f} MB")
    typer.echo(f"sequences   {sizes['sequence']} of {sizes['query']} tokens from {facts['documents']} documents")
    typer.echo(f"model       {sizes['layer']} layers of {sizes['head']} heads")
    typer.echo(f"conditions  {', '.join(facts['conditions'])}")
    typer.echo(f"offsets     {', '.join(map(str, facts['offsets']))}")
    typer.echo("attributes")
    for name, value in facts["attributes"].items():
        shown = str(value)
        typer.echo(f"  {name}: {shown if len(shown) <= 100 else shown[:97] + '...'}")


def _plain(value: Any) -> Any:
    """An attribute as JSON can hold it."""
    return value.tolist() if hasattr(value, "tolist") else value


class _Lines(logging.Handler):
    """One line each on stderr, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


@contextmanager
def _reporting(quiet: bool) -> Iterator[None]:
    """Log lines and warnings to stderr, one line each."""
    logger = logging.getLogger("posstats")
    handler = _Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)

    def show(message: Warning | str, *_: object, **__: object) -> None:
        logger.warning("warning: %s", message)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
