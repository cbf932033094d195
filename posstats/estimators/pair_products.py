"""Sum components over heads and layers, then turn them into intervals: one pass over the heads of any dataset.

Only per-document statistics of a few blocks of heads are alive at a time. Components of a head are added to every
group the head belongs to (a layer, a head, the model); the estimand, a function of the sums, is applied when a group is
complete.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import xarray as xr

from posstats.dataset.blocks import Block, field_blocks
from posstats.dataset.terms import document_codes
from posstats.errors import DesignError
from posstats.execution.parallel import side_by_side
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import (
    Interval,
    document_pairs,
    document_weights,
    interval,
    jackknife_error,
    leave_out_weights,
    pair_weights,
)
from posstats.stats.inference.sign_flips import random_signs, sign_flip_test
from posstats.stats.pair_products.components import LayerField, Statistics, analysed_queries, octave_bins
from posstats.stats.pair_products.evaluate import evaluate, pair_products
from posstats.stats.pair_products.terms import Array
from posstats.vocabulary import EARLY, EARLY_BIN

#: Products of documents that a bin makes per head, at most: the components, and what is tested.
_PRODUCTS = 8
StatisticsKernel = Callable[[LayerField, np.ndarray, np.ndarray], Statistics]
#: Components summed over a group, shape (..., source, component) -> values of the estimand, shape (..., value).
Estimand = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries analysed together and the offsets that exist for every one of them."""

    label: str
    queries: np.ndarray
    offsets: np.ndarray


def share_bins(terms: xr.Dataset, octaves: bool) -> list[Bin]:
    """The headline bin "all", ``max offset < i < T - 1``, and the octaves if asked for."""
    offsets = terms.offset.values
    length = terms.sizes["query"]
    bins = [Bin("all", analysed_queries(length, offsets), offsets)]
    return bins + _octaves(length, offsets) if octaves else bins


def magnitude_bins(terms: xr.Dataset) -> list[Bin]:
    """The octaves and the early queries."""
    length = terms.sizes["query"]
    # An offset must exist at every late query too, since their mean is subtracted.
    offsets = terms.offset.values[terms.offset.values < (length + 1) // 2]
    bins = _octaves(length, offsets)
    early = Bin(EARLY_BIN, np.arange(*EARLY), offsets[offsets < EARLY[0]])
    if length - 1 >= EARLY[1] and len(early.offsets):
        bins.append(early)
    if not bins:
        raise DesignError(f"No offset exists for every query of any octave of {length} tokens; record offset 0 or 1.")
    return bins


def _octaves(length: int, offsets: np.ndarray) -> list[Bin]:
    bins = [Bin(f"[{low}, {high})", np.arange(low, high), offsets[offsets < low]) for low, high in octave_bins(length)]
    return [one for one in bins if len(one.offsets)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One group and bin: which layer and head (absent where pooled), the interval, and the test of leakage."""

    #: "layer" and/or "head" -> label.
    key: dict[str, int]
    bin: Bin
    #: One element per value of the estimand.
    interval: Interval
    #: (tested,): sign-flip p-values of "this component of the first source is 0: its field has no mean".
    absence_p: Array


@dataclass(slots=True)
class _Sums:
    """Components summed over the heads of a group, (..., source, component), and the products that are tested."""

    estimate: Array
    left_out: Array
    replicates: Array
    replicates_left_out: Array
    products: Array

    @classmethod
    def of_cells(cls, cells: Sequence["_Sums"]) -> "_Sums":
        """Several groups and bins side by side: (..., cell, source, component), products (cell, ...)."""
        names = ("estimate", "left_out", "replicates", "replicates_left_out")
        values = {name: np.stack([getattr(one, name) for one in cells], axis=-3) for name in names}
        return cls(**values, products=np.stack([one.products for one in cells]))


def estimates(
    sources: Sequence[xr.Dataset],
    kernel: StatisticsKernel,
    estimand: Estimand,
    *,
    bins: Sequence[Bin],
    by: Sequence[str] = (),
    inference: Inference,
    tested: Sequence[int] = (0,),
    squared: bool = False,
) -> Iterator[Estimate]:
    """Estimates with intervals for every group, then every bin.

    `sources` hold the terms of a single condition each; several are paired: the same documents are resampled in all of
    them. `kernel` makes the sufficient statistics of the heads of one layer (share or magnitude), and `estimand` maps
    component sums (..., source, component) to values (..., value), once everything but the dimensions `by` is summed
    over. The absence of the components `tested` of the first source is tested; `squared` says whether the estimand is
    a mean of squares (see :func:`posstats.stats.inference.resample.interval`).
    """
    _check_paired(sources)
    _, n_documents = document_codes(sources[0])
    resampling = _Resampling.of(inference, n_documents)
    signs = random_signs(n_documents, inference.n_permutations, inference.seed)
    head_labels = sources[0]["head"].values.tolist()
    groups: dict[tuple[tuple[str, int], ...], list[_Sums]] = {}

    def finish() -> Iterator[Estimate]:
        cells = [
            (key, one_bin, sums) for key in sorted(groups) for one_bin, sums in zip(bins, groups[key], strict=True)
        ]
        together = _Sums.of_cells([sums for _, _, sums in cells])
        absence_p = sign_flip_test(together.products, signs)
        found = resampling.interval(together, estimand, squared)
        for k, (key, one_bin, _) in enumerate(cells):
            yield Estimate(dict(key), one_bin, found.at(k), absence_p[k])
        groups.clear()

    job = partial(_evaluate_block, kernel=kernel, bins=tuple(bins), inference=inference, tested=tuple(tested))
    blocks = field_blocks(*sources, products=len(bins) * _PRODUCTS)
    for block, evaluated in side_by_side(job, blocks):
        for h, head in enumerate(head_labels[block.heads]):
            labels = {"layer": block.layer, "head": head}
            key = tuple((dim, labels[dim]) for dim in by)
            parts = [[source[b].at(h) for source in evaluated] for b in range(len(bins))]
            if key in groups:
                for total, part in zip(groups[key], parts, strict=True):
                    _add(total, _stack(part))
            else:
                groups[key] = [_stack(part) for part in parts]
        if "layer" in by and block.last:  # a layer's groups are complete
            yield from finish()
    if groups:
        yield from finish()


def _check_paired(sources: Sequence[xr.Dataset]) -> None:
    first = sources[0]
    for other in sources[1:]:
        for name in ("document", "sequence", "layer", "head", "query", "offset"):
            if first[name].shape != other[name].shape or not (first[name].values == other[name].values).all():
                raise DesignError(
                    f"A paired contrast needs the same {name} labels on both sides, and these differ. Dump both "
                    "conditions of the same sequences with the same offsets."
                )


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Components of a block and bin: at the estimate and at every replicate."""

    estimate: Array  # (head, component)
    left_out: Array  # (document, head, component)
    replicates: Array  # (replicate, head, component)
    replicates_left_out: Array  # (replicate, document, head, component), no documents unless studentized
    products: Array  # (head, component, document, document)

    def at(self, h: int) -> tuple[Array, Array, Array, Array, Array]:
        left = self.replicates_left_out[:, :, h]
        return self.estimate[h], self.left_out[:, h], self.replicates[:, h], left, self.products[h]


@dataclass(frozen=True, slots=True)
class _Resampling:
    """Which documents count how often, and the interval made of it."""

    inference: Inference
    #: (replicate, document): bootstrap counts, ones without a pair of documents, or none, as the method needs.
    weights: Array
    #: (pair, 2): documents left out together.
    pairs: np.ndarray | None

    @staticmethod
    @lru_cache(maxsize=2)  # every job asks for the same
    def of(inference: Inference, n_documents: int) -> "_Resampling":
        if inference.interval == "jackknife":
            return _Resampling(inference, np.empty((0, n_documents)), None)
        if inference.interval == "corrected_jackknife":
            pairs = document_pairs(n_documents)
            return _Resampling(inference, pair_weights(n_documents, pairs), pairs)
        return _Resampling(inference, document_weights(n_documents, inference.n_resamples, inference.seed), None)

    @property
    def studentized(self) -> bool:
        return self.inference.interval == "studentized"

    def interval(self, sums: _Sums, estimand: Estimand, squared: bool) -> Interval:
        """Intervals of the estimand, (cell, value)."""
        error = None
        if self.studentized:
            left = np.moveaxis(estimand(sums.replicates_left_out), 1, -1)  # (replicate, cell, value, document)
            error = jackknife_error(left, self.weights[:, None, None, :])
        replicates = estimand(sums.replicates) if len(self.weights) else None
        return interval(
            estimand(sums.estimate),
            estimand(sums.left_out),
            replicates if self.pairs is None else None,
            error,
            pairs=self.pairs,
            pair_left_out=None if self.pairs is None else replicates,
            squared=squared,
            method=self.inference.interval,
            level=self.inference.level,
        )


def _evaluate_block(
    block: Block, *, kernel: StatisticsKernel, bins: Sequence[Bin], inference: Inference, tested: Sequence[int]
) -> list[list[_Evaluated]]:
    """Components of every source and bin."""
    return [
        _evaluated(
            [kernel(field, one.queries, one.offsets) for one in bins],
            _Resampling.of(inference, len(field.sequences)),
            tested,
        )
        for field in block.fields()
    ]


def _evaluated(stats: list[Statistics], resampling: _Resampling, tested: Sequence[int]) -> list[_Evaluated]:
    n_documents = resampling.weights.shape[1]
    # The estimate, then every document left out in turn, the reference without it included.
    first = leave_out_weights(n_documents)
    drawn = None
    if resampling.studentized:
        drawn = evaluate(stats, resampling.weights, left_out=True)
    else:  # replicates like any other weights
        first = np.concatenate([first, resampling.weights])
    made = []
    for b, (one, components) in enumerate(zip(stats, evaluate(stats, first), strict=True)):
        value = components.value
        made.append(
            _Evaluated(
                estimate=value[0],
                left_out=value[1 : n_documents + 1],
                replicates=value[n_documents + 1 :] if drawn is None else drawn[b].value,
                replicates_left_out=np.empty((0, n_documents, *value.shape[1:]))
                if drawn is None
                else drawn[b].left_out,
                products=pair_products(one, tested),
            )
        )
    return made


def _stack(parts: Sequence[tuple[Array, Array, Array, Array, Array]]) -> _Sums:
    """Components of several sources side by side: (..., source, component)."""
    estimate, left_out, replicates, left, products = zip(*parts, strict=True)
    return _Sums(
        estimate=np.stack(estimate, axis=-2),
        left_out=np.stack(left_out, axis=-2),
        replicates=np.stack(replicates, axis=-2),
        replicates_left_out=np.stack(left, axis=-2),
        products=products[0].copy(),
    )


def _add(total: _Sums, part: _Sums) -> None:
    total.estimate += part.estimate
    total.left_out += part.left_out
    total.replicates += part.replicates
    total.products += part.products
    total.replicates_left_out += part.replicates_left_out
