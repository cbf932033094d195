"""From the saved numbers of the study to tables and one figure."""

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.calibration import designs, trials
from posstats.stats.inference.options import DEFAULT_METHODS, INTERVAL_METHODS
from posstats.stats.pair_products.terms import Array

FAMILIES = tuple(DEFAULT_METHODS)
LEVEL = 0.05
_REJECTIONS = ("datasets", "below_0.05")
#: Coverage asked for, at N of at least 32 and at N of 16.
REQUIRED = {32: (0.93, 0.97), 16: (0.92, 1.0)}


def family(estimand: str) -> str:
    """The entry of DEFAULT_METHODS an estimand falls under."""
    return next(name for name in FAMILIES if estimand.startswith(name))


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
            key = {"scenario": scenario, "n": int(size), "estimand": name}
            row = key | {"datasets": len(estimate), "truth": true, "mean": estimate.mean(), "sd": sd}
            if truth:
                row["bias_over_sd"] = (estimate.mean() - true) / sd
                row["plug_in_bias_over_sd"] = (_column(frame, name, "plug_in").mean() - true) / sd
            estimators.append(row)
            for method in INTERVAL_METHODS:
                if f"{name}|{method}|low" not in frame:
                    continue
                low, high, se = (_column(frame, name, method, what) for what in ("low", "high", "se"))
                intervals.append(
                    key
                    | {
                        "method": method,
                        "coverage": ((low <= true) & (true <= high)).mean(),  # an undefined limit is a miss
                        "truth_below": (true < low).mean(),
                        "truth_above": (true > high).mean(),
                        "undefined": np.isnan(low).mean(),
                        "median_length": np.nanmedian(high - low),
                        "median_se_over_sd": np.nanmedian(se) / sd,
                    }
                )
    return pd.DataFrame(estimators), pd.DataFrame(intervals)


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


def within_requirement(n: int, coverage: float) -> bool:
    """Whether a coverage is what section 4 of docs/method.md asks for."""
    low, high = REQUIRED[16 if n < 32 else 32]
    return bool(low <= coverage <= high)


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.3f}", f"{values.max():.3f}"
    return low if low == high else f"{low} to {high}"


def _outside_markdown(intervals: pd.DataFrame) -> Iterator[list[str]]:
    """How many estimands a method covers less, or more, often than asked for."""
    shown = intervals[intervals.scenario == "default"]
    sizes = sorted(shown.n.unique())
    yield ["method", *(f"N = {n}" for n in sizes), "lowest", "highest at N >= 32"]
    for method, group in shown.groupby("method"):
        cells = []
        for n in sizes:
            covered = group[group.n == n].coverage
            cells.append(f"{sum(not within_requirement(n, value) for value in covered)} of {len(covered)}")
        highest = group[group.n >= 32].coverage.max()
        yield [str(method), *cells, f"{group.coverage.min():.3f}", f"{highest:.3f}"]


def _methods_markdown(intervals: pd.DataFrame, scenario: str) -> Iterator[list[str]]:
    """Smallest and largest coverage over the estimands of a family; the default in bold."""
    chosen = intervals[intervals.scenario == scenario].assign(family=lambda x: x.estimand.map(family))
    methods = [method for method in INTERVAL_METHODS if method in set(chosen.method)]
    yield ["family", "N", *methods]
    for name in FAMILIES:
        for n, group in chosen[chosen.family == name].groupby("n"):
            row = [name, str(n)]
            for method in methods:
                values = group[group.method == method].coverage
                text = _range(values) if len(values) else "-"
                row.append(f"**{text}**" if method == DEFAULT_METHODS[name] else text)
            yield row


def _defaults_markdown(intervals: pd.DataFrame, estimators: pd.DataFrame) -> Iterator[list[str]]:
    """Every estimand at every N under the default method."""
    sizes = sorted(intervals.n.unique())
    yield [
        "estimand",
        "truth",
        *(f"N = {n}" for n in sizes),
        "length at 48",
        "se/sd at 48",
        "bias/sd at 48",
        "plug-in bias/sd at 48",
    ]
    shown = intervals[(intervals.scenario == "default") & (intervals.method == intervals.estimand.map(_default))]
    for name in dict.fromkeys(shown.estimand):
        rows = shown[shown.estimand == name].set_index("n")
        cells = []
        for n in sizes:
            value = rows.coverage[n]
            cells.append(f"{value:.3f}" if within_requirement(n, value) else f"{value:.3f} (!)")
        at = estimators[(estimators.scenario == "default") & (estimators.estimand == name) & (estimators.n == 48)].iloc[
            0
        ]
        bias = [f"{at[c]:+.2f}" if np.isfinite(at[c]) else "-" for c in ("bias_over_sd", "plug_in_bias_over_sd")]
        at48 = rows.loc[48]
        yield [name, f"{at.truth:.3f}", *cells, f"{at48.median_length:.3g}", f"{at48.median_se_over_sd:.2f}", *bias]


def _default(estimand: str) -> str:
    return DEFAULT_METHODS[family(estimand)]


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
    sizes = sorted(shown.n.unique())
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, 4, sharex=True, sharey=True).ravel()
    for ax, name in zip(axes, FAMILIES, strict=False):
        ax.axhspan(*REQUIRED[32], color="0.92", zorder=0)
        ax.axhline(0.95, color="0.6", linewidth=0.8)
        for k, method in enumerate(INTERVAL_METHODS):
            values = shown[(shown.family == name) & (shown.method == method)]
            if values.empty:
                continue
            shift = (k - 3) * 0.6
            default = method == DEFAULT_METHODS[name]
            found = values.groupby("n").coverage.agg(["mean", "min", "max"])
            ax.plot(found.index + shift, found["mean"], color=f"C{k}", linewidth=2.5 if default else 1.0, label=method)
            ax.vlines(found.index + shift, found["min"], found["max"], color=f"C{k}", linewidth=0.8)
        ax.set_title(f"{name} (default: {DEFAULT_METHODS[name]})", fontsize=8)
        ax.set_xticks(sizes)
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
    shown = levels[~levels.test.str.endswith(", jackknife")]
    tests = shown.assign(test=shown.test.str.removesuffix(", corrected_jackknife"), cell=_cell(shown))
    family_rows = families.drop(columns=["n", "datasets"]).map(lambda x: f"{x:.3g}" if isinstance(x, float) else str(x))
    found = {
        "outside": _outside_markdown(intervals),
        "defaults": _defaults_markdown(intervals, estimators),
        **{f"methods {scenario}": _methods_markdown(intervals, scenario) for scenario in designs.SCENARIOS},
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
