"""The fused path: the same statistics at about the cost of the attention itself.

Three exact steps (docs/method.md, section 1, gives the quantities):

1. torch's fused attention kernels also return the log-sum-exp of the logits. Run over the keys 1.. only, that is the
   denominator without position 0, never got by subtraction.
2. Key 0 and a learned sink are merged afterwards: with w = exp(rest - total), total = log(exp rest + exp s[i,0]), the
   output is w * (output over keys 1..) + exp(s[i,0] - total) * v[0].
3. The sum of the logits along every diagonal is the cross-correlation of queries and keys over positions, summed over
   channels: one product of their Fourier transforms.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from scipy.fft import next_fast_len

from posstats.dumping.recorder.statistics import (
    AttentionInputs,
    AttentionStatistics,
    anchored_attention,
    blocked_statistics,
    mean_output,
    output_fraction,
    sum_diagonals,
    value_norms,
)

# Temporaries of this size stay in cache and are not asked from the operating system each time.
_ROWS = 512  # positions, times sequences, multiplied at once
_SPECTRUM_BYTES = 2 << 20  # padded queries transformed at once
_TAIL = 64  # longest lags whose sums, of this many logits or fewer, are taken directly
_WINDOW_BLOCK = 256  # least number of queries handed to the kernel together under a sliding window


def window_of(first: torch.Tensor) -> int | None:
    """Sliding window of a mask.

    Parameters
    ----------
    first : torch.Tensor
        int64, (query,): first visible key of each query.

    Returns
    -------
    int or None
        Number of keys each query sees at most; the number of queries for a causal mask; None for any other mask.

    Examples
    --------
    >>> window_of(torch.tensor([0, 0, 1, 2]))
    2
    """
    query = torch.arange(len(first), device=first.device)
    window = int((query - first).max()) + 1
    return window if torch.equal(first, (query - window + 1).clamp_min(0)) else None


def obstacle(inputs: AttentionInputs) -> str | None:
    """Why a layer cannot take the fused path; None if it can."""
    if inputs.softcap is not None:
        return "soft-capped logits"
    if inputs.value.shape[-1] != inputs.query.shape[-1]:
        return "values and keys of different size"
    if window_of(inputs.first) is None:
        return "a mask that is neither causal nor a sliding window"
    query = inputs.query
    return _kernel_obstacle(query.device.type, query.dtype, query.shape[-1], query.shape[1] // inputs.key.shape[1])


@lru_cache
def _kernel_obstacle(device: str, dtype: torch.dtype, channels: int, group: int) -> str | None:
    """Try the kernel on a small example: its log-sum-exp is not part of torch's public promises."""
    generator = torch.Generator().manual_seed(0)
    length = 2 * _WINDOW_BLOCK + 7

    def random(heads: int) -> torch.Tensor:
        return torch.randn((1, heads, length, channels), generator=generator).to(device, dtype)

    first = torch.arange(length, device=device)
    tolerance = 1e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-3
    query, key, value = random(group), random(1), random(1)
    for window in (length, 5):
        inputs = AttentionInputs(query, key, value, (first - window + 1).clamp_min(0), channels**-0.5)
        try:
            fused, plain = fused_statistics(inputs, (0, 3)), blocked_statistics(inputs, (0, 3))
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            return f"no fused kernel for {dtype} on {device}: {str(error).splitlines()[0]}"
        for name in ("output", "log_denominator_rest", "sink_logit", "logit"):
            found, expected = getattr(fused, name), getattr(plain, name)
            if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
                return f"the fused kernel for {dtype} on {device} does not reproduce {name}"
    return None


def fused_statistics(inputs: AttentionInputs, offsets: Sequence[int], anchor: int | None = None) -> AttentionStatistics:
    """Record a layer with fused attention kernels and Fourier transforms; memory is linear in the number of tokens.

    Parameters
    ----------
    inputs : AttentionInputs
        The layer's queries, keys, values, mask and constants; :func:`obstacle` is None for them.
    offsets : sequence of int
        Distances from query to key at which logits are kept.
    anchor : int, optional
        Position of an anchor, the attention on which is recorded.

    Returns
    -------
    AttentionStatistics
        In float32, float64 for float64 inputs.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    batch, heads, length, channels = query.shape
    kv_heads = key.shape[1]
    window = window_of(inputs.first) or length
    dtype = torch.promote_types(query.dtype, torch.float32)

    logit, sink_logit = direct_logits(query, key, offsets, inputs.scaling, window)
    rest = sink_logit.new_full((batch, heads, length), -torch.inf)
    # The layout in which the model reads the output, so that handing it over copies nothing.
    output = query.new_empty((batch, length, heads, channels)).transpose(1, 2)
    output[:, :, 0] = 0
    if length > 1:
        after = [x[:, :, 1:] for x in (query, key, value)]
        output[:, :, 1:], rest[..., 1:] = _attention(*after, scaling=inputs.scaling, window=window)
    denominator = rest
    if inputs.learned_sink is not None:
        denominator = torch.logaddexp(rest, inputs.learned_sink.to(dtype)[:, None])
    sink_logit[..., window:] = -torch.inf
    total = torch.logaddexp(denominator, sink_logit)
    rest_weight, sink_weight = (rest - total).exp_(), (sink_logit - total).exp_()
    rest_norm = torch.linalg.vector_norm(output, dim=-1, dtype=dtype).mul_(rest_weight)
    first_value = value[:, :, :1].repeat_interleave(heads // kv_heads, 1)
    sink_value_norm, value_norm = value_norms(value, heads)
    sink_norm = sink_weight * sink_value_norm[..., None]
    output.mul_(rest_weight[..., None]).addcmul_(sink_weight[..., None].to(query.dtype), first_value)

    sink_logit[..., window:] = torch.nan
    anchor_attention, anchor_sink_attention = anchored_attention(inputs, sink_logit, denominator, anchor)
    return AttentionStatistics(
        output=output,
        logit=logit,
        sink_logit=sink_logit,
        log_denominator_rest=denominator,
        logit_sum_by_lag=lag_sums(query, key, inputs.scaling, window),
        sink_output_fraction=output_fraction(sink_norm, rest_norm),
        sink_value_norm=sink_value_norm,
        value_norm=value_norm,
        head_output=mean_output(output),
        anchor_attention=anchor_attention,
        anchor_sink_attention=anchor_sink_attention,
    )


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scaling: float, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention output and log-sum-exp over the keys within a window."""
    length = query.shape[2]
    if window >= length:
        return _kernel(query, key, value, None, scaling)
    output = torch.empty_like(query)
    log_sum = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    rows = max(window, _WINDOW_BLOCK)
    for start in range(0, length, rows):
        stop, low = min(start + rows, length), max(0, start - window + 1)
        behind = torch.arange(start, stop, device=query.device)[:, None] - torch.arange(low, stop, device=query.device)
        bias = torch.zeros(behind.shape, dtype=query.dtype, device=query.device)
        bias.masked_fill_((behind < 0) | (behind >= window), -torch.inf)
        output[:, :, start:stop], log_sum[..., start:stop] = _kernel(
            query[:, :, start:stop], key[:, :, low:stop], value[:, :, low:stop], bias[None, None], scaling
        )
    return output, log_sum


def _kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One call of the device's fused kernel: output and log-sum-exp; causal without a bias."""
    if query.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, 0.0, bias is None, attn_mask=bias, scale=scaling)
    batch, heads, length, _ = query.shape
    group = heads // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    if bias is None and query.dtype in (torch.bfloat16, torch.float16):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        output, log_sum, *_ = flash(query, key, value, 0.0, True, False, scale=scaling)
        return output, log_sum[..., :length]
    if bias is not None:  # the kernel wants rows that start at multiples of 16 bytes
        width = key.shape[2]
        padded = torch.nn.functional.pad(bias, (0, -width % 16))
        bias = padded[..., :width].expand(batch, heads, length, width)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    output, log_sum, *_ = efficient(query, key, value, bias, True, 0.0, bias is None, scale=scaling)
    return output, log_sum[..., :length]  # the kernel pads this one


def direct_logits(
    query: torch.Tensor, key: torch.Tensor, offsets: Sequence[int], scaling: float, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits at given distances from query to key, and on key 0.

    Parameters
    ----------
    query, key : torch.Tensor
        (batch, head, query, channel) and (batch, kv_head, key, channel).
    offsets : sequence of int
        The distances.
    scaling : float
        Factor of q . k.
    window : int
        Number of visible keys.

    Returns
    -------
    logit : torch.Tensor
        (batch, head, query, offset), nats; NaN where the key is 0, absent or masked.
    sink_logit : torch.Tensor
        (batch, head, query), nats; whether position 0 is visible or not.
    """
    batch, heads, length, _ = query.shape
    kv_heads = key.shape[1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.unflatten(1, (kv_heads, heads // kv_heads)), key[:, :, None]
    logit = query.new_full((*query.shape[:4], len(offsets)), torch.nan, dtype=dtype)
    sink_logit = torch.empty_like(logit[..., 0])
    rows = min(length, max(1, _ROWS // batch))
    product = torch.empty_like(query[..., :rows, :], dtype=dtype)
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        part = torch.mul(query[..., start:stop, :].to(dtype), key[..., :1, :], out=product[..., : stop - start, :])
        torch.sum(part, -1, out=sink_logit[..., start:stop])
        for column, offset in enumerate(offsets):
            begin = max(start, offset + 1)
            if begin < stop and offset < window:
                part = product[..., : stop - begin, :]
                torch.mul(query[..., begin:stop, :].to(dtype), key[..., begin - offset : stop - offset, :], out=part)
                torch.sum(part, -1, out=logit[..., begin:stop, column])
    return logit.mul_(scaling).flatten(1, 2), sink_logit.mul_(scaling).flatten(1, 2)


def lag_sums(query: torch.Tensor, key: torch.Tensor, scaling: float, window: int) -> torch.Tensor:
    """Sum over queries of the logits at every distance, keys 1.. only.

    Parameters
    ----------
    query, key : torch.Tensor
        (batch, head, query, channel) and (batch, kv_head, key, channel).
    scaling : float
        Factor of q . k.
    window : int
        Number of visible keys: the sums are 0 from this lag on.

    Returns
    -------
    torch.Tensor
        (batch, head, lag), nats.
    """
    batch, heads, length, channels = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    dtype = torch.promote_types(query.dtype, torch.float32)
    query = query.unflatten(1, (kv_heads, group))
    sums = torch.zeros((batch, kv_heads, group, length), dtype=dtype, device=query.device)
    tail = min(_TAIL, length - 1)
    spectral = min(window, length - 1 - tail)
    if spectral > 0:
        # Long enough that the negative lags of the circular correlation do not reach the wanted ones.
        size = next_fast_len(length - 1 + spectral - 1, real=True)
        step = min(kv_heads, max(1, _SPECTRUM_BYTES // (group * channels * size * dtype.itemsize)))
        queries, keys = (torch.zeros((step, n, channels, size), dtype=dtype, device=query.device) for n in (group, 1))
        for row in range(batch):
            for start in range(0, kv_heads, step):
                stop = min(start + step, kv_heads)
                queries[: stop - start, ..., : length - 1] = query[row, start:stop, :, 1:].transpose(-1, -2)
                keys[: stop - start, 0, :, : length - 1] = key[row, start:stop, 1:].transpose(-1, -2)
                product = torch.fft.rfft(queries[: stop - start])
                product.mul_(torch.fft.rfft(keys[: stop - start]).conj_physical_())
                sums[row, start:stop, :, :spectral] = torch.fft.irfft(product.sum(-2), n=size)[..., :spectral]
    if tail > 0 and window > length - 1 - tail:
        # A transform's rounding error is that of the whole sequence: too much for the few logits of the longest lags.
        late = query[..., -tail:, :].flatten(2, 3).to(dtype)
        early = key[:, :, 1 : tail + 1].flip(-2).transpose(-1, -2).to(dtype)
        sums[..., -1 - tail : -1] = sum_diagonals((late @ early).unflatten(2, (group, tail)))
    sums[..., window:] = 0
    return sums.mul_(scaling).flatten(1, 2)
