"""What a model computes besides its weights: its configuration, and what was put into it."""

import hashlib
import json
import uuid
from typing import Any

#: Entries of a configuration on which no number depends: names, versions, formats, what is returned.
_IMMATERIAL = frozenset(
    ("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "architectures", "dtype", "torch_dtype",
     "_attn_implementation", "_attn_implementation_internal", "attn_implementation", "use_cache", "output_attentions",
     "output_hidden_states", "return_dict", "chunk_size_feed_forward", "problem_type", "id2label", "label2id",
     "task_specific_params")
)  # fmt: skip


def plain_config(config: Any) -> dict[str, Any]:
    """Return what of a configuration, its parts included, decides what the same weights compute, as plain JSON."""
    return json.loads(json.dumps(_material(config.to_dict()), sort_keys=True, default=str))


def _material(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _material(one) for key, one in value.items() if key not in _IMMATERIAL}
    return [_material(one) for one in value] if isinstance(value, list | tuple) else value


def config_digest(config: Any) -> str:
    """SHA-256 of :func:`plain_config`."""
    return hashlib.sha256(json.dumps(plain_config(config), sort_keys=True).encode()).hexdigest()


def interventions(model: Any) -> str:
    """Return what weights and configuration do not tell of a model: hooks, exchanged functions, adapters on or off.

    Empty for a plain model. What a hook does cannot be told from outside, so where there are hooks each call returns
    another text: no two dumps of such a model count as the same. transformers' own hooks, which capture outputs, and
    ours, which compute in float64, do not count: they go with the configuration and the number format.
    """
    hooked, adapters = [], set()
    for name, module in model.named_modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        exchanged = "forward" in vars(module) and not hasattr(module, "_hf_hook")  # accelerate's moves tensors only
        if exchanged or any(not _harmless(hook) for hook in hooks):
            hooked.append(name or type(module).__name__)
        off = getattr(module, "disable_adapters", None)
        if isinstance(off, bool):  # a layer of peft; of a model it is a method
            state = "off" if off else "on"
            adapters.add(f"{', '.join(map(str, module.active_adapters))} {state}")
    found = [f"adapters {'; '.join(sorted(adapters))}"] if adapters else []
    if hooked:
        found.append(f"hooks or other functions on {', '.join(hooked)} ({uuid.uuid4().hex})")
    return "; ".join(found)


def _harmless(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(("transformers.", "posstats."))
