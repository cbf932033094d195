"""Contrasts of two architectures: values at document weights, and an interval over documents and training runs.

Documents and training runs are two crossed samples: every run of an architecture reads the same documents. A statement
about an architecture needs both variances; with one run of each, intervals speak of new documents alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from posstats.errors import DesignError
from posstats.stats.inference.resample import Interval, interval, leave_out_weights
from posstats.stats.inference.runs import FEW_RUNS, detectable_effect, run_correlation, satterthwaite
from posstats.stats.pair_products.components import LayerField, Statistics
from posstats.stats.pair_products.evaluate import evaluate, pair_products
from posstats.stats.pair_products.terms import Array


@dataclass(frozen=True, slots=True)
class Recipe:
    """Components wanted of every head; the absence of the first one is tested."""

    #: Sufficient statistics of heads, as :func:`posstats.stats.pair_products.components.share_statistics`.
    kernel: Callable[[LayerField, NDArray[np.int64], NDArray[np.int64]], Statistics]
    #: The bin.
    queries: NDArray[np.int64]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeadValues:
    """Components of one recipe for some heads of a layer."""

    #: (weights, head, component): at all documents; without each document; without each pair of documents.
    value: Array
    #: (head, document, document): products of the first component.
    products: Array


@dataclass(frozen=True, slots=True)
class LayerSums:
    """Components of one recipe, summed over the heads of each layer."""

    #: (weights, layer, component): at all documents; without each document; without each pair of documents.
    value: Array
    #: (document, document): products of the first component, summed over heads and layers, for
    #: :func:`posstats.stats.inference.sign_flips.sign_flip_test`.
    products: Array


def head_values(field: LayerField, recipes: Sequence[Recipe], pairs: NDArray[np.int64]) -> list[HeadValues]:
    """Evaluate each recipe from all documents, and with one and with two documents left out.

    `field` holds some heads of a layer; `pairs`, (pair, 2), are documents left out together
    (:func:`posstats.stats.inference.resample.document_pairs`) and may be empty.
    """
    statistics = [one.kernel(field, one.queries, one.offsets) for one in recipes]
    found = evaluate(statistics, leave_out_weights(len(field.sequences), pairs))
    return [HeadValues(value, pair_products(one, [0])[:, 0]) for one, value in zip(statistics, found, strict=True)]


def layer_sums(layers: Iterable[Sequence[Sequence[HeadValues]]]) -> list[LayerSums]:
    """Sum each recipe over the heads of each layer, products over layers too; a layer holds blocks of heads."""
    values: list[list[Array]] = []
    products: list[Array] = []
    for blocks in layers:
        whole = list(zip(*blocks, strict=True))
        by_recipe = [np.concatenate([one.value for one in parts], axis=1).sum(axis=1) for parts in whole]
        summed = [np.concatenate([one.products for one in parts]).sum(axis=0) for parts in whole]
        values.append(by_recipe)
        products = [before + one for before, one in zip(products, summed, strict=True)] if products else summed
    return [
        LayerSums(np.stack(value, axis=1), product)
        for value, product in zip(zip(*values, strict=True), products, strict=True)
    ]


def depth_slope(by_layer: Array) -> Array:
    """Least-squares slope on relative depth, ``layer / (L - 1)``: the change from the first layer to the last.

    (..., layer) gives (...). Raises DesignError with fewer than 2 layers.

    >>> float(depth_slope(np.array([1.0, 1.5, 2.0])))
    1.0
    """
    layers = by_layer.shape[-1]
    if layers < 2:
        raise DesignError(f"A slope on depth needs at least 2 layers; this model has {layers}.")
    x = np.linspace(0.0, 1.0, layers) - 0.5
    slope: Array = by_layer @ (x / (x @ x))
    return slope


@dataclass(frozen=True, slots=True)
class RunValues:
    """Values of the runs of one architecture, all read on the same documents."""

    #: (run, value): from all documents.
    at_all: Array
    #: (document, run, value): without each document.
    left_out: Array
    #: (pair, 2): documents left out together; none for the plain jackknife.
    pairs: NDArray[np.int64]
    #: (pair, run, value): without both.
    pair_left_out: Array

    @classmethod
    def of(cls, values: Array, n_documents: int, pairs: NDArray[np.int64]) -> "RunValues":
        """Split values (weights, run, value) in the order of :class:`LayerSums`."""
        return cls(values[0], values[1 : n_documents + 1], pairs, values[n_documents + 1 :])

    @property
    def n_runs(self) -> int:
        """Training runs."""
        return len(self.at_all)


@dataclass(frozen=True, slots=True)
class Contrast:
    """An estimate over runs and documents; every field is (value,)."""

    #: Mean over runs (or its difference), standard error, t interval, two-sided p-value of 0, degrees of freedom.
    estimate: Array
    se: Array
    low: Array
    high: Array
    p: Array
    df: Array
    #: The two parts of the standard error; the latter is 0 where runs were not replicated.
    se_documents: Array
    se_runs: Array
    #: Smallest true value that the test finds with probability 0.8.
    detectable: Array
    #: Correlation of paired runs; NaN where runs are not paired.
    pairing: Array


def contrast_runs(
    sides: Sequence[RunValues],
    *,
    same_documents: bool = True,
    pair_runs: bool = False,
    method: str = "corrected_jackknife",
    level: float = 0.95,
    squared: bool = False,
) -> Contrast:
    """Mean over runs of one side, or the second side's less the first's, with variance over runs and documents.

    ``variance = s_run^2 / k + V_doc``. ``V_doc`` is the jackknife variance of the run-averaged estimate, the documents
    left out of all runs at once (and of both sides, if they read the same ones; else one per side). ``s_run^2`` is the
    variance of run-level estimates, per side, or of their differences for paired runs. The part of the noise that
    belongs to one document in one run is in both, so that the sum errs on the long side. Degrees of freedom by
    Satterthwaite: ``variance^2 / sum(part^2 / df)`` over the parts, ``k - 1`` each for runs, with 3 runs or fewer no
    more than the least of the parts.

    `method` is the jackknife over documents, "corrected_jackknife" or "jackknife". With `pair_runs`, run r of one side
    belongs with run r of the other. `squared` says that the value is a mean of squares (see
    :func:`posstats.stats.inference.resample.interval`), which is of use for one side without replicated runs. Raises
    DesignError if runs are replicated on one side only, or paired runs differ in number.

    The two-way form for crossed samples, without the subtraction of the interaction, which can leave a negative
    variance: A. B. Owen (2007), The pigeonhole bootstrap, Annals of Applied Statistics 1, 386-411,
    doi:10.1214/07-AOAS122. Degrees of freedom: F. E. Satterthwaite (1946), doi:10.2307/3002019.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(30, 3, 1)) + rng.normal(size=(30, 1, 1))  # documents, runs
    >>> left_out = (x.sum(axis=0) - x) / 29
    >>> runs = RunValues(x.mean(axis=0), left_out, np.empty((0, 2), int), left_out[:0])
    >>> found = contrast_runs([runs], method="jackknife")
    >>> bool(found.se[0] > found.se_documents[0] > found.se_runs[0] > 0)
    True
    """
    signs = (1.0,) if len(sides) == 1 else (-1.0, 1.0)
    check_runs([side.n_runs for side in sides], pair_runs=pair_runs)
    replicated = sides[0].n_runs > 1
    signed = list(zip(signs, sides, strict=True))
    groups = [signed] if same_documents else [[one] for one in signed]
    documents = [_over_documents(group, method, level, squared) for group in groups]
    if not replicated and len(documents) == 1:
        x, none = documents[0], np.full(documents[0].se.shape, np.nan)
        detectable = detectable_effect(x.se, x.df, level=level)
        return Contrast(x.estimate, x.se, x.low, x.high, x.p, x.df, x.se, np.zeros_like(x.se), detectable, none)
    parts = [(x.se**2, x.df) for x in documents]
    runs: list[tuple[Array, float]] = []
    if replicated:
        by_run = [sign * side.at_all for sign, side in signed]
        samples = [np.sum(by_run, axis=0)] if pair_runs else by_run
        runs = [(np.var(sample, axis=0, ddof=1) / len(sample), len(sample) - 1.0) for sample in samples]
    estimate = np.sum([x.estimate for x in documents], axis=0)
    paired = pair_runs and replicated and len(sides) == 2
    pairing = run_correlation(sides[0].at_all, sides[1].at_all) if paired else np.full(estimate.shape, np.nan)
    cautious = replicated and min(side.n_runs for side in sides) <= FEW_RUNS
    return _two_way(estimate, parts, runs, level, cautious, pairing)


def check_runs(n_runs: Sequence[int], *, pair_runs: bool) -> None:
    """Raise DesignError unless runs are replicated on all sides or on none, and paired runs are as many."""
    if max(n_runs) > 1 and min(n_runs) == 1:
        raise DesignError(
            "Training runs are replicated on one side only, so how runs of the other vary is unknown; "
            "give at least 2 runs of each, or one of each."
        )
    if pair_runs and len(set(n_runs)) > 1:
        raise DesignError(f"Paired runs need as many on both sides, not {' and '.join(map(str, n_runs))}.")


def _over_documents(group: Sequence[tuple[float, RunValues]], method: str, level: float, squared: bool) -> Interval:
    """Interval of the run-averaged estimate over the documents that the sides of a group share."""

    def combined(name: str, axis: int) -> Array:
        total: Array = np.sum([sign * getattr(side, name).mean(axis=axis) for sign, side in group], axis=0)
        return total

    return interval(
        combined("at_all", 0),
        combined("left_out", 1),
        pairs=group[0][1].pairs,
        pair_left_out=combined("pair_left_out", 1),
        squared=squared,
        method=method,
        level=level,
    )


def _two_way(
    estimate: Array,
    documents: Sequence[tuple[Array, Array]],
    runs: Sequence[tuple[Array, float]],
    level: float,
    cautious: bool,
    pairing: Array,
) -> Contrast:
    over_documents = np.sum([variance for variance, _ in documents], axis=0)
    over_runs = np.sum([variance for variance, _ in runs], axis=0) if runs else np.zeros_like(over_documents)
    parts, dfs = zip(*documents, *runs, strict=True)
    df = satterthwaite(
        np.stack(parts), np.stack([np.broadcast_to(one, estimate.shape) for one in dfs]), cautious=cautious
    )
    se = np.sqrt(over_documents + over_runs)
    half = sps.t.ppf(0.5 + level / 2, df) * se
    with np.errstate(invalid="ignore", divide="ignore"):
        p = np.where(se > 0, 2 * sps.t.sf(np.abs(estimate) / se, df), np.nan)
    return Contrast(
        estimate, se, estimate - half, estimate + half, p, df, np.sqrt(over_documents), np.sqrt(over_runs),
        detectable_effect(se, df, level=level), pairing,
    )  # fmt: skip
