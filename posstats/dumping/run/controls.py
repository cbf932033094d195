"""Known answers of a model, in float64 beside the dump and in its own number format (docs/method.md, section 10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from posstats.dataset.conditions import parse_condition
from posstats.dumping.inputs.conditions import fed_tokens
from posstats.dumping.inputs.sequences import Sequences
from posstats.dumping.model.float64 import in_float64
from posstats.dumping.model.load import embed, max_length
from posstats.dumping.recorder.recorder import ForwardRecord, Recorder

#: Sequences that are recorded, tokens of each, and what is added to their positions; fewer where there are no more.
SEQUENCES, LENGTH, SHIFT = 2, 64, 64


def control_facts(model: Any, sequences: Sequences) -> dict[str, float | str]:
    """Return how far a model is from the three known answers, as attributes of a dump.

    The first 64 tokens of two sequences are fed as they are, with 64 added to every position, and with their first
    ordinary token everywhere. `control_closed` is the largest relative distance of the trajectory of position 0 from
    that of the same input run alone, `control_shift` the largest difference that the shift makes to a log attention,
    and `control_repeat` that of a log attention under repetition from what its offset and the number of keys give, both
    in nats, over all layers, heads, queries in the first half and their keys. They are in the model's own number
    format; ``_float64`` are the same, computed in float64 with the same weights. NaN where there is no room for a
    shift, no float64, or where learned sinks make a repeated token differ from position to position: `control_note`
    says why.
    """
    length = min(LENGTH, sequences.length)
    limit = max_length(model)
    shift = SHIFT if limit is None else min(SHIFT, limit - length)
    notes = [] if shift > 0 else [f"no shift: the model allows {limit} positions"]
    fed = {name: fed_tokens(parse_condition(name), sequences)[:SEQUENCES, :length] for name in ("baseline", "repeat")}
    inputs = {name: embed(model, torch.from_numpy(ids)) for name, ids in fed.items()}
    facts: dict[str, float | str] = dict(_departures(model, inputs, shift))
    if model.device.type == "mps":
        notes.append("no float64 on this device")
        facts |= dict.fromkeys([f"{name}_float64" for name in facts], np.nan)
    else:
        with in_float64(model):
            wide = _departures(model, {name: one.double() for name, one in inputs.items()}, shift)
        facts |= {f"{name}_float64": value for name, value in wide.items()}
    if np.isnan(facts["control_repeat"]):
        notes.append("no repeat: a learned sink takes the more attention the fewer keys there are")
    return facts | {"control_note": "; ".join(notes)}


def _departures(model: Any, inputs: dict[str, torch.Tensor], shift: int) -> dict[str, float]:
    """The three departures, of embeddings (sequence, token, hidden) of sequences as they are and repeated."""
    length = inputs["baseline"].shape[1]
    position = torch.arange(length, device=model.device)[None]
    with Recorder(model, length=length, offsets=range(length // 2)) as recorder:
        baseline = recorder.record(inputs["baseline"], position)
        shifted = recorder.record(inputs["baseline"], position + shift) if shift > 0 else None
        repeated = recorder.record(inputs["repeat"], position)
        keys, learned = recorder.visible_keys[:, : length // 2], recorder.learned_sink
    plain, _ = _log_attention(baseline, learned)
    plain_softmax = np.isneginf(learned).all()
    moved = np.nan if shifted is None else float(np.nanmax(np.abs(_log_attention(shifted, learned)[0] - plain)))
    return {
        "control_closed": float(baseline.trajectory_departure.max()),
        "control_shift": moved,
        "control_repeat": _beyond_offsets(*_log_attention(repeated, learned), keys) if plain_softmax else np.nan,
    }


def _log_attention(record: ForwardRecord, learned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log attention and logits, (sequence, layer, head, query, offset), key 0 among the keys, NaN without a key."""
    logit = record.logit.astype(np.float64)
    query = np.arange(logit.shape[-2])
    logit[..., query, query] = record.sink_logit
    first = np.where(np.isnan(record.sink_logit), -np.inf, record.sink_logit)
    total = np.logaddexp(np.logaddexp(record.log_denominator_rest, first), learned[:, :, None])
    return logit - total[..., None], logit


def _beyond_offsets(log_attention: np.ndarray, logit: np.ndarray, keys: np.ndarray) -> float:
    """Largest difference from the log attention of the query that sees most keys, were it to see as many as others."""
    largest = 0.0
    for layer, count in enumerate(keys):
        most = logit[:, layer, :, count.argmax()]
        with np.errstate(invalid="ignore"):  # NaN from the first key on that no query sees
            total = np.logaddexp.accumulate(most, axis=-1)[..., count - 1]
        difference = log_attention[:, layer] - (most[..., None, :] - total[..., None])
        largest = max(largest, float(np.nanmax(np.abs(difference))))
    return largest
