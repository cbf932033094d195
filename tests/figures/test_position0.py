"""Figures of position 0: the numbers of the tables on them, units and captions, nothing left behind."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats import figures
from posstats.errors import InputError
from tests import position0
from tests.sealed import sealed

REPEATED = "bos=tokens:3"


@pytest.fixture(scope="module")
def ds():
    return position0.synthetic(n=24, tokens=3)


@pytest.fixture(scope="module")
def sinks(ds):
    return ps.sinks(ds)


@pytest.fixture(scope="module")
def trajectory(ds):
    return ps.trajectory(ds, n_permutations=9)


@pytest.fixture(scope="module")
def readers(ds):
    return ps.readers(ds, n_permutations=99)


def lines(ax):
    """Label -> heights of the points."""
    found = {}
    for line, label in zip(*ax.get_legend_handles_labels(), strict=True):
        data = line[0] if hasattr(line, "lines") else line
        found[label] = np.asarray(data.get_ydata(), dtype=float)
    return found


def test_map_shows_attention_and_marks_sink_reading_heads(sinks):
    ax = figures.attention_map(sinks, condition="bos@4")
    rows = sinks.table[sinks.table.condition == "bos@4"]
    np.testing.assert_array_equal(
        ax.images[0].get_array(), rows.pivot(index="head", columns="layer", values="estimate")
    )
    marked = set(zip(*(line.astype(int).tolist() for line in ax.lines[0].get_data()), strict=True))
    assert marked == set(zip(rows.layer[rows.sink_reading], rows["head"][rows.sink_reading], strict=True))
    assert "above 0.3 with q < 0.05" in ax.get_title(loc="left")


def test_distances(trajectory):
    ax = figures.distance_by_depth(trajectory, condition=REPEATED)
    found, table = lines(ax), trajectory.table[trajectory.table.condition == REPEATED]
    for label, quantity in (("between first tokens", "between"), ("from running alone", "departure")):
        np.testing.assert_allclose(found[label], table[table.quantity == quantity].estimate)
    assert ax.get_yscale() == "log"
    # Two sequences with one first token share the embedding: the distance of 0 is drawn on the edge.
    assert found["within first tokens"][0] == pytest.approx(1e-8)
    assert "0, and what is below 1e-08, is drawn at 1e-08" in ax.get_title(loc="left")
    assert "document (G = 24)" in ax.get_title(loc="left")


def test_identification(trajectory):
    found = lines(figures.identification_by_layer(trajectory.identification))
    table = trajectory.identification.table.set_index(["heads", "layers"])
    for label, heights in found.items():
        if label.startswith(("sink", "other")):
            heads = "sink-reading" if label.startswith("sink") else "other"
            np.testing.assert_array_equal(heights, table.estimate[heads][["0", "1"]])
            assert f"{table.estimate[heads, 'all']:.2f}" in label
    assert "chance, 0.333" in found


def test_displacement(readers):
    found = lines(figures.displacement_by_depth(readers))
    rows = readers.table[readers.table.quantity == "other"].sort_values("depth")
    np.testing.assert_array_equal(found["other heads"], rows.estimate)


def test_anchoring(sinks):
    found = lines(figures.anchoring_by_position(sinks))
    row = sinks.contrasts.table.query("contrast == 'bos_minus_position0'").iloc[0]
    assert found["difference"] == pytest.approx([row.estimate])
    assert found["BOS token at P"] == pytest.approx([row.attention])


def test_a_place_without_a_number_has_its_tick(sinks):
    table = sinks.contrasts.table
    more = table[table.condition == "bos@4"].assign(condition="bos@96", estimate=np.nan, attention=np.nan, low=np.nan,
                                                    reference_attention=np.nan, high=np.nan)  # fmt: skip
    contrasts = replace(sinks.contrasts, table=pd.concat([table, more]))
    ax = figures.anchoring_by_position(replace(sinks, contrasts=contrasts))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4", "96"]


def test_where_no_head_is_sink_reading_figures_say_so(ds, trajectory):
    without = ds.copy()
    without["sink_logit"] = ds.sink_logit - 20
    without = sealed(without)
    for ax in (
        figures.anchoring_by_position(ps.sinks(without)),
        figures.displacement_by_depth(ps.readers(without, n_permutations=9)),
    ):
        assert re.search("no (head|layer)[^;]* sink-reading", ax.texts[0].get_text().replace("\n", " "))
        assert (len(ax.lines), ax.get_legend(), len(ax.get_xticks()), len(ax.get_yticks())) == (0, None, 0, 0)
        assert ax.get_xlabel()
    table = trajectory.identification.table.copy()
    table.loc[table["heads"] == "sink-reading", ["estimate", "se", "low", "high"]] = np.nan
    ax = figures.identification_by_layer(replace(trajectory.identification, table=table))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "sink-reading heads (none in some fold)" in labels
    assert not any("nan" in label for label in labels)


def test_what_cannot_be_drawn_is_refused(ds, sinks):
    with pytest.raises(InputError, match=r"'baseline'.* not 'bos=none'"):
        figures.attention_map(sinks, condition="bos=none")
    with pytest.raises(InputError, match="needs conditions bos@P"):
        figures.anchoring_by_position(ps.sinks(ds.isel(condition=[0])))
    with pytest.raises(InputError, match="needs one condition"):
        figures.identification_by_layer(ps.trajectory(ds.isel(condition=[0])).identification)
