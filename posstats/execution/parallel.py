"""Work done side by side: in order on threads, or on a cluster if one is at hand; in processes with one thread each."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, TypeVar

from threadpoolctl import ThreadpoolController

from posstats.errors import ClusterError
from posstats.execution.cluster import Jobs, current_client

#: Pieces of work computed at once on threads; more only wait for the file.
_MAXIMUM_THREADS = 8
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def side_by_side(job: Callable[[_Given], _Made], work: Iterable[_Given]) -> Iterator[tuple[_Given, _Made]]:
    """Do a job for one piece of work after the other; yield each piece with its result, in the order of the work.

    The workers of a ``dask.distributed`` client do it if one is current in this process, else threads, as many as there
    are processors. A piece of work is a description, such as a dataset that is not loaded yet: the job reads what it
    needs, where it runs. For a cluster it and the work must be picklable and small; where the work holds large arrays,
    as it does for a dataset in memory, threads do it. Few pieces are under way at once, so that what waits does not
    fill the memory.

    Linear algebra is kept to one thread meanwhile: the arrays of a job are small, and the last digit of a result must
    not depend on the number of processors.
    """
    pieces = iter(work)
    first = next(pieces, None)
    if first is None:
        return
    pieces = chain([first], pieces)
    client = current_client()
    jobs = None if client is None else Jobs.of(client, _alone, job, first)
    if jobs is not None:
        yield from _in_order(jobs.submit, pieces, jobs.ahead)
        return
    n_threads = min(_MAXIMUM_THREADS, os.cpu_count() or 1)
    with one_thread(), ThreadPoolExecutor(n_threads) as pool:
        yield from _in_order(lambda piece: pool.submit(_alone, job, piece), pieces, lambda: n_threads)


class _Future(Protocol):
    def result(self) -> Any: ...
    def cancel(self) -> Any: ...


def _in_order(
    submit: Callable[[_Given], _Future], pieces: Iterable[_Given], ahead: Callable[[], int]
) -> Iterator[tuple[_Given, Any]]:
    waiting: deque[tuple[_Given, _Future]] = deque()

    def oldest() -> tuple[_Given, Any]:
        piece, future = waiting.popleft()
        return piece, future.result()

    try:
        for piece in pieces:
            waiting.append((piece, submit(piece)))
            if len(waiting) > ahead():
                yield oldest()
        while waiting:
            yield oldest()
    finally:
        for _, future in waiting:
            future.cancel()


def _alone(job: Callable[[_Given], _Made], piece: _Given) -> _Made:
    with one_thread():
        return job(piece)


class _Limited:
    """How many blocks of this process keep linear algebra to one thread, and what it was before the first."""

    lock = threading.Lock()
    count = 0
    libraries: Any = None
    before: Any = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep linear algebra to one thread while the block runs, and others in this process that overlap with it.

    The number of threads belongs to the process in some libraries and to the calling thread in others. So every block
    sets it, and the last to end restores it: were each to restore what it found, one would undo another's.
    """
    with _Limited.lock:
        if _Limited.count == 0:
            _Limited.libraries = ThreadpoolController()
        limits = _Limited.libraries.limit(limits=1, user_api="blas")
        if _Limited.count == 0:
            _Limited.before = limits
        _Limited.count += 1
    try:
        yield
    finally:
        with _Limited.lock:
            _Limited.count -= 1
            if _Limited.count == 0:
                _Limited.before.restore_original_limits()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let processes started here compute with one thread each.

    Linear algebra on several threads in several processes spends its time waiting for threads that have no processor,
    and the number of threads could change the last digit of a result.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def in_processes(job: Callable[[_Given], _Made], tasks: Sequence[_Given], n: int) -> Iterator[tuple[_Given, _Made]]:
    """Do long tasks in `n` processes of their own; yield each with its result as it is ready.

    Job and tasks are picklable, tasks told apart by their hash. Where a task fails, those under way are finished; where
    the caller stops, they are not. Raises ClusterError if a process ended before its task did.
    """
    if not tasks:
        return
    # Fresh processes: forking one that runs threads (torch, dask) is not safe.
    context, before = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    n = min(n, len(tasks))
    with single_threaded(), ProcessPoolExecutor(n, mp_context=context, initializer=_end_with_parent) as pool:
        futures = {pool.submit(job, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise ClusterError(
                "a process that computed an answer ended before it had it, most likely killed for want of memory: make "
                "blocks smaller (docs/scale.md), or let fewer run at once (workers under [run]); answers that are "
                "complete are kept"
            ) from error
        except Exception:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        except BaseException:  # stopped: what is under way may take hours
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise


def _end_with_parent() -> None:
    """Let this process end when the one that started it does, even if that was killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
