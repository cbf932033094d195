"""Fixtures shared by all tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model():
    """The real pretrained default model with its tokenizer, converted once under data/models/."""
    import posstats as ps

    return ps.load_model(models_dir=Path(__file__).parents[1] / "data" / "models")
