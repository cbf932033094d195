"""From the saved numbers of the study to tables and one figure."""

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.calibration import designs, trials
from posstats.stats.pair_products.terms import Array

FAMILIES = ("leakage", "share", "magnitude", "removal", "contrast", "slope", "decoding")
#: Those whose limits depend on the method; of pooled ratios the bootstrap is the default.
DRAWN = FAMILIES[:4]
RATIOS = ("share", "removal")
LEVEL = 0.05
_REJECTIONS = ("datasets", "below_0.05")


def family(estimand: str) -> str:
    """Kind of an estimand."""
    return next(name for name in FAMILIES if estimand.startswith(name))


def default(estimand: str) -> str:
    """The method that the estimators choose for the limits of an estimand."""
    return "bootstrap" if family(estimand) in RATIOS and estimand.endswith("pooled") else "t"


def load(folder: Path) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Saved numbers, (kind, scenario or shape, size) -> one row per dataset."""
    files: dict[tuple[str, str, str], list[Path]] = {}
    for file in sorted(folder.glob("*.npz")):
        kind, scenario, size, *_ = file.stem.rsplit("-", 4)
        files.setdefault((kind, scenario.replace("_", " "), size), []).append(file)
    order = sorted(files, key=lambda key: (key[0], key[1], float(key[2])))
    return {key: pd.concat([_frame(file) for file in files[key]], ignore_index=True) for key in order}


def _frame(file: Path) -> pd.DataFrame:
    with np.load(file) as saved:
        return pd.DataFrame(saved["values"], columns=saved["names"])


def _column(frame: pd.DataFrame, *name: str) -> Array:
    return frame["|".join(name)].to_numpy()


def coverage_tables(data: dict[tuple[str, str, str], pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Estimators: truth, bias, spread; and intervals: coverage, misses on either side, length, per method."""
    estimators, intervals = [], []
    for (kind, scenario, size), frame in data.items():
        if kind not in ("coverage", "decoding"):
            continue
        # What decoding yields from so many documents has no formula: the mean over the datasets stands in for it.
        truth = trials.true_values(designs.signal_design(scenario, int(size))) if kind == "coverage" else {}
        for name in truth or trials.decoding_names():
            estimate = _column(frame, name, "estimate")
            true, sd = truth.get(name, float(estimate.mean())), estimate.std(ddof=1)
            key = {"scenario": scenario, "n": int(size), "estimand": name, "datasets": len(estimate)}
            row = key | {"truth": true, "mean": estimate.mean(), "sd": sd}
            if truth:
                row["bias_over_sd"] = (estimate.mean() - true) / sd
            if f"{name}|plug_in" in frame:
                row["plug_in_bias_over_sd"] = (_column(frame, name, "plug_in").mean() - true) / sd
            estimators.append(row)
            if not np.isfinite(true):
                continue  # nothing to divide by
            for method in trials.METHODS:
                if f"{name}|{method}|low" in frame:
                    intervals.append(key | {"method": method} | _covered(frame, name, method, true, sd))
    return pd.DataFrame(estimators), pd.DataFrame(intervals)


def _covered(frame: pd.DataFrame, name: str, method: str, true: float, sd: float) -> dict[str, float]:
    """Coverage of the sets of all data sets, whatever their shape; what is undefined is a miss."""
    low, high, se = (_column(frame, name, method, what) for what in ("low", "high", "se"))
    gap = [
        _column(frame, name, method, f"gap_{end}") for end in ("low", "high") if f"{name}|{method}|gap_{end}" in frame
    ]
    missing = (gap[0] < true) & (true < gap[1]) if gap else np.zeros(len(low), dtype=bool)
    rays = np.isfinite(gap[0]) if gap else missing
    return {
        "coverage": ((low <= true) & (true <= high) & ~missing).mean(),
        "truth_below": (true < low).mean(),
        "truth_above": (true > high).mean(),
        "truth_in_gap": missing.mean(),
        "rays": rays.mean(),
        "line": (np.isinf(low) & np.isinf(high) & ~rays).mean(),
        "undefined": np.isnan(low).mean(),
        "median_length": np.nanmedian(high - low),
        "median_se_over_sd": np.nanmedian(se) / sd,
    }


def rejection_table(
    data: dict[tuple[str, str, str], pd.DataFrame], kind: str, columns: tuple[str, str]
) -> pd.DataFrame:
    """How often p < 0.05 and p < 0.01, and the smallest p."""
    rows = [
        dict(zip(columns, key[1:], strict=True))
        | {
            "test": test,
            "datasets": len(frame),
            "below_0.05": (frame[test] < LEVEL).mean(),
            "below_0.01": (frame[test] < 0.01).mean(),
            "smallest_p": frame[test].min(),
            "undefined": int(frame[test].isna().sum()),
        }
        for key, frame in data.items()
        if key[0] == kind
        for test in frame
    ]
    return pd.DataFrame(rows)


def family_table(data: dict[tuple[str, str, str], pd.DataFrame]) -> pd.DataFrame:
    """Among true nulls: how often anything is rejected (FDR and familywise error at once), how many unadjusted."""
    rows = []
    for (kind, _, size), frame in data.items():
        if kind != "family":
            continue
        for test in dict.fromkeys(name.rsplit("|", 1)[0] for name in frame):
            any_rejected = {method: (_column(frame, test, method) > 0).mean() for method in ("bh", "by", "holm")}
            unadjusted = _column(frame, test, "none").mean() / trials.FAMILY
            smallest = _column(frame, test, "smallest").min()
            key = {"n": int(size), "test": test, "datasets": len(frame)}
            rows.append(key | any_rejected | {"unadjusted_rate": unadjusted, "smallest_p": smallest})
    return pd.DataFrame(rows)


def _covers(coverage: float, datasets: int) -> str:
    """A coverage; "(!)" where it is below 0.95 by more than three binomial errors."""
    bound = 1 - LEVEL - 3 * np.sqrt(LEVEL * (1 - LEVEL) / datasets)
    return f"{coverage:.3f}" + (" (!)" if coverage < bound else "")


def _coverage_markdown(intervals: pd.DataFrame) -> Iterator[list[str]]:
    """Smallest and largest coverage over the estimands of a family."""
    kinds = [(name, method) for name in FAMILIES for method in trials.METHODS if method == "t" or name in DRAWN]
    yield ["noise and documents", "N", *(f"{name}, {method}" if name in DRAWN else name for name, method in kinds)]
    rows = intervals.assign(family=intervals.estimand.map(family))
    for (scenario, n), cell in sorted(rows.groupby(["scenario", "n"]), key=lambda one: _place(*one[0])):
        texts = []
        for name, method in kinds:
            found = cell[(cell.family == name) & (cell.method == method)]
            ends = (
                [_covers(x, found.datasets.iloc[0]) for x in (found.coverage.min(), found.coverage.max())]
                if len(found)
                else ["-"]
            )
            texts.append(" to ".join(dict.fromkeys(ends)))
        yield [scenario, str(n), *texts]


def _place(scenario: str, n: int) -> tuple[int, int]:
    return list(designs.SCENARIOS).index(scenario), n


def _shapes_markdown(intervals: pd.DataFrame) -> Iterator[list[str]]:
    """How many of the sets of ratios are two rays or the line, per head and pooled."""
    rows = intervals[
        intervals.estimand.map(family).isin(RATIOS) & (intervals.estimand.map(default) == intervals.method)
    ]
    names = list(dict.fromkeys(rows.estimand))
    chosen = [name for name in names if name.startswith(("share of residual", "removal [4, 8)"))]
    yield ["noise and documents", "N", *chosen]
    for (scenario, n), cell in sorted(rows.groupby(["scenario", "n"]), key=lambda one: _place(*one[0])):
        at = cell.set_index("estimand")
        there = [at.loc[name] if name in at.index else None for name in chosen]
        yield [scenario, str(n), *("-" if x is None else f"{x.rays:.2f} + {x.line:.2f}" for x in there)]


def _defaults_markdown(intervals: pd.DataFrame, estimators: pd.DataFrame) -> Iterator[list[str]]:
    """Every estimand at every N under the default method, default noise."""
    shown = intervals[(intervals.scenario == "default") & (intervals.method == intervals.estimand.map(default))]
    sizes = sorted(shown.n.unique())
    extra = ["length at 48", "se/sd at 48", "bias/sd at 48", "plug-in bias/sd at 48"]
    yield ["estimand", "truth", *(f"N = {n}" for n in sizes), *extra]
    at48 = estimators[(estimators.scenario == "default") & (estimators.n == 48)].set_index("estimand")
    for name in dict.fromkeys(shown.estimand):
        rows, at = shown[shown.estimand == name].set_index("n"), at48.loc[name]
        cells = [_covers(rows.coverage[n], rows.datasets[n]) for n in sizes]
        bias = [f"{at[c]:+.2f}" if np.isfinite(at[c]) else "-" for c in ("bias_over_sd", "plug_in_bias_over_sd")]
        lengths = [f"{rows.median_length[48]:.3g}", f"{rows.median_se_over_sd[48]:.2f}"]
        yield [name, f"{at.truth:.3f}", *cells, *lengths, *bias]


def _cell(table: pd.DataFrame) -> pd.Series:
    return table.scenario + ", N = " + table.n.astype(str)


def _rejections_markdown(table: pd.DataFrame, columns: str, *, null: bool) -> Iterator[list[str]]:
    """Rejection rates; under the null those above the level by more than three binomial errors are marked."""
    wide = {what: table.pivot_table(index="test", columns=columns, values=what, sort=False) for what in _REJECTIONS}
    yield ["test", *(str(column) for column in wide["datasets"].columns)]
    for test, rates in wide["below_0.05"].iterrows():
        bound = LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / wide["datasets"].loc[test])
        marks = np.where((rates > bound) & null, " (!)", "")
        yield [str(test), *(f"{rate:.3f}{mark}" for rate, mark in zip(rates, marks, strict=True))]


def _markdown(rows: Iterator[list[str]]) -> str:
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _figure(intervals: pd.DataFrame) -> Figure:
    """Coverage against N, one panel per family: the mean over its estimands, and the range of them."""
    shown = intervals[intervals.scenario == "default"].assign(family=lambda x: x.estimand.map(family))
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, 4, sharex=True, sharey=True).ravel()
    for ax, name in zip(axes, FAMILIES, strict=False):
        ax.axhline(0.95, color="0.6", linewidth=0.8)
        for k, method in enumerate(trials.METHODS):
            values = shown[(shown.family == name) & (shown.method == method)]
            found = values.groupby("n").coverage.agg(["mean", "min", "max"])
            ax.plot(found.index + k, found["mean"], color=f"C{k}", label=method)
            ax.vlines(found.index + k, found["min"], found["max"], color=f"C{k}", linewidth=0.8)
        ax.set_title(name, fontsize=8)
        ax.set_xticks(sorted(shown.n.unique()))
        ax.set_ylim(0.80, 1.005)
    axes[0].set_ylabel("coverage at 0.95")
    axes[4].set_ylabel("coverage at 0.95")
    axes[4].set_xlabel("documents")
    axes[-1].axis("off")
    axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=9)
    return figure


def write(folder: Path, docs: Path) -> None:
    """Write the CSV tables and the figure below `docs`/calibration, and the tables of `docs`/calibration.md anew."""
    data = load(folder)
    estimators, intervals = coverage_tables(data)
    levels = rejection_table(data, "level", ("scenario", "n")).astype({"n": int})
    power = rejection_table(data, "power", ("shape", "size_nats"))
    families = family_table(data)
    target = docs / "calibration"
    target.mkdir(parents=True, exist_ok=True)
    csv = {"estimators": estimators, "intervals": intervals, "levels": levels, "power": power, "families": families}
    for name, table in csv.items():
        table.to_csv(target / f"{name}.csv", index=False, float_format="%.5g", lineterminator="\n")
    with matplotlib.rc_context({"svg.hashsalt": "calibration", "svg.fonttype": "none"}):
        _figure(intervals).savefig(target / "coverage.svg", metadata={"Date": None})
    tests = levels.assign(cell=_cell(levels))
    family_rows = families.drop(columns=["n", "datasets"]).map(lambda x: f"{x:.3g}" if isinstance(x, float) else str(x))
    found = {
        "coverage": _coverage_markdown(intervals),
        "shapes": _shapes_markdown(intervals),
        "defaults": _defaults_markdown(intervals, estimators),
        "levels": _rejections_markdown(tests, "cell", null=True),
        "power": _rejections_markdown(power.assign(test=power["shape"] + ": " + power.test), "size_nats", null=False),
        "families": iter([list(family_rows), *family_rows.to_numpy().tolist()]),
    }
    page = docs / "calibration.md"
    text = page.read_text(encoding="utf-8")
    for name, rows in found.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)"
        table = _markdown(rows)
        text = re.sub(pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")
