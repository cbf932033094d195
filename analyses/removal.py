"""How much of the residual stream's mark of early positions goes when BOS is replaced."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.ledger.evidence import no_early, per_head
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.vocabulary import EARLY_BIN


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    replacements = [name for name in ds.condition.values.tolist() if name.startswith("bos=")]
    if not replacements:
        return Findings()
    removal = ps.removal(ds, replacements, **inference.options())
    early = removal.table[removal.table.queries == EARLY_BIN]
    # The baseline is the same for all of them.
    size = per_head(early.baseline_magnitude.max(), ds.sizes["layer"] * ds.sizes["head"], "of ")
    return Findings(
        tables={"removal": removal},
        figures={"removal_by_octave": figures.removal_by_octave(removal)},
        headline=[
            Quantity.of(f"early removal by {name}", "fraction", removal, condition=name, queries=EARLY_BIN).noted(size)
            if len(early)
            else Quantity.absent(f"early removal by {name}", "fraction", no_early(ds))
            for name in replacements
        ],
    )
