"""One simulated data set after the other: the limits that the estimators print, or p-values of every test.

A trial is a function of (scenario, number of documents, seed) that returns named numbers, the same names every time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from analyses.calibration import designs
from analyses.calibration.designs import OFFSETS, QUERIES
from posstats.stats.decoding.scores import Parts, decode
from posstats.stats.inference.limits import Limits, ratio_limits, square_limits
from posstats.stats.inference.multiplicity import adjust
from posstats.stats.inference.resample import Interval, document_pairs, document_weights, interval, leave_out_weights
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
from posstats.stats.pair_products.evaluate import evaluate, influence_products, mean_terms
from posstats.stats.pair_products.terms import ORDERS, Array
from posstats.stats.regression import fit_position, position_basis
from posstats.stats.synthetic.design import Design, expected_terms
from posstats.stats.synthetic.simulate import Recorded, simulate_terms
from posstats.vocabulary import EARLY, EARLY_BIN

#: How intervals are made: what `method` of the estimators may be. Contrasts, slopes and decoding know "t" alone.
METHODS = ("t", "bootstrap")
LEVEL = 0.95
N_RESAMPLES = 399
N_PERMUTATIONS = 999
#: Heads of the family, and sign flips: with 9,999 the smallest p-value, times 512, would exceed 0.05.
FAMILY = 512
FAMILY_PERMUTATIONS = 21_999

_BINS = {EARLY_BIN: np.arange(*EARLY), "[4, 8)": np.arange(4, 8)}
_RESIDUAL = SQUARE_COMPONENTS.index("residual")
#: Group -> the heads summed over.
_GROUPS = {"pooled": [1.0, 1.0], "head 0": [1.0, 0.0], "head 1": [0.0, 1.0]}
_BASIS = position_basis(QUERIES, "linear").values
_PROJECT = np.linalg.pinv(_BASIS - _BASIS.mean(axis=0))[0]
_SLOPES = ("log_attention", "residual")
#: Parts of the decoded variance that are reported as shares.
_DECODED = ("both", "shapley_denominator", "shapley_residual", "common")


@dataclass(frozen=True, slots=True)
class _Estimand:
    """A mean of squares, or a ratio: weights (condition, component) of the sums of one bin."""

    bin: str
    above: Array
    below: Array | None = None

    def of(self, sums: dict[str, Array]) -> Array:
        """Values from sums (..., group, condition, component) of every bin."""
        above = np.tensordot(sums[self.bin], self.above, axes=2)
        if self.below is None:
            return above
        below = np.tensordot(sums[self.bin], self.below, axes=2)
        return np.divide(above, below, out=np.full(above.shape, np.nan), where=np.abs(below) > 1e-9)


def _estimands() -> tuple[dict[str, _Estimand], dict[str, tuple[_Estimand, _Estimand]]]:
    """Estimands, and contrasts: what is subtracted from what."""
    before, after = np.eye(2)
    whole, parts = np.eye(len(SHARE_COMPONENTS))[0], share_parts()
    residual, later = (_Estimand("all", np.outer(one, parts["residual"]), np.outer(one, whole)) for one in np.eye(2))
    # Given the mask: designs prescribe this one, and in the order "shapley" it is not 0 where there is no sink term.
    sink = np.outer(before, share_parts("mask_first")["sink"])
    found = {
        "leakage": _Estimand("all", np.outer(before, whole)),
        "share of residual": residual,
        "share of sink": _Estimand("all", sink, np.outer(before, whole)),
    }
    contrasts = {"contrast of residual share": (later, residual)}
    for label in _BINS:
        one, two = (_Estimand(label, weights[:, None]) for weights in (before, after))
        found[f"magnitude {label}"] = one
        found[f"removal {label}"] = _Estimand(label, one.above - two.above, one.above)
        contrasts[f"contrast of magnitude {label}"] = two, one
    return found, contrasts


ESTIMANDS, CONTRASTS = _estimands()


def _values(sums: dict[str, Array]) -> dict[str, Array]:
    """Every estimand and contrast, (..., group), from sums (..., group, condition, component) of every bin."""
    values = {name: one.of(sums) for name, one in ESTIMANDS.items()}
    return values | {name: after.of(sums) - before.of(sums) for name, (after, before) in CONTRASTS.items()}


def _grouped(by_condition: Sequence[Array], axis: int) -> Array:
    """Sums over the heads of each group: heads on `axis` become (group, condition)."""
    stacked = np.stack(by_condition, axis=axis + 1)
    return np.moveaxis(np.tensordot(list(_GROUPS.values()), stacked, axes=(1, axis)), 0, axis)


def _named(values: dict[str, Array]) -> dict[str, float]:
    return {f"{name}, {group}": float(x[g]) for name, x in values.items() for g, group in enumerate(_GROUPS)}


def _slopes_named(slopes: Array) -> dict[str, float]:
    """From (head, slope)."""
    labels = [f"slope of {term.replace('_', ' ')}, head {h}" for h in range(len(slopes)) for term in _SLOPES]
    return dict(zip(labels, slopes.ravel().tolist(), strict=True))


def true_values(design: Design) -> dict[str, float]:
    """Every estimand; not finite where a ratio has nothing to divide by."""
    truth = expected_terms(design)
    shares = np.stack([truth.leakage(), *(truth.cross(term) for term in SHARE_COMPONENTS[1:])], axis=-1)[:, 0]
    sums = {"all": _grouped(list(shares), 0)}
    for label, queries in _BINS.items():
        sums[label] = _grouped(list(truth.magnitude("residual", queries)[:, 0, :, None]), 0)
    slopes = np.stack([truth.slope(term)[0, 0] for term in _SLOPES], axis=-1)
    return _named(_values(sums)) | _slopes_named(slopes)


def _statistics(field: LayerField) -> dict[str, Statistics]:
    bins = {label: magnitude_statistics(field, at, OFFSETS[_exist(at)]) for label, at in _BINS.items()}
    return {"all": share_statistics(field, QUERIES, OFFSETS)} | {
        label: replace(one, gram=one.gram[:, [_RESIDUAL]], components=(one.components[_RESIDUAL],))
        for label, one in bins.items()
    }


def _exist(queries: Array) -> Array:
    """Which offsets exist for every query of a bin."""
    return queries[0] > OFFSETS


def _plug_in(fields: Sequence[LayerField]) -> dict[str, float]:
    """Squares of means in place of mean products of different documents: what content noise inflates."""
    sums: dict[str, list[Array]] = {label: [] for label in ("all", *_BINS)}
    for field in fields:
        n = field.sequences.sum()
        first, last, both = (term_sums(field, ORDERS[order]) for order in ("mask_first", "mask_last", "shapley"))
        found = (both["log_attention"], first["mask"], last["mask"], both["redistribution"])
        y, *terms = (one.sum(axis=0) / n for one in found)
        centred = [x[:, QUERIES] - x[:, QUERIES].mean(axis=1, keepdims=True) for x in (y, *terms)]
        centred = [x if x.ndim == y.ndim else x[..., None] for x in centred]
        sums["all"].append(np.stack([(x * centred[0]).mean(axis=1).sum(axis=-1) for x in centred], axis=-1))
        residual = both["residual"].sum(axis=0) / n
        for label, queries in _BINS.items():
            sums[label].append((residual[:, queries][..., _exist(queries)] ** 2).mean(axis=(1, 2))[:, None])
    return _named(_values({label: _grouped(one, 0) for label, one in sums.items()}))


@lru_cache(maxsize=64)
def _bootstrap_weights(n_documents: int, seed: int) -> Array:
    return document_weights(n_documents, N_RESAMPLES, seed)


def _drawn(n_documents: int, seed: np.random.SeedSequence) -> Array:
    """Twenty sets of draws serve all data sets: the draws are no part of what varies between them."""
    return _bootstrap_weights(n_documents, int(seed.generate_state(1)[0]) % 20)


def _limits(
    one: _Estimand, sums: dict[str, Array], products: dict[str, Array], n: Array, drawn: Array | None
) -> Limits:
    """As the estimators make them, (group, 1): row 0 of `sums` is the estimate, those after it lack a document."""
    rows = sums[one.bin][: len(n) + 1]

    def combined(weights: Array) -> tuple[Array, Array, Array]:
        values = np.tensordot(rows, weights, axes=2)[..., None]
        return values[0], values[1:], np.einsum("ckgxy,kg->cxy", products[one.bin], weights)[:, None]

    above, left, grams = combined(one.above)
    if one.below is None:
        return square_limits(above, left, grams, n, LEVEL, drawn)
    below, left_below, grams_below = combined(one.below)
    both = None if drawn is None else (grams, grams_below)
    return ratio_limits(above, below, left, left_below, n, LEVEL, both, drawn)


def intervals(recorded: Recorded, seed: np.random.SeedSequence) -> dict[str, float]:
    """Every estimand of a data set: "name|estimate", and "name|method|what" of every method it has.

    What is "low", "high", "se" and "p"; of a ratio also "gap_low" and "gap_high", the ends of two rays.
    """
    fields = list(designs.layer_fields(recorded))
    n = fields[0].sequences
    pairs, drawn = document_pairs(len(n)), _drawn(len(n), seed)
    weights = leave_out_weights(len(n), pairs)
    statistics = [_statistics(field) for field in fields]
    evaluated = [evaluate(list(one.values()), weights) for one in statistics]
    sums = {
        label: _grouped(values, 1) for label, values in zip(statistics[0], zip(*evaluated, strict=True), strict=True)
    }
    products = {label: _grouped([influence_products(one[label]) for one in statistics], 0) for label in statistics[0]}
    out: dict[str, float] = {}

    def note(
        name: str, method: str, found: Limits | Interval, what: Sequence[str] = ("low", "high", "se", "p")
    ) -> None:
        for column in what:
            values = _named({name: getattr(found, column).ravel()})
            out.update({f"{key}|{method}|{column.removeprefix('boot_')}": value for key, value in values.items()})

    out.update({f"{key}|estimate": value for key, value in _named({k: x[0] for k, x in _values(sums).items()}).items()})
    for name, one in ESTIMANDS.items():
        if one.below is None:
            found = _limits(one, sums, products, n, drawn)
            note(name, "t", found)
            note(name, "bootstrap", found, ("boot_low", "boot_high", "se"))
            continue
        for method in METHODS:
            found = _limits(one, sums, products, n, drawn if method == "bootstrap" else None)
            note(name, method, found, ("low", "high", "se", "p", "gap_low", "gap_high"))
    for name, (after, before) in CONTRASTS.items():
        rows = after.of(sums) - before.of(sums)
        left, without = rows[1 : len(n) + 1], rows[len(n) + 1 :]
        note(name, "t", interval(rows[0], left, pairs=pairs, pair_left_out=without, method="corrected_jackknife"))
    means = mean_terms(fields[0], weights[: len(n) + 1], ORDERS["shapley"])
    slopes = np.stack([means[name][..., QUERIES] @ _PROJECT for name in _SLOPES], axis=-1)
    found = interval(slopes[0], slopes[1:], method="jackknife")
    out.update({f"{key}|estimate": value for key, value in _slopes_named(slopes[0]).items()})
    for what in ("low", "high", "se", "p"):
        out.update({f"{key}|t|{what}": value for key, value in _slopes_named(getattr(found, what)).items()})
    return out


def coverage_trial(scenario: str, n: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """:func:`intervals`, and "name|plug_in"."""
    recorded = simulate_terms(designs.signal_design(scenario, n), seed)
    plug_in = _plug_in(list(designs.layer_fields(recorded)))
    return intervals(recorded, seed) | {f"{name}|plug_in": value for name, value in plug_in.items()}


def decoding_names() -> list[str]:
    return [f"decoding, {name.replace('_', ' ')}" for name in _DECODED]


def decoding_trial(scenario: str, n: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """Decoded parts with the interval of the jackknife, which keeps the fitted models."""
    recorded = simulate_terms(designs.signal_design(scenario, n), seed)
    features = designs.decoding_features(recorded)
    result = decode(*features, QUERIES, recorded.document, seed=int(seed.generate_state(1)[0]))

    def stacked(parts: Parts) -> Array:
        return np.stack([getattr(parts, name) for name in _DECODED], axis=-1)

    found = interval(stacked(result.parts()), stacked(result.left_out_parts()), method="jackknife")
    out = {}
    for k, name in enumerate(decoding_names()):
        out[f"{name}|estimate"] = found.estimate[k]
        out |= {f"{name}|t|{what}": getattr(found, what)[k] for what in ("low", "high", "se", "p")}
    return out


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
    field = next(designs.layer_fields(flat))
    gram = share_statistics(field, QUERIES, OFFSETS).gram[:, 0]
    signs = random_signs(n, N_PERMUTATIONS, int(sign_seed.generate_state(1)[0]))
    y = designs.log_attention(flat, QUERIES)
    tests = _leakage_tests(y, gram, flat.document, signs, QUERIES)
    out = {f"{name}, one head": float(p[0]) for name, p in tests.items()}
    out["leakage, sign flip, pooled"] = float(sign_flip_test(gram.sum(axis=0), signs))
    found = intervals(simulate_terms(designs.null_design(scenario, n), null_seed), null_seed)
    null = ("share of sink", "removal", "contrast")
    p_values = {name.split("|")[0] + ", " + name.split("|")[1]: p for name, p in found.items() if name.endswith("|p")}
    return out | {name: p for name, p in p_values.items() if name.startswith(null)}


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
