"""Versions and digests: what the recordings, the numbers and the page were made with."""

import importlib.metadata
import platform
from html import escape

from posstats._version import __version__
from posstats.execution.provenance import LIBRARIES
from posstats.report.elements import paragraphs
from posstats.report.reading import Results

#: Attributes in front; the others follow by name.
_FIRST = (
    "model", "model_revision", "model_kind", "model_variant", "weights_sha256", "settings_sha256", "posstats_version",
    "torch_version", "transformers_version", "dtype", "attention_path", "tokenizer", "bos_token", "sequences",
)  # fmt: skip
_LONGEST = 160
_UNKNOWN = (
    "The file of this recording was not there when the page was written; its versions and digests are not known here."
)


def environment_html(results: Results) -> str:
    """Return what each dump says of its making, the digests of the answers, and the versions that write the page."""
    parts = []
    for name, recording in results.recordings.items():
        parts.append(f"<h3>Recording {escape(name)}</h3>")
        if recording is None:
            parts.append(paragraphs([_UNKNOWN], "absent"))
            continue
        facts = {"file": recording.path.name} | dict(
            sorted(
                recording.attributes.items(),
                key=lambda entry: (_FIRST.index(entry[0]) if entry[0] in _FIRST else len(_FIRST), entry[0]),
            )
        )
        parts.append(_facts({key: _plain(value) for key, value in facts.items()}))
    digests = {f"{one.question} of {one.dump}": one.digest for one in results.answers}
    versions = {"Python": platform.python_version(), "posstats": __version__}
    versions |= {name: importlib.metadata.version(name) for name in LIBRARIES}
    parts += [
        "<h3>Answers</h3>",
        paragraphs(
            ["SHA-256 over the recording, the settings, the code and the library versions each answer rests on."]
        ),
        _facts(digests),
        "<h3>This page was written with</h3>",
        _facts(versions),
    ]
    return "".join(parts)


def _facts(facts: dict[str, str]) -> str:
    entries = "".join(
        f'<div><dt>{escape(key)}</dt><dd title="{escape(value)}">{escape(_short(value))}</dd></div>'
        for key, value in facts.items()
    )
    return f'<dl class="facts">{entries}</dl>'


def _plain(value: object) -> str:
    return str(value.tolist() if hasattr(value, "tolist") else value) or "–"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
