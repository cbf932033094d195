"""What the subcommands have in common: options, notices on stderr, JSON on stdout, sizes and times for people."""

import hashlib
import json
import logging
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

from posstats.errors import InputError
from posstats.study.config import AnalysisConfig, load_config, profiles
from posstats.vocabulary import DEFAULT_MODEL, DTYPES, WINDOWED_MODEL

#: What can be named as a model.
MODEL_HELP = f"{DEFAULT_MODEL} (embedded), {WINDOWED_MODEL} (make gemma), a local folder, a .gguf file, or a hub id."
Model = Annotated[str, typer.Option(help=MODEL_HELP)]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")]
Dtype = Annotated[str, typer.Option(help=f"{', '.join(DTYPES)}.", autocompletion=lambda: list(DTYPES))]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notices; results, warnings, errors.")]
#: The configuration of whoever names none.
DEFAULT_CONFIG = Path("analyses/default.toml")


def _profiles(context: typer.Context) -> list[str]:
    return profiles(context.params.get("config") or DEFAULT_CONFIG)


Profile = Annotated[
    str | None, typer.Option(help="A profile of the configuration, such as quick.", autocompletion=_profiles)
]
BosToken = Annotated[
    str | None,
    typer.Option(
        help="The token at position 0, by spelling or id; else the tokenizer's or configuration's choice. A tokenizer "
        "that has no BOS token needs one: the token that ends a text, mostly."
    ),
]
Scheduler = Annotated[
    str,
    typer.Option(
        metavar="none|local|ADDRESS",
        help="Let dask.distributed do the work: on workers started for it on this machine (local), or those of a "
        "running scheduler, such as tcp://10.0.0.1:8786. The results are the same.",
        autocompletion=lambda: ["none", "local"],
    ),
]
#: Characters of the names of dumps in the name of a folder.
_LONGEST = 100
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def token_of(given: str | None) -> str | int | None:
    """A token as the rest of posstats is told of it: digits are an id.

    >>> token_of("0"), token_of("<|endoftext|>")
    (0, '<|endoftext|>')
    """
    return int(given) if given is not None and given.isdecimal() else given


def asked(
    dumps: Sequence[Path] | None,
    config: Path,
    profile: str | None,
    model: str | None,
    bos_token: str | None,
    results: Path | None,
) -> tuple[AnalysisConfig, dict[str, Path], Path]:
    """Settings, files of the dumps by name (which may not be there yet), and the folder of their results.

    Dumps are those named, or those of the configuration. A folder belongs to a model and BOS token, or to a set of
    named dumps, whatever their order. Raises InputError if dumps are given and a model or BOS token too, two dumps have
    the same name, or the configuration cannot be read.
    """
    settings = load_config(config, profile=profile, model=model, bos_token=token_of(bos_token))
    if results is not None:
        settings = replace(settings, run=replace(settings.run, results=str(results)))
    if not dumps:
        return settings, {name: settings.dump_path(name) for name in settings.dumps}, settings.results_folder()
    if model is not None:
        raise InputError("give dumps to analyse or a model to record, not both")
    if bos_token is not None:
        raise InputError("dumps that are there have the BOS token they were recorded with: leave out --bos-token")
    paths: dict[str, Path] = {}
    for path in dumps:
        if path.stem in paths:
            raise InputError(
                f"{paths[path.stem]} and {path} have the same file name, by which results are kept: rename one of "
                "them, or analyse them apart, each with its --results"
            )
        paths[path.stem] = path
    return settings, paths, Path(settings.run.results) / _set_name(paths)


def _set_name(dumps: Iterable[str]) -> str:
    """Folder of the results of named dumps; many names are cut, with a digest that tells such sets apart.

    >>> _set_name(["text", "mine"])
    'dumps-mine+text'
    """
    name = f"dumps-{'+'.join(sorted(dumps))}"
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class _Lines(logging.Handler):
    """One line each on stderr, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


@contextmanager
def reporting(quiet: bool) -> Iterator[None]:
    """Log lines and warnings to stderr, one line each, while the block runs; warnings alone where it is to be quiet."""
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


def print_json(facts: Any) -> None:
    """Print dictionaries, lists, strings and numbers, also numpy's, as JSON that every parser reads: NaN is null."""
    typer.echo(json.dumps(_plain(facts), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def size_text(count: float) -> str:
    """Bytes for people.

    >>> [size_text(count) for count in (512, 1.5e6, 999.96e6, 2.4e12)]
    ['512 B', '1.5 MB', '1.0 GB', '2.4 TB']
    """
    for unit in ("B", "kB", "MB", "GB"):
        if round(count, 1) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def time_text(seconds: float) -> str:
    """A duration for people, two digits of it.

    >>> [time_text(seconds) for seconds in (0.34, 12.3, 90, 5400, 200000)]
    ['less than 1 s', '12 s', '1.5 min', '1.5 h', '56 h']
    """
    if seconds < 1:
        return "less than 1 s"
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            count = seconds / length
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


def lines(facts: Mapping[str, object]) -> str:
    """Aligned lines of a name and what is to be said.

    >>> print(lines({"layers": 3, "heads": 4}))
    layers  3
    heads   4
    """
    width = max(map(len, facts))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items())


def examples(*commands: str) -> str:
    """Return the epilogue of a command's help, from command lines without their ``posstats``."""
    # The marker keeps click from filling the lines into a paragraph.
    return "\b\nExamples:\n" + "\n".join(f"  posstats {command}" for command in commands)
