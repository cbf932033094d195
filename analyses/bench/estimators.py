"""Estimating measured: a full-size analysis, and the bootstrap of one layer against scipy's."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats as sps

import posstats as ps
from analyses.bench.harness import Sample, alone, compared, interleaved, load, peak_memory, timed
from posstats.dataset.blocks import layer_fields
from posstats.dataset.seals import totals
from posstats.dataset.store import write_dump
from posstats.dataset.terms import decompose, select_condition
from posstats.stats.inference.resample import document_weights
from posstats.stats.pair_products.components import LayerField, analysed_queries, share_statistics
from posstats.stats.pair_products.evaluate import evaluate
from posstats.stats.pair_products.terms import Array
from posstats.vocabulary import DEFAULT_OFFSETS

#: The condition whose removal is estimated.
CONDITION = "bos=mean"
#: What is estimated pooled and per head; position tests are per head by nature.
GROUPS: dict[str, tuple[str, ...]] = {"pooled": (), "per head": ("layer", "head")}
#: Measured beside the default, which draws replicates for pooled rows only.
BOOTSTRAP = "bootstrap"


@dataclass(frozen=True)
class Size:
    """A design to analyse.

    Attributes
    ----------
    sequences, layers, heads, length : int
        Of the simulated dump; every sequence is a document.
    replicates : int
        Bootstrap replicates.
    scipy_replicates : int
        Replicates that scipy is given; its time is proportional to them.
    repeats : int
        Interleaved repeats of the comparison with scipy.
    """

    sequences: int
    layers: int
    heads: int
    length: int
    replicates: int
    scipy_replicates: int
    repeats: int


def measure_estimators(size: Size, scratch: str) -> dict[str, Any]:
    """Write a simulated dump, analyse it in processes of their own, compare the bootstraps."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "simulated.h5"
        alone(_simulate, size, path)
        analyses = {name: alone(_analyse, size, path, method) for name, method in METHODS.items()}
        comparison = alone(_against_scipy, size, path)
    return {"size": asdict(size) | {"offsets": len(DEFAULT_OFFSETS)}, "analyses": analyses, "scipy": comparison}


#: Row of the table -> interval method, None for the default.
METHODS = {"default intervals": None, f"{BOOTSTRAP} intervals": BOOTSTRAP}


def _simulate(size: Size, path: Path) -> None:
    simulated = ps.simulate(
        size.sequences,
        size.length,
        layers=size.layers,
        heads=size.heads,
        offsets=DEFAULT_OFFSETS,
        conditions=["baseline", CONDITION],
        seed=0,
    )
    # As a recorder writes it: in float32, with the totals of what is written.
    ds = simulated.dataset.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x)
    sums = totals({name: x.values for name, x in ds.items()})
    write_dump(ds.assign({name: ds[name].copy(data=values) for name, values in sums.items()}), path)


def _estimates(ds: xr.Dataset, size: Size, method: str | None) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every estimand: what it is called, and what computes it."""
    baseline = ds.sel(condition=["baseline"])

    def options(by: tuple[str, ...]) -> dict[str, Any]:
        return {"by": by, "method": method, "n_resamples": size.replicates}

    for group, by in GROUPS.items():
        yield f"leakage, {group}", lambda by=by: ps.leakage(baseline, **options(by))
        yield f"shares, {group}", lambda by=by: ps.shares(baseline, **options(by))
        yield f"magnitude, {group}", lambda by=by: ps.magnitude(baseline, **options(by))
        yield f"removal, {group}", lambda by=by: ps.removal(ds, CONDITION, **options(by))
    yield "position tests, per head", lambda: ps.position_tests(baseline)


def _analyse(size: Size, path: Path, method: str | None) -> dict[str, Any]:
    """All estimates of a dump, from the opened file."""
    before, samples = load(), {}
    with ps.open_dump(path) as ds, peak_memory() as peak:
        samples["reading"] = timed(ds.load)
        for name, job in _estimates(ds, size, method):
            samples[name] = timed(job)
    total = Sample(sum(one.wall for one in samples.values()), sum(one.cpu for one in samples.values()))
    return {
        "method": method or "default",
        "total": asdict(total),
        "parts": {name: asdict(one) for name, one in samples.items()},
        "peak_bytes": peak.baseline + peak.beyond,
        "load": [before, load()],
    }


#: What a field holds of each document.
BY_DOCUMENT = (
    "logit", "excess", "joint", "slope", "bend", "steady_logit", "steady_log_sum", "steady_level", "sequences",
)  # fmt: skip


def resampled(field: LayerField, counts: Array) -> tuple[LayerField, Array]:
    """The documents a replicate drew, and how often it drew each."""
    drawn = np.flatnonzero(counts)
    return (
        replace(
            field,
            **{name: getattr(field, name)[drawn] for name in BY_DOCUMENT},
        ),
        counts[drawn],
    )


def components_of(field: LayerField, counts: Array) -> Array:
    """Leakage and its allocation, (head, component), computed from the data of the documents of one replicate."""
    chosen, times = resampled(field, counts)
    queries = analysed_queries(chosen.logit.shape[2], chosen.offsets)
    return evaluate([share_statistics(chosen, queries, chosen.offsets)], times[None])[0][0]


def replicates_of(field: LayerField, weights: Array) -> Array:
    """The same for all replicates at once, (replicate, head, component), as the estimators do."""
    queries = analysed_queries(field.logit.shape[2], field.offsets)
    return evaluate([share_statistics(field, queries, field.offsets)], weights)[0]


def _against_scipy(size: Size, path: Path) -> dict[str, Any]:
    """Replicates of leakage and its allocation, every head of one layer: ours at once, scipy's one by one."""
    with ps.open_dump(path) as ds:
        terms = select_condition(decompose(ds.isel(layer=[0])), "baseline")
        ((_, field),) = layer_fields(terms)
    n_documents = len(field.sequences)

    def statistic(documents: np.ndarray) -> Array:
        counts = np.bincount(documents.astype(np.int64), minlength=n_documents).astype(np.float64)
        return components_of(field, counts).ravel()

    def scipy() -> None:
        sps.bootstrap(
            (np.arange(n_documents),),
            statistic,
            n_resamples=size.scipy_replicates,
            method="percentile",
            vectorized=False,
            rng=np.random.default_rng(0),
        )

    def ours() -> None:
        replicates = replicates_of(field, document_weights(n_documents, size.replicates, 0))
        np.quantile(replicates, [0.025, 0.975], axis=0)

    before = load()
    samples = interleaved({"ours": ours, "scipy": scipy}, size.repeats)
    result = compared(samples, over="scipy", under="ours", scale=size.replicates / size.scipy_replicates)
    weights = document_weights(n_documents, 5, 0)
    one_by_one = np.stack([components_of(field, row) for row in weights])
    at_once = replicates_of(field, weights)
    difference = np.abs(one_by_one - at_once).max() / np.abs(at_once).max()
    return result | {"largest_relative_difference": float(difference), "load": [before, load()]}
