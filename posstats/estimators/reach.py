"""Reach: how far position 0 enters the residual stream of a model with windows (docs/method.md, 8)."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.dataset.blocks import read
from posstats.dataset.parameters import explained
from posstats.errors import DesignError
from posstats.estimators.pair_products import Bin, Estimand, Estimate, estimates
from posstats.estimators.rows import ROUNDING, adjusted, conditions, prepare
from posstats.results.reach import ZONES, ReachResult, ReachSlopeResult
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import interval
from posstats.stats.pair_products.components import residual_statistics
from posstats.stats.pair_products.terms import Array, check_order
from posstats.vocabulary import Note

#: Bins are a window wide up to so many windows, and double from there on.
_SINGLE = 4


@explained
def reach(
    data: xr.Dataset,
    *,
    order: str = "shapley",
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> ReachResult:
    """Estimate how far position 0 reaches in a model with windows: residual magnitude by layer and distance.

    The input of layer l at query i depends on the tokens ``i - R_l .. i``, ``R_l = sum over layers k < l of
    (W_k - 1)``, infinite behind the first layer without a window; log attention of layer l can hold absolute position
    only where ``i <= R_l + W_l - 1``, its horizon.

    Parameters
    ----------
    %(data)s
        Tokens should be drawn independently of their position, and a sequence be 8 windows long or longer.
    %(order)s
    %(offsets)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s
        The family is all rows of one condition and zone.

    Returns
    -------
    ReachResult
        Per condition, layer and bin of i / W: the magnitude of the residual (:func:`magnitude`), averaged over the
        queries ``max offset < i`` of the bin and over the offsets, summed over heads; in one zone of three: position 0
        `in sight` of the query, `within reach` of its input, and `beyond reach`, where the expected value is 0. Of a
        layer without a window there is one bin, in sight. In `slope`, the least-squares slope on the number of the
        layer of the magnitude at ``W <= i < 2 W``, over the layers with a window, documents resampled.

    Raises
    ------
    InputError
        For an option that is not allowed, or data that are no dump.
    DesignError
        If no layer has a window within the analysed queries, or with fewer than 5 documents.
    NumericalError
        If the dump holds values that are not finite.

    Notes
    -----
    The steady state of a layer is free of position only where its reference queries lie beyond its horizon; a note says
    where they do not. Layers of one block structure are taken to depend on each other through attention alone.

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=64, layers=2, window=8, offsets=(0, 1), seed=0).dataset
    >>> result = ps.reach(ds, n_permutations=99)
    >>> result.table[["layer", "zone", "queries"]].iloc[:3].values.tolist()
    [[0, 'in sight', '[2, 8)'], [0, 'beyond reach', '[8, 16)'], [0, 'beyond reach', '[16, 24)']]
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed)
    kernel = partial(residual_statistics, last=check_order(order))
    terms, notes, settings = prepare(data, offsets, inference)
    layers = sorted(terms.layer.values.tolist())
    terms = terms.sel(layer=layers)
    window = dict(zip(layers, layer_windows(terms).tolist(), strict=True))
    if not any(np.isfinite(w) and w < terms.sizes["query"] for w in window.values()):
        raise DesignError(
            f"No layer has a window below the {terms.sizes['query']} analysed queries: reach is a question about "
            "models with windows. Dump a model that has them, or longer sequences."
        )
    horizon = horizons(window)
    late = [f"{layer}" for layer in layers if 3 * terms.sizes["query"] / 2 <= horizon[layer] < np.inf]
    if late:
        text = (
            f"reference queries of the layers {', '.join(late)} lie within reach of position 0: record longer sequences"
        )
        notes = (*notes, Note(text, "design"))
    only = Estimand(np.ones((1, 1, 1)))
    rows: list[dict[str, object]] = []
    slopes: list[dict[str, object]] = []
    start = int(terms.offset.max()) + 1
    for condition, one in conditions(terms):
        second: dict[int, Estimate] = {}
        for layer in layers:
            bins = _bins(window[layer], horizon[layer], one.offset.values, start, one.sizes["query"])
            behind = 2 * window[layer] <= one.sizes["query"]
            if behind:  # the bin of the slope, in whatever zones it lies
                bins.append(_bin(int(window[layer]), int(2 * window[layer]), one.offset.values))
            cells = list(
                estimates([one.sel(layer=[layer])], kernel, only, bins=bins, by=["layer"], inference=inference)
            )
            if behind:
                second[layer] = cells.pop()
            rows += [{"condition": condition} | _row(cell, window[layer], horizon[layer]) for cell in cells]
        slopes.append({"condition": condition} | _slope(second, inference))
    table = adjusted(pd.DataFrame(rows), ["condition", "zone"], inference, {"p": "q"})
    notes += inference.few_flips(table.groupby(["condition", "zone"]).size().max())
    settings |= inference.settings("moments") | {"order": order}
    return ReachResult(table, settings, notes, slope=ReachSlopeResult(pd.DataFrame(slopes), settings, notes))


def layer_windows(terms: xr.Dataset) -> Array:
    """Window of every layer in tokens, (layer,); inf where the layer shows all keys."""
    if "layer_window" in terms:
        recorded = read(terms.layer_window).values.astype(np.float64)
        return np.where(recorded > 0, recorded, np.inf)
    visible = read(terms.visible_keys).transpose("layer", "query").values
    hidden = (visible <= np.arange(visible.shape[1])).any(axis=1)
    return np.where(hidden, visible.max(axis=1), np.inf)


def horizons(window: dict[int, float]) -> dict[int, float]:
    """Layer -> the last query of which log attention can depend on position 0: ``R_l + W_l - 1``.

    Raises DesignError if the layers are not all those of a model from the first one on.

    >>> horizons({0: 8, 1: 8, 2: np.inf, 3: 8})
    {0: 7, 1: 14, 2: inf, 3: inf}
    """
    if sorted(window) != list(range(len(window))):
        raise DesignError(
            f"Reach adds up the windows of all layers from the first one on; this dataset has the layers "
            f"{', '.join(map(str, window))}."
        )
    reached: float = 0
    found = {}
    for layer in sorted(window):
        reached += window[layer] - 1
        found[layer] = reached
    return found


def _bins(window: float, horizon: float, offsets: NDArray[np.int64], start: int, n_queries: int) -> list[Bin]:
    """Bins of a layer, each within one zone; edges at whole windows."""
    edges = {start, n_queries}
    if window < n_queries:
        doubled = 2.0 ** np.arange(np.log2(_SINGLE), np.log2(n_queries))
        edges |= {int(k * window) for k in (*range(1, _SINGLE), *doubled)}
        edges |= {int(horizon) + 1} if np.isfinite(horizon) else set()
    kept = sorted(edge for edge in edges if start <= edge <= n_queries)
    return [_bin(low, high, offsets) for low, high in pairwise(kept)]


def _bin(low: int, high: int, offsets: NDArray[np.int64]) -> Bin:
    return Bin(f"[{low}, {high})", np.arange(low, high), offsets)


def _row(cell: Estimate, window: float, horizon: float) -> dict[str, object]:
    first, stop = cell.bin.queries[0], cell.bin.queries[-1] + 1
    zone = ZONES[0] if first < window else ZONES[1] if first <= horizon else ZONES[2]
    row = {**cell.key, "zone": zone, "queries": cell.bin.label}
    row |= {"first_window": first / window, "last_window": stop / window} if np.isfinite(window) else {}
    row |= {name: float(getattr(cell.limits, name)[0]) for name in ("estimate", "se", "low", "high")}
    return row | {"p": float(cell.absence_p[0]), "window": window, "horizon": horizon}


def _slope(second: dict[int, Estimate], inference: Inference) -> dict[str, object]:
    """Slope on depth of the magnitudes of some layers, with documents left out."""
    blank = dict.fromkeys(("estimate", "se", "low", "high", "p"), np.nan) | {"n_layers": len(second)}
    if len(second) < 2:
        return blank | {"note": "fewer than two layers have a window with as many analysed queries behind it"}
    depth = np.array(list(second), dtype=np.float64)
    contrast = (depth - depth.mean()) / ((depth - depth.mean()) ** 2).sum()
    cells = list(second.values())
    estimate = contrast @ np.stack([cell.sums[0, 0] for cell in cells])
    left_out = np.stack([cell.left_out[:, 0, 0] for cell in cells], axis=1) @ contrast
    x = interval(estimate, left_out, method="jackknife", level=inference.level)
    row = blank | {name: float(getattr(x, name)) for name in ("estimate", "se", "low", "high", "p")}
    rounding = bool(x.se <= ROUNDING)
    return row | ({"p": np.nan} if rounding else {}) | {"note": "no spread beyond rounding: no test" * rounding}
