"""The page itself: what is in it, in which order."""

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from posstats._version import __version__
from posstats.report.claims import claims_html
from posstats.report.elements import downloads, figure_html, identifier, paragraphs, table_html
from posstats.report.environment import environment_html
from posstats.report.heads import heads_html
from posstats.report.methods import citation, methods_paragraph
from posstats.report.reading import Results, WrittenTable
from posstats.results.columns import COLUMNS
from posstats.study.config import AnalysisConfig
from posstats.tables.headline import SIMULATED

#: What the description of a dump ends with where intervals rest on few or repeated documents.
_FEW = re.compile(r"; ((?:\d+ of \d+ documents have |only \d+ documents: )[^;]*(?:; only \d+ documents: [^;]*)?)$")
#: A headline quantity of ours, whole and with its condition -> what it says, for the tiles on top.
_TILES = {
    r"leakage": "how much absolute position log attention carries, over all heads and layers",
    r"mask share": "of that leakage comes from the causal mask",
    r"residual share": "of that leakage comes from the residual stream",
    r"early removal by bos=\S+": "of the residual magnitude at early queries goes when BOS is replaced; the paper's "
    "abstract reports 0.40",
}


def write_report(results: Results, config: AnalysisConfig, path: Path, *, outdated: Sequence[str] = ()) -> Path:
    """Write the results of an analysis as one HTML page that needs no network and no other file.

    Parameters
    ----------
    results : Results
        Of :func:`posstats.report.reading.read_results`.
    config : AnalysisConfig
        The configuration of the analysis.
    path : Path
        The page; the same results give the same bytes.
    outdated : sequence of str
        Answers computed with code or library versions that have changed since; they are named on top of the page.

    Returns
    -------
    Path
        `path`.
    """
    source = files("posstats.report")
    sections = {
        "headline": ("Headline numbers", _headline(results)),
        "claims": ("Claims", claims_html(results)),
        "figures": ("Figures", _figures(results)),
        "heads": ("Heads", _heads(results)),
        "tables": ("All tables", _tables(results)),
        "methods": ("Methods", f'<p class="quote">{escape(methods_paragraph(results, config))}</p>'),
        "citation": ("Citation", _citation()),
        "environment": ("Environment", environment_html(results)),
    }
    models = dict.fromkeys(re.split(r", \d+ sequences of ", text)[0] for text in results.described.values())
    rehearsed = [name for name, text in results.described.items() if text.startswith(f"{SIMULATED}, ")]
    page = Template((source / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"Absolute position in {', '.join(models)}"),
        style=(source / "page.css").read_text(encoding="utf-8"),
        script=(source / "page.js").read_text(encoding="utf-8"),
        navigation="".join(f'<li><a href="#{key}">{title}</a></li>' for key, (title, _) in sections.items()),
        recordings="".join(
            f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in results.described.items()
        ),
        warnings=_warnings(results, outdated, rehearsed),
        body="\n".join(
            f'<section id="{key}" aria-labelledby="title-{key}">\n<h2 id="title-{key}">{title}</h2>\n'
            f"{content}\n</section>"
            for key, (title, content) in sections.items()
        ),
        version=escape(__version__),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _warnings(results: Results, outdated: Sequence[str], rehearsed: Sequence[str]) -> str:
    simulated = [f"No model was recorded for {', '.join(rehearsed)}: the data are simulated, of known truth."]
    few = [f"{name}: {found[1]}." for name, text in results.described.items() if (found := _FEW.search(text))]
    missing = [f"Not among these results: {', '.join(results.missing)}."] if results.missing else []
    stale = [f"Computed with code or library versions that have changed since: {', '.join(outdated)}."]
    stale = stale if outdated else []
    return paragraphs([*(simulated if rehearsed else []), *few, *missing, *stale], "warning")


def _headline(results: Results) -> str:
    table, parts = results.headline, []
    for name in results.described:
        rows = table.find(dump=name)
        documents = re.search(r" from (\d+) documents", results.described[name])
        parts += [
            f"<h3>{escape(name)}</h3>",
            paragraphs([f"n = {documents[1]} documents."] if documents else []),
            f'<ul class="tiles">{"".join(_tile(table, row, results.level) for row in rows)}</ul>',
            table_html(table, f"Headline numbers of {name}", rows=rows, leave_out=["dump"], kind="cards"),
        ]
    return "".join(parts) + paragraphs(table.notes) + downloads(table, f"{results.folder.name}-{table.name}")


def _tile(table: WrittenTable, row: int, level: float) -> str:
    raw, shown = table.raw[row], table.shown[row]
    meaning = next((text for name, text in _TILES.items() if re.fullmatch(name, raw["quantity"])), None)
    if meaning is None:
        return ""
    interval = f"{100 * level:g}% interval {shown['low']}" if raw["low"] else raw["note"]
    unit = "" if raw["unit"] in ("1", "fraction") else f" {shown['unit']}"
    return (
        f'<li><span class="name">{escape(raw["quantity"])}</span>'
        f'<span class="value" title="{escape(raw["estimate"])}">{escape(shown["estimate"] + unit)}</span>'
        f'<span class="interval">{escape(interval)}</span><span class="meaning">{escape(meaning)}</span></li>'
    )


def _figures(results: Results) -> str:
    parts = []
    for name in results.described:
        drawn = [
            figure_html(path, name) for one in results.answers if one.dump == name for path in one.figures.values()
        ]
        if drawn:
            parts.append(f'<h3>{escape(name)}</h3><div class="figures">{"".join(drawn)}</div>')
    return "".join(parts) or '<p class="absent">No figure is among these results.</p>'


def _heads(results: Results) -> str:
    parts = []
    for name in results.described:
        tables = results.tables(name)
        found = heads_html(tables, name, results.level)
        if not found:
            continue
        parts += [f"<h3>{escape(name)}</h3>", found]
        parts.append(paragraphs(["Every number by head, condition and term, of which the table shows the baseline's:"]))
        for key, table in tables.items():
            if _by_head(table):
                parts.append(paragraphs([f"{table.title} ({key}). {' '.join(table.notes)}"]))
                parts.append(downloads(table, f"{name}-{key}", ["csv"]))
    return "".join(parts) or '<p class="absent">No table among these results is by head.</p>'


def _tables(results: Results) -> str:
    used: dict[str, None] = dict.fromkeys(results.headline.headings)
    parts = []
    for name in results.described:
        parts.append(f"<h3>{escape(name)}</h3>")
        for key, table in results.tables(name).items():
            used |= dict.fromkeys(table.headings)
            if _by_head(table) or key == "claims":
                continue
            parts.append(
                f'<details id="{identifier("table", name, key)}"><summary>{escape(table.title)} '
                f"({escape(key)}, {len(table.raw)} rows)</summary>"
                f"{table_html(table, f'{table.title}: {key} of {name}')}{paragraphs(table.notes)}"
                f"{downloads(table, f'{name}-{key}')}</details>"
            )
    meanings = "".join(
        f"<div><dt>{escape(column.replace('_', ' '))}</dt><dd>{escape(COLUMNS[column])}</dd></div>"
        for column in COLUMNS
        if column in used
    )
    explained = f"<details><summary>What each column means</summary><dl class='facts'>{meanings}</dl></details>"
    return f"{explained}{''.join(parts)}"


def _by_head(table: WrittenTable) -> bool:
    return {"layer", "head"} <= set(table.headings)


def _citation() -> str:
    return (
        "<p>The claims are those of Ruscio, Nanni &amp; Silvestri, “Where does Absolute Position come from in "
        'decoder-only Transformers?” (<a href="https://arxiv.org/abs/2606.06160">arXiv:2606.06160</a>). The estimators '
        "are ours, made from the paper's abstract; they are not the paper's metric, and numbers need not agree with "
        f"its.</p><pre tabindex='0'>{escape(citation(__version__))}</pre>"
    )
