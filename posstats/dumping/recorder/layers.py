"""Facts of a model's layers that only running it tells: which rotate, and how wide their values are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posstats.dumping.recorder.forward import Pass
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.recorder.statistics import AttentionInputs


@dataclass(frozen=True, slots=True)
class WatchedLayers:
    """What was seen of the layers.

    Attributes
    ----------
    rotary : ndarray of bool, shape (layer,)
        Whether the layer applies rotary embeddings.
    channels : ndarray of int64, shape (layer,)
        Channels of a head's values.
    """

    rotary: np.ndarray
    channels: np.ndarray


class _Watcher(Recorder):
    """Sees whether the queries of a layer depend on the position when nothing else does."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, length=4, offsets=(0,))
        self.rotary: list[bool] = []
        self.channels: list[int] = []

    def _attend(self, module: torch.nn.Module, inputs: AttentionInputs) -> torch.Tensor:
        near, far = inputs.query.double().chunk(2)
        change = (far - near).norm(dim=-1) / near.norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
        self.rotary.append(bool(change.max() > 1e-2))
        self.channels.append(inputs.value.shape[-1])
        return super()._attend(module, inputs)


def watch_layers(model: Any) -> WatchedLayers:
    """Run a model on a few single tokens and look at its layers.

    The same tokens stand alone at two positions: nothing but the rotary embedding can tell the two apart.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A rotary decoder.

    Returns
    -------
    WatchedLayers
        What was seen.
    """
    module = model.get_input_embeddings()
    vocabulary = module.weight.shape[0]
    # Several tokens, as one alone may be padding, whose embedding is zero.
    ids = torch.tensor([[vocabulary // 4], [vocabulary // 2], [3 * vocabulary // 4]], device=module.weight.device)
    positions = torch.tensor([[0], [37]], device=ids.device).repeat_interleave(len(ids), 0)
    watcher = _Watcher(model)
    with watcher, torch.inference_mode():
        inputs_embeds = module(ids.repeat(2, 1))
        watcher._run(Pass(inputs_embeds, len(watcher._layers)), inputs_embeds, positions)
    return WatchedLayers(np.array(watcher.rotary), np.array(watcher.channels))
