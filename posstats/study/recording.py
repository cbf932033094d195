"""Record the dumps that a configuration asks for, or say what that would cost. Torch is imported only then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posstats.dataset.conditions import check_positions
from posstats.dataset.store import parts_folder
from posstats.dataset.terms import few_documents_note
from posstats.dumping.run.options import RecordOptions
from posstats.errors import InputError
from posstats.execution.cluster import connected
from posstats.execution.machine import free_memory
from posstats.execution.parallel import side_by_side
from posstats.execution.progress import progress
from posstats.study.config import AnalysisConfig, DumpConfig, RecordConfig, SequencesConfig
from posstats.vocabulary import BASELINE, MINIMUM_DOCUMENTS

if TYPE_CHECKING:
    from posstats.dumping.run.cost import Cost

logger = logging.getLogger(__name__)

#: Largest error of a logit against float64 that was seen on a small random model, in nats: an observation, no bound.
_LOGIT_ERRORS = {"bfloat16": 0.11, "float16": 0.017}
#: A recorder is part of the model while it works: one at a time in a process, however many threads a worker has.
_RECORDING = threading.Lock()


def record_dumps(
    config: AnalysisConfig,
    dumps: Mapping[Path, DumpConfig],
    *,
    overwrite: bool = False,
    shard: tuple[int, int] | None = None,
    show: bool = True,
) -> None:
    """Record dumps (file -> where its tokens come from) with one model; those there with the same settings are reused.

    `overwrite` replaces a dump with other settings; `shard`, (k, n), records the k-th of n shares of each dump. Raises
    PosstatsError if torch or transformers is not installed, or as ``posstats.load_model`` and ``posstats.dump`` do.
    """
    for given in _prepared(config, dumps, overwrite, shard):
        from posstats.dumping.run import dump

        dump.record(*given, show=show)


def record_shares(
    config: AnalysisConfig,
    dumps: Mapping[Path, DumpConfig],
    scheduler: str,
    shares: int | None = None,
    *,
    overwrite: bool = False,
    show: bool = True,
) -> None:
    """Record dumps on the workers of a cluster that share a file system, a share of the sequences at a time.

    A share whose worker is lost is taken up where it stopped by another one. The files are those of
    :func:`record_dumps`, provided that workers compute alike, and find this folder and all files under the same names.
    `scheduler` is an address; there is one share of each dump per worker by default. Raises as :func:`record_dumps`, or
    if the scheduler does not answer or workers are lost again and again.
    """
    with connected(scheduler) as client:
        n = shares or max(1, len(client.nthreads()))
        job = partial(_record_share, Path.cwd(), n, config, dumps, overwrite)
        with progress("dump", n, unit="share", show=show) as bar:
            for _ in side_by_side(job, range(1, n + 1)):
                bar.update()
    for path in dumps:
        if parts_folder(path).is_dir():  # whoever was last was lost before the pieces were joined
            from posstats.dumping.run.dump import join_dump

            join_dump(path)


def _record_share(
    folder: Path, shares: int, config: AnalysisConfig, dumps: Mapping[Path, DumpConfig], overwrite: bool, share: int
) -> None:
    # In the folder of the caller: a dump keeps the name of its model as it was given.
    with _RECORDING, chdir(folder):
        record_dumps(config, dumps, overwrite=overwrite, shard=(share, shares), show=False)


def estimate_dumps(
    config: AnalysisConfig,
    dumps: Mapping[Path, DumpConfig],
    *,
    overwrite: bool = False,
    shard: tuple[int, int] | None = None,
) -> dict[Path, Cost]:
    """Return what :func:`record_dumps` would cost with the same arguments, dump by dump; nothing is recorded.

    Raises as it does before it begins.
    """
    costs = {}
    for given in _prepared(config, dumps, overwrite, shard):
        from posstats.dumping.run.cost import estimate_cost

        costs[given[2]] = estimate_cost(*given)
    return costs


def _prepared(
    config: AnalysisConfig,
    dumps: Mapping[Path, DumpConfig],
    overwrite: bool,
    shard: tuple[int, int] | None,
) -> Iterator[tuple[Any, Any, Path, RecordOptions, Any]]:
    """Of each dump the model, which is loaded once, the sequences, the file, the options and the tokenizer."""
    model, sequences, record, run = config.model, config.sequences, config.record, config.run
    check_positions("offset", record.offsets, sequences.length)  # before torch and the model are loaded
    try:
        from posstats.dumping.model.load import load_model, max_length
        from posstats.dumping.model.variants import check_length, check_window
    except ModuleNotFoundError as error:
        raise InputError(
            f"recording a dump needs {error.name}, which is not installed: install posstats[dump], or analyse dumps "
            "that are there already by naming them"
        ) from error
    _check_memory(dumps, sequences, record)
    loaded, tokenizer = load_model(
        model.name,
        dtype=model.dtype,
        device=run.device,
        revision=model.revision,
        models_dir=run.models,
        ntk_factor=model.ntk_factor,
        sliding_window=model.sliding_window,
        adapter=model.adapter,
        untrained=model.untrained,
    )
    check_length(sequences.length, max_length(loaded))
    if model.sliding_window is not None:
        check_window(loaded.config.get_text_config(), model.sliding_window, sequences.length)
    if model.dtype in _LOGIT_ERRORS:
        logger.info(
            "%s rounds logits: on a small random model they were off by up to %g nats; float32 is the format to "
            "measure in where the memory allows it",
            model.dtype,
            _LOGIT_ERRORS[model.dtype],
        )
    _tell_of_offsets(loaded, sequences.length, record.offsets)
    for path, entry in dumps.items():
        options = RecordOptions(
            entry.conditions or record.conditions,
            record.offsets,
            batch_size=run.batch_size,
            seed=record.seed,
            shard=shard,
            overwrite=overwrite,
        )
        drawn = _sequences(entry, sequences, tokenizer)
        if drawn.documents >= MINIMUM_DOCUMENTS:  # with fewer there will be no dump
            for note in few_documents_note(drawn.documents):
                logger.warning("warning: %s: %s", path, note)
        if BASELINE not in options.conditions:
            logger.warning(
                "warning: %s: without the condition %s nothing that compares with it can be computed, such as removal",
                path,
                BASELINE,
            )
        yield loaded, drawn, path, options, tokenizer


def _check_memory(dumps: Mapping[Path, DumpConfig], design: SequencesConfig, record: RecordConfig) -> None:
    """Refuse more tokens than the memory holds, before any is drawn."""
    conditions = max((len(entry.conditions or record.conditions) for entry in dumps.values()), default=1)
    # 8 bytes a token: as drawn, as fed under each condition, and once more while these are put together; and a label.
    each = 8 * design.length * (2 + 2 * conditions) + 200
    free = free_memory()
    if design.n * each > free:
        raise InputError(
            f"the tokens of {design.n} sequences take about {design.n * each / 1e9:.1f} GB of memory and "
            f"{free / 1e9:.1f} GB are free: record at most {free // each} sequences of {design.length} tokens at once, "
            "and several dumps with a seed each"
        )


def _tell_of_offsets(model: Any, length: int, offsets: tuple[int, ...]) -> None:
    """Warn of offsets that no analysis will take."""
    from posstats.dumping.model.variants import keys_of_late_queries
    from posstats.dumping.recorder.structure import attention_window

    analysed = length // 2
    keys = keys_of_late_queries(model.config.get_text_config(), analysed, attention_window(model))
    beyond = [str(offset) for offset in offsets if keys <= offset < analysed]
    if beyond:
        logger.warning(
            "warning: offsets %s can be recorded but not analysed: some query of the second half of %d analysed "
            "sees %d keys; choose offsets below %d (--offset, or offsets under [record])",
            ", ".join(beyond),
            analysed,
            keys,
            keys,
        )


def _sequences(entry: DumpConfig, design: SequencesConfig, tokenizer: Any) -> Any:
    from posstats.dumping.inputs.sequences import random_sequences, text_sequences

    options: dict[str, Any] = {"bos": design.bos, "bos_token": design.bos_token, "seed": design.seed}
    if entry.source == "random":
        return random_sequences(tokenizer, design.n, design.length, **options)
    return text_sequences(tokenizer, entry.text, design.n, design.length, **options)
