"""Models whose answers are known because their weights were set by hand: tiny Llamas in float64.

Two blocks of two heads. Every token has a content (a unit vector, the contents of all ordinary tokens coming in
opposite pairs), a constant, and filler so that all embeddings have one norm; BOS carries a flag of its own instead,
and so does its twin, a token that differs from BOS only in a feature that nothing reads. What block 1 attends to,
head by head, is chosen: one head can read position 0, by the flag of BOS or by the position itself; the other never
does.

How a position can be read without position ids: head 0 of block 0 attends evenly to all keys and averages their
contents. Position 0 sees itself alone and keeps a content of norm 1, later ones average it away. The gated units of
the MLP square (``silu(z) z + silu(-z)(-z) = z^2``), so block 0 leaves the squared norm of that average behind: 1 at
position 0, about 1/(i+1) at position i.
"""

import numpy as np
import torch
import transformers

from posstats import Sequences
from posstats.dumping.model.float64 import compute_in_float64

BOS, TWIN, ORDINARY = 1, 2, np.arange(3, 97)
_CONTENT, _CONSTANT, _FLAG, _MEAN, _FIRST = slice(0, 6), 6, 7, slice(8, 14), 14
_JUNK = {BOS: 15, TWIN: 16}
_FILLER, _HIDDEN = 17, 20
#: Channels of a head whose rotation is negligible at this base: 3 for flags, 2 for contents. Channel 0 rotates.
_FLAGS, _CONTENTS, _TURNS = 3, 2, 0
_HEAD = 8
_BASE = 1e16


def sequences(n=24, length=48, seed=0):
    """Independent tokens behind a BOS, a document each."""
    ids = np.random.default_rng(seed).choice(ORDINARY, size=(n, length))
    ids[:, 0] = BOS
    return Sequences(ids, np.arange(n), "iid tokens", bos_id=BOS, bos_token="<bos>", ordinary=ORDINARY)


def build(reads="token", passes="content", other_reads_twin=False):
    """Build a model.

    Parameters
    ----------
    reads : {"token", "position", "nothing"}
        What head 0 of block 1 looks for: the flag of BOS, being at position 0, or nothing.
    passes : {"content", "constant", "nothing"}
        Its values: the content of what it attends to, the same for all tokens, or zero.
    other_reads_twin : bool
        Whether head 1 of block 1 attends to the twin of BOS, and to nothing else.
    """
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=_HIDDEN, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=_HEAD, max_position_embeddings=128, rms_norm_eps=1e-12, bos_token_id=BOS,
        eos_token_id=0, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": _BASE},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.float64).eval()
    compute_in_float64(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        model.model.embed_tokens.weight.copy_(torch.from_numpy(_embeddings()))
        blocks = model.model.layers
        rng = np.random.default_rng(7)
        for block in blocks:
            for head in range(2):
                # Faint attention by content, so that documents differ; and a query that turns, read by no key.
                _row(block, "q", head, _CONTENTS)[_CONTENT] = torch.from_numpy(rng.normal(size=6)) / 2
                _row(block, "q", head, _TURNS)[_CONSTANT] = 1.0
                _values(block, head, "content")
            _row(block, "k", 1, _CONTENTS)[_CONTENT] = torch.from_numpy(rng.normal(size=6)) / 2
        _average_and_square(blocks[0])
        _row(blocks[1], "q", 0, _FLAGS)[_CONSTANT] = 4.5
        if reads != "nothing":
            _row(blocks[1], "k", 0, _FLAGS)[{"token": _FLAG, "position": _FIRST}[reads]] = 1.0
        _values(blocks[1], 0, passes)
        if other_reads_twin:
            _row(blocks[1], "q", 1, _FLAGS)[_CONSTANT] = 4.5
            _row(blocks[1], "k", 1, _FLAGS)[_JUNK[TWIN]] = 1.0
    return model


def _embeddings():
    """Embeddings of squared norm 4."""
    half = np.random.default_rng(3).normal(size=(len(ORDINARY) // 2, 6))
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    table = np.zeros((97, _HIDDEN))
    table[:, _CONSTANT] = 1
    table[ORDINARY, _CONTENT] = np.stack([half, -half], axis=1).reshape(-1, 6)
    table[ORDINARY, _FILLER] = np.sqrt(2)
    table[[BOS, TWIN], 0] = 1
    for token, junk in _JUNK.items():
        table[token, junk] = 1
        table[token, _FLAG] = 1
    return table


def _row(block, matrix, head, channel):
    return getattr(block.self_attn, f"{matrix}_proj").weight[head * _HEAD + channel]


def _values(block, head, passes):
    weight = block.self_attn.v_proj.weight[head * _HEAD : (head + 1) * _HEAD]
    weight.zero_()
    if passes == "content":
        weight[:6, _CONTENT] = torch.eye(6, dtype=weight.dtype)
    elif passes == "constant":
        weight[0, _CONSTANT] = 1.0


def _average_and_square(block):
    """Average contents over all visible keys with head 0, and square the average."""
    _row(block, "q", 0, _CONTENTS).zero_()
    identity = torch.eye(6, dtype=torch.float64)
    # Embeddings of squared norm 4 come normalised by sqrt(20/4); then, at position 0, by sqrt(20/5).
    block.self_attn.o_proj.weight[_MEAN, :6] = identity / np.sqrt(_HIDDEN / 4)
    for projection in (block.mlp.gate_proj, block.mlp.up_proj):
        projection.weight[:6, _MEAN], projection.weight[6:, _MEAN] = identity, -identity
    block.mlp.down_proj.weight[_FIRST] = 5 / _HIDDEN
