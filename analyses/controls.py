"""Known answers: a shift of all position ids changes nothing, and a repeated token leaves no residual term."""

import numpy as np
import pandas as pd
import xarray as xr

import posstats as ps
from posstats.analysis import Findings, Quantity
from posstats.config import InferenceConfig
from posstats.tables import Table
from posstats.vocabulary import BASELINE, RESIDUAL_TERMS

RECORDED = ("logit", "sink_logit", "log_denominator_rest")


def analyse(ds: xr.Dataset, inference: InferenceConfig) -> Findings:  # noqa: ARG001  # no control is resampled
    rows, headline = [], []
    for condition in map(str, ds.condition.values):
        if condition.startswith("shift="):
            found = {name: _largest_difference(ds[name], condition) for name in RECORDED}
            what = f"largest change of a recorded quantity under {condition}"
        elif condition == "repeat":
            terms = ps.decompose(ds.sel(condition=[condition]))
            # The last query's longest offset has no ordinary key, so the reference is not known there.
            found = {name: _largest(terms[name].isel(query=slice(1, -1))) for name in RESIDUAL_TERMS}
            what = "largest residual term under repeat"
        else:
            continue
        rows += [{"condition": condition, "quantity": name, "estimate": value} for name, value in found.items()]
        headline.append(Quantity(what, "nats", max(found.values()), note="0 but for rounding is the known answer"))
    frame = pd.DataFrame(rows, columns=["condition", "quantity", "estimate"])
    table = Table(frame, "Known answers: largest absolute deviation from 0", {"estimate": "nats"})
    return Findings({"controls": table} if rows else {}, headline=headline)


def _largest_difference(variable: xr.DataArray, condition: str) -> float:
    """Largest absolute difference from the baseline, one layer at a time."""
    one, other = variable.sel(condition=condition, drop=True), variable.sel(condition=BASELINE, drop=True)
    return max(_largest(one.isel(layer=k) - other.isel(layer=k)) for k in range(variable.sizes["layer"]))


def _largest(values: xr.DataArray) -> float:
    array = np.abs(values.values)
    return float(array[np.isfinite(array)].max())
