"""Which heads read position 0, and whether they look for the BOS token or for the position."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.errors import DesignError
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.vocabulary import BASELINE


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    try:
        sinks = ps.sinks(ds, **inference.options("n_permutations"))
    except DesignError as error:  # the sequences are too short
        return Findings(headline=[Quantity.absent("sink-reading heads", "heads", str(error))])
    contrasts = sinks.contrasts.table
    anchored = contrasts[contrasts.contrast == "bos_minus_position0"].condition
    heads = sinks.table[sinks.table.condition == BASELINE]
    drawn = {"attention_on_position_0": figures.attention_map(sinks)}
    if len(anchored):
        drawn["anchoring"] = figures.anchoring_by_position(sinks)
    return Findings(
        tables={"sinks": sinks} | ({"sink_contrasts": sinks.contrasts} if len(contrasts) else {}),
        figures=drawn,
        headline=[
            Quantity(
                "sink-reading heads",
                "heads",
                int(heads.sink_reading.sum()),
                note=f"of {len(heads)}",
                rests_on=sinks.rests_on,
            ),
            *(
                Quantity.of(
                    f"attention on BOS minus position 0 under {name}",
                    "fraction",
                    sinks.contrasts,
                    condition=name,
                    contrast="bos_minus_position0",
                )
                for name in anchored
            ),
        ],
    )
