"""What the page is read from: JSON and manifests; names are data, and what was edited by hand is refused."""

import hashlib
import json
import shutil
from html.parser import HTMLParser

import pytest

import posstats as ps
from posstats.dataset.store import write_dump
from posstats.errors import InputError
from posstats.report.page import write_report
from posstats.report.reading import read_results, read_table
from posstats.study import analysis
from posstats.study.analysis import run_analyses
from posstats.study.config import AnalysesConfig, AnalysisConfig
from tests.processes import in_this_process

#: Names that mean something to HTML, to templates, to LaTeX or to a spreadsheet.
HOSTILE = (
    "two\nlines", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></script><b>", "$x^2$",
    r"back\slash", '=HYPERLINK("http://a.b")', "{{ 7 * 7 }}{% raw %}", "&lt;i&gt;", "a|b", "'", "; only 3 documents: x",
)  # fmt: skip
QUESTION = f"""
import pandas as pd
from posstats.study.findings import Findings, Quantity
from posstats.results.table import Table

def analyse(ds, inference):
    names = {HOSTILE!r}
    frame = pd.DataFrame({{"condition": names, names[1]: names, "estimate": [0.25] * len(names)}})
    tables = {{f"t{{k}}": Table(frame, name, {{"estimate": name}}, notes=(name,)) for k, name in enumerate(names)}}
    headline = [Quantity(name, "nats", 0.5, note=name, rests_on={{"p": name}}) for name in names]
    return Findings(tables, headline=[*headline, Quantity("early removal by bos=<b>", "fraction", 0.5)])
"""
pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("question")
    (folder / "mine.py").write_text(QUESTION, encoding="utf-8")
    return AnalysisConfig(analyses=AnalysesConfig(("mine.py",)), folder=folder)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Dumps of which file, model, BOS and source have hostile names."""
    folder, made = tmp_path_factory.mktemp("dumps"), {}
    ds = ps.simulate(n=6, length=20, heads=1, offsets=(0, 1), seed=0).dataset
    for k, name in enumerate(name for name in HOSTILE if "/" not in name):
        marks = {"model": name, "bos_token": name, "sequences": name} if k else {}
        made[name] = write_dump(ds.assign_attrs(marks), folder / f"{k}.h5")
    return made


@pytest.fixture(scope="module")
def folder(config, dumps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "in_processes", in_this_process)
        run_analyses(config, dumps, folder, show=False)
    return folder


class Elements(HTMLParser):
    """Tags with their attributes, and the text of table cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.attributes = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag == "td":
            self.cells.append(dict(attributes)["data-value"])


class TestNamesAreData:
    def test_nothing_that_users_name_is_html(self, folder, config, dumps, tmp_path):
        page = write_report(read_results(folder, dumps, ["mine"]), config, tmp_path / "page.html")
        text = page.read_text(encoding="utf-8")
        elements = Elements(text)
        assert elements.tags.count("script") == elements.tags.count("style") == 1
        assert not {"img", "i"} & set(elements.tags)
        assert not {name for name in elements.attributes if name.startswith("on")}
        assert "49" not in text.partition("<style>")[0]
        assert set(HOSTILE) <= set(elements.cells)

    def test_models_and_warnings_are_read_as_data(self, folder, dumps):
        results = read_results(folder, dumps, ["mine"])
        named = list(dumps)
        assert results.described[named[0]].simulated
        assert [results.described[name].simulated for name in named[1:]] == [False] * (len(named) - 1)
        for name in named:
            dump = results.described[name]
            assert (dump.n_sequences, dump.n_tokens, dump.n_documents) == (6, 20, 6)
            # A source that reads like a warning is none.
            assert dump.warnings == ("only 6 documents: intervals are reliable from 24 documents on",)
        assert results.level == 0.95

    def test_a_tile_needs_a_name_of_ours(self, folder, config, dumps, tmp_path):
        text = write_report(read_results(folder, dumps, ["mine"]), config, tmp_path / "p.html").read_text("utf-8")
        assert text.count('<span class="meaning">') == text.count("early removal by bos=&lt;b&gt;</span>") == len(dumps)


def edited(folder, tmp_path, name, change, *, manifest=False):
    """A copy of the results with keys of a JSON file changed, or cut off; with `manifest`, its digest too."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / name
    text = path.read_text(encoding="utf-8")
    content = json.dumps(json.loads(text) | change) if isinstance(change, dict) else text[:change]
    path.write_text(content, encoding="utf-8")
    if manifest:
        listed = path.parent / "manifest.json"
        record = json.loads(listed.read_text(encoding="utf-8"))
        record["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        listed.write_text(json.dumps(record), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def one(dumps):
    return {"$x^2$": dumps["$x^2$"]}


class TestEditedByHand:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (-9, "cannot read .*headline.json as a table: Expecting"),
            ({"columns": {}}, "cannot read .*headline.json as a table"),
            ({"settings": {}}, "headline.json does not say what dumps it is about"),
            ({"settings": {"dumps": []}}, "headline.json does not say what dumps it is about"),
            ({"settings": {"dumps": {"$x^2$": {"model": "m"}}}}, "headline.json does not say what dumps it is about"),
            ({"settings": {"dumps": {"$x^2$": None}}}, "headline.json does not say what dumps it is about"),
            ({"rows": []}, "the headline table .* is not that of the answers"),
            ({"level": 0.5}, "the headline table .* is not that of the answers"),
            ({"title": "Mine"}, "the headline table .* is not that of the answers"),
        ],
    )
    def test_a_headline(self, folder, tmp_path, one, change, words):
        copy = edited(folder, tmp_path, "headline.json", change)
        with pytest.raises(InputError, match=f"{words}.*run posstats analyze again$"):
            read_results(copy, one, ["mine"])

    @pytest.mark.parametrize("change", [50, {"rows": [[1]]}, {"notes": None}, {"level": []}])
    def test_a_table_of_an_answer(self, folder, tmp_path, one, change):
        copy = edited(folder, tmp_path, "$x^2$/mine/t3.json", change)
        with pytest.raises(
            InputError, match=r"t3\.json has changed since it was computed; run posstats analyze again$"
        ):
            read_results(copy, one, ["mine"])

    @pytest.mark.parametrize("change", [50, {"rows": [[1]]}, {"notes": None}, {"level": []}])
    def test_a_table_of_an_answer_and_its_digest(self, folder, tmp_path, one, change):
        copy = edited(folder, tmp_path, "$x^2$/mine/t3.json", change, manifest=True)
        with pytest.raises(InputError, match=r"cannot read .*t3\.json as a table: .*run posstats analyze again$"):
            read_results(copy, one, ["mine"])

    @pytest.mark.parametrize("line", [{}, {"quantity": "x"}, None, 3])
    def test_a_line_of_a_manifest(self, folder, tmp_path, one, line):
        copy = edited(folder, tmp_path, "$x^2$/mine/manifest.json", {"headline": [line]})
        with pytest.raises(InputError, match=r"mine are not whole: .*run posstats analyze again$"):
            read_results(copy, one, ["mine"])

    def test_results_of_an_edition_without_json(self, folder, tmp_path, one):
        copy = shutil.copytree(folder, tmp_path / "copy")
        (copy / "headline.json").unlink()
        with pytest.raises(InputError, match=r"cannot read .*headline\.json as a table.*run posstats analyze again$"):
            read_results(copy, one, ["mine"])
        with pytest.raises(InputError, match=r"cannot read .*gone\.json as a table.*run posstats analyze again$"):
            read_table(copy, "gone")
