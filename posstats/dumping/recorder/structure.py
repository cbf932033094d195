"""What kind of model this is, read from the model itself: its blocks, its rotary embeddings, its window, its limits."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import and_masks, eager_mask, sdpa_mask, sliding_window_overlay
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from posstats.errors import InputError, ModelError

_WINDOW_PREFIX = "posstats_window_"
#: Attention functions of transformers, all of plain softmax attention, which the recorder computes in their place.
_PLAIN = ("eager", "sdpa", "flex_attention", "flash_attention_", "paged|", "kernels-community/", _WINDOW_PREFIX)


def decoder_of(model: Any) -> Any:
    """The model without its logits head: the part that holds the decoder blocks.

    Raises
    ------
    ModelError
        If there is no such part, or more than one.
    """
    parts = [m for m in model.modules() if isinstance(m, PreTrainedModel) and len(_stacks(m, model)) == 1]
    decoder = model.get_decoder()  # the text decoder among several stacks, but a guess where names are unusual
    if any(decoder is part for part in parts):
        return decoder
    if len(parts) != 1:
        raise ModelError(
            f"{type(model).__name__} has {len(parts)} stacks of {text_config(model).num_hidden_layers} blocks, not one"
        )
    return parts[0]


def layers_of(model: Any) -> torch.nn.ModuleList:
    """The decoder blocks in order.

    Raises
    ------
    ModelError
        If the model has no single stack with as many blocks as its configuration says it has layers.
    """
    layers = _stacks(decoder_of(model), model)[0]
    if len(set(map(id, layers))) < len(layers):
        raise ModelError(
            f"{type(model).__name__} uses one block in several places; each layer must be a block of its own"
        )
    return layers


def check_attention(model: Any) -> None:
    """Refuse a model whose attention is computed by a function of the user's own.

    The recorder computes attention in place of the model's function. What another function than those of transformers
    does, a temperature or an ablation, it cannot know.

    Raises
    ------
    ModelError
        If it is.
    """
    name = model.config._attn_implementation or "eager"
    changed = name == "sdpa" and ALL_ATTENTION_FUNCTIONS["sdpa"] is not sdpa_attention_forward
    if changed or not name.startswith(_PLAIN):
        raise ModelError(
            f"{type(model).__name__} computes its attention by {name!r}, which is not transformers' own: what that "
            "does cannot be recorded; use model.set_attn_implementation('sdpa')"
        )


def _stacks(part: torch.nn.Module, model: Any) -> list[torch.nn.ModuleList]:
    count = text_config(model).num_hidden_layers
    return [m for m in part.children() if isinstance(m, torch.nn.ModuleList) and len(m) == count]


def text_config(model: Any) -> Any:
    """The configuration of the text decoder."""
    return model.config.get_text_config()


def check_config(config: Any, name: str) -> None:
    """Refuse what cannot be a rotary decoder before any weight is read.

    Raises
    ------
    ModelError
        For encoder-decoders, encoders, models without a causal language-model class, and models without RoPE.
    """
    text = config.get_text_config()
    kind = f"{name!r} ({config.model_type})"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} is an encoder-decoder; posstats records decoder-only models")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{kind} has no causal language model in transformers; posstats records decoder-only models")
    if not getattr(text, "rope_parameters", None):
        if getattr(text, "is_decoder", True) is False:
            raise ModelError(f"{kind} is an encoder; posstats records decoder-only models")
        raise ModelError(f"{kind} has no rotary position embeddings (RoPE); posstats records rotary decoders only")


def check_model(model: Any) -> None:
    """Refuse a loaded model that cannot be recorded exactly.

    Raises
    ------
    ModelError
        If it has no rotary embedding, no single stack of blocks, or does not route its attention through transformers'
        attention interface.
    """
    name = type(model).__name__
    if not rotary_modules(model):
        raise ModelError(f"{name} has no rotary position embeddings (RoPE); posstats records rotary decoders only")
    if not model._can_set_attn_implementation():
        raise ModelError(f"{name} does not compute its attention through transformers' attention interface")
    layers_of(model)


def rotary_modules(model: Any) -> list[torch.nn.Module]:
    """Modules of the decoder that hold rotary inverse frequencies."""
    return [m for m in decoder_of(model).modules() if any(True for _ in _frequency_buffers(m))]


def _frequency_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
            yield name.removesuffix("inv_freq").rstrip("_"), buffer


def reset_dynamic_rope(model: Any) -> None:
    """Forget which lengths a dynamically rescaled rotary embedding has seen.

    Such an embedding keeps the frequencies of the longest sequence so far; a recording must not depend on what ran
    before it.
    """
    for module in rotary_modules(model):
        for name, _ in list(_frequency_buffers(module)):
            prefix = f"{name}_" if name else ""
            original = getattr(module, f"{prefix}original_inv_freq", None)
            if original is None:
                continue
            module.register_buffer(f"{prefix}inv_freq", original.clone(), persistent=False)
            for attribute in (f"{prefix}max_seq_len_cached", "max_seq_len_cached"):
                if hasattr(module, attribute):
                    setattr(module, attribute, module.original_max_seq_len)


def inverse_frequencies(model: Any, length: int | None = None) -> dict[str, np.ndarray]:
    """Inverse frequencies that the rotary embedding really uses, per layer type.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model.
    length : int, optional
        Sequence length, which matters for rotary embeddings that rescale themselves with it (dynamic, longrope).

    Returns
    -------
    dict of str to np.ndarray
        Layer type ("" where all layers share one) -> float64, (frequency,), radians per token.
    """
    found = {}
    reset_dynamic_rope(model)
    for module in rotary_modules(model):
        for layer_type, buffer in list(_frequency_buffers(module)):
            if length is not None:
                positions = torch.arange(length, device=buffer.device)[None]
                extra = {"layer_type": layer_type} if layer_type else {}
                with torch.inference_mode():
                    module(torch.zeros(1, device=buffer.device), positions, **extra)
                buffer = dict(_frequency_buffers(module))[layer_type]
            found[layer_type] = buffer.double().cpu().numpy().copy()
    return found


def narrow_window(model: Any, window: int) -> None:
    """Give every layer a sliding window, whatever the model's own mask is.

    Each query then sees at most ``window`` keys, itself included, of those that the model's own mask shows it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place: its attention implementation becomes one that narrows every mask.
    window : int
        Number of visible keys.

    Raises
    ------
    InputError
        If the window is not positive.
    """
    if window < 1:
        raise InputError(f"sliding_window must be at least 1 token, not {window}")
    eager = model.config._attn_implementation != "sdpa"
    name = f"{_WINDOW_PREFIX}{window}_{'eager' if eager else 'sdpa'}"
    dense: Callable[..., Any] = eager_mask if eager else sdpa_mask

    def narrowed(*args: Any, mask_function: Callable[..., torch.Tensor], **kwargs: Any) -> Any:
        rule = and_masks(mask_function, sliding_window_overlay(window))
        return dense(*args, **{**kwargs, "mask_function": rule, "allow_is_causal_skip": False})

    AttentionMaskInterface.register(name, narrowed)
    AttentionInterface.register(name, _own_eager if eager else sdpa_attention_forward)
    model.set_attn_implementation(name)


def _own_eager(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **kwargs)


def attention_window(model: Any) -> int | None:
    """The window given by :func:`narrow_window`, None for a model as it was trained."""
    name = model.config._attn_implementation or ""
    return int(name.removeprefix(_WINDOW_PREFIX).split("_")[0]) if name.startswith(_WINDOW_PREFIX) else None
