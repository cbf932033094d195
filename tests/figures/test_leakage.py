"""Figures: axes in, axes out, the numbers of the table on them, nothing left behind."""

import numpy as np
import pytest

import posstats as ps
from posstats import figures
from posstats.errors import InputError
from tests.refused import refused
from tests.sealed import sealed

CONDITIONS = ["baseline", "bos=mean", "bos=zero"]


@pytest.fixture(scope="module")
def dataset():
    return ps.simulate(
        n=25, length=128, layers=3, heads=4, offsets=(0, 1), conditions=CONDITIONS, strength=2.0, seed=3
    ).dataset


@pytest.fixture(scope="module")
def by_layer(dataset):
    return ps.shares(dataset.sel(condition=["baseline"]), by=["layer"], n_resamples=99, n_permutations=199)


@pytest.fixture(scope="module")
def by_head(dataset):
    """Shares of heads, one of which has no leakage to share."""
    still = dataset.sel(condition=["baseline"]).copy(deep=True)
    for name in ("logit", "sink_logit", "log_denominator_rest"):
        values = still[name].values
        # The same attention at every query.
        values[:, :, 1, 2] = np.where(np.isfinite(values[:, :, 1, 2]), 0.0, values[:, :, 1, 2])
    return ps.shares(sealed(still), by=["layer", "head"], octaves=False, n_resamples=99, n_permutations=199)


@pytest.fixture(scope="module")
def magnitude(dataset):
    return ps.magnitude(dataset, n_resamples=99)


@pytest.fixture(scope="module")
def removal(dataset):
    return ps.removal(dataset, CONDITIONS[1:], n_resamples=99)


def test_intervals_are_named(by_layer, magnitude, removal):
    axes = (
        figures.shares_by_layer(by_layer),
        figures.magnitude_by_octave(magnitude),
        figures.removal_by_octave(removal),
    )
    for ax in axes:
        assert ax.get_title(loc="left") == "bars: 95% intervals, resampling unit: document (G = 25)"
        assert ax.get_legend() is not None


def lines(ax):
    """Label -> data of the labelled lines with error bars."""
    return {container.get_label(): container.lines[0].get_xydata() for container in ax.containers}


def test_shares_by_layer_shows_the_table(by_layer):
    found = lines(figures.shares_by_layer(by_layer))
    rows = by_layer.table[by_layer.table.queries == "all"]
    for term in ("mask", "residual"):
        np.testing.assert_array_equal(found[term][:, 1], rows[rows.term == term].estimate)
        np.testing.assert_array_equal(found[term][:, 0], [0, 1, 2])


def test_error_bars_end_at_the_limits(by_layer):
    ax = figures.shares_by_layer(by_layer, terms=["mask"])
    segments = np.array([path.vertices for path in ax.containers[0].lines[2][0].get_paths()])
    rows = by_layer.table.query("queries == 'all' and term == 'mask'")
    np.testing.assert_allclose(segments[:, 0, 1], rows.low)
    np.testing.assert_allclose(segments[:, 1, 1], rows.high)


def marks(ax):
    """Label -> number of marks of the unconnected markers of a map."""
    return {line.get_label(): len(line.get_xdata()) for line in ax.lines}


def test_head_map_marks_significance_and_heads_without_leakage(by_head):
    rows = by_head.table[by_head.table.term == "residual"]
    assert rows[rows.estimate.isna()][["layer", "head"]].to_numpy().tolist() == [[1, 2]]
    found = marks(figures.head_map(by_head))
    assert found == {
        "differs from 0 (q < 0.05)": int((rows.q < 0.05).sum()),
        "no leakage": 1,
    }
    assert found["differs from 0 (q < 0.05)"] > 0


def test_head_map_puts_every_head_in_its_cell(by_head):
    ax = figures.head_map(by_head)
    shown = ax.images[0].get_array()
    rows = by_head.table[by_head.table.term == "residual"]
    assert shown.shape == (4, 3)
    for row in rows.itertuples():
        if np.isnan(row.estimate):
            assert shown.mask[row.head, row.layer]
        else:
            assert shown[row.head, row.layer] == row.estimate
    low, high = ax.images[0].get_clim()
    assert low == -high
    assert high >= 1


def test_shares_by_layer_marks_layers_without_leakage(by_head):
    only = by_head.table[by_head.table["head"] == 2].drop(columns="head")
    result = type(by_head)(only, by_head.settings)
    crosses = [line for line in figures.shares_by_layer(result).lines if line.get_label() == "no leakage"]
    assert crosses[0].get_xdata().tolist() == [1]


def test_octaves_do_not_overlap_and_carry_the_estimates(magnitude, removal):
    ax = figures.magnitude_by_octave(magnitude)
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == ["[2, 4)", "[4, 8)", "[8, 16)", "[16, 32)", "[32, 64)"]
    rows = magnitude.table.query("condition == 'bos=zero' and term == 'residual'").set_index("queries")
    np.testing.assert_array_equal(lines(ax)["bos=zero"][:, 1], rows.loc[labels].estimate)
    rows = removal.table.query("condition == 'bos=mean'").set_index("queries")
    np.testing.assert_array_equal(
        lines(figures.removal_by_octave(removal))["bos=mean"][:, 1], rows.loc[labels].estimate
    )


def test_magnitudes_are_on_a_log_scale_only_where_all_can_be_seen(magnitude):
    table = magnitude.table.copy()
    table["low"] = table.estimate - 1.0
    assert figures.magnitude_by_octave(type(magnitude)(table, magnitude.settings)).get_yscale() == "linear"
    table[["estimate", "low", "high"]] = [2.0, 1.0, 3.0]
    assert figures.magnitude_by_octave(type(magnitude)(table, magnitude.settings)).get_yscale() == "log"


def test_removal_is_held_against_the_paper(removal):
    ax = figures.removal_by_octave(removal)
    assert any(line.get_label().startswith("0.40") and set(line.get_ydata()) == {0.4} for line in ax.lines)
    assert not any(
        line.get_label().startswith("0.") for line in figures.removal_by_octave(removal, reference=None).lines
    )


def test_a_condition_keeps_its_colour_in_both_figures(magnitude, removal):
    def colours(ax):
        return {c.get_label(): c.lines[0].get_color() for c in ax.containers}

    first, second = colours(figures.magnitude_by_octave(magnitude)), colours(figures.removal_by_octave(removal))
    assert {name: first[name] for name in second} == second
    assert len(set(first.values())) == len(CONDITIONS)


def test_lines_differ_in_marker_too(magnitude):
    containers = figures.magnitude_by_octave(magnitude).containers
    assert len({container.lines[0].get_marker() for container in containers}) == len(CONDITIONS)


def test_conditions_can_be_chosen(magnitude):
    assert list(lines(figures.magnitude_by_octave(magnitude, conditions=["bos=zero"]))) == ["bos=zero"]
    refused(InputError, "no bos=none", figures.magnitude_by_octave, magnitude, conditions=["bos=none"])


def test_a_result_of_the_wrong_grouping_is_refused(by_layer, dataset):
    refused(InputError, "layer, head", figures.head_map, by_layer)
    two = ps.shares(dataset, by=["layer"], octaves=False, n_resamples=99, n_permutations=19)
    refused(InputError, "one condition", figures.shares_by_layer, two)
    by = ps.magnitude(dataset.isel(condition=[0]), by=["layer"], n_resamples=99)
    refused(InputError, "pooled", figures.magnitude_by_octave, by)
