"""How many sequences go through the model at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from posstats.dumping.recorder.statistics import FEWEST_ROWS

#: Tokens of one forward pass beyond which a larger batch gains nothing.
_ENOUGH_TOKENS = {"cpu": 4096, "cuda": 65536}
#: Share of the free memory that a forward pass and its records may take.
_SHARE = 0.5
#: How many copies of a batch's records are alive at once: on the device, in the writer's queue, being written.
_RECORD_COPIES = 5


def available_memory(device: torch.device | None = None) -> int:
    """Bytes that can be allocated on a device without swapping.

    Parameters
    ----------
    device : torch.device, optional
        A CPU or CUDA device; the CPU by default.

    Returns
    -------
    int
        Free bytes; on the CPU the smaller of what the machine and the control group have left.
    """
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    machine = re.search(r"MemAvailable:\s*(\d+) kB", _text("/proc/meminfo"))
    limits = [int(machine[1]) * 1024] if machine else []
    used, limit = _text("/sys/fs/cgroup/memory.current"), _text("/sys/fs/cgroup/memory.max")
    if used.strip().isdigit() and limit.strip().isdigit():
        limits.append(max(0, int(limit) - int(used)))
    return min(limits, default=2**31)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""


def sequence_memory(config: Any, length: int, record_bytes: int, itemsize: int = 4) -> int:
    """Memory that one sequence of a forward pass takes at most, beside the weights.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        The model's configuration.
    length : int
        Tokens per sequence.
    record_bytes : int
        Bytes recorded of one sequence.
    itemsize : int
        Bytes of a number of the model.

    Returns
    -------
    int
        Bytes.
    """
    text = config.get_text_config()
    widest = max(getattr(text, "intermediate_size", None) or 0, 4 * text.hidden_size)
    # Residual stream, its norm, queries, keys, values, attention output and its float32 working copies; the two halves
    # of the gated feed-forward layer and their product; the logits of a block of queries, and copies of some.
    activations = length * (16 * text.hidden_size + 3 * widest + 2 * FEWEST_ROWS * text.num_attention_heads)
    return activations * max(itemsize, 4) + _RECORD_COPIES * record_bytes


def suggested_batch(model: Any, length: int, record_bytes: int) -> int:
    """Number of sequences for one forward pass: a power of two.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model.
    length : int
        Tokens per sequence.
    record_bytes : int
        Bytes recorded of one sequence.

    Returns
    -------
    int
        As many as make the work efficient and surely fit into the memory available; at least 1.
    """
    device = model.device
    each = sequence_memory(model.config, length, record_bytes, model.dtype.itemsize)
    fitting = _SHARE * available_memory(device) / each
    enough = _ENOUGH_TOKENS.get(device.type, _ENOUGH_TOKENS["cuda"]) / length
    return 1 << (max(1, int(min(fitting, enough))).bit_length() - 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the CPU or on an accelerator.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    bool
        True if it does.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
