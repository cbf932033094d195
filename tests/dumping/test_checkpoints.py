"""Off a terminal nothing is drawn."""

import sys

from transformers import modeling_gguf_pytorch_utils as converter

from posstats.dumping.model.checkpoints import _no_bar_off_a_terminal


def test_conversion_draws_a_bar_on_a_terminal_only(capsys, monkeypatch):
    bar = converter.tqdm
    with _no_bar_off_a_terminal():
        assert list(converter.tqdm(range(3), desc="Converting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    assert converter.tqdm is bar
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with _no_bar_off_a_terminal():
        assert converter.tqdm is bar
