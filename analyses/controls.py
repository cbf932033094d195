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
            # Each sequence repeats a token of its own, so each is held against its own reference; at the last query
            # that has no ordinary key to go by.
            terms = ps.decompose(ds.sel(condition=condition), reference="sequence").isel(query=slice(1, -1))
            found = {name: _largest(terms[name]) for name in RESIDUAL_TERMS}
            what = "largest residual term under repeat"
        else:
            continue
        rows += [{"condition": condition, "quantity": name, "estimate": value} for name, value in found.items()]
        headline.append(Quantity(what, "nats", max(found.values()), note="known answer: 0"))
    frame = pd.DataFrame(rows, columns=["condition", "quantity", "estimate"])
    table = Table(frame, "Known answers: largest absolute deviation from 0", {"estimate": "nats"})
    return Findings({"controls": table} if rows else {}, headline=headline)


def _largest_difference(variable: xr.DataArray, condition: str) -> float:
    """Largest absolute difference from the baseline, where finite (query 0 has no ordinary key)."""
    baseline, other = (variable.sel(condition=name, drop=True) for name in (BASELINE, condition))
    return _largest(other.where(np.isfinite(other)) - baseline.where(np.isfinite(baseline)))


def _largest(values: xr.DataArray) -> float:
    """Largest absolute value, one layer in memory at a time."""
    return max(float(np.abs(values.isel(layer=k)).max()) for k in range(values.sizes["layer"]))
