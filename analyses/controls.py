"""Known answers: a shift of all position ids changes nothing, and a repeated token leaves no residual term."""

import pandas as pd
import xarray as xr

from posstats.ledger.controls import repeat_residuals, shift_differences
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.tables import Table


def analyse(ds: xr.Dataset, _inference: Inference) -> Findings:  # no control is resampled
    rows, headline = [], []
    for condition in map(str, ds.condition.values):
        if condition.startswith("shift="):
            found = shift_differences(ds, condition)
            what = f"largest change of a recorded quantity under {condition}"
        elif condition == "repeat":
            found = repeat_residuals(ds)
            what = "largest residual term under repeat"
        else:
            continue
        rows += [{"condition": condition, "quantity": name, "estimate": value} for name, value in found.items()]
        headline.append(Quantity(what, "nats", max(found.values()), note="known answer: 0"))
    frame = pd.DataFrame(rows, columns=["condition", "quantity", "estimate"])
    table = Table(frame, "Known answers: largest absolute deviation from 0", {"estimate": "nats"})
    return Findings({"controls": table} if rows else {}, headline=headline)
