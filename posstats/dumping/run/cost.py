"""What a dump will cost, before it is begun: bytes from the plan, time and compression from a piece of it."""

import logging
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posstats.dataset.store import parts_folder
from posstats.dumping.inputs.sequences import Sequences
from posstats.dumping.run.dump import is_current, replaced, unfinished
from posstats.dumping.run.memory import sequence_memory
from posstats.dumping.run.options import RecordOptions
from posstats.dumping.run.pieces import Pieces
from posstats.dumping.run.plan import Plan, make_plan
from posstats.dumping.run.work import Work, join, new_manifest

#: Seconds that the rehearsal of batches may take; where one sequence tells that it would take more, that one counts.
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
        The finished file: its size, or what the compression of the rehearsed sequences makes likely.
    disk_bytes, free_bytes : int
        Largest need while it is written, and what the disk has left.
    memory_bytes : int
        Weights and one batch.
    seconds : float
        Time, at the speed of the rehearsed sequences: recording and writing them.
    replaces : str
        What the file there is that would be replaced, as the end of a sentence; empty where there is none.
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
    replaces: str = ""


def estimate_cost(model: Any, sequences: Sequences, path: Path, options: RecordOptions, tokenizer: Any = None) -> Cost:
    """Say what :func:`posstats.dump` would cost with the same arguments, leaving no trace.

    The first batches are recorded and written, to a temporary folder, as the dump would be.

    Parameters
    ----------
    model, sequences, path, tokenizer
        As for :func:`posstats.dump`.
    options : RecordOptions
        Its options.

    Returns
    -------
    Cost
        What it takes.

    Raises
    ------
    PosstatsError
        As :func:`posstats.dump` does before it begins.
    """
    overwrite = options.overwrite
    plan = make_plan(model, sequences, options, tokenizer)
    manifest = new_manifest(model, plan, options)
    everything = plan.sizes["condition"] * plan.sizes["sequence"]
    value_bytes = everything * manifest.sequence_bytes
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    pieces = Pieces(parts_folder(path))
    found = unfinished(pieces, discard=overwrite)
    begun = found is not None and not (overwrite and found.attrs != plan.attrs)
    if begun:
        manifest = pieces.agree(manifest)
    memory = weights + manifest.batch * sequence_memory(
        model.config, plan.sizes["token"], manifest.sequence_bytes, model.dtype.itemsize
    )
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if is_current(path, plan.attrs, overwrite=overwrite, labels=plan.coordinates):
        size = path.stat().st_size
        return Cost("recorded", everything, 0, manifest.batch, value_bytes, size, 0, free, memory, 0.0)
    with tempfile.TemporaryDirectory(prefix="posstats-") as empty:
        spans = (pieces if begun else Pieces(Path(empty))).missing(manifest, options.share)
    left = sum(span.stop - span.start for span in spans)
    one, some = _rehearse(model, sequences, plan, manifest.batch)
    return Cost(
        state="begun" if begun else "new",
        sequences=everything,
        left=left,
        batch=manifest.batch,
        value_bytes=value_bytes,
        file_bytes=int(value_bytes * some.compression),
        disk_bytes=(left + everything) * manifest.sequence_bytes,
        free_bytes=free,
        memory_bytes=memory,
        seconds=some.seconds(one, left, everything),
        replaces=replaced(path, plan.attrs, plan.coordinates),
    )


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """Seconds that recording and writing some sequences took, and the size of their file beside that of the values."""

    count: int
    recording: float
    writing: float
    compression: float

    def seconds(self, one: "_Rehearsal", left: int, everything: int) -> float:
        """Time of recording what is left and writing everything, given a rehearsal of one sequence too.

        A file costs something however little is in it: of two rehearsals what a sequence adds can be told from that.
        """
        each = self.writing / self.count
        if self.count > one.count:
            each = max(0.0, self.writing - one.writing) / (self.count - one.count)
        start = max(0.0, self.writing - each * self.count)
        return left * self.recording / self.count + start + everything * each


def _rehearse(model: Any, sequences: Sequences, plan: Plan, batch: int) -> tuple[_Rehearsal, _Rehearsal]:
    """Rehearsals of one sequence and of as many as there is time for, at most two batches."""
    logger = logging.getLogger(Work.__module__)
    before = logger.level
    logger.setLevel(logging.WARNING)  # a rehearsal is no news
    try:
        one = _measure(model, sequences, plan, 1, 1)
        if one.recording < _PATIENCE:  # the first pass of a process is slower than the others
            one = _measure(model, sequences, plan, 1, 1)
        # Two batches tell more than one, whose memory is new, and one more than a sequence by itself.
        for count in (min(2 * batch, sequences.count), batch):
            if count > 1 and one.recording * count < _PATIENCE:
                return one, _measure(model, sequences, plan, count, batch)
        return one, one
    finally:
        logger.setLevel(before)


def _measure(model: Any, sequences: Sequences, plan: Plan, count: int, batch: int) -> _Rehearsal:
    some = slice(0, count)
    part = replace(
        plan,
        conditions=plan.conditions[:1],
        token_id=plan.token_id[:1, some],
        substitute_id=plan.substitute_id[:1, some],
        sizes=plan.sizes | {"condition": 1, "sequence": count},
        coordinates=plan.coordinates
        | {"condition": plan.coordinates["condition"][:1]}
        | {name: plan.coordinates[name][some] for name in ("sequence", "document")},
    )
    fewer = replace(sequences, ids=sequences.ids[some], document=sequences.document[some])
    with tempfile.TemporaryDirectory(prefix="posstats-") as folder:
        path = Path(folder) / "rehearsal.h5"
        pieces = Pieces(parts_folder(path))
        manifest = new_manifest(model, part, RecordOptions(batch_size=batch))
        work = Work(model, fewer, part, pieces, pieces.agree(manifest), controls=False)
        start = time.perf_counter()
        work.run((1, 1), path, show=False)
        recorded = time.perf_counter()
        join(pieces, path)
        written = time.perf_counter()
        # Weighed by its values: coordinates, and attributes, are as large in a file of many sequences.
        compression = min(1.0, path.stat().st_size / (count * manifest.sequence_bytes))
        return _Rehearsal(count, recorded - start, written - recorded, compression)
