"""Known answers of a recording: a shift of all positions changes nothing, and a repeated token has no residual term."""

import numpy as np
import xarray as xr

from posstats.dataset.blocks import Block, head_blocks
from posstats.dataset.terms import decompose, select_condition
from posstats.execution.parallel import side_by_side
from posstats.vocabulary import BASELINE, RESIDUAL_TERMS

#: Recorded quantities that a shift must leave as they are.
RECORDED = ("logit", "sink_logit", "log_denominator_rest")
#: What rounding may do to a recorded quantity, in nats, per number format of the model (docs/method.md, section 10).
#: Coarser formats round by more than a rotation changes, so that nothing follows from them.
ROUNDING = {"float32": 1e-3, "float64": 1e-9}
#: What rounding may do to a residual term under `repeat`, in nats.
REPEAT_ROUNDING = 1e-3


def model_dtype(ds: xr.Dataset) -> str:
    """Number format in which the model computed."""
    return str(ds.attrs.get("dtype", ds.sink_logit.dtype))


def shift_differences(ds: xr.Dataset, condition: str) -> dict[str, float]:
    """Largest absolute difference between a shifted condition and the baseline: recorded quantity -> nats.

    Where a value is not finite (query 0 has no ordinary key) on both sides, nothing is compared; on one side only, the
    difference is infinite.
    """
    baseline, other = (select_condition(ds, name) for name in (BASELINE, condition))
    return {
        name: max(made for _, made in side_by_side(_difference, head_blocks(baseline[[name]], other[[name]])))
        for name in RECORDED
    }


def repeat_residuals(ds: xr.Dataset) -> dict[str, float]:
    """Largest absolute residual-stream terms under `repeat`: term -> nats.

    Every sequence repeats a token of its own, so each is held against its own steady state. The mask is counted first:
    counted last, it meets position 0 as it is read from every query, nearer by than the farthest key of the steady
    state, and part of that difference is the sink's although no residual stream moves anything.
    """
    terms = decompose(select_condition(ds, "repeat"), order="mask_first", reference="sequence").isel(
        query=slice(1, None)
    )
    return {
        name: max(made for _, made in side_by_side(_largest, head_blocks(terms[[name]]))) for name in RESIDUAL_TERMS
    }


def _largest(block: Block) -> float:
    (values,) = (one.values for part in block.load() for one in part.data_vars.values())
    return float(np.nanmax(np.abs(values)))


def _difference(block: Block) -> float:
    baseline, other = (one.values for part in block.load() for one in part.data_vars.values())
    compared = np.isfinite(baseline) | np.isfinite(other)
    difference = np.abs(np.where(compared, other, 0.0) - np.where(compared, baseline, 0.0))
    return float(np.where(np.isnan(difference), np.inf, difference).max())
