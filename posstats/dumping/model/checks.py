"""What is handed over as a model: refused where it is none, or none that can be recorded."""

from typing import Any

import torch
from transformers import PreTrainedModel

from posstats.arguments import shown
from posstats.dumping.recorder.structure import check_model
from posstats.errors import InputError, ModelError

#: Attribute under which a wrapper, such as DataParallel, a compiled model or a pipeline, holds a model.
_INNER = ("module", "_orig_mod", "model", "base_model")


def check_recordable(model: Any) -> None:
    """Refuse what cannot be recorded.

    Raises InputError if it is no model, or a wrapper around one (the message says what to give in its place), and
    ModelError if it has no weights, packed ones, no rotary embedding, no single stack of blocks, or another attention
    interface.
    """
    kind = type(model)  # not what it says it is: a compiled model passes for the class that it wraps
    name = kind.__name__
    adapted = kind.__module__.startswith("peft.") and any(isinstance(m, PreTrainedModel) for m in model.modules())
    if not (adapted or issubclass(kind, PreTrainedModel)):
        allowed = "model must be a model of transformers, as posstats.load_model returns beside its tokenizer"
        for inner in _INNER:
            if isinstance(getattr(model, inner, None), PreTrainedModel):
                raise InputError(f"{allowed}; this {name} wraps one: give its attribute {inner}")
        if isinstance(model, tuple) and model and isinstance(model[0], PreTrainedModel):
            raise InputError(f"{allowed}, not both at once: model, tokenizer = posstats.load_model(...)")
        raise InputError(f"{allowed}, not {shown(model)}")
    weights = model.state_dict().values()
    if any(not isinstance(weight, torch.Tensor) for weight in weights):
        raise ModelError(f"{name} holds packed weights, which cannot be recorded: give the model as it was before")
    if any(weight.is_meta for weight in weights):
        raise ModelError(f"{name} has no weights, only their shapes: load it on a device, such as cpu")
    try:
        check_model(model)
    except AttributeError as error:  # the many classes that are no decoder lack this or that
        raise ModelError(f"{name} is no decoder that can be recorded: {error}") from error
