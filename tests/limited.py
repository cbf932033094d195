"""Analyses of a dump under a hard limit of memory; run as a program by tests/execution/test_scale.py.

The limit is RLIMIT_DATA, which Linux enforces on the heap and on private writable mappings, so on every array. It is
set before anything is imported. Workers of a cluster set the same limit for themselves.
"""

import os
import pickle
import re
import resource
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

#: What jobs may read at once, in place of the default.
BLOCKS = "6 MiB"
#: Results after which a worker is killed.
KILL_AFTER = 5


def limit(n_bytes):
    threading.stack_size(2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes))


def shares(ds):
    import posstats as ps

    return {"shares": ps.shares(ds, by=["layer"], octaves=False, n_permutations=99).table}


def others(ds):
    import posstats as ps

    sinks = ps.sinks(ds)
    return {
        "removal": ps.removal(ds, "bos=mean", n_permutations=99).table,
        "sinks": sinks.table,
        "sink contrasts": sinks.contrasts.table,
    }


def concatenated(files, repeats):
    """The layers of several dumps, over and over, as one lazy dump."""
    import numpy as np
    import xarray as xr

    import posstats as ps

    parts = [ps.open_dump(file) for file in files] * repeats
    joined = {}
    for name, first in parts[0].data_vars.items():
        dim = next((dim for dim in ("layer", "depth") if dim in first.dims), None)
        joined[name] = (
            first
            if dim is None
            else xr.concat([part[name] for part in parts], dim, coords="minimal", compat="override")
        )
    n_layers = joined["logit"].sizes["layer"]
    labels = {"layer": np.arange(n_layers), "depth": np.arange(n_layers + 1)}
    joined = {name: one.isel(depth=slice(n_layers + 1)) if "depth" in one.dims else one for name, one in joined.items()}
    joined = {
        name: one.assign_coords({dim: labels[dim] for dim in labels if dim in one.dims}) for name, one in joined.items()
    }
    return xr.Dataset(joined, attrs=parts[0].attrs)


def kill_midway(client):
    """Let the first worker be killed once a few results are there; returns the processes that workers have been."""
    from posstats.execution import cluster

    processes = set(client.run(os.getpid).values())
    victim = min(processes)
    original, count = cluster._Awaited.result, iter(range(10**9))

    def result(self):
        made = original(self)
        if next(count) == KILL_AFTER:
            os.kill(victim, signal.SIGKILL)
        return made

    cluster._Awaited.result = result
    return processes


class Killer(threading.Thread):
    """Kills a worker that records a share of a dump as soon as a first piece is there."""

    def __init__(self, parts):
        super().__init__(daemon=True)
        self.parts, self.killed = parts, None

    def run(self):
        deadline = time.monotonic() + 600
        while self.killed is None and time.monotonic() < deadline:
            if any(self.parts.glob("*.piece")):
                for lock in self.parts.glob("shard-*.lock"):
                    holder = re.match(r"process (\d+) ", lock.read_text())
                    if holder:
                        self.killed = int(holder[1])
                        os.kill(self.killed, signal.SIGKILL)
                        return
            time.sleep(0.005)


def on_cluster(ds, n_bytes):
    """Shares on two workers, one of which is killed midway."""
    import distributed

    preload = f"from tests.limited import limit\nlimit({n_bytes})"
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0, preload=[preload]
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        limits = set(client.run(resource.getrlimit, resource.RLIMIT_DATA).values())
        assert limits == {(n_bytes, n_bytes)}, limits
        before = kill_midway(client)
        found = shares(ds)
        client.wait_for_workers(2, timeout=60)
        assert set(client.run(os.getpid).values()) != before, "no worker was killed"
    return found


def main(mode, n_bytes, out, *files):
    n_bytes = int(n_bytes)
    limit(n_bytes)
    warnings.simplefilter("ignore")  # eight documents are few
    import dask

    import posstats as ps
    from posstats.dataset.store import write_dump

    dask.config.set({"posstats.block-bytes": BLOCKS})
    if mode == "write":
        write_dump(concatenated(files[1:], int(files[0])), out)
        return
    if mode == "load":
        try:
            ps.open_dump(files[0]).load()
        except (MemoryError, ps.errors.DumpError) as error:  # numpy's, and HDF5's whose filters find no memory
            Path(out).write_text(f"{type(error).__name__}: {error}")
        return
    ds = ps.open_dump(files[0])
    found = shares(ds) | others(ds) if mode == "threads" else on_cluster(ds, n_bytes)
    Path(out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
