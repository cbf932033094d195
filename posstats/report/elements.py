"""The templates of the page, and what they fill in of files: everything is escaped."""

import base64
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from posstats.report.captions import caption_of
from posstats.results.columns import COLUMNS

_MEDIA = {
    "csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex", "png": "image/png", "pdf": "application/pdf",
}  # fmt: skip


def data_uri(path: Path) -> str:
    """Return the content of a file as a ``data:`` URI."""
    return f"data:{_MEDIA[path.suffix[1:]]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def identifier(*parts: str) -> str:
    """Return an id of an element made from names.

    >>> identifier("figure", "random", "shares_by_layer")
    'figure-random-shares-by-layer'
    """
    return re.sub(r"[\W_]+", "-", "-".join(parts).lower()).strip("-")


_TEMPLATES = Environment(
    loader=PackageLoader("posstats.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"data_uri": data_uri, "caption": caption_of}
_TEMPLATES.globals |= {"identifier": identifier, "meanings": COLUMNS}


def render(template: str, **values: Any) -> Markup:
    """Return a template of ``posstats/report/templates`` with values filled in, as HTML that is escaped no further."""
    return Markup(_TEMPLATES.get_template(template).render(values))
