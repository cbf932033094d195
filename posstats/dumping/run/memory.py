"""How many sequences go through the model at once."""

from __future__ import annotations

from typing import Any

import torch

from posstats.dumping.recorder.statistics import FEWEST_ROWS
from posstats.execution.machine import free_memory

#: Tokens of one forward pass beyond which a larger batch gains nothing.
_ENOUGH_TOKENS = {"cpu": 4096, "cuda": 65536}
#: Share of the free memory that a forward pass and its records may take.
_SHARE = 0.5
#: How many copies of a batch's records are alive at once: on the device, in the writer's queue, being written.
_RECORD_COPIES = 5


def available_memory(device: torch.device | None = None) -> int:
    """Return the bytes that can be allocated on a CPU or CUDA device, the CPU by default, without swapping.

    On the CPU the smaller of what the machine and the control group have left.
    """
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory()


def sequence_memory(config: Any, length: int, record_bytes: int, itemsize: int = 4) -> int:
    """Return the bytes that one sequence of `length` tokens takes at most in a forward pass, beside the weights.

    `record_bytes` are recorded of a sequence; `itemsize` is bytes of a number of the model.
    """
    text = config.get_text_config()
    widest = max(getattr(text, "intermediate_size", None) or 0, 4 * text.hidden_size)
    # Residual stream, its norm, queries, keys, values, attention output and its float32 working copies; the two halves
    # of the gated feed-forward layer and their product; the logits of a block of queries, and copies of some.
    activations = length * (16 * text.hidden_size + 3 * widest + 2 * FEWEST_ROWS * text.num_attention_heads)
    return activations * max(itemsize, 4) + _RECORD_COPIES * record_bytes


def suggested_batch(model: Any, length: int, record_bytes: int) -> int:
    """Return the number of sequences, at least 1 and a power of two, for one forward pass.

    As many sequences of `length` tokens, with `record_bytes` recorded of each, as make the work efficient and surely
    fit into the memory available.
    """
    device = model.device
    each = sequence_memory(model.config, length, record_bytes, model.dtype.itemsize)
    fitting = _SHARE * available_memory(device) / each
    enough = _ENOUGH_TOKENS.get(device.type, _ENOUGH_TOKENS["cuda"]) / length
    return 1 << (max(1, int(min(fitting, enough))).bit_length() - 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory ran out, on the CPU or on an accelerator."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
