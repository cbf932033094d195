"""Which keys each query sees, read from the masks that the model itself builds.

transformers asks the mask function of the attention implementation in use for every mask that a forward pass needs.
Ours evaluates the model's own rule over blocks of queries and passes on, instead of a query-by-key matrix, the first
visible key of each query: memory stays linear in the number of tokens, and nothing is assumed from the configuration.
"""

from collections.abc import Callable

import torch

from posstats.errors import ModelError

_BLOCK_CELLS = 1 << 22  # cells of the mask evaluated at once


def first_visible(mask: torch.Tensor, layer: int, first_query: int = 0) -> torch.Tensor:
    """First visible key of each query of a dense block of a mask.

    Parameters
    ----------
    mask : torch.Tensor
        Boolean, (batch, 1 or head, query, key), True where the key is visible.
    layer : int
        Layer, or mask number, named in the error.
    first_query : int
        Position of the block's first query.

    Returns
    -------
    torch.Tensor
        int64, (query,).

    Raises
    ------
    ModelError
        If sequences or heads differ, or if the visible keys are not one contiguous run that ends at the query itself.
    """
    keys = torch.arange(mask.shape[-1], device=mask.device)
    query = first_query + torch.arange(mask.shape[-2], device=mask.device)
    reference = mask[0, 0]
    if not (mask == reference).all():
        raise ModelError(f"the mask of layer {layer} differs between sequences or heads; only a shared one is recorded")
    first = reference.to(torch.int8).argmax(-1)
    run = (keys >= first[:, None]) & (keys <= query[:, None])
    if not (reference == run).all():
        raise ModelError(
            f"the mask of layer {layer} is not causal with a contiguous run of keys ending at the query: "
            "only causal, sliding-window and chunked attention can be recorded exactly"
        )
    return first


def compact_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    *,
    mask_function: Callable[..., torch.Tensor],
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    window: int | None = None,
    **_: object,
) -> torch.Tensor:
    """Mask in compact form: the first visible key of every query, int64, (1, 1, query, 1).

    The signature is that of transformers' mask functions; ``window`` intersects the model's own rule with a sliding
    window (the inference-time variant), and the remaining keywords only tell how a dense mask should be stored.

    Raises
    ------
    ModelError
        For padding, cached keys, or a rule whose visible keys are not one run ending at the query.
    """
    if q_length != kv_length or q_offset != 0 or kv_offset != 0 or attention_mask is not None:
        raise ModelError("only whole sequences without padding and without a key cache can be recorded")
    batch = torch.arange(batch_size, device=device)
    head = torch.arange(1, device=device)
    keys = torch.arange(kv_length, device=device)
    rule = mask_function
    if use_vmap:  # custom overlays promise nothing about broadcasting, so each index is mapped over alone
        for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            rule = torch.vmap(rule, in_dims=dims, out_dims=0)
    rows = max(1, _BLOCK_CELLS // (batch_size * kv_length))
    pieces = []
    for start in range(0, q_length, rows):
        queries = torch.arange(start, min(start + rows, q_length), device=device)
        if use_vmap:
            block = rule(batch, head, queries, keys)
        else:
            block = rule(batch[:, None, None, None], head[:, None, None], queries[:, None], keys)
        block = block.expand(batch_size, 1, len(queries), kv_length)
        first = first_visible(block, -1, start)
        if window is not None:
            first = torch.maximum(first, queries - (window - 1))
        pieces.append(first)
    return torch.cat(pieces)[None, None, :, None]


def visible_start(mask: torch.Tensor | None, length: int, layer: int) -> torch.Tensor:
    """First visible key of every query from whatever mask reached the attention function of a layer.

    Parameters
    ----------
    mask : torch.Tensor or None
        The compact form, or a dense mask that the model made by itself: boolean, or additive with 0 for visible.
    length : int
        Number of queries.
    layer : int
        Layer, named in the errors.

    Returns
    -------
    torch.Tensor
        int64, (query,).

    Raises
    ------
    ModelError
        If the mask is missing, adds a bias to the logits, or hides keys in a way that cannot be recorded.
    """
    if mask is None:
        raise ModelError(f"layer {layer} passes no mask to its attention, so its visible keys cannot be read")
    if mask.dtype == torch.int64 and mask.shape == (1, 1, length, 1):
        return mask[0, 0, :, 0]
    if mask.ndim != 4 or mask.shape[-2:] != (length, length):
        raise ModelError(f"the mask of layer {layer} has shape {tuple(mask.shape)}, not (batch, 1, query, key)")
    if mask.dtype != torch.bool:
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        if not ((mask == 0) | hidden).all():
            raise ModelError(f"layer {layer} adds a position bias to its logits (such as ALiBi): not rotary attention")
        mask = ~hidden
    return first_visible(mask, layer)
