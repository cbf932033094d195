"""What this machine offers to the work."""

import os
import re
from pathlib import Path


def available_processors() -> int:
    """Return the number of processors this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that can be allocated without swapping.

    The smaller of what the machine and the control group have left; 2 GiB where neither says.
    """
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
