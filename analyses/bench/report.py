"""The numbers as Markdown: each table beside its target, which is stated, not asserted."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Largest ratio of a dump's time to a plain forward pass, by length.
FORWARD_TARGETS = {256: 1.25, 1024: 1.25, 4096: 1.15}
_MB = 1e6


def markdown(results: Mapping[str, Any]) -> str:
    """All sections that were measured, as one document."""
    lines = ["# Benchmark", ""]
    for section, write in _SECTIONS.items():
        if section in results:
            lines += [*write(results[section]["measured"]), "", _about(results[section]["about"]), ""]
    return "\n".join(lines)


def _about(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    size = "small sizes, of no meaning as speeds; " if about["quick"] else ""
    return (
        f"{size}model {about['model']}; {about['processors']} processors ({about['processor']}), OMP_NUM_THREADS "
        f"{about['OMP_NUM_THREADS']}, load average {about['load'][0]} before and {about['load'][1]} after; "
        f"{about['seconds']:.0f} s in all; Python {about['python']}, {versions}."
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def _spread(values: Mapping[str, float], unit: float = 1.0) -> str:
    return f"{values['median'] / unit:.2f} ({values['min'] / unit:.2f}-{values['max'] / unit:.2f})"


def _forward(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Dump, writing included, against a plain forward pass"
    yield ""
    yield "Ratios within pairs of neighbouring runs: median (smallest-largest). Same tokens, batch and threads."
    yield ""
    rows = [
        (
            row["length"], f"{row['sequences']} in batches of {row['batch']}", row["repeats"],
            _spread(row["wall"]["seconds"]["forward"]), _spread(row["wall"]["seconds"]["dump"]),
            _spread(row["wall"]["ratio"]), _spread(row["cpu"]["ratio"]), FORWARD_TARGETS.get(row["length"], ""),
        )
        for row in measured["rows"]
    ]  # fmt: skip
    header = ("T", "sequences", "repeats", "forward, s", "dump, s", "ratio, wall", "ratio, CPU", "target at most")
    yield from _table(header, rows)
    yield ""
    yield "## Files"
    yield ""
    yield "Throughput of raw bytes, files in the page cache; writing compresses and syncs."
    yield ""
    rows = [
        (
            row["length"], f"{row['bytes'] / _MB:.1f}", f"{row['bytes_per_token'] / 1e3:.2f}",
            f"{row['raw_bytes_per_token'] / 1e3:.2f}", _spread(row["raw_bytes_per_second"]["write"], _MB),
            _spread(row["raw_bytes_per_second"]["read"], _MB),
        )
        for row in measured["files"]
    ]  # fmt: skip
    yield from _table(("T", "file, MB", "kB per token", "raw kB per token", "write, MB/s", "read, MB/s"), rows)


def _eager(measured: Mapping[str, Any]) -> Iterator[str]:
    memory = measured["memory"]
    yield f"## Dump against eager attention weights and the same reductions, T = {measured['length']}"
    yield ""
    yield "Per sequence, one at a time; `output_attentions=True`, then the recorder's statistics from the weights."
    yield ""
    rows = [
        ("eager time / dump time, wall", _spread(measured["wall"]["ratio"]), "at least 4"),
        ("eager time / dump time, CPU", _spread(measured["cpu"]["ratio"]), "at least 4"),
        ("dump peak / eager peak, beyond weights", f"{measured['memory_ratio']:.3f}", "at most 0.25"),
        ("dump peak beyond weights, MB", f"{memory['dump']['beyond'] / _MB:.0f}", ""),
        ("eager peak beyond weights, MB", f"{memory['eager']['beyond'] / _MB:.0f}", ""),
    ]
    yield from _table(("", "measured", "target"), rows)
    yield ""
    differences = ", ".join(f"`{name}` {value:.1e}" for name, value in measured["largest_difference"].items())
    yield f"Largest difference of what the two record, relative to 1 + size: {differences}."


def _lens(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Dump against TransformerLens"
    yield ""
    if "skipped" in measured:
        yield f"Not measured: {measured['skipped']}."
        return
    yield f"`run_with_cache` of the attention scores, T = {measured['length']}, per sequence, then the same reductions."
    yield ""
    rows = [
        ("TransformerLens time / dump time, wall", _spread(measured["wall"]["ratio"])),
        ("TransformerLens time / dump time, CPU", _spread(measured["cpu"]["ratio"])),
        ("dump peak / TransformerLens peak, beyond weights", f"{measured['memory_ratio']:.3f}"),
        ("TransformerLens peak beyond weights, MB", f"{measured['memory']['lens']['beyond'] / _MB:.0f}"),
    ]
    yield from _table(("", "measured"), rows)


def _memory(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Peak memory beyond the weights, one sequence at a time"
    yield ""
    yield "Target: each doubling of T at most 2.2 times."
    yield ""

    def growth(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    rows = [
        (
            row["length"], f"{row['dump']['beyond'] / _MB:.0f}", growth(row["dump"]["growth"]),
            f"{row['forward']['beyond'] / _MB:.0f}", growth(row["forward"]["growth"]),
        )
        for row in measured["rows"]
    ]  # fmt: skip
    yield from _table(("T", "dump, MB", "growth", "plain forward, MB", "growth"), rows)


def _estimators(measured: Mapping[str, Any]) -> Iterator[str]:
    size = measured["size"]
    yield "## Estimating"
    yield ""
    yield (
        f"{size['sequences']} sequences x {size['layers']} layers x {size['heads']} heads x {size['length']} queries x "
        f"{size['offsets']} offsets, {size['replicates']} replicates where the method draws any, all octaves; removal "
        "reads two conditions. Targets: 60 s and 4 GiB in all."
    )
    yield ""
    analyses = measured["analyses"]
    names = list(next(iter(analyses.values()))["parts"])
    header = ["", *(f"{name}: {clock}" for name in analyses for clock in ("wall, s", "CPU, s"))]

    def times(seconds: Sequence[Mapping[str, float]]) -> list[str]:
        return [f"{one[clock]:.1f}" for one in seconds for clock in ("wall", "cpu")]

    rows: list[list[object]] = [[part, *times([one["parts"][part] for one in analyses.values()])] for part in names]
    rows.append(["**all**", *times([one["total"] for one in analyses.values()])])
    rows.append(["peak memory, GiB", *(x for a in analyses.values() for x in (f"{a['peak_bytes'] / 2**30:.2f}", ""))])
    yield from _table(header, rows)
    yield ""
    scipy = measured["scipy"]
    rows = [
        ("scipy time / ours, wall", _spread(scipy["wall"]["ratio"]), "at least 30"),
        ("scipy time / ours, CPU", _spread(scipy["cpu"]["ratio"]), "at least 30"),
    ]
    yield (
        f"`scipy.stats.bootstrap` of leakage and its allocation in one layer, from the data of resampled documents; "
        f"{size['scipy_replicates']} replicates, scaled to {size['replicates']}. Replicates agree to "
        f"{scipy['largest_relative_difference']:.1e}."
    )
    yield ""
    yield from _table(("", "measured", "target"), rows)


_SECTIONS = {
    "forward": _forward,
    "eager": _eager,
    "transformer_lens": _lens,
    "memory": _memory,
    "estimators": _estimators,
}
