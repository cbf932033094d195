"""Contrasts of two models or architectures, each one or several training runs (docs/method.md, section 8)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import choice, flag, items, labels, shown
from posstats.dataset.blocks import Block, by_layer, field_blocks
from posstats.dataset.comparable import check_design, same_sequences
from posstats.dataset.door import whole_dump
from posstats.dataset.parameters import explained
from posstats.dataset.terms import document_codes, select_condition
from posstats.errors import DesignError, InputError
from posstats.estimators.pair_products import Bin, magnitude_bins, share_bins
from posstats.estimators.rows import adjusted, prepare
from posstats.execution.parallel import side_by_side
from posstats.results.claims import ContrastResult
from posstats.stats.contrast import (
    Contrast,
    HeadValues,
    LayerSums,
    Recipe,
    RunValues,
    check_runs,
    contrast_runs,
    depth_slope,
    head_values,
    layer_sums,
)
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import document_pairs
from posstats.stats.inference.sign_flips import SignFlips, random_signs, sign_flip_test
from posstats.stats.pair_products.components import SHARE_COMPONENTS, residual_statistics, share_statistics
from posstats.stats.pair_products.terms import Array
from posstats.vocabulary import BASELINE, EARLY, LOG_ATTENTION, RESIDUAL, RESIDUAL_TERMS

#: What two architectures are compared in -> its unit.
QUANTITIES = {"leakage": "nats^2", "share": "1", "magnitude": "nats^2", "removal": "1", "slope": "nats^2"}
#: Interval methods of contrasts.
METHODS = ("corrected_jackknife", "jackknife")
_SHARES = {
    "mask": [SHARE_COMPONENTS.index("mask")],
    RESIDUAL: [SHARE_COMPONENTS.index(name) for name in RESIDUAL_TERMS],
}
_WITHHELD = {"share": "leakage is not significant", "removal": "nothing to remove at baseline"}
Side = xr.Dataset | Sequence[xr.Dataset]
#: Condition, kind of sums ("share" or "magnitude") and bin.
Key = tuple[str, str, str]
_LEAKAGE: Key = (BASELINE, "share", "all")


@explained
def contrast(
    a: Side,
    b: Side,
    *,
    quantities: Sequence[str] | None = None,
    condition: str | Sequence[str] = (),
    labels: tuple[str, str] = ("a", "b"),
    slope_queries: tuple[int, int] = EARLY,
    pair_runs: bool = False,
    allow_mixed: bool = False,
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> ContrastResult:
    """Compare two models, or two architectures with several training runs each: b minus a.

    ================ =================================================================================================
    quantity         what is compared, pooled over heads and layers, under the baseline
    ================ =================================================================================================
    leakage          :func:`posstats.leakage`, over all analysed queries
    share            :func:`posstats.shares` of `mask` and `residual`, over all analysed queries
    magnitude        :func:`posstats.magnitude` of `residual`, by octave and for the early queries
    removal          :func:`posstats.removal` by each `condition`, by octave and for the early queries
    slope            least-squares slope of a layer's residual magnitude, summed over its heads, on relative depth
                     ``layer / (L - 1)``, over `slope_queries`: the change from the first layer to the last
    ================ =================================================================================================

    Parameters
    ----------
    a, b : xarray.Dataset or sequence of xarray.Dataset
        Dumps. Several are training runs of one architecture, recorded on the same sequences; their number of layers
        and heads may differ from the other side's.
    quantities : sequence of str, optional
        Some of the above; by default all, `removal` where a `condition` is given, `slope` where both sides have two
        layers or more.
    condition : str or sequence of str
        Conditions whose removal is compared.
    labels : tuple of str
        What to call the sides.
    slope_queries : tuple of int
        Queries [low, high) of the slope: one of the bins of :func:`posstats.magnitude`.
    pair_runs : bool
        Whether run r of `a` belongs with run r of `b` (the same seed and data). The variance over runs is then that of
        the differences, with one degree of freedom less than there are pairs.
    allow_mixed : bool
        Whether an "inference-time variant" may be compared with models used as they were trained; the result says so.
    %(offsets)s
        Both sides must have the same.
    %(level)s
    method : {"corrected_jackknife", "jackknife"}, optional
        Jackknife over documents; the corrected one by default.
    %(n_permutations)s
        They test that there is leakage, or a magnitude to remove, at all.
    %(seed)s
    %(adjust)s
        The family is all rows of one contrast and quantity.

    Returns
    -------
    ContrastResult
        Rows for `a`, for `b` and for the difference. A share is withheld where leakage, a removal where the baseline
        magnitude is not significantly above 0; the difference where either side is.

    Raises
    ------
    DesignError
        If lengths, offsets or the sequences of the runs of a side differ, if weights occur twice among the runs of a
        side, if runs are replicated on one side only, if a sliding window never binds, if an inference-time variant is
        mixed with trained models unsaid, with fewer than 5 documents, or a bin that does not exist.
    InputError
        For an option that is not allowed, or a condition that was not recorded.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Notes
    -----
    If both sides have the same token ids and documents, documents are left out of both at once; otherwise the sides are
    independent. With several runs the unit is the run: the variance is that over runs plus that over documents
    (:func:`posstats.stats.contrast.contrast_runs`). Leakage, magnitude and slope are sums over heads: between models of
    different size compare shares and removals.

    Examples
    --------
    >>> import posstats as ps
    >>> weak, strong = (ps.simulate(n=30, layers=2, strength=s, seed=0).dataset for s in (0.5, 2.0))
    >>> result = ps.contrast(weak, strong, quantities=["magnitude"])
    >>> row = result.table.query("contrast == 'b - a' and queries == '[2, 16)'").iloc[0]
    >>> bool(row.low > 0), result.settings["documents"]
    (True, 'paired')
    """
    inference = Inference(level, method, n_permutations=n_permutations, adjust=adjust, seed=seed).of("contrast")
    method = choice("method of a contrast", inference.interval, METHODS)
    pair_runs, allow_mixed = flag("pair_runs", pair_runs), flag("allow_mixed", allow_mixed)
    if len(names := items("labels", labels, "text")) != 2 or names[0] == names[1]:
        raise InputError(f"labels must be two different names, not {shown(labels)}.")
    if len(ends := items("slope_queries", slope_queries, "whole numbers")) != 2 or not 0 < ends[0] < ends[1]:
        raise InputError(f"slope_queries must be two positions, the lower first, not {shown(slope_queries)}.")
    slope_queries = ends[0], ends[1]
    sides = [_as_runs(a), _as_runs(b)]
    conditions = _conditions(condition, sides)
    wanted = _wanted(quantities, conditions, sides)
    notes = check_design(sides, allow_mixed=allow_mixed)
    n_runs = [len(side) for side in sides]
    check_runs(n_runs, pair_runs=pair_runs)
    measured: list[list[_Run]] = [[], []]
    settings: dict[str, object] = {}
    for side, runs in zip(sides, measured, strict=True):
        for ds in side:
            terms, few, settings = prepare(ds.sel(condition=[BASELINE, *conditions]), offsets, inference)
            notes += [note for note in few if note not in notes]
            runs.append(_Run.of(terms, conditions, wanted, slope_queries, method))
    signs = [random_signs(runs[0].n_documents, inference.n_permutations, inference.seed) for runs in measured]
    rows: list[dict[str, object]] = []
    same = same_sequences(sides[0][0], sides[1][0])
    for value in _values(measured[0][0], wanted, conditions, slope_queries):
        kinds = [_Measured.of(value, runs, flips) for runs, flips in zip(measured, signs, strict=True)]
        of_sides = [
            contrast_runs([one.runs], method=method, level=inference.level, squared=value.squared) for one in kinds
        ]
        difference = contrast_runs(
            [one.runs for one in kinds], same_documents=same, pair_runs=pair_runs, method=method, level=inference.level
        )
        weak = [value.ratio and one.absent(1 - inference.level) for one in kinds]
        for label, one, found, withheld in zip(names, kinds, of_sides, weak, strict=True):
            p = found.p if not value.squared else one.absence_p if one.runs.n_runs == 1 else np.nan
            rows.append(_row(value, label, found, p, withheld))
        rows.append(_row(value, f"{names[1]} - {names[0]}", difference, difference.p, any(weak)))
    table = adjusted(pd.DataFrame(rows), ["contrast", "quantity"], inference, {"p": "q"})
    how = "paired" if pair_runs else "independent"
    settings |= {
        "n_documents": " and ".join(dict.fromkeys(str(runs[0].n_documents) for runs in measured)),
        "n_sequences": " and ".join(dict.fromkeys(str(side[0].sizes["sequence"]) for side in sides)),
        "level": inference.level,
        "interval": method,
        "n_permutations": inference.n_permutations,
        "seed": inference.seed,
        "resampling_unit": "document" if max(n_runs) == 1 else "training run and document",
        "documents": "paired" if same else "independent",
        "runs": "not replicated" if max(n_runs) == 1 else f"{n_runs[0]} and {n_runs[1]}, {how}",
    }
    return ContrastResult(table, settings, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Value:
    """One line of the comparison: what it is, and how it is read off the sums of a run."""

    quantity: str
    condition: str
    queries: str
    term: str
    #: From the sums of a run to values at document weights, (weights,).
    of: Callable[[Mapping[Key, LayerSums]], Array]
    #: Sums whose absence is tested: the value itself, or the denominator of a ratio.
    tested: Key
    #: Whether it is withheld where the denominator is not there, and whether it is a mean of squares.
    ratio: bool = False
    squared: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """Sums of one training run, by condition, kind ("share", "magnitude") and bin."""

    sums: dict[Key, LayerSums]
    bins: list[Bin]
    n_documents: int
    pairs: NDArray[np.int64]

    @classmethod
    def of(
        cls, terms: xr.Dataset, conditions: Sequence[str], wanted: set[str], slope: tuple[int, int], method: str
    ) -> "_Run":
        _, n_documents = document_codes(terms)
        pairs = _pairs(n_documents, method)
        bins = magnitude_bins(terms) if wanted & {"magnitude", "removal", "slope"} else []
        if "slope" in wanted and _label(slope) not in [one.label for one in bins]:
            raise DesignError(
                f"slope_queries {_label(slope)} is no bin of these sequences; there are "
                f"{', '.join(one.label for one in bins)}."
            )
        if not wanted & {"magnitude", "removal"}:
            bins = [one for one in bins if one.label == _label(slope)]
        sums: dict[Key, LayerSums] = {}
        for condition in dict.fromkeys((BASELINE, *conditions)):
            recipes = {
                (condition, "magnitude", one.label): Recipe(residual_statistics, one.queries, one.offsets)
                for one in bins
            }
            if condition == BASELINE and wanted & {"leakage", "share"}:
                everything = share_bins(terms, octaves=False)[0]
                recipes[_LEAKAGE] = Recipe(share_statistics, everything.queries, everything.offsets)
            if not recipes:
                continue
            blocks = field_blocks(select_condition(terms, condition), products=len(SHARE_COMPONENTS) * len(recipes))
            done = side_by_side(partial(_block_values, recipes=list(recipes.values()), method=method), blocks)
            sums |= zip(recipes, layer_sums(blocks for _, blocks in by_layer(done)), strict=True)
        return cls(sums, bins, n_documents, pairs)


def _block_values(block: Block, *, recipes: Sequence[Recipe], method: str) -> list[HeadValues]:
    (field,) = block.fields()
    return head_values(field, recipes, _pairs(len(field.sequences), method))


def _pairs(n_documents: int, method: str) -> NDArray[np.int64]:
    """Documents left out together."""
    return document_pairs(n_documents) if method == "corrected_jackknife" else np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A value of the runs of one side, and whether there is anything there."""

    runs: RunValues
    absence_p: float
    whole: float

    @classmethod
    def of(cls, value: _Value, runs: Sequence[_Run], signs: SignFlips) -> "_Measured":
        values = np.stack([value.of(run.sums) for run in runs], axis=1)[..., None]
        # All runs together, as heads are pooled: is it there in the architecture?
        products = np.sum([run.sums[value.tested].products for run in runs], axis=0)
        p = float(sign_flip_test(products, signs))
        return cls(RunValues.of(values, runs[0].n_documents, runs[0].pairs), p, float(products.sum()))

    def absent(self, alpha: float) -> bool:
        return not (self.absence_p < alpha and self.whole > 0)


def _values(run: _Run, wanted: set[str], conditions: Sequence[str], slope: tuple[int, int]) -> Iterator[_Value]:
    if "leakage" in wanted:
        yield _Value("leakage", BASELINE, "all", LOG_ATTENTION, _leakage, _LEAKAGE, squared=True)
    if "share" in wanted:
        for term, columns in _SHARES.items():
            yield _Value("share", BASELINE, "all", term, partial(_share, columns=columns), _LEAKAGE, ratio=True)
    keys = [(BASELINE, "magnitude", one.label) for one in run.bins]
    if "magnitude" in wanted:
        for key in keys:
            yield _Value("magnitude", BASELINE, key[2], RESIDUAL, partial(_magnitude, key=key), key, squared=True)
    if "removal" in wanted:
        for condition in conditions:
            for key in keys:
                of = partial(_removal, key=(condition, *key[1:]), baseline=key)
                yield _Value("removal", condition, key[2], RESIDUAL, of, key, ratio=True)
    if "slope" in wanted:
        key = (BASELINE, "magnitude", _label(slope))
        yield _Value("slope", BASELINE, key[2], RESIDUAL, partial(_slope, key=key), key)


def _leakage(sums: Mapping[Key, LayerSums]) -> Array:
    return _total(sums[_LEAKAGE].value[..., 0])


def _share(sums: Mapping[Key, LayerSums], columns: list[int]) -> Array:
    return _ratio(_total(sums[_LEAKAGE].value[..., columns].sum(axis=-1)), _leakage(sums))


def _magnitude(sums: Mapping[Key, LayerSums], key: Key) -> Array:
    return _total(sums[key].value[..., 0])


def _removal(sums: Mapping[Key, LayerSums], key: Key, baseline: Key) -> Array:
    return 1 - _ratio(_magnitude(sums, key), _magnitude(sums, baseline))


def _slope(sums: Mapping[Key, LayerSums], key: Key) -> Array:
    return depth_slope(sums[key].value[..., 0])


def _total(by_layer: Array) -> Array:
    total: Array = by_layer.sum(axis=-1)
    return total


def _ratio(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole != 0)


def _row(value: _Value, label: str, found: Contrast, p: Array | float, withheld: bool) -> dict[str, object]:
    columns = ("estimate", "se", "low", "high", "df", "se_documents", "se_runs")
    numbers = {name: float(getattr(found, name)[0]) for name in columns} | {"p": float(np.squeeze(p))}
    if withheld:
        numbers = dict.fromkeys(numbers, np.nan)
    return {
        "contrast": label,
        "quantity": value.quantity,
        "condition": value.condition,
        "queries": value.queries,
        "term": value.term,
        "unit": QUANTITIES[value.quantity],
        **numbers,
        "note": f"withheld: {_WITHHELD[value.quantity]}" if withheld else "",
    }


def _label(queries: tuple[int, int]) -> str:
    return f"[{queries[0]}, {queries[1]})"


def _as_runs(side: object) -> list[xr.Dataset]:
    runs = [side] if isinstance(side, xr.Dataset) else side
    if isinstance(runs, str | Mapping | np.ndarray) or not isinstance(runs, Iterable):
        raise InputError(f"A contrast takes a dump, or a sequence of dumps, on either side, not {shown(side)}.")
    if not (dumps := [whole_dump(one, ("token_id",), "A contrast reads whole dumps") for one in runs]):
        raise InputError("A contrast takes at least one dump on either side.")
    return dumps


def _conditions(condition: object, sides: list[list[xr.Dataset]]) -> list[str]:
    """Conditions that every run holds beside the baseline, which it must hold too."""
    names = [] if isinstance(condition, Sequence) and not len(condition) else items("condition", condition, "text")
    for ds in (ds for side in sides for ds in side):
        there = ds.condition.values.tolist()
        labels("condition", [BASELINE], there, "text")
        if names:
            labels("condition", names, [name for name in there if name != BASELINE], "text")
    return names


def _wanted(quantities: object, conditions: Sequence[str], sides: list[list[xr.Dataset]]) -> set[str]:
    if quantities is None:
        deep = all(ds.sizes["layer"] > 1 for side in sides for ds in side)
        wanted = set(QUANTITIES) - (set() if conditions else {"removal"}) - (set() if deep else {"slope"})
    else:
        wanted = set(labels("quantities", quantities, list(QUANTITIES), "text"))
    if ("removal" in wanted) != bool(conditions):
        raise InputError("The removal of a contrast needs condition=, such as 'bos=mean', and nothing else does.")
    return wanted
