"""Inference-time variants: rescaled rotary embeddings, narrowed windows, and what a configuration tells of both."""

import copy
import json
import sys
from collections.abc import Mapping
from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from posstats.arguments import choice, number, shown
from posstats.errors import InputError, ModelError

#: What transformers reads from `rope_parameters`, all types of RoPE together.
_ROPE_KEYS = frozenset(
    (
        "rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor",
        "long_factor", "low_freq_factor", "high_freq_factor",
    )
)  # fmt: skip


def vary_rope(
    config: Any, rope_parameters: Mapping[str, Any] | None, ntk_factor: float | None
) -> tuple[tuple[str, ...], float]:
    """Change the rotary parameters of a configuration in place, by arguments as for :func:`posstats.load_model`.

    Returns what was changed, an entry per argument given, and how many times longer than `max_position_embeddings`
    inputs may be for it. Raises InputError for a parameter that does not exist, or one that changes nothing, and
    ModelError if the parameters do not fit the model.
    """
    text = config.get_text_config()
    changes: tuple[str, ...] = ()
    stretch = 1.0
    if rope_parameters is not None:
        _check_rope_parameters(rope_parameters, text)
        before = copy.deepcopy(text.rope_parameters)
        nested = text.nested_rope_parameter_keys(text.rope_parameters)
        for key in nested or [None]:
            target = text.rope_parameters if key is None else text.rope_parameters[key]
            given = rope_parameters if key is None else rope_parameters.get(key, rope_parameters)
            target.update({k: v for k, v in given.items() if k not in nested})
        try:
            changes = (f"rope_parameters={json.dumps(dict(rope_parameters), sort_keys=True)}",)
            text.standardize_rope_params()
            text.validate_rope()
            stretch = _stretch(_farthest(before, text), _farthest(text.rope_parameters, text))
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            raise ModelError(f"rope_parameters do not fit the model: {error}") from error
        if text.rope_parameters == before:
            raise InputError("rope_parameters change nothing: the model has these already; leave them out")
    if ntk_factor is not None:
        ntk_factor = number("ntk_factor", ntk_factor)
        if ntk_factor <= 1:
            raise InputError(f"ntk_factor must be above 1, where RoPE is as it was trained, not {ntk_factor:g}")
        stretch *= ntk_factor
        changes = (*changes, f"ntk_factor={ntk_factor:g}")
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        for parameters in flat_rope_parameters(text):
            if parameters["rope_type"] != "default":
                raise ModelError(
                    f"ntk_factor rescales plain RoPE; this model uses {parameters['rope_type']!r}: use rope_parameters"
                )
            rotated = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
            if rotated <= 2:
                raise ModelError(
                    f"ntk_factor rescales theta, which does nothing where only {rotated} channels of a head are "
                    "rotated: it needs at least 4"
                )
            parameters["rope_theta"] *= ntk_factor ** (rotated / (rotated - 2))
    return changes, stretch


def _check_rope_parameters(rope_parameters: Mapping[str, Any], text: Any) -> None:
    kinds = text.nested_rope_parameter_keys(text.rope_parameters)
    several = [rope_parameters]
    if isinstance(rope_parameters, Mapping):
        several += [rope_parameters[kind] for kind in kinds if kind in rope_parameters]
    for parameters in several:
        if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
            raise InputError(f"rope_parameters must map names, such as 'factor', to values, not {shown(parameters)}")
    known = _ROPE_KEYS.union(*flat_rope_parameters(text))
    types = sorted({"default", *ROPE_INIT_FUNCTIONS})
    for parameters in several:
        choice("rope_type in rope_parameters", parameters.get("rope_type", "default"), types)
        unknown = sorted(set(parameters) - known - (set(kinds) if parameters is rope_parameters else set()))
        if unknown:
            raise InputError(
                f"rope_parameters have no {', '.join(map(repr, unknown))}; there are "
                f"{', '.join([*kinds, *sorted(known)])}"
            )


def flat_rope_parameters(text: Any) -> list[dict[str, Any]]:
    """Rotary parameters of a configuration, one dictionary per kind of layer that has its own."""
    nested = text.nested_rope_parameter_keys(text.rope_parameters)
    every = [text.rope_parameters[key] for key in nested] if nested else [text.rope_parameters]
    return [parameters for parameters in every if parameters is not None]


def _farthest(parameters: dict[str, Any], text: Any) -> dict[str, Any]:
    """Rotary parameters of the layers that see farthest: where kinds differ, the others see a window."""
    nested = text.nested_rope_parameter_keys(parameters)
    return parameters[next((key for key in nested if key == "full_attention"), nested[0])] if nested else parameters


def _stretch(before: dict[str, Any], after: dict[str, Any]) -> float:
    """How much longer inputs may be after a change, beside what the parameters tell by themselves."""
    # `max_position_embeddings` of a model that came with linear scaling counts that in.
    plain = before["rope_type"] in ("default", "linear")
    old = float(before.get("factor") or 1.0) if before["rope_type"] == "linear" else 1.0
    return max(1.0, float(after.get("factor") or 1.0) / old) if plain and after["rope_type"] != "default" else 1.0


def context_length(text: Any, stretch: float = 1.0) -> int | None:
    """Return the tokens of the longest sequence that the configuration of a text decoder allows, None without a limit.

    The largest of `max_position_embeddings`, the same times `stretch` (the factor of :func:`vary_rope`), and what
    rescaled rotary embeddings are made for: `factor` times the length they start from.
    """
    limit = getattr(text, "max_position_embeddings", None)
    if limit is None:
        return None
    made_for = limit
    if getattr(text, "rope_parameters", None):
        parameters = _farthest(text.rope_parameters, text) or {}
        factor, kind = parameters.get("factor") or 1.0, parameters.get("rope_type")
        if kind == "dynamic":
            made_for = factor * limit
        elif kind in ("yarn", "longrope", "llama3"):
            made_for = factor * (parameters.get("original_max_position_embeddings") or limit)
    return int(max(limit, limit * stretch, made_for))


def own_windows(text: Any) -> list[int | None]:
    """Return how many keys a query of each layer sees at most, as the configuration tells; None where it sees all.

    A chunk, in which queries see back to its start, counts as a window of its size.
    """
    sliding = getattr(text, "sliding_window", None) or None
    if getattr(text, "use_sliding_window", True) is False:
        sliding = None
    sizes = {"sliding_attention": sliding, "chunked_attention": getattr(text, "attention_chunk_size", None)}
    kinds = getattr(text, "layer_types", None)
    return [sizes.get(kind) for kind in kinds] if kinds else [sliding] * text.num_hidden_layers


def check_window(text: Any, window: int, length: int | None = None) -> None:
    """Refuse a sliding window that narrows nothing, in sequences of `length` tokens where that is known.

    Raises InputError if the window is not positive, the own window of every layer is as narrow, or no sequence is
    longer.
    """
    own = own_windows(text)
    shown = max((size if size is not None else length or sys.maxsize for size in own), default=0)
    widest = min(shown, length or shown)
    if window < 1:
        raise InputError(f"sliding_window must be at least 1 token, not {window}")
    if window >= widest:
        why = (
            f"sequences of {length} tokens" if widest == length else f"a model whose queries see at most {widest} keys"
        )
        raise InputError(f"sliding_window={window} narrows nothing in {why}: give 1 to {widest - 1}, or leave it out")


def check_length(length: int, limit: int | None) -> None:
    """Refuse, by InputError, sequences that are longer than the model allows."""
    if not 1 <= length <= (limit or length):
        raise InputError(
            f"a sequence of {length} tokens is asked for, the model allows 1 to {limit or 'any number'}: positions "
            "beyond were never trained and are refused; shorten the sequences, rescale RoPE (ntk_factor, or "
            "rope_parameters with a factor), or raise max_position_embeddings in the model's config.json if it was "
            "trained for them"
        )


def keys_of_late_queries(text: Any, length: int, window: int | None = None) -> int:
    """Return how many keys every query of the second half of a sequence sees in every layer, by the configuration.

    Offsets are analysed below it (docs/method.md, section 3). `window` is that of an inference-time variant.
    """
    half = length // 2
    chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
    chunk = (getattr(text, "attention_chunk_size", None) if chunked else None) or length
    in_chunk = min(query % chunk for query in range(half, length)) + 1
    return min([half + 1, in_chunk, window or length, *(size for size in own_windows(text) if size is not None)])
