"""What results rest on beside data and settings: this package's own source and the libraries it computes with."""

import hashlib
import importlib.metadata
import json
from functools import cache
from pathlib import Path

#: What results are computed and drawn with.
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "xarray", "dask", "matplotlib")


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def versions() -> dict[str, str]:
    """Return what this process computes with, by name; of this package itself a digest of its source.

    Processes for which it is the same compute the same results.
    """
    package = Path(__file__).parents[1]  # all of posstats, not this room alone
    source = "\n".join(f"{path.relative_to(package)} {file_digest(path)}" for path in sorted(package.rglob("*.py")))
    own = hashlib.sha256(source.encode()).hexdigest()
    return {"posstats": own} | {name: importlib.metadata.version(name) for name in LIBRARIES}


def code_digest() -> str:
    """Return the SHA-256 of :func:`versions`: results that rest on the same data and digest are the same."""
    return hashlib.sha256(json.dumps(versions(), sort_keys=True).encode()).hexdigest()
