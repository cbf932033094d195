"""The documents are true: links resolve, their Python runs and prints what they show, and nothing is undocumented."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import posstats as ps
from posstats import comparison, decoders, labelled, positions, results_position0, tables
from posstats.cli import app
from posstats.columns import COLUMNS
from posstats.results import LeakageResult, MagnitudeResult, PositionResult, RemovalResult, Result, ShareResult
from posstats.results_comparison import ModelLevelResult, ModelSlopeResult, WideResult
from posstats.results_decoding import DecodingResult, DiscriminationResult
from posstats.stats import multiplicity
from posstats.stats.resample import DEFAULT_METHODS, INTERVAL_METHODS
from posstats.stats.simulate import explicit_logits, record_logits
from posstats.store import write_dump
from posstats.vocabulary import CONDITIONS, LOG_ATTENTION, RESIDUAL, TERMS, VARIABLES
from tests import position0

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if blocks(name, *SHELLS)])
def test_commands_in_documents_exist(name):
    text = "\n".join(blocks(name, *SHELLS))
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    named = {word for line in re.findall(r"\bmake ([^#|&;\n]*)", text) for word in line.split()}
    assert {word for word in named if re.fullmatch(r"[a-z][\w-]*", word)} <= targets
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^(?:\$ )?posstats ([a-z]+)", text, re.MULTILINE)) <= commands


@pytest.fixture(scope="module")
def results():
    """One result of every kind, with every key column it can have."""
    ds = ps.simulate(n=24, length=40, offsets=(0, 1, 2), conditions=["baseline", "bos=mean"], seed=0).dataset
    deep = ps.simulate(n=24, length=40, offsets=(0, 1, 2), layers=3, heads=2, seed=0).dataset
    first = position0.synthetic(n=24)
    sinks, trajectory = ps.sinks(first, method="percentile", n_resamples=2), ps.trajectory(first, n_permutations=9)
    by, quick = ["layer", "head"], {"n_resamples": 2}
    return [
        ps.leakage(ds, by=by, method="percentile", **quick),
        ps.shares(ds, by=by, **quick),
        ps.magnitude(ds, by=by, **quick),
        ps.removal(ds, "bos=mean", by=by, **quick),
        ps.position_tests(ds),
        decoders.decode(ds),
        decoders.discriminate(ds, 5, 20),
        ps.model_level(deep, n_permutations=99),
        ps.model_level(deep, measure="slope"),
        ps.earlier_metrics(ds, **quick, n_permutations=99),
        comparison.trap_table(n=24, length=32),
        sinks,
        sinks.contrasts,
        trajectory,
        trajectory.identification,
        ps.readers(first, n_permutations=9),
        ps.contrast(ds, ds, condition="bos=mean", n_permutations=9),
        ps.claims(first, **quick, n_permutations=9),
    ]


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
            RemovalResult: "`ps.removal`",
            PositionResult: "`ps.position_tests`",
            DecodingResult: "`decode`",
            DiscriminationResult: "`discriminate`",
            ModelLevelResult: "`ps.model_level` of shares",
            ModelSlopeResult: "`ps.model_level` of slopes",
            results_position0.SinkResult: "`ps.sinks`",
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
        for method in set(DEFAULT_METHODS.values()):
            assert f"| `{method}` (default for " in read("docs/method.md")
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
        names = [name for name in VARIABLES if hasattr(recorded, name) and name != "sink_output_fraction"]
        coordinates = {"condition": ["baseline"], "offset": list(recorded.offsets), "layer": [0], "head": [0]}
        coordinates |= {"query": np.arange(64), "lag": np.arange(64), "sequence": np.arange(400)}
        ds = xr.Dataset({name: (VARIABLES[name].dims, getattr(recorded, name)) for name in names}, coordinates)
        ds = ds.assign_coords(document=("sequence", recorded.document))
        row = ps.shares(ds, octaves=False, n_resamples=2).table.set_index("term").loc["mask"]
        assert f"| {sigma:g} | {row.estimate:.3f} ± {row.se:.3f} |" in read("docs/method.md")

    @pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
    def test_bias_of_a_magnitude_that_is_zero(self):
        ds = ps.simulate(n=16, length=64, heads=240, strength=0, seed=0).dataset
        table = ps.magnitude(ds, by=["head"], n_resamples=1).table
        found = 4 * table.query("queries == '[2, 16)' and term == 'sink'").estimate  # of 4 heads, the default
        error = found.std() / np.sqrt(len(found))
        assert found.mean() == pytest.approx(6e-5, abs=3 * error)
        assert found.mean() > 2 * error
        assert "averages 6e-5 nats squared at N = 16" in " ".join(read("docs/method.md").split())


def test_every_public_name_is_documented():
    text = "\n".join(map(read, DOCUMENTS))
    missing = [name for name in ps.__all__ if not re.search(rf"`{name}`|\b(ps|posstats)\.{name}\b", text)]
    assert not missing


@pytest.mark.parametrize("name", ps.__all__)
def test_every_public_object_has_a_numpydoc_docstring(name):
    importlib.import_module("posstats.dumping.run")  # the names must stay what they are once the dump wing is there
    described = inspect.getdoc(getattr(ps, name)) or ""
    assert callable(getattr(ps, name))
    assert "Parameters\n---" in described
    if inspect.isfunction(getattr(ps, name)):
        assert "Returns\n---" in described


def floors():
    """Room -> floor, from the table in CONTRIBUTING.md; rooms are relative to the package."""
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", read("CONTRIBUTING.md"), re.MULTILINE)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`([^`]+)`", rooms)}


def room(path):
    """Room that a module of the package belongs to."""
    first, *rest = path.relative_to(PACKAGE).parts
    return f"{first}/" if rest else first


def imported(path):
    """Modules of the package that a module imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "posstats":
            for alias in node.names:
                for dotted in (f"{node.module}.{alias.name}", node.module):
                    target = ROOT.joinpath(*dotted.split(".")).with_suffix(".py")
                    if target.is_file():
                        yield target
                        break


class TestRooms:
    def test_the_table_lists_every_room(self):
        rooms = {room(path) for path in PACKAGE.rglob("*.py")} - {"__init__.py"}
        assert set(floors()) == rooms

    def test_every_module_of_the_wings_is_named(self):
        text = read("CONTRIBUTING.md")
        modules = [path.name for wing in ("stats", "dump") for path in (PACKAGE / wing).glob("*.py")]
        assert [name for name in modules if name != "__init__.py" and f"`{name}`" not in text] == []

    def test_imports_never_go_up(self):
        floor = floors()
        up = [
            f"{path.relative_to(PACKAGE)} imports {target.relative_to(PACKAGE)}"
            for path in PACKAGE.rglob("*.py")
            if path.parent != PACKAGE or path.name != "__init__.py"
            for target in imported(path)
            if floor[room(target)] > floor[room(path)]
        ]
        assert up == []
