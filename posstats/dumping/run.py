"""Drive a model over sequences into a dump that cannot be lost.

Every batch becomes a piece on disk while the next one is computed; when all pieces are there they are joined into one
file, put in place by rename. Whatever stops the work, the same call goes on where it stopped.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posstats.dumping.attention import ForwardRecord, Recorder
from posstats.dumping.conditions import apply
from posstats.dumping.inputs import Sequences
from posstats.dumping.memory import is_out_of_memory, suggested_batch
from posstats.dumping.pieces import Held, Manifest, Pieces, Span, lock
from posstats.dumping.plan import Plan, check_options, make_plan
from posstats.errors import DumpError
from posstats.progress import progress as report_progress
from posstats.store import open_dump, parts_folder, replace_durably, write_dump
from posstats.vocabulary import DEFAULT_OFFSETS

logger = logging.getLogger(__name__)

#: Batches whose pieces may wait for the disk while the next one is computed.
_WAITING = 2


def dump(
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
    resume: bool = True,
    overwrite: bool = False,
    progress: bool = True,
) -> Path:
    """Record a model's attention on sequences and write it to a dump.

    A finished dump with the same settings is reused. An unfinished one is taken up where it stopped, after an
    interruption, a crash or a full disk; the result has the same bytes as if nothing had happened. Only one process
    works on a dump at a time, unless they share it as shards.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A rotary decoder (:func:`posstats.load_model`).
    sequences : Sequences
        What to feed, from at least 5 documents.
    path : str or Path
        The dump; unfinished work waits in the folder ``<path>.parts``.
    conditions : iterable of str
        Interventions (:data:`posstats.vocabulary.CONDITIONS`), one forward pass each.
    offsets : sequence of int
        Distances from query to key at which logits are kept, each below the length.
    probes : sequence of int
        Positions at which the whole residual stream is kept.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Named in the attributes.
    batch_size : int, optional
        Sequences per forward pass; by default what the memory allows. When memory runs out it is halved.
    seed : int
        Seed of what conditions draw.
    shard : (int, int), optional
        (k, n): do only the k-th of n shares, k = 1 .. n. Processes that share a file system can work at the same time,
        and the last one joins the pieces. Otherwise copy all pieces into one ``<path>.parts`` and call
        :func:`join_dump`.
    resume : bool
        False discards unfinished work.
    overwrite : bool
        Whether a dump, or unfinished work, with other settings is replaced. The old file stays until the new one is
        whole.
    progress : bool
        Whether to show progress.

    Returns
    -------
    Path
        `path`. With `shard` the file is there only once the last shard is done.

    Raises
    ------
    InputError
        If an option is out of range, a condition does not exist or cannot be applied, or a sequence is longer than the
        model allows. Nothing has been computed then.
    DesignError
        If there are fewer than 5 documents.
    DumpError
        If the dump cannot be written, another process is writing it, or it has other settings.
    NumericalError
        If the model yields values that are not finite. Finished pieces stay.

    Examples
    --------
    With a model and its tokenizer (:func:`posstats.load_model`):

    >>> import posstats as ps
    >>> sequences = ps.random_sequences(tokenizer, n=6, length=24)
    >>> path = dump(model, sequences, "mine.h5", conditions=["baseline", "bos=mean"], offsets=[0, 1], progress=False)
    >>> dict(ps.open_dump(path).logit.sizes)
    {'condition': 2, 'sequence': 6, 'layer': 3, 'head': 4, 'query': 24, 'offset': 2}
    """
    path = Path(path)
    check_options(batch_size, shard, resume)
    plan = make_plan(
        model, sequences, conditions=conditions, offsets=offsets, probes=probes, tokenizer=tokenizer, seed=seed
    )
    settings = plan.attrs["settings_sha256"]
    pieces = Pieces(parts_folder(path))
    try:
        if is_current(path, settings, overwrite=overwrite) and not pieces.folder.exists():
            return _reused(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as locks:
            locks.enter_context(lock(pieces.folder / "dump.lock", shared=shard is not None))
            if shard is not None:
                locks.enter_context(lock(pieces.folder / f"shard-{shard[0]}-of-{shard[1]}.lock"))
            if is_current(path, settings, overwrite=overwrite):
                if shard is None:
                    pieces.remove()
                return _reused(path)
            if shard is None:
                _discard(pieces, plan, resume, overwrite)
            work = Work(model, sequences, plan, pieces, pieces.agree(new_manifest(model, plan, batch_size)))
            work.run(shard or (1, 1), path, show=progress)
            if shard is None:
                join(pieces, path)
        if shard is not None:
            _join_if_last(pieces, path)
    except KeyboardInterrupt:
        _tell_how_to_go_on(pieces)
        raise
    except OSError as error:
        reason = error.strerror or error
        raise DumpError(f"cannot write {path}: {reason}; finished batches stay in {pieces.folder}") from error
    return path


def join_dump(path: str | Path) -> Path:
    """Join the pieces of a dump whose shards are all done.

    Parameters
    ----------
    path : str or Path
        The dump; its pieces, and the manifest and frame of any one shard, lie in ``<path>.parts``.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    DumpError
        If there are no pieces, some are missing, or a process is still at work on them.

    Examples
    --------
    >>> sequences = Sequences(np.arange(144).reshape(6, 24) % 90 + 3, np.arange(6), "counting")
    >>> for k in (1, 2):  # on a machine each; the pieces of the second are then copied to the first
    ...     _ = dump(model, sequences, f"{k}/mine.h5", shard=(k, 2), batch_size=3, offsets=[0], progress=False)
    >>> for piece in Path("2/mine.h5.parts").glob("*.piece"):
    ...     _ = shutil.copy(piece, "1/mine.h5.parts")
    >>> open_dump(join_dump("1/mine.h5")).sizes["sequence"]
    6
    """
    path = Path(path)
    pieces = Pieces(parts_folder(path))
    if not pieces.folder.is_dir():
        raise DumpError(f"there is no folder {pieces.folder} with pieces to join")
    with lock(pieces.folder / "dump.lock"):
        join(pieces, path)
    return path


def is_current(path: str | Path, settings: str, *, overwrite: bool = False) -> bool:
    """Whether a finished dump was recorded with given settings.

    Parameters
    ----------
    path : str or Path
        The dump.
    settings : str
        Digest, as in the attribute ``settings_sha256`` of dumps.
    overwrite : bool
        Whether a dump with other settings is only "not current" rather than an error.

    Returns
    -------
    bool
        False also where there is no file.

    Raises
    ------
    DumpError
        If there is something else than that dump, and it may not be overwritten.
    """
    path = Path(path)
    if path.is_dir():
        raise DumpError(f"{path} is a folder; give the name of a file")
    if not path.exists():
        return False
    try:
        with open_dump(path) as dataset:
            found = dataset.attrs.get("settings_sha256")
    except DumpError:
        if overwrite:
            return False
        raise
    if found != settings and not overwrite:
        raise DumpError(f"{path} was recorded with other settings: choose another path, or overwrite it")
    return bool(found == settings)


def new_manifest(model: Any, plan: Plan, batch_size: int | None) -> Manifest:
    """The manifest of a dump of which nothing is recorded: sequences per forward pass as asked, or as fit."""
    manifest = Manifest(plan.attrs, plan.sizes, plan.dtype, unit=1, batch=1)
    batch = batch_size or suggested_batch(model, plan.sizes["query"], manifest.sequence_bytes)
    batch = min(batch, plan.sizes["sequence"])
    return replace(manifest, unit=batch, batch=batch)


def _reused(path: Path) -> Path:
    logger.info("reusing %s: it was recorded with the same settings", path)
    return path


def _discard(pieces: Pieces, plan: Plan, resume: bool, overwrite: bool) -> None:
    """Drop unfinished work that is not to be taken up."""
    manifest = pieces.manifest()
    if manifest is not None and (not resume or (overwrite and manifest.attrs != plan.attrs)):
        logger.info("discarding the unfinished work in %s", pieces.folder)
        pieces.clear()


def _tell_how_to_go_on(pieces: Pieces) -> None:
    manifest = pieces.manifest()
    if manifest is not None:
        everything = manifest.sizes["condition"] * manifest.sizes["sequence"]
        left = sum(span.stop - span.start for span in pieces.missing(manifest))
        logger.warning(
            "interrupted: %d of %d sequences are safe in %s; the same dump, started again, goes on from there",
            everything - left,
            everything,
            pieces.folder,
        )


class Work:
    """One process's share of a dump."""

    def __init__(self, model: Any, sequences: Sequences, plan: Plan, pieces: Pieces, manifest: Manifest) -> None:
        self._model, self._plan, self._pieces, self._manifest = model, plan, pieces, manifest
        self._feeds = [apply(condition, sequences, model, seed=plan.seed) for condition in plan.conditions]

    def run(self, shard: tuple[int, int], path: Path, *, show: bool) -> None:
        """Record what is missing of a share."""
        sizes = self._manifest.sizes
        missing = self._pieces.missing(self._manifest, shard)
        total = sum(span.stop - span.start for span in missing)
        if total < sizes["condition"] * sizes["sequence"]:
            logger.info("%s: %d sequences are left to record", path, total)
        if not missing:
            return
        self._check_space(total, path)
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
                    self._keep_frame(recorder)
                    first = False
                waiting.append(writer.submit(self._pieces.write, self._manifest, span, _arrays(record)))
                while waiting and (waiting[0].done() or len(waiting) > _WAITING):
                    waiting.popleft().result()
                bar.update(span.stop - span.start)
            for future in waiting:
                future.result()

    def _recorder(self) -> Recorder:
        plan = self._plan
        return Recorder(self._model, length=plan.sizes["query"], offsets=plan.offsets, probes=plan.probes)

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
            batch = feed.batch(self._model, slice(span.start, span.stop))
            return recorder.record(*batch, anchor=feed.anchor, substitute=feed.substitute)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            count = span.stop - span.start
            if count == 1:
                raise DumpError(
                    f"one sequence of {self._manifest.sizes['query']} tokens does not fit into the memory: use shorter "
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

    def _keep_frame(self, recorder: Recorder) -> None:
        logger.info("attention path: %s", recorder.path)
        visible = recorder.visible_keys
        everything = visible[:, -1] == visible.shape[1]
        facts = {
            "token_id": self._plan.token_id,
            "visible_keys": visible,
            "layer_window": np.where(everything, 0, visible.max(axis=1)).astype(np.int32),
            "layer_rotary": np.array(self._plan.attrs["rope_layers"], dtype=np.int8),
            "learned_sink": recorder.learned_sink.astype(self._plan.dtype),
            "attention_path": np.array(recorder.path),
        }
        self._pieces.keep_frame(self._plan.coordinates | facts)

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
    return {name: value for name, value in values.items() if value is not None}


def join(pieces: Pieces, path: Path) -> None:
    """Put the finished file in place, then forget the pieces. To be called under the exclusive lock."""
    manifest = pieces.manifest()
    if manifest is None:
        raise DumpError(f"{pieces.folder} holds no manifest: nothing has been recorded")
    # Written beside the pieces, so that a killed process leaves nothing but their folder behind.
    joined = write_dump(pieces.dataset(manifest), pieces.folder / path.name)
    replace_durably(joined, path)
    pieces.remove()
    logger.info("wrote %s (%.1f MB)", path, path.stat().st_size / 1e6)


def _join_if_last(pieces: Pieces, path: Path) -> None:
    if not pieces.folder.exists():
        return  # another shard was last and has joined them
    try:
        with lock(pieces.folder / "dump.lock"):
            manifest = pieces.manifest()
            if manifest is None:
                pieces.remove()
            elif not pieces.missing(manifest):
                join(pieces, path)
            else:
                logger.info("this shard is done; %s is joined when the others are", path)
    except Held:
        logger.info("this shard is done; the other shards are still at work on %s", path)
