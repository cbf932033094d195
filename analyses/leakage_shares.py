"""How much absolute position attention carries, and whose it is: the mask's or the residual stream's."""

import numpy as np
import xarray as xr

import posstats as ps
from posstats import figures
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.vocabulary import BASELINE, RESIDUAL, RESIDUAL_TERMS


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    options = inference.options()
    baseline = ds.sel(condition=[BASELINE])
    leakage = ps.leakage(ds, octaves=False, **options)
    shares = ps.shares(baseline, **options)
    by_layer = ps.shares(baseline, by=["layer"], octaves=False, **options)
    by_head = ps.shares(baseline, by=["layer", "head"], octaves=False, **options)

    heads = by_head.table[by_head.table.term == RESIDUAL]
    significant = int(np.count_nonzero(heads.q < 1 - inference.level))
    withheld = int(heads.estimate.isna().sum())
    return Findings(
        tables={"leakage": leakage, "shares": shares, "shares_by_layer": by_layer, "shares_by_head": by_head},
        figures={
            "shares_by_layer": figures.shares_by_layer(by_layer),
            "residual_share_map": figures.head_map(by_head),
        },
        headline=[
            Quantity.of("leakage", leakage.units, leakage, condition=BASELINE, queries="all").noted(
                f"sum over {ds.sizes['layer'] * ds.sizes['head']} heads and {ds.sizes['offset']} offsets"
            ),
            *(
                Quantity.of(f"{term.replace('_', ' ')} share", "fraction", shares, queries="all", term=term)
                for term in ("mask", RESIDUAL, *RESIDUAL_TERMS)
            ),
            Quantity(
                "heads with a significant residual share",
                "heads",
                significant,
                note=f"of {len(heads)}, {withheld} withheld",
                rests_on=by_head.rests_on,
            ),
        ],
    )
