"""The walkthrough notebook, executed in an empty folder; ``python -m tests.walkthrough`` writes its outputs anew."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "analyses" / "walkthrough.ipynb"


def execute(folder):
    """The notebook with the outputs it has in a folder, of which nothing names the machine or the time."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, record_timing=False, resources=place).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.clear()
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        NOTEBOOK.write_text(nbformat.writes(execute(empty)) + "\n", encoding="utf-8")
