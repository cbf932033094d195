"""The page itself: what is in it, in which order."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posstats._version import __version__
from posstats.report.claims import claims_html
from posstats.report.elements import render
from posstats.report.environment import facts_of, versions
from posstats.report.heads import heads_html
from posstats.report.methods import citation, methods_paragraph
from posstats.report.reading import Results
from posstats.study.config import AnalysisConfig

#: A headline quantity, whole or as it begins before the name of a condition -> what it says, for the tiles on top.
_TILES = {
    "leakage": "how much absolute position log attention carries, over all heads and layers",
    "mask share": "of that leakage comes from the causal mask",
    "residual share": "of that leakage comes from the residual stream",
    "early removal by bos=": "of the residual magnitude at early queries goes when BOS is replaced; the paper's "
    "abstract reports 0.40",
}


def write_report(results: Results, config: AnalysisConfig, path: Path, *, outdated: Sequence[str] = ()) -> Path:
    """Write the results of an analysis as one HTML page that needs no network and no other file; return `path`.

    The same results give the same bytes. `outdated` are answers computed with code or library versions that have
    changed since; they are named on top of the page.
    """
    described = results.described
    tables = {name: results.tables(name) for name in described}
    used = set(results.headline.headings).union(*(table.headings for by in tables.values() for table in by.values()))
    heads = {name: heads_html(tables[name], name, results.level) for name in described}
    page = render(
        "page.html",
        results=results,
        title=f"Absolute position in {', '.join(dict.fromkeys(dump.model for dump in described.values()))}",
        warnings=_warnings(results, outdated),
        tiles=lambda rows: _tiles(results, rows),
        claims=claims_html(results),
        heads={name: text for name, text in heads.items() if text},
        used=used,
        methods=methods_paragraph(results, config),
        citation=citation(__version__),
        facts_of=facts_of,
        digests={f"{answer.question} of {answer.dump}": answer.digest for answer in results.answers},
        versions=versions(),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{page}\n", encoding="utf-8", newline="\n")
    return path


def _warnings(results: Results, outdated: Sequence[str]) -> Iterator[str]:
    if simulated := [name for name, dump in results.described.items() if dump.simulated]:
        yield f"No model was recorded for {', '.join(simulated)}: the data are simulated, of known truth."
    for name, dump in results.described.items():
        if dump.warnings:
            yield f"{name}: {'; '.join(dump.warnings)}."
    if results.missing:
        yield f"Not among these results: {', '.join(results.missing)}."
    if outdated:
        yield f"Computed with code or library versions that have changed since: {', '.join(outdated)}."


def _tiles(results: Results, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The numbers that stand out, of those rows of the headline table that the page has words for."""
    table = results.headline
    for row in rows:
        raw, shown = table.raw[row], table.shown[row]
        name, equals, condition = raw["quantity"].partition("=")
        if (meaning := _TILES.get(name + equals)) and " " not in condition:
            yield {
                "name": raw["quantity"],
                "exact": raw["estimate"],
                "value": shown["estimate"] + ("" if raw["unit"] in ("1", "fraction") else f" {shown['unit']}"),
                "interval": f"{100 * results.level:g}% interval {shown['low']}" if raw["low"] else raw["note"],
                "meaning": meaning,
            }
