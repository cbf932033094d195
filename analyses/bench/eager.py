"""What users do without a recorder: eager attention with ``output_attentions=True``, then the same reductions.

The weights are kept for all layers, query by key. Logits are their logarithm plus that of the denominator, which is
taken at each query's largest weight from its query and key, kept by a hook: the attention itself is the model's own.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from posstats.vocabulary import analysed_half, reference_queries

_NAME = "bench-eager"
_kept: list[tuple[torch.Tensor, torch.Tensor, float]] = []


def _eager(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    _kept.append((query, key, options["scaling"]))
    own = sys.modules[type(module).__module__].eager_attention_forward
    return own(module, query, key, value, mask, **options)


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Let a model compute its attention eagerly, queries and keys being kept."""
    AttentionInterface.register(_NAME, _eager)
    AttentionMaskInterface.register(_NAME, eager_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def eager_statistics(model: Any, ids: torch.Tensor, offsets: Sequence[int]) -> list[dict[str, torch.Tensor]]:
    """Record sequences from the attention weights of all layers.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal decoder without a window, set to :func:`eager`.
    ids : torch.Tensor
        int64, (sequence, query).
    offsets : sequence of int
        Distances at which logits are kept.

    Returns
    -------
    list of dict
        Per layer: `logit`, `sink_logit`, `log_denominator_rest`, `steady_logit`, `steady_log_sum`, as the recorder has
        them.
    """
    _kept.clear()
    with torch.inference_mode():
        weights = model.base_model(input_ids=ids, use_cache=False, output_attentions=True).attentions
        found = [
            reduce_weights(one, *_logits_of_largest(one, *kept), offsets)
            for one, kept in zip(weights, _kept, strict=True)
        ]
    _kept.clear()
    return found


def _logits_of_largest(
    weights: torch.Tensor, query: torch.Tensor, key: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest weight of every query, and the logit it comes from."""
    largest, where = weights.max(-1)
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    chosen = key.gather(2, where[..., None].expand_as(query))
    return largest, (query * chosen).sum(-1) * scaling


def reduce_weights(
    weights: torch.Tensor, largest: torch.Tensor, its_logit: torch.Tensor, offsets: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Reduce the attention weights of one layer to what the recorder keeps of it; they are overwritten.

    Parameters
    ----------
    weights : torch.Tensor
        (sequence, head, query, key), causal.
    largest, its_logit : torch.Tensor
        (sequence, head, query): a weight of each query and the logit of the same key, which fix the denominator.
    offsets : sequence of int
        Distances at which logits are kept.

    Returns
    -------
    dict
        See :func:`eager_statistics`.
    """
    log_total = its_logit - largest.log()
    rest = weights[..., 1:].sum(-1).log_().add_(log_total)
    return _reductions(weights.log_().add_(log_total[..., None]), rest, offsets)


def reduce_logits(logits: torch.Tensor, offsets: Sequence[int]) -> dict[str, torch.Tensor]:
    """The same from logits, (sequence, head, query, key), very small where a key is not visible."""
    return _reductions(logits, torch.logsumexp(logits[..., 1:], -1), offsets)


def _reductions(logits: torch.Tensor, rest: torch.Tensor, offsets: Sequence[int]) -> dict[str, torch.Tensor]:
    length = logits.shape[-1]
    half = analysed_half(length)
    picked = logits.new_full((*logits.shape[:2], half, len(offsets)), torch.nan)
    for column, offset in enumerate(offsets):
        picked[..., offset + 1 :, column] = logits[:, :, :half].diagonal(-offset, -2, -1)[..., 1:]
    reference = torch.tensor(reference_queries(length), device=logits.device)
    keys = reference[:, None] - torch.arange(half, device=logits.device)
    steady = logits[:, :, reference[:, None], keys]
    return {
        "logit": picked,
        "sink_logit": logits[:, :, :half, 0].clone(),
        "log_denominator_rest": rest[..., :half],
        "steady_logit": steady.mean(-2),
        "steady_log_sum": steady.logcumsumexp(-1).mean(-2),
    }
