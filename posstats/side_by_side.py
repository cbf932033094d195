"""Work done side by side: layers on threads, in order; processes with one thread each."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import ThreadpoolController

#: Layers evaluated at once; more only wait for the file.
_MAXIMUM_THREADS = 8
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def side_by_side(job: Callable[[_Given], _Made], labelled: Iterable[tuple[int, _Given]]) -> Iterator[tuple[int, _Made]]:
    """Do a job for one layer after the other, in order, on as many threads as there are processors.

    Linear algebra is kept to one thread meanwhile: the arrays of a layer are small, and the last digit of a result must
    not depend on the number of processors. At most one layer per thread waits in memory.
    """
    n_threads = min(_MAXIMUM_THREADS, os.cpu_count() or 1)
    libraries = ThreadpoolController()

    def alone(given: _Given) -> _Made:
        with libraries.limit(limits=1, user_api="blas"):
            return job(given)

    with ThreadPoolExecutor(n_threads) as pool:
        waiting: deque[tuple[int, Future[_Made]]] = deque()
        for label, given in labelled:
            waiting.append((label, pool.submit(alone, given)))
            if len(waiting) > n_threads:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()


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
