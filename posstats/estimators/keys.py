"""Sinks at any key: their number by layer, key and token, and whether they go with tokens (docs/method.md, 7)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.dataset.blocks import Block, by_layer, head_blocks, read
from posstats.dataset.door import whole_dump
from posstats.estimators.rows import NUMBERS, Documents, adjusted, conditions
from posstats.execution.parallel import side_by_side
from posstats.results.sinks import KeySinkResult, SinkAnchoringResult, SinkCountResult
from posstats.stats.inference.options import Inference
from posstats.stats.pair_products.terms import Array
from posstats.stats.sinks import Anchoring, first_occurrences, halves, order_blind, sink_counts
from posstats.vocabulary import BASELINE, Note

_ALL = "all"
_LIMITS = ("estimate", "se", "low", "high")
#: Conditions that put one fixed token, or its trajectory, at position 0.
_REPLACEMENT = re.compile(r"(?:bos|trajectory)=token:(\d{1,9})\b")
_COUNTS = ("n_sinks", "position_0_share", "n_first", "expected_first")


def sink_keys(data: xr.Dataset, threshold: float, inference: Inference) -> KeySinkResult:
    """Sinks at all keys, of every condition: what :func:`posstats.sinks` returns for ``keys="all"``."""
    data = whole_dump(data, ("attention_received", "token_id"), "Sinks at all keys read a dump")
    design = Documents.of(data, inference)
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in ("layers", "key", "token", "anchoring")}
    for name, one in conditions(data):
        for table, row in _rows(_Sinks.of(one, threshold), design, inference):
            rows[table].append({"condition": name} | row)
    settings = design.settings | {"sink_threshold": threshold}
    notes = (*design.notes, *sink_replacements(data, threshold))

    def counts(*names: str) -> pd.DataFrame:
        return pd.DataFrame(rows[names[-1]], columns=["condition", *names, *_LIMITS, *_COUNTS])

    anchoring = adjusted(pd.DataFrame(rows["anchoring"]), ["condition"], inference, {"p": "q"})
    columns = ["condition", "layers", *NUMBERS, "q", "selected", "others", "n_sinks", "note"]
    tested = {"adjustment": inference.adjust, "n_permutations": inference.n_permutations, "n_folds": 2}
    return KeySinkResult(
        counts("layers"),
        settings,
        notes,
        by_key=SinkCountResult(counts("layers", "key"), settings, notes),
        by_token=SinkCountResult(counts("token"), settings, notes),
        anchoring=SinkAnchoringResult(anchoring[columns], settings | tested, notes),
    )


def sink_replacements(data: xr.Dataset, threshold: float) -> tuple[Note, ...]:
    """A note on every fixed replacement token that is itself a sink token of the baseline, where that can be known."""
    matches = {name: _REPLACEMENT.match(name) for name in data.condition.values.tolist()}
    tokens = {name: int(match[1]) for name, match in matches.items() if match}
    if not tokens or not {"attention_received", "token_id"} <= set(data) or BASELINE not in data.condition.values:
        return ()
    found = _Sinks.of(data.sel(condition=BASELINE), threshold)
    held = {token: int((found.total[found.token == token] > 0).sum()) for token in set(tokens.values())}
    return tuple(
        Note(
            f"{name}: token {token} is a sink token, at {held[token]} keys beyond position 0 of the baseline", "design"
        )
        for name, token in tokens.items()
        if held[token]
    )


@dataclass(frozen=True, slots=True)
class _Sinks:
    """Sinks of one condition."""

    #: Layer -> number of heads with a sink, (sequence, key).
    counts: dict[int, NDArray[np.int64]]
    #: (sequence, key): ids of the tokens, whether they stand there first, and what an order-blind count expects.
    token: NDArray[np.int64]
    first: NDArray[np.bool_]
    expected: Array

    @classmethod
    def of(cls, one: xr.Dataset, threshold: float) -> "_Sinks":
        blocks = head_blocks(one[["attention_received"]])
        made = dict(by_layer(side_by_side(partial(_counted, threshold=threshold), blocks)))
        counts = {layer: np.sum([count for count, _ in made[layer]], axis=0) for layer in one.layer.values.tolist()}
        seen = np.any([known for parts in made.values() for _, known in parts], axis=0)
        token = read(one.token_id).transpose("sequence", "token").values.astype(np.int64)[:, : len(one.key)]
        beyond = np.broadcast_to(seen & (one.key.values > 0), token.shape)
        first = first_occurrences(token)
        return cls(counts, token, first, order_blind(beyond, first, token))

    @property
    def total(self) -> NDArray[np.int64]:
        """Heads with a sink beyond position 0, of all layers, (sequence, key)."""
        total = np.sum(list(self.counts.values()), axis=0)
        total[:, 0] = 0
        return total

    def numbers(self, counts: NDArray[np.int64]) -> Array:
        """Sinks, those at position 0, those at first occurrences beyond it and those expected there, (..., 4).

        Of counts (sequence, key), per key.
        """
        beyond = counts * (np.arange(counts.shape[1]) > 0)
        parts = (counts, counts - beyond, beyond * self.first, beyond * self.expected)
        return np.stack([np.asarray(part, np.float64) for part in parts], axis=-1)


def _counted(block: Block, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    (layer,) = block.load()
    received = layer.attention_received.transpose("sequence", "head", "key").values.astype(np.float64)
    return sink_counts(received, threshold), ~np.isnan(received).all(axis=(0, 1))


def _rows(found: _Sinks, design: Documents, inference: Inference) -> Iterator[tuple[str, dict[str, object]]]:
    """Name of a table, and a row of it."""
    total = np.sum(list(found.counts.values()), axis=0)
    for layers, counts in {_ALL: total, **{str(layer): one for layer, one in found.counts.items()}}.items():
        by_key = found.numbers(counts)
        yield "layers", _counts({"layers": layers}, by_key.sum(axis=1)[:, None], design)[0]
        for row in _counts({"layers": layers, "key": np.arange(by_key.shape[1])}, by_key, design):
            yield "key", row
        yield "anchoring", {"layers": layers} | _anchoring(found, counts, design, inference)
    by_key = found.numbers(total)
    tokens, codes = np.unique(found.token[total > 0], return_inverse=True)
    by_token = np.zeros((len(total), len(tokens), 4))
    np.add.at(by_token, (np.nonzero(total)[0], codes), by_key[total > 0])
    most = np.argsort(-by_token[..., 0].sum(axis=0), kind="stable")
    for row in _counts({"token": tokens[most]}, by_token[:, most], design):
        yield "token", row


def _counts(key: dict[str, object], numbers: Array, design: Documents) -> list[dict[str, object]]:
    """Rows of counts, (sequence, row, 4), each with the interval of its number per sequence."""
    x = design.mean(design.sums(numbers[..., 0]))
    sums = numbers.sum(axis=0)
    columns = {name: getattr(x, name) for name in _LIMITS}
    columns["low"] = np.maximum(columns["low"], 0.0)  # a count is not below 0
    with np.errstate(invalid="ignore"):
        share = sums[:, 1] / sums[:, 0]
    columns |= {"n_sinks": sums[:, 0].astype(int), "position_0_share": share}
    columns |= {"n_first": sums[:, 2].astype(int), "expected_first": sums[:, 3]}
    frame = pd.DataFrame(key | columns)
    names = [*key, *columns]
    return [dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False)]


def _anchoring(found: _Sinks, counts: NDArray[np.int64], design: Documents, inference: Inference) -> dict[str, object]:
    """The test of one group of layers."""
    beyond = counts[:, 1:]
    anchoring = Anchoring.of(found.token[:, 1:], beyond > 0, design.code, halves(len(design.sequences), inference.seed))
    x = design.replicates.interval(anchoring.at(design.replicates.weights))
    row: dict[str, object] = {name: float(getattr(x, name)[2]) for name in _LIMITS}
    row |= {"p": np.nan, "selected": float(x.estimate[0]), "others": float(x.estimate[1]), "note": ""}
    row["n_sinks"] = int(beyond.sum())
    if not beyond.any():
        return row | {"note": "no sink beyond position 0"}
    if np.isnan(x.estimate[2]):
        return row | {"note": "no token that holds a sink occurs in the other documents beside one that does not"}
    return row | {"p": anchoring.p(inference.n_permutations, inference.seed)}
