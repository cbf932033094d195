"""The documents are true: links resolve, their Python runs and prints what they show, and nothing is undocumented."""

import doctest
import importlib
import inspect
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

import posstats as ps
from posstats.cli.app import app
from posstats.dataset import terms as labelled
from posstats.dataset.simulate import recorded_dataset
from posstats.dataset.store import write_dump
from posstats.estimators import position_tests as positions
from posstats.report.methods import citation
from posstats.results import position0 as results_position0
from posstats.results import reach as results_reach
from posstats.results import sinks as results_sinks
from posstats.results import table as tables
from posstats.results.base import (
    LeakageResult,
    MagnitudeResult,
    PositionResult,
    RemovalResult,
    Result,
    ShareResult,
    SizeResult,
)
from posstats.results.columns import COLUMNS
from posstats.results.comparison import ModelLevelResult, ModelSlopeResult, WideResult
from posstats.results.decoding import DecodingResult, DiscriminationResult
from posstats.stats.inference import multiplicity
from posstats.stats.inference.options import CHOICES, INTERVAL_METHODS
from posstats.stats.synthetic.simulate import explicit_logits, record_logits
from posstats.vocabulary import CONDITIONS, LOG_ATTENTION, RESIDUAL, TERMS, VARIABLES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "posstats"
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "data/*.md", "analyses/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console", "shell")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name, *languages):
    return [code for language, code in FENCE.findall(read(name)) if language in languages]


def anchors(text):
    """Anchors that GitHub gives the headings of a document."""
    titles = re.findall(r"^#+ +(.+?)\s*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_resolve(name):
    here, broken = ROOT / name, []
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", FENCE.sub("", read(name))):
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (here.parent / path).resolve() if path else here
        inside = target.is_relative_to(ROOT) and target.exists()
        if not inside or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert not broken


@pytest.fixture
def newcomer(monkeypatch, tmp_path):
    """An empty folder, and a tiny model in place of any that is loaded."""

    def load_model(*_, **options):
        from tests import tiny

        return tiny.build("llama", options.get("dtype", "float32"), max_position_embeddings=8192), tiny.tokenizer()

    monkeypatch.setitem(vars(ps), "load_model", load_model)
    monkeypatch.chdir(tmp_path)


def write_dumps(codes):
    """Write a synthetic dump wherever code reads one that it has not recorded itself."""
    text = "\n".join(codes)
    recorded = re.findall(r"\bps\.dump\([^\n]*?\"([^\"]+)\"", text)
    for path in set(re.findall(r"\bopen_(?:dump|dataset)\(\"([^\"]+)\"", text)) - set(recorded):
        conditions = [name for name in CONDITIONS if not re.search("[A-Z]", name)] + ["bos=token:260", "shift=64"]
        ds = ps.simulate(n=30, length=64, layers=2, heads=3, conditions=conditions, seed=0).dataset
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_dump(ds, path)


@pytest.mark.usefixtures("newcomer")
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if blocks(name, "python", "pycon")])
def test_python_in_documents_runs_and_prints_what_they_show(name):
    codes, namespace, said = blocks(name, "python", "pycon"), {"__name__": "__main__"}, []
    write_dumps(codes)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    for number, code in enumerate(codes, start=1):
        if code.lstrip().startswith(">>>"):
            # The namespace goes on from block to block, as a reader's session would.
            example = doctest.DocTestParser().get_doctest(code, namespace, f"{name}[{number}]", name, 0)
            runner.run(example, out=said.append, clear_globs=False)
            namespace.update(example.globs)
        else:
            exec(compile(code, f"{name}[{number}]", "exec"), namespace)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def command_lines(name):
    """Words of the command lines of a document, those in shell blocks and those between backticks."""
    text = read(name)
    lines = "\n".join(blocks(name, *SHELLS)).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    apart = re.compile(r"(?:&&|[|;&#])(?=(?:[^']*'[^']*')*[^']*$)")  # outside of quotes
    parts = (part.strip().removeprefix("$ ") for line in lines for part in apart.split(line))
    return [shlex.split(part) for part in parts if re.match(r"(posstats|make) ", part)]


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if command_lines(name)])
def test_commands_in_documents_exist(name):
    makefile, main = read("Makefile"), typer.main.get_command(app)
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^(\w+) \?=|\$\(if \$\((\w+)\)", makefile, re.MULTILINE))
    for program, *words in command_lines(name):
        if program == "make":
            chosen = {word.partition("=")[0] for word in words if "=" in word}
            assert chosen <= set().union(*variables), words
            assert {word for word in words if "=" not in word} <= targets, words
            continue
        command = main if words[0].startswith("-") else main.commands[words[0]]
        options = {"-h", "--help"}.union(*(param.opts + param.secondary_opts for param in command.params))
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= options, words


def test_what_to_cite_is_what_the_report_says():
    assert citation(ps.__version__) in read("README.md")


def test_the_index_leads_to_every_page():
    linked = re.findall(r"\]\(([\w-]+\.md)\)", read("docs/README.md"))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(linked) == pages
    assert "docs/README.md" in read("README.md")


def documented(name):
    """Names in the first column of the tables of a document."""
    firsts = re.findall(r"^\| *([^|]+)\|", read(name), re.MULTILINE)
    return {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}


def leaves(kind):
    below = kind.__subclasses__()
    return {kind}.union(*map(leaves, below)) if below else {kind}


class TestColumns:
    def test_every_kind_of_result_is_looked_at(self, results):
        # A class that gains slots leaves the one it was made from behind, so names are compared.
        assert {type(one).__name__ for one in results} >= {kind.__name__ for kind in leaves(Result)} - {
            "Result",
            "WideResult",
            "MixedResult",
        }

    def test_every_column_is_documented(self, results):
        columns = {str(column) for one in results for column in one.table}
        assert columns | set(COLUMNS) <= documented("docs/columns.md")

    def test_every_result_can_be_written_as_a_table(self, results):
        for one in results:
            assert tables.table_of(one).frame.shape == one.table.shape

    def test_every_setting_is_documented(self, results):
        assert {name for one in results for name in one.settings} <= documented("docs/columns.md")

    def test_no_column_is_documented_that_does_not_exist(self, results):
        known = set(COLUMNS).union(*(one.table.columns for one in results), *(one.settings for one in results))
        known |= {f"ps.{name}" for name in ps.__all__} | {"decode", "discriminate", "relative"}
        assert documented("docs/columns.md") <= known

    def test_units_are_those_of_the_results(self, results):
        text = read("docs/columns.md").replace("nats²", "nats^2")
        callers = {
            LeakageResult: "`ps.leakage`",
            ShareResult: "`ps.shares`",
            MagnitudeResult: "`ps.magnitude`",
            SizeResult: "`ps.size`",
            RemovalResult: "`ps.removal`",
            PositionResult: "`ps.position_tests`",
            DecodingResult: "`decode`",
            DiscriminationResult: "`discriminate`",
            ModelLevelResult: "`ps.model_level` of shares",
            ModelSlopeResult: "`ps.model_level` of slopes",
            results_position0.SinkResult: "`ps.sinks`",
            results_sinks.KeySinkResult: "`ps.sinks` at all keys",
            results_sinks.SinkCountResult: "`ps.sinks` at all keys",
            results_sinks.SinkAnchoringResult: "anchoring of `ps.sinks`",
            results_reach.ReachResult: "`ps.reach`",
            results_reach.ReachSlopeResult: "slope of `ps.reach`",
            results_position0.SinkContrastResult: "contrasts of `ps.sinks`",
            results_position0.TrajectoryResult: "`ps.trajectory`",
            results_position0.IdentificationResult: "identification of `ps.trajectory`",
        }
        for one in results:
            # Several metrics, each with a unit in the table of its columns; or rows that each carry their unit.
            if isinstance(one, WideResult) or "unit" in one.table:
                continue
            assert re.search(rf"^\| {callers[type(one)]} \|.*\| {re.escape(one.units)} \|$", text, re.MULTILINE)


class TestMethod:
    def test_conditions_terms_and_intervals(self):
        names = documented("docs/method.md")
        assert set(CONDITIONS) | set(TERMS) | set(INTERVAL_METHODS) <= names
        assert all(f'`"{choice}"`' in read("docs/method.md") for choice in CHOICES)
        assert {RESIDUAL, LOG_ATTENTION} <= set(re.findall(r"`(\w+)`", read("docs/method.md")))

    def test_options_that_change_what_is_estimated(self):
        text = read("docs/method.md")
        for option in (*multiplicity.METHODS, *positions.REFERENCES, *labelled.REFERENCES):
            assert f'"{option}"' in text

    def test_recorded_variables_are_those_of_the_schema(self):
        symbols = re.findall(r"^\| `[^|]+`[^|]*\|[^|]*\|([^|]*)\|$", read("docs/method.md").split("## 2.")[0], re.M)
        named = {name for cell in symbols for name in re.findall(r"`(\w+)`", cell)}
        assert named
        assert named <= set(VARIABLES)

    def test_sections_that_the_code_refers_to_exist(self):
        sections = set(re.findall(r"^## (\d+)\.", read("docs/method.md"), re.MULTILINE))
        assert sections == {str(number) for number in range(1, 12)}
        for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").glob("*.py")]:
            for numbers in re.findall(r"docs/method\.md,? (?:sections? )?([\d, and]+)", path.read_text("utf-8")):
                assert set(re.findall(r"\d+", numbers)) <= sections, path

    # The numbers that the text quotes from simulations.
    @pytest.mark.parametrize("sigma", [0.5, 1, 2, 3])
    def test_content_gap(self, sigma):
        logits = explicit_logits(64, 400, relative=np.zeros(64), noise=sigma, seed=1)
        recorded = record_logits({"baseline": logits}, (0, 1, 2, 4, 8, 16))
        ds = recorded_dataset(recorded, 64, {})
        row = ps.shares(ds, octaves=False, n_resamples=99).table.set_index("term").loc["mask"]
        # No position but the number of keys, which is the mask's whatever the scatter.
        assert row.estimate == pytest.approx(1, abs=0.02 + 2 * row.se)
        assert row.low < 1 < row.high

    @pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
    def test_bias_of_a_magnitude_that_is_zero(self):
        ds = ps.simulate(n=16, length=64, heads=240, strength=0, seed=0).dataset
        table = ps.magnitude(ds, by=["head"], n_resamples=99).table
        found = 4 * table.query("queries == '[2, 16)' and term == 'sink'").estimate  # of 4 heads, the default
        error = found.std() / np.sqrt(len(found))
        assert found.mean() == pytest.approx(5e-4, abs=3 * error)
        assert found.mean() > 2 * error
        assert "averages 5e-4 nats squared at N = 16" in " ".join(read("docs/method.md").split())


def test_every_public_name_is_documented():
    text = "\n".join(map(read, DOCUMENTS))
    missing = [name for name in ps.__all__ if not re.search(rf"`{name}`|\b(ps|posstats)\.{name}\b", text)]
    assert not missing


@pytest.mark.parametrize("name", ps.__all__)
def test_every_public_object_has_a_numpydoc_docstring_with_an_example(name):
    importlib.import_module("posstats.dumping.run.dump")  # names stay what they are beside the dump wing
    described = inspect.getdoc(getattr(ps, name)) or ""
    assert callable(getattr(ps, name))
    assert "Parameters\n---" in described
    if inspect.isfunction(getattr(ps, name)):
        assert "Returns\n---" in described
    assert doctest.DocTestParser().get_examples(described)
