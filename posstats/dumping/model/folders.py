"""What is wrong with the files of a model, and its weights, said before or instead of what a library makes of it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from posstats.errors import ModelError

#: Files of which a tokenizer has at least one.
_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")


def check_config_file(folder: Path) -> None:
    """Raise a ModelError that names the file where a folder's configuration is missing or damaged."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"the folder {folder} holds no model: there is no config.json in it")
    _json(path)


def check_files(folder: Path) -> None:
    """Raise a ModelError that names what a folder lacks of weights and tokenizer, or weights that are not whole.

    No weight is read.
    """
    weights = sorted(folder.glob("*.safetensors"))
    for index in folder.glob("*.safetensors.index.json"):
        named = {folder / name for name in _json(index).get("weight_map", {}).values()}
        missing = sorted(path.name for path in named - set(weights))
        if missing:
            raise ModelError(f"weights are missing from {folder}: {index.name} names {', '.join(missing)}")
    if not weights:
        raise ModelError(f"the folder {folder} holds no weights as safetensors; other formats are not read")
    for path in weights:
        _check_safetensors(path)
    if not any(True for pattern in _TOKENIZERS for _ in folder.glob(pattern)):
        raise ModelError(
            f"the folder {folder} holds no tokenizer: save one in it, or load the model with transformers and give "
            "posstats.dump your own token ids as posstats.Sequences"
        )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged or no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: it is no JSON object")
    return found


def _check_safetensors(path: Path) -> None:
    """Open a file of weights, which compares its size with its header; no tensor is read."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ModelError(
            f"{path} is damaged or truncated, of its {path.stat().st_size} bytes safetensors says: {reason}; fetch it "
            "again"
        ) from error


def check_finite(model: Any, name: str) -> None:
    """Raise a ModelError that names the first tensor with weights that are not numbers."""
    for tensor_name, tensor in model.named_parameters():
        # Extremes are not finite where a value is not: no copy of the tensor is made.
        if tensor.numel() and not torch.stack(torch.aminmax(tensor.detach())).isfinite().all():
            reason = "the checkpoint is damaged"
            if tensor.dtype == torch.float16:
                reason = (
                    "float16 ends at 65504, try bfloat16 or float32; if that does not help, the checkpoint is damaged"
                )
            raise ModelError(f"weights of {name} hold values that are not finite, first in {tensor_name}: {reason}")


def check_no_alibi(config: Any, name: str) -> None:
    """Raise a ModelError for a configuration that asks for ALiBi in place of rotary embeddings."""
    if getattr(config.get_text_config(), "alibi", False):
        raise ModelError(
            f"{name!r} ({config.model_type}) has ALiBi position biases, not rotary position embeddings (RoPE); "
            "posstats records rotary decoders only"
        )
