"""Versions and digests: what the recordings, the numbers and the page were made with."""

import importlib.metadata
import platform

from posstats._version import __version__
from posstats.execution.provenance import LIBRARIES
from posstats.report.reading import Recording

#: Attributes in front; the others follow by name.
_FIRST = (
    "model", "model_revision", "model_kind", "model_variant", "weights_sha256", "settings_sha256", "posstats_version",
    "torch_version", "transformers_version", "dtype", "attention_path", "tokenizer", "bos_token", "sequences",
)  # fmt: skip


def facts_of(recording: Recording) -> dict[str, str]:
    """Return what the file of a dump says of its making."""
    attributes = recording.attributes
    names = [*filter(attributes.__contains__, _FIRST), *sorted(attributes.keys() - set(_FIRST))]
    return {"file": recording.path.name} | {name: _plain(attributes[name]) for name in names}


def versions() -> dict[str, str]:
    """Return the versions that write the page."""
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"Python": platform.python_version(), "posstats": __version__} | libraries


def _plain(value: object) -> str:
    return str(value.tolist() if hasattr(value, "tolist") else value) or "–"
