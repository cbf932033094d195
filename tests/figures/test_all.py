"""What holds for every figure: axes in and axes out, colours for any colour vision, units, named inference, PDF."""

import importlib
import pkgutil
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import posstats as ps
from posstats import figures
from posstats.figures.leakage import save_figure
from posstats.results import forest
from tests import position0
from tests.sinks import anchored

QUICK = {"n_resamples": 99, "n_permutations": 99}
#: Okabe, M. and Ito, K. (2008): Color Universal Design.
OKABE_ITO = {"#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"}
#: Every public function of the modules of figures, whether the room offers it or not.
NAMES = sorted(
    name
    for path in pkgutil.iter_modules(figures.__path__, "posstats.figures.")
    if path.name != "posstats.figures.drawing"
    for name, value in vars(importlib.import_module(path.name)).items()
    if callable(value) and getattr(value, "__module__", "") == path.name and not name.startswith("_")
)


@pytest.fixture(scope="module")
def shown():
    """Name of a figure function -> a result that it draws."""
    ds = ps.simulate(
        n=24, length=64, layers=3, heads=4, conditions=["baseline", "bos=mean"], strength=2, seed=3
    ).dataset
    baseline, first = ds.sel(condition=["baseline"]), position0.synthetic(n=24, tokens=3)
    windowed = ps.simulate(n=24, length=64, layers=3, window=8, offsets=(0, 1), seed=0).dataset
    options = QUICK | {"octaves": False}
    trajectory, sinks = ps.trajectory(first, n_permutations=9), ps.sinks(first)
    return {
        "shares_by_layer": ps.shares(baseline, by=["layer"], **options),
        "head_map": ps.shares(baseline, by=["layer", "head"], **options),
        "magnitude_by_octave": ps.magnitude(ds, **QUICK),
        "removal_by_octave": ps.removal(ds, "bos=mean", **QUICK),
        "attention_map": sinks,
        "anchoring_by_position": sinks,
        "distance_by_depth": trajectory,
        "identification_by_layer": trajectory.identification,
        "displacement_by_depth": ps.readers(first, n_permutations=99),
        "sink_map": (keys := ps.sinks(anchored("token")[0], keys="all", n_permutations=9)),
        "sink_tokens": keys,
        "reach_by_layer": ps.reach(windowed, **QUICK),
        "verdict_grid": ps.claims(first, **QUICK),
        "contrast_by_quantity": ps.contrast(baseline, baseline, quantities=["share"], n_permutations=9),
    }


@pytest.fixture(scope="module")
def drawn(shown):
    """Name of a figure function -> function that draws it on axes."""
    return {name: lambda ax=None, name=name: getattr(figures, name)(shown[name], ax) for name in shown}


def test_every_figure_is_looked_at(drawn):
    assert sorted([*drawn, "save_figure"]) == NAMES == sorted(figures.__all__)
    assert ps.figures is figures


@pytest.fixture(params=[name for name in NAMES if name != "save_figure"])
def draw(request, drawn):
    return drawn[request.param]


def test_draws_on_the_axes_it_is_given_and_makes_no_figure(draw, monkeypatch):
    ax = Figure().add_subplot()
    monkeypatch.setattr(forest, "Figure", None)
    before = dict(mpl.rcParams)
    assert draw(ax) is ax
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("name", [name for name in NAMES if name != "save_figure"])
def test_makes_labelled_axes_and_leaves_the_result_as_it_was(drawn, shown, name):
    before = shown[name].table.copy()
    ax = drawn[name]()
    assert ax.figure is not drawn[name]().figure
    assert name == "verdict_grid" or ax.get_xlabel()
    assert name in ("verdict_grid", "contrast_by_quantity") or ax.get_ylabel()
    assert shown[name].table.equals(before)


def colours(ax):
    """Colours of lines and patches that carry data."""
    for line in ax.lines:
        yield line.get_color()
    for patch in ax.patches:
        yield patch.get_facecolor()


def test_colours_are_told_apart_with_any_colour_vision(draw):
    ax = draw()
    found = {to_hex(colour) for colour in colours(ax)}
    greys = {colour for colour in found if len({colour[1:3], colour[3:5], colour[5:7]}) == 1}
    assert found - greys <= OKABE_ITO
    assert {image.get_cmap().name for image in ax.images} <= {"cividis", "PuOr_r"}


def test_says_level_and_resampling_unit(draw):
    title = draw().get_title(loc="left")
    assert "resampling unit: document" in title
    assert "G = 24" in title or "(G" not in title
    assert "95% intervals" in title or "q over all heads" in title


def test_numbers_on_axes_have_units(draw):
    ax = draw()
    bars = [other.get_ylabel() for other in ax.figure.axes if other is not ax]
    labels = [label for label in (ax.get_xlabel(), ax.get_ylabel(), *bars) if label]
    # A layer, a head and a claim are names.
    assert all(label in ("layer", "head") or re.search(r"\(.+\)$", label) for label in labels), labels
    assert labels or not ax.images


def boxes(ax):
    """Extent in the figure, in pixels, of titles, labels of axes (those of colour bars too) and the legend."""
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    pieces = [ax._left_title, *(one for every in ax.figure.axes for one in (every.xaxis.label, every.yaxis.label))]
    pieces = [piece for piece in pieces if piece.get_text()] + [ax.get_legend()] * (ax.get_legend() is not None)
    return [piece.get_window_extent(canvas.get_renderer()) for piece in pieces]


@pytest.mark.parametrize("size", [(6.4, 3.6), (4.8, 3.2)])
def test_labels_and_legend_neither_cover_each_other_nor_leave_the_figure(draw, size):
    ax = Figure(figsize=size, layout="constrained").add_subplot()
    if draw(ax).get_xlabel() == "" and size[0] < 6:
        ax.figure.set_size_inches(6, 2)  # a grid needs the width for the names of its rows
    found, whole = boxes(ax), ax.figure.bbox
    for k, one in enumerate(found):
        assert not any(one.overlaps(other) for other in found[k + 1 :])
        assert one.x0 >= 0
        assert one.y0 >= 0
        assert one.x1 <= whole.x1
        assert one.y1 <= whole.y1


@pytest.mark.parametrize("name", ["shares_by_layer", "head_map", "magnitude_by_octave", "removal_by_octave"])
def test_saves_vectors_and_the_same_bytes_every_time(drawn, name, tmp_path):
    png, pdf = save_figure(drawn[name](), tmp_path, "figure")
    again = save_figure(drawn[name](), tmp_path / "b" / "c", "figure")
    assert [path.name for path in again] == ["figure.png", "figure.pdf"]
    assert [path.read_bytes() for path in again] == [png.read_bytes(), content := pdf.read_bytes()]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 5000
    assert content.startswith(b"%PDF")
    assert b"CreationDate" not in content
    assert b"/FontFile2" in content  # text is text
    assert (b"/Subtype /Image" in content) == (name == "head_map")
    assert plt.get_fignums() == []
