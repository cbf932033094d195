"""Sinks at any key: how many, at which occurrence of a token, and whether they go with tokens (docs/method.md, 7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posstats.errors import NumericalError
from posstats.stats.pair_products.terms import Array

#: What half precision may do to a mean of attention.
_ROUNDING = 1e-2


def sink_counts(received: Array, threshold: float) -> NDArray[np.int64]:
    """Number of heads with a sink at each key, (sequence, key), of attention received (sequence, head, key).

    NaN where no query sees a key from afar: no sink. Raises NumericalError if a value is no attention.

    >>> sink_counts(np.array([[[0.9, 0.1, np.nan], [0.5, 0.4, 0.3]]]), 0.3).tolist()
    [[2, 1, 0]]
    """
    if ((received < -_ROUNDING) | (received > 1 + _ROUNDING)).any():
        raise NumericalError("The dump holds attention received by keys that lies outside [0, 1].")
    counts: NDArray[np.int64] = (received > threshold).sum(axis=1)
    return counts


def first_occurrences(token: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each token, (sequence, token), stands for the first time in its sequence.

    >>> first_occurrences(np.array([[1, 5, 1, 5, 7]])).astype(int).tolist()
    [[1, 1, 0, 0, 1]]
    """
    first = np.zeros(token.shape, bool)
    for row, seen in zip(token, first, strict=True):
        seen[np.unique(row, return_index=True)[1]] = True
    return first


def order_blind(counted: NDArray[np.bool_], first: NDArray[np.bool_], token: NDArray[np.int64]) -> Array:
    """Probability, (sequence, key), that a sink of this token would lie at a first occurrence, whatever the order.

    If the keys of a token in a sequence are exchangeable, a sink lies at any of its `counted` keys alike: the
    probability is the fraction of them that are first occurrences, 1 where the token occurs once. All arrays are
    (sequence, key); 0 at keys that are not counted.

    >>> every = np.ones((1, 4), bool)
    >>> order_blind(every, np.array([[True, True, False, False]]), np.array([[5, 7, 5, 5]])).round(3).tolist()
    [[0.333, 1.0, 0.333, 0.333]]
    """
    _, codes = np.unique(token, return_inverse=True)
    group = codes.reshape(token.shape) * len(token) + np.arange(len(token))[:, None]
    occurrences, firsts = (
        np.bincount(group[chosen], minlength=int(group.max()) + 1) for chosen in (counted, counted & first)
    )
    return np.where(counted, firsts[group] / np.maximum(occurrences[group], 1), 0.0)


@dataclass(frozen=True, slots=True)
class Anchoring:
    """Whether tokens that hold sinks in training documents hold them in held-out ones, at equal positions.

    Of a fold, the selected tokens are those that hold a sink in a document of another fold. Within a fold and position,
    documents with a selected token are compared with the others, and these strata are pooled by Mantel-Haenszel
    weights: ``D = sum_s (a_s n0_s - b_s n1_s) / n_s / sum_s (n1_s n0_s / n_s)``, a and b sinks among the n1 selected
    and the n0 other tokens. A sink at a fixed position is one of every token there: it adds nothing to the numerator.
    """

    #: (sequence, key): codes of the tokens.
    token: NDArray[np.int64]
    #: (sequence, key): whether the key holds a sink.
    holds: NDArray[np.bool_]
    #: (sequence,): document of each sequence.
    code: NDArray[np.int64]
    #: (document,): fold of each document.
    fold: NDArray[np.int64]

    @classmethod
    def of(
        cls, token: NDArray[np.int64], holds: NDArray[np.bool_], code: NDArray[np.int64], fold: NDArray[np.int64]
    ) -> "Anchoring":
        """Of token ids, (sequence, key); documents and folds are numbered from 0."""
        _, codes = np.unique(token, return_inverse=True)
        return cls(codes.reshape(token.shape), holds, code, fold)

    def selected(self, token: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each token, (sequence, key), holds a sink in a document of another fold."""
        fold = np.broadcast_to(self.fold[self.code][:, None], token.shape)
        held = np.zeros((int(self.fold.max()) + 1, int(self.token.max()) + 1), bool)
        held[fold[self.holds], token[self.holds]] = True
        elsewhere: NDArray[np.bool_] = held.sum(axis=0)[token] > held[fold, token]
        return elsewhere

    def at(self, weights: Array) -> Array:
        """Probability of a sink at selected and at other tokens, and D, at document weights: (replicate, 3).

        The other tokens are standardised to the same strata; selection is that of all documents. NaN in a replicate
        without a stratum that has both.
        """
        return self._pooled(self.selected(self.token), weights)

    def p(self, n_permutations: int, seed: int) -> float:
        """One-sided p of "sinks do not go with tokens": ``(b + 1) / (n + 1)``.

        The tokens of whole documents change places, at the same positions, among documents of as many sequences; the
        selection is made anew every time. What tokens or sinks of a document have in common stays as it is.
        """
        rng, one = np.random.default_rng(seed), np.ones((1, len(self.fold)))
        observed = self.at(one)[0, 2]
        if np.isnan(observed):
            return np.nan
        sizes = np.bincount(self.code)
        rows = np.argsort(self.code, kind="stable")
        starts = np.cumsum(sizes) - sizes
        above = 0
        for _ in range(n_permutations):
            source = np.arange(len(sizes))
            for size in np.unique(sizes):
                alike = np.flatnonzero(sizes == size)
                source[alike] = rng.permutation(alike)
            order = np.empty_like(rows)
            order[rows] = rows[np.concatenate([starts[g] + np.arange(sizes[g]) for g in source])]
            # Without a stratum that has both there is no difference.
            above += np.nan_to_num(self._pooled(self.selected(self.token[order]), one)[0, 2]) >= observed - 1e-12
        return (above + 1) / (n_permutations + 1)

    def _pooled(self, selected: NDArray[np.bool_], weights: Array) -> Array:
        one = np.eye(len(self.fold))[:, self.code]  # (document, sequence)
        sums = [
            one @ x.astype(np.float64) for x in (selected, ~selected, selected & self.holds, ~selected & self.holds)
        ]
        compared, found, others = (np.zeros(len(weights)) for _ in range(3))
        for fold in range(int(self.fold.max()) + 1):
            n1, n0, a, b = ((weights * (self.fold == fold)) @ x for x in sums)
            n = np.maximum(n1 + n0, 1)
            compared += (n1 * n0 / n).sum(axis=1)
            found += (a * n0 / n).sum(axis=1)
            others += (b * n1 / n).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = (np.where(compared > 0, x / compared, np.nan) for x in (found, others))
        return np.stack([first, second, first - second], axis=1)


def selecting(n_documents: int, seed: int) -> NDArray[np.bool_]:
    """Which documents, a random third of them, select the heads that the others compare: (document,).

    >>> int(selecting(48, seed=0).sum()), int(selecting(5, seed=0).sum())
    (16, 1)
    """
    return np.random.default_rng(seed).permutation(n_documents) < n_documents // 3


def halves(n_documents: int, seed: int) -> NDArray[np.int64]:
    """Random halves, 0 or 1 per document: (document,).

    >>> np.bincount(halves(9, seed=0)).tolist()
    [5, 4]
    """
    return np.random.default_rng(seed).permutation(np.arange(n_documents) % 2)
