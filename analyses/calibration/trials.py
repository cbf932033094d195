"""One simulated data set after the other: estimates with every interval method, or p-values of every test.

A trial is a function of (scenario, number of documents, seed) that returns named numbers, the same names every time.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from analyses.calibration import designs
from analyses.calibration.designs import OFFSETS, QUERIES
from posstats.stats.decoding.scores import Parts, decode
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.inference.options import INTERVAL_METHODS
from posstats.stats.inference.resample import (
    Interval,
    document_pairs,
    document_weights,
    interval,
    jackknife_error,
    pair_weights,
)
from posstats.stats.inference.sign_flips import random_signs, sign_flip_test
from posstats.stats.pair_products.components import (
    SHARE_COMPONENTS,
    SQUARE_COMPONENTS,
    LayerField,
    Statistics,
    magnitude_statistics,
    share_parts,
    share_statistics,
    term_sums,
)
from posstats.stats.pair_products.evaluate import evaluate, mean_terms
from posstats.stats.pair_products.terms import ORDERS, Array
from posstats.stats.regression import fit_position, position_basis
from posstats.stats.synthetic.design import Design, expected_terms
from posstats.stats.synthetic.simulate import simulate_terms
from posstats.vocabulary import EARLY, EARLY_BIN

N_RESAMPLES = 399
N_PERMUTATIONS = 999
#: Heads of the family, and sign flips: with 9,999 the smallest p-value, times 512, would exceed 0.05.
FAMILY = 512
FAMILY_PERMUTATIONS = 21_999

_BINS = {EARLY_BIN: np.arange(*EARLY), "[4, 8)": np.arange(4, 8)}
_PARTS = share_parts()
#: Given the mask: designs prescribe this one, and in the order "shapley" it is not 0 where there is no sink term.
_SINK = share_parts("mask_first")["sink"]
_MAGNITUDE = (SQUARE_COMPONENTS.index("residual"),)
_GROUPS = ("pooled", "head 0", "head 1")
_BASIS = position_basis(QUERIES, "linear").values
_PROJECT = np.linalg.pinv(_BASIS - _BASIS.mean(axis=0))[0]
#: Parts of the decoded variance that are reported as shares.
_DECODED = ("both", "shapley_denominator", "shapley_residual", "common")


def _only(stats: Statistics, components: Sequence[int]) -> Statistics:
    keep = list(components)
    return replace(stats, gram=stats.gram[:, keep], components=tuple(stats.components[k] for k in keep))


def _exist(queries: Array) -> Array:
    """Which offsets exist for every query of a bin."""
    return queries[0] > OFFSETS


def _statistics(field: LayerField) -> list[Statistics]:
    bins = [magnitude_statistics(field, queries, OFFSETS[_exist(queries)]) for queries in _BINS.values()]
    return [share_statistics(field, QUERIES, OFFSETS), *(_only(one, _MAGNITUDE) for one in bins)]


def _slopes(field: LayerField, weights: Array, left_out: bool = False) -> Array:
    """Slopes of log attention and of its residual part on log2(i + 1), (row, head, 2).

    With one copy of each document left out, (row, document, head, 2), where asked for.
    """
    if left_out:
        rows = np.maximum(weights[:, None] - np.eye(weights.shape[1]), 0.0)
        slopes = _slopes(field, rows.reshape(-1, weights.shape[1]))
        return slopes.reshape(*weights.shape, *slopes.shape[1:])
    means = mean_terms(field, weights, ORDERS["shapley"])
    return np.stack([means[name][..., QUERIES] @ _PROJECT for name in ("log_attention", "residual")], axis=-1)


def estimands(shares: Array, magnitudes: Sequence[Array], slopes: Array) -> dict[str, Array]:
    """Every estimand from its components.

    Parameters
    ----------
    shares : ndarray, shape (..., condition, head, component)
        Leakage, and the products of the terms with log attention (`SHARE_COMPONENTS`).
    magnitudes : sequence of ndarray, shape (..., condition, head), one per bin
        Residual.
    slopes : ndarray, shape (..., head, 2)

    Returns
    -------
    dict
        "estimand, group" -> (...).
    """
    out = {}
    for group in _GROUPS:
        heads = slice(None) if group == "pooled" else slice(int(group[-1]), int(group[-1]) + 1)
        components = shares[..., heads, :].sum(axis=-2)
        leakage, residual, sink = components[..., 0], components @ _PARTS["residual"], components @ _SINK
        residual = residual / leakage
        out[f"leakage, {group}"] = leakage[..., 0]
        out[f"share of residual, {group}"] = residual[..., 0]
        out[f"share of sink, {group}"] = (sink / leakage)[..., 0]
        out[f"contrast of residual share, {group}"] = residual[..., 1] - residual[..., 0]
        for label, values in zip(_BINS, magnitudes, strict=True):
            before, after = np.moveaxis(values[..., heads].sum(axis=-1), -1, 0)
            out[f"magnitude {label}, {group}"] = before
            out[f"removal {label}, {group}"] = 1 - after / before
            out[f"contrast of magnitude {label}, {group}"] = after - before
        if group != "pooled":
            out[f"slope of log attention, {group}"] = slopes[..., int(group[-1]), 0]
            out[f"slope of residual, {group}"] = slopes[..., int(group[-1]), 1]
    return out


def true_values(design: Design) -> dict[str, float]:
    truth = expected_terms(design)
    shares = [truth.leakage(), *(truth.cross(term) for term in SHARE_COMPONENTS[1:])]
    magnitudes = [truth.magnitude("residual", queries)[:, 0] for queries in _BINS.values()]
    slopes = np.stack([truth.slope(term)[0, 0] for term in ("log_attention", "residual")], axis=-1)
    values = estimands(np.stack(shares, axis=-1)[:, 0], magnitudes, slopes)
    return {name: float(value) for name, value in values.items()}


@lru_cache(maxsize=1)
def estimand_names() -> tuple[str, ...]:
    """Names of all estimands but those of decoding, in order."""
    return tuple(true_values(designs.signal_design("default", 5)))


@lru_cache(maxsize=1)
def squared() -> NDArray[np.bool_]:
    """Which of :func:`estimand_names` are means of squares."""
    return np.array([name.startswith(("leakage", "magnitude")) for name in estimand_names()])


class _Fields:
    """Both conditions of a data set; every estimand at any document weights."""

    def __init__(self, fields: Sequence[LayerField]) -> None:
        self._fields = fields
        self._statistics = [_statistics(field) for field in fields]

    def at(self, weights: Array) -> Array:
        """(row, estimand)."""
        parts = [[x.value for x in evaluate(stats, weights)] for stats in self._statistics]
        return self._stack(parts, _slopes(self._fields[0], weights))

    def left_out(self, weights: Array) -> Array:
        """(row, document, estimand)."""
        parts = [[x.left_out for x in evaluate(stats, weights, left_out=True)] for stats in self._statistics]
        return self._stack(parts, _slopes(self._fields[0], weights, left_out=True))

    @staticmethod
    def _stack(parts: Sequence[Sequence[Array]], slopes: Array) -> Array:
        shares, *bins = (np.stack(one, axis=-3) for one in zip(*parts, strict=True))
        return np.stack(list(estimands(shares, [one[..., 0] for one in bins], slopes).values()), axis=-1)

    def plug_in(self) -> Array:
        """Squares of means in place of mean products of different documents: what content noise inflates."""
        parts = []
        for field in self._fields:
            n = field.sequences.sum()
            first, last, both = (term_sums(field, ORDERS[order]) for order in ("mask_first", "mask_last", "shapley"))
            sums = (both["log_attention"], first["mask"], last["mask"], both["redistribution"])
            y, *terms = (one.sum(axis=0) / n for one in sums)
            terms = [one if one.ndim == y.ndim else one[..., None] for one in terms]

            def products(x: Array, z: Array) -> Array:
                return (centred(x) * centred(z)).mean(axis=1)

            def centred(x: Array) -> Array:
                return x[:, QUERIES] - x[:, QUERIES].mean(axis=1, keepdims=True)

            shares = [products(x, y).sum(axis=-1) for x in (y, *terms)]
            residual = both["residual"].sum(axis=0) / n
            kept = [residual[:, queries][..., _exist(queries)] for queries in _BINS.values()]
            bins = [(x**2).mean(axis=(1, 2))[..., None] for x in kept]
            parts.append([np.stack(shares, axis=-1), *bins])
        return self._stack(parts, _slopes(self._fields[0], np.ones((1, len(self._fields[0].sequences))))[0])


@lru_cache(maxsize=32)
def _bootstrap_weights(n_documents: int, seed: int) -> Array:
    return document_weights(n_documents, N_RESAMPLES, seed)


def _intervals(names: Sequence[str], found: dict[str, Interval]) -> dict[str, float]:
    out = {}
    for method, x in found.items():
        for k, name in enumerate(names):
            out |= {
                f"{name}|{method}|low": x.low[k],
                f"{name}|{method}|high": x.high[k],
                f"{name}|{method}|se": x.se[k],
            }
    return out


def coverage_trial(
    scenario: str, n: int, seed: np.random.SeedSequence, methods: Sequence[str] | None = None
) -> dict[str, float]:
    """Every estimand with the interval of every method; "name|estimate", "name|plug_in", "name|method|low"...

    The bootstrap-t is half of the whole cost: unless `methods` are named, only the default scenario has it.
    """
    if methods is None:
        methods = [method for method in INTERVAL_METHODS if method != "studentized" or scenario == "default"]
    design = designs.signal_design(scenario, n)
    data = _Fields(list(designs.layer_fields(simulate_terms(design, seed))))
    names = estimand_names()
    pairs = document_pairs(n)
    estimate, left_out = data.at(np.ones((1, n)))[0], data.at(1 - np.eye(n))
    pair_left_out = data.at(pair_weights(n, pairs))
    # Twenty sets of draws serve all data sets: the draws are no part of what varies between them.
    weights = _bootstrap_weights(n, int(seed.generate_state(1)[0]) % 20)
    replicates = error = None
    if set(methods) - {"jackknife", "corrected_jackknife"}:
        replicates = data.at(weights)
    if "studentized" in methods:
        error = jackknife_error(np.moveaxis(data.left_out(weights), 1, -1), weights[:, None])
    options = {"pairs": pairs, "pair_left_out": pair_left_out, "squared": squared()}
    found = {method: interval(estimate, left_out, replicates, error, method=method, **options) for method in methods}
    out = {f"{name}|estimate": estimate[k] for k, name in enumerate(names)}
    out |= {f"{name}|plug_in": value for name, value in zip(names, data.plug_in(), strict=True)}
    return out | _intervals(names, found)


def _decoded(parts: Parts) -> Array:
    return np.stack([getattr(parts, name) for name in _DECODED], axis=-1)


def decoding_names() -> list[str]:
    return [f"decoding, {name.replace('_', ' ')}" for name in _DECODED]


def decoding_trial(scenario: str, n: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """Decoded parts with every interval but the corrected jackknife's; replicates keep the fitted models."""
    recorded = simulate_terms(designs.signal_design(scenario, n), seed)
    result = decode(
        *designs.decoding_features(recorded), QUERIES, recorded.document, seed=int(seed.generate_state(1)[0])
    )
    weights = _bootstrap_weights(n, int(seed.generate_state(1)[0]) % 20)
    estimate, left_out = _decoded(result.parts()), _decoded(result.left_out_parts())
    replicates = _decoded(result.parts(weights))
    within = _decoded(result.parts(weights[:, None] - np.eye(n)))
    error = jackknife_error(np.moveaxis(within, 1, -1), weights[:, None])
    found = {
        method: interval(estimate, left_out, replicates, error, method=method)
        for method in INTERVAL_METHODS
        if method != "corrected_jackknife"
    }
    out = {f"{name}|estimate": value for name, value in zip(decoding_names(), estimate, strict=True)}
    return out | _intervals(decoding_names(), found)


def _leakage_tests(
    log_attention: Array, gram: Array, documents: Array, signs: Array, queries: Array
) -> dict[str, Array]:
    fits = {kind: fit_position(log_attention, documents, queries, kind) for kind in ("linear", "spline")}
    return {
        "leakage, sign flip": sign_flip_test(gram, signs),
        "slope, t": fits["linear"].p[..., 0],
        "spline, joint F": fits["spline"].f_p,
    }


def level_trial(scenario: str, n: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """p-values of true null hypotheses."""
    flat_seed, null_seed, sign_seed = seed.spawn(3)
    flat = simulate_terms(designs.flat_design(scenario, n), flat_seed)
    (field,) = designs.layer_fields(flat)
    gram = share_statistics(field, QUERIES, OFFSETS).gram[:, 0]
    signs = random_signs(n, N_PERMUTATIONS, int(sign_seed.generate_state(1)[0]))
    y = designs.log_attention(flat, QUERIES)
    tests = _leakage_tests(y, gram, flat.document, signs, QUERIES)
    out = {f"{name}, one head": float(p[0]) for name, p in tests.items()}
    out["leakage, sign flip, pooled"] = float(sign_flip_test(gram.sum(axis=0), signs))

    design = designs.null_design(scenario, n)
    data = _Fields(list(designs.layer_fields(simulate_terms(design, null_seed))))
    pairs = document_pairs(n)
    estimate, left_out = data.at(np.ones((1, n)))[0], data.at(1 - np.eye(n))
    pair_left_out = data.at(pair_weights(n, pairs))
    for method in ("corrected_jackknife", "jackknife"):
        found = interval(estimate, left_out, pairs=pairs, pair_left_out=pair_left_out, method=method)
        for k, name in enumerate(estimand_names()):
            if name.startswith(("share of sink", "removal", "contrast")):
                out[f"{name}, {method}"] = found.p[k]
    return out


def power_trial(shape: str, size: float, n: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """p-values where one head's log attention has a shape of a given size."""
    data_seed, sign_seed = seed.spawn(2)
    recorded = simulate_terms(designs.shaped_design(shape, size, n), data_seed)
    (field,) = designs.layer_fields(recorded)
    gram = share_statistics(field, QUERIES, OFFSETS).gram[:1, 0]
    signs = random_signs(n, N_PERMUTATIONS, int(sign_seed.generate_state(1)[0]))
    y = designs.log_attention(recorded, QUERIES)[:, :1]
    return {name: float(p[0]) for name, p in _leakage_tests(y, gram, recorded.document, signs, QUERIES).items()}


def family_trial(n: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """Heads rejected at 0.05 among 512 without absolute position, per test and adjustment, and the smallest p."""
    data_seed, sign_seed = seed.spawn(2)
    recorded = simulate_terms(designs.family_design(n, FAMILY), data_seed)
    (field,) = designs.layer_fields(recorded)
    queries = np.arange(2, 16)
    gram = share_statistics(field, queries, field.offsets).gram[:, 0]
    signs = random_signs(n, FAMILY_PERMUTATIONS, int(sign_seed.generate_state(1)[0]))
    y = designs.log_attention(recorded, queries)
    out = {}
    for name, p in _leakage_tests(y, gram, recorded.document, signs, queries).items():
        out[f"{name}|none"] = float((p < 0.05).sum())
        out |= {f"{name}|{method}": float((adjust(p, method).q < 0.05).sum()) for method in ("bh", "by", "holm")}
        out[f"{name}|smallest"] = float(p.min())
    return out
