"""One-sided tests, and tests of "the value is x" with a margin fixed beforehand (docs/method.md, section 4)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from posstats.errors import InputError
from posstats.stats.inference.ratios import JointSpread
from posstats.stats.pair_products.terms import Array

#: What an equivalence test can say.
VERDICTS = ("supported", "contradicted", "inconclusive", "undefined")


def one_sided_p(
    estimate: Array,
    se: Array,
    df: Array | float,
    null: Array | float = 0.0,
    alternative: Literal["greater", "less"] = "greater",
) -> Array:
    """One-sided p-value of a t test.

    Parameters
    ----------
    estimate, se, df : ndarray, shape (...)
    null : ndarray or float
    alternative : {"greater", "less"}
        What a small p speaks for.

    Returns
    -------
    ndarray, shape (...)
        Without a standard error 0 or 1 as the estimate lies, 1 at the null itself; NaN where the estimate is.

    Examples
    --------
    >>> round(float(one_sided_p(np.array(2.0), np.array(1.0), 1e9)), 4)
    0.0228
    """
    if alternative not in ("greater", "less"):
        raise InputError(f"alternative must be 'greater' or 'less', not {alternative!r}.")
    difference = np.asarray(estimate, dtype=np.float64) - null
    if alternative == "less":
        difference = -difference
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, difference / se)
        p = np.where((difference == 0) & (np.asarray(se) == 0), 1.0, sps.t.sf(t, df))
    return np.where(np.isfinite(difference) & np.isfinite(se), p, np.nan)


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Test of "the value lies in the margin"; every field is (...).

    Attributes
    ----------
    p_inside : ndarray
        Of "the value lies outside or on the margin": small speaks for equivalence. The larger of two one-sided p-values
        (TOST), so it needs no adjustment.
    p_outside : ndarray
        Of "the value lies in the margin": small speaks against equivalence. Twice the smaller of two one-sided
        p-values.
    verdict : ndarray of str
        "supported" where p_inside <= alpha, "contradicted" where p_outside <= alpha, "inconclusive" otherwise,
        "undefined" where a p-value is NaN. Never two at once: for alpha <= 1/2 they exclude each other.
    """

    p_inside: Array
    p_outside: Array
    verdict: NDArray[np.str_]


def equivalence(
    estimate: Array, se: Array, df: Array | float, margin: tuple[float, float], level: float = 0.95
) -> Equivalence:
    """Whether a value lies in a margin fixed beforehand, by two one-sided t tests.

    "Supported" is the same as: the interval of level ``1 - 2 alpha`` lies in the margin. "Contradicted": that of level
    ``1 - alpha`` lies outside.

    Parameters
    ----------
    estimate, se, df : ndarray, shape (...)
    margin : (float, float)
        Lower and upper end; low < high.
    level : float
        ``1 - alpha``, in [1/2, 1).

    Returns
    -------
    Equivalence

    Notes
    -----
    D. J. Schuirmann (1987), Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680, doi:10.1007/BF01068419.

    Examples
    --------
    >>> estimate = np.array([1.0, 1.0, 2.0])
    >>> equivalence(estimate, np.array([0.01, 0.1, 0.1]), 40, (0.95, 1.05)).verdict.tolist()
    ['supported', 'inconclusive', 'contradicted']
    """
    low, high = _margin(margin)
    above_low = one_sided_p(estimate, se, df, low)
    below_high = one_sided_p(estimate, se, df, high, "less")
    below_low = one_sided_p(estimate, se, df, low, "less")
    above_high = one_sided_p(estimate, se, df, high)
    return _judged(above_low, below_high, below_low, above_high, level)


def ratio_equivalence(spread: JointSpread, margin: tuple[float, float], level: float = 0.95) -> Equivalence:
    """Whether a ratio A/B lies in a margin, however weak its denominator.

    The ratio lies in [low, high] where ``A - low B`` and ``B`` have one sign and ``A - high B`` the other. B > 0 is
    part of what the user claims (leakage and magnitudes are squares), so the tests are those of ``A - low B > 0`` and
    ``A - high B < 0``: together they imply it.

    Parameters
    ----------
    spread : JointSpread
        Of numerator and denominator, the true denominator not below 0.
    margin : (float, float)
    level : float

    Returns
    -------
    Equivalence
    """
    low, high = _margin(margin)
    at_low, at_high = (np.sqrt(spread.variance(x)) for x in (low, high))
    from_low, from_high = spread.above - low * spread.below, spread.above - high * spread.below
    return _judged(
        one_sided_p(from_low, at_low, spread.df),
        one_sided_p(from_high, at_high, spread.df, 0.0, "less"),
        one_sided_p(from_low, at_low, spread.df, 0.0, "less"),
        one_sided_p(from_high, at_high, spread.df),
        level,
    )


def interval_verdict(low: Array, high: Array, margin: tuple[float, float]) -> NDArray[np.str_]:
    """What an interval says of a margin: inside it supported, wholly outside contradicted, else inconclusive.

    For estimates that have no t test, such as means of squares. The interval's level is that of either statement.

    Parameters
    ----------
    low, high : ndarray, shape (...)
    margin : (float, float)

    Returns
    -------
    ndarray of str, shape (...)
        One of :data:`VERDICTS`.

    Examples
    --------
    >>> interval_verdict(np.array([0.0, 0.0, 2.0]), np.array([0.4, 3.0, 3.0]), (0.0, 1.0)).tolist()
    ['supported', 'inconclusive', 'contradicted']
    """
    bottom, top = _margin(margin)
    inside = (bottom <= low) & (high <= top)
    outside = (high < bottom) | (low > top)
    undefined = np.isnan(low) | np.isnan(high)
    return np.select([undefined, inside, outside], ["undefined", "supported", "contradicted"], "inconclusive")


def _margin(margin: tuple[float, float]) -> tuple[float, float]:
    low, high = margin
    if not low < high:
        raise InputError(f"A margin needs its lower end below its upper end, not {low} and {high}.")
    return low, high


def _judged(above_low: Array, below_high: Array, below_low: Array, above_high: Array, level: float) -> Equivalence:
    if not 0.5 <= level < 1:
        raise InputError(f"level of an equivalence test must lie in [0.5, 1), not {level}.")
    alpha = 1 - level
    inside = np.maximum(above_low, below_high)
    outside = np.minimum(1.0, 2 * np.minimum(below_low, above_high))
    verdict = np.select(
        [np.isnan(inside) | np.isnan(outside), inside <= alpha, outside <= alpha],
        ["undefined", "supported", "contradicted"],
        "inconclusive",
    )
    return Equivalence(inside, outside, verdict)
