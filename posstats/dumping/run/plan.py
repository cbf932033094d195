"""What a dump will hold, checked before any work starts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posstats.dataset.conditions import Condition, at_depth, check_positions, parse_conditions
from posstats.dumping.inputs.conditions import check_condition, fed_tokens, substituted_tokens
from posstats.dumping.inputs.labels import check_text
from posstats.dumping.inputs.sequences import Sequences
from posstats.dumping.inputs.tokens import check_tokenizer
from posstats.dumping.model.checks import check_recordable
from posstats.dumping.model.load import max_length, model_facts
from posstats.dumping.recorder.structure import text_config
from posstats.dumping.run.options import RecordOptions
from posstats.errors import DesignError, InputError
from posstats.vocabulary import (
    MINIMUM_DOCUMENTS,
    SCHEMA_VERSION,
    VARIABLES,
    analysed_half,
    received_queries,
    reference_queries,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the values of a dump depend on."""

    #: Interventions, in the order of the ``condition`` dimension.
    conditions: tuple[Condition, ...]
    #: Distances at which logits are kept, positions at which the residual stream is; ascending.
    offsets: tuple[int, ...]
    probes: tuple[int, ...]
    #: Seed of what conditions draw.
    seed: int
    #: What is fed: int64, shape (condition, sequence, query).
    token_id: np.ndarray
    #: What replaces the trajectory of position 0: int64, shape (condition, sequence); -1 where nothing does.
    substitute_id: np.ndarray
    #: Length of every dimension.
    sizes: dict[str, int]
    #: Number format of what is recorded.
    dtype: str
    #: Coordinates of the dump.
    coordinates: dict[str, np.ndarray]
    #: Its attributes: strings, numbers, lists of numbers. ``settings_sha256`` is a digest of all the plan.
    attrs: dict[str, Any]


def make_plan(model: Any, sequences: Sequences, options: RecordOptions, tokenizer: Any = None) -> Plan:
    """Return what the dump will hold, once all that is asked for has been checked.

    Raises InputError if the model or tokenizer is none, an option is out of range, a condition cannot be applied, the
    length is not a multiple of 4 or more than the model allows, or the name of the model or tokenizer is none that a
    dump can hold; ModelError if the model cannot be recorded; DesignError if there are fewer than 5 documents.
    """
    check_recordable(model)
    if tokenizer is not None:
        check_tokenizer(tokenizer)
    if sequences.documents < MINIMUM_DOCUMENTS:
        raise DesignError(
            f"the sequences come from {sequences.documents} document(s); every interval rests on documents, and at "
            f"least {MINIMUM_DOCUMENTS} are needed"
        )
    length, analysed = sequences.length, analysed_half(sequences.length)
    offsets, probes = (
        check_positions(what, values, length)
        for what, values in (("offset", options.offsets), ("probe", options.probes))
    )
    # From here on every depth is a block: labels and digests do not tell how it was given.
    parsed = at_depth(parse_conditions(options.conditions), text_config(model).num_hidden_layers)
    limit = max_length(model)
    for condition in parsed:
        reach = length + (condition.value if condition.kind == "shift" else 0)
        if limit and reach > limit:
            raise InputError(f"{condition.name} needs {reach} positions, the model allows {limit}")
    token_id, substitute_id = (
        np.stack([tokens(condition, sequences, seed=options.seed) for condition in parsed])
        for tokens in (fed_tokens, substituted_tokens)
    )
    for condition, ids, substitutes in zip(parsed, token_id, substitute_id, strict=True):
        check_condition(condition, ids, substitutes, model)

    facts = model_facts(model, tokenizer, length=length)
    layers, heads = facts["n_layers"], facts["n_heads"]
    sizes = {
        "condition": len(parsed),
        "sequence": sequences.count,
        "layer": layers,
        "head": heads,
        "token": length,
        "query": analysed,
        "key": analysed,
        "offset": len(offsets),
        "lag": analysed,
        "depth": layers + 1,
        "hidden": model.config.get_text_config().hidden_size,
        "channel": facts["value_dim"],
    }
    coordinates = {
        "condition": np.array([condition.name for condition in parsed]),
        "document": sequences.document,
        "offset": np.array(offsets),
    }
    counted = ("sequence", "layer", "head", "token", "query", "key", "lag", "depth")
    coordinates |= {name: np.arange(sizes[name]) for name in counted}
    if probes:
        sizes["probe"], coordinates["probe"] = len(probes), np.array(probes)
    return Plan(
        conditions=parsed,
        offsets=offsets,
        probes=probes,
        seed=options.seed,
        token_id=token_id,
        substitute_id=substitute_id,
        sizes=sizes,
        dtype="float64" if model.dtype == torch.float64 else "float32",
        coordinates=coordinates,
        attrs=_attributes(facts, sequences, coordinates, (token_id, substitute_id), options.seed),
    )


def _attributes(
    facts: dict[str, Any],
    sequences: Sequences,
    coordinates: dict[str, np.ndarray],
    tokens: tuple[np.ndarray, ...],
    seed: int,
) -> dict[str, Any]:
    attrs = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in facts.items()}
    attrs |= {
        "sequences": sequences.source,
        "sequences_seed": -1 if sequences.seed is None else sequences.seed,
        "bos": sequences.bos,
        "bos_token": sequences.bos_token,
        "bos_token_id": -1 if sequences.bos_id is None else sequences.bos_id,
        "seed": seed,
        "length": sequences.length,
        "reference_queries": reference_queries(sequences.length),
        "received_queries": received_queries(sequences.length),
    }
    for name, value in attrs.items():
        if isinstance(value, str):
            check_text(name, value)
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(ids, dtype="<i8").tobytes() for ids in tokens))
    labels = {name: values.tolist() for name, values in coordinates.items()}
    # A dump that lacks a variable of this version is not the dump of this version.
    digest.update(json.dumps([SCHEMA_VERSION, list(VARIABLES), attrs, labels], sort_keys=True).encode())
    return attrs | {"settings_sha256": digest.hexdigest()}
