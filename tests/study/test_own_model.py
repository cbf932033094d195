"""A model of one's own through make and the command line: where its BOS token, its length and its results come from."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import transformers

import posstats as ps
from posstats.dataset.store import write_dump
from tests import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose tokenizer has no BOS token, as that of Qwen has none."""
    folder = tmp_path_factory.mktemp("own") / "model"
    tiny.build("qwen2", max_position_embeddings=64).save_pretrained(folder)
    backend = tiny.tokenizer().backend_tokenizer
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def config(model, tmp_path):
    """A configuration that asks one question of it."""
    shutil.copy(ROOT / "analyses" / "leakage_shares.py", tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(
        f'[model]\nname = "{model}"\n[sequences]\nn = 6\nlength = 16\n[dumps.one]\n[record]\noffsets = [0, 1]\n'
        '[inference]\nmethod = "t"\nn_permutations = 19\n[analyses]\nfiles = ["leakage_shares.py"]\n'
        f'[run]\ndumps = "{tmp_path / "dumps"}"\nresults = "{tmp_path / "results"}"\n'
    )
    return path


class TestBosToken:
    def test_analysed_and_reported_with_the_token_that_is_named(self, run, mistake, config, tmp_path):
        line = mistake("analyze", "--config", config)
        for said in ("--bos-token", "BOS_TOKEN=", "sequences.bos_token", "ends a text", "<eos>"):
            assert said in line

        code, out, err = run("analyze", "--config", config, "--bos-token", "<eos>")
        assert code == 0, err
        assert "BOS <eos>" in out
        code, out, err = run("report", "--config", config, "--bos-token", "<eos>")
        assert code == 0, err
        page = Path(out.strip().removeprefix("report: "))
        assert "BOS &lt;eos&gt;" in page.read_text(encoding="utf-8")

        # Another token is another recording, which leaves the first as it is.
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        assert run("analyze", "--config", config, "--bos-token", 5, "-q")[0] == 0
        assert all(file.read_bytes() == content for file, content in before.items())
        mistake("report", "--config", config, "--bos-token", "w7")

    def test_mistakes(self, mistake, config, tmp_path):
        assert "'nothing' is not in the vocabulary" in mistake("analyze", "--config", config, "--bos-token", "nothing")
        named = mistake("analyze", tmp_path / "d.h5", "--config", config, "--bos-token", "<eos>")
        assert "leave out --bos-token" in named
        config.write_text(config.read_text().replace("length", "bos = false\nlength"))
        assert "bos = false asks for none" in mistake("analyze", "--config", config, "--bos-token", "<eos>")


class TestModels:
    def test_its_bos_token_has_to_be_chosen(self, run, model):
        out = run("models", model)[1]
        assert "BOS token" in out
        assert "has no BOS token: choose one, mostly the token that ends a text, by spelling or id (--bos-token" in out
        assert "special tokens are <eos>, <|endoftext|>, <pad>" in out

    def test_a_tokenizer_that_has_one_and_none(self, run, tmp_path):
        tiny.build("llama").save_pretrained(tmp_path)
        assert "holds no tokenizer" in run("models", tmp_path)[2]
        tiny.tokenizer().save_pretrained(tmp_path)
        assert json.loads(run("models", tmp_path, "--json")[1])["bos_token"] == "<bos>"

    def test_files_of_a_tokenizer_that_are_missing(self, mistake, model, tmp_path):
        for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
            shutil.copy(model / name, tmp_path)
        (tmp_path / "tokenizer_config.json").write_text("{}")
        assert "this tokenizer has no ordinary tokens" in mistake("models", tmp_path)
        said = mistake("dump", tmp_path / "d.h5", "--model", tmp_path, "--no-bos", "-t", 16)
        assert "are its files, such as tokenizer.json, beside" in said

    def test_at_the_longest_length_that_the_model_allows(self, run, model):
        code, out, err = run("models", model)
        assert (code, err) == (0, "")
        assert "a sequence of 64 tokens, the longest it allows, per condition" in out
        assert json.loads(run("models", model, "--json")[1])["length"] == 64
        assert "the longest" not in run("models", model, "-t", 64)[1]
        assert run("models", model, "-t", 192)[0] == 2


def test_the_question_of_ones_own_that_the_document_asks(run, tmp_path):
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    code, toml = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "toml"))
    (tmp_path / "first_layer.py").write_text(code)
    shutil.copy(ROOT / "analyses" / "leakage_shares.py", tmp_path)
    settings = '[dumps.one]\n[inference]\nmethod = "t"\nn_permutations = 99\n[run]\nworkers = 1\n'
    (tmp_path / "mine.toml").write_text(toml + settings)
    write_dump(ps.simulate(n=25, length=32, layers=2, offsets=(0, 1), seed=0).dataset, tmp_path / "d.h5")
    code, out, err = run("analyze", tmp_path / "d.h5", "--config", tmp_path / "mine.toml", "--results", tmp_path)
    assert code == 0, err
    estimate = re.search(r"^d +mask share of layer 0 +fraction +([\d.]+) ", out, re.MULTILINE)
    assert estimate, out
    assert (tmp_path / "dumps-d" / "d" / "first_layer" / "first_layer.csv").is_file()


def make(*words):
    # As from a terminal, also where the tests are run by make.
    own = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    command = ["make", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["analyze", "report"])
def test_make_quotes_what_it_hands_on(target):
    answer = make("-n", target, "MODEL=org/name", "BOS_TOKEN=<|endoftext|>", "PROFILE=quick")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.replace("\\\n", " ").splitlines()
    command = next(line for line in lines if f"posstats {target} " in line).split()
    assert command[2:] == [
        "--config", '"analyses/default.toml"', "--profile", '"quick"', "--model", '"org/name"',
        "--bos-token", "'<|endoftext|>'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("named", "what"),
    [
        ("MODEL=./none", "./none"),
        ("MODEL=../no ne/x", "../no ne/x"),
        ("MODEL=/none/at/all", "/none/at/all"),
        ("MODEL=none/at/all", "none/at/all"),
        ("MODEL=~/none", f"{Path.home()}/none"),
        ("MODEL=none.gguf", "none.gguf"),
        ("CONFIG=analyses/none.toml", "file analyses/none.toml"),
        ("CONFIG=analyses", "file analyses"),
    ],
)
def test_make_tells_what_is_not_there_before_it_installs_anything(named, what, tmp_path):
    answer = make("analyze", named, f"VENV={tmp_path / 'venv'}")
    assert (answer.returncode, answer.stdout) == (2, "")
    said, its_own = answer.stderr.splitlines()
    assert said.startswith(f"there is no {what}: {named.partition('=')[0]} is ")
    assert its_own.startswith("make: ***")
    assert not (tmp_path / "venv").exists()


def test_make_leaves_hub_ids_and_what_is_there_alone(model, tmp_path):
    (tmp_path / "a b.gguf").touch()
    for named in ("", "org/name", "smollm2-135m", model, tmp_path / "a b.gguf", "./tests"):
        answer = make("given", f"MODEL={named}")
        assert (answer.returncode, answer.stderr) == (0, ""), named
