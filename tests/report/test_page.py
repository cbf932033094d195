"""The report: what its numbers are, that it needs nothing else, and that it works in a browser."""

import base64
import csv
import re
import shutil
from collections import Counter
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

import posstats as ps
from posstats.dataset.store import write_dump
from posstats.errors import InputError
from posstats.report.captions import caption_of
from posstats.report.heads import heads_html
from posstats.report.page import write_report
from posstats.report.reading import read_results, read_table
from posstats.results.cells import significant
from posstats.results.table import write_table
from posstats.stats.inference.options import Inference
from posstats.study import analysis
from posstats.study.analysis import run_analyses
from posstats.study.config import AnalysesConfig, AnalysisConfig
from tests.processes import in_this_process
from tests.refused import refused

ROOT = Path(__file__).parents[2]
FILES = ("leakage_shares.py", "removal.py", "position_tests.py", "claims.py")
QUESTIONS = [Path(name).stem for name in FILES]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Two dumps, one of them without residual-stream terms, whose removal is withheld."""
    folder = tmp_path_factory.mktemp("dumps")
    made = {
        name: ps.simulate(
            n=24, length=32, layers=2, heads=3, offsets=(0, 1), conditions=["baseline", "bos=mean"], seed=3, **options
        ).dataset
        for name, options in {"some": {}, "weak": {"strength": 0}}.items()
    }
    made["some"].attrs |= {
        "model": "a <model> & {more}, read-only kind",
        "weights_sha256": "abc123",
        "bos_token": "<s>",
    }
    return {name: write_dump(ds, folder / f"{name}.h5") for name, ds in made.items()}


@pytest.fixture(scope="module")
def config():
    return AnalysisConfig(
        analyses=AnalysesConfig(FILES),
        inference=Inference(method="t", n_permutations=999, seed=7),
        folder=ROOT / "analyses",
    )


@pytest.fixture(scope="module")
def folder(dumps, config, tmp_path_factory):
    """Results of the analyses."""
    folder = tmp_path_factory.mktemp("results") / "dumps-some+weak"
    with pytest.MonkeyPatch.context() as patch:
        # In this process: starting others takes longer than the work.
        patch.setattr(analysis, "in_processes", in_this_process)
        run_analyses(config, dumps, folder, show=False)
    return folder


@pytest.fixture(scope="module")
def page(folder, dumps, config):
    return write_report(read_results(folder, dumps, QUESTIONS), config, folder / "report.html")


class Reader(HTMLParser):
    """Images, links, ids, and tables as rows of attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.images, self.links, self.ids, self.tables, self.tags, self.inside = [], [], [], [], Counter(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.tags[tag] += 1
        self.ids += [named["id"]] if "id" in named else []
        if tag == "img":
            self.images.append(named)
        elif tag in ("a", "link"):
            self.links.append(named)
        elif tag == "table":
            self.tables.append({"caption": "", "headings": [], "rows": []})
        elif tag == "tr":
            self.row = []
            self.tables[-1]["rows"].append(self.row)
        elif tag in ("td", "th"):
            self.row.append({**named, "tag": tag, "text": ""})
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside[-1:] == ["caption"]:
            self.tables[-1]["caption"] += data
        elif self.inside[-1:] in (["td"], ["th"]):
            self.row[-1]["text"] += data


@pytest.fixture(scope="module")
def read(page):
    return Reader(page.read_text(encoding="utf-8"))


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def body(table):
    """Rows of a table of the page: by heading, the raw value and the text."""
    rows = [row for row in table["rows"] if all(cell["tag"] == "td" for cell in row)]
    return [{cell["data-label"]: cell for cell in row} for row in rows]


class TestStructure:
    def test_nothing_is_fetched(self, page, read):
        text = page.read_text(encoding="utf-8")
        assert read.images
        assert all(image["src"].startswith("data:image/png;base64,") for image in read.images)
        assert all(link["href"].startswith(("data:", "#", "https://arxiv.org/")) for link in read.links)
        assert not re.search(r"@import|url\(|<script[^>]+src|fetch\(|XMLHttpRequest", text)
        assert read.tags["script"] == 1

    def test_figures_are_the_files_and_say_what_to_look_at(self, read, folder):
        drawn = sorted(path.read_bytes() for path in folder.rglob("*.png"))
        assert sorted(base64.b64decode(image["src"].partition(",")[2]) for image in read.images) == drawn
        assert all(image["alt"] for image in read.images)
        unknown = caption_of("no such figure").look
        assert all(caption_of(path.stem).look != unknown for path in folder.rglob("*.png"))

    def test_every_figure_of_the_analyses_has_a_caption(self):
        code = "\n".join(path.read_text() for path in (ROOT / "analyses").glob("*.py"))
        drawn = set(re.findall(r'"(\w+)": figures\w*\.', code)) | set(re.findall(r'drawn\["(\w+)"\]', code))
        assert len(drawn) > 5
        assert [name for name in drawn if caption_of(name).shows.startswith("Figure ")] == []

    def test_ids_are_unique_and_links_within_lead_to_them(self, read):
        assert len(read.ids) == len(set(read.ids))
        assert {link["href"][1:] for link in read.links if link["href"].startswith("#")} <= set(read.ids)

    def test_tables_have_captions_and_headings(self, read):
        for table in read.tables:
            assert table["caption"]
            assert all(cell["scope"] in ("col", "colgroup", "row") for row in table["rows"] for cell in row
                       if cell["tag"] == "th")  # fmt: skip

    def test_names_are_escaped(self, page):
        text = page.read_text(encoding="utf-8")
        assert "a &lt;model&gt; &amp; {more}, read-only kind, 24 sequences" in text
        assert (
            "<title>Absolute position in a &lt;model&gt; &amp; {more}, read-only kind, simulated data</title>" in text
        )
        assert text.count('class="warning"') == 1  # of simulated data; 24 documents are enough, whatever a name says
        assert "<model>" not in text

    def test_downloads_are_the_files(self, read, folder):
        saved = {link["download"]: base64.b64decode(link["href"].partition(",")[2])
                 for link in read.links if "download" in link}  # fmt: skip
        assert saved["some-shares.csv"] == (folder / "some" / "leakage_shares" / "shares.csv").read_bytes()
        assert saved["some-shares.tex"] == (folder / "some" / "leakage_shares" / "shares.tex").read_bytes()
        assert saved["some-shares_by_layer.pdf"][:4] == b"%PDF"

    def test_what_was_simulated_is_said_on_top(self, page):
        text = page.read_text(encoding="utf-8")
        assert ", simulated data</h1>" in text
        assert "No model was recorded for weak: the data are simulated" in text
        assert text.count('<p class="note">n = 24 documents.</p>') == 2
        assert "sum over 6 heads and 2 offsets" in text


class TestNumbers:
    @pytest.mark.parametrize(
        ("name", "question"),
        [(name, question) for name in ("some", "weak")
         for question in ("leakage_shares/leakage", "leakage_shares/shares", "leakage_shares/shares_by_layer",
                          "removal/removal", "claims/claims", "headline")],
    )  # fmt: skip
    def test_rows_equal_the_csv(self, read, folder, name, question):
        path = folder / (f"{question}.csv" if question == "headline" else f"{name}/{question}.csv")
        expected = [row for row in rows_of(path) if row.get("dump", name) == name or question.startswith("claims")]
        table = read_table(path.parent, path.stem)
        which = ", ".join(str(expected[0].get(column)) for column in ("model", "dump", "kind"))
        titles = {"headline": f"Headline numbers of {name}", "claims/claims": f"Claims of {name}: {which}"}
        wanted = titles.get(question, f"{table.title}: {table.name} of {name}")
        wanted += ", documents: 24, training runs: 1" if question == "claims/claims" else ""
        found = [one for one in read.tables if one["caption"] == wanted]
        shown = [row for one in found for row in body(one)]
        assert len(shown) == len(expected)
        for cells, row in zip(shown, expected, strict=True):
            for column, title in table.headings.items():
                if title not in cells:
                    assert column in ("dump", "model", "kind", "rule", "p", "n", "runs")
                    continue
                assert cells[title]["data-value"] == row[column]
                if column == "low":
                    assert cells[title]["data-high"] == row["high"]
                elif column in ("estimate", "p", "q"):
                    value = row[column]
                    number = float(value or "nan") if not value.isdecimal() else int(value)
                    if column != "estimate" and number < 1e-6:
                        assert cells[title]["text"] == "<1e-6"
                    else:  # an estimate may have more digits, those of its interval
                        digits = range(3, 7) if column == "estimate" and row["low"] else [3]
                        assert cells[title]["text"] in [significant(number, d) for d in digits]

    def test_heads_are_those_of_the_csvs(self, read, folder):
        for name in ("some", "weak"):
            shares = {(row["layer"], row["head"], row["term"]): row
                      for row in rows_of(folder / name / "leakage_shares" / "shares_by_head.csv")}  # fmt: skip
            slopes = {(row["layer"], row["head"], row["term"]): row
                      for row in rows_of(folder / name / "position_tests" / "position_tests.csv")
                      if row["condition"] == "baseline"}  # fmt: skip
            table = next(one for one in read.tables if one["caption"].startswith(f"Heads of {name};"))
            heads = [row for row in table["rows"] if row[0].get("scope") == "row"]
            assert len(heads) == 6
            for label, *cells in heads:
                layer, head = re.fullmatch(r"L(\d+)H(\d+)", label["text"]).groups()
                mask, residual = shares[layer, head, "mask"], shares[layer, head, "residual"]
                slope = slopes[layer, head, "log_attention"]
                expected = [mask["leakage"], mask["leakage_q"], mask["estimate"], mask["low"], mask["q"]]
                expected += [residual["estimate"], residual["low"], residual["q"], residual["note"]]
                expected += [slope["estimate"], slope["low"], slope["q"], slope["spline_q"]]
                assert [cell["data-value"] for cell in cells] == expected

    def test_what_is_rounding_is_shown_with_its_note(self, folder, tmp_path, dumps, config):
        copy = shutil.copytree(folder, tmp_path / "copy")
        (copy / "some" / "leakage_shares" / "manifest.json").unlink()
        rows = rows_of(folder / "weak" / "removal" / "removal.csv")
        assert {row["note"] for row in rows} == {"nothing beyond rounding"}
        table = read_table(folder / "weak" / "removal", "removal")
        for number, row in enumerate(rows):
            assert table.shown[number]["note"] == row["note"]
            assert (table.shown[number]["estimate"] == "–") == (row["estimate"] == "")
        text = write_report(read_results(copy, dumps, QUESTIONS), config, tmp_path / "r.html").read_text("utf-8")
        assert "Not among these results: leakage_shares of some." in text

    def test_methods_state_the_settings(self, page):
        text = page.read_text(encoding="utf-8")
        methods = text[text.index('id="methods"') : text.index('id="citation"')]
        for said in (
            "24 sequences of 32 tokens from 24 documents", "2 layers of 3 heads", "BOS &lt;s&gt;", "95% intervals",
            "offsets 0, 1 tokens", "999 random flips", "Benjamini-Hochberg over", "seed 7", "the document",
            "not the metric of arXiv:2606.06160",
        ):  # fmt: skip
            assert said in methods
        assert "abc123" in text[text.index('id="environment"') :]

    def test_same_results_give_the_same_bytes(self, page, folder, dumps, config, tmp_path):
        again = write_report(read_results(folder, dumps, QUESTIONS), config, tmp_path / "again.html")
        assert again.read_bytes() == page.read_bytes()

    def test_without_a_ledger_the_page_says_so(self, folder, dumps, config, tmp_path):
        copy, files = shutil.copytree(folder, tmp_path / "copy"), tuple(name for name in FILES if name != "claims.py")
        run_analyses(replace(config, analyses=AnalysesConfig(files)), dumps, copy, show=False)
        results = read_results(copy, dumps, [Path(name).stem for name in files])
        text = write_report(results, config, tmp_path / "r.html").read_text(encoding="utf-8")
        assert "There is no ledger of claims among these results" in text

    def test_a_head_below_the_threshold_is_no_sink(self, tmp_path):
        result = ps.sinks(ps.simulate(n=30, length=64, layers=2, heads=2, seed=0).dataset)
        below = result.table[(result.table.estimate < 0.3) & (result.table.q < 0.05)]
        assert len(below) == 4
        write_table(result, tmp_path, "sinks")
        html = heads_html({"sinks": read_table(tmp_path, "sinks")}, "some", 0.95)
        assert "reads position 0 (0)" in html
        assert "only where the head lies above the threshold" in html
        assert 'significant"' not in html

    def test_null_hypotheses_are_stated(self, page):
        text = unescape(page.read_text(encoding="utf-8"))
        methods = text[text.index('id="methods"') : text.index('id="citation"')]
        assert 'absolute-position leakage: one-sided sign-flip test of "no absolute position"' in methods
        assert "p-values are two-sided" not in methods
        heads = text[text.index('id="heads"') : text.index('id="tables"')]
        assert 'p: two-sided test of "the share is 0".' in heads


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
def test_dumps_and_tables_of_any_name(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "in_processes", in_this_process)
    for question in ("mine", "other"):
        (tmp_path / f"{question}.py").write_text(
            "import pandas as pd\nfrom posstats.study.findings import Findings, Quantity\n"
            "from posstats.results.table import Table\n"
            "def analyse(ds, inference):\n"
            f"    frame = pd.DataFrame({{'layer': [0, 1], 'estimate': [0.25, 0.5]}})\n"
            f"    table = Table(frame, 'Of {question}: C_{{ij}}', notes=('p: of {{x}}.',))\n"
            "    names = ('leakage of the last layer', 'early removal by hand', 'my mask share')\n"
            f"    return Findings({{'same': table}}, headline=[Quantity(name, 'nats', 0.5) for name in names])\n"
        )
    ds = ps.simulate(n=6, length=20, heads=1, offsets=(0, 1), seed=0).dataset
    dumps = {name: write_dump(ds, tmp_path / f"{name}.h5") for name in ("α", "β", "headline.x")}
    config = AnalysisConfig(analyses=AnalysesConfig(("mine.py", "other.py")), folder=tmp_path)
    (tmp_path / "results" / "α" / "mine" / "a folder").mkdir(parents=True)  # of somebody else: it stays
    run_analyses(config, dumps, tmp_path / "results", show=False)
    run_analyses(replace(config, inference=Inference(seed=1)), dumps, tmp_path / "results", show=False)
    page = write_report(read_results(tmp_path / "results", dumps, ["mine", "other"]), config, tmp_path / "r.html")
    text = page.read_text(encoding="utf-8")
    ids = Reader(text).ids
    assert len(set(ids)) == len(ids)
    assert text.count("Of mine: C_{ij}") == text.count("Of other: C_{ij}") > 0
    assert text.count("only 6 documents: intervals are reliable from 24 documents on.</p>") >= 3
    assert 'download="α-same.csv"' in text
    # A quantity that is nobody's but the user's has no words of ours beside it.
    assert "leakage of the last layer</td>" in text
    assert '<span class="meaning">' not in text
    assert 'download="α-other-same.csv"' in text


class TestRefusals:
    def test_no_results(self, tmp_path, dumps):
        refused(InputError, "run posstats analyze first", read_results, tmp_path, dumps, QUESTIONS)

    def test_a_table_that_was_edited(self, folder, dumps, tmp_path):
        copy = shutil.copytree(folder, tmp_path / "copy")
        path = copy / "some" / "removal" / "removal.csv"
        path.write_text(path.read_text().replace("0.", "1.", 1))
        with pytest.raises(InputError, match=r"removal\.csv has changed") as found:
            read_results(copy, dumps, QUESTIONS)
        assert str(found.value).count("run posstats analyze again") == 1

    @pytest.mark.parametrize("ending", ["csv", "json", "md", "tex"])
    def test_a_headline_number_that_was_edited(self, folder, dumps, tmp_path, ending):
        copy = shutil.copytree(folder, tmp_path / "copy")
        path = copy / f"headline.{ending}"
        text = path.read_text()
        row = next(line for line in text.splitlines() if re.search(r"some.*mask share.*\d\.\d", line))
        number = re.search(r"\d\.\d+", row)[0]
        path.write_text(text.replace(row, row.replace(number, "9" + number[1:], 1)))
        with pytest.raises(InputError, match=r"the headline table .* is not that of the answers about some"):
            read_results(copy, dumps, QUESTIONS)

    def test_a_headline_of_other_questions(self, folder, dumps):
        refused(InputError, "is not that of the answers", read_results, folder, dumps, QUESTIONS[:2])

    @pytest.mark.parametrize("content", ["{", "[]", '{"digest": "a", "files": []}', '{"digest": "a", "files": {}}'])
    def test_a_damaged_manifest(self, folder, dumps, tmp_path, content):
        copy = shutil.copytree(folder, tmp_path / "copy")
        (copy / "some" / "removal" / "manifest.json").write_text(content)
        refused(InputError, r"removal are not whole.*run posstats analyze again", read_results, copy, dumps, QUESTIONS)

    def test_another_recording(self, folder, dumps, tmp_path):
        other = write_dump(ps.simulate(n=25, length=32, offsets=(0, 1), seed=0).dataset, tmp_path / "o.h5")
        with pytest.raises(InputError, match=r"holds 25 sequences .* run posstats analyze again"):
            read_results(folder, dumps | {"some": other}, QUESTIONS)

    def test_a_dump_that_is_gone(self, folder, dumps, config, tmp_path):
        results = read_results(folder, dumps | {"some": tmp_path / "gone.h5"}, QUESTIONS)
        text = write_report(results, config, tmp_path / "r.html").read_text(encoding="utf-8")
        assert "The file of this recording was not there" in text

    def test_an_unknown_dump(self, folder, dumps):
        refused(InputError, "know no dump 'third'", read_results, folder, dumps | {"third": dumps["some"]}, QUESTIONS)


class TestCommand:
    @pytest.fixture
    def report(self, run, folder, dumps, tmp_path):
        """Write the page from results, by a configuration of its own; exit code, stdout, stderr."""
        for name in FILES:
            shutil.copy(ROOT / "analyses" / name, tmp_path)

        def call(seed=7, dumps=dumps):
            settings = tmp_path / "c.toml"
            settings.write_text(
                f"[dumps.some]\n[analyses]\nfiles = {list(FILES)}\n"
                f'[inference]\nmethod = "t"\nn_permutations = 999\nseed = {seed}\n'
            )
            options = ["--config", settings, "--results", folder.parent, "--out", tmp_path / "here" / "page.html"]
            return run("report", *dumps.values(), *options)

        return call

    def test_writes_the_page(self, report, tmp_path):
        code, out, err = report()
        assert (code, err) == (0, "")
        assert str(tmp_path / "here" / "page.html") in out
        text = (tmp_path / "here" / "page.html").read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert "have changed since" not in text

    def test_another_recording_of_the_same_sizes_is_refused(self, report, dumps, tmp_path):
        with ps.open_dump(dumps["some"]) as ds:
            other = ds.load().copy(deep=True)
        other["sink_logit"][:] = other.sink_logit + 0.5
        again = write_dump(other, tmp_path / "some.h5")
        code, out, err = report(dumps=dumps | {"some": again})
        assert (code, out) == (2, "")
        assert re.search(r"^posstats: .*some\.h5 is another recording than .*run posstats analyze again$", err)
        assert not (tmp_path / "here").exists()

    @pytest.mark.parametrize("there", [True, False])
    def test_other_settings_are_refused(self, report, dumps, tmp_path, there):
        paths = dumps if there else {name: tmp_path / path.name for name, path in dumps.items()}
        code, out, err = report(seed=8, dumps=paths)
        assert (code, out) == (2, "")
        assert "were computed with other settings" in err

    def test_other_code_is_named_on_the_page_and_on_stderr(self, report, tmp_path):
        with (tmp_path / "removal.py").open("a") as file:
            file.write("# changed\n")
        code, _, err = report()
        assert code == 0
        assert re.search(
            "^warning: code or library versions have changed since: removal of some, removal of weak; ", err
        )
        text = (tmp_path / "here" / "page.html").read_text(encoding="utf-8")
        assert "versions that have changed since: removal of some, removal of weak." in text


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = own if Path(own).is_file() else next(filter(None, map(shutil.which, BROWSERS)), None)
        if found is None:
            pytest.skip("there is no Chromium here: apt-get install chromium, or playwright install chromium")
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def opened(browser, page, request):
    """The page in a window of some width; whatever the browser complains of or fetches fails the test."""
    width = getattr(request, "param", 1280)
    context = browser.new_context(viewport={"width": width, "height": 844}, offline=True)
    tab, complaints = context.new_page(), []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda one: None if one.url.startswith(("data:", "file:")) else complaints.append(one.url))
    tab.goto(page.as_uri())
    yield tab
    assert complaints == []
    context.close()


class TestInTheBrowser:
    @pytest.mark.parametrize("opened", [390, 1280], indirect=True)
    def test_images_load_and_nothing_is_wider_than_the_screen(self, opened):
        opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert opened.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 100)")
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert opened.evaluate("Math.min(...[...document.querySelectorAll('td, p')].map("
                               "one => parseFloat(getComputedStyle(one).fontSize)))") >= 12  # fmt: skip

    def test_the_ledger_is_seen_whole_with_the_verdict_in_front(self, opened):
        opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        ledger = opened.locator(".frame:has(.ledger)").first
        assert ledger.evaluate("one => one.scrollWidth <= one.clientWidth")
        assert [text.split()[0] for text in ledger.locator("thead th").all_text_contents()][:4] == [
            "claim", "part", "verdict", "reason",
        ]  # fmt: skip

    @pytest.mark.parametrize("opened", [390], indirect=True)
    def test_a_card_leaves_out_every_number_that_is_withheld(self, opened):
        dashes = "[...document.querySelectorAll('.cards td')].filter(one => one.textContent === '–')"
        assert opened.evaluate(f"{dashes}.length") > 0
        assert opened.evaluate(f"{dashes}.every(one => getComputedStyle(one).display === 'none')")

    def test_tables_sort_by_number_with_empty_cells_last(self, opened):
        table = opened.locator(".heads table").first
        values = "one => [...one.tBodies[0].rows].map(row => row.cells[3].dataset.value)"
        button = table.locator("thead tr:last-child th:nth-child(4) button")
        for direction in ("ascending", "descending"):
            button.click()
            assert table.locator("th[aria-sort]").get_attribute("aria-sort") == direction
            found = table.evaluate(values)
            there = [float(value) for value in found if value]
            assert there == sorted(there, reverse=direction == "descending")
            assert found[len(there) :] == [""] * (len(found) - len(there))

    def test_sorting_works_with_the_keyboard(self, opened):
        table = opened.locator(".heads table").first
        table.locator("thead tr:last-child th:nth-child(2) button").press("Enter")
        found = table.evaluate("one => [...one.tBodies[0].rows].map(row => Number(row.cells[1].dataset.value))")
        assert found == sorted(found)

    def test_heads_are_filtered(self, opened):
        heads = opened.locator(".heads").first
        heads.get_by_label("Layer").select_option("1")
        assert heads.locator("output").text_content() == "3 of 6 heads"
        assert heads.locator("tbody tr:visible th").all_text_contents() == ["L1H0", "L1H1", "L1H2"]
        heads.get_by_label("Layer").select_option("")
        heads.get_by_label("Heads whose").select_option("mask")
        significant_ones = heads.evaluate(
            "one => [...one.querySelectorAll('tbody tr')].filter("
            "row => row.cells[5].dataset.value !== '' && Number(row.cells[5].dataset.value) < 0.05).length"
        )
        assert heads.locator("tbody tr:visible").count() == significant_ones

    def test_every_input_has_a_label_and_every_image_a_text(self, opened):
        assert opened.evaluate("[...document.querySelectorAll('select')].every(one => one.labels.length === 1)")
        assert opened.evaluate("[...document.images].every(one => one.alt.length > 10)")
        assert opened.evaluate("document.querySelectorAll('h1').length === 1 && document.documentElement.lang === 'en'")
