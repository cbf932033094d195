"""Known answers: what is 0 of any causal decoder with rotary embeddings, in float64 and as it was recorded."""

import pandas as pd
import xarray as xr

from posstats.ledger.controls import repeat_residuals, shift_differences
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.tables import Table

#: Controls that are computed beside a dump -> what they are, and their unit.
CONTROLS = {
    "shift": ("largest change of log attention under a shift of all positions", "nats"),
    "repeat": ("largest departure of log attention under a repeated token", "nats"),
    "closed": ("largest relative departure of the trajectory of position 0 from that of its input alone", "1"),
}


def analyse(ds: xr.Dataset, _inference: Inference) -> Findings:  # no control is resampled
    rows, headline = [], []
    for name, (what, unit) in CONTROLS.items():
        for attribute, computed in ((f"control_{name}_float64", "in float64"), (f"control_{name}", "as recorded")):
            if pd.notna(value := ds.attrs.get(attribute)):
                rows.append({"condition": computed, "quantity": what, "estimate": float(value), "unit": unit})
                if attribute.endswith("float64"):
                    headline.append(Quantity(f"{what}, {computed}", unit, float(value), note="known answer: 0"))
    for condition in map(str, ds.condition.values):
        if condition.startswith("shift="):
            found = shift_differences(ds, condition)
            what = f"largest change of a recorded quantity under {condition}"
        elif condition == "repeat":
            found = repeat_residuals(ds)
            what = "largest residual term under repeat"
        else:
            continue
        rows += [
            {"condition": condition, "quantity": name, "estimate": value, "unit": "nats"}
            for name, value in found.items()
        ]
        headline.append(Quantity(what, "nats", max(found.values()), note="known answer: 0"))
    frame = pd.DataFrame(rows, columns=["condition", "quantity", "unit", "estimate"])
    table = Table(frame, "Known answers: largest absolute deviation from 0")
    return Findings({"controls": table} if rows else {}, headline=headline)
