"""What the examples in docstrings are run with."""

import pytest


@pytest.fixture(autouse=True)
def setting_of_examples(request):
    """An empty folder; and where examples record a model, a tiny one called `model` with its `tokenizer`."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    if request.node.name.startswith("posstats.dumping."):
        from tests import tiny

        names = request.getfixturevalue("doctest_namespace")
        names |= {"model": tiny.build("llama"), "tokenizer": tiny.tokenizer()}
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
