import io
import logging

import pytest

from posstats.execution import progress as module
from posstats.execution.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_with_the_time_left_on_a_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with progress("dump a.h5", 4, unit="sequence") as bar:
        for _ in range(4):
            bar.update()
    assert "dump a.h5" in screen.getvalue()
    assert "4/4" in screen.getvalue()


@pytest.mark.parametrize("every", [0.0, 1000.0])
def test_a_quiet_line_elsewhere(monkeypatch, caplog, every):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(module, "LOG_EVERY", every)
    with caplog.at_level(logging.INFO, "posstats"), progress("dump a.h5", 4, unit="piece", done=1) as bar:
        bar.update(2)
        bar.update()
    lines = [record.message for record in caplog.records]
    expected = [f"dump a.h5: {done} of 4 pieces, 0 s left" for done in (3, 4)]
    assert lines == (expected if every == 0 else [])


def test_silence(monkeypatch, caplog):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with caplog.at_level(logging.INFO), progress("dump", 4, unit="sequence", show=False) as bar:
        bar.update()
    assert screen.getvalue() == caplog.text == ""
