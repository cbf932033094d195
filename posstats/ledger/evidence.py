"""What each part of the claims' criteria rests on, in one dump (docs/method.md, section 9).

A generator per claim yields the numbers that its criterion asks for, or says which condition the dump lacks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from posstats.arguments import labels
from posstats.dataset.comparable import IID
from posstats.dataset.door import whole_dump
from posstats.errors import DesignError
from posstats.estimators.leakage import leakage, magnitude, removal, shares
from posstats.estimators.readers import readers
from posstats.estimators.sinks import sinks
from posstats.estimators.trajectory import trajectory
from posstats.ledger.controls import REPEAT_ROUNDING, ROUNDING, model_dtype, repeat_residuals, shift_differences
from posstats.results.verdicts import CLAIMED_REMOVAL, Evidence, Rule
from posstats.stats.inference.multiplicity import adjust as adjust_p
from posstats.stats.inference.options import Inference
from posstats.vocabulary import BASELINE, EARLY_BIN, RESIDUAL

_ABOVE_0 = Rule("above", 0.0)


def _conditions(ds: xr.Dataset, prefix: str) -> list[str]:
    return [name for name in ds.condition.values.tolist() if name.startswith(prefix)]


def _only(ds: xr.Dataset, *conditions: str) -> xr.Dataset:
    return ds.sel(condition=list(conditions))


def _numbers(row: pd.Series) -> dict[str, Any]:
    numbers = {name: float(row[name]) for name in ("estimate", "low", "high", "p")}
    note = str(row.get("note", ""))
    if "documents do not differ beyond rounding" in note and np.isnan(numbers["low"]):  # the interval is a point
        numbers |= {"low": numbers["estimate"], "high": numbers["estimate"]}
    return numbers | {"reason": note}


def absolute_position(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C1: leakage, and what a shift of all positions does."""
    row = leakage(_only(ds, BASELINE), octaves=False, **inference.options()).table.iloc[0]
    yield Evidence("C1", "a", "leakage", "nats^2", _ABOVE_0, **_numbers(row))
    what, dtype = "largest change of a recorded quantity", model_dtype(ds)
    shifts = _conditions(ds, "shift=")
    if not shifts:
        yield Evidence("C1", "b", what, "nats", reason="needs a condition shift=K in the dump")
    for condition in shifts:
        largest = max(shift_differences(ds, condition).values())
        if dtype in ROUNDING:
            rule = Rule("at most", ROUNDING[dtype])
            yield Evidence("C1", "b", what, "nats", rule, condition, largest)
        else:
            reason = f"{dtype} rounds by more than a shift would change; dump the model in float32"
            yield Evidence("C1", "b", what, "nats", None, condition, largest, reason=reason)


def mask_component(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C2: the mask's share, at layer 0 of iid tokens without BOS and over all layers."""
    iid = str(ds.attrs.get("sequences", "")).startswith(IID)
    without_bos = BASELINE if ds.attrs.get("bos") == "none" else "bos=none"
    if iid and _conditions(ds, without_bos):
        found = shares(_only(ds, without_bos).isel(layer=[0]), octaves=False, **inference.options()).table
        numbers = _numbers(found[found.term == "mask"].iloc[0])
        # p is that of "the share is 0", which is not what the criterion asks.
        numbers["p"] = float("nan")
        yield Evidence("C2", "a", "mask share, layer 0", "1", Rule("contains", 1.0), without_bos, **numbers)
    else:
        reason = "needs a dump of iid tokens (random_sequences) with the condition bos=none, or recorded without BOS"
        yield Evidence("C2", "a", "mask share, layer 0", condition="bos=none", reason=reason)
    found = shares(_only(ds, BASELINE), octaves=False, **inference.options()).table
    yield Evidence("C2", "b", "mask share", "1", _ABOVE_0, **_numbers(found[found.term == "mask"].iloc[0]))


def residual_component(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C3: the residual magnitude beyond layer 0, and the residual terms of repeated tokens."""
    what = f"residual magnitude, {EARLY_BIN}, layers 1 to {ds.sizes['layer'] - 1}"
    if ds.sizes["layer"] < 2:
        yield Evidence("C3", "a", "residual magnitude", "nats^2", reason="the model has one layer")
    else:
        found = magnitude(_only(ds, BASELINE).isel(layer=slice(1, None)), **inference.options()).table
        row = found[(found.term == RESIDUAL) & (found.queries == EARLY_BIN)]
        if len(row):
            numbers = _numbers(row.iloc[0])
            numbers["reason"] = per_head(numbers["estimate"], ds.sizes["head"] * (ds.sizes["layer"] - 1))
            yield Evidence("C3", "a", what, "nats^2", _ABOVE_0, **numbers)
        else:
            yield Evidence("C3", "a", what, "nats^2", reason=no_early(ds))
    what = "largest residual term, sequence by sequence"
    if _conditions(ds, "repeat"):
        largest = max(repeat_residuals(ds).values())
        yield Evidence("C3", "b", what, "nats", Rule("at most", REPEAT_ROUNDING), "repeat", largest)
    else:
        yield Evidence("C3", "b", what, "nats", condition="repeat", reason="needs the condition repeat in the dump")


def closed_system(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C4 and the trajectory parts of C8: departure, constancy under BOS, variation without."""
    if "trajectory_departure" not in ds:
        reason = "needs trajectory_departure, which dumps of this version hold: dump again"
        yield Evidence("C4", "a", "largest departure of the trajectory", reason=reason)
        yield Evidence("C8", "b", "largest distance between trajectories", reason=reason)
        yield Evidence("C8", "c", "distance between minus within first tokens", condition="bos=tokens:K", reason=reason)
        return
    once = [BASELINE, *_conditions(ds, "bos=none")]
    found = trajectory(_only(ds, *once), **inference.options()).table
    for condition in once:
        rows = found[(found.condition == condition) & (found.quantity == "departure")]
        yield _largest("C4", "a", "largest departure of the trajectory", rows, condition)
    if ds.attrs.get("bos") == "none":
        reason = "needs a dump with BOS in the ids of the sequences"
        yield Evidence("C8", "b", "largest distance between trajectories", reason=reason)
    else:
        rows = found[(found.condition == BASELINE) & (found.quantity == "within")]
        yield _largest("C8", "b", "largest distance between trajectories", rows, BASELINE)
    yield from _fingerprints(ds, inference)


def _fingerprints(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C8 c: first tokens told apart by their trajectories."""
    what = "distance between minus within first tokens"
    repeated = _conditions(ds, "bos=tokens:")
    if not repeated:
        reason = "needs a condition bos=tokens:K in the dump, under which first tokens repeat over documents"
        yield Evidence("C8", "c", what, condition="bos=tokens:K", reason=reason)
    for condition in repeated:
        try:
            # Identifying the tokens downstream is no part of the criterion: one permutation of its test is enough.
            found = trajectory(_only(ds, condition), **inference.options("n_permutations"), n_permutations=1).table
        except DesignError as error:
            yield Evidence("C8", "c", what, condition=condition, reason=str(error))
            continue
        rows = found[(found.quantity == "between_minus_within") & (found.depth > 0)]
        if not len(rows):
            yield Evidence("C8", "c", what, condition=condition, reason="no first token is shared by two documents")
            continue
        weakest = rows.iloc[int(np.argmin(rows.low.fillna(rows.estimate)))]
        numbers = _numbers(weakest)
        numbers["reason"] = "; ".join(text for text in (f"weakest at depth {weakest.depth}", numbers["reason"]) if text)
        yield Evidence("C8", "c", what, "1", _ABOVE_0, condition, **numbers)


def _largest(claim: str, part: str, what: str, rows: pd.DataFrame, condition: str) -> Evidence:
    """Largest deviation over depths, against what rounding may do."""
    worst = rows.iloc[int(np.argmax(rows.largest.fillna(np.inf)))] if len(rows) else None
    if worst is None or np.isnan(worst.largest):
        reason = "no two sequences share a first token" if worst is None else str(worst.note)
        return Evidence(claim, part, what, condition=condition, reason=reason)
    reason = f"at depth {worst.depth} of {rows.depth.max()}"
    return Evidence(
        claim, part, what, "1", Rule("at most", worst.tolerance), condition, float(worst.largest), reason=reason
    )


def sink_readers(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C5 and the anchor part of C8: sink-reading heads, what they react to, what they look for."""
    anchored = _conditions(ds, "bos@") if "anchor_attention" in ds else []
    try:
        found = sinks(_only(ds, BASELINE, *anchored), **inference.options("n_permutations"))
    except DesignError as error:
        for claim, part in (("C5", "a"), ("C5", "b"), ("C8", "a")):
            yield Evidence(claim, part, "attention on position 0", reason=str(error))
        return
    yield _sink_heads(
        found.table[found.table.condition == BASELINE], float(str(found.settings["sink_epsilon"])), inference
    )
    yield _displacement(ds, inference)
    what = "attention on BOS at P minus on position 0"
    rows = found.contrasts.table
    rows = rows[rows.contrast == "bos_minus_position0"]
    for _, row in rows.iterrows():
        numbers = _numbers(row)
        # Without sink-reading heads there is nothing that could be anchored to either: not testable, as C5 (b) then is.
        rule = None if np.isnan(numbers["estimate"]) else _ABOVE_0
        yield Evidence("C8", "a", what, "1", rule, str(row.condition), **numbers)
    if not len(rows):
        reason = "needs a condition bos@P in a dump of this version, P + 16 below its length"
        yield Evidence("C8", "a", what, condition="bos@P", reason=reason)


def _sink_heads(heads: pd.DataFrame, epsilon: float, inference: Inference) -> Evidence:
    """How many heads read position 0: those above eps for sure, and those that may be.

    The interval counts heads that are significantly above eps, and heads that are not significantly below; p is Simes'
    of "no head is above eps", the smallest adjusted one-sided p.
    """
    above = heads.estimate > epsilon
    significant = heads.q < 1 - inference.level
    one_sided = np.where(above, heads.p / 2, 1 - heads.p / 2)
    p = adjust_p(one_sided, "bh").q
    count, sure = int(above.sum()), int((above & significant).sum())
    possible = int(heads.p.notna().sum() - (~above & significant).sum())
    return Evidence(
        "C5", "a", "sink-reading heads", "heads", Rule("at least", 1.0), BASELINE, count, sure, possible,
        float(np.nanmin(p)) if np.isfinite(p).any() else float("nan"), reason=f"of {len(heads)} heads",
    )  # fmt: skip


def _displacement(ds: xr.Dataset, inference: Inference) -> Evidence:
    """Displacement of sink-reading heads minus that of the others, averaged over the depths of replacement."""
    what, condition = "displacement of sink-reading heads minus others", "trajectory=token:ID@L"
    names = _conditions(ds, "trajectory=")
    if not names:
        return Evidence(
            "C5", "b", what, "nats^2", condition=condition, reason=f"needs conditions {condition} in the dump"
        )
    found = readers(_only(ds, BASELINE, *names), **inference.options()).table
    rows = found[found.quantity == "difference"]
    defined = pd.DataFrame([_numbers(row) for _, row in rows.iterrows()]).dropna(subset=["estimate"])
    if not len(defined):
        return Evidence("C5", "b", what, "nats^2", condition=names[0], reason=str(rows.note.iloc[0]))
    # The depths share their documents. Averaging the limits is exact for perfectly dependent estimates and errs on the
    # long side otherwise; twice the mean of p-values is one, whatever their dependence.
    estimate, low, high, p = (float(defined[x].mean(skipna=False)) for x in ("estimate", "low", "high", "p"))
    reason = f"mean over {len(defined)} of {len(rows)} depths of replacement"
    return Evidence("C5", "b", what, "nats^2", _ABOVE_0, condition, estimate, low, high, min(1.0, 2 * p), reason=reason)


def replaced_bos(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C7: removal at early queries by every replacement that was recorded, whatever its sign."""
    what = f"removal, {EARLY_BIN}"
    names = _conditions(ds, "bos=")
    if not names:
        yield Evidence("C7", "a", what, condition="bos=...", reason="needs a condition such as bos=mean in the dump")
        return
    found = removal(_only(ds, BASELINE, *names), names, **inference.options()).table
    found = found[found.queries == EARLY_BIN]
    for name in names:
        rows = found[found.condition == name]
        if not len(rows):
            yield Evidence("C7", "a", what, condition=name, reason=no_early(ds))
            continue
        numbers = _numbers(rows.iloc[0])
        if not numbers["reason"]:
            agrees = numbers["low"] <= CLAIMED_REMOVAL <= numbers["high"]
            with_0 = " and with 0" if agrees and numbers["low"] <= 0 else ""
            base = per_head(rows.baseline_magnitude.iloc[0], ds.sizes["head"] * ds.sizes["layer"], "baseline ")
            said = "agrees" if agrees else "does not agree"
            numbers["reason"] = f"{said} with {CLAIMED_REMOVAL:.2f}{with_0}; {base}"
        yield Evidence("C7", "a", what, "1", _ABOVE_0, name, **numbers)


def per_head(squared: float, heads: int, of: str = "") -> str:
    """Say how large a magnitude, in nats squared summed over heads, is per head.

    A test above 0 says nothing of its size. `of`, what it is the magnitude of, is put before it. Empty where the
    magnitude, an unbiased estimate, is not above 0.

    >>> per_head(2.7, 270)
    '0.1 nats per head, root mean square'
    """
    return f"{of}{np.sqrt(squared / heads):.3g} nats per head, root mean square" if squared > 0 else ""


def no_early(ds: xr.Dataset) -> str:
    """Say why a dump has no early queries, and what to do about it."""
    return (
        f"{ds.sizes['query']} analysed queries with offsets {ds.offset.values.tolist()} have no early queries "
        f"{EARLY_BIN}: dump longer sequences, with offset 0 or 1"
    )


#: What is asked of a single dump, and which claims it is evidence of.
QUESTIONS: tuple[tuple[Callable[[xr.Dataset, Inference], Iterator[Evidence]], frozenset[str]], ...] = (
    (absolute_position, frozenset({"C1"})),
    (mask_component, frozenset({"C2"})),
    (residual_component, frozenset({"C3"})),
    (closed_system, frozenset({"C4", "C8"})),
    (sink_readers, frozenset({"C5", "C8"})),
    (replaced_bos, frozenset({"C7"})),
)


def require_dump(data: object) -> xr.Dataset:
    """Return a dump with a baseline, or raise InputError."""
    ds = whole_dump(data, ("token_id",), "Claims are tested on whole dumps")
    labels("condition", [BASELINE], ds.condition.values.tolist(), "text")
    return ds
