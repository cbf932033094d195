"""Results that are kept: computed again only where what they rest on, or one of their files, has changed."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posstats.execution.files import replacing
from posstats.execution.provenance import file_digest


def keep(manifest: Path, rests_on: Mapping[str, Any], files: Iterable[Path], **facts: Any) -> None:
    """Declare a result current, once all of its files are written beside the manifest.

    `rests_on` is what the result depends on (digests, settings), `facts` are kept with it; both as JSON. Remove the
    manifest before the files of an earlier result change.
    """
    digests = {path.name: file_digest(path) for path in sorted(files)}
    record = {"digest": _digest(rests_on), "rests_on": rests_on, "files": digests, **facts}
    with replacing(manifest) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def kept(manifest: Path, rests_on: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what :func:`keep` wrote, if the result is current.

    None where it has to be computed: there is none, what it would rest on now is different, the manifest is damaged, or
    a file of the result is missing or is not as it was written.
    """
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        same = record["digest"] == _digest(rests_on) and all(
            file_digest(manifest.parent / name) == digest for name, digest in record["files"].items()
        )
        return dict(record) if same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest(rests_on: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(rests_on, sort_keys=True).encode()).hexdigest()


def rested_on(manifest: Path) -> dict[str, Any]:
    """Return what the result that is there rests on; empty where there is none, or its manifest is damaged."""
    try:
        return dict(json.loads(manifest.read_text(encoding="utf-8"))["rests_on"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
