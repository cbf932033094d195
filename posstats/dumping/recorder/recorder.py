"""The recorder: everything the method needs of each attention layer, from one ordinary forward pass.

transformers lets a model's attention be computed by a registered function, which receives the rotated queries and keys,
the values, the scaling and the mask of every layer. The recorder registers such a function, so no architecture is
patched and no query-by-key matrix is kept.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from posstats.dataset.conditions import check_positions
from posstats.dumping.recorder.forward import ForwardRecord, Pass, Substitute
from posstats.dumping.recorder.gathered import Wanted
from posstats.dumping.recorder.masks import compact_mask, visible_start
from posstats.dumping.recorder.statistics import AttentionInputs, layer_statistics, single_output
from posstats.dumping.recorder.structure import (
    attention_window,
    check_attention,
    decoder_of,
    layers_of,
    reset_dynamic_rope,
)
from posstats.errors import InputError, ModelError

_NAME = "posstats"
#: Keywords with which models call their attention and that say nothing beyond the mask for whole, unpadded sequences.
_IGNORED = frozenset(
    ("dropout", "sliding_window", "is_causal", "position_ids", "cache_position", "use_cache", "return_dict",
     "output_attentions", "output_hidden_states", "output_router_logits", "num_items_in_batch", "logits_to_keep",
     "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic")
)  # fmt: skip


class Recorder:
    """Records the attention and the residual stream of a model's forward passes.

    A context manager: inside it the model computes its attention through the recorder, on leaving, also after an
    error, the model has its own attention implementation back.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A rotary decoder (see :func:`posstats.load_model`).
    length : int
        Number of tokens of every sequence that will be recorded, a multiple of 4.
    offsets : sequence of int
        Distances from query to key at which logits are recorded, 0 .. length/2 - 1.
    probes : sequence of int
        Positions at which the whole residual stream is kept.

    Raises
    ------
    InputError
        For a length that is not a multiple of 4, and offsets or probes that do not exist.
    ModelError
        If the model cannot be recorded exactly: the message names the reason.
    """

    def __init__(self, model: Any, *, length: int, offsets: Sequence[int], probes: Sequence[int] = ()) -> None:
        for name, positions in (("offset", offsets), ("probe", probes)):
            check_positions(name, positions, length)
        if not offsets:
            raise InputError("at least one offset must be recorded")
        self._wanted = Wanted(length, tuple(offsets))
        self.model, self.length, self.probes = model, length, tuple(probes)
        self._decoder = decoder_of(model)
        self._layers = layers_of(model)
        self._window = attention_window(model)
        self._first: dict[int, torch.Tensor] = {}
        self._learned_sink: dict[int, torch.Tensor | None] = {}
        self._heads: int | None = None
        self._pass: Pass | None = None
        self._restore: ExitStack | None = None

    def __enter__(self) -> "Recorder":
        own = self.model.config._attn_implementation
        if own == _NAME:
            raise ModelError("this model is being recorded already: record it in one place and thread at a time")
        check_attention(self.model)
        AttentionInterface.register(_NAME, _attention)
        AttentionMaskInterface.register(_NAME, _mask)
        with ExitStack() as stack:
            stack.callback(self.model.set_attn_implementation, own)
            stack.callback(self.model.train, self.model.training)
            self.model.set_attn_implementation(_NAME)
            self.model.eval()
            for depth, layer in enumerate(self._layers):
                stack.callback(layer.register_forward_pre_hook(self._enters(depth), with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(self._leaves(depth + 1)).remove)
            self._restore = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._restore is not None:
            self._restore.close()
            self._restore = None

    @property
    def visible_keys(self) -> np.ndarray:
        """How many keys the model's own masks show to every token: int32, (layer, token)."""
        self._observe()
        query = torch.arange(self.length)
        first = torch.stack([self._first[layer].cpu() for layer in range(len(self._layers))])
        return (query - first + 1).numpy().astype(np.int32)

    @property
    def learned_sink(self) -> np.ndarray:
        """Learned sink logits: float64, (layer, head), -inf where the model has none."""
        self._observe()
        found = np.full((len(self._layers), self._heads or 0), -np.inf)
        for layer, sink in self._learned_sink.items():
            if sink is not None:
                found[layer] = sink.detach().double().cpu().numpy()
        return found

    def record(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        *,
        anchor: int | None = None,
        substitute: Substitute | None = None,
    ) -> ForwardRecord:
        """Run the model once, without its logits head, and record it.

        What stands at position 0 is run alone as well, in a sequence of length 1, each distinct input once.

        Parameters
        ----------
        inputs_embeds : torch.Tensor
            (batch, token, hidden): embeddings in the units of the embedding module's own output.
        position_ids : torch.Tensor
            (batch, token) or (1, token): consecutive integers.
        anchor : int, optional
            Position, 1 .. length-1, of a token the attention on which is recorded.
        substitute : Substitute, optional
            Another input, whose trajectory takes the place of that of position 0 from some depth on.

        Returns
        -------
        ForwardRecord
            Batch first, on the CPU.

        Raises
        ------
        InputError
            If the shapes, the anchor or the depth of the substitute do not fit the recorder.
        ModelError
            If a layer turns out not to be recordable.
        NumericalError
            If a hidden state or a logit is not finite; names the first such layer.
        """
        if self._restore is None:
            raise InputError("a Recorder records inside its `with` block only")
        batch, length = inputs_embeds.shape[:2]
        if length != self.length or position_ids.shape not in ((batch, length), (1, length)):
            raise InputError(
                f"this recorder takes (batch, {self.length}, hidden) embeddings with (batch or 1, {self.length}) "
                f"positions, not {tuple(inputs_embeds.shape)} and {tuple(position_ids.shape)}"
            )
        if anchor is not None and not 1 <= anchor < length:
            raise InputError(f"anchor {anchor} is outside 1 .. {length - 1}")
        if substitute is not None and not 0 <= substitute.depth < len(self._layers):
            raise InputError(f"the substitute's depth {substitute.depth} is outside 0 .. {len(self._layers) - 1}")
        if substitute is not None and substitute.embedding.shape != inputs_embeds[:, 0].shape:
            raise InputError(f"a substitute has one embedding per sequence, not {tuple(substitute.embedding.shape)}")
        with torch.inference_mode():
            alone, swapped = self._alone(inputs_embeds[:, 0], position_ids[:, 0]), None
            if substitute is not None:
                other = self._alone(substitute.embedding.to(inputs_embeds), position_ids[:, 0])
                alone[:, substitute.depth :] = other[:, substitute.depth :]
                swapped = substitute.depth, other[:, substitute.depth]
        current = Pass(inputs_embeds, len(self._layers), self.probes, anchor=anchor, substitute=swapped)
        return self._run(current, inputs_embeds, position_ids).finish(alone)

    def _alone(self, inputs: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Trajectories (batch, depth, hidden) of inputs (batch, hidden) in sequences of length 1."""
        position = position.expand(len(inputs))
        chosen, which = _distinct(inputs, position)
        current = Pass(inputs[chosen, None], len(self._layers))
        return self._run(current, inputs[chosen, None], position[chosen, None]).trajectory[which]

    def _run(self, current: Pass, inputs_embeds: torch.Tensor, position_ids: torch.Tensor) -> Pass:
        reset_dynamic_rope(self.model)
        self._pass = current
        token = _ACTIVE.set(self)
        try:
            with torch.inference_mode():
                self._decoder(inputs_embeds=inputs_embeds, position_ids=position_ids, use_cache=False)
        except RuntimeError as error:
            formats = sorted({str(weight.dtype) for weight in self.model.parameters()})
            if len(formats) == 1 or "dtype" not in str(error):  # some models convert between their formats
                raise
            raise ModelError(
                f"the model mixes weights of the number formats {', '.join(formats)} and cannot compute with them "
                f"({error}): convert it to one of them, such as model.float()"
            ) from error
        finally:
            _ACTIVE.reset(token)
            self._pass = None
        if current.layer != len(self._layers):
            raise self._uneven(len(self._layers), current.layer)
        return current

    def _uneven(self, blocks: int, calls: int) -> ModelError:
        return ModelError(
            f"the first {blocks} blocks of {type(self.model).__name__} called attention {calls} times through "
            "transformers' attention interface, not once each: hybrid or shared layers cannot be recorded"
        )

    def _observe(self) -> None:
        """Have the masks and constants at hand also before the first recording."""
        if len(self._first) == len(self._layers):
            return
        if self._restore is None:
            raise InputError("nothing has been recorded yet: ask inside the `with` block or after a recording")
        embedding = self.model.get_input_embeddings()
        ids = torch.zeros((1, self.length), dtype=torch.long, device=embedding.weight.device)
        with torch.inference_mode():
            inputs_embeds = embedding(ids)
            current = Pass(inputs_embeds, len(self._layers))
            self._run(current, inputs_embeds, torch.arange(self.length, device=ids.device)[None])

    def _enters(self, depth: int) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._pass is None:
                return None
            if args:
                return (self._pass.entering(depth, args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": self._pass.entering(depth, kwargs["hidden_states"])}

        return hook

    def _leaves(self, depth: int) -> Any:
        def hook(_module: torch.nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if self._pass is None:
                return
            if self._pass.layer != depth:
                raise self._uneven(depth, self._pass.layer)
            self._pass.keep_residual(depth, output[0] if isinstance(output, tuple) else output)

        return hook

    def _attend(self, module: torch.nn.Module, inputs: AttentionInputs) -> torch.Tensor:
        current = self._pass
        if current is None or current.layer >= len(self._layers):
            raise ModelError(f"{type(module).__name__} calls its attention more often than the model has layers")
        if current.length != self.length:  # position 0 alone
            current.layer += 1
            return single_output(inputs)
        layer = current.layer
        if layer in self._first and not torch.equal(self._first[layer], inputs.first):
            raise ModelError(f"the mask of layer {layer} changes from one forward pass to the next")
        heads = inputs.query.shape[1]
        if self._heads not in (None, heads):
            raise ModelError(f"layer {layer} has {heads} heads, the layers before it {self._heads}")
        self._heads = heads
        self._first[layer], self._learned_sink[layer] = inputs.first, inputs.learned_sink
        statistics = layer_statistics(inputs, self._wanted, current.anchor)
        current.keep(statistics)
        return statistics.output


def _distinct(inputs: torch.Tensor, position: torch.Tensor) -> tuple[list[int], list[int]]:
    """One row of every distinct (embedding, position), and which of them every row is."""
    seen: dict[tuple[bytes, int], int] = {}
    rows = inputs.cpu().contiguous().view(torch.uint8).numpy()  # the bytes: not a number is equal to itself, too
    which = [seen.setdefault((row.tobytes(), at), len(seen)) for row, at in zip(rows, position.tolist(), strict=True)]
    return [which.index(number) for number in range(len(seen))], which


_ACTIVE: ContextVar[Recorder | None] = ContextVar("posstats_recorder", default=None)


def _recorder() -> Recorder:
    recorder = _ACTIVE.get()
    if recorder is None:
        raise ModelError("the model is set to record but was not called through Recorder.record")
    return recorder


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor:
    return compact_mask(*args, **kwargs, window=_recorder()._window)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function in transformers' calling convention; returns (batch, token, head, channel) and no weights."""
    recorder = _recorder()
    layer = recorder._pass.layer if recorder._pass is not None else -1
    if position_bias is not None:
        raise ModelError(f"layer {layer} adds a position bias to its logits: not rotary attention")
    unknown = sorted(name for name, given in others.items() if given is not None and name not in _IGNORED)
    if unknown:  # such as the chosen keys of sparse attention, which the mask does not show
        raise ModelError(f"layer {layer} hands {', '.join(unknown)} to its attention, which cannot be recorded exactly")
    if query.shape[2] != key.shape[2]:
        raise ModelError(
            f"layer {layer} has {query.shape[2]} queries but {key.shape[2]} keys: not plain self-attention"
        )
    inputs = AttentionInputs(
        query=query,
        key=key,
        value=value,
        first=visible_start(attention_mask, query.shape[2], layer),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        learned_sink=s_aux,
    )
    output = recorder._attend(module, inputs)
    return output.transpose(1, 2).contiguous(), None
