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

from posstats.dumping.recorder.statistics import sum_diagonals

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
        Per layer: `logit`, `sink_logit`, `log_denominator_rest`, `logit_sum_by_lag`, as the recorder has them.
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
    picked = logits.new_full((*logits.shape[:3], len(offsets)), torch.nan)
    for column, offset in enumerate(offsets):
        picked[..., offset + 1 :, column] = logits.diagonal(-offset, -2, -1)[..., 1:]
    return {
        "logit": picked,
        "sink_logit": logits[..., 0].clone(),
        "log_denominator_rest": rest,
        "logit_sum_by_lag": lag_sums(logits),
    }


def lag_sums(logits: torch.Tensor) -> torch.Tensor:
    """Sums along the diagonals over the keys 1.., head by head: skewed copies of all at once would double them."""
    length = logits.shape[-1]
    visible = torch.ones((length, length), dtype=torch.bool, device=logits.device).tril_()
    visible[:, 0] = False
    sums = torch.empty_like(logits[..., 0])
    for row, heads in zip(sums, logits, strict=True):
        for target, one in zip(row, heads, strict=True):
            target.copy_(sum_diagonals(torch.where(visible, one, 0).flip(-1)))
    return sums
