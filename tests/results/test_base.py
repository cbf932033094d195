"""Results are data: facts on the class, labelled arrays that lose nothing, a part selected by its labels."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import posstats as ps
from posstats.dataset.terms import few_documents_note, repeated_documents_note
from posstats.errors import InputError
from posstats.results.base import LeakageResult
from posstats.results.claims import MixedResult
from posstats.results.decoding import DecodingResult, DiscriminationResult
from posstats.results.table import to_latex, to_markdown
from posstats.vocabulary import Note


def name(result):
    return type(result).__name__


class TestFacts:
    def test_every_tested_result_states_its_null_and_family(self, results):
        for one in results:
            assert ("p" in one.rests_on) == ("p" in one.table), name(one)
            assert ("q" in one.rests_on) == ("q" in one.table), name(one)
            assert "{" not in "".join(one.rests_on.values()), name(one)
            # Everything but traps of known truth has intervals, and says how they were made.
            assert ("intervals" in one.rests_on) == (name(one) != "TrapResult")

    def test_a_class_that_inherits_states_its_own(self):
        assert DiscriminationResult.null != DecodingResult.null
        assert DiscriminationResult.family == DecodingResult.family
        assert not DiscriminationResult.queries

    def test_adjustment_is_that_of_the_settings(self):
        ds = ps.simulate(n=24, length=32, offsets=(0, 1), seed=0).dataset
        for how, words in {"by": "Benjamini-Yekutieli over all rows", "holm": "Holm over all rows"}.items():
            assert ps.leakage(ds, octaves=False, n_permutations=9, adjust=how).rests_on["q"].startswith(words)


class TestDataset:
    def test_labels_keep_the_order_of_the_rows(self, results):
        for one in results:
            ds = one.to_dataset()
            for key in one.keys:
                expected = one.table[key] if isinstance(one, MixedResult) else pd.unique(one.table[key])
                assert ds[key].values.tolist() == expected.tolist(), (name(one), key)
                assert key in ds.coords

    def test_terms_are_not_sorted_by_the_alphabet(self, results):
        (shares,) = (one for one in results if name(one) == "ShareResult")
        assert shares.to_dataset().term.values.tolist() == shares.table.term.drop_duplicates().tolist()
        assert sorted(shares.table.term.unique()) != shares.table.term.drop_duplicates().tolist()

    def test_numbers_are_numbers_and_texts_texts(self, results):
        for one in results:
            for column, values in one.to_dataset().data_vars.items():
                kinds = {type(value) for value in values.values.ravel().tolist()}
                assert kinds <= {str} or values.dtype.kind in "iufb", (name(one), column)

    def test_truth_values_with_gaps_are_numbers(self, results):
        (trajectory,) = (one for one in results if name(one) == "TrajectoryResult")
        holds = trajectory.to_dataset().holds
        assert holds.dtype == np.float64
        assert set(np.unique(holds)[:-1]) <= {0.0, 1.0}
        assert np.isnan(holds.values).any()

    def test_netcdf_and_back_is_the_table(self, results, tmp_path):
        for one in results:
            ds = one.to_dataset()
            ds.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
            with xr.open_dataset(tmp_path / "result.nc", engine="h5netcdf") as back:
                xr.testing.assert_equal(back, ds)
                assert set(back.attrs) == set(ds.attrs)
                assert all(np.array_equal(*map(np.atleast_1d, (back.attrs[key], ds.attrs[key]))) for key in ds.attrs), (
                    name(one)
                )
                frame = back.to_dataframe().reset_index()[list(one.table)]
            keys = ["row"] if isinstance(one, MixedResult) else one.keys
            if keys != ["row"]:
                frame = one.table[keys].merge(frame, on=keys, how="left", sort=False)[list(one.table)]
            pd.testing.assert_frame_equal(frame, one.table, check_dtype=False, check_exact=True)

    def test_notes_and_hypotheses_survive(self):
        ds = ps.simulate(n=24, length=32, offsets=(0, 1), seed=0).dataset
        result = LeakageResult(
            ps.leakage(ds, octaves=False, n_permutations=9).table, {"n_permutations": 9, "none": None}, ("one", "two")
        )
        made = result.to_dataset()
        assert made.attrs["notes"] == ["one", "two"]
        assert made.attrs["none"] == "None"
        assert made.p.attrs["comment"] == result.rests_on["p"]
        assert made.attrs["queries"] == LeakageResult.queries


class TestSelection:
    def test_rows_by_labels(self, results):
        shares = next(one for one in results if name(one) == "ShareResult")
        part = shares.sel(term="mask", layer=0, head=[1, 2], condition="baseline", queries="all")
        assert type(part) is type(shares)
        assert part.table[["head", "term"]].values.tolist() == [[1, "mask"], [2, "mask"]]
        whole = shares.table.query("term == 'mask' and layer == 0 and head in [1, 2] and condition == 'baseline'")
        pd.testing.assert_frame_equal(part.table, whole[whole.queries == "all"].reset_index(drop=True))
        assert part.settings == shares.settings
        assert dict(part.to_dataset().sizes) == {"condition": 1, "layer": 1, "head": 2, "queries": 1, "term": 1}

    def test_every_kind_can_be_selected_by_every_key(self, results):
        for one in results:
            for key in one.keys:
                value = one.table[key].iloc[-1]
                assert one.sel(**{key: value}).table[key].unique().tolist() == [value], (name(one), key)

    @pytest.mark.parametrize(
        ("where", "words"),
        [
            ({"terms": "mask"}, "has no key column 'terms'; it has condition, layer, head, queries, term"),
            ({"estimate": 0.5}, "has no key column 'estimate'"),
            ({"term": "residul"}, "has no term 'residul'; it has "),
            ({"layer": [0, 99]}, "has no layer 99; it has "),
            ({"layer": []}, "selects no row"),
        ],
    )
    def test_what_is_not_there_is_refused(self, results, where, words):
        shares = next(one for one in results if name(one) == "ShareResult")
        with pytest.raises(InputError, match=words):
            shares.sel(**where)


class TestWriting:
    def test_every_result_writes_and_draws_itself(self, results):
        for one in results:
            assert one.to_markdown() == to_markdown(one)
            assert one.to_latex("x") == to_latex(one, "x")
            if "estimate" not in one.table:
                with pytest.raises(InputError, match="no estimate with an interval"):
                    one.plot()
            elif 0 < len(one.table) <= 200:
                ax = one.plot(label="this")
                drawn = ax.lines[0].get_xdata()
                np.testing.assert_array_equal(np.asarray(drawn, float), one.table.estimate.to_numpy(float))
                limits = [segment[:, 0] for segment in ax.collections[0].get_segments() if len(segment)]
                finite = one.table[["low", "high"]].replace([np.inf, -np.inf], np.nan).dropna().to_numpy(float)
                np.testing.assert_allclose([x for x in limits if np.isfinite(x).all()], finite)
                assert [text.get_text() for text in ax.get_legend().get_texts()] == ["this"]

    def test_some_columns_and_rows(self, results):
        shares = next(one for one in results if name(one) == "ShareResult")
        where = {"term": ["mask", "sink"], "layer": 0, "head": 1, "condition": "baseline", "queries": "all"}
        lines = shares.to_markdown(columns=["term", "low", "high", "estimate"], where=where).splitlines()
        assert lines[2] == "| term | 95% interval | estimate |"
        assert [line.split(" | ")[0] for line in lines[4:6]] == ["| mask", "| sink"]
        assert r"\caption{Mine}" in shares.to_latex(caption="Mine", where=where)

    def test_two_results_share_axes(self, results):
        shares = next(one for one in results if name(one) == "ShareResult").sel(head=0, queries="all")
        ax = shares.plot(label="a")
        assert shares.plot(ax, label="b") is ax
        first, second = (line.get_ydata() for line in ax.lines)
        assert (np.asarray(second) > np.asarray(first)).all()
        assert len(ax.get_yticks()) == len(shares.table)


class TestNotes:
    def test_a_note_is_a_text_with_a_kind(self):
        note = Note("few", "inference")
        assert note == "few"
        assert Note(note).kind == Note(note, "design").kind == "inference"
        assert Note("plain").kind == "note"

    def test_what_is_noted_of_data_has_its_kind(self):
        ds = ps.simulate(n=24, length=32, offsets=(0, 1), seed=0).dataset
        assert [note.kind for note in few_documents_note(3)] == ["inference"]
        assert [note.kind for note in repeated_documents_note(ds.assign(token_id=ds.token_id * 0))] == ["design"]

    def test_kinds_reach_the_result(self):
        ds = ps.simulate(n=24, length=32, heads=3, layers=2, offsets=(0, 1), seed=0).dataset
        by_head = ps.leakage(ds, by=["layer", "head"], octaves=False, n_permutations=9)
        assert [note.kind for note in by_head.notes] == ["inference"]


def test_kinds_of_a_contrast(results):
    (contrast,) = (one for one in results if name(one) == "ContrastResult")
    assert [note.kind for note in contrast.notes] == ["design"]
