"""What is recorded of one attention layer, from its queries, keys and values, whatever its mask.

The logits of a block of queries are computed once and everything is read off them, so memory is linear in the number of
tokens. Fused attention kernels would save nothing: they keep the logits to themselves, and the linear R-squared needs
every one.
"""

from dataclasses import dataclass

import torch

from posstats.dumping.recorder.gathered import AttentionReceived, LinearFit, SteadyState, Wanted, by_lag
from posstats.vocabulary import FIRST_SINK_QUERY

#: Logits held at once: few enough to stay in a processor's cache, and many enough to keep an accelerator busy.
_BLOCK_BYTES = {"cpu": 4 << 20, "accelerator": 256 << 20}
FEWEST_ROWS = 16


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What an attention layer hands to its attention function.

    Attributes
    ----------
    query, key, value : torch.Tensor
        (batch, head, token, channel), (batch, kv_head, token, channel) twice; after rotary embedding.
    first : torch.Tensor
        int64, (token,): the first visible key; the keys ``first[i] .. i`` are visible.
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

    T tokens, the queries i < Q = T/2 being analysed.

    Attributes
    ----------
    output : torch.Tensor
        (batch, head, token, channel): attention-weighted values.
    finite : torch.Tensor
        bool, (): whether every visible logit is.
    logit : torch.Tensor
        (batch, head, query, offset): s[i, i-offset]; NaN where that key is 0, absent or masked.
    sink_logit : torch.Tensor
        (batch, head, query): s[i, 0]; NaN where position 0 is not visible.
    log_denominator_rest : torch.Tensor
        (batch, head, query): log of sum over visible keys j >= 1 of exp s[i, j]; -inf where there is none.
    steady_logit, steady_log_sum : torch.Tensor
        (batch, head, lag): means over the reference queries r of s[r, r-lag], and of the log of the sum over d <= lag
        of exp s[r, r-d]; over those that see the key at that lag, NaN where none does.
    steady_square : torch.Tensor
        (batch, head): mean over lags of the mean over the same queries of (s[r, r-lag] - log sum_d exp s[r, r-d])^2.
    attention_received : torch.Tensor
        (batch, head, key): mean of A[i, j] over the sampled queries i >= j + 16 that see the key; NaN where none does.
    linear_r2_offset, linear_r2_position : torch.Tensor
        (batch, head): R-squared of the least-squares regressions of s[i, j] on (1, i-j) and on (1, i, j), over all
        visible pairs; NaN where the logits or the offsets do not vary.
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
    finite: torch.Tensor
    logit: torch.Tensor
    sink_logit: torch.Tensor
    log_denominator_rest: torch.Tensor
    steady_logit: torch.Tensor
    steady_log_sum: torch.Tensor
    steady_square: torch.Tensor
    attention_received: torch.Tensor
    linear_r2_offset: torch.Tensor
    linear_r2_position: torch.Tensor
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
        (..., token): norms of the two parts of the head's output, from key 0 and from all the other keys.

    Returns
    -------
    torch.Tensor
        (...), between 0 and 1; NaN where there is no query i >= 16. A query whose two parts are zero counts 0.
    """
    sink, rest = sink_norm[..., FIRST_SINK_QUERY:], rest_norm[..., FIRST_SINK_QUERY:]
    total = sink + rest
    return (sink / torch.where(total > 0, total, 1)).mean(-1)


def value_norms(value: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm of the value at position 0, and the mean norm of the others.

    Parameters
    ----------
    value : torch.Tensor
        (batch, kv_head, token, channel).
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


def layer_statistics(inputs: AttentionInputs, wanted: Wanted, anchor: int | None = None) -> AttentionStatistics:
    """Record a layer, block of queries after block of queries.

    Serves every mask, soft-cap, learned sink, dtype and device. Inputs in half precision are computed in float32.

    Parameters
    ----------
    inputs : AttentionInputs
        The layer's queries, keys, values, mask and constants.
    wanted : Wanted
        What is kept.
    anchor : int, optional
        Position of an anchor, the attention on which is recorded.

    Returns
    -------
    AttentionStatistics
        In the dtype of the inputs, float32 for half precision.
    """
    dtype = torch.promote_types(inputs.query.dtype, torch.float32)
    batch, heads, length, _ = inputs.query.shape
    kv_heads = inputs.key.shape[1]
    query = inputs.query.to(dtype).unflatten(1, (kv_heads, -1))
    # Keys in descending order: the lags of a block are then a view of it.
    key, value = inputs.key.to(dtype).mul(inputs.scaling).flip(2).mT, inputs.value.to(dtype).flip(2)
    first, starts, device = inputs.first, inputs.first.tolist(), query.device
    learned_sink = None if inputs.learned_sink is None else inputs.learned_sink.to(dtype).view(kv_heads, -1, 1)

    def empty(*shape: int) -> torch.Tensor:
        return query.new_empty((*query.shape[:3], *shape))

    # The layout in which the model reads the output, so that handing it over copies nothing.
    output = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2).unflatten(1, (kv_heads, -1))
    logit = empty(wanted.analysed, len(wanted.offsets)).fill_(torch.nan)
    sink_logit, rest, rest_norm, sink_weight = (empty(length) for _ in range(4))
    sink_logit.fill_(-torch.inf)
    anchor_weight = empty(length).zero_()
    fit, steady = LinearFit(first), SteadyState(wanted, first, empty)
    received = AttentionReceived(wanted, first, empty)

    block_bytes = _BLOCK_BYTES["cpu" if device.type == "cpu" else "accelerator"]
    rows = max(FEWEST_ROWS, block_bytes // (batch * heads * length * dtype.itemsize))
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        low, here = min(starts[start:stop]), slice(start, stop)
        behind = slice(length - stop, length - low)  # the keys stop-1 .. low
        keys, queries = torch.arange(stop - 1, low - 1, -1, device=device), torch.arange(start, stop, device=device)
        hidden = (keys > queries[:, None]) | (keys < first[here, None])
        edges = slice(0, stop - start), slice(stop - max(starts[here]), None)  # the keys that some query does not see
        # The heads of a group share their keys: one product per group instead of a copy of the keys per head.
        block = (query[..., here, :].flatten(2, 3) @ key[..., behind]).unflatten(2, (-1, stop - start))
        if inputs.softcap is not None:
            block.div_(inputs.softcap).tanh_().mul_(inputs.softcap)

        for edge in edges:
            block[..., edge].masked_fill_(hidden[:, edge], 0)
        fit.add(block, keys, queries)
        lags = by_lag(block)
        steady.add(lags, start, stop)
        _keep_offsets(logit, lags, wanted.offsets, start, first)
        if low == 0:
            sink_logit[..., here] = block[..., -1].masked_fill(first[here] > 0, -torch.inf)

        for edge in edges:
            block[..., edge].masked_fill_(hidden[:, edge], -torch.inf)
        if low == 0:
            block[..., -1] = -torch.inf
        weights, factor, rest[..., here], sink_weight[..., here] = _softmax(block, sink_logit[..., here], learned_sink)
        from_rest = (weights.flatten(2, 3) @ value[:, :, behind]).unflatten(2, (-1, stop - start))
        from_rest.mul_(factor[..., None])
        rest_norm[..., here] = torch.linalg.vector_norm(from_rest, dim=-1)
        output[..., here, :] = from_rest.addcmul_(sink_weight[..., here, None], value[:, :, None, -1:])
        received.add(weights, factor, keys, start, stop)
        if anchor is not None and low <= anchor < stop:
            anchor_weight[..., here] = weights[..., stop - 1 - anchor] * factor

    def joined(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1, 2)

    output, sink_weight, logit = joined(output), joined(sink_weight), joined(logit)
    sink_value_norm, value_norm = value_norms(inputs.value, heads)
    steady_logit, steady_log_sum, steady_square = steady.means()
    linear_r2_offset, linear_r2_position, finite = fit.r2(torch.finfo(dtype).eps)
    behind_anchor = slice(length if anchor is None else anchor + FIRST_SINK_QUERY, None)
    return AttentionStatistics(
        output=output.to(inputs.query.dtype),
        finite=finite,
        logit=logit,
        sink_logit=joined(sink_logit)[..., : wanted.analysed].masked_fill(first[: wanted.analysed] > 0, torch.nan),
        log_denominator_rest=joined(rest)[..., : wanted.analysed],
        steady_logit=joined(steady_logit),
        steady_log_sum=joined(steady_log_sum),
        steady_square=joined(steady_square),
        attention_received=joined(received.mean(sink_weight.unflatten(1, (kv_heads, -1)))),
        linear_r2_offset=joined(linear_r2_offset).to(dtype),
        linear_r2_position=joined(linear_r2_position).to(dtype),
        sink_output_fraction=output_fraction(sink_weight * sink_value_norm[..., None], joined(rest_norm)),
        sink_value_norm=sink_value_norm,
        value_norm=value_norm,
        head_output=output[:, :, FIRST_SINK_QUERY:].mean(2),
        anchor_attention=joined(anchor_weight)[..., behind_anchor].mean(-1),
        anchor_sink_attention=sink_weight[..., behind_anchor].mean(-1),
    )


def single_output(inputs: AttentionInputs) -> torch.Tensor:
    """Attention-weighted values of sequences of one token, which sees itself and a learned sink, if there is one.

    Parameters
    ----------
    inputs : AttentionInputs
        The layer's queries, keys, values and constants.

    Returns
    -------
    torch.Tensor
        (batch, head, 1, channel).
    """
    query, group = inputs.query, inputs.query.shape[1] // inputs.key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (inputs.key, inputs.value))
    if inputs.learned_sink is None:
        return value
    dtype = torch.promote_types(query.dtype, torch.float32)
    logit = (query.to(dtype) * key.to(dtype)).sum(-1, keepdim=True) * inputs.scaling
    if inputs.softcap is not None:
        logit = torch.tanh(logit / inputs.softcap) * inputs.softcap
    weight = torch.sigmoid(logit - inputs.learned_sink.to(dtype).view(-1, 1, 1))
    return (weight * value.to(dtype)).to(query.dtype)


def _softmax(
    block: torch.Tensor, sink_logit: torch.Tensor, learned_sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of a block of queries, position 0 and a learned sink apart; the block is overwritten.

    Returns
    -------
    weights, factor : torch.Tensor
        (..., query, key) and (..., query): attention on ordinary keys is their product.
    rest : torch.Tensor
        (..., query): log of the sum of the exponentials over ordinary keys, -inf where there is none.
    sink_weight : torch.Tensor
        (..., query): attention on position 0.
    """
    # Relative to the largest ordinary logit, so that none vanishes where position 0 takes all the attention.
    largest = block.amax(-1, keepdim=True).clamp_min_(torch.finfo(block.dtype).min)  # query 0 has no ordinary key
    weights, largest = block.sub_(largest).exp_(), largest[..., 0]
    rest = weights.sum(-1).log_().add_(largest)
    total = torch.logaddexp(rest, sink_logit)
    if learned_sink is not None:
        total = torch.logaddexp(total, learned_sink)
    return weights, (largest - total).exp_(), rest, (sink_logit - total).exp_()


def _keep_offsets(
    logit: torch.Tensor, lags: torch.Tensor, offsets: tuple[int, ...], start: int, first: torch.Tensor
) -> None:
    """Keep the logits of a block's analysed queries at the wanted offsets, where the key is visible and not 0."""
    stop = min(start + lags.shape[-2], logit.shape[-2])
    for column, offset in enumerate(offsets):
        if start < stop and offset < lags.shape[-1]:
            known = torch.arange(start, stop, device=first.device) - offset >= first[start:stop].clamp_min(1)
            found = lags[..., : stop - start, offset]
            logit[..., start:stop, column] = found.masked_fill(~known, torch.nan)
