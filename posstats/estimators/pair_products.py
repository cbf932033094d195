"""Sum components over heads and layers, then turn them into intervals: one pass over the heads of any dataset.

Only per-document statistics of a few blocks of heads are alive at a time. Components of a head are added to every
group the head belongs to (a layer, a head, the model); the estimand, a function of the sums, is applied when a group is
complete.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import xarray as xr

from posstats.dataset.blocks import Block, field_blocks
from posstats.dataset.terms import document_codes
from posstats.errors import DesignError
from posstats.execution.parallel import side_by_side
from posstats.stats.inference.limits import Limits, ratio_limits, square_limits
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import document_weights, leave_out_weights
from posstats.stats.inference.sign_flips import random_signs, sign_flip_test
from posstats.stats.pair_products.components import LayerField, Statistics, analysed_queries, octave_bins
from posstats.stats.pair_products.evaluate import evaluate, influence_products, pair_products
from posstats.stats.pair_products.terms import Array
from posstats.vocabulary import EARLY, EARLY_BIN

#: Products of documents that a bin makes per head, at most: the components, and what is tested.
_PRODUCTS = 8
StatisticsKernel = Callable[[LayerField, np.ndarray, np.ndarray], Statistics]


@dataclass(frozen=True, slots=True)
class Estimand:
    """What is estimated: linear combinations of the summed components, or their ratios to one of them.

    Attributes
    ----------
    above : ndarray, shape (source, component, value)
        Weights that make the values, or their numerators.
    below : ndarray, shape (source, component), or None
        Weights that make the denominator of all values; without one the values are means of squares.
    """

    above: Array
    below: Array | None = None


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries analysed together and the offsets that exist for every one of them.

    `offset` is the one offset, where offsets are kept apart.
    """

    label: str
    queries: np.ndarray
    offsets: np.ndarray
    offset: int | None = None

    def by_offset(self) -> list["Bin"]:
        """The same queries, one offset at a time."""
        return [Bin(self.label, self.queries, np.array([d]), d) for d in self.offsets.tolist()]


def share_bins(terms: xr.Dataset, octaves: bool) -> list[Bin]:
    """The headline bin "all", ``max offset < i < Q``, and the octaves if asked for."""
    offsets = terms.offset.values
    n_queries = terms.sizes["query"]
    bins = [Bin("all", analysed_queries(n_queries, offsets), offsets)]
    return bins + _octaves(n_queries, offsets) if octaves else bins


def magnitude_bins(terms: xr.Dataset) -> list[Bin]:
    """The octaves and the early queries."""
    n_queries, offsets = terms.sizes["query"], terms.offset.values
    bins = _octaves(n_queries, offsets)
    early = Bin(EARLY_BIN, np.arange(*EARLY), offsets[offsets < EARLY[0]])
    if n_queries >= EARLY[1] and len(early.offsets):
        bins.append(early)
    if not bins:
        raise DesignError(
            f"No offset exists for every query of any octave of {n_queries} analysed queries; record offset 0 or 1."
        )
    return bins


def _octaves(n_queries: int, offsets: np.ndarray) -> list[Bin]:
    octaves = octave_bins(n_queries)
    bins = [Bin(f"[{low}, {high})", np.arange(low, high), offsets[offsets < low]) for low, high in octaves]
    return [one for one in bins if len(one.offsets)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One group and bin: which layer and head (absent where pooled), the intervals, and the test of leakage.

    Attributes
    ----------
    key : dict
        "layer" and/or "head" -> label.
    bin : Bin
    limits : Limits
        One element per value of the estimand.
    absence_p : ndarray, shape (tested,)
        Sign-flip p-values of "this component of the first source is 0: its field has no mean", per tested component.
    sums, left_out : ndarray, shapes (source, component) and (document, source, component)
        The components that the estimand is a function of, and without each document.
    n_heads : int
        Heads that were added up.
    """

    key: dict[str, int]
    bin: Bin
    limits: Limits
    absence_p: Array
    sums: Array
    left_out: Array
    n_heads: int


@dataclass(slots=True)
class Sums:
    """Components summed over the heads of a group, and products of documents.

    Attributes
    ----------
    estimate : ndarray, shape (source, component)
    left_out : ndarray, shape (document, source, component)
        Without each document.
    tested : ndarray, shape (tested component, document, document)
        What a sign-flip test flips.
    products : ndarray, shape (source, component, document, document)
        What intervals are made of; no components where they need none.
    n_heads : int
    """

    estimate: Array
    left_out: Array
    tested: Array
    products: Array
    n_heads: int = 1

    def add(self, other: "Sums") -> None:
        """Add those of another head."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


def estimates(
    sources: Sequence[xr.Dataset],
    kernel: StatisticsKernel,
    estimand: Estimand,
    *,
    bins: Sequence[Bin],
    by: Sequence[str] = (),
    inference: Inference,
    tested: Sequence[int] = (0,),
) -> Iterator[Estimate]:
    """Estimates with intervals for every group and bin.

    Parameters
    ----------
    sources : sequence of xarray.Dataset
        Terms of a single condition each; several are paired: the same documents are left out of all of them.
    kernel : callable
        Sufficient statistics of the heads of one layer (share or magnitude).
    estimand : Estimand
    bins : sequence of Bin
    by : sequence of str
        Dimensions kept apart; the others are summed over before the estimand is applied.
    inference : Inference
        Rows over all heads get a document bootstrap unless its method is "t", others only if it is "bootstrap".
    tested : sequence of int
        Components of the first source whose absence is tested.

    Yields
    ------
    Estimate
        Per group, then per bin.
    """
    _check_paired(sources)
    codes, n_documents = document_codes(sources[0])
    drawn = None
    if inference.method == "bootstrap" or (inference.method is None and not by):
        drawn = document_weights(n_documents, inference.n_resamples, inference.seed)
    limits = _Limits(estimand, np.bincount(codes).astype(np.float64), inference.level, drawn)
    signs = random_signs(n_documents, inference.n_permutations, inference.seed)
    head_labels = sources[0]["head"].values.tolist()
    groups: dict[tuple[tuple[str, int], ...], list[Sums]] = {}

    def finish() -> Iterator[Estimate]:
        cells = [
            (key, one_bin, sums) for key in sorted(groups) for one_bin, sums in zip(bins, groups[key], strict=True)
        ]
        absence_p = sign_flip_test(np.stack([sums.tested for _, _, sums in cells]), signs)
        found = limits.of([sums for _, _, sums in cells])
        for k, (key, one_bin, sums) in enumerate(cells):
            yield Estimate(dict(key), one_bin, found.at(k), absence_p[k], sums.estimate, sums.left_out, sums.n_heads)
        groups.clear()

    job = partial(_evaluate_block, kernel=kernel, bins=tuple(bins), tested=tuple(tested), products=limits.need_products)
    blocks = field_blocks(*sources, products=len(bins) * _PRODUCTS)
    for block, evaluated in side_by_side(job, blocks):
        for h, head in enumerate(head_labels[block.heads]):
            labels = {"layer": block.layer, "head": head}
            key = tuple((dim, labels[dim]) for dim in by)
            parts = [_of_head([source[b] for source in evaluated], h) for b in range(len(bins))]
            if key in groups:
                for total, part in zip(groups[key], parts, strict=True):
                    total.add(part)
            else:
                groups[key] = parts
        if "layer" in by and block.last:  # a layer's groups are complete
            yield from finish()
    if groups:
        yield from finish()


@dataclass(frozen=True, slots=True)
class _Limits:
    """How sums become intervals."""

    estimand: Estimand
    sequences: Array
    level: float
    drawn: Array | None

    @property
    def need_products(self) -> bool:
        return self.estimand.below is None or self.drawn is not None

    def of(self, cells: Sequence[Sums]) -> Limits:
        """Intervals of the estimand, (cell, value)."""
        estimate = np.stack([one.estimate for one in cells])
        left_out = np.stack([one.left_out for one in cells], axis=1)
        grams = np.stack([one.products for one in cells]) if self.need_products else None
        above, below = self.estimand.above, self.estimand.below

        def combine(values: Array, weights: Array) -> Array:
            return np.tensordot(values, weights, axes=2)

        def products(weights: Array) -> Array:
            """Of (cell, source, component, document, document), combined: values, if any, before the documents."""
            assert grams is not None
            by_cell = np.moveaxis(np.tensordot(grams, weights, axes=([1, 2], [0, 1])), (1, 2), (-2, -1))
            return np.ascontiguousarray(by_cell)

        values, left = combine(estimate, above), combine(left_out, above)
        if below is None:
            return square_limits(values, left, products(above), self.sequences, self.level, self.drawn)
        whole = np.broadcast_to(combine(estimate, below)[..., None], values.shape)
        left_whole = np.broadcast_to(combine(left_out, below)[..., None], left.shape)
        both = None
        if grams is not None:
            numerators = products(above)
            both = numerators, np.broadcast_to(products(below)[:, None], numerators.shape)
        return ratio_limits(values, whole, left, left_whole, self.sequences, self.level, both, self.drawn)


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
    """Components of a block and bin of one source."""

    estimate: Array  # (head, component)
    left_out: Array  # (document, head, component)
    tested: Array  # (head, tested component, document, document)
    products: Array  # (head, component, document, document), no components where none are needed


def _evaluate_block(
    block: Block, *, kernel: StatisticsKernel, bins: Sequence[Bin], tested: Sequence[int], products: bool
) -> list[list[_Evaluated]]:
    """Components of every source and bin."""
    found = []
    for field in block.fields():
        stats = [kernel(field, one.queries, one.offsets) for one in bins]
        values = evaluate(stats, leave_out_weights(len(field.sequences)))
        found.append(
            [
                _Evaluated(
                    value[0],
                    value[1:],
                    pair_products(one, tested),
                    influence_products(one) if products else pair_products(one, ()),
                )
                for one, value in zip(stats, values, strict=True)
            ]
        )
    return found


def _of_head(sources: Sequence[_Evaluated], h: int) -> Sums:
    """Components of one head, several sources side by side; tests are of the first."""
    return Sums(
        estimate=np.stack([one.estimate[h] for one in sources]),
        left_out=np.stack([one.left_out[:, h] for one in sources], axis=1),
        tested=sources[0].tested[h],
        products=np.stack([one.products[h] for one in sources]),
    )
