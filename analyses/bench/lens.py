"""Dump against TransformerLens, an optional extra: the attention scores of all layers in its cache, then reduced."""

import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyses.bench.eager import reduce_logits
from analyses.bench.harness import alone, compared, interleaved, peak_memory
from analyses.bench.recorder import FEWEST, Bench, Subject, measure_peak
from posstats.vocabulary import DEFAULT_OFFSETS


def measure_lens(bench: Bench) -> dict[str, Any]:
    """Time and peak memory at the length at which eager attention is measured; why not, where it is not installed."""
    if importlib.util.find_spec("transformer_lens") is None:
        return {"skipped": "transformer-lens is not installed (`pip install posstats[bench]`)"}
    memory = {"dump": alone(measure_peak, bench, "dump", bench.eager_length), "lens": alone(_peak, bench)}
    ratio = memory["dump"]["beyond"] / memory["lens"]["beyond"]
    return alone(_times, bench) | {"length": bench.eager_length, "memory": memory, "memory_ratio": ratio}


def _bridge(subject: Subject, name: str) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(name, hf_model=subject.model, tokenizer=subject.tokenizer)


def lens_statistics(bridge: Any, ids: np.ndarray) -> list[dict[str, torch.Tensor]]:
    """Per layer what the recorder keeps, from ``run_with_cache`` of the attention scores."""
    with torch.inference_mode():
        _, cache = bridge.run_with_cache(
            torch.as_tensor(ids), names_filter=lambda name: name.endswith("hook_attn_scores"), return_type=None
        )
        return [reduce_logits(scores, DEFAULT_OFFSETS) for scores in cache.values()]


def _times(bench: Bench) -> dict[str, Any]:
    # The bridge changes the model it is given: each of the two has its own.
    subject, wrapped = Subject(bench), Subject(bench)
    bridge = _bridge(wrapped, bench.model)
    sequences = subject.sequences(FEWEST, bench.eager_length)
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        jobs: dict[str, Callable[[], object]] = {
            "dump": partial(subject.dump, sequences, Path(folder) / "dump.h5", 1),
            "lens": partial(lens_statistics, bridge, sequences.ids[:1]),
        }
        return compared(interleaved(jobs, bench.repeats), over="lens", under="dump", scale=FEWEST)


def _peak(bench: Bench) -> dict[str, int]:
    subject = Subject(bench)
    bridge = _bridge(subject, bench.model)
    ids = subject.sequences(FEWEST, bench.eager_length).ids[:1]
    with peak_memory() as peak:
        lens_statistics(bridge, ids)
    return {"baseline": peak.baseline, "beyond": peak.beyond}
