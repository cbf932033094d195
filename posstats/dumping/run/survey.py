"""What a model is, and what recording it takes, as its configuration tells it: no weight is read."""

import time
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from posstats.arguments import choice, expanded
from posstats.dumping.inputs.tokens import choice_of_bos, ordinary_beside
from posstats.dumping.model.checkpoints import PACKAGED
from posstats.dumping.model.load import configuration, locate, pretrained
from posstats.dumping.model.variants import check_length, check_window, context_length, own_windows, vary_rope
from posstats.dumping.recorder.structure import check_config, check_model, decoder_of
from posstats.dumping.run.memory import sequence_memory
from posstats.dumping.run.pieces import Manifest
from posstats.errors import ModelError
from posstats.vocabulary import DEFAULT_LENGTH, DEFAULT_MODEL, DEFAULT_OFFSETS, DTYPES, analysed_half

_CHUNKED = "chunked_attention"


@dataclass(frozen=True, slots=True)
class Survey:
    """A model that can be recorded, as far as its configuration tells."""

    #: As given; transformers' type of model; its class.
    name: str
    family: str
    architecture: str
    #: Its size.
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    #: Numbers in its weights, and bytes in the number format asked for.
    parameters: int
    weight_bytes: int
    #: Longest sequence it allows, 0 where it sets no limit.
    max_length: int
    #: Parameters of its rotary embeddings, one per kind of layer that has its own.
    rope: list[dict[str, Any]]
    #: Kind of layer -> how many; empty where all are alike.
    layer_types: dict[str, int]
    #: Layers that apply no rotary embedding, as far as the configuration tells. A recording tries them out instead
    #: (``layer_rotary``).
    without_rope: list[int]
    #: Keys that a query of its sliding-window layers sees, and tokens in a chunk, beyond which no query of its chunked
    #: layers sees; 0 where it has none. A recording reads the model's own masks instead (``layer_window``).
    window: int
    chunk: int
    #: What is changed at inference time.
    variant: tuple[str, ...]
    #: The tokenizer's BOS token; empty where it has none.
    bos_token: str
    #: What to do then.
    bos_note: str
    #: Tokens of the sequence that the following are about.
    length: int
    #: What is recorded of it under one condition, before compression.
    record_bytes: int
    #: Memory for it, beside the weights.
    memory_bytes: int
    #: Floating-point operations of its forward pass, 0 where they cannot be counted.
    operations: int
    #: Time that these take where matrices are multiplied as fast as this machine just did it: a lower bound.
    seconds: float


def survey_model(
    name: str | Path = DEFAULT_MODEL,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    length: int | None = None,
    ntk_factor: float | None = None,
    sliding_window: int | None = None,
) -> Survey:
    """Read a model's configuration and say whether, and at what cost, it can be recorded.

    Parameters
    ----------
    name : str or Path
        As for :func:`posstats.load_model`. Of a hub id, only its configuration and its tokenizer are fetched.
    revision : str, optional
        Branch, tag or commit of a hub repository.
    dtype : {"float32", "float64", "bfloat16", "float16"}
        Number format of weights and activations.
    length : int, optional
        Tokens per sequence; by default 192, or as many as the model allows where that is fewer.
    ntk_factor, sliding_window
        As for :func:`posstats.load_model`: limits are those of the variant.

    Returns
    -------
    Survey
        The model, which can be recorded.

    Raises
    ------
    InputError
        For an option that does not exist or changes nothing, a sequence longer than the model allows, or a tokenizer
        without vocabulary.
    ModelError
        If the model cannot be recorded, or its configuration or tokenizer cannot be read; the message says why.
    """
    choice("dtype", dtype, DTYPES)
    source, where = _located(str(name), revision)
    config = _configuration(str(name), source, where)
    changes, stretch = vary_rope(config, None, ntk_factor)
    text = config.get_text_config()
    limit = context_length(text, stretch)
    if length is None:
        length = min(DEFAULT_LENGTH, (limit or DEFAULT_LENGTH) // 4 * 4)
    analysed = analysed_half(length)
    if sliding_window is not None:
        check_window(text, sliding_window, length)
        changes = (*changes, f"sliding_window={sliding_window}")
    check_length(length, limit)
    model = _without_weights(config, str(name), getattr(torch, dtype))
    check_model(model)
    parameters = sum(one.numel() for one in model.parameters())
    itemsize = getattr(torch, dtype).itemsize
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    sizes = {
        "condition": 1,
        "sequence": 1,
        "layer": text.num_hidden_layers,
        "head": heads,
        "token": length,
        "query": analysed,
        "key": analysed,
        "offset": len(DEFAULT_OFFSETS),
        "lag": analysed,
        "depth": text.num_hidden_layers + 1,
        "hidden": text.hidden_size,
        "channel": getattr(text, "v_head_dim", None) or head_dim,
    }
    kept = "float64" if dtype == "float64" else "float32"
    record_bytes = Manifest({}, sizes, kept, unit=1, batch=1).sequence_bytes
    operations = _operations(model, length)
    nested = text.nested_rope_parameter_keys(text.rope_parameters)
    windows = own_windows(text)
    kinds = getattr(text, "layer_types", None) or [""] * text.num_hidden_layers
    types = Counter(kinds)
    bos_token, bos_note = _bos(str(name), source, where)
    return Survey(
        name=str(name),
        family=config.model_type,
        architecture=type(model).__name__,
        layers=text.num_hidden_layers,
        heads=heads,
        key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        parameters=parameters,
        weight_bytes=parameters * itemsize,
        max_length=limit or 0,
        rope=[
            {"layers": key or "all"} | dict(text.rope_parameters[key] if key else text.rope_parameters)
            for key in nested or [""]
        ],
        layer_types=dict(types) if len(types) > 1 else {},
        without_rope=[layer for layer, rotates in enumerate(_rotating(text)) if not rotates],
        window=max((size for size, kind in zip(windows, kinds, strict=True) if size and kind != _CHUNKED), default=0),
        chunk=max((size for size, kind in zip(windows, kinds, strict=True) if size and kind == _CHUNKED), default=0),
        variant=changes,
        bos_token=bos_token,
        bos_note=bos_note,
        length=length,
        record_bytes=record_bytes,
        memory_bytes=sequence_memory(config, length, record_bytes, itemsize),
        operations=operations,
        seconds=operations / _speed(length, text.hidden_size, getattr(torch, dtype)) if operations else 0.0,
    )


def _located(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """Folder or repository to read from, and how; a .gguf file is not converted for it."""
    packaged = PACKAGED.get(name)
    if packaged is not None and packaged.file:  # in parts, which are put together once
        return locate(name, revision, Path("data/models"))
    if packaged is None and not name.endswith(".gguf"):
        return locate(name, revision, Path())
    path = expanded(name) if packaged is None else packaged.files()[0]
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    return str(path.parent), {"gguf_file": path.name, "local_files_only": True}


def _configuration(name: str, source: str, where: dict[str, Any]) -> Any:
    """Configuration of a model that can be a rotary decoder."""
    if "gguf_file" not in where:
        return configuration(name, source, where)
    config = pretrained(transformers.AutoConfig, name, source, where)
    check_config(config, name)
    return config


def _bos(name: str, source: str, where: dict[str, Any]) -> tuple[str, str]:
    """The BOS token of a model's tokenizer, or what to do where it has none."""
    tokenizer = pretrained(transformers.AutoTokenizer, name, source, where)
    ordinary_beside(tokenizer, None)
    if tokenizer.bos_token is None:
        return "", f"this tokenizer has no BOS token: {choice_of_bos(tokenizer)}"
    return tokenizer.bos_token, ""


def _without_weights(config: Any, name: str, dtype: torch.dtype) -> Any:
    """The model with shapes only."""
    try:
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False).eval()
    except Exception as error:  # a configuration can contradict itself in any way
        raise ModelError(f"transformers cannot build {name} from its configuration: {error}") from error


def _rotating(text: Any) -> list[bool]:
    """Of each layer whether it rotates, as far as the configuration tells."""
    marks = getattr(text, "no_rope_layers", None) or [1] * text.num_hidden_layers  # 0 marks a layer without
    return [bool(mark) for mark in marks]


def _operations(model: Any, length: int) -> int:
    """Floating-point operations of one sequence through the blocks."""
    # The mask is there already: what makes one looks at values, and shapes have none.
    width = model.get_input_embeddings().weight.shape[1]
    embeddings = torch.empty((1, length, width), dtype=model.dtype, device="meta")
    mask = torch.empty((1, 1, length, length), dtype=model.dtype, device="meta")
    try:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            decoder_of(model)(
                inputs_embeds=embeddings,
                attention_mask=mask,
                position_ids=torch.arange(length, device="meta")[None],
                use_cache=False,
            )
    except (RuntimeError, NotImplementedError, ValueError):
        return 0  # where the way through a model depends on its numbers (experts), shapes alone do not lead through it
    return counter.get_total_flops()


def _speed(length: int, hidden: int, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product of a model's size, on the device it would be put on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = ((max(length, 64), hidden), (hidden, 4 * hidden))
    left, right = (torch.ones(shape, dtype=dtype, device=device) for shape in shapes)
    durations = []
    for _ in range(3):  # the first one warms up
        start = time.perf_counter()
        (left @ right)[0, 0].item()
        durations.append(time.perf_counter() - start)
    return 2 * prod(shapes[0]) * shapes[1][1] / min(durations)
