"""Decoding position from what attention computes (docs/method.md, section 5).

A ridge regression, cross-validated by document, predicts position from two groups of features: (a) the denominators
(log Z of every head) and (b) the residual stream (the sink and offset logits of every head, or the residual stream
itself). What each group explains alone, and both together, is split into unique, common and Shapley parts. The same
scores answer whether two given positions can be told apart.

A document is either trained on or predicted, never both: see :mod:`posstats.stats.decoding.ridge`.

Both results carry the score with each document left out of everything, training included. Standard errors need it: a
document also moves the models that predict the others, and resampling fixed out-of-fold predictions misses that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.decoding.ridge import cross_predict, partitions
from posstats.vocabulary import MINIMUM_DOCUMENTS

#: The three sets of features, in the order of the last axis of every sufficient statistic here.
FEATURE_SETS = ("denominator", "residual", "both")


@dataclass(frozen=True, slots=True)
class Parts:
    """What two groups of features explain, alone and together; every field is (...), one value per replicate."""

    #: Score of the group alone and of both together. Cross-validated, so it can be negative, and ``both`` can fall
    #: below either; nothing is clipped.
    denominator: NDArray[np.float64]
    residual: NDArray[np.float64]
    both: NDArray[np.float64]
    #: ``both`` minus the score of the other group alone.
    unique_denominator: NDArray[np.float64]
    unique_residual: NDArray[np.float64]
    #: ``denominator + residual - both``; negative where the groups only work together.
    common: NDArray[np.float64]
    #: ``(own + both - other) / 2``: the two add up to ``both``.
    shapley_denominator: NDArray[np.float64]
    shapley_residual: NDArray[np.float64]

    @classmethod
    def of(cls, scores: NDArray[np.float64]) -> "Parts":
        """Split scores, (..., feature set), in the order of :data:`FEATURE_SETS`."""
        a, b, ab = np.moveaxis(scores, -1, 0)
        return cls(a, b, ab, ab - b, ab - a, a + b - ab, (a + ab - b) / 2, (b + ab - a) / 2)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Cross-validated prediction of log2(i + 1), reduced to what resampling documents needs."""

    #: (document, feature set): sum over the document's sequences and queries of the squared out-of-fold error, mean
    #: over repeats.
    squared_error: NDArray[np.float64]
    #: (document,): the same sum of squares about the mean of log2(i + 1), which is known: every sequence has the same
    #: queries.
    total: NDArray[np.float64]
    #: (document, feature set): R-squared without the document, all models refitted (folds and penalties stay).
    left_out: NDArray[np.float64]
    #: (repeat, fold, feature set): penalty chosen inside the training documents, see
    #: :data:`posstats.stats.decoding.ridge.PENALTIES`.
    penalty: NDArray[np.float64]
    #: (document,): labels of the documents, sorted.
    documents: NDArray[np.generic]

    def parts(self, weights: ArrayLike | None = None) -> Parts:
        """R-squared ``1 - sum(squared_error) / sum(total)`` and its parts, (...).

        `weights`, (..., document), say how often each document counts, one row per replicate; once each by default. The
        fitted models stay as they are, so the spread of replicates describes new documents given these models and is
        too small for the whole procedure: take standard errors from :meth:`left_out_parts`.
        """
        w = _weights(weights, self.total.size)
        return Parts.of(1 - (w @ self.squared_error) / (w @ self.total)[..., None])

    def left_out_parts(self) -> Parts:
        """Parts without each document, of shape (document,): what a jackknife standard error is made of."""
        return Parts.of(self.left_out)


@dataclass(frozen=True, slots=True)
class Discriminability:
    """Cross-validated separation of two positions, reduced to what resampling documents needs."""

    #: (document, document, feature set); entry [g, h]: over pairs of a sequence of g at the earlier position and one of
    #: h at the later, how many have the higher score at the later position; ties count one half. Only pairs scored by
    #: the same model and from different documents are counted. Summed over repeats.
    wins: NDArray[np.float64]
    #: (document, document): how many pairs were compared.
    pairs: NDArray[np.float64]
    #: (document, feature set): AUC without the document, all models refitted (folds and penalties stay).
    left_out: NDArray[np.float64]
    #: Disjoint, hence independent, pairs of documents among those compared within one repeat.
    n_independent: int
    #: (document,): labels of the documents, sorted.
    documents: NDArray[np.generic]

    def auc(self, weights: ArrayLike | None = None) -> NDArray[np.float64]:
        """Area under the receiver operating characteristic: the probability that the later position scores higher.

        Shape (..., feature set), in the order of :data:`FEATURE_SETS`; 0.5 is chance. `weights`, (..., document), say
        how often each document counts, one row per replicate; once each by default. A document repeated in a replicate
        is not compared with itself. Raises DesignError if a replicate holds no pair of different documents that the
        same model scored.
        """
        w = _weights(weights, self.pairs.shape[0])
        count = ((w @ self.pairs) * w).sum(axis=-1)
        if (count <= 0).any():
            raise DesignError("a replicate holds no two different documents that were scored by the same model")
        wins = np.einsum("...g,ghs,...h->...s", w, self.wins, w, optimize=True)
        return wins / count[..., None]

    def parts(self, weights: ArrayLike | None = None) -> Parts:
        """AUC above chance, ``auc - 0.5``, and its parts; the arguments and errors of :meth:`auc`."""
        return Parts.of(self.auc(weights) - 0.5)

    def left_out_parts(self) -> Parts:
        """Parts without each document, of shape (document,): what a jackknife standard error is made of."""
        return Parts.of(self.left_out - 0.5)

    def ceiling_bound(self, level: float = 0.95) -> float:
        """Lower confidence limit of an AUC that is exactly 1 in the data.

        No resampling can say how far below 1 the truth may be: every replicate is 1. But each of the
        :attr:`n_independent` disjoint pairs of documents was ordered rightly, and had the AUC been lower than
        ``((1 - level) / 2) ** (1 / n_independent)`` that would have had probability below ``(1 - level) / 2``: the
        Clopper-Pearson limit for all successes. An AUC of exactly 0 has the mirrored upper limit.
        """
        return ((1 - level) / 2) ** (1 / self.n_independent)


def decode(
    denominator: ArrayLike,
    residual: ArrayLike,
    queries: ArrayLike,
    documents: ArrayLike,
    *,
    n_folds: int = 5,
    n_repeats: int = 1,
    seed: int = 0,
) -> Decoding:
    """Decode log2(i + 1) from two groups of features by ridge regression, cross-validated by document.

    Features, (sequence, query, feature), are scaled to unit variance within the training documents; `queries`,
    (query,), are positions i; `documents`, (sequence,), label the unit that folds keep whole and that is resampled. A
    fold predicts, one chooses the penalty and the others train, so there are at least 3; scores are averaged over
    `n_repeats` random partitions.

    Raises InputError if shapes do not match, or there are fewer than 3 folds or no repeat; DesignError if there are
    fewer than 5 documents, fewer documents than folds, or not two different queries; NumericalError if a feature is
    not finite.

    >>> rng = np.random.default_rng(0)
    >>> queries = np.arange(16, 64)
    >>> clue = np.log2(queries + 1)[:, None] + rng.normal(scale=0.2, size=(20, 48, 3))
    >>> blind = rng.normal(size=(20, 48, 4))
    >>> parts = decode(clue, blind, queries, documents=np.arange(20)).parts()
    >>> bool(parts.denominator > 0.9), bool(abs(parts.residual) < 0.1)
    (True, True)
    """
    positions = np.asarray(queries)
    sets, labels, code = _check(denominator, residual, positions, documents)
    target = np.log2(positions + 1.0)
    if np.unique(target).size < 2:
        raise DesignError("decoding needs at least two different query positions")
    squared_error = np.zeros((labels.size, len(sets)))
    without = np.zeros((labels.size, labels.size, len(sets)))
    penalty = np.empty((n_repeats, n_folds, len(sets)))
    for repeat, fold in enumerate(partitions(labels.size, n_folds, n_repeats, seed)):
        for s, features in enumerate(sets):
            predicted, left_out, penalty[repeat, :, s] = cross_predict(features, target, code, fold)
            np.add.at(squared_error[:, s], code, ((predicted - target) ** 2).sum(axis=1) / n_repeats)
            np.add.at(without[..., s].T, code, ((left_out - target) ** 2).sum(axis=2).T / n_repeats)
    total = np.bincount(code) * ((target - target.mean()) ** 2).sum()
    others = 1.0 - np.eye(labels.size)
    jackknife = 1 - (others[..., None] * without).sum(axis=1) / (others @ total)[:, None]
    return Decoding(squared_error, total, jackknife, penalty, labels)


def discriminate(
    denominator: ArrayLike,
    residual: ArrayLike,
    documents: ArrayLike,
    *,
    n_folds: int = 5,
    n_repeats: int = 1,
    seed: int = 0,
) -> Discriminability:
    """Tell two positions apart by a linear score, cross-validated by document.

    The score is the ridge regression of the label (-1 earlier, +1 later) on the features, which is Fisher's linear
    discriminant with a shrunken covariance. Features are (sequence, 2, feature), at the earlier and at the later
    position; the rest is as in :func:`decode`, but for a DesignError if there are fewer than two documents per fold:
    only documents of one fold can be compared.

    >>> rng = np.random.default_rng(0)
    >>> clue = np.array([50.0, 100.0])[:, None] + rng.normal(scale=5, size=(20, 2, 3))
    >>> apart = discriminate(clue, rng.normal(size=(20, 2, 4)), documents=np.arange(20))
    >>> apart.auc()[0], round(apart.ceiling_bound(), 3)
    (np.float64(1.0), 0.692)
    """
    sets, labels, code = _check(denominator, residual, np.arange(2), documents)
    if labels.size < 2 * n_folds:
        raise DesignError(
            f"{labels.size} documents in {n_folds} folds leave a fold with fewer than two to compare; "
            f"use at most {labels.size // 2} folds (at least 3 are needed)"
        )
    shape = (labels.size, labels.size, len(sets))
    wins, without, pairs = np.zeros(shape), np.zeros(shape[1:]), np.zeros(shape[:2])
    others = 1.0 - np.eye(labels.size)
    n_independent = 0
    for fold in partitions(labels.size, n_folds, n_repeats, seed):
        compared = (fold[:, None] == fold) * others
        pairs += compared * np.multiply.outer(np.bincount(code), np.bincount(code))
        n_independent = int((np.bincount(fold) // 2).sum())
        for s, features in enumerate(sets):
            score, left_out, _ = cross_predict(features, np.array([-1.0, 1.0]), code, fold)
            wins[..., s] += compared * _wins(score, code)
            for g, scores in enumerate(left_out):
                without[g, s] += others[g] @ (compared * _wins(scores, code)) @ others[g]
    count = ((others @ pairs) * others).sum(axis=1)
    return Discriminability(wins, pairs, without / count[:, None], n_independent, labels)


def _wins(score: NDArray[np.float64], code: NDArray[np.intp]) -> NDArray[np.float64]:
    """Sequences of document h scoring higher at the later position than those of g at the earlier: [g, h]."""
    by_sequence = (np.sign(score[:, 1] - score[:, :1]) + 1) / 2
    member = np.eye(code.max() + 1)[code]
    return member.T @ by_sequence @ member


def _weights(weights: ArrayLike | None, n_documents: int) -> NDArray[np.float64]:
    w = np.ones(n_documents) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape[-1:] != (n_documents,):
        raise InputError(f"weights need one column per document ({n_documents}), got shape {w.shape}")
    return w


def _check(
    denominator: ArrayLike, residual: ArrayLike, rows: NDArray[np.generic], documents: ArrayLike
) -> tuple[list[NDArray[np.float64]], NDArray[np.generic], NDArray[np.intp]]:
    """The three feature sets at mean 0 and variance 1, the labels of the documents, and the document of a sequence."""
    sequence_labels = np.asarray(documents)
    groups = []
    for name, group in (("denominator", denominator), ("residual", residual)):
        x = np.asarray(group, dtype=np.float64)
        if x.ndim != 3 or x.shape[:2] != (sequence_labels.size, rows.size) or x.shape[2] == 0:
            raise InputError(
                f"{name} features must have shape ({sequence_labels.size} sequences, {rows.size} queries, at least one "
                f"feature), got {x.shape}"
            )
        if not np.isfinite(x).all():
            raise NumericalError(f"{name} features must be finite; leave out heads and queries without a visible key")
        spread = x.std(axis=(0, 1))
        groups.append((x - x.mean(axis=(0, 1))) / np.where(spread > 0, spread, 1.0))
    labels, code = np.unique(sequence_labels, return_inverse=True)
    if labels.size < MINIMUM_DOCUMENTS:
        raise DesignError(f"{labels.size} documents are too few to cross-validate; at least {MINIMUM_DOCUMENTS} needed")
    return [*groups, np.concatenate(groups, axis=2)], labels, code
