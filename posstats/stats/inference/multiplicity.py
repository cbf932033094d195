"""Adjustment of p-values for the size of one named family of tests (docs/method.md, section 4)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from statsmodels.stats.multitest import multipletests

from posstats.errors import InputError
from posstats.stats.inference.options import METHODS

#: Names of the ways to adjust in ``statsmodels``.
_NAMES = {"bh": "fdr_bh", "by": "fdr_by", "holm": "holm"}


@dataclass(frozen=True, slots=True)
class Adjusted:
    """Adjusted p-values of one family."""

    #: In the shape of the p-values that came in, NaN where they were. A test is rejected at level alpha where
    #: ``q <= alpha``.
    q: NDArray[np.float64]
    #: "bh", "by" or "holm".
    method: str
    #: Size of the family, and how many p-values were NaN and therefore no part of it.
    n_tests: int
    n_excluded: int


def adjust(p: ArrayLike, method: str = "bh") -> Adjusted:
    """Adjust the p-values of one family by ``statsmodels.stats.multitest.multipletests``.

    The whole array is the family, whatever its shape: call once per family (all heads of one model in one test). NaN
    marks a test that could not be made; it is left out of the family and counted. `method` is "bh", Benjamini-Hochberg
    (false discovery rate, independent or positively dependent tests), "by", Benjamini-Yekutieli (false discovery rate,
    any dependence), or "holm" (family-wise error rate, any dependence). Raises InputError if the method is unknown, or
    a p-value is not a real number in [0, 1] (NaN excepted).

    Benjamini & Hochberg (1995), doi:10.1111/j.2517-6161.1995.tb02031.x; Benjamini & Yekutieli (2001),
    doi:10.1214/aos/1013699998; Holm (1979), https://www.jstor.org/stable/4615733.

    >>> adjusted = adjust([0.01, 0.04, np.nan, 0.03])
    >>> adjusted.q.round(3), adjusted.n_tests, adjusted.n_excluded
    (array([0.03, 0.04,  nan, 0.04]), 3, 1)
    """
    if method not in METHODS:
        raise InputError(f"unknown method {method!r} for adjusting p-values; allowed: {', '.join(METHODS)}")
    values = np.asarray(p)
    if values.dtype.kind not in "fiu":
        raise InputError(f"p-values must be real numbers, got an array of {values.dtype}")
    values = values.astype(np.float64)
    tested = ~np.isnan(values)
    family = values[tested]
    if outside := family[(family < 0) | (family > 1)].tolist():
        raise InputError(f"p-values must lie in [0, 1]; {len(outside)} do not, the first is {outside[0]!r}")
    q = np.full(values.shape, np.nan)
    if family.size:
        q[tested] = multipletests(family, method=_NAMES[method])[1]
    return Adjusted(q=q, method=method, n_tests=int(family.size), n_excluded=int(values.size - family.size))
