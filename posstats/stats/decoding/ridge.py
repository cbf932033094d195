"""Ridge regression cross-validated by document: the engine of :mod:`posstats.stats.decoding.scores`.

A document is either trained on or predicted, never both, and the penalty is chosen by a second cross-validation by
document inside the training documents: generalised cross-validation would take the rows of a document for independent
ones. Everything a fit needs of a fold is its matrix of second moments, so all training sets, the nested ones included,
are differences of a few small matrices.
"""

import numpy as np
from numpy.typing import NDArray

from posstats.errors import DesignError, InputError

#: Ridge penalties tried, per training row and for features scaled to unit variance.
PENALTIES = np.logspace(-6, 3, 19)

#: A feature whose spread in a training set is below this part of its spread in all data is constant there.
_CONSTANT = 1e-6

#: Folds of a cross-validation, at least: its inner one needs two folds to train on and one to test.
FEWEST_FOLDS = 3
#: More than any dump has documents: an array of as many folds still fits into memory.
MOST_FOLDS = 1_000_000


def partitions(n_documents: int, n_folds: int, n_repeats: int, seed: int) -> list[NDArray[np.intp]]:
    """Random partitions of the documents into folds of equal size up to one, (document,) each."""
    if n_folds < FEWEST_FOLDS or n_repeats < 1:
        raise InputError(
            f"at least {FEWEST_FOLDS} folds and 1 repeat are needed, got n_folds={n_folds} and n_repeats={n_repeats}"
        )
    if n_documents < n_folds:
        raise DesignError(f"{n_documents} documents cannot be split into {n_folds} folds; use fewer folds")
    children = np.random.SeedSequence(seed).spawn(n_repeats)
    return [np.random.default_rng(child).permutation(n_documents) % n_folds for child in children]


def cross_predict(
    features: NDArray[np.float64], target: NDArray[np.float64], code: NDArray[np.intp], document_fold: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Out-of-fold predictions (sequence, row), and penalties (fold,).

    Between them, (document, sequence, row): the predictions with the document left out of every training set.
    """
    fold, n_folds = document_fold[code], document_fold.max() + 1
    x = np.ones((*features.shape[:2], features.shape[2] + 1))
    x[..., 1:] = features
    by_document = np.stack([_moments(x[code == g], target) for g in range(document_fold.size)])
    moments = np.stack([by_document[document_fold == k].sum(axis=0) for k in range(n_folds)])
    total = moments.sum(axis=0)
    loss = np.zeros((n_folds, n_folds, PENALTIES.size))
    for k in range(n_folds):
        for j in range(k):
            # Without folds k and j: the training set both for choosing k's penalty on j and for choosing j's on k.
            path = _ridge_path(total - moments[k] - moments[j])
            loss[k, j] = ((path @ moments[j]) * path).sum(axis=1)
            loss[j, k] = ((path @ moments[k]) * path).sum(axis=1)
    penalty = PENALTIES[loss.sum(axis=1).argmin(axis=1)]
    predicted = np.empty(x.shape[:2])
    left_out = np.empty((document_fold.size, *x.shape[:2]))
    for k in range(n_folds):
        held_out, training = fold == k, total - moments[k]
        predicted[held_out] = -x[held_out] @ _ridge(training, penalty[k])[:-1]
        left_out[:, held_out] = predicted[held_out]
        trained_on = document_fold != k
        coefficients = -_ridge(training - by_document[trained_on], penalty[k])[:, :-1]
        left_out[np.ix_(trained_on, held_out)] = np.moveaxis(x[held_out] @ coefficients.T, -1, 0)
    return predicted, left_out, penalty


def _moments(x: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of products of (1, features, target) over sequences and rows."""
    rows = np.concatenate([x, np.broadcast_to(target[:, None], (*x.shape[:2], 1))], axis=2).reshape(-1, x.shape[2] + 1)
    return rows.T @ rows


def _ridge(moments: NDArray[np.float64], penalty: np.float64) -> NDArray[np.float64]:
    """Ridge fits, (..., feature + 2): each the vector c that makes ``error = c @ (1, features, target)``."""
    mean, correlation, with_target, scale = _standardise(moments)
    penalised = correlation + penalty * np.eye(scale.shape[-1])
    return _as_error(np.linalg.solve(penalised, with_target[..., None])[..., 0] * scale, mean)


def _ridge_path(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ridge fits of one training set at every penalty, (penalty, feature + 2), in the form of :func:`_ridge`."""
    mean, correlation, with_target, scale = _standardise(moments)
    values, vectors = np.linalg.eigh(correlation)
    along = vectors.T @ with_target / (np.maximum(values, 0) + PENALTIES[:, None])
    return _as_error(along @ vectors.T * scale, mean)


def _as_error(slopes: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    minus_intercept = (slopes * mean[..., 1:-1]).sum(axis=-1) - mean[..., -1]
    return np.concatenate([minus_intercept[..., None], -slopes, np.ones((*slopes.shape[:-1], 1))], axis=-1)


def _standardise(moments: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Means, correlations of the features, their covariances with the target at unit variance, and 1 / spread.

    A feature that is constant in the training set gets 1 / spread = 0, hence the slope 0.
    """
    mean = moments[..., 0, :] / moments[..., :1, 0]
    covariance = moments / moments[..., :1, :1] - mean[..., :, None] * mean[..., None, :]
    variance = np.diagonal(covariance, axis1=-2, axis2=-1)[..., 1:-1]
    varies = variance > _CONSTANT**2
    scale = np.divide(1.0, np.sqrt(np.maximum(variance, 0)), out=np.zeros_like(variance), where=varies)
    correlation = covariance[..., 1:-1, 1:-1] * scale[..., :, None] * scale[..., None, :]
    return mean, correlation, covariance[..., 1:-1, -1] * scale, scale
