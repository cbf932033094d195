"""Low-rank adapters: a model that was trained on, under an architecture of its own.

An adapter is a folder: `adapter_config.json` and `adapter_model.safetensors`, as peft reads them, and `posstats.json`,
which says what model it continues, under which architecture, and for how many steps.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posstats.arguments import expanded
from posstats.dumping.model.checkpoints import weights_digest
from posstats.errors import ModelError

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
RECORD = "posstats.json"


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is known about an adapter."""

    #: Where it lies.
    folder: Path
    #: Name of the architecture it was trained under: "standard", "ntk", "window".
    architecture: str
    #: That architecture, as :func:`posstats.load_model` spells it.
    ntk_factor: float | None
    sliding_window: int | None
    #: Training run, and optimiser steps of it.
    seed: int
    steps: int
    #: Digest of the float32 weights it continues.
    base_weights_sha256: str
    #: Digest of its own numbers.
    adapter_sha256: str


def read_adapter(folder: str | Path) -> Adapter:
    """Read what is known about an adapter from its folder, without its numbers.

    Raises ModelError if a file is missing, holds no safetensors, or its record is not one.
    """
    folder = expanded(folder)
    missing = [name for name in (RECORD, CONFIG, TENSORS) if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} is no adapter, it has no {missing[0]}: an adapter is a folder with "
            f"{CONFIG}, {TENSORS} and {RECORD}"
        )
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        variant = dict(record["variant"])
        adapter = Adapter(
            folder,
            str(record["architecture"]),
            variant.pop("ntk_factor", None),
            variant.pop("sliding_window", None),
            int(record["seed"]),
            int(record["steps"]),
            str(record["base_weights_sha256"]),
            str(record["adapter_sha256"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / RECORD} does not describe an adapter: {error!r}") from error
    if variant:
        raise ModelError(f"{folder / RECORD}: {', '.join(variant)} is no architecture that posstats can set")
    return adapter


def base_digest(model: Any) -> str:
    """Return the digest of a model's weights in float32, whatever format it was loaded in, before any merge."""
    return weights_digest(
        {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()}
    )


def merge_adapter(model: Any, adapter: Adapter) -> Any:
    """Add an adapter to the weights of the model it continues, which has the adapter's architecture already; return it.

    W + alpha / rank * B A stands in place of every adapted W: nothing of the model tells that there was an adapter.
    Raises ModelError if it continues other weights, its numbers are not those that were trained, or it does not fit.
    """
    from peft import PeftModel
    from safetensors.torch import load_file

    found = base_digest(model)
    if found != adapter.base_weights_sha256:
        raise ModelError(
            f"{adapter.folder} continues weights with the digest {adapter.base_weights_sha256[:12]}..., not "
            f"{found[:12]}...: load it on the model it was trained on, in float32 or float64"
        )
    try:
        numbers = load_file(adapter.folder / TENSORS)
        if weights_digest(numbers) != adapter.adapter_sha256:
            raise ModelError(f"{adapter.folder / TENSORS} does not hold the numbers that its record is about")
        with peft_wraps():
            merged = PeftModel.from_pretrained(model, str(adapter.folder)).merge_and_unload(safe_merge=True)
    except ModelError:
        raise
    except Exception as error:  # what a file can do wrong ends in errors of many libraries
        raise ModelError(f"{adapter.folder} does not fit the model: {error}") from error
    return merged.requires_grad_(False).eval()


@contextmanager
def peft_wraps() -> Iterator[None]:
    """While peft wraps a model: it looks up a property under the name that transformers has given up."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
