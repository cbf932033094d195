"""Who reads the trajectory of position 0: replace it, and see which heads' residual terms move (docs/method.md, 7)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import fraction
from posstats.dataset.blocks import Block, by_layer, field_blocks
from posstats.dataset.door import chosen, tolerance_of, whole_dump
from posstats.dataset.parameters import explained
from posstats.dataset.terms import check_offsets_visible, select_condition
from posstats.errors import InputError
from posstats.estimators.rows import Documents, adjusted
from posstats.estimators.sinks import attention_on_position_0
from posstats.execution.parallel import side_by_side
from posstats.results.position0 import ReaderResult
from posstats.stats.earlier import SINK_EPSILON
from posstats.stats.inference.options import Inference
from posstats.stats.inference.replicates import Replicates
from posstats.stats.inference.sign_flips import SignFlips, random_signs, sign_flip_test
from posstats.stats.pair_products.components import analysed_queries
from posstats.stats.pair_products.terms import Array
from posstats.stats.position0 import Displacement
from posstats.vocabulary import BASELINE

_QUANTITIES = ("sink_reading", "other", "difference", "ratio")
_UNITS = {"ratio": "1"}
_NUMBERS = ("estimate", "se", "low", "high", "p")
_REPLACED = re.compile(r"bos=token:\d+|trajectory=tokens?:\d+@\d+")


@explained
def readers(
    data: xr.Dataset,
    *,
    epsilon: float = SINK_EPSILON,
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> ReaderResult:
    """Ask which heads read the trajectory of position 0.

    Under `trajectory=token:ID@L`, or dealt tokens (`tokens:K`), the trajectory from depth L on is another token's and
    everything else is the baseline's (`bos=token:ID` is the case L = 0). What that moves in a head is its displacement,

    ``mean over i, d of [ mean over pairs (n, m) of u_n[i,d] u_m[i,d] ]``, ``u = residual_condition -
    residual_baseline``,

    the pair product of the paired difference of the residual-stream component, over the analysed queries ``max offset <
    i < Q`` and the offsets, (n, m) from different documents, either side with the steady state of its own
    sequences. Differences that single sequences have by themselves contribute nothing.

    Parameters
    ----------
    %(dump)s
        It must hold the baseline and such conditions.
    %(epsilon)s
        Here that of the estimate under the baseline, as a definition of the two groups.
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s
        The family is the conditions of one quantity.

    Returns
    -------
    ReaderResult
        Per condition: the displacement of the `sink_reading` heads and of the `other` heads (nats squared, with a
        sign-flip test of "nothing moves in common"), their `difference` (two-sided test of 0) and their `ratio`
        (two-sided test of 1; withheld unless the displacement of the others is significant). Both are means over heads
        of layers L, L + 1, ... that have heads of both kinds; in both a layer counts by its number of sink-reading
        heads, so that layers do not enter the comparison.

    Raises
    ------
    InputError
        For an option that is not allowed, data that are not a dump, or a dump without such a condition.
    DesignError
        With fewer than 5 documents or no analysed query.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Notes
    -----
    The steady state is estimated from the same sequences, which biases a displacement by order 1/N, as it
    does every magnitude of the residual (docs/method.md, section 3). What stays below the square of what rounding may
    do to a term (1e-4 nats for a model in float32, 1e-9 in float64) counts as no change: p is 1 and `note` says so.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=48, conditions=["baseline", "bos=token:7"], seed=0).dataset
    >>> result = ps.readers(ds, epsilon=0.06)  # no head reads position 0 much there
    >>> result.table.quantity.tolist()
    ['sink_reading', 'other', 'difference', 'ratio']
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    epsilon = fraction("epsilon", epsilon)
    data = whole_dump(data, what="Readers of position 0 are estimated from a dump")
    there = data.condition.values.tolist()
    names = [name for name in there if _REPLACED.fullmatch(name)]
    if BASELINE not in there or not names:
        raise InputError(
            f"Readers compare {BASELINE!r} with conditions trajectory=token:ID@L or bos=token:ID of the same dump; it "
            f"has {', '.join(there)}."
        )
    recorded = chosen(data.sel(condition=[BASELINE, *names]), "offset", offsets)
    check_offsets_visible(recorded)
    design = Documents.of(data, inference, pairs=True)
    reading = attention_on_position_0(select_condition(data, BASELINE)).mean(axis=0) > epsilon
    replaced = [_Replaced.of(name, reading, data.layer.values) for name in names]
    rounding = tolerance_of(data)[1] ** 2
    signs = random_signs(len(design.sequences), inference.n_permutations, inference.seed)
    rows = [
        _key(one, quantity) | row
        for one, moved in zip(replaced, _displacements(recorded, replaced, inference, design), strict=True)
        for quantity, row in zip(_QUANTITIES, _cells(one, moved, design, signs, rounding), strict=True)
    ]
    table = adjusted(pd.DataFrame(rows), ["quantity"], inference, {"p": "q"})
    table = adjusted(_without_ratios_of_nothing(table, inference.level), ["quantity"], inference, {"p": "q"})
    columns = ["condition", "quantity", "token", "depth", "unit", *_NUMBERS, "q", "n_heads", "n_layers", "note"]
    settings = design.settings | {
        "n_permutations": inference.n_permutations,
        "offsets": tuple(recorded.offset.values.tolist()),
        "sink_epsilon": epsilon,
        "baseline": BASELINE,
        "adjustment": inference.adjust,
    }
    return ReaderResult(table[columns], settings, design.notes)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A condition that replaces the trajectory, and the heads it is looked for in.

    `weights` (group, layer, head) make the means over the sink-reading heads and over the others.
    """

    condition: str
    token: int
    depth: int
    weights: Array
    n_heads: tuple[int, int]
    n_layers: int

    @classmethod
    def of(cls, condition: str, chosen: NDArray[np.bool_], layers: NDArray[np.integer]) -> "_Replaced":
        """Of a condition's name, and which heads are sink-reading, (layer, head), of which layers."""
        token, depth = (int(number) for number in [*re.findall(r"\d+", condition), 0][:2])
        token = -1 if condition.startswith("trajectory=tokens:") else token  # several, see `substitute_id`
        kinds = np.stack([chosen, ~chosen])
        both = kinds.any(axis=2).all(axis=0) & (layers >= depth)
        kinds &= both[:, None]
        by_layer = kinds.sum(axis=2, keepdims=True)
        sink_reading, other = (int(n) for n in by_layer.sum(axis=(1, 2)))
        weights = kinds * (by_layer[0] / max(1, sink_reading)) / np.maximum(by_layer, 1)
        return cls(condition, token, depth, weights, (sink_reading, other), int(both.sum()))


@dataclass(frozen=True, slots=True)
class _Moved:
    """Displacement of heads, or of both groups: `values` (replicate, head), `products` (head, document, document)."""

    values: Array
    products: Array


def _displacements(
    recorded: xr.Dataset, replaced: Sequence[_Replaced], inference: Inference, design: Documents
) -> list[_Moved]:
    """Displacements by every condition, some heads in memory at a time."""
    rows, n_documents = design.replicates.weights.shape
    sums = [_Moved(np.zeros((rows, 2)), np.zeros((2, n_documents, n_documents))) for _ in replaced]
    layers = [
        (index, reading)
        for index in range(recorded.sizes["layer"])
        if (reading := [k for k, one in enumerate(replaced) if one.weights[:, index].any()])
    ]
    sides = [select_condition(recorded, name) for name in (BASELINE, *(one.condition for one in replaced))]
    blocks = chain.from_iterable(
        field_blocks(*(sides[k].isel(layer=[index]) for k in (0, *(k + 1 for k in reading))), products=1)
        for index, reading in layers
    )
    queries = analysed_queries(recorded.sizes["query"], recorded.offset.values)
    done = side_by_side(partial(_moved, queries=queries, inference=inference), blocks)
    for (index, reading), (_, of_layer) in zip(layers, by_layer(done), strict=True):
        for k, moved in zip(reading, zip(*of_layer, strict=True), strict=True):
            values = np.concatenate([one.values for one in moved], axis=1)
            products = np.concatenate([one.products for one in moved])
            heads = replaced[k].weights[:, index]
            np.add(sums[k].values, values @ heads.T, out=sums[k].values)
            np.add(sums[k].products, np.tensordot(heads, products, axes=1), out=sums[k].products)
    return sums


def _moved(block: Block, *, queries: NDArray[np.int64], inference: Inference) -> list[_Moved]:
    """Displacement of the heads of a block by every condition after the first, which is the baseline."""
    baseline, *conditions = block.fields()
    moved = (Displacement.of(field, baseline, queries) for field in conditions)
    weights = Replicates.of(
        len(baseline.sequences), inference.corrected, inference.level, inference.n_resamples, inference.seed
    ).weights
    return [_Moved(one.at(weights), one.products()) for one in moved]


def _cells(
    one: _Replaced, moved: _Moved, design: Documents, signs: SignFlips, rounding: float
) -> Iterator[dict[str, object]]:
    """Estimates, intervals and tests of one condition, in the order of the quantities."""
    if one.n_layers == 0:
        note = f"no layer from {one.depth} on has both sink-reading and other heads under the baseline"
        nothing: dict[str, object] = dict.fromkeys(_NUMBERS, np.nan)
        yield from [nothing | {"note": note}] * len(_QUANTITIES)
        return
    sink, other = moved.values.T
    groups = design.replicates.interval(moved.values, squared=True)
    for k, absence_p in enumerate(sign_flip_test(moved.products, signs)):
        row = design.cell(groups, (k,), 0.0, rounding)
        yield row if row["note"] else row | {"p": float(absence_p)}
    yield design.cell(design.replicates.interval(sink - other), (), 0.0, rounding)
    ratio = np.divide(sink, other, out=np.full_like(sink, np.nan), where=np.abs(other) > rounding)
    yield design.cell(design.replicates.interval(ratio, null=1.0), (), 1.0)


def _key(one: _Replaced, quantity: str) -> dict[str, object]:
    n_heads = dict(zip(_QUANTITIES, one.n_heads, strict=False)).get(quantity, sum(one.n_heads))
    return {
        "condition": one.condition,
        "quantity": quantity,
        "token": one.token,
        "depth": one.depth,
        "unit": _UNITS.get(quantity, "nats^2"),
        "n_heads": n_heads,
        "n_layers": one.n_layers,
    }


def _without_ratios_of_nothing(table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Withhold ratios whose denominator is not significantly above 0, and say so."""
    others = table[table.quantity == "other"].set_index("condition")
    weak = others.index[~((others.q < 1 - level) & (others.estimate > 0)) & (others.n_layers > 0)]
    rows = (table.quantity == "ratio") & table.condition.isin(weak)
    table.loc[rows, list(_NUMBERS)] = np.nan
    table.loc[rows, "note"] = "withheld: the displacement of the other heads is not significant"
    return table
