"""Sign-flip test over documents: is there a mean at all? (docs/method.md, section 4)."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from posstats.errors import InputError
from posstats.stats.inference.resample import replicate_blocks
from posstats.stats.pair_products.terms import Array

#: Gram matrices from which on it pays to tabulate the products of signs.
_MANY = 16
#: Products of signs are kept from test to test up to this size: 9,999 flips of 110 documents.
_KEPT_BYTES = 2**28


class SignFlips:
    """Random signs +-1 of the documents for the sign-flip test, (permutation, document)."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self._products: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def reaching(self, grams: Array) -> Array:
        """How many flips reach the observed statistic of each Gram matrix, (gram, document, document) -> (gram,)."""
        # A flip that reproduces the observed statistic must count, whatever the rounding of single precision.
        threshold = grams.sum(axis=(1, 2)) - 1e-5 * np.abs(grams).sum(axis=(1, 2))
        reach = np.zeros(len(grams))
        if len(grams) < _MANY:
            for k, one in enumerate(grams):
                reach[k] = (((self.values @ one) * self.values).sum(axis=1) >= threshold[k]).sum()
            return reach
        # Products of signs are shared by all Gram matrices, and each pair of documents is met once.
        first, second = np.triu_indices(grams.shape[1], 1)
        pairs = (2 * grams[:, first, second].T).astype(np.float32)
        for products in self._pair_products(first, second):
            reach += (products @ pairs >= threshold).sum(axis=0)
        return reach

    def _pair_products(self, first: NDArray[np.intp], second: NDArray[np.intp]) -> Iterator[NDArray[np.float32]]:
        """Products of the signs of pairs of documents, in blocks of flips; kept from call to call if they are few."""
        if self._products is not None:
            yield self._products
            return
        blocks = list(replicate_blocks(len(self), len(first), 1, limit=2 * _KEPT_BYTES))
        for block in blocks:
            signs = self.values[block].astype(np.float32)
            products = signs[:, first] * signs[:, second]
            if len(blocks) == 1:
                self._products = products
            yield products


def random_signs(n_documents: int, n_permutations: int, seed: int) -> SignFlips:
    """Random signs for the sign-flip test, on a stream apart from the bootstrap's."""
    if n_permutations < 1:
        raise InputError(f"n_permutations must be at least 1, not {n_permutations}.")
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    return SignFlips(rng.choice(np.array([-1.0, 1.0]), size=(n_permutations, n_documents)))


def sign_flip_test(gram: Array, signs: SignFlips) -> Array:
    """Sign-flip test of "no absolute position": is the pair product of log attention larger than chance gives?

    Under the null the expected centred field of every document is zero, and flipping the sign of all of a document's
    field leaves its distribution unchanged (exactly for symmetric noise, to first order otherwise). Documents are
    the exchangeable units, so heads, layers and queries of one document flip together.

    `gram`, (..., document, document), are products of per-document sums of log attention, zero diagonal, summed over
    heads to pool. Returns ``(b + 1) / (n + 1)``, (...), with b of the n flips' statistics reaching the observed one.

    >>> field = np.ones((8, 3))  # every document moves the same way
    >>> gram = field @ field.T
    >>> np.fill_diagonal(gram, 0)
    >>> bool(sign_flip_test(gram, random_signs(8, 999, seed=0)) < 0.05)
    True
    """
    reach = signs.reaching(gram.reshape(-1, *gram.shape[-2:]))
    return (reach.reshape(gram.shape[:-2]) + 1.0) / (len(signs) + 1.0)
