"""Is position 0 a closed system in a model's own attention? (docs/method.md, section 7)

A dump measures the same while it records (`trajectory_departure`), through the recorder's attention and masks. This
measure takes the model as it is, so it also answers for models whose masks the recorder refuses.
"""

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from posstats.dumping.recorder.forward import departure
from posstats.dumping.recorder.structure import decoder_of, layers_of, reset_dynamic_rope


def closedness(model: Any, inputs_embeds: torch.Tensor, position_ids: torch.Tensor | None = None) -> np.ndarray:
    """Departure of the trajectory of position 0 from that of the same input run alone.

    ``||full - alone|| / ||alone||``, `full` the residual stream at position 0 inside a sequence and `alone` that of the
    same input in a sequence of length 1. In a closed system it is 0 to rounding.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder, which computes its attention as it always does.
    inputs_embeds : torch.Tensor
        (batch, token, hidden): embeddings in the units of the embedding module's own output.
    position_ids : torch.Tensor, optional
        (batch, token) or (1, token): consecutive integers; from 0 by default.

    Returns
    -------
    ndarray, shape (batch, depth)
        After each block; depth 0 is what enters the first.

    Raises
    ------
    ModelError
        If the model has no single stack of blocks.
    """
    if position_ids is None:
        position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
    full = _trajectory(model, inputs_embeds, position_ids)
    alone = _trajectory(model, inputs_embeds[:, :1], position_ids[:, :1])
    return departure(full, alone).cpu().numpy()


def _trajectory(model: Any, inputs_embeds: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """Residual stream at position 0, (batch, depth, hidden), in float32 at least."""
    found: list[torch.Tensor] = []

    def keep(stream: torch.Tensor) -> None:
        found.append(stream[:, 0].to(torch.promote_types(stream.dtype, torch.float32)))

    def enters(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    def leaves(_module: torch.nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    layers = layers_of(model)
    with ExitStack() as stack, torch.inference_mode():
        stack.callback(layers[0].register_forward_pre_hook(enters, with_kwargs=True).remove)
        for layer in layers:
            stack.callback(layer.register_forward_hook(leaves).remove)
        stack.callback(model.train, model.training)
        model.eval()
        reset_dynamic_rope(model)
        decoder_of(model)(inputs_embeds=inputs_embeds, position_ids=position_ids, use_cache=False)
    return torch.stack(found, 1)
