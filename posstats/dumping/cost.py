"""What a dump will cost, before it is begun: bytes from the plan, time and compression from a piece of it."""

import logging
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posstats.dumping.inputs import Sequences
from posstats.dumping.memory import sequence_memory
from posstats.dumping.pieces import Pieces
from posstats.dumping.plan import Plan, check_options, make_plan
from posstats.dumping.run import is_current, unfinished
from posstats.dumping.work import Work, join, new_manifest
from posstats.store import parts_folder
from posstats.vocabulary import DEFAULT_OFFSETS

#: Seconds that the rehearsal of a whole batch may take; where a single sequence tells that it would, that one counts.
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What is left to do for a dump, and what it takes.

    Attributes
    ----------
    state : str
        "recorded" (with the same settings: it is reused), "begun" (it is taken up), or "new".
    sequences, left : int
        Sequences in all, and those that are not recorded yet; each condition counted.
    batch : int
        Sequences per forward pass.
    value_bytes : int
        Values of the whole dump before compression.
    file_bytes : int
        The finished file: its size, or what the compression of the rehearsed batch makes likely.
    disk_bytes, free_bytes : int
        Largest need while it is written, and what the disk has left.
    memory_bytes : int
        Weights and one batch.
    seconds : float
        Time, at the speed of the rehearsed batch: recording and writing it.
    """

    state: str
    sequences: int
    left: int
    batch: int
    value_bytes: int
    file_bytes: int
    disk_bytes: int
    free_bytes: int
    memory_bytes: int
    seconds: float


def estimate_cost(
    model: Any,
    sequences: Sequences,
    path: str | Path,
    *,
    conditions: Iterable[str] = ("baseline",),
    offsets: Sequence[int] = DEFAULT_OFFSETS,
    probes: Sequence[int] = (),
    tokenizer: Any = None,
    batch_size: int | None = None,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    overwrite: bool = False,
) -> Cost:
    """Say what :func:`posstats.dump` would cost with the same arguments, leaving no trace.

    The first batch is recorded and written, to a temporary folder, as the dump would be.

    Parameters
    ----------
    model, sequences, path, conditions, offsets, probes, tokenizer, batch_size, seed, shard, overwrite
        As for :func:`posstats.dump`.

    Returns
    -------
    Cost
        What it takes.

    Raises
    ------
    PosstatsError
        As :func:`posstats.dump` does before it begins.
    """
    path = Path(path)
    check_options(batch_size, shard, resume=True)
    plan = make_plan(
        model, sequences, conditions=conditions, offsets=offsets, probes=probes, tokenizer=tokenizer, seed=seed
    )
    share = shard or (1, 1)
    manifest = new_manifest(model, plan, batch_size, share[1])
    everything = plan.sizes["condition"] * plan.sizes["sequence"]
    value_bytes = everything * manifest.sequence_bytes
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    pieces = Pieces(parts_folder(path))
    found = unfinished(pieces, discard=overwrite)
    begun = found is not None and not (overwrite and found.attrs != plan.attrs)
    if begun:
        manifest = pieces.agree(manifest)
    memory = weights + manifest.batch * sequence_memory(
        model.config, plan.sizes["query"], manifest.sequence_bytes, model.dtype.itemsize
    )
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if is_current(path, plan.attrs, overwrite=overwrite, labels=plan.coordinates):
        size = path.stat().st_size
        return Cost("recorded", everything, 0, manifest.batch, value_bytes, size, 0, free, memory, 0.0)
    with tempfile.TemporaryDirectory(prefix="posstats-") as empty:
        spans = (pieces if begun else Pieces(Path(empty))).missing(manifest, share)
    left = sum(span.stop - span.start for span in spans)
    recording, writing, compression = _rehearse(model, sequences, plan, manifest.batch)
    return Cost(
        state="begun" if begun else "new",
        sequences=everything,
        left=left,
        batch=manifest.batch,
        value_bytes=value_bytes,
        file_bytes=int(value_bytes * compression),
        disk_bytes=(left + everything) * manifest.sequence_bytes,
        free_bytes=free,
        memory_bytes=memory,
        seconds=left * recording + everything * writing,
    )


def _rehearse(model: Any, sequences: Sequences, plan: Plan, batch: int) -> tuple[float, float, float]:
    """Seconds per sequence of recording and of writing, and what compression leaves of a byte."""
    logger = logging.getLogger(Work.__module__)
    before = logger.level
    logger.setLevel(logging.WARNING)  # a rehearsal is no news
    try:
        found = _measure(model, sequences, plan, 1)
        # The first pass of a process is slower than the others; a larger batch tells more, if there is time for it.
        for count in (1, batch):
            if found[0] * count < _PATIENCE:
                found = _measure(model, sequences, plan, count)
        return found
    finally:
        logger.setLevel(before)


def _measure(model: Any, sequences: Sequences, plan: Plan, count: int) -> tuple[float, float, float]:
    some = slice(0, count)
    part = replace(
        plan,
        conditions=plan.conditions[:1],
        token_id=plan.token_id[:1, some],
        sizes=plan.sizes | {"condition": 1, "sequence": count},
        coordinates=plan.coordinates
        | {"condition": plan.coordinates["condition"][:1]}
        | {name: plan.coordinates[name][some] for name in ("sequence", "document")},
    )
    fewer = replace(sequences, ids=sequences.ids[some], document=sequences.document[some])
    with tempfile.TemporaryDirectory(prefix="posstats-") as folder:
        path = Path(folder) / "rehearsal.h5"
        pieces = Pieces(parts_folder(path))
        work = Work(model, fewer, part, pieces, pieces.agree(new_manifest(model, part, count)))
        start = time.perf_counter()
        work.run((1, 1), path, show=False)
        recorded = time.perf_counter()
        join(pieces, path)
        written = time.perf_counter()
        # Weighed by its values: coordinates, and attributes, are as large in a file of many sequences.
        compression = min(1.0, path.stat().st_size / (count * new_manifest(model, part, count).sequence_bytes))
        return (recorded - start) / count, (written - recorded) / count, compression
