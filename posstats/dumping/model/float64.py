"""Float64 models that compute nothing in float32.

transformers computes rotary angles, normalisations and the eager softmax in float32 whatever the dtype of the model. A
model is asked for in float64 to check identities far below float32 rounding, so there those detours are closed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from posstats.dumping.recorder.structure import decoder_of


class _NoFloat32(TorchFunctionMode):
    """While active, what asks for float32 gets float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if x is torch.float32 else x for x in args)
        return func(*args, **{k: torch.float64 if x is torch.float32 else x for k, x in (kwargs or {}).items()})


def compute_in_float64(model: Any) -> None:
    """Make the decoder of a float64 model, in place, keep intermediate results in float64 throughout."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the grouped product of the others has no float64 kernel
    active: list[_NoFloat32] = []

    def enter(_module: torch.nn.Module, _args: tuple[Any, ...]) -> None:
        active.append(_NoFloat32())
        active[-1].__enter__()

    def leave(_module: torch.nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        active.pop().__exit__(None, None, None)

    decoder = decoder_of(model)
    decoder.register_forward_pre_hook(enter)
    decoder.register_forward_hook(leave, always_call=True)
