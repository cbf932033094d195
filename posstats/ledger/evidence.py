"""What each part of the claims' criteria rests on, in one dump (docs/method.md, section 9).

A generator per claim yields the numbers that its criterion asks for, or says which condition the dump lacks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats as sps
import xarray as xr

from posstats.arguments import labels
from posstats.dataset.comparable import IID
from posstats.dataset.door import whole_dump
from posstats.errors import DesignError, InputError
from posstats.estimators.leakage import leakage, removal, shares, size
from posstats.estimators.readers import readers
from posstats.estimators.sinks import sinks
from posstats.estimators.trajectory import trajectory
from posstats.results.verdicts import CLAIMED_REMOVAL, SHARE_MARGIN, Evidence, Rule
from posstats.stats.inference.bands import count_above
from posstats.stats.inference.multiplicity import adjust as adjust_p
from posstats.stats.inference.options import Inference
from posstats.vocabulary import BASELINE, EARLY_BIN, RESIDUAL

_ABOVE_0 = Rule("above", 0.0)
#: What rounding in float64 may do to a control, in nats or relative (docs/method.md, section 7).
CONTROL_ROUNDING = 1e-9
_BETWEEN = "distance between minus within first tokens"
_IDENTIFIED = "accuracy of the first token from what heads pass on"


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


def _sized(row: pd.Series) -> dict[str, Any]:
    """Numbers of a row whose estimate is also what is compared with untrained twins."""
    return _numbers(row) | {"size": float(row.estimate), "size_se": float(row.se)}


def _control(ds: xr.Dataset, claim: str, part: str, name: str, what: str, condition: str = BASELINE) -> Evidence:
    """Evidence of a control in float64, which a recording carries as an attribute."""
    largest = float(ds.attrs.get(f"control_{name}_float64", np.nan))
    if np.isnan(largest):
        reason = f"needs the control {name} in float64, which ps.dump records beside a model's activations"
        return Evidence(claim, part, what, "nats", condition=condition, reason=reason)
    failed = "" if largest <= CONTROL_ROUNDING else "the control failed: the recording is suspect"
    return Evidence(claim, part, what, "nats", Rule("at most", CONTROL_ROUNDING), condition, largest, reason=failed)


def absolute_position(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C1: leakage, and what a shift of all positions does."""
    row = leakage(_only(ds, BASELINE), octaves=False, **inference.options()).table.iloc[0]
    yield Evidence("C1", "a", "leakage", "nats^2", _ABOVE_0, **_sized(row))
    yield _control(ds, "C1", "b", "shift", "largest change of log attention", "shift")


def mask_component(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C2: the mask's share, at layer 0 of iid tokens without BOS, and its size over all layers."""
    iid = str(ds.attrs.get("sequences", "")).startswith(IID)
    without_bos = BASELINE if ds.attrs.get("bos") == "none" else "bos=none"
    what = "mask share, layer 0, both orders"
    if iid and _conditions(ds, without_bos):
        first = _only(ds, without_bos).isel(layer=[0])
        rows = shares(first, octaves=False, **inference.options()).table.set_index("term")
        both = rows.loc[["mask_first", "mask_last"]]
        estimate, low, high = float(rows.estimate["mask"]), float(both.low.min()), float(both.high.max())
        rule = Rule("within", *SHARE_MARGIN)
        yield Evidence("C2", "a", what, "1", rule, without_bos, estimate, low, high)
    else:
        reason = "needs a dump of iid tokens (random_sequences) with the condition bos=none, or recorded without BOS"
        yield Evidence("C2", "a", what, condition="bos=none", reason=reason)
    yield Evidence(
        "C2", "b", "mask size", "nats^2", _ABOVE_0, **_sized(_size_of(_only(ds, BASELINE), "mask", inference))
    )


def _size_of(ds: xr.Dataset, term: str, inference: Inference) -> pd.Series:
    table = size(ds, octaves=False, **inference.options()).table
    return table[table.term == term].iloc[0]


def residual_component(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C3: the residual size beyond layer 0, and the residual terms of repeated tokens."""
    what = f"residual size, layers 1 to {ds.sizes['layer'] - 1}"
    if ds.sizes["layer"] < 2:
        yield Evidence("C3", "a", "residual size", "nats^2", reason="the model has one layer")
    else:
        row = _size_of(_only(ds, BASELINE).isel(layer=slice(1, None)), RESIDUAL, inference)
        numbers = _sized(row)
        cells = ds.sizes["head"] * (ds.sizes["layer"] - 1) * ds.sizes["offset"]
        numbers["reason"] = "; ".join(filter(None, (numbers["reason"], per_head(numbers["estimate"], cells))))
        yield Evidence("C3", "a", what, "nats^2", Rule("above", 0.0, specific=True), **numbers)
    yield _control(ds, "C3", "b", "repeat", "largest residual term under repeat", "repeat")


def closed_system(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C4 and C9: departure, constancy under BOS, variation without, and what is read of it."""
    yield _control(ds, "C4", "a", "closed", "largest relative departure of the trajectory")
    if "trajectory_departure" not in ds:
        reason = "needs trajectory_departure, which ps.dump records"
        yield Evidence("C9", "a", "largest distance between trajectories", reason=reason)
        for part, what in (("b", _BETWEEN), ("c", _IDENTIFIED)):
            yield Evidence("C9", part, what, condition="bos=tokens:K", reason=reason)
        return
    if ds.attrs.get("bos") == "none":
        reason = "needs a dump with BOS in the ids of the sequences"
        yield Evidence("C9", "a", "largest distance between trajectories", reason=reason)
    else:
        found = trajectory(_only(ds, BASELINE), **inference.options()).table
        yield _largest("C9", "a", "largest distance between trajectories", found[found.quantity == "within"], BASELINE)
    yield from _fingerprints(ds, inference)


def _fingerprints(ds: xr.Dataset, inference: Inference) -> Iterator[Evidence]:
    """C9 b and c: first tokens told apart by their trajectories, and identified from what heads pass on."""
    repeated = _conditions(ds, "bos=tokens:")
    if not repeated:
        reason = "needs a condition bos=tokens:K in the dump, under which first tokens repeat over documents"
        for part, what in (("b", _BETWEEN), ("c", _IDENTIFIED)):
            yield Evidence("C9", part, what, condition="bos=tokens:K", reason=reason)
    options = inference.options("n_permutations") | {"n_permutations": min(inference.n_permutations, 1999)}
    for condition in repeated:
        try:
            found = trajectory(_only(ds, condition), **options)
        except DesignError as error:
            for part, what in (("b", _BETWEEN), ("c", _IDENTIFIED)):
                yield Evidence("C9", part, what, condition=condition, reason=str(error))
            continue
        rows = found.table[(found.table.quantity == "between_minus_within") & (found.table.depth > 0)]
        if len(rows):
            weakest = rows.iloc[int(np.argmin(rows.low.fillna(rows.estimate)))]
            numbers = _sized(weakest)
            numbers["reason"] = "; ".join(filter(None, (f"weakest at depth {weakest.depth}", numbers["reason"])))
            yield Evidence("C9", "b", _BETWEEN, "1", _ABOVE_0, condition, **numbers)
        else:
            yield Evidence("C9", "b", _BETWEEN, condition=condition, reason="no first token is shared by two documents")
        yield _identified(found.identification.table, condition)


def _identified(table: pd.DataFrame, condition: str) -> Evidence:
    """Accuracy of the first token from all layers: from the sink-reading heads, or the others where there are none."""
    rows = table[(table.condition == condition) & (table.layers == "all")].dropna(subset=["estimate"])
    if not len(rows):
        reason = "no head can be read in every fold"
        return Evidence("C9", "c", _IDENTIFIED, condition=condition, reason=reason)
    row = rows.sort_values("heads", key=lambda heads: heads != "sink-reading").iloc[0]
    numbers = _sized(row)
    reason = f"{row['heads']} heads, chance {row.chance:.3g}"
    numbers["reason"] = "; ".join(filter(None, (reason, numbers["reason"])))
    return Evidence("C9", "c", _IDENTIFIED, "1", Rule("above", float(row.chance)), condition, **numbers)


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
        for claim, part in (("C5", "a"), ("C5", "b"), ("C8", "a"), ("C8", "b")):
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
        numbers = _sized(row)
        # Without sink-reading heads there is nothing that could be anchored to either: not testable, as C5 (b) then is.
        rule = None if np.isnan(numbers["estimate"]) else _ABOVE_0
        numbers |= {"size": 0.0, "size_se": 0.0} if rule is None else {}
        yield Evidence("C8", "a", what, "1", rule, str(row.condition), **numbers)
    if not len(rows):
        reason = "needs a condition bos@P in a dump of this version, P + 16 below its analysed queries"
        yield Evidence("C8", "a", what, condition="bos@P", reason=reason)
    yield _anchored(ds, inference)


def _sink_heads(heads: pd.DataFrame, epsilon: float, inference: Inference) -> Evidence:
    """Count the heads that read position 0, with the limits of closed testing; p is Simes' of "none does"."""
    one_sided = np.where(heads.estimate > epsilon, heads.p / 2, 1 - heads.p / 2)
    count = count_above(heads.estimate.to_numpy(), one_sided, epsilon, level=inference.level)
    p = adjust_p(one_sided, "bh").q
    return Evidence(
        "C5", "a", "sink-reading heads", "heads", Rule("at least", 1.0), BASELINE, count.estimate, count.low,
        count.high, float(np.nanmin(p)) if np.isfinite(p).any() else float("nan"), reason=f"of {len(heads)} heads",
        size=count.estimate, size_se=(count.high - count.low) / (2 * sps.norm.ppf(0.5 + inference.level / 2)),
    )  # fmt: skip


def _displacement(ds: xr.Dataset, inference: Inference) -> Evidence:
    """Displacement of sink-reading heads minus that of the others, averaged over the depths of replacement."""
    what, condition = "displacement of sink-reading heads minus others", "trajectory=tokens:K@L"
    names = _conditions(ds, "trajectory=")
    if not names:
        return Evidence(
            "C5", "b", what, "nats^2", condition=condition, reason=f"needs conditions {condition} in the dump"
        )
    found = readers(_only(ds, BASELINE, *names), **inference.options()).table
    rows = found[found.quantity == "difference"]
    defined = pd.DataFrame([_numbers(row) for _, row in rows.iterrows()]).dropna(subset=["estimate"])
    if not len(defined):
        # Without sink-reading heads there is none that moves more than others: of a twin that is an amount of 0.
        return Evidence(
            "C5", "b", what, "nats^2", condition=condition, reason=str(rows.note.iloc[0]), size=0.0, size_se=0.0
        )
    # The depths share their documents. Averaging the limits is exact for perfectly dependent estimates and errs on the
    # long side otherwise; twice the mean of p-values is one, whatever their dependence.
    estimate, low, high, p = (float(defined[x].mean(skipna=False)) for x in ("estimate", "low", "high", "p"))
    reason = f"mean over {len(defined)} of {len(rows)} depths of replacement"
    se = (high - low) / (2 * sps.norm.ppf(0.5 + inference.level / 2))
    return Evidence(
        "C5", "b", what, "nats^2", Rule("above", 0.0, specific=True), condition, estimate, low, high, min(1.0, 2 * p),
        reason=reason, size=estimate, size_se=se,
    )  # fmt: skip


def _anchored(ds: xr.Dataset, inference: Inference) -> Evidence:
    """Whether sinks at other keys follow tokens: held-out documents, tokens that held sinks against others."""
    what = "sinks at tokens that hold them elsewhere minus others"
    try:
        table = sinks(_only(ds, BASELINE), keys="all", **inference.options()).anchoring.table
    except (DesignError, InputError) as error:
        return Evidence("C8", "b", what, reason=str(error))
    row = table.iloc[0]
    if not np.isfinite(row.estimate):
        return Evidence("C8", "b", what, reason=str(row.note) or "no token holds a sink in several documents")
    return Evidence("C8", "b", what, "1", _ABOVE_0, **_sized(row))


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
        amount: dict[str, Any] = {"size": float(rows.removed.iloc[0]), "size_se": float(rows.removed_se.iloc[0])}
        yield Evidence("C7", "a", what, "1", Rule("above", 0.0, specific=True), name, **numbers, **amount)


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
    (closed_system, frozenset({"C4", "C9"})),
    (sink_readers, frozenset({"C5", "C8"})),
    (replaced_bos, frozenset({"C7"})),
)


def require_dump(data: object) -> xr.Dataset:
    """Return a dump with a baseline, or raise InputError."""
    ds = whole_dump(data, ("token_id",), "Claims are tested on whole dumps")
    labels("condition", [BASELINE], ds.condition.values.tolist(), "text")
    return ds
