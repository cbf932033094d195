"""The connection to dask.distributed: which client is at hand, jobs on its workers, what the option --scheduler names.

``distributed`` is imported where a scheduler is asked for and nowhere else: without one nobody needs it.
"""

import importlib
import json
import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import dask
from dask.utils import parse_timedelta

from posstats.errors import ClusterError, DumpError, InputError
from posstats.execution.machine import available_processors
from posstats.execution.provenance import versions

logger = logging.getLogger(__name__)

#: Seconds that a scheduler has to answer.
ANSWER_SECONDS = 5.0
#: How long work waits while the scheduler has no worker that takes it. Set anew by
#: ``dask.config.set({"posstats.worker-wait": "2 h"})`` or the variable DASK_POSSTATS__WORKER_WAIT.
WORKER_WAIT = "10 minutes"
#: Seconds between two looks at the workers while a job is waited for.
LOOK_SECONDS = 5.0
#: What workers of this machine do first: Ctrl-C is for this process, which ends them, and so is what jobs raise; each
#: would show a traceback of it.
_QUIET = (
    "import logging, signal\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "logging.getLogger('distributed.worker').setLevel(logging.CRITICAL)"
)
#: A job that is larger than this, pickled, holds data: it stays in this process, where they are.
JOB_BYTES = 2**20


def current_client() -> Any | None:
    """Return the ``distributed.Client`` at hand in this process, None where there is none.

    None, too, inside a task of a cluster, which would wait for tasks that find no worker, and for clients of
    asynchronous code.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        client = distributed.Client.current()
    except ValueError:
        return None
    try:
        distributed.get_worker()
    except ValueError:
        return None if client.asynchronous else client
    return None


class Jobs:
    """Jobs on the workers of a cluster.

    A job that was lost with its worker is done again by another one: what it needs is in its description.
    """

    def __init__(self, client: Any, run: Callable[..., Any], job: Callable[..., Any]) -> None:
        self._client, self._run, self._job = client, run, job

    @classmethod
    def of(cls, client: Any, run: Callable[..., Any], job: Callable[..., Any], first: Any) -> "Jobs | None":
        """Jobs ``run(job, piece)``, or None where the first piece shows that they would carry data."""
        buffers: list[pickle.PickleBuffer] = []
        payload = cloudpickle.dumps((job, first), protocol=5, buffer_callback=buffers.append)
        size = len(payload) + sum(buffer.raw().nbytes for buffer in buffers)
        if size > JOB_BYTES:
            logger.info("the data lie in the memory of this process: they are analysed here, not on the cluster")
            return None
        return cls(client, run, job)

    def submit(self, piece: Any) -> "_Awaited":
        """Send a job to the cluster."""
        job = pickle.dumps(_Call(cloudpickle.dumps((self._run, self._job, piece)), versions()))
        with _connection(self._client):
            # Unpickling does the job: a worker without posstats then says so, where it would end if it had to know
            # our function to understand what it is asked for. The scheduler need not know it at all.
            return _Awaited(self._client, self._client.submit(pickle.loads, job, pure=False))

    def ahead(self) -> int:
        """Jobs that may be under way: two per thread of the workers there are now."""
        with _connection(self._client):
            return 2 * max(1, sum(self._client.nthreads().values()))


class _Awaited:
    """The result of a job, to come."""

    def __init__(self, client: Any, future: Any) -> None:
        self._client, self._future = client, future

    def result(self) -> Any:
        """Wait for it, as long as somebody may do it, and raise what the job raised."""
        distributed = sys.modules["distributed"]
        patience = worker_wait()
        served = time.monotonic()
        with _connection(self._client):
            while not self._future.done():
                try:
                    distributed.wait(self._future, timeout=min(LOOK_SECONDS, patience))
                except TimeoutError:
                    served = time.monotonic() if _takes_work(self._client) else served
                    if time.monotonic() - served >= patience:
                        raise ClusterError(
                            f"for {patience:.0f} s the scheduler has had no worker that takes work (none at "
                            "all, or all paused for want of memory): start workers, give them more memory, or let "
                            "the work wait longer (DASK_POSSTATS__WORKER_WAIT='2 h')"
                        ) from None
            lost = self._future.cancelled()
        if lost:
            raise ClusterError(_LOST)
        try:
            return self._future.result()
        except distributed.KilledWorker as error:
            raise ClusterError(
                "the workers that took up one job ended, one after the other, most likely for want of memory: give "
                "workers more memory, or make blocks smaller (docs/scale.md)"
            ) from error
        except distributed.client.FutureCancelledError as error:
            raise ClusterError(_LOST) from error
        except ImportError as error:
            raise InputError(
                f"a worker cannot import what a job needs ({error}): all workers need the same posstats and libraries"
            ) from error

    def cancel(self) -> None:
        """Forget it."""
        self._future.cancel()


_LOST = "the scheduler, or the connection to it, was lost before the work was done"


@contextmanager
def _connection(client: Any) -> Iterator[None]:
    """What goes wrong with the connection itself while the block runs, in our words."""
    distributed = sys.modules["distributed"]
    try:
        yield
    except (OSError, distributed.client.ClosedClientError, distributed.client.FutureCancelledError) as error:
        raise ClusterError(_LOST) from error
    except AttributeError as error:
        if client.scheduler is not None:
            raise
        raise ClusterError(_LOST) from error  # a client that is closed has none to ask


def _takes_work(client: Any) -> bool:
    return any(worker.get("status", "running") == "running" for worker in client.scheduler_info()["workers"].values())


def worker_wait() -> float:
    """Return for how many seconds work waits while there is no worker that takes it (:data:`WORKER_WAIT`).

    Raises InputError if something else than a time is configured.
    """
    configured = dask.config.get("posstats.worker-wait", WORKER_WAIT)
    try:
        return float(parse_timedelta(configured))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"posstats.worker-wait must be a time, such as '10 minutes', not {configured!r}") from error


class _Call:
    """A job that is done where it is unpickled."""

    def __init__(self, payload: bytes, expected: dict[str, str]) -> None:
        self._payload, self._expected = payload, expected

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, dict[str, str]]]:
        return _work, (self._payload, self._expected)


def _work(payload: bytes, expected: dict[str, str]) -> Any:
    """On a worker: unpack a job and do it."""
    own = versions()
    differ = sorted(name for name in expected if own.get(name) != expected[name])
    if differ:
        told = ", ".join(f"{name} {own.get(name, 'none')[:12]} there, {expected[name][:12]} here" for name in differ)
        raise InputError(f"the workers compute with other versions, whose results would differ: {told}")
    try:
        run, job, piece = pickle.loads(payload)
    except OSError as error:
        raise DumpError(
            f"a worker cannot read the data ({error}): all workers need the same files under the same names"
        ) from error
    return run(job, piece)


@contextmanager
def scheduler(where: str) -> Iterator[str | None]:
    """Yield the address of the scheduler that the option --scheduler names, None for "none", while the block runs.

    "local" starts one on this machine, with a worker per processor; else an address, such as tcp://10.0.0.1:8786, or
    the file that ``dask scheduler --scheduler-file`` wrote. Raises InputError if ``distributed`` is not installed, or
    no scheduler answers.
    """
    if where == "none":
        yield None
    elif where == "local":
        distributed = _distributed()
        with distributed.LocalCluster(
            n_workers=available_processors(),
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
            preload=[_QUIET],
        ) as cluster:
            yield cluster.scheduler_address
    else:
        with connected(where) as client:
            if not client.nthreads():
                wait = worker_wait()
                logger.info(
                    "the scheduler at %s has no workers yet: the work waits for them, up to %.0f s", where, wait
                )
            address = client.scheduler.address
        yield address


@contextmanager
def connected(where: str | None) -> Iterator[Any]:
    """Yield a client of a scheduler, given by address or scheduler file, that is current in this process for the block.

    None for None. Raises InputError if ``distributed`` is not installed, or no scheduler answers.
    """
    if where is None:
        yield None
        return
    distributed = _distributed()
    path = Path(where)
    try:
        address = json.loads(path.read_text(encoding="utf-8"))["address"] if path.is_file() else where
        client = distributed.Client(address, timeout=ANSWER_SECONDS)
    except KeyError as error:
        raise InputError(
            f"{where} is no file that `dask scheduler --scheduler-file` wrote: it names no {error}"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"no scheduler answers at {where!r} ({error}): give none, local, an address such as tcp://10.0.0.1:8786, "
            "or the file that `dask scheduler --scheduler-file` wrote"
        ) from error
    with client:
        yield client


def _distributed() -> ModuleType:
    try:
        return importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise InputError(
            f"a scheduler needs {error.name}, which is not installed: pip install posstats[distributed]"
        ) from error
