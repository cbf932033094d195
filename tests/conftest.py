"""Fixtures shared by all tests."""

import sys
from pathlib import Path

import pytest

from posstats.cli import main


@pytest.fixture(scope="session")
def default_model():
    """The real pretrained default model with its tokenizer, converted once under data/models/."""
    import posstats as ps

    return ps.load_model(models_dir=Path(__file__).parents[1] / "data" / "models")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["posstats", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call
