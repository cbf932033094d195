"""What is recorded of one attention layer, and the blocked path that computes it for every mask, dtype and device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from posstats.vocabulary import FIRST_SINK_QUERY

_BLOCK_BYTES = 64 << 20  # logits held at once


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What an attention layer hands to its attention function.

    Attributes
    ----------
    query, key, value : torch.Tensor
        (batch, head, query, channel), (batch, kv_head, key, channel) twice; after rotary embedding.
    first : torch.Tensor
        int64, (query,): the first visible key; the keys ``first[i] .. i`` are visible.
    scaling : float
        Factor of q . k.
    softcap : float or None
        c of the soft-cap c * tanh(s / c), if the model has one.
    learned_sink : torch.Tensor or None
        (head,): logit that takes part in the softmax and has no value.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    first: torch.Tensor
    scaling: float
    softcap: float | None = None
    learned_sink: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionStatistics:
    """What the recorder keeps of an attention layer, besides the output that the model goes on with.

    Attributes
    ----------
    output : torch.Tensor
        (batch, head, query, channel): attention-weighted values.
    logit : torch.Tensor
        (batch, head, query, offset): s[i, i-offset]; NaN where that key is 0, absent or masked.
    sink_logit : torch.Tensor
        (batch, head, query): s[i, 0]; NaN where position 0 is not visible.
    log_denominator_rest : torch.Tensor
        (batch, head, query): log of sum over visible keys j >= 1 of exp s[i, j], learned sink included; -inf if none.
    logit_sum_by_lag : torch.Tensor
        (batch, head, lag): sum over queries of s[i, i-lag], visible keys j >= 1.
    sink_output_fraction : torch.Tensor
        (batch, head): mean over queries i >= 16 of |A[i,0] v[0]| / (|A[i,0] v[0]| + |sum over j >= 1 of A[i,j] v[j]|);
        NaN where there is no such query.
    sink_value_norm, value_norm : torch.Tensor
        (batch, head): ||v[0]||, and the mean over keys j >= 1 of ||v[j]|| (NaN where there is none); heads that share
        their values have the same.
    head_output : torch.Tensor
        (batch, head, channel): mean of `output` over queries i >= 16; NaN where there is no such query.
    anchor_attention, anchor_sink_attention : torch.Tensor
        (batch, head): mean of A[i,P] and of A[i,0] over queries i >= P + 16, P the anchor, 0 where that key is not
        visible; NaN without an anchor or such a query.
    """

    output: torch.Tensor
    logit: torch.Tensor
    sink_logit: torch.Tensor
    log_denominator_rest: torch.Tensor
    logit_sum_by_lag: torch.Tensor
    sink_output_fraction: torch.Tensor
    sink_value_norm: torch.Tensor
    value_norm: torch.Tensor
    head_output: torch.Tensor
    anchor_attention: torch.Tensor
    anchor_sink_attention: torch.Tensor


def output_fraction(sink_norm: torch.Tensor, rest_norm: torch.Tensor) -> torch.Tensor:
    """Mean share of position 0 in the head's output, over queries i >= 16.

    Parameters
    ----------
    sink_norm, rest_norm : torch.Tensor
        (batch, head, query): norms of the two parts of the head's output, from key 0 and from all the other keys.

    Returns
    -------
    torch.Tensor
        (batch, head), between 0 and 1; NaN where there is no query i >= 16. A query whose two parts are zero counts 0.
    """
    sink, rest = sink_norm[..., FIRST_SINK_QUERY:], rest_norm[..., FIRST_SINK_QUERY:]
    total = sink + rest
    return (sink / torch.where(total > 0, total, 1)).mean(-1)


def value_norms(value: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm of the value at position 0, and the mean norm of the others.

    Parameters
    ----------
    value : torch.Tensor
        (batch, kv_head, key, channel).
    heads : int
        Number of query heads; those of a group share their values.

    Returns
    -------
    first, others : torch.Tensor
        (batch, head), in float32 at least; `others` is NaN where there is a single key.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    norm = torch.linalg.vector_norm(value, dim=-1, dtype=dtype).repeat_interleave(heads // value.shape[1], 1)
    return norm[..., 0], norm[..., 1:].mean(-1)


def mean_output(output: torch.Tensor) -> torch.Tensor:
    """Mean output of each head over queries i >= 16.

    Parameters
    ----------
    output : torch.Tensor
        (batch, head, query, channel).

    Returns
    -------
    torch.Tensor
        (batch, head, channel), in float32 at least; NaN where there is no such query.
    """
    return output[:, :, FIRST_SINK_QUERY:].mean(2, dtype=torch.promote_types(output.dtype, torch.float32))


def anchored_attention(
    inputs: AttentionInputs, sink_logit: torch.Tensor, log_denominator_rest: torch.Tensor, anchor: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean attention on an anchor P and on position 0, over queries i >= P + 16.

    ``A[i,P] = exp(s[i,P] - log Z[i])``, position 0 and a learned sink being part of Z.

    Parameters
    ----------
    inputs : AttentionInputs
        The layer's queries, keys, mask and constants.
    sink_logit, log_denominator_rest : torch.Tensor
        (batch, head, query): as in :class:`AttentionStatistics`.
    anchor : int or None
        The position P, if the sequences have an anchor.

    Returns
    -------
    on_anchor, on_sink : torch.Tensor
        (batch, head); a key that is not visible has attention 0. NaN without an anchor or such a query.
    """
    if anchor is None:
        nothing = sink_logit.new_full(sink_logit.shape[:2], torch.nan)
        return nothing, nothing
    begin = anchor + FIRST_SINK_QUERY
    query = inputs.query[:, :, begin:].to(sink_logit.dtype)
    key = inputs.key[:, :, anchor].to(sink_logit.dtype).repeat_interleave(query.shape[1] // inputs.key.shape[1], 1)
    logit = (query * key[:, :, None]).sum(-1) * inputs.scaling
    if inputs.softcap is not None:
        logit = torch.tanh(logit / inputs.softcap) * inputs.softcap
    logit = logit.masked_fill(inputs.first[begin:] > anchor, -torch.inf)
    sink = sink_logit[..., begin:].nan_to_num(nan=-torch.inf)
    total = torch.logaddexp(log_denominator_rest[..., begin:], sink)
    return (logit - total).exp().mean(-1), (sink - total).exp().mean(-1)


def sum_diagonals(block: torch.Tensor) -> torch.Tensor:
    """Sum a block of logits along its diagonals.

    Parameters
    ----------
    block : torch.Tensor
        (..., query, key) with the keys in *descending* order, the last query and the first key being the same token;
        cells that do not count are 0.

    Returns
    -------
    torch.Tensor
        (..., lag) for the lags 0 .. key-1.
    """
    *lead, queries, keys = block.shape
    # Padding each row by `queries` cells and reading the memory with rows one cell shorter shifts row r by r cells.
    padded = torch.nn.functional.pad(block, (0, queries)).flatten(-2)[..., : queries * (keys + queries - 1)]
    skewed = padded.reshape(*lead, queries, keys + queries - 1)
    return skewed.sum(-2)[..., queries - 1 :]


def blocked_statistics(
    inputs: AttentionInputs, offsets: Sequence[int], anchor: int | None = None
) -> AttentionStatistics:
    """Record a layer by plain tensor operations over blocks of queries.

    Serves every mask, soft-cap, learned sink, dtype and device; memory is linear in the number of tokens. Inputs in
    half precision are computed in float32. The fused paths are tested against this one in float64.

    Parameters
    ----------
    inputs : AttentionInputs
        The layer's queries, keys, values, mask and constants.
    offsets : sequence of int
        Distances from query to key at which logits are kept.
    anchor : int, optional
        Position of an anchor, the attention on which is recorded.

    Returns
    -------
    AttentionStatistics
        In the dtype of the inputs, float32 for half precision.
    """
    dtype = torch.promote_types(inputs.query.dtype, torch.float32)
    query, key, value = (x.to(dtype) for x in (inputs.query, inputs.key, inputs.value))
    batch, heads, length, _ = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    query = query.unflatten(1, (kv_heads, group))
    first, device = inputs.first, query.device
    starts = first.tolist()
    learned_sink = None if inputs.learned_sink is None else inputs.learned_sink.to(dtype).view(kv_heads, -1, 1)

    def empty(*shape: int) -> torch.Tensor:
        return query.new_empty((batch, kv_heads, group, *shape))

    output = empty(length, value.shape[-1])
    logit = torch.full_like(empty(length, len(offsets)), torch.nan)
    sink_logit, rest = torch.full_like(empty(length), torch.nan), empty(length)
    sink_norm, rest_norm = empty(length), empty(length)
    lag_sum = torch.zeros_like(empty(length))
    value_zero_norm = value[:, :, :1].norm(dim=-1)[:, :, None]

    rows = max(1, _BLOCK_BYTES // (batch * heads * length * query.element_size()))
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        low = min(starts[start:stop])
        keys = torch.arange(stop - 1, low - 1, -1, device=device)  # descending, as sum_diagonals wants them
        queries = torch.arange(start, stop, device=device)
        visible = (keys <= queries[:, None]) & (keys >= first[start:stop, None])
        ordinary = visible & (keys >= 1)
        # The heads of a group share their keys: one product per group instead of a copy of the keys per head.
        block = query[..., start:stop, :].flatten(2, 3) @ key[:, :, low:stop].flip(-2).transpose(-1, -2)
        block = block.mul_(inputs.scaling).unflatten(2, (group, stop - start))
        if inputs.softcap is not None:
            block = torch.tanh(block / inputs.softcap) * inputs.softcap

        lag_sum[..., : stop - low] += sum_diagonals(block.masked_fill(~ordinary, 0))
        for column, offset in enumerate(offsets):
            wanted = queries - offset
            known = (wanted >= 1) & (wanted >= first[start:stop])
            index = (stop - 1 - wanted).clamp(0, stop - low - 1)
            found = block.gather(-1, index[:, None].expand(*block.shape[:-1], 1))[..., 0]
            logit[..., start:stop, column] = found.masked_fill(~known, torch.nan)
        if low == 0:
            sink_logit[..., start:stop] = block[..., -1].masked_fill(first[start:stop] > 0, torch.nan)

        rest_block = torch.logsumexp(block.masked_fill(~ordinary, -torch.inf), -1)
        if learned_sink is not None:
            rest_block = torch.logaddexp(rest_block, learned_sink)
        rest[..., start:stop] = rest_block
        total = torch.logaddexp(rest_block, sink_logit[..., start:stop].nan_to_num(nan=-torch.inf))
        weights = (block - total[..., None]).exp_().masked_fill_(~ordinary, 0)
        from_rest = (weights.flatten(2, 3) @ value[:, :, low:stop].flip(-2)).unflatten(2, (group, stop - start))
        sink_weight = (sink_logit[..., start:stop] - total).exp().nan_to_num(nan=0.0)
        sink_norm[..., start:stop] = sink_weight * value_zero_norm
        rest_norm[..., start:stop] = from_rest.norm(dim=-1)
        output[..., start:stop, :] = from_rest + sink_weight[..., None] * value[:, :, None, :1]

    def joined(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1, 2)

    output, sink_logit, rest = joined(output), joined(sink_logit), joined(rest)
    sink_value_norm, value_norm = value_norms(value, heads)
    anchor_attention, anchor_sink_attention = anchored_attention(inputs, sink_logit, rest, anchor)
    return AttentionStatistics(
        output=output.to(inputs.query.dtype),
        logit=joined(logit),
        sink_logit=sink_logit,
        log_denominator_rest=rest,
        logit_sum_by_lag=joined(lag_sum),
        sink_output_fraction=joined(output_fraction(sink_norm, rest_norm)),
        sink_value_norm=sink_value_norm,
        value_norm=value_norm,
        head_output=mean_output(output),
        anchor_attention=anchor_attention,
        anchor_sink_attention=anchor_sink_attention,
    )
