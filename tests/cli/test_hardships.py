"""What befalls a recording under way, through the command line: one line says it, and nothing finished is lost."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests import tiny

WHAT = ("--model", "model", "-n", "24", "-t", "64", "-c", "baseline", "-c", "bos=mean", "-d", "0", "-d", "1",
        "--batch-size", "1")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model, the same with a weight that is not a number, and with one whose logits overflow."""
    folder = tmp_path_factory.mktemp("hardships")
    model = tiny.build("llama")
    query = model.model.layers[1].self_attn.q_proj.weight
    sound = query.detach().clone()
    for name, factor in (("model", 1.0), ("damaged", float("nan")), ("huge", 1e38)):
        with torch.no_grad():
            query.copy_(sound * factor)
        model.save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    return folder


def posstats(folder, *arguments, **options):
    """Start the command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "posstats", *map(str, arguments)],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def ended(process):
    """Exit code, and what was said on stderr; nothing is printed, and no traceback shown."""
    out, err = process.communicate(timeout=300)
    assert out == ""
    assert "Traceback" not in err
    return process.returncode, err.rstrip()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("damaged", "weights of damaged hold values that are not finite, first in model.layers.1.self_attn.q_proj"),
        ("huge", "not finite"),
    ],
)
def test_numbers_that_are_none(mistake, folder, monkeypatch, model, message):
    monkeypatch.chdir(folder)
    assert message in mistake("dump", f"{model}.h5", *WHAT, "--model", model)
    assert not (folder / f"{model}.h5").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit stands for a full disk on Linux")
def test_a_disk_that_is_full_and_one_that_is_not(folder):
    code, err = ended(
        posstats(
            folder, "dump", "full.h5", *WHAT, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16,) * 2)
        )
    )
    assert code == 2
    assert err.splitlines()[-1].startswith("posstats: full.h5 is recorded, but could not be joined: ")
    assert "File too large; the pieces stay in full.h5.parts" in err
    assert not (folder / "full.h5").exists()
    assert ended(posstats(folder, "dump", "full.h5", *WHAT))[0] == 0


def test_an_interrupted_dump_says_what_is_safe(folder):
    # Where the tests run in the background of a shell, interrupts are ignored, and children inherit that.
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = posstats(folder, "dump", "stopped.h5", *WHAT, "-n", 600, **heeding)
    deadline = time.monotonic() + 120
    while not any((folder / "stopped.h5.parts").glob("*.piece")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 128 + signal.SIGINT
    assert "sequences are safe in stopped.h5.parts; the same dump, started again, goes on from there" in err
    assert any((folder / "stopped.h5.parts").glob("*.piece"))

    code, err = ended(posstats(folder, "inspect", "stopped.h5"))
    assert (code, "is not finished" in err) == (2, True)
