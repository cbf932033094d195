"""``posstats simulate``: a rehearsal dump whose truth is known."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from posstats.cli.options import AsJson, Quiet, examples, lines, print_json, reporting, size_text
from posstats.errors import InputError
from posstats.vocabulary import BASELINE, EARLY, RESIDUAL, TERMS

EPILOG = examples(
    "simulate data/rehearsal.h5 -n 24 -t 128 -c baseline -c bos=mean --removal 0.3",
    "analyze data/rehearsal.h5",
)


def simulate(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The dump to write.")],
    documents: Annotated[int, typer.Option("--documents", "-n", help="Documents, the resampling unit.")] = 48,
    per_document: Annotated[int, typer.Option(help="Sequences of each document.")] = 1,
    length: Annotated[int, typer.Option("--length", "-t", help="Tokens in each sequence.")] = 64,
    layers: Annotated[int, typer.Option(help="Layers of the model that is played.")] = 1,
    heads: Annotated[int, typer.Option(help="Heads of each layer.")] = 4,
    condition: Annotated[
        list[str] | None,
        typer.Option("--condition", "-c", help="Condition, repeatable.", show_default=BASELINE),
    ] = None,
    offset: Annotated[
        list[int] | None,
        typer.Option("--offset", "-d", help="Recorded offset in tokens, repeatable.", show_default="0, 1, 2, 4, 8"),
    ] = None,
    strength: Annotated[
        float, typer.Option(help="Size of the residual-stream terms in nats; 0 leaves the mask alone.")
    ] = 1.0,
    removal: Annotated[
        float, typer.Option(help="Share of the residual magnitude that conditions other than the baseline remove.")
    ] = 0.4,
    window: Annotated[int | None, typer.Option(help="Keys that a query sees at most, a sliding window.")] = None,
    seed: Annotated[int, typer.Option(help="One seed, one dump.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a synthetic dump with known leakage, shares and removal, and print them.

    Rehearse a study with it: whether intervals are narrow enough for the documents you can afford, and whether they
    cover the truth. It needs no model and no torch.
    """
    from posstats.dataset.simulate import simulate as simulated
    from posstats.dataset.store import write_dump

    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: choose another path, or give --overwrite")
    if per_document < 1:
        raise InputError(f"--per-document must be at least 1, not {per_document}")
    conditions = tuple(condition or (BASELINE,))
    with reporting(quiet):
        simulation = simulated(
            documents, length, sequences_per_document=per_document, layers=layers, heads=heads,
            offsets=tuple(offset or (0, 1, 2, 4, 8)), conditions=conditions, strength=strength, removal=removal,
            window=window, seed=seed,
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        write_dump(simulation.dataset, path)
    truth, of_baseline = simulation.truth, simulation.truth.conditions.index(BASELINE) if BASELINE in conditions else 0
    early = [i for i in range(*EARLY) if i < length]
    facts = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "truth": {
            "condition": truth.conditions[of_baseline],
            "leakage": float(np.nansum(truth.leakage()[of_baseline])),
            "shares": {term: float(truth.share(term, pooled=True)[of_baseline]) for term in (*TERMS, RESIDUAL)},
            "early_removal": {
                name: truth.removal(name, early) for name in conditions if BASELINE in conditions and name != BASELINE
            },
        },
    }
    if as_json:
        print_json(facts)
    elif not quiet:
        typer.echo(_text(path, facts))


def _text(path: Path, facts: dict) -> str:
    truth = facts["truth"]
    shown = {"leakage": f"{truth['leakage']:.3g} nats² over all heads, offsets and layers"}
    shown |= {f"{term} share": f"{value:.3f}" for term, value in truth["shares"].items()}
    shown |= {f"early removal by {name}": f"{value:.3f}" for name, value in truth["early_removal"].items()}
    head = f"{path}: {size_text(facts['bytes'])}; what is true of it, under {truth['condition']}:"
    return head + "\n" + lines(shown)
