"""Versions and digests: what the recordings, the numbers and the page were made with."""

import importlib.metadata
import platform

from posstats._version import __version__
from posstats.execution.provenance import LIBRARIES
from posstats.report.reading import Recording, Results

#: Attributes in front; the others follow by name.
_FIRST = (
    "model", "model_revision", "model_kind", "model_variant", "weights_sha256", "settings_sha256", "posstats_version",
    "torch_version", "transformers_version", "dtype", "attention_path", "tokenizer", "bos_token", "sequences",
)  # fmt: skip


def recordings_of(results: Results) -> dict[str, dict[str, str] | None]:
    """Return what the file of each dump says of its making; None where it is not here."""
    return {name: recording and _facts(recording) for name, recording in results.recordings.items()}


def versions() -> dict[str, str]:
    """Return the versions that write the page."""
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"Python": platform.python_version(), "posstats": __version__} | libraries


def _facts(recording: Recording) -> dict[str, str]:
    attributes = recording.attributes
    names = [*filter(attributes.__contains__, _FIRST), *sorted(attributes.keys() - set(_FIRST))]
    return {"file": recording.path.name} | {name: _plain(attributes[name]) for name in names}


def _plain(value: object) -> str:
    return str(value.tolist() if hasattr(value, "tolist") else value) or "–"
