"""A process's share of a dump: batches become pieces, and pieces one file."""

from __future__ import annotations

import logging
import math
import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posstats.dataset.seals import totals
from posstats.dataset.store import followed, write_dump
from posstats.dumping.inputs.conditions import apply
from posstats.dumping.inputs.sequences import Sequences
from posstats.dumping.recorder.recorder import ForwardRecord, Recorder
from posstats.dumping.run.controls import control_facts
from posstats.dumping.run.joined import joined
from posstats.dumping.run.memory import is_out_of_memory, suggested_batch
from posstats.dumping.run.options import RecordOptions
from posstats.dumping.run.pieces import Manifest, Pieces, Span
from posstats.dumping.run.plan import Plan
from posstats.errors import DumpError
from posstats.execution.files import replace_durably
from posstats.execution.progress import progress as report_progress

logger = logging.getLogger(__name__)

#: Batches whose pieces may wait for the disk while the next one is computed.
_WAITING = 2


def new_manifest(model: Any, plan: Plan, options: RecordOptions) -> Manifest:
    """The manifest of a dump of which nothing is recorded.

    Sequences per forward pass are as many as asked for, or else as fit, few enough that every shard gets some.
    """
    manifest, count = Manifest(plan.attrs, plan.sizes, plan.dtype, unit=1, batch=1), plan.sizes["sequence"]
    batch = options.batch_size
    if batch is None:
        fitting = suggested_batch(model, plan.sizes["token"], manifest.sequence_bytes)
        batch = min(fitting, math.ceil(count / options.share[1]))
    batch = min(batch, count)
    return replace(manifest, unit=batch, batch=batch)


class Work:
    """One process's share of a dump; `controls` says whether the model's known answers are recorded beside it."""

    def __init__(
        self,
        model: Any,
        sequences: Sequences,
        plan: Plan,
        pieces: Pieces,
        manifest: Manifest,
        *,
        controls: bool = True,
    ) -> None:
        self._model, self._plan, self._pieces, self._manifest = model, plan, pieces, manifest
        self._sequences, self._controls = sequences, controls
        self._feeds = [apply(condition, sequences, model, seed=plan.seed) for condition in plan.conditions]

    def run(self, shard: tuple[int, int], path: Path, *, show: bool) -> None:
        """Record what is missing of a share, or damaged."""
        sizes = self._manifest.sizes
        for file in self._pieces.faulty(self._manifest, shard):
            logger.warning("%s is damaged or of another dump: it is removed, and what is missing recorded anew", file)
            file.unlink(missing_ok=True)
        missing = self._pieces.missing(self._manifest, shard)
        total = sum(span.stop - span.start for span in missing)
        if total < sizes["condition"] * sizes["sequence"]:
            share = f" by this shard, {shard[0]} of {shard[1]}" if shard != (1, 1) else ""
            logger.info("%s: %d sequences are left to record%s", path, total, share)
        unknown = self._pieces.frame(self._manifest) is None
        if not missing and unknown:
            # What is known for the whole dump comes with a batch, whichever it is.
            missing = self._pieces.spans(self._manifest)[:1]
        if not missing:
            return
        self._check_space(total, path)
        controls = self._known_answers() if self._controls and unknown else {}
        with (
            report_progress(f"dump {path.name}", total, unit="sequence", show=show) as bar,
            self._recorder() as recorder,
            ThreadPoolExecutor(1, thread_name_prefix="posstats-writer") as writer,
        ):
            waiting: deque[Future[None]] = deque()
            todo = deque(missing)
            first = True
            while todo:
                span = self._next(todo)
                record = self._record(recorder, span, todo)
                if record is None:
                    continue
                if first:
                    self._keep_frame(recorder, controls)
                    first = False
                waiting.append(writer.submit(self._pieces.write, self._manifest, span, _arrays(record)))
                while waiting and (waiting[0].done() or len(waiting) > _WAITING):
                    waiting.popleft().result()
                bar.update(span.stop - span.start)
            for future in waiting:
                future.result()

    def _recorder(self) -> Recorder:
        plan = self._plan
        return Recorder(self._model, length=plan.sizes["token"], offsets=plan.offsets, probes=plan.probes)

    def _known_answers(self) -> dict[str, float | str]:
        try:
            return control_facts(self._model, self._sequences)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return {"control_note": "not enough memory"}

    def _next(self, todo: deque[Span]) -> Span:
        """The next span, cut to the batch size."""
        span = todo.popleft()
        cut = span.start + self._manifest.batch
        if cut < span.stop:
            todo.appendleft(replace(span, start=cut))
            span = replace(span, stop=cut)
        return span

    def _record(self, recorder: Recorder, span: Span, todo: deque[Span]) -> ForwardRecord | None:
        """One forward pass; None, and the span back in front of the others, where memory ran out."""
        feed = self._feeds[span.condition]
        try:
            rows = slice(span.start, span.stop)
            batch = feed.batch(self._model, rows)
            return recorder.record(*batch, anchor=feed.anchor, substitute=feed.substitutes(rows))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            count = span.stop - span.start
            if count == 1:
                raise DumpError(
                    f"one sequence of {self._manifest.sizes['token']} tokens does not fit into the memory: use shorter "
                    "sequences, fewer offsets, a smaller dtype, or a larger machine"
                ) from error
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        logger.warning("out of memory with %d sequences at once, going on with %d", count, count // 2)
        # Kept on disk too: a resumed dump then has the same batches, hence the same bytes.
        self._manifest = replace(self._manifest, batch=count // 2)
        self._pieces.replace_manifest(self._manifest)
        todo.appendleft(span)
        return None

    def _keep_frame(self, recorder: Recorder, controls: dict[str, float | str]) -> None:
        visible, analysed = recorder.visible_keys, self._plan.sizes["query"]
        everything = visible[:, -1] == visible.shape[1]
        facts = {
            "token_id": self._plan.token_id,
            "substitute_id": self._plan.substitute_id,
            "visible_keys": visible[:, :analysed],
            "layer_window": np.where(everything, 0, visible.max(axis=1)).astype(np.int32),
            "layer_rotary": np.array(self._plan.attrs["rope_layers"], dtype=np.int8),
            "learned_sink": recorder.learned_sink.astype(self._plan.dtype),
        }
        self._pieces.keep_frame(self._manifest, self._plan.coordinates | facts | totals(facts), controls)

    def _check_space(self, sequences: int, path: Path) -> None:
        """Refuse work whose result cannot be stored: the new pieces, and beside all pieces the joined file."""
        everything = self._manifest.sizes["condition"] * self._manifest.sizes["sequence"]
        needed = (sequences + everything) * self._manifest.sequence_bytes
        free = shutil.disk_usage(self._pieces.folder).free
        if needed > free:
            raise DumpError(
                f"{path} needs about {needed / 1e6:.0f} MB while it is being written, and {free / 1e6:.0f} MB are "
                "free: make room, or record fewer sequences, conditions or offsets"
            )


def _arrays(record: ForwardRecord) -> dict[str, np.ndarray]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    there = {name: value for name, value in values.items() if value is not None}
    return there | totals(there)


def join(pieces: Pieces, path: Path) -> None:
    """Put the finished file in place, then forget the pieces. To be called under the exclusive lock."""
    manifest = pieces.manifest()
    if manifest is None:
        raise DumpError(f"{pieces.folder} holds no manifest: nothing has been recorded")
    dataset = joined(pieces, manifest)
    try:
        # Written beside the pieces, so that a killed process leaves nothing but their folder behind.
        whole = write_dump(dataset, pieces.folder / "joined.h5")
    except DumpError as error:
        raise DumpError(
            f"{path} is recorded, but could not be joined: {error}; the pieces stay in {pieces.folder}, and the same "
            "dump, started again, joins them"
        ) from error
    replace_durably(whole, followed(path))
    pieces.remove()
    logger.info("wrote %s (%.1f MB)", path, path.stat().st_size / 1e6)
