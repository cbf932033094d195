"""How evenly documents carry a statistic: effective number, leverage (docs/method.md, section 4)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: A document that carries more than this part of a statistic is mentioned.
LARGE_LEVERAGE = 0.25


def effective_documents(counts: ArrayLike) -> float:
    """Return how many documents of equal size vary as little as these counts n_g: ``N^2 / sum_g n_g^2``.

    If every document's mean has the same variance, the mean over sequences has this many times less.

    >>> effective_documents([2, 2, 2, 2]), effective_documents([12] + [1] * 12)
    (4.0, 3.6923076923076925)
    """
    n = np.asarray(counts)
    return float(n.sum() ** 2 / (n**2).sum())


def leverage(contributions: ArrayLike) -> NDArray[np.float64]:
    """Return the part of a sum over documents that the document with the largest addend carries, (...).

    ``max_g |a_g| / sum_g |a_g|``, between 1 / G and 1; NaN where every addend is 0. `contributions`, (document, ...),
    are the addends a_g, such as ``n_g b_g`` for a mean over sequences.

    >>> leverage([[1.0, 5.0], [1.0, -1.0], [2.0, 2.0]])
    array([0.5  , 0.625])
    """
    size = np.abs(np.asarray(contributions, dtype=np.float64))
    whole = size.sum(axis=0)
    return np.divide(size.max(axis=0), whole, out=np.full(whole.shape, np.nan), where=whole > 0)


def leverage_note(leverages: ArrayLike, statistics: str) -> tuple[str, ...]:
    """Return the note that a document with more than a quarter of a statistic calls for, if there is one.

    `leverages` are :func:`leverage` of each of the `statistics`, a noun in the plural; NaN where there is none.

    >>> leverage_note([0.1, 0.3, 0.5], "slopes")
    ('one document carries more than a quarter of the sum over documents in 2 of 3 slopes, up to 0.50',)
    """
    values = np.asarray(leverages, dtype=np.float64)
    values = values[~np.isnan(values)]
    large = values > LARGE_LEVERAGE
    if not large.any():
        return ()
    return (
        f"one document carries more than a quarter of the sum over documents in {large.sum()} of {values.size} "
        f"{statistics}, up to {values.max():.2f}",
    )
