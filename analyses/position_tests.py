"""Which heads' log attention depends on the query's position, term by term."""

import numpy as np
import xarray as xr

import posstats as ps
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.vocabulary import BASELINE, LOG_ATTENTION


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    tests = ps.position_tests(ds.sel(condition=[BASELINE]), level=inference.level, adjust=inference.adjust)
    heads = tests.table[tests.table.term == LOG_ATTENTION]
    alpha = 1 - inference.level
    counts = {
        f"heads whose log attention has a slope on position, q < {alpha:.2g}": heads.q,
        f"heads whose log attention varies with position (spline), q < {alpha:.2g}": heads.spline_q,
    }
    return Findings(
        tables={"position_tests": tests},
        headline=[
            Quantity(what, "heads", int(np.count_nonzero(q < alpha)), note=f"of {len(heads)}", rests_on=tests.rests_on)
            for what, q in counts.items()
        ],
    )
