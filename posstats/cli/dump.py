"""``posstats dump``: record a model."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from posstats.cli.costs import cost_facts, cost_text
from posstats.cli.options import (
    BosToken,
    Dtype,
    Model,
    Quiet,
    Revision,
    Scheduler,
    examples,
    print_json,
    reporting,
    token_of,
)
from posstats.errors import InputError
from posstats.study.config import (
    SOURCES,
    AnalysisConfig,
    DumpConfig,
    ModelConfig,
    RecordConfig,
    RunConfig,
    SequencesConfig,
)
from posstats.vocabulary import BASELINE, CONDITIONS, DEFAULT_LENGTH, DEFAULT_MODEL, DEFAULT_OFFSETS, DEFAULT_SEQUENCES

logger = logging.getLogger(__name__)

EPILOG = examples(
    "dump data/mine.h5 --model path/to/model -c baseline -c bos=mean",
    "dump data/mine.h5 --source text --text path/to/texts -n 96 -t 512 --dry-run",
    "dump data/mine.h5 --model path/to/model --shard 1/4 &",
    "dump data/mine.h5 --model path/to/model --scheduler tcp://10.0.0.1:8786 --shards 16",
)


def dump(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The dump to write, such as data/mine.h5.")],
    model: Model = DEFAULT_MODEL,
    revision: Revision = None,
    dtype: Dtype = "float32",
    ntk_factor: Annotated[
        float | None,
        typer.Option(
            help="Inference-time variant: NTK-aware scaling of plain RoPE by this factor, above 1. Rescales every "
            "rotary base of the model and allows sequences that many times longer."
        ),
    ] = None,
    sliding_window: Annotated[
        int | None,
        typer.Option(help="Inference-time variant: every query sees at most this many keys, fewer than without it."),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="Folder of a low-rank adapter; it brings its own architecture.")
    ] = None,
    untrained: Annotated[
        int | None,
        typer.Option(metavar="SEED", help="The model's untrained twin: weights as transformers initialises them."),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            help="random: independent tokens. text: random crops of text, see --text.",
            autocompletion=lambda: list(SOURCES),
        ),
    ] = "random",
    text: Annotated[
        str | None,
        typer.Option(
            help="A folder (every file a document), a .jsonl file or a text file; without it, the topics of Python's "
            "own help."
        ),
    ] = None,
    n: Annotated[int, typer.Option("--sequences", "-n", help="How many sequences.")] = DEFAULT_SEQUENCES,
    length: Annotated[
        int, typer.Option("--length", "-t", help="Tokens in each, BOS counted: a multiple of 4.")
    ] = DEFAULT_LENGTH,
    bos: Annotated[bool, typer.Option(help="Whether a BOS token stands at position 0.")] = True,
    bos_token: BosToken = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--condition",
            "-c",
            help="Intervention on the input, repeatable; those given replace the default, so name baseline too, which "
            f"others are compared with: {', '.join(CONDITIONS)}.",
            show_default=BASELINE,
            autocompletion=lambda: list(CONDITIONS),
        ),
    ] = None,
    offset: Annotated[
        list[int] | None,
        typer.Option(
            "--offset",
            "-d",
            help="Distance from query to key at which logits are kept, repeatable; those given replace the default.",
            show_default=", ".join(map(str, DEFAULT_OFFSETS)) + ", up to a quarter of the length",
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
    scheduler: Scheduler = "none",
    shards: Annotated[
        int | None, typer.Option(min=1, help="With --scheduler: shares in all; else one per worker.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, try a batch or two, say what it would cost; write nothing."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Record a model's attention into one labelled HDF5 file.

    A finished dump with the same settings is reused, and an unfinished one is taken up where it stopped. Read the file
    with posstats.open_dump, xarray, h5py or ncdump.

    With --dry-run the model is loaded and a batch or two recorded, to a temporary file: time and size of the whole
    are measured, not guessed.
    """
    from posstats.execution.cluster import scheduler as scheduler_at
    from posstats.study.recording import estimate_dumps, record_dumps, record_shares

    if as_json and not dry_run:
        raise InputError("--json goes with --dry-run; posstats inspect FILE --json says what is in a dump")
    if shard is not None and scheduler != "none":
        raise InputError("--shard K/N is for processes that you start; --scheduler starts all shares, see --shards")
    if shards is not None and scheduler == "none":
        raise InputError("--shards goes with --scheduler; without one, give every process its own --shard K/N")
    share = None if shard is None else _shard(shard)
    # Larger ones than half the analysed half are of no use to an analysis: a user who wants them has to say so.
    offsets = tuple(offset or (d for d in DEFAULT_OFFSETS if d <= length // 4))
    config = AnalysisConfig(
        ModelConfig(model, revision, dtype, ntk_factor, sliding_window, adapter, untrained),
        SequencesConfig(n, length, bos, token_of(bos_token), seed),
        record=RecordConfig(tuple(condition or (BASELINE,)), offsets, seed),
        run=RunConfig(models=models, device=device, batch_size=batch_size),
    )
    work = config, {path: DumpConfig(source, text)}
    with reporting(quiet):
        if not offset and len(offsets) < len(DEFAULT_OFFSETS):
            logger.info(
                "of the default offsets, %s are left out: sequences of %d tokens are too short for them; --offset "
                "chooses others",
                ", ".join(str(d) for d in DEFAULT_OFFSETS if d not in offsets),
                length,
            )
        if not dry_run:
            with scheduler_at(scheduler) as address:
                if address is None:
                    record_dumps(*work, overwrite=overwrite, shard=share, show=not quiet)
                else:
                    record_shares(*work, address, shards, overwrite=overwrite, show=not quiet)
            return
        cost = estimate_dumps(*work, overwrite=overwrite, shard=share)[path]
    if as_json:
        print_json(cost_facts(path, cost))
    else:
        typer.echo(cost_text(path, cost))


def _shard(text: str) -> tuple[int, int]:
    k, slash, n = text.partition("/")
    if not (slash and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise InputError(f"--shard takes K/N with K from 1 to N, such as 1/4, not {text!r}")
    return int(k), int(n)
