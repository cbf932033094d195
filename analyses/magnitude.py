"""How strongly the residual stream marks early positions, with BOS and with what replaces it."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.analysis import Findings, Quantity
from posstats.config import InferenceConfig
from posstats.vocabulary import BASELINE, RESIDUAL

EARLY = "[2, 16)"


def analyse(ds: xr.Dataset, inference: InferenceConfig) -> Findings:
    conditions = [name for name in ds.condition.values.tolist() if name == BASELINE or name.startswith("bos=")]
    magnitude = ps.magnitude(ds.sel(condition=conditions), **inference.options())
    early = Quantity.of(
        "early residual magnitude, i in [2, 16)",
        magnitude.units,
        magnitude,
        condition=BASELINE,
        queries=EARLY,
        term=RESIDUAL,
    )
    return Findings(
        tables={"magnitude": magnitude},
        figures={"magnitude_by_octave": figures.magnitude_by_octave(magnitude)},
        headline=[early],
    )
