"""``make train``: the runs one after the other, seed by seed; finished ones are skipped."""

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.train.corpus import read_corpus
from analyses.train.fit import ARCHITECTURES, Run, Settings, train
from posstats.dumping.model.adapters import RECORD
from posstats.errors import InputError
from posstats.vocabulary import DEFAULT_MODEL

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m analyses.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("analyses/results/adapters"), help="folder of the adapters")
    parser.add_argument("--against", type=Path, help="folder of adapters that the new ones are compared with")
    parser.add_argument("--seeds", type=int, default=3, help="runs per architecture")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--architecture", action="append", choices=tuple(ARCHITECTURES), help="only this; repeatable")
    parser.add_argument("--steps", type=int, default=Settings().steps)
    parser.add_argument("--learning-rate", type=float, default=Settings().learning_rate)
    parser.add_argument("--threads", type=int, default=Settings().threads)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default model, local folder, .gguf file or hub id")
    parser.add_argument("--models-dir", type=Path, default=Path("data/models"), help="folder of converted models")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    settings = replace(Settings(), steps=given.steps, learning_rate=given.learning_rate, threads=given.threads)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    runs = [Run(name, seed) for seed in seeds for name in given.architecture or ARCHITECTURES]
    missing = [run for run in runs if not finished(run, settings, given.out)]
    if missing:
        corpus = read_corpus()
        logger.info("text: %s", corpus.facts())
    before: dict[str, float] = {}
    for run in missing:
        logger.info("%s begins", run.name)
        train(run, settings, corpus, given.out, given.model, given.models_dir, before=before)
        logger.info("%s is finished", run.name)
    table = tabulate(given.out)
    table.to_csv(given.out / "runs.csv", index=False, lineterminator="\n")
    print(table.to_string(index=False))
    if given.against is not None:
        for line in differences(runs, given.out, given.against):
            print(line)


def finished(run: Run, settings: Settings, folder: Path) -> bool:
    """Whether a run is there.

    Raises
    ------
    InputError
        If it was made with other settings.
    """
    if not (folder / run.name / RECORD).is_file():
        return False
    was, wanted = read_record(folder / run.name)["settings"], json.loads(json.dumps(asdict(settings)))
    if was != wanted:
        changed = ", ".join(
            f"{name} {was.get(name)} -> {wanted[name]}" for name in wanted if was.get(name) != wanted[name]
        )
        raise InputError(f"{folder / run.name} was trained with other settings ({changed}); give another --out")
    return True


def read_record(folder: Path) -> dict[str, Any]:
    """What is known about a training run."""
    return json.loads((folder / RECORD).read_text(encoding="utf-8"))


def tabulate(folder: Path) -> pd.DataFrame:
    """One row per finished run: architecture, seed, held-out loss before and after in nats per token, digest."""
    records = [read_record(file.parent) for file in sorted(folder.glob(f"*/{RECORD}"))]
    order = list(ARCHITECTURES)
    records.sort(key=lambda record: (order.index(record["architecture"]), record["seed"]))
    return pd.DataFrame(
        {
            "architecture": record["architecture"],
            "seed": record["seed"],
            "steps": record["steps"],
            "held_out_loss_before": round(record["held_out_loss"]["before"], 4),
            "held_out_loss_after": round(record["held_out_loss"]["after"], 4),
            "adapter_sha256": record["adapter_sha256"],
        }
        for record in records
    )


def differences(runs: Sequence[Run], folder: Path, other: Path) -> Iterator[str]:
    """One line per run: the same numbers as the other folder's, or how far the losses are apart."""
    for run in runs:
        if not (other / run.name / RECORD).is_file():
            yield f"{run.name}: not in {other}"
            continue
        mine, theirs = read_record(folder / run.name), read_record(other / run.name)
        if mine["adapter_sha256"] == theirs["adapter_sha256"]:
            yield f"{run.name}: the same numbers as in {other}"
        else:
            gap = mine["held_out_loss"]["after"] - theirs["held_out_loss"]["after"]
            yield f"{run.name}: other numbers than in {other}; held-out loss {gap:+.4f} nats per token"
