"""Which of K inputs was it? Nearest-centroid classification of documents, cross-validated, with a permutation test.

Features are standardised, and heads chosen, within the training documents of each fold. Distances to centroids need
inner products only, so a fold is one matrix over sequences, whatever the number of features, and relabelling the
documents does not touch it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from posstats.errors import DesignError, NumericalError
from posstats.stats.decoding.ridge import partitions
from posstats.stats.pair_products.terms import Array

#: A feature whose spread in the training documents is below this part of its head's root mean square is rounding.
_CONSTANT = 1e-5
_BLOCK_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Grams:
    """Inner products of standardised features, summed over the heads of either group."""

    #: (fold, group, sequence, sequence); the groups are the heads chosen in the fold, and the others.
    products: Array
    #: (fold, group).
    n_heads: Array

    def __add__(self, other: "Grams") -> "Grams":
        return Grams(self.products + other.products, self.n_heads + other.n_heads)


@dataclass(frozen=True, slots=True)
class Identification:
    """How often the right label is found."""

    #: (document,): fraction of the document's sequences that get its label.
    by_document: Array
    #: (permutation,): accuracy with the labels permuted over documents, the whole cross-validation made anew.
    null: Array
    #: Heads behind it, mean over folds.
    n_heads: float
    n_folds: int

    @property
    def accuracy(self) -> float:
        """Mean over documents."""
        return float(self.by_document.mean())

    @property
    def p(self) -> float:
        """``(b + 1) / (n + 1)``, b permutations out of n that reach the accuracy."""
        return float((np.count_nonzero(self.null >= self.accuracy - 1e-12) + 1) / (len(self.null) + 1))

    def interval(self, level: float) -> tuple[float, float]:
        """Exact binomial interval, which serves an accuracy of exactly 0 or 1 too.

        Documents of one fold are predicted by one model, and so are no independent trials: as many trials are counted
        as a fold trains on documents, ``G (n_folds - 1) / n_folds``. With all G documents as trials nominal 0.95 was
        measured at 0.90 to 0.99, with these at 0.95 to 0.99 (accuracies from chance to 0.95, 24 and 48 documents).
        """
        return binomial_limits(self.accuracy, len(self.by_document) * (self.n_folds - 1) / self.n_folds, level)


def binomial_limits(fraction: float, trials: float, level: float) -> tuple[float, float]:
    """Clopper and Pearson's exact interval of a fraction of trials; their number need not be whole.

    Clopper & Pearson (1934), doi:10.1093/biomet/26.4.404.

    >>> [round(limit, 3) for limit in binomial_limits(1.0, 20, 0.95)]
    [0.832, 1.0]
    """
    tail, k = (1 - level) / 2, fraction * trials
    low = float(sps.beta.ppf(tail, k, trials - k + 1)) if fraction > 0 else 0.0
    high = float(sps.beta.ppf(1 - tail, k + 1, trials - k)) if fraction < 1 else 1.0
    return low, high


@dataclass(frozen=True, slots=True)
class Identifier:
    """The cross-validation and the permutations, shared by all layers.

    Exchangeable under the null, "what the heads pass on does not depend on the label", are whole documents: labels are
    dealt to them without regard to their content, and folds are drawn without regard to the labels. All sequences of a
    document keep one label.
    """

    #: (1 + permutation, document): labels 0 .. K - 1 of the documents, then permuted.
    labels: NDArray[np.int64]
    #: (sequence,): document of each sequence.
    code: NDArray[np.int64]
    #: (sequence,): fold of each sequence; a document is in one.
    fold: NDArray[np.intp]

    @classmethod
    def of(
        cls, labels: NDArray[np.int64], code: NDArray[np.int64], *, n_folds: int, n_permutations: int, seed: int
    ) -> "Identifier":
        """Draw folds and permutations for labels (document,) and documents `code` (sequence,).

        Raises DesignError if there is a single label, a label of a single document, or fewer documents than folds.
        """
        classes, labels = np.unique(labels, return_inverse=True)
        if len(classes) < 2 or np.bincount(labels).min() < 2:
            raise DesignError(
                f"Identification needs at least two labels with two documents each; there are {len(classes)} labels "
                f"and {len(labels)} documents."
            )
        (document_fold,) = partitions(len(labels), n_folds, 1, seed)
        rng = np.random.default_rng(np.random.SeedSequence([seed, 2]))
        permuted = rng.permuted(np.tile(labels, (n_permutations, 1)), axis=1)
        return cls(np.concatenate([labels[None], permuted]), code, document_fold[code])

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return int(self.fold.max()) + 1

    def grams(self, features: Array, attention: Array, epsilon: float) -> Grams:
        """Inner products of one layer's features, (sequence, head, channel).

        In each fold, heads are chosen by their mean attention (sequence, head) in its training set: those above
        epsilon. Raises NumericalError if a feature is not finite.
        """
        if not np.isfinite(features).all():
            raise NumericalError("What heads pass on is not finite; the dump holds NaN.")
        products = np.zeros((self.n_folds, 2, len(self.code), len(self.code)))
        n_heads = np.zeros((self.n_folds, 2))
        for k in range(self.n_folds):
            training = self.fold != k
            z = np.moveaxis(_standardised(features, training), 1, 0)
            chosen = attention[training].mean(axis=0) > epsilon
            for group, members in enumerate((chosen, ~chosen)):
                products[k, group] = (z[members] @ z[members].transpose(0, 2, 1)).sum(axis=0)
                n_heads[k, group] = members.sum()
        return Grams(products, n_heads)

    def identify(self, grams: Grams) -> list[Identification | None]:
        """Classify by the chosen heads and by the others; None where some fold has no such head."""
        return [
            self._identify(grams.products[:, group], float(grams.n_heads[:, group].mean()))
            if (grams.n_heads[:, group] > 0).all()
            else None
            for group in range(2)
        ]

    def _identify(self, products: Array, n_heads: float) -> Identification:
        n_documents = self.labels.shape[1]
        member = np.eye(n_documents)[self.code]
        share = member / member.sum(axis=0)  # of a document's accuracy, (sequence, document)
        by_document = np.zeros((len(self.labels), n_documents))
        n_classes = int(self.labels.max()) + 1
        size = max(1, _BLOCK_BYTES // (8 * 3 * len(self.code) * n_classes))
        for start in range(0, len(self.labels), size):
            labels = self.labels[start : start + size, self.code]
            for k, product in enumerate(products):
                held_out = self.fold == k
                right = _nearest(product, labels, held_out, n_classes) == labels[:, held_out]
                by_document[start : start + size] += right @ share[held_out]
        return Identification(by_document[0], by_document[1:].mean(axis=1), n_heads, self.n_folds)


def _standardised(features: Array, training: NDArray[np.bool_]) -> Array:
    """Mean 0 and variance 1 in the training set; 0 where a feature does not vary there beyond rounding."""
    x = np.asarray(features, dtype=np.float64)
    seen = x[training]
    spread = seen.std(axis=0)
    size = np.sqrt((seen**2).mean(axis=(0, 2)))[:, None]
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > _CONSTANT * size)
    standardised: Array = (x - seen.mean(axis=0)) * scale
    return standardised


def _nearest(
    product: Array, labels: NDArray[np.int64], held_out: NDArray[np.bool_], n_classes: int
) -> NDArray[np.intp]:
    """Nearest training centroid of the held-out sequences, (permutation, held-out sequence).

    ``||x - m||^2 = x.x - 2 x.m + m.m``, of which x.x is common to all centroids m. A label that the training set
    lacks is never given.
    """
    training = ~held_out
    member = (labels[:, training].T[:, :, None] == np.arange(n_classes)).astype(np.float64)
    count = member.sum(axis=0)  # (permutation, class)
    mean = member / np.maximum(count, 1)
    with_mean = np.tensordot(product[:, training], mean, axes=1)  # (sequence, permutation, class)
    own = (mean * with_mean[training]).sum(axis=0)
    distance = np.where(count > 0, own - 2 * with_mean[held_out], np.inf)
    nearest: NDArray[np.intp] = distance.argmin(axis=-1).T
    return nearest
