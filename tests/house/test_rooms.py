"""The house: imports go down, only the dump wing imports torch, all has docstrings, analyses need no torch."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "posstats"
MODULES = sorted(PACKAGE.rglob("*.py"))
ANALYSES = sorted((ROOT / "analyses").glob("*.py"))

#: Raises on any import of what only the dump wing may need; run as Python starts, in children too.
BLOCKER = """
import sys
WING = {"torch", "transformers", "safetensors", "accelerate", "gguf", "tokenizers", "peft"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in WING:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
"""


def names(paths):
    return [path.relative_to(ROOT).as_posix() for path in paths]


def imports(path):
    """Top packages that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def run(code, *arguments, **environment):
    """Run Python code in a process of its own, warnings being errors."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    environment = os.environ | environment
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_modules_import_what_their_room_may(path):
    room = path.relative_to(PACKAGE).parts[0]
    torch_wing = {"torch", "transformers", "safetensors", "accelerate", "gguf", "tokenizers", "peft"}
    if room != "dumping":
        assert not imports(path) & torch_wing
    if room == "stats":
        allowed = {"numpy", "scipy", "statsmodels", "posstats", "__future__", *sys.stdlib_module_names}
        assert imports(path) <= allowed
    if room == "dumping":
        assert not imports(path) & {"statsmodels", "pandas", "matplotlib"}


class TestFloors:
    """import-linter holds the floors of pyproject.toml; here: that it does, and that the documents say the same."""

    @pytest.fixture
    def house(self, tmp_path):
        """A copy of the package and its contracts, in which a wrong import hurts nobody."""
        shutil.copytree(PACKAGE, tmp_path / "posstats", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tmp_path)
        return tmp_path

    @staticmethod
    def lint(folder):
        """Exit code and output of import-linter."""
        code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command as lint; lint()"
        command = [sys.executable, "-c", code, "--no-cache"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        return answer.returncode, answer.stdout + answer.stderr

    def test_imports_go_down(self, house):
        code, output = self.lint(house)
        assert code == 0, output

    @pytest.mark.parametrize(
        ("module", "line", "words"),
        [
            ("stats/regression", "import posstats.results.base", "posstats.stats is not allowed to import"),
            ("dataset/store", "from posstats import estimators", "posstats.dataset is not allowed to import"),
            (
                "dumping/recorder/masks",
                "from posstats.dumping.run import plan",
                "posstats.dumping.recorder is not allowed",
            ),
            (
                "stats/pair_products/terms",
                "from posstats.stats.inference import resample",
                "posstats.stats.pair_products",
            ),
            ("results/base", "def late():\n    import torch", "posstats.results is not allowed to import torch"),
            ("dumping/model/load", "import posstats.stats.regression", "posstats.dumping is not allowed to import"),
            ("lobby", "x = 1", "lobby"),
        ],
    )
    def test_a_wrong_import_fails(self, house, module, line, words):
        path = house / "posstats" / f"{module}.py"
        path.write_text((path.read_text(encoding="utf-8") if path.exists() else "") + f"\n\n{line}\n")
        code, output = self.lint(house)
        assert code == 1
        assert words in " ".join(output.split())

    def test_the_table_of_rooms_is_the_one_that_is_held(self):
        contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
        held = [set(layer.split(" | ")) for layer in contracts[0]["layers"][::-1]]
        rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
        listed = [set() for _ in held]
        for floor, rooms in rows:
            listed[int(floor) - 1].update(re.findall(r"`(\w+)`", rooms))
        assert listed == held


@pytest.mark.parametrize("path", [*MODULES, *ANALYSES], ids=names([*MODULES, *ANALYSES]))
def test_public_names_have_docstrings(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or (path.name == "__init__.py" and not tree.body)
    if path in ANALYSES:
        return  # one question each, asked by the docstring of the module
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    missing = []
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")]:
        for node in owner.body:
            public = isinstance(node, definitions) and not node.name.startswith("_")
            signature = public and "overload" in map(ast.unparse, node.decorator_list)  # of the function that follows
            if public and not signature and not ast.get_docstring(node):
                missing.append(node.name)
    assert missing == []


@pytest.mark.parametrize("path", ANALYSES, ids=names(ANALYSES))
def test_analysis_files_are_thin_and_load_no_model(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert imports(path) <= {"posstats", "numpy", "pandas", "xarray"}
    assert "load_model" not in text
    assert "posstats.dumping" not in text


@pytest.mark.parametrize("module", ["posstats", "posstats.cli.app"])
def test_help_and_completion_wait_neither_for_torch_nor_for_statistics(module):
    heavy = "sorted({'torch', 'transformers', 'scipy', 'pandas', 'xarray', 'matplotlib', 'dask'} & set(sys.modules))"
    assert run(f"import {module}, sys; print({heavy})") == "[]\n"


def test_a_dump_is_analysed_where_torch_cannot_be_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    (tmp_path / "torchless.py").write_text(
        "import sys\nfrom posstats.study.analysis import Findings\n"
        "def analyse(ds, inference):\n"
        "    try:\n        import torch\n"
        "    except ModuleNotFoundError:\n        return Findings()\n"
        "    raise AssertionError('torch can be imported')\n"
    )
    code = """
import sys
from dataclasses import replace
from pathlib import Path

import posstats as ps
from posstats.study.analysis import run_analyses
from posstats.study.config import load_config
from posstats.dataset.store import write_dump

try:
    ps.load_model
except ModuleNotFoundError as error:
    assert error.name in ("torch", "transformers"), error
else:
    raise AssertionError("the blocker does not block")

folder = Path(sys.argv[1])
conditions = ["baseline", "bos=mean", "shift=3"]
ds = ps.simulate(n=24, length=32, offsets=(0, 1), heads=2, conditions=conditions, seed=0).dataset
path = write_dump(ds, folder / "d.h5")
config = load_config("analyses/default.toml", profile="quick")
files = (*config.analyses.files, str(folder / "torchless.py"))
config = replace(config, analyses=replace(config.analyses, files=files))
headline = run_analyses(config, {"simulated": path}, folder / "results", show=False)
print(len(headline.frame) > 8, "torch" in sys.modules)
"""
    assert run(code, tmp_path, PYTHONPATH=str(tmp_path)) == "True False\n"
    assert (tmp_path / "results" / "simulated" / "leakage_shares" / "residual_share_map.pdf").is_file()
