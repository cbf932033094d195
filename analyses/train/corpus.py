"""Text that every installation has: Python's own help topics and the docstrings of pinned dependencies."""

import ast
import hashlib
import importlib.metadata
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Distributions whose docstrings are read; `constraints.txt` pins them, so the text is the same everywhere.
DISTRIBUTIONS = ("dask", "h5py", "matplotlib", "networkx", "numpy", "pandas", "scipy", "statsmodels", "xarray")
#: Characters below which a text is left out: too short for a crop of 256 tokens.
SHORTEST = 2000
#: Every so many documents one is held out of training.
HELD_OUT = 20
_NOT_DOCUMENTATION = {"tests", "test", "testing", "_testing", "_vendor", "vendor", "vendored"}
_HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts by document, those that are trained on and those that are held out.

    Attributes
    ----------
    train, held_out : mapping of str to str
        Label of a document -> its text.
    sha256 : str
        Digest of all labels and texts.
    """

    train: Mapping[str, str]
    held_out: Mapping[str, str]
    sha256: str

    def facts(self) -> dict[str, object]:
        """What is to be kept about it beside a training run."""
        return {
            "sources": ["pydoc_data.topics", *(f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS)],
            "documents": len(self.train),
            "characters": sum(map(len, self.train.values())),
            "held_out_documents": len(self.held_out),
            "sha256": self.sha256,
        }


def read_corpus() -> Corpus:
    """Read the texts, in an order that depends on their labels only."""
    texts = dict(_documents())
    digest = hashlib.sha256()
    for label, text in texts.items():
        digest.update(f"{label}\n{len(text)}\n{text}\n".encode())
    held_out = set(list(texts)[::HELD_OUT])
    return Corpus(
        {label: text for label, text in texts.items() if label not in held_out},
        {label: text for label, text in texts.items() if label in held_out},
        digest.hexdigest(),
    )


def _documents() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        if len(topics[name]) >= SHORTEST:
            yield f"pydoc_data.topics/{name}", topics[name]
    for name in DISTRIBUTIONS:
        files = importlib.metadata.files(name) or ()
        for file in sorted(files, key=lambda file: file.as_posix()):
            if file.suffix == ".py" and not _NOT_DOCUMENTATION.intersection(file.parts) and ".." not in file.parts:
                text = docstrings(Path(str(file.locate())).read_text(encoding="utf-8"))
                if len(text) >= SHORTEST:
                    yield file.as_posix(), text


def docstrings(source: str) -> str:
    r"""All docstrings of a module, in the order of its lines, without running it.

    Examples
    --------
    >>> docstrings("'''About.'''\ndef f():\n    '''What it does.'''\n")
    'About.\n\nWhat it does.'
    """
    with warnings.catch_warnings():
        # Invalid escapes in other people's strings are theirs to mend.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(source)
    found = [
        (getattr(node, "lineno", 0), text)
        for node in ast.walk(tree)
        if isinstance(node, _HAS_DOCSTRING) and (text := ast.get_docstring(node))
    ]
    return "\n\n".join(text for _, text in sorted(found, key=lambda entry: entry[0]))
