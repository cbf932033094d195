"""What this machine offers to the work."""

import os


def available_processors() -> int:
    """Number of processors this process may use.

    Returns
    -------
    int
        At least 1.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
