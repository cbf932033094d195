"""Documents as vectors: what the estimators see of a head, without the model.

A document g of n_g sequences is a sum ``x_g = n_g mu + e_g`` in R^q. A leakage is then ``|mu|^2``, estimated by the
mean product of different documents, and a share or a removal is a ratio of two such products.
"""

from dataclasses import dataclass

import numpy as np

from posstats.stats.inference.squares import pair_number
from posstats.stats.pair_products.terms import Array

#: Eigenvalues of the content's covariance: an octave bin has a few queries that move together, a head's whole row many.
SPECTRA = {
    "one": np.ones(1),
    "few": np.array([1.0, 0.15, 0.05, 0.02]),
    "decaying": 1.0 / np.arange(1, 33),
    "many": np.ones(40),
}
CONTENT = ("gaussian", "exponential", "lognormal", "contaminated")
#: Variance within documents of several sequences that the document's sequences share.
SHARED = 0.4
#: One document in twenty has content five times as strong.
CONTAMINATED, STRENGTH = 0.05, 5.0


def sizes(name: str, n_documents: int) -> Array:
    """Sequences of each document."""
    ones = np.ones(n_documents)
    if name == "1 to 4":
        return 1.0 + np.arange(n_documents) % 4
    few = {"equal": [], "12 and ones": [12], "40, 20, 13 ...": [40, 20, 13, 8, 5, 3, 2]}[name]
    ones[: len(few)] = few
    return ones


def noise(rng: np.random.Generator, content: str, shape: tuple[int, ...]) -> Array:
    """Content of mean 0 and variance 1; the second axis is that of documents."""
    if content == "exponential":
        return rng.exponential(size=shape) - 1
    if content == "lognormal":
        return (rng.lognormal(size=shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    values = rng.normal(size=shape)
    if content == "contaminated":
        other = rng.random((*shape[:2], 1)) < CONTAMINATED
        values = values * np.where(other, STRENGTH, 1.0) / np.sqrt(1 + CONTAMINATED * (STRENGTH**2 - 1))
    return values


def documents(rng: np.random.Generator, content: str, spectrum: Array, n: Array, datasets: int) -> Array:
    """Sums over the sequences of each document, mean 0: (data set, document, q)."""
    shape = (datasets, len(n), len(spectrum))
    if (n == 1).all():
        return noise(rng, content, shape) * np.sqrt(spectrum)
    own = np.sqrt(SHARED) * n[:, None] * noise(rng, content, shape)
    for g, count in enumerate(n.astype(int)):
        within = noise(rng, content, (datasets, count, len(spectrum)))
        own[:, g] += np.sqrt(1 - SHARED) * within.sum(axis=1)
    return own * np.sqrt(spectrum)


def error_at_zero(spectrum: Array, n: Array) -> float:
    """Standard error of a mean product of different documents if mu = 0: the unit of all effects."""
    variance = n if (n == 1).all() else (1 - SHARED) * n + SHARED * n**2
    products = variance.sum() ** 2 - (variance**2).sum()
    return float(np.sqrt(2 * products * (spectrum**2).sum()) / pair_number(n))


def mean_vectors(rng: np.random.Generator, spectrum: Array, direction: str, square: float, datasets: int) -> Array:
    """Means of each data set, (data set, 1, q): along the leading eigenvector, or in any direction."""
    if direction == "leading":
        mu = np.zeros((datasets, 1, len(spectrum)))
        mu[..., 0] = 1.0
    else:
        mu = rng.normal(size=(datasets, 1, len(spectrum)))
        mu /= np.linalg.norm(mu, axis=-1, keepdims=True)
    return mu * np.sqrt(square)


def gram(x: Array, y: Array) -> Array:
    """Symmetric products of documents, zero diagonal: (data set, document, document)."""
    products = x @ y.transpose(0, 2, 1)
    products = (products + products.transpose(0, 2, 1)) / 2
    diagonal = np.arange(x.shape[1])
    products[:, diagonal, diagonal] = 0.0
    return products


def pair_mean(products: Array, n: Array) -> tuple[Array, Array]:
    """Mean over pairs of sequences from distinct documents, (data set,); without each, (document, data set)."""
    rows = products.sum(axis=2)
    whole = rows.sum(axis=1)
    left = (n.sum() - n) ** 2 - (n**2).sum() + n**2
    return whole / pair_number(n), ((whole[:, None] - 2 * rows) / left).T


@dataclass(frozen=True, slots=True)
class Squares:
    """A mean of squares: content, spectrum, direction of mu, its square in errors at 0, sizes, number of documents."""

    content: str
    spectrum: str
    direction: str
    effect: float
    sizes: str
    n: int

    @property
    def truth(self) -> float:
        """Square of mu."""
        return self.effect * error_at_zero(SPECTRA[self.spectrum], sizes(self.sizes, self.n))

    def draw(self, rng: np.random.Generator, datasets: int) -> tuple[Array, Array]:
        """Documents (data set, document, q) and their sizes."""
        spectrum, n = SPECTRA[self.spectrum], sizes(self.sizes, self.n)
        mu = mean_vectors(rng, spectrum, self.direction, self.truth, datasets)
        return documents(rng, self.content, spectrum, n, datasets) + n[:, None] * mu, n


@dataclass(frozen=True, slots=True)
class Ratios:
    """A share or a removal: denominators of `effect` errors at 0, half of which the numerator is, or 0.6 of which."""

    kind: str
    content: str
    spectrum: str
    effect: float
    n: int

    @property
    def truth(self) -> float:
        """The ratio."""
        return 0.5 if self.kind == "share" else 0.6

    def draw(self, rng: np.random.Generator, datasets: int) -> tuple[Array, Array, Array]:
        """Products behind numerator and denominator, and sizes."""
        spectrum, n = SPECTRA[self.spectrum], np.ones(self.n)
        square = self.effect * error_at_zero(spectrum, n)
        mu = mean_vectors(rng, spectrum, "any", square, datasets)
        y = documents(rng, self.content, spectrum, n, datasets)
        other = documents(rng, self.content, spectrum, n, datasets)
        below = y + mu
        if self.kind == "share":  # the term is half of log attention and has content of its own
            return gram(0.5 * below + 0.5 * other, below), gram(below, below), n
        above = np.sqrt(0.6) * mu + 0.8 * y + 0.6 * other  # paired: most of the content is the same
        return gram(above, above), gram(below, below), n


@dataclass(frozen=True, slots=True)
class Runs:
    """Two sides of k runs on the same documents, no true difference; run effects in errors of the documents."""

    k: int
    paired: bool
    effect: float
    n: int = 48


@dataclass(frozen=True, slots=True)
class Family:
    """Means of many heads or layers whose content is correlated."""

    values: int
    correlation: float
    n: int
