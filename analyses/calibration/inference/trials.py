"""Data sets of one cell, all at once: named numbers, one per data set.

A trial is a function of (design, generator, number of data sets).
"""

import numpy as np
from scipy import stats as sps

from analyses.calibration.inference import designs
from analyses.calibration.inference.designs import Family, Ratios, Runs, Squares
from posstats.stats.inference.bands import count_above, simultaneous_band
from posstats.stats.inference.bootstrap_t import bootstrap_critical, bootstrap_square_interval
from posstats.stats.inference.equivalence import equivalence, one_sided_p
from posstats.stats.inference.ratios import JointSpread, RatioSet, fieller_set
from posstats.stats.inference.resample import document_weights, jackknife_error
from posstats.stats.inference.runs import contrast_of_runs, satterthwaite
from posstats.stats.inference.squares import SquareInterval, SquareSpread, square_interval
from posstats.stats.pair_products.terms import Array

N_RESAMPLES = 399
BAND_DRAWS = 4000
MARGIN = 0.5


def squares(design: Squares, rng: np.random.Generator, datasets: int) -> dict[str, Array]:
    """The interval, and the shape that METHOD had in mind: limits a t quantile of errors away."""
    x, n = design.draw(rng, datasets)
    products = designs.gram(x, x)
    estimate, left_out = designs.pair_mean(products, n)
    spread = SquareSpread.of(estimate, left_out, products, n)
    unit = designs.error_at_zero(designs.SPECTRA[design.spectrum], n)
    interval = square_interval(spread)
    out = _limits("mixture", interval, design.truth, unit)
    low, high = _score_t(spread, x, n)
    return out | {
        "estimate": estimate / unit,
        "p": interval.p,
        "score t|covered": (low <= design.truth) & (design.truth <= np.maximum(high, 0)),
        "score t|below zero": high < 0,
    }


def _limits(name: str, interval: SquareInterval, truth: float, unit: float) -> dict[str, Array]:
    return {
        f"{name}|covered": (interval.low <= truth) & (truth <= interval.high),
        f"{name}|truth below": truth < interval.low,
        f"{name}|below zero": interval.high < 0,
        f"{name}|length": (interval.high - interval.low) / unit,
    }


def _score_t(spread: SquareSpread, x: Array, n: Array) -> tuple[Array, Array]:
    """Limits a t quantile of errors away: ``(estimate - x)^2 <= t^2 (second + growth max(x, 0))``.

    The growth is that of tr(S^2)/tr(S) within two errors of 0, and proportional beyond.
    """
    size = np.maximum(spread.estimate, 1e-300)
    centred = (x - n[:, None] * (x.sum(axis=1) / n.sum())[:, None]) / n.sum()
    # tr S from the documents, tr S^2 from their pairs.
    prior = 4 * (spread.second / 2) / ((centred**2).sum(axis=(1, 2)) * len(n) / (len(n) - 1))
    error = np.sqrt(np.maximum(spread.first, 0) + spread.second)
    growth = np.where(spread.estimate < 2 * error, prior, np.maximum(spread.first, 0) / size)
    t = sps.t.ppf(0.975, spread.df)
    # Above 0 a quadratic in x; where a root falls below 0 nothing grows.
    middle = spread.estimate + t**2 * growth / 2
    root = t * np.sqrt(np.maximum(spread.second + growth * spread.estimate + (t * growth / 2) ** 2, 0.0))
    flat = t * np.sqrt(spread.second)
    high = np.where(middle + root > 0, middle + root, spread.estimate + flat)
    low = np.where(middle - root > 0, middle - root, np.minimum(spread.estimate - flat, 0.0))
    return low, high


def ratios(design: Ratios, rng: np.random.Generator, datasets: int) -> dict[str, Array]:
    """Fieller sets, with and without the second order taken out of the jackknife."""
    above, below, n = design.draw(rng, datasets)
    (a, a_left), (b, b_left) = designs.pair_mean(above, n), designs.pair_mean(below, n)
    corrected = fieller_set(JointSpread.of(a, b, a_left, b_left, n, (above, below)))
    plain = fieller_set(JointSpread.of(a, b, a_left, b_left, n))
    return _set("corrected", corrected, design.truth) | _set("jackknife", plain, design.truth)


def _set(name: str, found: RatioSet, truth: float) -> dict[str, Array]:
    shapes = {shape: found.shape == k for k, shape in enumerate(("interval", "rays", "line", "undefined"))}
    return {f"{name}|covered": found.contains(truth)} | {f"{name}|{key}": value for key, value in shapes.items()}


def bootstrap_squares(design: Squares, rng: np.random.Generator, datasets: int) -> dict[str, Array]:
    """Bootstrap-t beside the mixture quantiles, on the same data sets."""
    x, n = design.draw(rng, datasets)
    products = designs.gram(x, x)
    estimate, left_out = designs.pair_mean(products, n)
    spread = SquareSpread.of(estimate, left_out, products, n)
    values, errors = _replicates(products, rng)
    unit = designs.error_at_zero(designs.SPECTRA[design.spectrum], n)
    out = {}
    mixture, bootstrap = square_interval(spread), bootstrap_square_interval(spread, values, errors)
    for name, interval in (("mixture", mixture), ("bootstrap-t", bootstrap)):
        out |= _limits(name, interval, design.truth, unit)
    # What a rule that looks at the data would print.
    chosen = np.where(estimate > 5 * mixture.se, out["bootstrap-t|covered"], out["mixture|covered"])
    return out | {"either|covered": chosen, "bootstrap-t|chosen": estimate > 5 * mixture.se}


def bootstrap_ratios(design: Ratios, rng: np.random.Generator, datasets: int) -> dict[str, Array]:
    """Fieller sets with the bootstrap's critical value in place of the t quantile."""
    above, below, n = design.draw(rng, datasets)
    (a, a_left), (b, b_left) = designs.pair_mean(above, n), designs.pair_mean(below, n)
    spread = JointSpread.of(a, b, a_left, b_left, n)
    values, errors = _replicates(above - (a / b)[:, None, None] * below, rng)
    critical = bootstrap_critical(np.zeros_like(a), values, errors)
    found = _set("jackknife", fieller_set(spread), design.truth)
    return found | _set("bootstrap-t", fieller_set(spread, critical=critical), design.truth)


def _replicates(products: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Bootstrap replicates of mean products and their jackknife errors, (replicate, data set) each."""
    datasets, n, _ = products.shape
    values, errors = np.empty((2, N_RESAMPLES, datasets))
    for k in range(datasets):
        if k % 25 == 0:
            weights = document_weights(n, N_RESAMPLES, int(rng.integers(2**31)))
            squares_of = (weights**2).sum(axis=1)
            pairs = n**2 - squares_of
            left = (n - 1) ** 2 - (squares_of[:, None] - weights**2 + (weights - 1) ** 2)
        applied = weights @ products[k]
        whole = (applied * weights).sum(axis=1)
        values[:, k] = whole / pairs
        errors[:, k] = jackknife_error((whole[:, None] - 2 * applied) / np.where(left > 0, left, 1), weights)
    return values, errors


def runs(design: Runs, rng: np.random.Generator, datasets: int) -> dict[str, Array]:
    """Contrasts of two architectures without a difference: cautious degrees of freedom, and Satterthwaite's."""
    k, n = design.k, design.n
    content = rng.normal(size=(2, n, datasets))
    error = np.sqrt(2 / n)  # of the difference
    effects = design.effect * error / np.sqrt(2) * rng.normal(size=(2, k, datasets))
    if design.paired:  # half of the variance of a run belongs to its seed
        shared = design.effect * error / np.sqrt(2) * rng.normal(size=(k, datasets))
        effects = np.sqrt(0.5) * (effects + shared)
    sides = [content[side].mean(axis=0) + effects[side] for side in range(2)]
    documents = (content[1] - content[0]).var(axis=0, ddof=1) / n
    found = contrast_of_runs(sides, documents, n - 1.0, paired=design.paired)
    parts = [found.se_documents**2]
    dfs = [np.full(datasets, n - 1.0)]
    samples = [sides[1] - sides[0]] if design.paired else sides
    parts += [sample.var(axis=0, ddof=1) / k for sample in samples]
    dfs += [np.full(datasets, k - 1.0)] * len(samples)
    plain = satterthwaite(np.stack(parts), np.stack(dfs), cautious=False)
    return {
        "covered": (found.low <= 0) & (found.high >= 0),
        "satterthwaite|covered": np.abs(found.estimate) <= sps.t.ppf(0.975, plain) * found.se,
        "df": found.df,
        "half width": (found.high - found.low) / 2 / error,
        "pairing": found.pairing,
    }


def families(design: Family, rng: np.random.Generator, datasets: int) -> dict[str, Array]:
    """Bands over means, counts above a threshold, equivalence at the end of its margin."""
    n, values = design.n, design.values
    truth = np.where(np.arange(values) < values // 4, 1.0, 0.0)
    rows: dict[str, list[float]] = {}
    for _ in range(datasets):
        common = rng.normal(size=(n, 1))
        x = (
            truth
            + np.sqrt(design.correlation) * common
            + np.sqrt(1 - design.correlation) * rng.normal(size=(n, values))
        )
        estimate = x.mean(axis=0)
        left_out = (x.sum(axis=0) - x) / (n - 1)
        band = simultaneous_band(estimate, left_out, np.ones(n), n_draws=BAND_DRAWS, seed=int(rng.integers(2**31)))
        p = one_sided_p(estimate, band.se, n - 1.0, 0.0)
        counted = {simes: count_above(estimate, p, 0.0, simes=simes) for simes in (False, True)}
        edge = equivalence(estimate[:1], band.se[:1], n - 1.0, (1 - MARGIN, 1.0)).verdict[0]
        row = {
            "band|covered": bool(((band.low <= truth) & (truth <= band.high)).all()),
            "critical": band.critical,
            "holm|covered": counted[False].low <= values // 4,  # values of 0 are not above 0, nor below
            "holm|low": counted[False].low,
            "simes|covered": counted[True].low <= values // 4,
            "simes|low": counted[True].low,
            "supported at the margin": edge == "supported",
        }
        for name, value in row.items():
            rows.setdefault(name, []).append(float(value))
    return {name: np.array(column) for name, column in rows.items()}
