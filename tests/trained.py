"""Training runs of a tiny model, for the tests of adapters and of what is done with them."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests import tiny

ROOT = Path(__file__).parents[1]


def package(name: str) -> ModuleType:
    """Import a module of the analyses, which lie beside the package and not in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        return importlib.import_module(name)


fit = package("analyses.train.fit")
SETTINGS = fit.Settings(steps=12, batch=2, length=24, rank=4, learning_rate=0.02, warmup=2, held_out=6, threads=1)


def _counting(start: int) -> str:
    return " ".join(f"w{3 + (start + k) % 90}" for k in range(60))


#: Documents that count upwards: easy to predict, and not predicted by a random model.
CORPUS = fit.Corpus(
    {f"d{k}": _counting(7 * k) for k in range(12)}, {f"h{k}": _counting(5 * k + 1) for k in range(6)}, "0" * 64
)


def save_base(folder: Path, seed: int = 0, **changes: object) -> Path:
    """A tiny Llama with its tokenizer; ``changes`` override entries of its configuration."""
    tiny.build("llama", seed=seed, **changes).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Training sets threads and determinism for the whole process; the other tests must not notice."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)


def train(base: Path, folder: Path, architecture: str, seed: int, **changes: object) -> Path:
    """Train and return the run's folder."""
    with torch_as_it_was():
        settings = replace(SETTINGS, **changes)
        fit.train(fit.Run(architecture, seed), settings, CORPUS, folder, str(base), folder, before={}, show=False)
    return folder / f"{architecture}-{seed}"
