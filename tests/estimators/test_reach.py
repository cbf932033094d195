"""Reach: horizons against models in which a token is exchanged, and fields that hold position within reach only."""

import numpy as np
import pytest

import posstats as ps
from posstats.errors import DesignError
from posstats.estimators.reach import horizons, layer_windows
from tests import tiny
from tests.refused import refused

WINDOW, LENGTH = 5, 80
WINDOWED = {
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"sliding_window": WINDOW, "max_window_layers": 1},
    "gemma2": {"sliding_window": WINDOW},
}


@pytest.fixture(scope="module", params=WINDOWED)
def recorded(request, tmp_path_factory):
    model = tiny.build(request.param, dtype="float64", **WINDOWED[request.param])
    sequences = ps.random_sequences(tiny.tokenizer(), n=24, length=LENGTH)
    path = tmp_path_factory.mktemp("reach") / "dump.h5"
    ps.dump(model, sequences, path, conditions=["baseline", "bos=token:7"], offsets=(0, 1),
            progress=False)  # fmt: skip
    with ps.open_dump(path) as ds:
        yield ds.load()


def test_position_0_moves_attention_within_reach_alone(recorded):
    """Another token at position 0 changes log attention up to the horizon of the layer, and nothing behind it."""
    window = layer_windows(recorded)
    horizon = horizons(dict(enumerate(window)))
    moved = np.abs(ps.decompose(recorded).log_attention.diff("condition")).max(
        ["condition", "sequence", "head", "offset"]
    )
    for layer, last in horizon.items():
        by_query = moved.sel(layer=layer).values
        if np.isinf(last):
            assert (by_query[1:] > 0).all()
            continue
        last = int(last)
        assert (by_query[1 : last + 1] > 1e-12).all()
        assert by_query[last + 1 :].max() < 1e-12


def test_residual_of_models_ends_at_the_horizon(recorded):
    result = ps.reach(recorded.sel(condition=["baseline"]), n_permutations=199)
    table = result.table
    for layer, rows in table.groupby("layer"):
        w, last = rows.window.iloc[0], rows.horizon.iloc[0]
        first = rows.queries.str.extract(r"\[(\d+)")[0].astype(int)
        stop = rows.queries.str.extract(r", (\d+)\)")[0].astype(int)
        assert first.iloc[0] == 2
        assert (stop.iloc[:-1].values == first.iloc[1:].values).all()
        assert stop.iloc[-1] == LENGTH // 2
        zone = np.where(first < w, "in sight", np.where(first <= last, "within reach", "beyond reach"))
        assert (rows.zone == zone).all(), layer
        assert (
            np.where(stop - 1 < w, "in sight", np.where(stop - 1 <= last, "within reach", "beyond reach")) == zone
        ).all()
    beyond = table[table.zone == "beyond reach"]
    if len(beyond):
        assert (beyond.q > 0.05).all()
        assert (beyond.low == 0).mean() > 0.9
        assert (beyond.estimate.abs() < 4 * beyond.se).all()


def field(drift):
    """Windowed attention of 3 layers whose logits have noise, and at layer l a drift up to the layer's horizon."""
    rng = np.random.default_rng(2)
    window, length, n = 8, 128, 30
    i, j = np.arange(length)[:, None], np.arange(length)
    shown = (j <= i) & (i - j < window)
    logits = 0.3 * rng.normal(size=(n, 3, 2, length, length))
    for layer in range(3):
        inside = (i >= window) & (i <= (layer + 1) * (window - 1)) & (i - j == 1)
        logits[:, layer] += drift * inside
    weights = np.where(shown, np.exp(logits), 0)
    return ps.from_attention(weights / weights.sum(-1, keepdims=True), offsets=(0, 1))


def test_position_within_reach_alone_is_found_there():
    result = ps.reach(field(2.0), n_permutations=199)
    rows = result.table[result.table.layer == 2].set_index("queries")
    assert rows.zone.to_dict() == {
        "[2, 8)": "in sight", "[8, 16)": "within reach", "[16, 22)": "within reach", "[22, 24)": "beyond reach",
        "[24, 32)": "beyond reach", "[32, 64)": "beyond reach",
    }  # fmt: skip
    assert (rows[rows.zone == "within reach"].low > 0.5).all()
    beyond = result.table[result.table.zone == "beyond reach"]
    assert (beyond.low < 0.01).all()
    assert beyond.estimate.abs().max() < 0.02
    assert result.table[(result.table.layer == 0)].zone.unique().tolist() == ["in sight", "beyond reach"]
    assert result.slope.table.low[0] > 0
    assert result.slope.table.n_layers[0] == 3


def test_bins_are_those_of_magnitude():
    """The bin of an octave has the estimate, the interval and the test that ps.magnitude gives it."""
    ds = field(1.0).sel(layer=[0])
    reach = ps.reach(ds, n_permutations=199).table.set_index("queries").loc["[32, 64)"]
    whole = ps.magnitude(ds, n_permutations=199).table.query("term == 'residual'").set_index("queries").loc["[32, 64)"]
    for name in ("estimate", "se", "low", "high", "p"):
        assert reach[name] == pytest.approx(whole[name], rel=1e-9), name


def test_slope_is_that_of_the_layers():
    ds = field(1.0)
    result = ps.reach(ds, n_permutations=99)

    # Layer by layer, where the bin of the slope is a bin of the table.
    by_layer = result.table[result.table.queries == "[8, 16)"].set_index("layer").estimate
    assert set(by_layer.index) == {0, 2}
    alone = ps.reach(ds.sel(layer=[0, 1]), n_permutations=99)
    layer_1 = by_layer[0] + alone.slope.table.estimate[0]
    expected = np.polyfit([0, 1, 2], [by_layer[0], layer_1, by_layer[2]], 1)[0]
    assert result.slope.table.estimate[0] == pytest.approx(expected)


def test_refusals():
    no_window = ps.simulate(n=24, length=32, offsets=(0,), seed=0).dataset
    refused(DesignError, "No layer has a window below the 16 analysed queries", ps.reach, no_window)
    refused(DesignError, "from the first one on", ps.reach, field(0.0).sel(layer=[1, 2]))
