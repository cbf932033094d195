"""How strongly the residual stream marks early positions, with BOS and with what replaces it."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.ledger.evidence import no_early, per_head
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.vocabulary import BASELINE, EARLY_BIN, RESIDUAL


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    conditions = [name for name in ds.condition.values.tolist() if name == BASELINE or name.startswith("bos=")]
    magnitude = ps.magnitude(ds.sel(condition=conditions), **inference.options())
    what = f"early residual magnitude, i in {EARLY_BIN}"
    where = {"condition": BASELINE, "queries": EARLY_BIN, "term": RESIDUAL}
    if EARLY_BIN in magnitude.table.queries.tolist():
        early = Quantity.of(what, magnitude.units, magnitude, **where)
        early = early.noted(per_head(early.estimate, ds.sizes["layer"] * ds.sizes["head"]))
    else:
        early = Quantity.absent(what, magnitude.units, no_early(ds))
    return Findings(
        tables={"magnitude": magnitude},
        figures={"magnitude_by_octave": figures.magnitude_by_octave(magnitude)},
        headline=[early],
    )
