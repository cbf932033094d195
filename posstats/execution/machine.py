"""What this machine offers to the work."""

import os


def available_processors() -> int:
    """Return the number of processors this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
