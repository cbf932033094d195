"""Tables: raw numbers in CSV, the same numbers to three digits elsewhere, and footnotes that say what they rest on."""

import csv
import io
import re
import warnings

import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats.estimators.decoding import decode
from posstats.report.reading import read_table
from posstats.results.cells import significant
from posstats.results.columns import COLUMNS
from posstats.results.table import Table, table_of, to_csv, to_latex, to_markdown, to_text, write_table


@pytest.fixture(scope="module")
def dataset():
    return ps.simulate(n=25, length=32, layers=2, heads=3, conditions=["baseline", "bos=mean"], seed=1).dataset


@pytest.fixture(scope="module")
def results(dataset):
    few = {"n_resamples": 99}
    baseline = dataset.sel(condition=["baseline"])
    return {
        "leakage": ps.leakage(dataset, n_permutations=99, **few),
        "shares": ps.shares(baseline, by=["layer", "head"], n_permutations=99, **few),
        "magnitude": ps.magnitude(dataset, method="bootstrap", **few),
        "removal": ps.removal(dataset, "bos=mean", **few),
        "positions": ps.position_tests(baseline),
        "decoding": decode(baseline),
    }


NAMES = ["leakage", "shares", "magnitude", "removal", "positions", "decoding"]


@pytest.mark.parametrize("name", NAMES)
def test_csv_keeps_every_digit(results, name):
    table = table_of(results[name])
    back = list(csv.DictReader(io.StringIO(to_csv(table))))
    original = results[name].table
    assert set(back[0]) == set(original)
    for column in original.select_dtypes("number"):
        numbers = [float(row[column] or "nan") for row in back]
        np.testing.assert_array_equal(numbers, original[column].to_numpy(float))
    assert to_csv(table) == to_csv(table_of(results[name]))


@pytest.mark.parametrize("name", NAMES)
def test_every_column_is_explained_and_in_one_order(results, name):
    columns = list(table_of(results[name]).frame)
    assert columns == [column for column in COLUMNS if column in columns]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"), (0.1, "0.100"), (9.996, "10.0"), (99.96, "100"), (1234.5, "1230"), (9999.0, "1.00e+04"),
        (0.001, "0.00100"), (0.0009994, "9.99e-04"), (-0.5, "-0.500"), (0.0, "0"), (-0.0, "0"), (np.inf, "inf"),
        (np.nan, "–"), (3, "3"), (np.int64(4), "4"), (True, "yes"), ("sink", "sink"), (np.float32(0.25), "0.250"),
    ],
)  # fmt: skip
def test_three_significant_digits(value, text):
    assert significant(value) == text


@pytest.mark.parametrize("name", NAMES)
def test_markdown_is_a_table(results, name):
    lines = to_markdown(table_of(results[name])).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert len(rows) == len(results[name].table) + 2
    assert re.fullmatch(r"\|( :?---:? \|| :--- \|| ---: \|)+", rows[1])
    assert "95% interval" in rows[0]
    assert " low " not in rows[0]


def test_units_stand_in_the_header(results):
    def header(name):
        return to_markdown(table_of(results[name])).splitlines()[2]

    assert "estimate (nats²)" in header("leakage")
    assert "95% interval (nats²)" in header("magnitude")
    assert "baseline magnitude (nats²)" in header("removal")
    assert "estimate (nats per doubling of position)" in header("positions")
    assert "estimate |" in header("shares")


@pytest.mark.parametrize("name", NAMES)
def test_footnotes_name_level_method_unit_and_size(results, name):
    notes = " ".join(table_of(results[name]).notes)
    assert "95% intervals" in notes
    assert "Resampling unit: document (G = 25 documents, N = 25 sequences)" in notes
    assert "Offsets 0, 1, 2, 4, 8 tokens" in notes
    if name != "magnitude":
        assert "Benjamini-Hochberg over all" in notes
    # Rows pooled over heads rest on replicates, and say how many.
    assert ("bootstrap replicates" in notes) == (name in ("leakage", "magnitude", "removal"))


def test_a_warning_of_few_documents_is_carried_into_the_table():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.FewDocumentsWarning)
        result = ps.leakage(ps.simulate(n=6, length=32, seed=0).dataset, n_resamples=99, n_permutations=9)
    assert "only 6 documents" in to_latex(table_of(result))
    assert "only 6 documents" in to_markdown(table_of(result))


@pytest.mark.parametrize("name", NAMES)
def test_latex_is_balanced_and_escaped(results, name):
    text = to_latex(table_of(results[name]), name)
    unescaped = re.sub(r"\\.", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert unescaped.count("$") % 2 == 0
    assert "_" not in re.sub(r"\$[^$]*\$", "", unescaped)
    assert not re.search(r"[^\x00-\x7f]", text)
    opened, closed = re.findall(r"\\begin\{(\w+)\}", text), re.findall(r"\\end\{(\w+)\}", text)
    assert sorted(opened) == sorted(closed)
    rows = [line for line in text.splitlines() if line.endswith(r" \\") and "label" not in line]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert not any(row.startswith("[") for row in rows)
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))


def test_a_long_table_breaks_over_pages_in_latex():
    frame = pd.DataFrame({"layer": range(41), "estimate": 0.5})
    assert r"\begin{longtable}" in to_latex(Table(frame, "long"))
    assert r"\begin{longtable}" not in to_latex(Table(frame.head(40), "short"))


def test_latex_of_a_result_is_one_call_that_names_its_packages(results):
    assert to_latex(results["leakage"]) == to_latex(table_of(results["leakage"]))
    assert to_latex(results["leakage"]).startswith("% needs \\usepackage{booktabs}\n")
    frame = pd.DataFrame({"layer": range(41)})
    assert to_latex(Table(frame, "long")).startswith("% needs \\usepackage{booktabs,longtable}\n")


def test_every_ratio_has_one_unit():
    frame = pd.DataFrame({"quantity": ["a", "b", "c"], "unit": ["1", "fraction", "nats^2"], "estimate": [0.5] * 3})
    assert [line.split(" | ")[1] for line in to_markdown(Table(frame, "x")).splitlines()[4:]] == [
        "fraction", "fraction", "nats²",
    ]  # fmt: skip


def test_latex_escapes_whatever_a_name_holds():
    frame = pd.DataFrame({"condition": [r"a_b%c&d#e$f{g}~h^i\j", "[2, 4)"], "estimate": [1e-12, -3e-5]})
    text = to_latex(Table(frame, "50% of C_1 & more"))
    assert r"a\_b\%c\&d\#e\$f\{g\}\textasciitilde{}h\textasciicircum{}i\textbackslash{}j" in text
    assert "{[}2, 4) &" in text
    assert r"$1.00 \times 10^{-12}$" in text
    assert r"$-3.00 \times 10^{-5}$" in text
    assert r"\caption{50\% of C\_1 \& more}" in text


def test_text_in_latex_is_text_whatever_it_looks_like():
    frame = pd.DataFrame({"dump": ["1_0", "1e5", "nan", "[a, b, c]", "a|b", "-3"], "estimate": [-0.5] * 6})
    text = to_latex(Table(frame, "names"))
    for cell in (r"1\_0", "1e5", "nan", "{[}a, b, c]", r"a\textbar{}b", "-3"):
        assert f"\n{cell} & $-0.500$ \\\\" in text


@pytest.mark.parametrize("separator", ["\n", "\u2028", "\x0b"])
def test_a_name_of_several_lines_stays_in_its_cell(separator, tmp_path):
    name = f"two{separator}lines"
    table = Table(pd.DataFrame({"dump": [name], "estimate": [0.5]}), f"About {name}", notes=(f"{name}: {name}.",))
    write_table(table, tmp_path, "t")
    read = read_table(tmp_path, "t")
    assert (read.title, read.notes) == (f"About {name}", (f"{name}: {name}.",))
    assert read.raw[0]["dump"] == name
    lines = to_markdown(table).splitlines()
    assert [lines[0], lines[4], lines[6]] == ["### About two lines", "| two lines | 0.500 |", "- two lines: two lines."]
    assert "two lines & 0.500" in to_latex(table)


def test_an_estimate_is_printed_with_the_digits_of_its_interval():
    limits = {"low": [35.162, 1.0001, 0.184, np.nan], "high": [35.183, 1.0011, 1.22, np.nan]}
    frame = pd.DataFrame({"term": list("abcd"), "estimate": [35.1712, 1.0004, 0.7, 0.25]} | limits)
    table = Table(frame, "x")
    printed = ("| a | 35.17 | [35.16, 35.18] |", "| b | 1.000 | [1.000, 1.001] |", "| c | 0.700 |", "| d | 0.250 | – |")
    assert all(row in to_markdown(table) for row in printed)
    assert r"a & 35.17 & {[}35.16, 35.18] \\" in to_latex(table)
    assert re.search(r"a +35\.17 +\[35\.16, 35\.18\]", to_text(table))
    assert "a,35.1712,35.162,35.183\n" in to_csv(table)


def test_a_p_further_out_than_a_tail_is_known_is_a_bound_and_raw_in_csv():
    frame = pd.DataFrame({"term": ["mask", "sink"], "p": [1.36e-158, 0.0], "q": [2e-6, 9e-7], "leakage_q": [0.5, 1e-9]})
    table = Table(frame, "x")
    assert "| mask | <1e-6 | 2.00e-06 | 0.500 |\n| sink | <1e-6 | <1e-6 | <1e-6 |" in to_markdown(table)
    assert r"mask & $<10^{-6}$ & $2.00 \times 10^{-6}$ & 0.500 \\" in to_latex(table)
    assert "mask,1.36e-158,2e-06,0.5\n" in to_csv(table)


def test_quotation_marks_open_and_close_in_latex():
    table = Table(pd.DataFrame({"note": ['said "a" and "b_c", 5"']}), 'of "x"', notes=('p: "no mean".',))
    text = to_latex(table)
    assert '"' not in text
    assert r"said ``a'' and ``b\_c'', 5''" in text
    assert r"\caption{of ``x''}" in text


def test_markdown_escapes_pipes():
    text = to_markdown(Table(pd.DataFrame({"note": ["a|b"]}), "x"))
    assert r"| a\|b |" in text


def test_withheld_numbers_are_a_dash_and_an_empty_csv_cell():
    frame = pd.DataFrame({"term": ["mask"], "estimate": [np.nan], "low": [np.nan], "high": [np.nan]})
    table = Table(frame, "withheld")
    assert to_csv(table) == "term,estimate,low,high\nmask,,,\n"
    assert "| mask | – | – |" in to_markdown(table)
    assert "mask & -- & --" in to_latex(table)


def test_text_columns_line_up():
    frame = pd.DataFrame({"term": ["mask", "denominator_drift"], "estimate": [0.5, -12.0]})
    lines = to_text(Table(frame, "title", notes=("a note",))).splitlines()
    assert lines[0] == "title"
    assert lines[-1] == "a note"
    assert len({len(line) for line in lines[1:-1]}) == 1


def test_whole_numbers_stay_whole_beside_estimates():
    frame = pd.DataFrame({"quantity": ["heads", "share"], "estimate": pd.Series([7, 0.25], dtype=object)})
    assert to_csv(Table(frame, "x")) == "quantity,estimate\nheads,7\nshare,0.25\n"
    assert "| heads | 7 |" in to_markdown(Table(frame, "x"))


def test_an_empty_table_keeps_its_header():
    frame = pd.DataFrame({"term": [], "estimate": []})
    assert to_markdown(Table(frame, "empty")).splitlines()[2] == "| term | estimate |"
    assert "term & estimate" in to_latex(Table(frame, "empty"))
    assert "term" in to_text(Table(frame, "empty"))


def test_write_table_writes_files_that_do_not_change(results, tmp_path):
    first = write_table(results["shares"], tmp_path / "new" / "folder", "shares")
    content = [path.read_bytes() for path in first]
    assert [path.name for path in first] == ["shares.csv", "shares.json", "shares.md", "shares.tex"]
    assert [
        path.read_bytes() for path in write_table(results["shares"], tmp_path / "new" / "folder", "shares")
    ] == content
    assert all(one.endswith(b"\n") and not one.endswith(b"\n\n") for one in content)
