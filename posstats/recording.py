"""Record the dumps that a configuration asks for. Torch is imported only when that is done."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posstats.config import DumpConfig, ModelConfig, RecordConfig, RunConfig, SequencesConfig
from posstats.errors import InputError


def record_dumps(
    dumps: Mapping[Path, DumpConfig],
    model: ModelConfig,
    sequences: SequencesConfig,
    record: RecordConfig,
    run: RunConfig,
    *,
    overwrite: bool = False,
    shard: tuple[int, int] | None = None,
    show: bool = True,
) -> None:
    """Record dumps with one model; those that are there with the same settings are reused.

    Parameters
    ----------
    dumps : mapping of Path to DumpConfig
        File -> where its tokens come from.
    model, sequences, record, run
        Sections of a configuration.
    overwrite : bool
        Whether a dump with other settings is replaced.
    shard : (int, int), optional
        (k, n): record the k-th of n shares of each dump.
    show : bool
        Whether to show progress.

    Raises
    ------
    PosstatsError
        If torch or transformers is not installed, or as ``posstats.load_model`` and ``posstats.dump`` do.
    """
    try:
        from posstats.dumping.models import load_model
        from posstats.dumping.run import dump
    except ModuleNotFoundError as error:
        raise InputError(
            f"recording a dump needs {error.name}, which is not installed: install posstats[dump], or analyse dumps "
            "that are there already by naming them"
        ) from error
    loaded, tokenizer = load_model(
        model.name,
        dtype=model.dtype,
        device=run.device,
        revision=model.revision,
        models_dir=run.models,
        ntk_factor=model.ntk_factor,
        sliding_window=model.sliding_window,
        adapter=model.adapter,
    )
    for path, entry in dumps.items():
        dump(
            loaded,
            _sequences(entry, sequences, tokenizer),
            path,
            conditions=entry.conditions or record.conditions,
            offsets=record.offsets,
            tokenizer=tokenizer,
            batch_size=run.batch_size,
            seed=record.seed,
            overwrite=overwrite,
            shard=shard,
            progress=show,
        )


def _sequences(entry: DumpConfig, design: SequencesConfig, tokenizer: Any) -> Any:
    from posstats.dumping.inputs import random_sequences, text_sequences

    options: dict[str, Any] = {"bos": design.bos, "bos_token": design.bos_token, "seed": design.seed}
    if entry.source == "random":
        return random_sequences(tokenizer, design.n, design.length, **options)
    return text_sequences(tokenizer, entry.text, design.n, design.length, **options)
