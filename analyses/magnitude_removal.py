"""How strongly the residual stream marks early positions, and how much of that goes when BOS is replaced."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.analysis import Findings, Quantity
from posstats.config import InferenceConfig
from posstats.vocabulary import BASELINE

EARLY = "[2, 16)"


def analyse(ds: xr.Dataset, inference: InferenceConfig) -> Findings:
    replacements = [str(name) for name in ds.condition.values if str(name).startswith("bos=")]
    magnitude = ps.magnitude(ds.sel(condition=[BASELINE, *replacements]), **inference.options())
    tables = {"magnitude": magnitude}
    drawn = {"magnitude_by_octave": figures.magnitude_by_octave(magnitude)}
    headline = [
        Quantity.of("early residual magnitude, i in [2, 16)", magnitude.units, magnitude, condition=BASELINE,
                    queries=EARLY, term="residual"),
    ]  # fmt: skip
    if replacements:
        removal = ps.removal(ds, replacements, **inference.options())
        tables["removal"] = removal
        drawn["removal_by_octave"] = figures.removal_by_octave(removal)
        headline += [
            Quantity.of(f"early removal by {name}", "fraction", removal, condition=name, queries=EARLY)
            for name in replacements
        ]
    return Findings(tables, drawn, headline)
