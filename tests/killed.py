"""Kills dumps and takes them up again; run as a program by tests/dumping/test_run.py.

The process imports torch once, has a single thread, and forks a child for every dump, so a kill costs milliseconds.
"""

import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from posstats.dumping.inputs.sequences import random_sequences
from posstats.dumping.run.dump import dump
from tests import tiny

OPTIONS = {"conditions": ["baseline", "bos=mean"], "offsets": [0, 1, 4], "batch_size": 2, "progress": False}


def child(work):
    """Do `work` in a forked process; returns its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_at(step):
    """Let the process kill itself at its step-th step towards the disk: before or after a flush or a rename."""
    steps = itertools.count()

    def dying(function):
        def wrapped(*args, **options):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **options)
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    os.fsync = dying(os.fsync)
    Path.replace = dying(Path.replace)
    return steps


def main(folder, seed):
    torch.set_num_threads(1)
    rng = random.Random(seed)
    model, seqs = tiny.build("llama"), random_sequences(tiny.tokenizer(), n=8, length=16)

    def work(path, step=None, shard=None):
        steps = die_at(step) if step is not None else None
        dump(model, seqs, path, shard=shard, **OPTIONS)
        return steps

    # Warm up what is made once per process, and count the steps of an undisturbed dump.
    counted = folder / "steps"
    start = time.monotonic()
    status_of(child(lambda: counted.write_text(str(next(work(folder / "whole.h5", step=10**9))))))
    seconds, steps = time.monotonic() - start, int(counted.read_text())
    whole = (folder / "whole.h5").read_bytes()

    report = {"kills": 0, "steps": steps, "different": [], "left_over": []}
    plans = [("step", step) for step in rng.sample(range(steps), 20)]
    plans += [("time", rng.uniform(0, seconds)) for _ in range(4)]
    for kind, when in plans:
        target = folder / f"{kind}-{when}" / "dump.h5"
        if kind == "step":
            report["kills"] += status_of(child(lambda: work(target, step=when))) == -signal.SIGKILL  # noqa: B023 (waited for)
        else:
            pid = child(lambda: work(target))  # noqa: B023 (waited for)
            time.sleep(when)
            os.kill(pid, signal.SIGKILL)
            report["kills"] += status_of(pid) == -signal.SIGKILL
        status_of(child(lambda: work(target)))  # noqa: B023 (waited for)
        if not target.exists() or target.read_bytes() != whole:
            report["different"].append([kind, when])
        report["left_over"] += [file.name for file in target.parent.iterdir() if file != target]
        shutil.rmtree(target.parent)

    together = folder / "together" / "dump.h5"
    shards = [child(lambda: work(together, shard=(k, 3))) for k in (1, 2, 3)]  # noqa: B023 (forked at once)
    report["shards"] = [status_of(pid) for pid in shards]
    report["joined"] = together.exists() and together.read_bytes() == whole
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
