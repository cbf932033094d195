"""The methods paragraph of a paper, with the settings of these results filled in."""

from collections.abc import Sequence

from posstats.report.reading import Recording, Results, WrittenTable
from posstats.study.config import AnalysisConfig

#: Table -> what was done, in the order of the paragraph. Definitions are those of docs/method.md.
_SENTENCES = {
    "leakage": "Absolute-position leakage is the part of log attention that, at a fixed offset, varies with the "
    "query's position over the queries max offset < i < Q; it is estimated without bias from products of different "
    "documents, so that content does not count as position, and summed over offsets, heads and layers. ",
    "shares": "The share of a term is its product with log attention over that of log attention with itself, a ratio "
    "of sums over heads and layers, which for additive terms is the Shapley (LMG) allocation of leakage. ",
    "magnitude": "The magnitude of a term in a bin of queries is the same product of the term itself, which is a "
    "departure from the steady state; early queries are 2 <= i < 16. ",
    "removal": "The removal by a condition that replaces BOS is 1 - magnitude(condition) / magnitude(baseline) of the "
    "residual-stream terms, on the same sequences. ",
    "position_tests": "Per head, log attention and its terms were regressed on log2(i + 1), with a fixed effect per "
    "offset and errors clustered by document, linearly and with a natural cubic spline of 3 degrees of freedom. ",
    "sinks": "Sink-reading heads have a mean attention on position 0 above 0.3 over the queries i >= 16, tested over "
    "all heads. ",
    "trajectory": "The trajectory of position 0, its residual stream after each block, was compared with that of the "
    "same input run alone, and between and within first tokens. ",
    "readers": "Which heads read that trajectory was tested by replacing it, from a depth on, by that of another token "
    "run alone, and measuring how far the residual-stream terms move. ",
    "controls": "Controls whose answer is known, a shift of all position ids or a sequence of one repeated token, were "
    "computed from the same recordings. ",
}
_PAPER = """@misc{ruscio2026absolute,
  title         = {Where does Absolute Position come from in decoder-only Transformers?},
  author        = {Ruscio and Nanni and Silvestri},
  year          = {2026},
  eprint        = {2606.06160},
  archivePrefix = {arXiv}
}"""


def methods_paragraph(results: Results, config: AnalysisConfig) -> str:
    """Write the methods paragraph, plain text.

    What its numbers rest on is read from the footnotes of the tables and from the recordings; the number of sign flips
    and the seed from the configuration.
    """
    inference = config.inference
    tables = [table for answer in results.answers for table in answer.tables.values()]
    names = {table.name for table in tables}
    text = "".join(
        _recorded(name, results.described[name].description, recording)
        for name, recording in results.recordings.items()
    )
    recorded = [table.table.settings["offsets"] for table in tables if table.table.settings.get("offsets")]
    offsets = " or ".join(dict.fromkeys(f"{', '.join(map(str, one))} tokens" for one in recorded))
    at = f" At the offsets {offsets}," if offsets else " At every recorded offset d,"
    text += (
        f"{at.lstrip()} log attention log A[i, i-d] was decomposed exactly into four additive terms: relative "
        "(log attention in the steady state, the mean over queries of the last quarter of the sequence), mask (the "
        "departure of the number of visible keys from it), and the residual-stream terms sink (how position 0 is read) "
        "and redistribution (how attention is shared out among the other keys). "
    )
    text += "".join(sentence for table, sentence in _SENTENCES.items() if table in names)
    intervals = _grouped(tables, "intervals")
    text += "The resampling unit of every interval and test is the document. "
    text += f"All intervals are {100 * results.level:g}% intervals"
    text += f" ({intervals}). " if intervals else ". "
    nulls = _grouped(tables, "p")
    text += f"p-values, with their null hypotheses: {nulls}. " if nulls else ""
    if "sign-flip" in nulls:
        text += (
            f"Sign-flip tests draw {inference.n_permutations} random flips of whole documents, p = (b + 1)/(n + 1). "
        )
    families = _grouped(tables, "q")
    text += f"q-values are adjusted within families: {families}. " if families else ""
    text += (
        f"All draws are seeded (seed {inference.seed}). The estimators are those of posstats; they are not the metric "
        "of arXiv:2606.06160, whose claims they are put to."
    )
    return text


def citation(version: str) -> str:
    """BibTeX of the paper whose claims are tested, and of the software whose estimators are used."""
    software = f"""@software{{posstats,
  title   = {{posstats: where absolute position comes from in decoder-only transformers}},
  version = {{{version}}}
}}"""
    return f"{_PAPER}\n\n{software}"


def _recorded(name: str, described: str, recording: Recording | None) -> str:
    """One sentence on a dump."""
    text = f"Recording {name}: {described}"
    if recording is not None:
        attributes, sizes = recording.attributes, recording.sizes
        facts = [str(attributes[key]) for key in ("architecture", "model_variant", "dtype") if attributes.get(key)]
        facts.append(f"{sizes['layer']} layers of {sizes['head']} heads")
        facts.append(f"conditions {', '.join(recording.conditions)}")
        made = [
            f"{library} {attributes[key]}"
            for library, key in (
                ("posstats", "posstats_version"), ("torch", "torch_version"), ("transformers", "transformers_version"),
            )
            if key in attributes
        ]  # fmt: skip
        facts += [f"recorded with {', '.join(made)}"] if made else []
        text += f"; {'; '.join(facts)}"
    return f"{text}. "


def _grouped(tables: Sequence[WrittenTable], what: str) -> str:
    """What tables say of intervals, tests or families, with the titles of those that say the same."""
    titles: dict[str, dict[str, None]] = {}
    for table in tables:
        if stated := table.table.rests_on.get(what):
            titles.setdefault(stated, {})[table.title[:1].lower() + table.title[1:]] = None
    return "; ".join(f"{', '.join(names)}: {stated}" for stated, names in titles.items())
