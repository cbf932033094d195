"""Analysis files and what runs them: right numbers, current results kept, everything else computed anew."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats.dataset import store
from posstats.dataset.store import write_dump
from posstats.errors import InputError
from posstats.execution import provenance
from posstats.stats.inference.options import Inference
from posstats.study import analysis
from posstats.study.analysis import Findings, Quantity, closing_tables, run_analyses
from posstats.study.config import AnalysesConfig, AnalysisConfig, RunConfig, load_config
from posstats.study.recording import record_dumps
from tests.processes import in_this_process
from tests.refused import refused
from tests.sealed import sealed

ROOT = Path(__file__).parents[2]
CONDITIONS = ["baseline", "bos=mean", "bos=zero", "shift=3"]
FILES = ("leakage_shares.py", "magnitude.py", "removal.py", "position_tests.py", "controls.py")


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    ds = ps.simulate(n=24, length=40, layers=2, heads=2, offsets=(0, 1), conditions=CONDITIONS, seed=5).dataset
    for name in ("logit", "sink_logit", "log_denominator_rest"):
        # A shift that changes nothing but one number, by a quarter of a nat.
        ds[name].loc[{"condition": "shift=3"}] = ds[name].sel(condition="baseline").values
    ds["sink_logit"].loc[{"condition": "shift=3", "layer": 1, "head": 1, "query": 7, "sequence": 3}] += 0.25
    return write_dump(sealed(ds), tmp_path_factory.mktemp("dump") / "d.h5")


@pytest.fixture(scope="module")
def inference():
    return Inference(n_permutations=99)


@pytest.fixture
def config(tmp_path, inference):
    for name in FILES:
        shutil.copy(ROOT / "analyses" / name, tmp_path)
    return AnalysisConfig(
        analyses=AnalysesConfig(FILES), inference=inference, run=RunConfig(workers=1), folder=tmp_path
    )


def csv(folder, name):
    return pd.read_csv(next(folder.rglob(f"{name}.csv")))


def snapshot(folder):
    """File -> bytes and time of writing."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def finished(dump, inference, tmp_path_factory):
    """Results of all four files, computed in processes of their own."""
    folder = tmp_path_factory.mktemp("results")
    config = AnalysisConfig(
        analyses=AnalysesConfig(FILES), inference=inference, run=RunConfig(workers=2), folder=ROOT / "analyses"
    )
    return run_analyses(config, {"sim": dump}, folder, show=False), folder


class TestNumbers:
    def test_headline_is_what_the_estimators_give(self, finished, dump, inference):
        frame = finished[0].frame.set_index("quantity")
        with ps.open_dump(dump) as ds:
            shares = ps.shares(ds.sel(condition=["baseline"]), octaves=False, **inference.options()).table
            removal = ps.removal(ds, "bos=zero", **inference.options()).table
            leakage = ps.leakage(ds.sel(condition=["baseline"]), octaves=False, **inference.options()).table
        expected = {
            "leakage": leakage.iloc[0],
            "mask share": shares.set_index("term").loc["mask"],
            "residual share": shares.set_index("term").loc["residual"],
            "early removal by bos=zero": removal.set_index("queries").loc["[2, 16)"],
        }
        for quantity, row in expected.items():
            columns = ["estimate", "low", "high", "p"]
            np.testing.assert_array_equal(frame.loc[quantity, columns].to_numpy(float), row[columns].to_numpy(float))

    def test_heads_are_counted(self, finished):
        frame, heads = finished[0].frame.set_index("quantity"), csv(finished[1], "shares_by_head")
        residual = heads[heads.term == "residual"]
        assert len(residual) == 4
        counted = frame.loc["heads with a significant residual share"]
        assert counted.estimate == (residual.q < 0.05).sum()
        assert counted.note == f"of 4, {residual.estimate.isna().sum()} withheld"

    def test_controls_find_what_a_shift_changes(self, finished):
        controls = csv(finished[1], "controls").set_index(["condition", "quantity"]).estimate
        assert controls["shift=3", "sink_logit"] == pytest.approx(0.25)
        assert controls["shift=3", "logit"] == 0
        assert controls["shift=3", "log_denominator_rest"] == 0

    def test_headline_table_is_written_as_returned(self, finished):
        table, folder = finished
        written = csv(folder, "headline")
        assert written.quantity.tolist() == table.frame.quantity.tolist()
        assert (written.dump == "sim").all()
        assert "Resampling unit: document" in (folder / "headline.md").read_text()

    def test_tables_and_figures_are_there(self, finished):
        stems = {path.stem for path in finished[1].rglob("*.csv")}
        assert stems == {
            "headline", "leakage", "shares", "shares_by_layer", "shares_by_head", "magnitude", "removal",
            "position_tests", "controls",
        }  # fmt: skip
        for ending in ("png", "pdf"):
            drawn = {path.stem for path in finished[1].rglob(f"*.{ending}")}
            assert drawn == {"shares_by_layer", "residual_share_map", "magnitude_by_octave", "removal_by_octave"}


class TestReuse:
    def test_two_runs_from_scratch_give_the_same_bytes(self, finished, dump, config, tmp_path):
        table = run_analyses(config, {"sim": dump}, tmp_path / "again", show=False)
        pd.testing.assert_frame_equal(table.frame, finished[0].frame)
        for name, (content, _) in snapshot(finished[1]).items():
            assert (tmp_path / "again" / name).read_bytes() == content, name

    @pytest.fixture
    def one(self, config, dump, tmp_path, monkeypatch):
        """Run the one quick file, without the cost of another process; returns what was written, headline aside."""
        monkeypatch.setattr(analysis, "in_processes", in_this_process)
        config = replace(config, analyses=AnalysesConfig(("controls.py",)))

        def call(config=config, dumps=None, folder=tmp_path / "results"):
            run_analyses(config, dumps or {"sim": dump}, folder, show=False)
            return {name: entry for name, entry in snapshot(folder).items() if "headline" not in name}

        call.config = config
        return call

    def test_current_results_are_kept(self, one):
        assert one() == one()

    def test_how_the_work_is_done_does_not_matter(self, one):
        before = one()
        assert one(replace(one.config, run=RunConfig(workers=2, dumps="elsewhere"))) == before

    @pytest.mark.parametrize(
        "changed", ["inference", "file", "dump", "result", "manifest", "no manifest", "other manifest", "missing"]
    )
    def test_whatever_matters_computes_anew(self, one, dump, tmp_path, changed):
        before = one()
        config, dumps = one.config, {"sim": dump}
        controls = tmp_path / "results" / "sim" / "controls"
        if changed == "inference":
            config = replace(config, inference=replace(config.inference, level=0.9))
        elif changed == "file":
            with (tmp_path / "controls.py").open("a") as file:
                file.write("# changed\n")
        elif changed == "dump":
            other = ps.simulate(n=24, length=40, offsets=(0, 1), conditions=CONDITIONS, seed=6).dataset
            dumps = {"sim": write_dump(other, tmp_path / "other.h5")}
        elif changed == "result":
            (controls / "controls.csv").write_text("edited")
        elif changed == "manifest":
            (controls / "manifest.json").write_text("{")
        elif changed == "no manifest":
            (controls / "manifest.json").write_text("[1]")
        elif changed == "other manifest":
            record = json.loads((controls / "manifest.json").read_text())
            (controls / "manifest.json").write_text(json.dumps(record | {"headline": [{"quantity": "x"}]}))
        else:
            (controls / "controls.tex").unlink()
        after = one(config, dumps)
        assert set(after) == set(before)
        assert all(after[name][1] > before[name][1] for name in before)
        assert b"edited" not in after["sim/controls/controls.csv"][0]

    @pytest.mark.parametrize("module", ["stats/regression.py", "dataset/terms.py", "tables/table.py", "_version.py"])
    def test_changed_code_of_any_room_computes_anew(self, one, dump, tmp_path, monkeypatch, module):
        """Results rest on a copy of the package: while it is the same they are kept, once a line of it differs not."""
        copy = tmp_path / "posstats"
        shutil.copytree(Path(ps.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with monkeypatch.context() as patch:
            patch.setattr(provenance, "__file__", str(copy / "execution" / "provenance.py"))
            provenance.versions.cache_clear()
            before = one()
            provenance.versions.cache_clear()
            assert one() == before
            with (copy / module).open("a") as file:
                file.write("# changed\n")
            provenance.versions.cache_clear()
            assert analysis.changes(one.config, {"sim": dump}, tmp_path / "results") == {("controls", "sim"): ["code"]}
            after = one()
        provenance.versions.cache_clear()
        assert set(after) == set(before)
        assert all(after[name][1] > before[name][1] for name in before)

    def test_what_an_analysis_no_longer_writes_goes(self, one, tmp_path):
        one()
        stale = tmp_path / "results" / "sim" / "controls" / "old.csv"
        stale.write_text("old")
        (tmp_path / "controls.py").write_text((tmp_path / "controls.py").read_text() + "\n")
        one()
        assert not stale.exists()

    def test_a_failure_loses_nothing_that_is_finished(self, config, dump, tmp_path):
        (tmp_path / "broken.py").write_text(
            "from posstats.errors import DesignError\ndef analyse(ds, inference):\n    raise DesignError('no')\n"
        )
        config = replace(config, analyses=AnalysesConfig(("controls.py", "broken.py")))
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "headline.csv").write_text("of an earlier recording")
        refused(ps.errors.DesignError, "no", run_analyses, config, {"sim": dump}, tmp_path / "results", show=False)
        assert not (tmp_path / "results" / "headline.csv").exists()
        assert (tmp_path / "results" / "sim" / "controls" / "manifest.json").is_file()
        assert not (tmp_path / "results" / "sim" / "broken" / "manifest.json").exists()


WRONG = {
    "def analyse(ds, inference):\n    return 1 / 0\n": r"mine of sim: .*mine\.py, line 2: ZeroDivisionError: division",
    "def analyse(ds, inference):\n    raise SystemExit(3)\n": r"mine of sim: .*line 2: SystemExit: 3",
    "def analyse(ds, inference:\n": r"mine of sim: .*mine\.py: SyntaxError: ",
    "def analyse():\n    pass\n": r"mine of sim: .*mine\.py: TypeError: analyse\(\) takes 0 positional",
    "def analyse(ds, inference):\n    pass\n": "mine of sim: analyse must return Findings, not NoneType",
    "import absent_library\n": r"mine of sim: .*line 1: ModuleNotFoundError: No module named 'absent_library'",
    "from posstats.study.findings import Findings\ndef analyse(ds, inference):\n    return Findings({'x': ds})\n": (
        "mine of sim: tables of Findings hold Result or Table, not Dataset"
    ),
    "from posstats.study.findings import Findings\ndef analyse(ds, inference):\n    return Findings({'../x': ds})\n": (
        "mine of sim: '../x' cannot be the name of a file"
    ),
    "from posstats.study.findings import Findings\ndef analyse(ds, inference):\n    return Findings(headline=[{}])\n": (
        "mine of sim: headline of Findings hold Quantity, not dict"
    ),
}


class TestMistakes:
    @pytest.fixture(autouse=True)
    def in_this_process(self, monkeypatch):
        monkeypatch.setattr(analysis, "in_processes", in_this_process)

    @pytest.mark.parametrize("text", WRONG)
    def test_in_an_analysis_file_are_told_with_question_and_line(self, config, dump, tmp_path, text):
        (tmp_path / "mine.py").write_text(text)
        config = replace(config, analyses=AnalysesConfig(("mine.py",)))
        refused(InputError, WRONG[text], run_analyses, config, {"sim": dump}, tmp_path / "r", show=False)

    def test_of_posstats_keep_their_traceback(self, config, dump, tmp_path, monkeypatch):
        monkeypatch.setattr("posstats.ledger.controls.shift_differences", lambda *_: store.parts_folder(None))
        config = replace(config, analyses=AnalysesConfig(("controls.py",)))
        with pytest.raises(TypeError):
            run_analyses(config, {"sim": dump}, tmp_path / "r", show=False)

    def test_a_file_that_is_named_twice(self, config, dump, tmp_path):
        config = replace(config, analyses=AnalysesConfig(("controls.py", "./controls.py")))
        refused(InputError, "controls is named twice", run_analyses, config, {"sim": dump}, tmp_path / "r", show=False)

    def test_a_dump_without_baseline(self, config, tmp_path):
        ds = ps.simulate(n=6, length=20, offsets=(0, 1), conditions=["bos=mean"], seed=0).dataset
        path = write_dump(ds, tmp_path / "o.h5")
        with pytest.raises(InputError, match=r"without the condition baseline, .*; it has bos=mean: dump with"):
            run_analyses(config, {"o": path}, tmp_path / "r", show=False)

    def test_a_folder_that_cannot_be_written_to_is_told_of_first(self, config, dump, tmp_path, monkeypatch):
        monkeypatch.setattr(analysis, "in_processes", lambda *_: pytest.fail("computed"))
        (tmp_path / "r").write_text("a file")
        refused(OSError, "r'", run_analyses, config, {"sim": dump}, tmp_path / "r", show=False)

    def test_a_file_that_is_not_there(self, config, dump, tmp_path):
        with pytest.raises(InputError, match=r"there is no analysis file .*none.py"):
            run_analyses(
                replace(config, analyses=AnalysesConfig(("none.py",))), {"sim": dump}, tmp_path / "r", show=False
            )

    def test_a_file_that_asks_nothing(self, config, dump, tmp_path):
        (tmp_path / "empty.py").write_text("analyse = 3\n")
        with pytest.raises(InputError, match=r"does not define analyse\(ds, inference\)"):
            run_analyses(
                replace(config, analyses=AnalysesConfig(("empty.py",))), {"sim": dump}, tmp_path / "r", show=False
            )

    def test_a_quantity_is_one_row(self, dump, inference):
        with ps.open_dump(dump) as ds:
            leakage = ps.leakage(ds, octaves=False, **inference.options())
        with pytest.raises(InputError, match="4 rows of Absolute-position leakage match"):
            Quantity.of("leakage", "nats^2", leakage, queries="all")


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
@pytest.mark.parametrize("design", [{"length": 12, "offsets": (0, 1)}, {"length": 40, "offsets": (8,)}])
def test_what_short_sequences_or_far_offsets_do_not_support_has_a_reason(config, tmp_path, monkeypatch, design):
    monkeypatch.setattr(analysis, "in_processes", in_this_process)
    ds = ps.simulate(n=6, conditions=["baseline", "bos=mean"], seed=0, **design).dataset
    files = ("magnitude.py", "removal.py", "sinks.py")
    config = replace(config, analyses=AnalysesConfig(files), folder=ROOT / "analyses")
    table = run_analyses(config, {"o": write_dump(ds, tmp_path / "o.h5")}, tmp_path / "r", show=False)
    rows = table.frame.set_index("quantity")
    early = rows.loc[["early residual magnitude, i in [2, 16)", "early removal by bos=mean"]]
    assert early.estimate.isna().all()
    assert early.note.str.contains("have no early queries").all()
    sinks = rows.loc["sink-reading heads"]
    assert "no query i >= 16" in sinks.note if design["length"] < 16 else sinks.estimate == 0


def test_numbers_of_numpy_are_numbers(config, dump, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "in_processes", in_this_process)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom posstats.study.findings import Findings, Quantity\n"
        "def analyse(ds, inference):\n"
        "    return Findings(headline=[Quantity('a', 'heads', np.int64(3)), Quantity('b', '1', np.float32(0.5))])\n"
    )
    config = replace(config, analyses=AnalysesConfig(("mine.py",)))
    for _ in range(2):  # computed, then read back
        table = run_analyses(config, {"sim": dump}, tmp_path / "results", show=False)
        assert [type(value) for value in table.frame.estimate] == [int, float]


def test_findings_may_be_tables_alone(config, dump, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import posstats as ps\nfrom posstats.study.analysis import Findings\n"
        "def analyse(ds, inference):\n"
        "    return Findings({'positions': ps.position_tests(ds.sel(condition=['baseline']))})\n"
    )
    config = replace(config, analyses=AnalysesConfig(("mine.py",)))
    table = run_analyses(config, {"sim": dump}, tmp_path / "results", show=False)
    assert table.frame.empty
    assert len(csv(tmp_path / "results", "positions")) == 20
    assert Findings().headline == ()


def test_closing_tables_that_say_the_same_name_their_dump(config, dump, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "in_processes", in_this_process)
    (tmp_path / "mine.py").write_text(
        "import pandas as pd\nfrom posstats.study.analysis import Findings\nfrom posstats.results.table import Table\n"
        "def analyse(ds, inference):\n"
        "    return Findings(closing=Table(pd.DataFrame({'estimate': [1.0]}), 'Claims: model, texts'))\n"
    )
    config, two = replace(config, analyses=AnalysesConfig(("mine.py",))), {"night": dump, "day": dump}
    run_analyses(config, two, tmp_path / "results", show=False)
    titles = [text.splitlines()[0] for text in closing_tables(config, two, tmp_path / "results")]
    assert titles == ["Claims: model, texts (night)", "Claims: model, texts (day)"]
    (alone,) = closing_tables(config, {"day": dump}, tmp_path / "results")
    assert alone.splitlines()[0] == "Claims: model, texts"


@pytest.mark.model
def test_quick_profile_on_the_default_model(tmp_path):
    config = load_config(ROOT / "analyses" / "default.toml", profile="quick")
    # One text dump less than `make analyze PROFILE=quick`, and fewer tokens: the machinery is the same.
    config = replace(
        config,
        sequences=replace(config.sequences, n=6, length=48),
        run=replace(config.run, models=str(ROOT / "data" / "models")),
    )
    path = tmp_path / "random.h5"
    record_dumps(config, {path: config.dumps["random"]}, show=False)
    frame = run_analyses(config, {"random": path}, tmp_path / "results", show=False).frame.set_index("quantity")
    assert frame.estimate["leakage"] > 0
    for control in ("largest change of a recorded quantity under shift=64", "largest residual term under repeat"):
        assert frame.estimate[control] < 1e-3
    in_float64 = frame.estimate[[name for name in frame.index if name.endswith("in float64")]]
    assert len(in_float64) == 3
    assert (in_float64 < 1e-9).all()
    assert (tmp_path / "results" / "random" / "removal" / "removal_by_octave.png").stat().st_size > 10_000


def test_the_ledger_closes(dump, inference, tmp_path):
    config = AnalysisConfig(
        analyses=AnalysesConfig(("claims.py",)),
        inference=inference,
        run=RunConfig(workers=1),
        folder=ROOT / "analyses",
    )
    run_analyses(config, {"sim": dump}, tmp_path, show=False)
    (shown,) = closing_tables(config, {"sim": dump}, tmp_path)
    verdicts = ps.claims(ps.open_dump(dump), **inference.options()).verdicts().iloc[0]
    rows = [line.split() for line in shown.splitlines() if re.match(r"C\d +claim ", line)]
    assert {row[0]: " ".join(row[-3:]) if row[-1] == "here" else row[-1] for row in rows} == verdicts.to_dict()
    # Why nothing could be tested is said as the table of the ledger has it.
    untested = csv(tmp_path, "claims").query("part == 'claim' and verdict == 'not testable here'")
    said = " ".join(shown.split())
    assert len(untested)
    assert all(f"{row.claim} is not testable here: {row.reason}." in said for row in untested.itertuples())


def asking(config, folder, body):
    """A configuration whose one analysis file does what is given."""
    (folder / "mine.py").write_text(
        "import fcntl, os, signal, time\nfrom posstats.study.analysis import Findings\n"
        f"def analyse(ds, inference):\n    {body}\n    return Findings()\n"
    )
    return replace(config, analyses=AnalysesConfig(("mine.py",)))


class TestHardships:
    def test_a_process_that_is_killed_is_told_of(self, config, dump, tmp_path):
        config = asking(config, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
        with pytest.raises(ps.errors.ClusterError, match="killed for want of memory"):
            run_analyses(config, {"sim": dump}, tmp_path / "r", show=False)

    def test_a_dump_that_changes_meanwhile(self, config, dump, tmp_path, monkeypatch):
        monkeypatch.setattr(analysis, "in_processes", in_this_process)
        shutil.copy(dump, tmp_path / "d.h5")
        config = asking(config, tmp_path, f"os.utime({str(tmp_path / 'd.h5')!r})")
        with pytest.raises(ps.errors.DumpError, match="changed while it was analysed"):
            run_analyses(config, {"sim": tmp_path / "d.h5"}, tmp_path / "r", show=False)
        assert not (tmp_path / "r" / "sim" / "mine").exists()

    @pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
    def test_no_process_outlives_the_command(self, dump, tmp_path, sign, code):
        """Only the command itself is told to stop, while a question would take a minute more."""
        hold = "held = open('held', 'w'); fcntl.flock(held, fcntl.LOCK_EX); held.write('held'); held.flush()"
        asking(AnalysisConfig(), tmp_path, f"{hold}; time.sleep(60)")
        (tmp_path / "config.toml").write_text('[dumps.none]\n[analyses]\nfiles = ["mine.py"]\n[run]\nworkers = 1\n')
        with subprocess.Popen(
            [sys.executable, "-c", COMMAND, "analyze", dump, "--config", "config.toml"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        ) as command:  # fmt: skip
            held = tmp_path / "held"
            wait_for(lambda: held.is_file() and held.read_text())
            command.send_signal(sign)
            assert (command.wait(30), "Traceback" in command.stderr.read()) == (code, False)
        with held.open() as file:
            wait_for(lambda: is_free(file))


#: The command line; what is started in the background of a shell would ignore Ctrl-C.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from posstats.cli.app import main; main()"
)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_free(file):
    """Whether the process that held a file has ended."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
