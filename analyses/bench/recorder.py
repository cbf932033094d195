"""Recording measured: time against forward passes without a recorder, peak memory, files."""

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import posstats as ps
from analyses.bench.eager import eager, eager_statistics
from analyses.bench.harness import alone, compared, interleaved, load, peak_memory, spread, timed
from posstats.dataset.store import write_dump
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.run.memory import suggested_batch
from posstats.errors import FewDocumentsWarning
from posstats.vocabulary import DEFAULT_OFFSETS

#: Fewest sequences a dump is made of.
FEWEST = 5
#: Variables that both the recorder and the eager reductions find.
SHARED = ("logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum")


@dataclass(frozen=True)
class Bench:
    """What is measured on which model.

    Attributes
    ----------
    model, models_dir : str
        As :func:`posstats.load_model` takes them.
    scratch : str
        Folder for files that are measured and removed.
    forward : tuple of (int, int)
        Lengths, and sequences of that length, at which a dump is compared with a plain forward pass.
    eager_length : int
        Length at which it is compared with eager attention.
    memory_lengths : tuple of int
        Lengths at which peak memory is measured.
    repeats : int
        Interleaved repeats.
    """

    model: str
    models_dir: str
    scratch: str
    forward: tuple[tuple[int, int], ...]
    eager_length: int
    memory_lengths: tuple[int, ...]
    repeats: int


class Subject:
    """A loaded model and what is done with it."""

    def __init__(self, bench: Bench) -> None:
        self.model, self.tokenizer = ps.load_model(bench.model, models_dir=bench.models_dir, device="cpu")
        # A checkpoint is mapped, not read: a weight that is touched for the first time would look like memory taken.
        for weight in self.model.parameters():
            weight.sum()
        with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:  # first calls choose kernels and allocate
            sequences = self.sequences(FEWEST, 32)
            self.dump(sequences, Path(folder) / "first.h5", FEWEST)
            self.forward(sequences.ids, FEWEST)

    def sequences(self, count: int, length: int) -> Any:
        """Random token sequences."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewDocumentsWarning)  # nothing is estimated from them
            return ps.random_sequences(self.tokenizer, n=count, length=length, seed=0)

    def batch(self, length: int) -> int:
        """Sequences per forward pass that a dump would choose."""
        return suggested_batch(self.model, length, 0)

    def dump(self, sequences: Any, path: Path, batch: int) -> None:
        """Record sequences, from the model to the finished file."""
        path.unlink(missing_ok=True)
        ps.dump(self.model, sequences, path, tokenizer=self.tokenizer, batch_size=batch, progress=False)

    def forward(self, ids: np.ndarray, batch: int) -> None:
        """Tokens through the model's own attention (SDPA), without its logits head."""
        with torch.inference_mode():
            for part in torch.as_tensor(ids).split(batch):
                self.model.base_model(input_ids=part, use_cache=False)

    def eager(self, ids: np.ndarray) -> None:
        """The same statistics from eager attention weights."""
        with eager(self.model):
            eager_statistics(self.model, torch.as_tensor(ids), DEFAULT_OFFSETS)


def measure_forward(bench: Bench) -> dict[str, Any]:
    """Dump, writing included, against a plain forward pass; then the files."""
    return alone(_forward, bench)


def _forward(bench: Bench) -> dict[str, Any]:
    subject = Subject(bench)
    rows, files = [], []
    for length, count in bench.forward:
        sequences, batch = subject.sequences(count, length), min(subject.batch(length), count)
        with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
            path = Path(folder) / "dump.h5"
            jobs: dict[str, Callable[[], object]] = {
                "forward": partial(subject.forward, sequences.ids, batch),
                "dump": partial(subject.dump, sequences, path, batch),
            }
            before = load()
            times = compared(interleaved(jobs, bench.repeats), over="dump", under="forward")
            shape = {"length": length, "sequences": count, "batch": batch, "tokens": length * count}
            rows.append(shape | times | {"load": [before, load()]})
            files.append(shape | _file(path, bench.repeats))
    return {"rows": rows, "files": files, "threads": torch.get_num_threads()}


def _file(path: Path, repeats: int) -> dict[str, Any]:
    """Size of a dump, and how fast it is read (all of it) and written again (compressed, synced) from memory."""
    with ps.open_dump(path) as dataset:
        loaded = dataset.load()
    again = path.with_name("again.h5")

    def read() -> None:
        with ps.open_dump(path) as dataset:
            dataset.load()

    samples = interleaved({"write": lambda: write_dump(loaded, again), "read": read}, repeats)
    size, tokens = path.stat().st_size, loaded.token_id.size
    return {
        "bytes": size,
        "raw_bytes": loaded.nbytes,
        "bytes_per_token": size / tokens,
        "raw_bytes_per_token": loaded.nbytes / tokens,
        "raw_bytes_per_second": {
            name: spread([loaded.nbytes / one.wall for one in runs]) for name, runs in samples.items()
        },
    }


def measure_eager(bench: Bench) -> dict[str, Any]:
    """Dump against eager attention weights and the same reductions: agreement, time, peak memory."""
    result = alone(_eager_times, bench)
    memory = {job: alone(measure_peak, bench, job, bench.eager_length) for job in ("dump", "eager")}
    return result | {"memory": memory, "memory_ratio": memory["dump"]["beyond"] / memory["eager"]["beyond"]}


def _eager_times(bench: Bench) -> dict[str, Any]:
    subject = Subject(bench)
    length = bench.eager_length
    sequences = subject.sequences(FEWEST, length)
    one = sequences.ids[:1]
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        jobs: dict[str, Callable[[], object]] = {
            "dump": partial(subject.dump, sequences, Path(folder) / "dump.h5", 1),
            "eager": partial(subject.eager, one),
        }
        before = load()
        # One sequence is enough for the slower of the two; what a dump does once is in its five.
        times = compared(interleaved(jobs, bench.repeats), over="eager", under="dump", scale=FEWEST)
    shape = {"length": length, "sequences": {"dump": FEWEST, "eager": 1}, "batch": 1, "load": [before, load()]}
    return shape | times | {"largest_difference": _differences(subject, one)}


def _differences(subject: Subject, tokens: np.ndarray) -> dict[str, float]:
    """Largest difference between what the two record, relative to 1 + the size of the value."""
    ids = torch.as_tensor(tokens)
    with eager(subject.model):
        layers = eager_statistics(subject.model, ids, DEFAULT_OFFSETS)
    with torch.inference_mode():
        embedded = subject.model.get_input_embeddings()(ids)
    with Recorder(subject.model, length=ids.shape[1], offsets=DEFAULT_OFFSETS) as recorder:
        record = recorder.record(embedded, torch.arange(ids.shape[1])[None])
    differences = {}
    for name in SHARED:
        theirs = np.stack([layer[name].numpy() for layer in layers], axis=1)
        ours = np.asarray(getattr(record, name))
        # Query 0 sees no key but position 0.
        known = np.isfinite(ours) & np.isfinite(theirs)
        if name in ("logit", "log_denominator_rest") and not (known == np.isfinite(ours)).all():
            raise RuntimeError(f"eager attention weights lost values of {name} that the recorder has")
        ours, theirs = ours[known], theirs[known]
        differences[name] = float((np.abs(ours - theirs) / (1 + np.abs(ours))).max())
    return differences


def measure_memory(bench: Bench) -> dict[str, Any]:
    """Peak memory beyond the weights of a dump and of a plain forward pass, one sequence at a time, as T doubles."""
    rows = []
    for length in bench.memory_lengths:
        row: dict[str, Any] = {"length": length}
        for job in ("dump", "forward"):
            row[job] = alone(measure_peak, bench, job, length)
            row[job]["growth"] = row[job]["beyond"] / rows[-1][job]["beyond"] if rows else None
        rows.append(row)
    return {"rows": rows}


def measure_peak(bench: Bench, job: str, length: int) -> dict[str, Any]:
    """Peak memory of one job beyond what the loaded model takes; to be called in a process of its own."""
    subject = Subject(bench)
    sequences = subject.sequences(FEWEST, length)
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        jobs: dict[str, Callable[[], object]] = {
            "dump": partial(subject.dump, sequences, Path(folder) / "dump.h5", 1),
            "forward": partial(subject.forward, sequences.ids[:1], 1),
            "eager": partial(subject.eager, sequences.ids[:1]),
        }
        with peak_memory() as peak:
            sample = timed(jobs[job])
    return {"baseline": peak.baseline, "beyond": peak.beyond, "wall": sample.wall, "cpu": sample.cpu}
