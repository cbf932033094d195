"""What training made: a model's sizes beside those of untrained models of the same configuration."""

from collections.abc import Sequence

import numpy as np
import scipy.stats as sps
import xarray as xr

from posstats.dataset.comparable import model_of, same_sequences
from posstats.errors import InputError
from posstats.results.verdicts import NOT_SPECIFIC, OPPOSITE, SPECIFIC
from posstats.stats.inference.runs import satterthwaite


def twins_of(ds: xr.Dataset, twins: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Return the twins that are of this dump: the same sequences, layers, heads and change at inference time.

    Raises InputError if one of them has the dump's own weights.
    """
    matched = [twin for twin in twins if _alike(ds, twin)]
    weights = ds.attrs.get("weights_sha256")
    if any(weights and twin.attrs.get("weights_sha256") == weights for twin in matched):
        raise InputError(f"twins are models of other weights than {model_of(ds)}: one of them has the same weights.")
    return matched


def _alike(ds: xr.Dataset, twin: xr.Dataset) -> bool:
    variants = {str(one.attrs.get("model_variant", "")) for one in (ds, twin)}
    sizes = all(ds.sizes[dim] == twin.sizes[dim] for dim in ("layer", "head", "query"))
    return sizes and len(variants) == 1 and same_sequences(ds, twin)


def twin_contrast(
    value: float, se: float, n: int, twins: Sequence[float], level: float = 0.95
) -> tuple[float, float, float]:
    """Model minus the mean of its untrained twins, with limits.

    Parameters
    ----------
    value, se : float
        Of the model, over documents.
    n : int
        Documents.
    twins : sequence of float
        The same quantity of k >= 2 twins.
    level : float

    Returns
    -------
    difference, low, high : float
        Variance ``se^2 + s^2 (1 + 1/k)`` with s the standard deviation of the twins: the question is whether the model
        is one more draw of the initialisation, not only whether it differs from their mean. t quantiles with
        Satterthwaite's degrees of freedom, at most the least of its parts.

    Examples
    --------
    >>> [round(x, 3) for x in twin_contrast(5.0, 0.1, 48, [1.0, 1.1, 0.9])]
    [4.0, 3.343, 4.657]
    """
    k, difference = len(twins), value - float(np.mean(twins))
    parts = np.array([se**2, np.var(twins, ddof=1) * (1 + 1 / k)])
    df = satterthwaite(parts[:, None], np.array([[n - 1.0], [k - 1.0]]), cautious=True)[0]
    half = float(np.sqrt(parts.sum()) * sps.t.ppf(0.5 + level / 2, df)) if parts.sum() > 0 else 0.0
    return difference, difference - half, difference + half


def specific(low: float, high: float, sign: float = 1.0) -> str:
    """Say whether a difference from the twins, by its limits, excludes 0 in the direction of a sign."""
    low, high = (low, high) if sign > 0 else (-high, -low)
    return SPECIFIC if low > 0 else OPPOSITE if high < 0 else NOT_SPECIFIC
