"""The command line beyond dump and analyze: models, claims, simulate, bench, dry runs, and answers for scripts."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

import posstats as ps
from posstats.cli import models
from posstats.cli.options import print_json
from posstats.dataset.store import parts_folder
from tests import tiny

FEW = "only 6 documents: intervals are reliable from 24 documents on"
SMALL = ["-n", 6, "-t", 16, "-d", 0, "-d", 1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a tiny model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tiny.build("gemma2").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def simulated(run, tmp_path):
    path = tmp_path / "simulated.h5"
    answer = run("simulate", path, "-n", 24, "-t", 32, "-c", "baseline", "-c", "bos=mean", "--quiet")
    assert answer == (0, "", "")
    return path


class TestModels:
    def test_tested_families_are_those_of_the_tests(self):
        assert set(models.FAMILIES) == {tiny.config(name).model_type for name in tiny.FAMILIES}

    def test_lists_what_there_is_without_torch(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        code, out, err = run("models")
        assert (code, err) == (0, "")
        assert "smollm2-135m" in out
        assert "llama" in out
        assert json.loads(run("models", "--json")[1])["default"] == "smollm2-135m"

    def test_says_what_a_model_is_and_costs_from_its_configuration(self, run, model):
        code, out, err = run("models", model, "-t", 32)
        assert (code, err) == (0, "")
        assert "can be recorded" in out
        assert "gemma2 (Gemma2ForCausalLM), tested" in out
        assert "10 tokens (layers: 2 sliding_attention, 1 full_attention)" in out

        facts = json.loads(run("models", model, "-t", 32, "--json")[1])
        loaded = tiny.build("gemma2")
        assert facts["parameters"] == sum(one.numel() for one in loaded.parameters())
        assert facts["rope"][0]["rope_type"] == "default"
        assert (facts["layers"], facts["heads"], facts["key_value_heads"], facts["head_dim"]) == (3, 4, 2, 16)
        # Two operations for each weight of a block and token, and those of attention itself.
        blocks = sum(one.numel() for one in loaded.model.layers.parameters() if one.ndim == 2)
        attention = 3 * 4 * 4 * 32 * 32 * 16
        assert facts["operations"] == 2 * 32 * blocks + attention
        assert facts["seconds"] > 0

    def test_its_bytes_are_those_of_the_dump(self, run, model, tmp_path):
        facts = json.loads(run("models", model, "-t", 32, "--json")[1])
        dry = ["dump", tmp_path / "d.h5", "--model", model, "-n", 6, "-t", 32, "-d", 0, "--dry-run", "--json"]
        offsets = [item for d in (1, 2, 4, 8, 15) for item in ("-d", d)]
        cost = json.loads(run(*dry, *offsets)[1])
        assert cost["value_bytes"] == 6 * facts["record_bytes"]

    def test_what_differs_between_layers(self, run, tmp_path):
        tiny.build("llama4").save_pretrained(tmp_path)
        tiny.tokenizer().save_pretrained(tmp_path)
        out = run("models", tmp_path, "-t", 32)[1]
        assert "chunks of 16 tokens, which see back to their own start (layers: " in out
        assert "; none in 1 of 3 layers: 1\n" in out
        assert "0.0 million" not in out
        assert "at least less" not in out

    def test_limits_of_a_variant(self, run, model):
        facts = json.loads(run("models", model, "--ntk-factor", 4, "--sliding-window", 20, "-t", 500, "--json")[1])
        assert facts["max_length"] == 4 * 128
        assert facts["variant"] == ["ntk_factor=4", "sliding_window=20"]
        assert "variant" in run("models", model, "--ntk-factor", 4)[1]
        assert "narrows nothing in sequences of 20 tokens" in run("models", model, "--sliding-window", 20, "-t", 20)[2]

    def test_truncated_weights(self, mistake, model, tmp_path):
        for file in model.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        assert "model.safetensors is damaged or truncated" in mistake("models", tmp_path)

    def test_mistakes(self, mistake, model, tmp_path):
        assert "allows 1 to 128" in mistake("models", model, "-t", 500)
        assert "dtype must be one of" in mistake("models", model, "--dtype", "int8")
        assert "there is no folder" in mistake("models", "./none")
        assert "there is no file" in mistake("models", tmp_path / "none.gguf")

    @pytest.mark.model
    def test_the_default_model_is_not_converted_to_be_looked_at(self, run, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        facts = json.loads(run("models", "smollm2-135m", "--json")[1])
        assert (facts["layers"], facts["heads"]) == (30, 9)
        assert list(tmp_path.iterdir()) == []


class TestDryRun:
    def dump(self, run, model, path, *more):
        return run("dump", path, "--model", model, *SMALL, *more)

    def test_costs_nothing_and_is_about_right(self, run, model, tmp_path):
        path = tmp_path / "d.h5"
        code, out, err = self.dump(run, model, path, "-c", "baseline", "-c", "bos=mean", "--dry-run")
        assert (code, err) == (0, f"warning: {path}: {FEW}\n")
        assert "would be recorded" in out
        assert "beside about 0.5 GB for Python and torch" in out
        assert "12 of 12 sequences" in out
        assert list(tmp_path.iterdir()) == []

        ask = ["-c", "baseline", "-c", "bos=mean", "--dry-run", "--json"]
        cost = json.loads(self.dump(run, model, path, *ask)[1])
        assert cost["state"] == "new"
        assert 0 < cost["seconds"] < 60
        assert self.dump(run, model, path, "-c", "baseline", "-c", "bos=mean", "-q")[0] == 0
        with ps.open_dump(path) as dataset:
            recorded = sum(
                one.nbytes
                for name, one in dataset.data_vars.items()
                if one.dims[:2] == ("condition", "sequence") and not name.startswith(("token_id", "substitute_id"))
            )
            assert cost["value_bytes"] == recorded
        again = json.loads(self.dump(run, model, path, *ask)[1])
        assert (again["state"], again["left"], again["file_bytes"]) == ("recorded", 0, path.stat().st_size)
        assert "would be reused" in self.dump(run, model, path, *ask[:-1])[1]

    def test_takes_up_what_is_there(self, run, model, tmp_path):
        path = tmp_path / "d.h5"
        assert self.dump(run, model, path, "--batch-size", 2, "--shard", "1/3", "-q")[0] == 0
        cost = json.loads(self.dump(run, model, path, "--dry-run", "--json")[1])
        assert (cost["state"], cost["left"], cost["sequences"], cost["batch"]) == ("begun", 4, 6, 2)

        code, out, err = run("inspect", path, "--json")
        assert code == 2
        assert json.loads(out) == {"file": str(path), "complete": False, "recorded": 2, "of": 6}
        assert "is not finished, 2 of 6 sequences" in err
        assert parts_folder(path).is_dir()

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--dry-run", "-d", 16], "from 0 to 7, not 16"),
            (["--dry-run", "--batch-size", 0], "batch_size must be a whole number of at least 1"),
            (["--dry-run", "-c", "bos=nil"], "there is no condition"),
            (["--json"], "--json goes with --dry-run"),
        ],
    )
    def test_mistakes_are_found(self, mistake, model, tmp_path, more, message):
        assert message in self.dump(mistake, model, tmp_path / "d.h5", *more)

    def test_of_an_analysis(self, run, model, tmp_path):
        (tmp_path / "nothing.py").write_text(
            "from posstats.study.analysis import Findings\ndef analyse(ds, inference):\n    return Findings()\n"
        )
        config = tmp_path / "c.toml"
        config.write_text(
            f"""
            [model]
            name = "{model}"
            [sequences]
            n = 6
            length = 16
            [dumps.one]
            [record]
            offsets = [0, 1]
            [analyses]
            files = ["nothing.py"]
            [run]
            dumps = "{tmp_path / "dumps"}"
            results = "{tmp_path / "results"}"
            """
        )
        before = sorted(tmp_path.iterdir())
        code, out, err = run("analyze", "--config", config, "--dry-run")
        assert code == 0
        assert err.endswith(f"-one.h5: {FEW}\n")
        assert "would be recorded" in out
        assert "1 of 1 questions would be computed" in out
        assert "nothing of one" in out
        assert sorted(tmp_path.iterdir()) == before

        code, out, _ = run("analyze", "--config", config, "--json", "-q")
        assert code == 0
        assert json.loads(out)["headline"] == []
        facts = json.loads(run("analyze", "--config", config, "--dry-run", "--json")[1])
        assert facts["dumps"][0]["state"] == "recorded"
        assert facts["to_compute"] == {"nothing of one": False}


class TestSimulate:
    def test_says_what_is_true(self, run, tmp_path):
        code, out, err = run(
            "simulate", tmp_path / "new" / "d.h5", "-c", "baseline", "-c", "bos=mean", "--removal", 0.3
        )
        assert (code, err) == (0, "")
        assert "early removal by bos=mean  0.287" in out  # 0.3 in the order mask_first

    def test_json(self, run, tmp_path):
        path = tmp_path / "d.h5"
        code, out, _ = run("simulate", path, "-n", 8, "-t", 24, "--layers", 2, "-d", 0, "-d", 3, "--json")
        facts = json.loads(out)
        assert code == 0
        shares = facts["truth"]["shares"]
        assert sum(shares.values()) - shares["residual"] == pytest.approx(1)
        truth = ps.simulate(n=8, length=24, layers=2, offsets=(0, 3)).truth
        assert facts["truth"]["leakage"] == pytest.approx(truth.leakage().sum())
        with ps.open_dump(path) as dataset:
            assert dataset.sizes["layer"] == 2
            assert dataset.offset.values.tolist() == [0, 3]

    def test_mistakes(self, mistake, simulated):
        before = simulated.read_bytes()
        for more, message in (
            ([], "choose another path"),
            (["--overwrite", "--removal", 2], "removal must be a number of at most 1"),
            (["--overwrite", "--per-document", 0], "at least 1"),
            (["--overwrite", "-t", 4], "offset"),
        ):
            assert message in mistake("simulate", simulated, *more)
        assert simulated.read_bytes() == before


class TestClaims:
    QUICK = ("-w", "C1", "-w", "C7", "--resamples", 99, "--permutations", 99)

    def test_ledger(self, run, simulated, tmp_path):
        code, out, err = run("claims", simulated, *self.QUICK, "--out", tmp_path / "tables")
        assert (code, err) == (0, "")
        assert "agrees with" in out
        assert "not testable here" in out
        endings = {file.suffix for file in (tmp_path / "tables").glob("claims.*")}
        assert endings == {".csv", ".json", ".md", ".tex"}

    def test_scripts(self, run, simulated):
        code, out, _ = run("claims", simulated, *self.QUICK, "--json")
        found = json.loads(out)
        assert code == 0
        with ps.open_dump(simulated) as dataset:
            expected = ps.claims(dataset, which=("C1", "C7"), n_resamples=99, n_permutations=99)
        assert [row["verdict"] for row in found["claims"]] == expected.table.verdict.tolist()
        assert found["claims"][0]["estimate"] == expected.table.estimate[0]

        code, out, _ = run("claims", simulated, *self.QUICK, "--csv")
        assert code == 0
        assert len(out.splitlines()) == 1 + len(expected.table)
        assert out.startswith("model,dump,kind,claim")

    def test_mistakes(self, mistake, simulated, tmp_path):
        for arguments, message in (
            ([tmp_path / "none.h5"], "there is no dump"),
            ([simulated, "-w", "C10"], "there is no C10"),
            ([simulated, "--json", "--csv"], "not both"),
            ([simulated, "--level", 2], "level"),
        ):
            assert message in mistake("claims", *arguments)

    @pytest.mark.filterwarnings("default::posstats.errors.FewDocumentsWarning")
    def test_few_documents_are_said_once_of_each_dump(self, run, tmp_path):
        paths = [tmp_path / f"{name}.h5" for name in "ab"]
        for path in paths:
            ps.write_dump(ps.simulate(n=6, length=32, conditions=["baseline", "bos=mean"], seed=0).dataset, path)
        code, out, err = run("claims", *paths, "--resamples", 99, "--permutations", 99, "--json")
        assert code == 0
        assert len(err.splitlines()) == 2
        assert all(line.startswith("warning: ") and line.endswith(FEW) for line in err.splitlines())
        assert json.loads(out)["settings"]["n_documents"] == 6

    def test_a_baseline_is_needed(self, run, mistake, tmp_path):
        path = tmp_path / "d.h5"
        assert run("simulate", path, "-c", "bos=mean", "-q")[0] == 0
        assert "baseline" in mistake("claims", path)


class TestBench:
    def test_runs_that_of_the_source_tree(self, run, monkeypatch, tmp_path):
        called = []

        class Answer:
            returncode = 0

        monkeypatch.setattr("subprocess.run", lambda command, **options: called.append((command, options)) or Answer())
        assert run("bench", "--quick", "--part", "dump", "--out", tmp_path)[0] == 0
        command, options = called[0]
        assert command[1:] == ["-m", "analyses.bench", "--model", "smollm2-135m", "--out", str(tmp_path), "--quick",
                               "--part", "dump"]  # fmt: skip
        assert options["cwd"] == Path(__file__).parents[2]

    def test_says_how_long_it_takes_and_where_it_writes(self, run):
        said = " ".join(run("bench", "--help")[1].split())
        assert "--quick takes minutes" in said
        assert "analyses/results/bench" in said

    def test_says_where_it_is(self, mistake, monkeypatch, tmp_path):
        monkeypatch.setattr("posstats.cli.bench.ROOT", tmp_path)
        assert "make bench" in mistake("bench")


def test_a_folder_that_cannot_be_written_is_a_mistake(mistake, simulated, tmp_path):
    (tmp_path / "file").write_text("")
    mistake("claims", simulated, "-w", "C7", "--resamples", 99, "--out", tmp_path / "file" / "tables")


def test_json_has_no_number_that_is_none(capsys):
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": pd.Series([1]).to_numpy(), "d": (True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [1], "d": [True, None]}
