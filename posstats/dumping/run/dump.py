"""Drive a model over sequences into a dump that cannot be lost.

Every batch becomes a piece on disk while the next one is computed; when all pieces are there they are joined into one
file, put in place by rename. Whatever stops the work, the same call goes on where it stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from posstats.arguments import file_path, flag
from posstats.dataset.store import followed, open_dump, parts_folder
from posstats.dumping.inputs.sequences import Sequences, as_sequences
from posstats.dumping.model.checks import check_recordable
from posstats.dumping.model.load import max_length
from posstats.dumping.run.locks import Held, lock
from posstats.dumping.run.options import RecordOptions
from posstats.dumping.run.pieces import Manifest, Pieces, differences
from posstats.dumping.run.plan import Plan, make_plan
from posstats.dumping.run.work import Work, join, new_manifest
from posstats.errors import DumpError
from posstats.vocabulary import BASELINE, DEFAULT_OFFSETS

logger = logging.getLogger(__name__)

#: Seconds between two looks at a dump that another shard joins.
_LOOK_SECONDS = 0.1


def dump(
    model: Any,
    sequences: Sequences | ArrayLike | Iterable[str] | Mapping[str, str],
    path: str | Path,
    *,
    document: ArrayLike | None = None,
    conditions: Iterable[str] = (BASELINE,),
    offsets: Iterable[int] = DEFAULT_OFFSETS,
    probes: Iterable[int] = (),
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
    interruption, a crash or a full disk; the result has the same bytes as if nothing had happened. What of it
    is damaged is recorded anew. Only one process works on a dump at a time, unless they share it as shards.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A rotary decoder (:func:`posstats.load_model`).
    sequences : Sequences, array_like of int with dims (sequence, query), list of str, or mapping of str to str
        What to feed, from at least 5 documents. Token ids are fed as they are and need `document`. Of texts, each a
        document, random crops are fed, as :func:`posstats.text_sequences` draws them with the tokenizer and the seed:
        48 of 192 tokens, or as many tokens as the model allows.
    path : str or Path
        The dump; unfinished work waits in the folder ``<path>.parts``. Where it is a symbolic link, what it points to
        is written.
    document : array_like, optional
        Where `sequences` is an array of token ids: the document of each sequence, as of :class:`Sequences`.
    conditions : iterable of str
        Interventions (:data:`posstats.vocabulary.CONDITIONS`), one forward pass each. A depth that is a fraction of the
        model's blocks, as in ``trajectory=token:ID@1/3``, is recorded as the block that it comes to.
    offsets : iterable of int
        Distances from query to key at which logits are kept, each below half the length.
    probes : iterable of int
        Positions at which the whole residual stream is kept.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Named in the attributes; texts need it.
    batch_size : int, optional
        Sequences per forward pass; by default what the memory allows and leaves work for every shard. When memory runs
        out it is halved.
    seed : int
        Seed of what conditions draw.
    shard : (int, int), optional
        (k, n): do only the k-th of n shares, k = 1 .. n. Processes that share a file system can work at the same time,
        and the last one joins the pieces. Otherwise copy all pieces into one ``<path>.parts`` and call
        :func:`join_dump`.
    resume : bool
        False discards unfinished work.
    overwrite : bool
        Whether a dump, or unfinished work, with other settings or a damaged manifest is replaced. The old file stays
        until the new one is whole.
    progress : bool
        Whether to show progress.

    Returns
    -------
    Path
        `path`. With `shard` the file is there only once the last shard is done.

    Raises
    ------
    InputError
        If an argument is of a type or a value that is not allowed, a condition does not exist or cannot be applied, or
        the length of the sequences is not a multiple of 4 or more than the model allows. Nothing has been computed
        then.
    ModelError
        If the model cannot be recorded exactly.
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
    {'condition': 2, 'sequence': 6, 'layer': 3, 'head': 4, 'query': 12, 'offset': 2}
    """
    options = RecordOptions(conditions, offsets, probes, batch_size, seed, shard, resume, overwrite)
    check_recordable(model)
    target, show = file_path("path", path), flag("progress", progress)
    given = as_sequences(sequences, document, tokenizer, longest=max_length(model), seed=options.seed)
    return record(model, given, target, options, tokenizer, show=show)


def record(
    model: Any, sequences: Sequences, path: Path, options: RecordOptions, tokenizer: Any = None, *, show: bool = True
) -> Path:
    """Do what :func:`dump` does, and raise what it raises, with its options in one object; returns `path`."""
    shard = options.shard
    plan = make_plan(model, sequences, options, tokenizer)
    pieces = Pieces(parts_folder(path))
    current = partial(is_current, path, plan.attrs, overwrite=options.overwrite, labels=plan.coordinates)
    try:
        if current() and not pieces.folder.exists():
            return _reused(path)
        followed(path).parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as locks:
            locks.enter_context(lock(pieces.folder / "dump.lock") if shard is None else _beside_others(pieces, current))
            if shard is not None:
                locks.enter_context(lock(pieces.folder / f"shard-{shard[0]}-of-{shard[1]}.lock"))
            if current():
                if shard is None:
                    pieces.remove()
                else:  # a shard that waited for the one that joined has made the folder again
                    locks.close()
                    _remove_if_empty(pieces)
                return _reused(path)
            if shard is None:
                _discard(pieces, plan, options)
            if other := replaced(path, plan.attrs, plan.coordinates):
                logger.info("replacing %s, which %s", path, other)
            manifest = pieces.agree(new_manifest(model, plan, options))
            try:
                Work(model, sequences, plan, pieces, manifest).run(options.share, path, show=show)
            except BaseException:
                locks.close()
                _remove_if_empty(pieces)
                raise
            if shard is None:
                join(pieces, path)
        if shard is not None:
            _join_if_last(pieces, path)
    except KeyboardInterrupt:
        _tell_how_to_go_on(pieces)
        raise
    except OSError as error:
        stay = f"; finished batches stay in {pieces.folder}" if pieces.any() else ""
        raise DumpError(f"cannot write {path}: {error.strerror or error}{stay}") from error
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
    InputError
        If `path` is no name of a file.
    DumpError
        If there are no pieces, some are missing, damaged or of another dump, or a process is still at work on them.

    Examples
    --------
    >>> import shutil
    >>> import numpy as np
    >>> sequences = Sequences(np.arange(144).reshape(6, 24) % 90 + 3, np.arange(6), "counting")
    >>> for k in (1, 2):  # on a machine each; the pieces of the second are then copied to the first
    ...     _ = dump(model, sequences, f"{k}/mine.h5", shard=(k, 2), batch_size=3, offsets=[0], progress=False)
    >>> for piece in Path("2/mine.h5.parts").glob("*.piece"):
    ...     _ = shutil.copy(piece, "1/mine.h5.parts")
    >>> open_dump(join_dump("1/mine.h5")).sizes["sequence"]
    6
    """
    path = file_path("path", path)
    pieces = Pieces(parts_folder(path))
    if not pieces.folder.is_dir():
        raise DumpError(f"there is no folder {pieces.folder} with pieces to join")
    try:
        with lock(pieces.folder / "dump.lock"):
            join(pieces, path)
    except OSError as error:
        raise DumpError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def is_current(
    path: str | Path,
    attrs: Mapping[str, Any],
    *,
    overwrite: bool = False,
    labels: Mapping[str, np.ndarray] | None = None,
) -> bool:
    """Whether a finished dump was recorded with given settings; False also where there is no file.

    ``settings_sha256`` of `attrs` decides; the other attributes, and `labels` (coordinates), tell what is different.
    Raises DumpError if there is something else than that dump, unless `overwrite` allows a dump with other settings.
    """
    path = file_path("path", path)
    if not path.exists():
        return False
    other = replaced(path, attrs, labels, damaged=overwrite)
    if other and not overwrite:
        raise DumpError(f"{path} {other}: choose another path, or have it replaced (overwrite=True, --overwrite)")
    return not other


def replaced(
    path: Path, attrs: Mapping[str, Any], labels: Mapping[str, np.ndarray] | None = None, *, damaged: bool = True
) -> str:
    """Say what the file is that a dump would replace, as the end of a sentence; empty where there is none, or just
    that dump.

    `attrs`, `labels` as for :func:`is_current`. Raises DumpError if the file is no whole dump, unless `damaged`.
    """
    if not path.exists():
        return ""
    try:
        with open_dump(path) as dataset:
            found = dataset.attrs
            labels_found = {str(name): one.values for name, one in dataset.coords.items()}
    except DumpError:
        if damaged:
            return "is no whole dump"
        raise
    if found.get("settings_sha256") == attrs["settings_sha256"]:
        return ""
    return f"was recorded with other settings ({differences(found, attrs, labels_found, labels)})"


def _reused(path: Path) -> Path:
    logger.info("reusing %s: it was recorded with the same settings", path)
    return path


def _discard(pieces: Pieces, plan: Plan, options: RecordOptions) -> None:
    """Drop unfinished work that is not to be taken up."""
    manifest = unfinished(pieces, discard=options.overwrite or not options.resume)
    if manifest is None or not options.resume or (options.overwrite and manifest.attrs != plan.attrs):
        if pieces.any():
            logger.info("discarding the unfinished work in %s", pieces.folder)
        pieces.clear()


def unfinished(pieces: Pieces, *, discard: bool) -> Manifest | None:
    """The manifest of unfinished work, which may be a damaged one where it may be discarded: it counts as none then."""
    try:
        return pieces.manifest()
    except DumpError:
        if discard:
            return None
        raise


@contextmanager
def _beside_others(pieces: Pieces, current: Callable[[], bool]) -> Iterator[None]:
    """Hold a dump together with other shards. One that joins it, or then cleans up, is waited for."""
    while True:
        with ExitStack() as held:
            try:
                held.enter_context(lock(pieces.folder / "dump.lock", shared=True))
            except Held:
                manifest = pieces.manifest()
                if (manifest is None or pieces.missing(manifest)) and not current():
                    raise
                time.sleep(_LOOK_SECONDS)
                continue
            yield
            return


def _remove_if_empty(pieces: Pieces) -> None:
    """Leave no folder behind in which no batch was finished, unless others are at work in it."""
    with suppress(Held, OSError), lock(pieces.folder / "dump.lock"):
        if not pieces.any():
            pieces.remove()


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


def _join_if_last(pieces: Pieces, path: Path) -> None:
    if not pieces.folder.exists():
        return  # another shard was last and has joined them
    manifest = pieces.manifest()
    if manifest is not None and pieces.missing(manifest):
        # Known without the lock: were it held to look, a shard that begins now would be turned away.
        logger.info("this shard is done; %s is joined when the others are", path)
        return
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
