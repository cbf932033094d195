"""The ledger: every claim with estimate, interval, p, q and the verdict that follows (docs/method.md, section 9)."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from posstats.arguments import labels, shown
from posstats.dataset.comparable import declared_windows, model_kind, model_of
from posstats.dataset.parameters import explained
from posstats.dataset.terms import document_codes, few_documents_note, repeated_documents_note
from posstats.errors import DesignError, FewDocumentsWarning, InputError
from posstats.estimators.contrast import METHODS, Side, contrast
from posstats.estimators.reach import reach
from posstats.estimators.rows import adjusted
from posstats.ledger.evidence import QUESTIONS, require_dump
from posstats.ledger.twins import specific, twin_contrast, twins_of
from posstats.results.claims import ClaimsResult
from posstats.results.verdicts import (
    ANY_DECODER,
    CRITERIA,
    NOT_TESTABLE,
    SUPPORTED,
    WHOLE,
    Evidence,
    Rule,
    combined,
    combined_specific,
    verdict,
)
from posstats.stats.inference.options import Inference
from posstats.vocabulary import RESIDUAL, TRAINED, VARIANT, Note

#: Architectures that C6 compares.
ARCHITECTURES = ("standard", "ntk", "window")
_COLUMNS = [
    "model", "dump", "kind", "claim", "part", "criterion", "quantity", "unit", "condition", "estimate", "low", "high",
    "p", "q", "n", "runs", "rule", "twin", "difference", "difference_low", "difference_high", "specific", "verdict",
    "reason",
]  # fmt: skip


@explained
def claims(
    data: xr.Dataset | Sequence[xr.Dataset] | Mapping[str, Side],
    *,
    twins: xr.Dataset | Sequence[xr.Dataset] = (),
    which: Sequence[str] = tuple(CRITERIA),
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> ClaimsResult:
    """Test the claims C1 to C9 of docs/method.md, section 9, on one or several models.

    Every dump gets a ledger of its own: a row for each part of each criterion, and one for the claim. A part is decided
    by its interval and its adjusted test together. A claim is supported if all its decided parts are, contradicted if
    all are, mixed if both occur; otherwise inconclusive, or not testable here (`reason` says what the dump lacks).
    Controls count only where a claim has no other part. C6 compares architectures and has a ledger of its own where the
    three are there.

    Parameters
    ----------
    data : xarray.Dataset, sequence of xarray.Dataset, or mapping
        Dumps. Several dumps of one model (random tokens, text) are told apart by what their sequences are, and where
        that is the same by the names of the files they were opened from. A mapping
        says which dumps are of which architecture, ``{"standard": ..., "ntk": ..., "window": ...}``, each a dump or a
        sequence of them; otherwise their attributes say it: what was changed at inference time, or under which
        architecture the model was adapted. Dumps of one architecture with the same settings are its training runs,
        with different ones (several windows) variants that are compared with `standard` one by one. Runs that were
        adapted with the same seeds are paired.
    twins : xarray.Dataset or sequence of xarray.Dataset
        Dumps of untrained models of the same configuration (:func:`posstats.load_model` with `untrained`), two or more,
        on the sequences and conditions of the dumps they belong to. Every part with a size is compared with theirs.
        Without them, parts that ask for what training made cannot be tested.
    which : sequence of str
        Claims to test; all by default.
    %(level)s
    %(method)s
        C6 always rests on a jackknife (:func:`posstats.contrast`).
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s
        The family is all p-values of one ledger.

    Returns
    -------
    ClaimsResult
        `q` is adjusted over all p-values of one ledger.

    Raises
    ------
    InputError
        For an option that is not allowed, data that are no dumps with a baseline, or twins that belong to no dump.
    DesignError
        With fewer than 5 documents, or no analysed query.
    NumericalError
        If a dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        For each dump with fewer than 24 documents.

    Notes
    -----
    Criteria and rules are fixed in :data:`posstats.results.verdicts.CRITERIA` and :mod:`posstats.ledger.evidence`;
    docs/claims.md explains them. Models changed at inference time are compared with the model as trained, and the
    row says so.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=96, layers=2, conditions=["baseline", "bos=mean"], seed=0).dataset
    >>> ledger = ps.claims(ds, n_resamples=99, n_permutations=199)
    >>> ledger.table.query("claim == 'C1'")[["part", "verdict"]].to_numpy().tolist()
    [['a', 'supported'], ['b', 'not testable here'], ['claim', 'supported']]
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    which = labels("which", which, list(CRITERIA), "text")
    models = _named(_flat(data))
    belonging = _belonging(models, twins)
    rows: list[dict[str, object]] = []
    trios = list(_trios(models)) if "C6" in which else []
    compared = {id(one) for trio in trios for one in trio.members()}
    repeated = [repeated_documents_note(model.ds) for model in models]
    asked = [question for question, about in QUESTIONS if about & set(which)]

    def evidence(of: _Model | xr.Dataset) -> list[Evidence]:
        ds = of.ds if isinstance(of, _Model) else of
        n = document_codes(ds)[1]
        return [replace(one, n=n) for question in asked for one in question(ds, inference)]

    for model, doubled in zip(models, repeated, strict=True):
        for note in few_documents_note(model.n) + doubled:
            warnings.warn(f"{model.name} on {model.dump}: {note}", FewDocumentsWarning, stacklevel=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewDocumentsWarning)  # of each dump it has been said
        for model in models:
            found, of_twins = evidence(model), [evidence(twin) for twin in belonging[id(model)]]
            if id(model) not in compared:
                found.append(Evidence("C6", "a", "contrast of architectures", n=model.n, reason=_ALONE))
            rows += _rows(model, [one for one in found if one.claim in which], of_twins, inference.level)
        for trio in trios:
            rows += _rows(trio, list(trio.evidence(inference)), [], inference.level)
    table = adjusted(pd.DataFrame(rows), ["model", "dump"], inference, {"p": "q"})
    table = pd.DataFrame(_judged(table, inference.level))
    settings: dict[str, object] = {
        "n_documents": _one_or_several(model.n for model in models),
        "n_sequences": _one_or_several(model.ds.sizes["sequence"] for model in models),
        "offsets": tuple(models[0].ds.offset.values.tolist()),
        "adjustment": inference.adjust,
    }
    notes = few_documents_note(min(model.n for model in models))
    notes += tuple(dict.fromkeys(note for doubled in repeated for note in doubled))
    if method is None:
        own = {"standard_errors": "of each estimate by its own method (docs/claims.md)"}
        settings |= {"level": inference.level, **own, "n_permutations": n_permutations, "seed": inference.seed}
    else:
        settings |= inference.settings()
        if trios and method not in METHODS:
            notes += (Note("C6 rests on a corrected jackknife", "inference"),)
    return ClaimsResult(table[_COLUMNS], settings, notes)


def _one_or_several(counts: Iterable[int]) -> int | str:
    """The number, where all are the same."""
    different = list(dict.fromkeys(counts))
    return different[0] if len(different) == 1 else " or ".join(map(str, different))


_ALONE = (
    "a claim about three architectures: pass dumps of the model under standard RoPE, NTK-aware scaling and a sliding "
    "window, on the same sequences"
)


@dataclass(frozen=True, slots=True)
class _Model:
    """One dump, what to call it, and the architecture it stands for: none where C6 has no use for it."""

    name: str
    dump: str
    sequences: str
    kind: str
    architecture: str | None
    said: bool
    ds: xr.Dataset
    n: int

    @property
    def settings(self) -> str:
        """What dumps of one architecture have in common if they are training runs of it."""
        return str(self.ds.attrs.get("model_variant", ""))

    @property
    def seed(self) -> int:
        """Seed of the training run, -1 where it is not known."""
        return int(self.ds.attrs.get("adapter_seed", -1))


def _flat(data: xr.Dataset | Sequence[xr.Dataset] | Mapping[str, Side]) -> list[tuple[str | None, xr.Dataset]]:
    """Dumps with the architecture that they are said to have, if it is said."""
    given: list[tuple[str | None, object]]
    if isinstance(data, Mapping) and not isinstance(data, xr.Dataset):
        if unknown := sorted({str(name) for name in data} - set(ARCHITECTURES)):
            raise InputError(f"Unknown architectures {', '.join(unknown)}; there are {', '.join(ARCHITECTURES)}.")
        given = [(name, ds) for name in ARCHITECTURES if name in data for ds in _dumps(data[name])]
    else:
        given = [(None, ds) for ds in _dumps(data)]
    if not given:
        raise InputError(f"{_TAKEN}, at least one of them.")
    return [(said, require_dump(ds)) for said, ds in given]


def _belonging(models: Sequence[_Model], twins: object) -> dict[int, list[xr.Dataset]]:
    """Untrained twins of every model, by its identity."""
    given = [require_dump(twin) for twin in _dumps(twins)]
    found = {id(model): twins_of(model.ds, given) for model in models}
    matched = {id(twin) for of_model in found.values() for twin in of_model}
    if any(id(twin) not in matched for twin in given):
        raise InputError(
            "A twin must hold the sequences, layers, heads and changes at inference time of one of the dumps: one of "
            "the twins belongs to none of them."
        )
    return found


_TAKEN = "Claims are tested on a dump, a sequence of dumps, or a mapping of architectures to dumps"


def _dumps(data: object) -> list[object]:
    """A dump, or the dumps of a sequence."""
    if isinstance(data, xr.Dataset):
        return [data]
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable):
        raise InputError(f"{_TAKEN}, not {shown(data)}.")
    return list(data)


def _named(given: Iterable[tuple[str | None, xr.Dataset]]) -> list[_Model]:
    """Give every dump a name and a ledger of its own."""
    labels = [_label(said, ds) for said, ds in given]
    files = [Path(str(ds.encoding.get("source", ""))).stem for _, ds in given]
    models: list[_Model] = []
    for k, ((said, ds), (name, sequences)) in enumerate(zip(given, labels, strict=True)):
        dump = sequences
        alike = [other for other, label in enumerate(labels) if label == labels[k]]
        if len(alike) > 1 and len({files[other] for other in alike} - {""}) == len(alike):
            dump += f" ({files[k]})"
        elif k > alike[0]:
            name += f" #{alike.index(k) + 1}"
        architecture, n = said or _architecture(ds), document_codes(ds)[1]
        models.append(_Model(name, dump, sequences, model_kind(ds), architecture, said is not None, ds, n))
    return models


def _label(said: str | None, ds: xr.Dataset) -> tuple[str, str]:
    """Model and sequences of a dump, in words that other dumps may share."""
    name = model_of(ds)
    if "adapter_architecture" in ds.attrs:
        name += f", adapted to {ds.attrs['adapter_architecture']}, run {ds.attrs['adapter_seed']}"
    elif ds.attrs.get("model_variant"):
        name += f", {ds.attrs['model_variant']}"
    elif said not in (None, "standard"):
        name += f", {said}"
    # Up to the first colon or comma: what the sequences are, without how many there were to choose from.
    return name, re.split("[,:]", str(ds.attrs.get("sequences", "unnamed sequences")))[0]


def _architecture(ds: xr.Dataset) -> str | None:
    """Architecture by the attributes of a dump."""
    if "adapter_architecture" in ds.attrs:
        adapted = str(ds.attrs["adapter_architecture"])
        return adapted if adapted in ARCHITECTURES else None
    changed = set(re.findall(r"\b(ntk_factor|sliding_window|rope_parameters)=", str(ds.attrs.get("model_variant", ""))))
    if not changed:
        return None if declared_windows(ds) else "standard"
    return {"ntk_factor": "ntk", "sliding_window": "window"}.get(changed.pop()) if len(changed) == 1 else None


@dataclass(frozen=True, slots=True)
class _Trio:
    """Dumps of the same sequences under standard and changed architectures, the latter by their settings."""

    name: str
    dump: str
    standard: list[_Model]
    ntk: dict[str, list[_Model]]
    window: dict[str, list[_Model]]

    def members(self) -> Iterator[_Model]:
        yield from self.standard
        for variants in (self.ntk, self.window):
            for runs in variants.values():
                yield from runs

    @property
    def kind(self) -> str:
        """That of the changed architectures."""
        kinds = sorted({one.kind for one in self.members()})
        return VARIANT if VARIANT in kinds else kinds[0]

    def evidence(self, inference: Inference) -> Iterator[Evidence]:
        """The parts of C6, for every variant."""
        if not self.ntk:
            yield Evidence("C6", "a", "residual share", reason="needs dumps under NTK-aware scaling")
        if not self.window:
            yield Evidence("C6", "c", "residual share", reason="needs dumps under a sliding window")
        for label, runs in self.ntk.items():
            yield from self._compare(runs, label, {"share": ("a", "below"), "size": ("b", "below")}, inference)
        for label, runs in self.window.items():
            yield from self._compare(runs, label, {"share": ("c", "above"), "slope": ("d", "above")}, inference)
            yield _reached(runs, label, inference)

    def _compare(
        self, runs: Sequence[_Model], label: str, asked: Mapping[str, tuple[str, str]], inference: Inference
    ) -> Iterator[Evidence]:
        condition = f"{label} - standard"
        units = {"share": "1", "size": "nats^2", "slope": "nats^2"}
        standard, changed = (sorted(side, key=lambda one: one.seed) for side in (self.standard, runs))
        seeds = [one.seed for one in standard]
        paired = len(seeds) > 1 and -1 not in seeds and seeds == [one.seed for one in changed]
        try:
            found = contrast(
                [one.ds for one in standard],
                [one.ds for one in changed],
                pair_runs=paired,
                quantities=list(asked),
                labels=("standard", label),
                allow_mixed=True,
                level=inference.level,
                method=inference.method if inference.method in METHODS else None,
                n_permutations=inference.n_permutations,
                seed=inference.seed,
            )
        except DesignError as error:
            for quantity, (part, _) in asked.items():
                yield Evidence("C6", part, f"residual {quantity}", units[quantity], None, condition, reason=str(error))
            return
        table, said = found.table, ["training runs paired by seed"] if paired else []
        for quantity, (part, kind) in asked.items():
            chosen = (table.contrast == condition) & (table.term == RESIDUAL) & (table.quantity == quantity)
            row = table[chosen].iloc[0]
            numbers = {name: float(row[name]) for name in ("estimate", "low", "high", "p")}
            yield Evidence(
                "C6",
                part,
                f"residual {quantity}",
                str(row.unit),
                Rule(kind, 0.0),
                condition,
                **numbers,
                n=min(one.n for one in runs),
                runs=min(len(runs), len(self.standard)),
                reason="; ".join(text for text in (str(row.note), *found.notes, *said) if text),
            )


def _reached(runs: Sequence[_Model], label: str, inference: Inference) -> Evidence:
    """C6 e: what is left of position behind a window, against depth; of several runs, the first."""
    what = "slope of the residual magnitude on depth, queries [W, 2W)"
    try:
        row = reach(runs[0].ds, **inference.options()).slope.table.iloc[0]
    except (DesignError, InputError) as error:
        return Evidence("C6", "e", what, "nats^2", None, label, n=runs[0].n, reason=str(error))
    numbers: dict[str, Any] = {name: float(row[name]) for name in ("estimate", "low", "high", "p")}
    return Evidence("C6", "e", what, "nats^2", Rule("above", 0.0), label, **numbers, n=runs[0].n, reason=str(row.note))


def _trios(models: Sequence[_Model]) -> Iterator[_Trio]:
    """Groups of dumps in which the standard architecture and another occur."""
    groups: dict[tuple[str, str, bool], list[_Model]] = {}
    for one in models:
        # Adapted models are compared with each other, changed ones with the model as it was trained; what the user
        # says to be one architecture each, with each other.
        base = "" if one.said else str(one.ds.attrs.get("model", ""))
        adapted = not one.said and one.kind not in (TRAINED, VARIANT)
        groups.setdefault((base, one.sequences, adapted), []).append(one)
    for (base, sequences, adapted), members in groups.items():
        by_architecture: dict[str, dict[str, list[_Model]]] = {name: {} for name in ARCHITECTURES}
        for one in members:
            if one.architecture is not None:
                label = one.settings or one.architecture
                by_architecture[one.architecture].setdefault(label, []).append(one)
        standard, ntk, window = by_architecture.values()
        if standard and (ntk or window):
            name = f"{base or 'standard'}{', adapted,' if adapted else ''} against {', '.join([*ntk, *window])}"
            yield _Trio(name, sequences, [one for runs in standard.values() for one in runs], ntk, window)


_NO_TWINS = "whether training made it needs dumps of two or more untrained twins of the model"


def _rows(
    ledger: _Model | _Trio, found: Sequence[Evidence], twins: Sequence[Sequence[Evidence]], level: float
) -> list[dict[str, object]]:
    """Rows of one ledger, parts in the order of the claims: their numbers, beside those of untrained twins."""
    which = {"model": ledger.name, "dump": ledger.dump, "kind": ledger.kind}
    order = [(claim, part) for claim, criteria in CRITERIA.items() for part in criteria]
    return [
        which | _cells(one) | _beside(one, twins, level)
        for one in sorted(found, key=lambda one: order.index((one.claim, one.part)))
    ]


def _cells(one: Evidence) -> dict[str, object]:
    names = (
        "claim", "part", "quantity", "unit", "condition", "estimate", "low", "high", "p", "n", "runs", "reason"
    )  # fmt: skip
    cells = {name: getattr(one, name) for name in names}
    return cells | {"criterion": CRITERIA[one.claim][one.part], "rule": "" if one.rule is None else str(one.rule)}


def _beside(one: Evidence, twins: Sequence[Sequence[Evidence]], level: float) -> dict[str, object]:
    """What untrained twins have of a part's size, the model minus that, and whether it is specific."""
    names = ("claim", "part", "condition")
    same = [other.size for twin in twins for other in twin if all(getattr(one, x) == getattr(other, x) for x in names)]
    sizes = [size for size in same if np.isfinite(size)]
    cells: dict[str, object] = dict.fromkeys(("twin", "difference", "difference_low", "difference_high"), np.nan)
    if one.rule is not None and np.isfinite(one.size) and len(sizes) > 1:
        difference, low, high = twin_contrast(one.size, one.size_se, one.n, sizes, level)
        sign = -1.0 if one.rule.kind == "below" else 1.0
        numbers = (float(np.mean(sizes)), difference, low, high)
        return dict(zip(cells, numbers, strict=True)) | {"specific": specific(low, high, sign)}
    if one.rule is not None and one.rule.specific:
        cells["reason"] = "; ".join(filter(None, (one.reason, _NO_TWINS)))
    return cells | {"specific": ""}


def _judged(table: pd.DataFrame, level: float) -> Iterator[dict[str, object]]:
    """All rows with their verdicts, each claim's after its parts."""
    for keys, parts in table.groupby(["model", "dump", "kind", "claim"], sort=False):
        rules = [Rule.parse(rule) if rule else None for rule in parts.rule]
        verdicts = []
        for rule, (_, row) in zip(rules, parts.iterrows(), strict=True):
            estimate, low, high, q = (float(row[name]) for name in ("estimate", "low", "high", "q"))
            verdicts.append(
                NOT_TESTABLE
                if rule is None
                else verdict(estimate, low, high, rule, q=q, level=level, specific=str(row.specific))
            )
            yield {str(name): value for name, value in row.items()} | {"verdict": verdicts[-1]}
        controls = [rule is not None and rule.is_control for rule in rules]
        whole = combined(zip(verdicts, controls, strict=True))
        claim = str(parts.claim.iloc[0])
        told = []
        for rule, one, (_, row) in zip(rules, verdicts, parts.iterrows(), strict=True):
            if one == NOT_TESTABLE:
                told.append(f"({row.part}) {row.reason}")
            elif one != whole and rule is not None:
                told.append(f"({row.part}) {one}")
        general = ["holds of every causal decoder"] if claim in ANY_DECODER and whole == SUPPORTED else []
        reason = "; ".join(dict.fromkeys([*general, *told]))
        numbers_of_none = dict.fromkeys(
            ("estimate", "low", "high", "p", "q", "twin", "difference", "difference_low", "difference_high"), np.nan
        )
        yield dict(zip(("model", "dump", "kind", "claim"), keys, strict=True)) | numbers_of_none | {
            "part": WHOLE, "criterion": CRITERIA[claim][WHOLE], "quantity": "all parts", "unit": "", "condition": "",
            "n": parts.n.iloc[0], "runs": parts.runs.min(), "rule": "",
            "specific": combined_specific(parts.specific.tolist()), "verdict": whole, "reason": reason,
        }  # fmt: skip
