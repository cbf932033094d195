"""From a pilot recording to the number of documents that a result needs (docs/method.md, section 4)."""

from dataclasses import dataclass

import numpy as np
from scipy import stats as sps

from posstats.errors import InputError
from posstats.stats.inference.squares import SquareSpread
from posstats.stats.pair_products.terms import Array

#: Fewest documents that the package takes, and the most that a plan names.
FEWEST, MOST = 5, 1_000_000


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a pilot says about variance; every field is (...).

    Attributes
    ----------
    first : ndarray
        Variance through single documents at the pilot's size, not below 0; it falls as 1/N.
    second : ndarray
        Variance through pairs of documents; it falls as 1/(N (N-1)).
    n_documents : int
        Documents of the pilot; those of the plan are taken to be alike.
    """

    first: Array
    second: Array
    n_documents: int

    @classmethod
    def of_squares(cls, spread: SquareSpread, n_documents: int) -> "Pilot":
        """From the spread of means of squares, at their estimates."""
        size = np.maximum(spread.estimate, 0.0)
        return cls(spread.variance(size) - spread.second, spread.second, n_documents)

    @classmethod
    def of_error(cls, se: Array, n_documents: int) -> "Pilot":
        """From a standard error that falls as 1/sqrt(N): slopes, means, ratios."""
        se = np.asarray(se, dtype=np.float64)
        return cls(se**2, np.zeros_like(se), n_documents)

    def half_width(self, n_documents: Array | int, level: float = 0.95) -> Array:
        """Half width of an interval from N documents.

        Parameters
        ----------
        n_documents : int or ndarray broadcasting with (...)
        level : float

        Returns
        -------
        ndarray, shape (...)
            ``t(N-1) sqrt(first n / N + second n (n-1) / (N (N-1)))``, n documents in the pilot.

        Examples
        --------
        >>> pilot = Pilot.of_error(np.array(0.1), 16)
        >>> round(float(pilot.half_width(16)), 3), round(float(pilot.half_width(64)), 3)  # half, and fewer t
        (0.213, 0.1)
        """
        n, wanted = self.n_documents, np.asarray(n_documents)
        if (wanted < FEWEST).any():
            raise InputError(f"A plan needs at least {FEWEST} documents, not {wanted.min()}.")
        variance = self.first * n / wanted + self.second * n * (n - 1) / (wanted * (wanted - 1.0))
        width: Array = sps.t.ppf(0.5 + level / 2, wanted - 1) * np.sqrt(variance)
        return width

    def documents(self, half_width: float, level: float = 0.95) -> Array:
        """Fewest documents with a half width no larger than this.

        Parameters
        ----------
        half_width : float
            Above 0.
        level : float

        Returns
        -------
        ndarray, shape (...)
            From 5 on; infinite beyond a million.

        Examples
        --------
        >>> float(Pilot.of_error(np.array(0.1), 16).documents(0.1))
        64.0
        """
        if not half_width > 0:
            raise InputError(f"half_width must be above 0, not {half_width}.")
        low = np.full(self.first.shape, FEWEST - 1)
        high = np.full(self.first.shape, MOST)
        while (high - low > 1).any():
            middle = np.where(high - low > 1, (low + high) // 2, high)
            enough = self.half_width(middle, level) <= half_width
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(self.half_width(high, level) <= half_width, high.astype(float), np.inf)
