"""Float64 models that compute nothing in float32.

transformers computes rotary angles, normalisations and the eager softmax in float32 whatever the dtype of the model. A
model is asked for in float64 to check identities far below float32 rounding, so there those detours are closed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from posstats.dumping.recorder.structure import decoder_of, layers_of


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
    _exact_experts(model)
    active: list[_NoFloat32] = []

    def enter(_module: torch.nn.Module, _args: tuple[Any, ...]) -> None:
        active.append(_NoFloat32())
        active[-1].__enter__()

    def leave(_module: torch.nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        active.pop().__exit__(None, None, None)

    decoder = decoder_of(model)
    decoder.register_forward_pre_hook(enter)
    decoder.register_forward_hook(leave, always_call=True)


@contextmanager
def in_float64(model: Any) -> Iterator[None]:
    """Let the decoder of a model compute in float64 throughout, with the weights that it has; then put all back.

    Weights of one block at a time are widened, while it computes, so that little memory is needed. Embeddings are not:
    the decoder is fed vectors.
    """
    blocks, embedding = layers_of(model), model.get_input_embeddings()
    inside = {id(tensor) for block in (*blocks, embedding) for tensor in _tensors(block)}
    outside = [tensor for tensor in _tensors(decoder_of(model)) if id(tensor) not in inside]
    kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def widen(module: torch.nn.Module, *_: Any) -> None:
        kept[id(module)] = _widened(_tensors(module))

    def narrow(module: torch.nn.Module, *_: Any) -> None:
        _restore(kept.pop(id(module), []))

    with ExitStack() as stack:
        stack.callback(_restore, _widened(outside))
        for block in blocks:
            stack.callback(narrow, block)
            stack.callback(block.register_forward_pre_hook(widen).remove)
            stack.callback(block.register_forward_hook(narrow, always_call=True).remove)
        if before := _exact_experts(model):
            stack.callback(model.set_experts_implementation, before)
        stack.enter_context(_NoFloat32())
        yield


def _exact_experts(model: Any) -> str | None:
    """Have experts computed one by one, the grouped product having no float64 kernel; return how they were."""
    if not model._can_set_experts_implementation():
        return None
    before: str = model.config._experts_implementation
    model.set_experts_implementation("eager")
    return before


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    return chain(module.parameters(), module.buffers())


def _widened(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Widen floating-point tensors in place; return them with what they held."""
    held = [(tensor, tensor.data) for tensor in tensors if tensor.is_floating_point()]
    with torch.inference_mode(False):
        for tensor, data in held:
            tensor.data = data.double()
    return held


def _restore(held: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, data in held:
        tensor.data = data
