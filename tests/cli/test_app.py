"""The command line: help that teaches, one line per mistake with exit code 2, dumps and analyses that are reused."""

import importlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import typer
import xarray as xr

import posstats as ps
from posstats.cli.app import app, main
from posstats.dataset.store import parts_folder, write_dump
from posstats.errors import InputError
from posstats.vocabulary import SCHEMA_VERSION
from tests import tiny
from tests.sealed import sealed

COMMANDS = ["models", "dump", "inspect", "analyze", "claims", "report", "simulate", "bench"]
FEW = "only 6 documents: intervals are reliable from 24 documents on"
ANALYSIS = """
import posstats as ps
from posstats.study.analysis import Findings, Quantity

def analyse(ds, inference):
    leakage = ps.leakage(ds, octaves=False, **inference.options())
    return Findings({"leakage": leakage}, headline=[
        Quantity.of("leakage", leakage.units, leakage, condition="baseline")])
"""


def forget_torch(monkeypatch):
    """As where torch is not installed: neither it nor the dump wing can be imported, until the test is over."""
    importlib.import_module("posstats.dumping")
    # The package holds its dump wing, too, and has to get the same one back.
    monkeypatch.setattr(ps, "dumping", sys.modules["posstats.dumping"])
    for name in [name for name in sys.modules if name.startswith("posstats.dumping")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with its tokenizer, and a simulated dump."""
    folder = tmp_path_factory.mktemp("cli")
    tiny.build("llama").save_pretrained(folder / "model")
    tiny.tokenizer().save_pretrained(folder / "model")
    write_dump(ps.simulate(n=25, length=32, offsets=(0, 1), seed=0).dataset, folder / "simulated.h5")
    return folder


@pytest.fixture
def config(folder, tmp_path):
    """A configuration of the tiny model that writes to a folder of its own."""
    (tmp_path / "leakage.py").write_text(ANALYSIS)

    def write(n=6, permutations=19):
        path = tmp_path / "config.toml"
        path.write_text(
            f"""
            [model]
            name = "{folder / "model"}"
            [sequences]
            n = {n}
            length = 16
            [dumps.one]
            [record]
            offsets = [0, 1]
            [inference]
            n_permutations = {permutations}
            [analyses]
            files = ["leakage.py"]
            [run]
            dumps = "{tmp_path / "dumps"}"
            results = "{tmp_path / "results"}"
            """
        )
        return path

    return write


def parameters():
    commands = typer.main.get_command(app).commands
    return [(name, one) for name, command in commands.items() for one in command.params]


class TestHelp:
    def test_no_argument_shows_what_there_is(self, run):
        _, out, err = run()
        for name in COMMANDS:
            assert re.search(rf"^  {name} ", out + err, re.MULTILINE)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_command_explains_itself(self, run, name):
        code, out, _ = run(name, "--help")
        assert code == 0
        assert f"Usage: posstats {name}" in out
        assert re.search(rf"Examples:\n +posstats {name}", out)

    @pytest.mark.parametrize(
        ("words", "values"),
        [
            ("dump x.h5 --dtype float", ["float32", "float64", "float16"]),
            ("claims x.h5 --adjust b", ["bh", "by"]),
            ("analyze --profile q", ["quick"]),
            ("report --config mine.toml --profile ", ["slow", "slower"]),
            ("analyze --config none.toml --profile ", []),
        ],
    )
    def test_completion(self, tmp_path, words, values):
        """As the shell asks for it, in a clone's folder; nothing heavy is imported for it."""
        (tmp_path / "analyses").mkdir()
        (tmp_path / "analyses" / "default.toml").write_text("[profile.quick.run]\n[profile.full.run]\n")
        (tmp_path / "mine.toml").write_text("[profile.slow.run]\n[profile.slower.run]\n")
        given = ["posstats", *words.split(" ")]
        asked = {
            "_POSSTATS_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(given),
            "COMP_CWORD": str(len(given) - 1),
        }
        code = (
            "import sys\nfrom posstats.cli.app import main\nsys.argv = ['posstats']\ntry:\n    main()\nfinally:\n"
            "    print({'torch', 'scipy', 'pandas', 'xarray'} & set(sys.modules), file=sys.stderr)"
        )
        environment = os.environ | asked | {"PYTHONPATH": os.pathsep.join(sys.path)}
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
        )
        assert answer.stdout.split() == values
        assert answer.stderr == "set()\n"

    def test_every_option_is_explained(self):
        found = {(name, one.name): one for name, one in parameters()}
        assert set(COMMANDS) <= {name for name, _ in found}
        for one in found.values():
            help_text = getattr(one, "help", "")
            assert help_text, one.name
            assert len(help_text) > 8, one.name

    def test_every_option_of_a_dump_is_a_key_of_the_configuration_or_says_how_to_write(self):
        names = {one.name for name, one in parameters() if name == "dump"} - {"help"}
        keys = "model revision dtype ntk_factor sliding_window adapter untrained source text n length bos bos_token"
        how = "seed device batch_size models path overwrite shard scheduler shards dry_run as_json quiet"
        assert names == {*keys.split(), "condition", "offset", *how.split()}

    def test_version(self, run):
        assert run("--version") == (0, f"posstats {ps.__version__}\n", "")

    def test_an_unknown_option_is_a_mistake(self, run):
        code, _, err = run("inspect", "--what")
        assert code == 2
        assert "No such option" in err

    def test_as_a_module(self):
        answer = subprocess.run(
            [sys.executable, "-m", "posstats", "--version"], capture_output=True, text=True, check=True
        )
        assert answer.stdout == f"posstats {ps.__version__}\n"


class TestInspect:
    def test_says_what_is_there(self, run, folder):
        code, out, err = run("inspect", folder / "simulated.h5")
        assert (code, err) == (0, "")
        assert "a whole posstats dump" in out
        assert "25 of 32 tokens from 25 documents" in out
        assert "baseline" in out
        assert "windows" not in out  # a simulated dump has none

    def test_says_which_layers_have_windows_and_rotate(self, run, folder, tmp_path):
        with ps.open_dump(folder / "simulated.h5") as dataset:
            several = xr.concat([dataset] * 3, dim="layer", data_vars="minimal").assign(
                layer_window=("layer", np.array([8, 0, 8])), layer_rotary=("layer", np.ones(3, dtype=np.int8))
            )
            write_dump(sealed(several.assign_coords(layer=[0, 1, 2]).compute()), tmp_path / "d.h5")
        code, out, _ = run("inspect", tmp_path / "d.h5")
        assert code == 0
        assert re.search("^windows +8 tokens in layers 0, 2; none in layer 1$", out, re.MULTILINE)
        assert re.search("^rotary +yes in all 3 layers$", out, re.MULTILINE)
        assert json.loads(run("inspect", tmp_path / "d.h5", "--json")[1])["layer_window"] == [8, 0, 8]

    def test_json(self, run, folder):
        code, out, _ = run("inspect", folder / "simulated.h5", "--json")
        facts = json.loads(out)
        assert code == 0
        assert facts["complete"] is True
        assert facts["sizes"]["sequence"] == 25
        assert facts["conditions"] == ["baseline"]
        assert facts["offsets"] == [0, 1]
        assert facts["attributes"]["schema_version"] == int(SCHEMA_VERSION)

    def test_json_in_attributes_is_decoded(self, run, folder, tmp_path):
        with ps.open_dump(folder / "simulated.h5") as dataset:
            attrs = {"rope_parameters": '{"rope_theta": 1000.0}', "layer_types": '["full"]', "sequences": "[odd"}
            write_dump(dataset.assign_attrs(attrs).compute(), tmp_path / "d.h5")
        found = json.loads(run("inspect", tmp_path / "d.h5", "--json")[1])["attributes"]
        assert {name: found[name] for name in attrs} == {
            "rope_parameters": {"rope_theta": 1000.0},
            "layer_types": ["full"],
            "sequences": "[odd",
        }

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda *_: None, "there is no dump"),
            (lambda path, _: path.write_text("hello"), "is not an HDF5 file"),
            (lambda path, whole: path.write_bytes(whole.read_bytes()[:5000]), "damaged or truncated"),
            (lambda path, _: parts_folder(path).mkdir(), "is not finished"),
        ],
    )
    def test_what_is_no_whole_dump(self, mistake, folder, tmp_path, make, message):
        make(tmp_path / "d.h5", folder / "simulated.h5")
        assert message in mistake("inspect", tmp_path / "d.h5")


class TestDump:
    def dump(self, run, folder, path, *more):
        small = ["-n", 6, "-t", 16, "-d", 0, "-d", 1]
        return run("dump", path, "--model", folder / "model", *small, *more)

    def test_records_what_is_asked_for_and_reuses_it(self, run, mistake, folder, tmp_path):
        path = tmp_path / "d.h5"
        code, _, err = self.dump(run, folder, path, "-c", "baseline", "-c", "bos=mean")
        assert code == 0, err
        with ps.open_dump(path) as dataset:
            assert dataset.condition.values.tolist() == ["baseline", "bos=mean"]
            assert dataset.offset.values.tolist() == [0, 1]
            assert dict(dataset.sizes)["sequence"] == 6
        before = path.stat().st_mtime_ns
        code, _, err = self.dump(run, folder, path, "-c", "baseline", "-c", "bos=mean")
        assert code == 0
        assert "reus" in err
        assert path.stat().st_mtime_ns == before

        assert self.dump(mistake, folder, path).endswith(
            "was recorded with other settings (different: conditions): choose another path, or have it replaced "
            "(overwrite=True, --overwrite)"
        )
        several = self.dump(mistake, folder, path, "--seed", 1, "-t", 20, "-d", 2)
        assert "(different: length, seed, sequences_seed, conditions, offsets)" in several
        assert path.stat().st_mtime_ns == before
        code, _, err = self.dump(run, folder, path, "--overwrite", "--quiet", "--no-bos")
        assert (code, err) == (0, f"warning: {path}: {FEW}\n")
        with ps.open_dump(path) as dataset:
            assert dataset.condition.values.tolist() == ["baseline"]
            assert dataset.attrs["bos"] == "none"

    def test_shards_join_to_the_same_bytes(self, run, folder, tmp_path):
        batches = ["--batch-size", 2]
        assert self.dump(run, folder, tmp_path / "whole.h5", *batches)[0] == 0
        for k in (1, 2):
            assert not (tmp_path / "shared.h5").exists()
            assert self.dump(run, folder, tmp_path / "shared.h5", *batches, "--shard", f"{k}/2")[0] == 0
        assert (tmp_path / "shared.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()

    def test_a_bos_token_can_be_named_by_its_id(self, run, folder, tmp_path):
        for name, given in (("a", "2"), ("b", "<eos>")):
            assert self.dump(run, folder, tmp_path / f"{name}.h5", "--bos-token", given)[0] == 0
            with ps.open_dump(tmp_path / f"{name}.h5") as dataset:
                assert (dataset.token_id.values[..., 0] == 2).all()

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (
                ["-c", "bos=nil"],
                "there is no condition 'bos=nil' (did you mean bos=none?); the conditions are baseline",
            ),
            (["-c", "baseline", "-c", "baseline"], "given twice"),
            (["-n", 4], "at least 5 are needed"),
            (["-t", 500], "the model allows 1 to 128: positions beyond were never trained"),
            (["-t", 500, "--ntk-factor", 3], "the model allows 1 to 384"),
            (["--ntk-factor", 1], "ntk_factor must be above 1"),
            (["--sliding-window", 16], "narrows nothing in sequences of 16 tokens: give 1 to 15"),
            (["-n", 10**10], "sequences of 16 tokens at once"),
            (["-d", 16], "offset must be a whole number from 0 to 7, not 16"),
            (["--dtype", "int8"], "dtype must be one of 'float32'"),
            (["--bos-token", "<none>"], "is not in the vocabulary"),
            (["--source", "web"], "source must be one of random, text"),
            (["--text", "somewhere"], "(source = \"text\", or --source text), not 'random'"),
            (["--source", "text", "--text", "no/such/file"], "there is no file or folder"),
            (["--seed", -1], "seed must be a whole number from 0"),
            (["--batch-size", 0], "batch_size must be a whole number of at least 1"),
            (["--device", "tpu9"], "tpu9"),
            (["--shard", "3/2"], "--shard takes K/N with K from 1 to N"),
        ],
    )
    def test_mistakes(self, mistake, folder, tmp_path, more, message):
        assert message in self.dump(mistake, folder, tmp_path / "d.h5", *more)
        assert not (tmp_path / "d.h5").exists()

    @pytest.mark.parametrize(
        "more",
        [["-c", "basline"], ["-n", 4], ["-t", 2], ["-d", 16], ["-d", 1, "-d", 1], ["--seed", -1], ["--batch-size", 0],
         ["--shard", "3/2"]],
    )  # fmt: skip
    def test_what_needs_no_model_is_checked_before_torch_and_any_notice(self, run, folder, tmp_path, monkeypatch, more):
        forget_torch(monkeypatch)
        code, out, err = self.dump(run, folder, tmp_path / "d.h5", *more)
        assert (code, out, err.count("\n"), err.startswith("posstats: ")) == (2, "", 1, True)
        assert "torch" not in err

    def test_what_an_analysis_will_miss_is_said_before(self, run, folder, tmp_path):
        small = ["dump", tmp_path / "d.h5", "--model", folder / "model", "-n", 24, "--dry-run"]
        code, _, err = run(*small, "-t", 16)
        assert (code, err) == (
            0,
            "of the default offsets, 8, 16 are left out: sequences of 16 tokens are too short for them; --offset "
            "chooses others\n",
        )
        code, _, err = run(
            *small, "-t", 48, "-d", 4, "-d", 13, "-d", 20, "-c", "bos=mean", "--sliding-window", 12, "-q"
        )
        assert code == 0
        assert err.splitlines() == [
            "warning: offsets 13, 20 can be recorded but not analysed: some query of the second half of 24 analysed "
            "sees 12 keys; choose offsets below 12 (--offset, or offsets under [record])",
            f"warning: {tmp_path / 'd.h5'}: without the condition baseline nothing that compares with it can be "
            "computed, such as removal",
        ]
        assert "up to 0.11 nats" in run(*small, "-t", 16, "--dtype", "bfloat16")[2]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("gpt2", "no rotary"),
            ("t5", "encoder-decoder"),
            ("bert", "encoder"),
            ("bloom", "no rotary"),
            ("llama", "holds no weights"),
        ],
    )
    def test_models_that_cannot_be_recorded(self, mistake, tmp_path, name, message):
        tiny.config(name).save_pretrained(tmp_path / name)
        assert message in mistake("dump", tmp_path / "d.h5", "--model", tmp_path / name)
        assert message in mistake("models", tmp_path / name)

    def test_a_model_that_is_not_there(self, mistake, tmp_path):
        assert "there is no folder" in mistake("dump", tmp_path / "d.h5", "--model", "./no-such-model")


class TestAnalyze:
    def test_records_analyses_prints_and_reuses(self, run, config, tmp_path):
        path = config()
        code, out, err = run("analyze", "--config", path)
        assert code == 0, err
        assert "finished leakage of one" in err
        assert re.search(r"^one +leakage +nats² ", out, re.MULTILINE)
        # A configuration that is not default.toml has folders of its own name.
        folder = tmp_path / "results" / "config"
        results = sorted(file.relative_to(folder) for file in folder.rglob("*.*") if file.is_file())
        model = results[0].parts[0]
        assert [file.as_posix().removeprefix(f"{model}/") for file in results] == [
            "headline.csv", "headline.json", "headline.md", "headline.tex",
            "one/leakage/leakage.csv", "one/leakage/leakage.json", "one/leakage/leakage.md", "one/leakage/leakage.tex",
            "one/leakage/manifest.json",
        ]  # fmt: skip
        written = {file: (folder / file).stat().st_mtime_ns for file in results[4:]}

        again = run("analyze", "--config", path)
        assert again[:2] == (0, out)
        assert "reus" in again[2]
        assert "results are current" in again[2]
        assert {file: (folder / file).stat().st_mtime_ns for file in results[4:]} == written

        # A changed setting dumps again, without being asked.
        code, changed, err = run("analyze", "--config", config(n=7))
        assert code == 0
        assert changed != out
        assert "reus" not in err
        dump = next((tmp_path / "dumps" / "config").glob("*.h5"))
        assert f"replacing {dump}, which was recorded with other settings (different: number of sequences)" in err
        with ps.open_dump(dump) as dataset:
            assert dataset.sizes["sequence"] == 7
        assert "replacing results" not in err
        err = run("analyze", "--config", config(n=7, permutations=20))[2]
        assert "replacing results in" in err
        assert "which were computed with other settings under [inference]" in err
        out = run("analyze", "--config", path, "--dry-run")[1]
        assert "would be reused" in out
        out = run("analyze", "--config", config(n=6, permutations=20), "--dry-run")[1]
        assert f"{dump}: would be recorded, and would replace the file there, which was recorded with other" in out

    def test_dumps_are_analysed_as_they_are(self, run, folder, config, tmp_path):
        arguments = ["analyze", folder / "simulated.h5", "--config", config(), "--results", tmp_path / "mine"]
        code, out, err = run(*arguments, "--quiet")
        assert (code, err) == (0, "")
        assert "simulated" in out
        mine = tmp_path / "mine" / "dumps-simulated"
        assert (mine / "simulated" / "leakage" / "leakage.csv").is_file()
        assert not (tmp_path / "dumps").exists()

        # Another dump leaves the results of the first as they are, and its report too.
        before = (mine / "headline.csv").read_bytes()
        write_dump(ps.simulate(n=25, length=32, offsets=(0, 1), seed=1).dataset, tmp_path / "other.h5")
        assert run("analyze", tmp_path / "other.h5", *arguments[2:], "--quiet")[0] == 0
        assert (mine / "headline.csv").read_bytes() == before
        assert run("report", *arguments[1:], "--quiet") == (0, "", "")
        assert (mine / "report.html").is_file()

    def test_few_documents_are_said_under_the_headline(self, run, config, tmp_path):
        few = tmp_path / "few.h5"
        write_dump(ps.simulate(n=6, length=32, offsets=(0, 1), seed=0).dataset, few)
        code, out, err = run("analyze", few, "--config", config(), "--quiet")
        assert (code, err) == (0, "")
        assert "only 6 documents" in out

    def test_mistakes(self, mistake, folder, config, tmp_path):
        path, dump = config(), folder / "simulated.h5"
        assert "cannot read the configuration" in mistake("analyze", "--config", tmp_path / "none.toml")
        assert "has no profile 'slow'" in mistake("analyze", "--config", path, "--profile", "slow")
        assert "there is no dump" in mistake("analyze", tmp_path / "none.h5", "--config", path)
        assert "not both" in mistake("analyze", dump, "--config", path, "--model", "x")
        same = mistake("analyze", dump, tmp_path / "simulated.h5", "--config", path)
        assert f"{dump} and {tmp_path / 'simulated.h5'} have the same file name" in same
        assert "name one that is there (--config)" in mistake("analyze", dump, "--config", tmp_path / "none.toml")
        path.write_text(path.read_text() + "\n[oops]\n")
        assert "there is no section [oops]" in mistake("analyze", "--config", path)

    def test_without_torch_recording_says_what_to_install(self, mistake, config, monkeypatch):
        forget_torch(monkeypatch)
        assert "recording a dump needs torch" in mistake("analyze", "--config", config())


def test_an_error_of_posstats_is_a_usage_error(monkeypatch, mistake):
    def fail(*_: object) -> None:
        raise InputError("two\nlines")

    monkeypatch.setattr("posstats.dataset.store.open_dump", fail)
    assert mistake("inspect", "x") == "posstats: two lines"


def test_an_error_that_is_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["posstats", "inspect", "x"])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("posstats.dataset.store.open_dump", fail)
    with pytest.raises(ZeroDivisionError):
        main()
