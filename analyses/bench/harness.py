"""Measuring: interleaved repeats, wall and CPU time, peak memory of a job that has a process to itself."""

import ctypes
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CLOCKS = ("wall", "cpu")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a job: seconds on the wall and seconds of all its threads on the processors."""

    wall: float
    cpu: float


def timed(job: Callable[[], object]) -> Sample:
    """Run a job once. Rubbish of the job before it is collected first."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    job()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(jobs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[Sample]]:
    """Run jobs in turn, A B A B ...: what slows the machine for a while then meets them all."""
    samples: dict[str, list[Sample]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            samples[name].append(timed(job))
    return samples


def spread(values: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest value."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def compared(samples: Mapping[str, Sequence[Sample]], over: str, under: str, scale: float = 1.0) -> dict[str, Any]:
    """Times of two jobs and the ratio within each pair of neighbouring runs.

    Parameters
    ----------
    samples : mapping of str to sequence of Sample
        From :func:`interleaved`.
    over, under : str
        Jobs: numerator and denominator of the ratio.
    scale : float
        Factor of the ratio, where the two did different amounts of work.

    Returns
    -------
    dict
        ``repeats``, ``samples``, and per clock the spread of ``seconds`` of each job and of the ``ratio``.
    """
    result: dict[str, Any] = {
        "repeats": len(samples[over]),
        "samples": {name: [asdict(one) for one in samples[name]] for name in (over, under)},
    }
    for clock in CLOCKS:
        seconds = {name: [getattr(one, clock) for one in samples[name]] for name in (over, under)}
        ratio = [scale * a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
        result[clock] = {
            "seconds": {name: spread(values) for name, values in seconds.items()},
            "ratio": spread(ratio),
        }
    return result


def alone(job: Callable[..., Any], *arguments: Any) -> Any:
    """Run a job in a process of its own, which no other job has left memory in."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(job, *arguments).result()


class Peak:
    """Memory that a block of code took beyond what was resident before it, filled in when the block ends.

    Attributes
    ----------
    baseline, beyond : int
        Bytes resident before the block, and the largest number of bytes resident during it minus those.
    """

    baseline = 0
    beyond = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the peak of the resident set (VmHWM) of this process in a block.

    The kernel's mark is reset at the start, so that what was taken and given back earlier, loading a model say, does
    not count; freed memory is handed back first, so that it does not hide what the block takes.

    Raises
    ------
    OSError
        Where there is no ``/proc/self/clear_refs``: Linux only.
    """
    peak = Peak()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    peak.baseline = _status("VmRSS")
    yield peak
    peak.beyond = _status("VmHWM") - peak.baseline


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = next(line for line in lines if line.startswith(f"{name}:"))
    return int(found.split()[1]) * 1024


def load() -> float:
    """Load average of the last minute: how many processes want the processors, ours among them."""
    return round(os.getloadavg()[0], 2)
