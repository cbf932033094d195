"""``make claims``: record the variants and the adapted models, then ask of each what is claimed."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from analyses.architectures import models
from analyses.architectures.report import write
from posstats.stats.inference.options import Inference
from posstats.vocabulary import DEFAULT_MODEL

STEPS = ("record", "analyse")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m analyses.architectures", description=__doc__)
    parser.add_argument("--step", action="append", choices=STEPS, help="only this; can be repeated")
    parser.add_argument("--adapters", type=Path, default=Path("data/adapters"), help="folder of adapted models")
    parser.add_argument("--dumps", type=Path, default=Path("data/architectures"), help="folder of the dumps")
    parser.add_argument("--out", type=Path, default=Path("analyses/results/claims"), help="folder of the results")
    parser.add_argument("--docs", type=Path, help="folder that gets claims-results.md and the tables beside it")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not what comes out")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default model, local folder, .gguf file or hub id")
    parser.add_argument("--models-dir", default="data/models", help="folder of converted models")
    parser.add_argument(
        "--layer",
        default="1/3",
        help="from which layer on dealt tokens' trajectories take BOS's place: its number, or a fraction of them",
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    config = models.design(given.dumps, given.models_dir, layer=given.layer, quick=given.quick)
    windows = [window for window in models.WINDOWS if window < config.sequences.length // 2]
    variants = models.variants(given.model, models.NTK_FACTORS, windows)
    adapted = models.adapted(given.model, given.adapters)
    steps = given.step or STEPS
    if "record" in steps:
        models.record([*variants, *adapted], config)
    if "analyse" in steps:
        inference = Inference(n_resamples=199, n_permutations=199) if given.quick else Inference()
        write(variants, adapted, config, inference, given.out, given.docs)
