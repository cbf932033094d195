"""What people see of a result in a terminal and a notebook, and what they take it further with."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats.results.base import SHOWN, LeakageResult
from posstats.results.cells import model_name, significant, unit_text, view_of
from posstats.results.claims import MixedResult
from posstats.results.columns import COLUMNS
from posstats.results.comparison import WideResult
from tests.sealed import sealed


class Page(HTMLParser):
    """Cells of the tables of a piece of HTML, its other text, and whether every element was closed."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.text, self.open, self.closed = [], [], [], True
        self.feed(html)
        self.close()
        self.closed &= not self.open

    def handle_starttag(self, tag, _attributes):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.closed &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        else:
            self.text.append(data)


def name(result):
    return type(result).__name__


def row(**more):
    return {"condition": "baseline", "queries": "all", "estimate": 0.25, "se": 0.1, "low": 0.0, "high": 0.5} | more


SETTINGS = {"level": 0.95, "n_documents": 24, "resampling_unit": "document"}


class TestHTML:
    def test_is_well_formed_and_shows_every_row_or_says_how_many_it_does_not(self, results):
        for one in results:
            page = Page(one._repr_html_())
            assert page.closed, name(one)
            assert len(page.rows) == 1 + min(len(one.table), SHOWN), name(one)
            assert {len(cells) for cells in page.rows} == {len(page.rows[0])}, name(one)
            hidden = len(one.table) - SHOWN
            said = [text for text in page.text if "more rows" in text]
            assert said == ([f"... {hidden} more rows in .table"] if hidden > 0 else []), name(one)

    def test_units_stand_where_there_are_any(self, results):
        for one in results:
            page = Page(one._repr_html_())
            heading = page.text[0]
            assert heading.startswith(one.title)
            assert "()" not in heading + "".join(page.rows[0])
            assert heading == (f"{one.title} ({unit_text(one.units)})" if unit_text(one.units) else one.title)
            if isinstance(one, MixedResult):
                assert "unit" in page.rows[0]
            if isinstance(one, WideResult):
                assert "leakage (nats²)" in page.rows[0]

    def test_no_raw_nan_and_no_long_number(self, results):
        for one in results:
            cells = [cell for cells in Page(one._repr_html_()).rows[1:] for cell in cells]
            assert not {"nan", "NaN", "None", "<NA>"} & set(cells), name(one)
            numbers = [cell for cell in cells if cell.replace(".", "").replace("-", "").isdigit() and "." in cell]
            assert numbers
            assert max(map(len, numbers)) <= len("-0.00123"), name(one)

    def test_what_is_written_by_others_is_escaped(self):
        table = pd.DataFrame([row(condition="<script>", note="a & b")])
        result = LeakageResult(table, SETTINGS | {"baseline": "<b>"}, ("mind <i> & others",))
        html = result._repr_html_()
        assert "&lt;script&gt;" in html
        assert not re.search("<(script|b|i)>", html)
        page = Page(html)
        assert page.rows[1][0] == "<script>"
        assert page.text[-1] == "note: mind <i> & others"

    def test_settings_and_what_else_there_is(self, results):
        for one in results:
            text = " ".join(Page(one._repr_html_()).text)
            assert all(f"{key.replace('_', ' ')} {value}" in text for key, value in one.settings.items())
        text = {name(one): " ".join(Page(one._repr_html_()).text) for one in results}
        assert "more in .contrasts" in text["SinkResult"]
        assert "more in .identification" in text["TrajectoryResult"]
        assert "more in .heads" in text["ModelLevelResult"]
        assert "more in" not in text["LeakageResult"]


class TestIntervals:
    def test_limits_share_a_cell_beside_the_estimate(self, results):
        for one in results:
            if isinstance(one, WideResult):
                continue
            header, *rows = Page(one._repr_html_()).rows
            at = header.index("[low, high]")
            assert header[at - 2 : at] == ["estimate", "se"] or header[at - 1] == "estimate", name(one)
            assert "low" not in header
            assert "high" not in header
            for cells, (_, numbers) in zip(rows, one.table.iterrows(), strict=False):
                given = pd.notna(numbers.low)
                if given and np.isinf(numbers.low):
                    rays = str(numbers.get("set", "")) == "rays"
                    assert cells[at].startswith("(-inf, ")
                    assert (" or [" in cells[at]) == rays
                    continue
                limits = [significant(numbers.low), significant(numbers.high)]
                if given and limits[0] == limits[1]:  # more digits, or none that tell them apart
                    assert cells[at] == f"both {limits[0]}" or len(set(cells[at].strip("[]").split(", "))) == 2
                else:
                    assert cells[at] == (f"[{limits[0]}, {limits[1]}]" if given else "–")

    def test_further_intervals_stand_beside_what_they_are_of(self, results):
        (sinks,) = (one for one in results if name(one) == "SinkResult")
        header = Page(sinks._repr_html_()).rows[0]
        assert header[header.index("output_fraction") + 1] == "[low, high]"
        assert header[header.index("value_norm_ratio") + 1] == "[low, high]"
        (earlier,) = (one for one in results if name(one) == "EarlierMetricsResult")
        header = Page(earlier._repr_html_()).rows[0]
        assert header[header.index("leakage (nats²)") + 1] == "[low, high]"
        assert header[header.index("residual_share") + 1] == "[low, high]"

    def test_no_estimate_is_printed_outside_its_own_interval(self):
        draws = np.random.default_rng(0)
        centre = draws.normal(size=2000) * 10.0 ** draws.integers(-6, 6, 2000)
        width = np.abs(centre) * 10.0 ** draws.uniform(-6, 1, 2000)
        low, high = centre - width * draws.uniform(size=2000), centre + width * draws.uniform(size=2000)
        view = view_of(pd.DataFrame({"estimate": centre, "low": low, "high": high}), {})
        for estimate, interval in view.rows:
            printed = [float(limit) for limit in re.findall(r"[-+.e\d]+", interval.removeprefix("both"))]
            assert min(printed) <= float(estimate) <= max(printed), (estimate, interval)


class TestCells:
    def test_undefined_numbers_are_dashes_with_a_note(self):
        ds = ps.simulate(n=30, length=48, seed=1).dataset
        # The same attention at every query: no leakage to share out.
        names = ("logit", "sink_logit", "log_denominator_rest")
        result = ps.shares(sealed(ds.assign({name: ds[name].where(~np.isfinite(ds[name]), 0.0) for name in names})))
        header, *rows = Page(result._repr_html_()).rows
        undefined = [cells for cells in rows if cells[header.index("note")] == "no leakage beyond rounding"]
        assert undefined
        for cells in undefined:
            assert {cells[header.index(column)] for column in ("estimate", "se", "[low, high]", "p", "q")} == {"–"}

    def test_a_column_of_empty_notes_is_left_out(self):
        frame = pd.DataFrame([row(note=""), row(note="")])
        assert "note" not in view_of(frame, {}).header
        assert "note" in view_of(pd.concat([frame, pd.DataFrame([row(note="few")])]), {}).header

    def test_truth_and_absence(self):
        frame = pd.DataFrame({"holds": [True, None, False], "estimate": [1e-9, np.nan, 1.5]})
        assert view_of(frame, {}).rows == [["1.00e-09", "yes"], ["–", "–"], ["1.50", "no"]]

    def test_a_p_below_a_millionth_is_a_bound(self):
        frame = pd.DataFrame({"estimate": [1.0, 2.0], "p": [1e-158, 1e-6], "spline_q": [np.nan, 0.0]})
        assert view_of(frame, {}).rows == [["1.00", "<1e-6", "–"], ["2.00", "1.00e-06", "<1e-6"]]
        assert "&lt;1e-6" in view_of(frame, {}).html()

    def test_columns_come_in_the_order_of_all_tables(self, results):
        for one in results:
            if isinstance(one, WideResult):
                continue
            header = [title.split(" (")[0] for title in Page(one._repr_html_()).rows[0]]
            known = [list(COLUMNS).index(title) for title in header if title in COLUMNS]
            assert known == sorted(known), name(one)

    def test_text_and_html_say_the_same(self, results):
        for one in results:
            header, *rows = Page(one._repr_html_()).rows
            lines = one.summary().split("\n")
            assert lines[1].split() == " ".join(header).split()
            for line, cells in zip(lines[3:], rows, strict=False):
                assert line.split() == " ".join(cells).split()
            assert repr(one) == one.summary()

    def test_fewer_rows_can_be_asked_for(self, results):
        text = results[0].summary(rows=2)
        assert f"... {len(results[0].table) - 2} more rows in .table" in text
        assert len(text.split("\n")) == 1 + 2 + 2 + 2


@pytest.mark.parametrize(
    "model", ["/data/models/mine", "./mine", "../runs/mine/", "~/mine", "data/models/mine", "C:\\\\m\\\\mine"]
)
def test_a_local_model_is_named_by_its_folder(model):
    assert model_name(model) == "mine"
    assert model_name(f"{model}, run 1/2") == "mine, run 1/2"


class TestFurther:
    def test_data_frame_is_a_copy(self, results):
        for one in results:
            frame = one.to_dataframe()
            pd.testing.assert_frame_equal(frame, one.table)
            frame[frame.columns[-1]] = "changed"
            assert not frame.equals(one.table)

    def test_pandas_writes_latex(self, results):
        for one in results:
            latex = one.table.to_latex(index=False)
            assert latex.count("\\\\") == 1 + len(one.table), name(one)

    def test_dataset_has_the_numbers_under_their_labels(self, results):
        for one in results:
            ds = one.to_dataset()
            assert list(ds.dims) == (["row"] if isinstance(one, MixedResult) else one.keys), name(one)
            labelled = one.table if isinstance(one, MixedResult) else one.table.set_index(one.keys)
            found = ds.to_dataframe().loc[labelled.index, labelled.columns]
            pd.testing.assert_frame_equal(found, labelled, check_dtype=False, check_names=False, check_index_type=False)

    def test_dataset_explains_itself(self, results):
        for one in results:
            ds = one.to_dataset()
            assert ds.attrs["title"] == one.title
            assert ds.attrs.items() >= {k: list(v) if k == "offsets" else v for k, v in one.settings.items()}.items()
            for column, unit in one.all_units.items():
                if column in ds:
                    assert ds[column].attrs["units"] == (unit or "see the variable unit"), name(one)
            for column in set(map(str, ds.variables)) - {"row"}:
                assert ds[column].attrs["long_name"] == COLUMNS[column], column
            assert one.title in ds._repr_html_()

    def test_a_result_without_rows_has_all_of_it(self, results):
        (trajectory,) = (one for one in results if name(one) == "TrajectoryResult")
        whole = trajectory.identification
        empty = replace(whole, table=whole.table.iloc[:0])
        assert len(Page(empty._repr_html_()).rows) == 1
        assert empty.to_dataset().sizes["condition"] == 0
        assert empty.title in repr(empty)


@pytest.mark.parametrize("value", [0.0, 1e-12, -3.14159, 99999.0, np.float32(0.5), np.inf, True, 12, "mask", pd.NA])
def test_no_cell_is_empty(value):
    assert significant(value)
