import numpy as np
import pytest
from scipy import stats

from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.decoding.ridge import PENALTIES, partitions
from posstats.stats.decoding.scores import Parts, decode, discriminate
from posstats.stats.inference.resample import document_weights, jackknife_error
from tests.refused import refused

QUERIES = np.arange(17, 60, 2)
POSITION = np.log2(QUERIES + 1.0)


def features(rng, documents, n_features, strength, queries=POSITION):
    """A clue to position, with noise of the document and of the row."""
    _, code = np.unique(documents, return_inverse=True)
    own = rng.normal(scale=0.3, size=(code.max() + 1, 1, n_features))[code]
    return strength * queries[:, None] + own + rng.normal(size=(len(documents), queries.size, n_features))


def explicit_ridge(x, y, penalty):
    mean, spread = x.mean(axis=0), x.std(axis=0)
    z = (x - mean) / spread
    slopes = np.linalg.solve(z.T @ z / len(z) + penalty * np.eye(z.shape[1]), z.T @ (y - y.mean()) / len(z))
    return lambda new: y.mean() + (new - mean) / spread @ slopes


def explicit_cross_validation(x, target, documents, fold_of, absent=None, penalties=None):
    """Nested grouped cross-validation on rows, written out; predictions by sequence, and the penalties chosen."""
    fold = np.array([fold_of[d] for d in documents])
    y = np.tile(target, (len(x), 1))
    present = documents != absent
    predicted, chosen = np.empty(x.shape[:2]), {}
    for k in np.unique(fold):
        if penalties is None:
            losses = np.zeros(PENALTIES.size)
            for j in set(fold) - {k}:
                train, test = (fold != k) & (fold != j), fold == j
                for p, penalty in enumerate(PENALTIES):
                    model = explicit_ridge(np.concatenate(x[train]), y[train].ravel(), penalty)
                    losses[p] += ((model(np.concatenate(x[test])) - y[test].ravel()) ** 2).sum()
            chosen[k] = PENALTIES[losses.argmin()]
        else:
            chosen[k] = penalties[k]
        train = (fold != k) & present
        model = explicit_ridge(np.concatenate(x[train]), y[train].ravel(), chosen[k])
        predicted[fold == k] = model(np.concatenate(x[fold == k])).reshape(-1, x.shape[1])
    return predicted, chosen


@pytest.fixture
def unequal():
    """Nine documents of one to three sequences, in no order."""
    documents = np.array([4, 8, 4, 1, 7, 2, 9, 9, 9, 3, 5, 6, 1, 2])
    rng = np.random.default_rng(0)
    return documents, features(rng, documents, 2, 0.5), features(rng, documents, 5, np.linspace(0, 0.6, 5))


def test_decode_equals_explicit_nested_cross_validation(unequal):
    documents, a, b = unequal
    result = decode(a, b, QUERIES, documents, n_folds=3, seed=5)
    fold_of = dict(zip(np.unique(documents), partitions(9, 3, 1, 5)[0], strict=True))
    total = ((POSITION - POSITION.mean()) ** 2).sum()
    for s, x in enumerate((a, b, np.concatenate([a, b], axis=2))):
        predicted, penalties = explicit_cross_validation(x, POSITION, documents, fold_of)
        error = ((predicted - POSITION) ** 2).sum(axis=1)
        expected = [error[documents == d].sum() for d in result.documents]
        np.testing.assert_allclose(result.squared_error[:, s], expected, rtol=1e-8)
        np.testing.assert_allclose(result.penalty[0, :, s], [penalties[k] for k in range(3)])
        for g, absent in enumerate(result.documents):
            predicted, _ = explicit_cross_validation(x, POSITION, documents, fold_of, absent, penalties)
            error = ((predicted - POSITION) ** 2).sum(axis=1)[documents != absent]
            np.testing.assert_allclose(result.left_out[g, s], 1 - error.sum() / (total * error.size), rtol=1e-8)


def test_discriminate_equals_explicit_pairs(unequal):
    documents, a, b = unequal
    a, b = a[:, [3, 12]], b[:, [3, 12]]
    result = discriminate(a, b, documents, n_folds=3, seed=5)
    fold_of = dict(zip(np.unique(documents), partitions(9, 3, 1, 5)[0], strict=True))

    def auc(score, absent=None):
        wins = count = 0.0
        for n, earlier in enumerate(documents):
            for m, later in enumerate(documents):
                if earlier != later and fold_of[earlier] == fold_of[later] and absent not in (earlier, later):
                    wins += (score[m, 1] > score[n, 0]) + 0.5 * (score[m, 1] == score[n, 0])
                    count += 1
        return wins / count

    for s, x in enumerate((a, b, np.concatenate([a, b], axis=2))):
        score, penalties = explicit_cross_validation(x, np.array([-1.0, 1.0]), documents, fold_of)
        np.testing.assert_allclose(result.auc()[s], auc(score), rtol=1e-12)
        for g, absent in enumerate(result.documents):
            score, _ = explicit_cross_validation(x, np.array([-1.0, 1.0]), documents, fold_of, absent, penalties)
            np.testing.assert_allclose(result.left_out[g, s], auc(score, absent), rtol=1e-12)


def test_r_squared_of_gaussian_clues():
    """Position seen through independent noise: precisions add, and so R2 has a closed form."""
    rng, documents = np.random.default_rng(1), np.arange(400)
    variance = POSITION.var()
    noise = {"a": 0.5, "b": 1.0}
    a, b = (POSITION[:, None] + rng.normal(scale=sd, size=(400, POSITION.size, 1)) for sd in noise.values())
    parts = decode(a, b, QUERIES, documents).parts()
    precision = {"a": 1 / 0.5**2, "b": 1 / 1.0**2, "ab": 1 / 0.5**2 + 1 / 1.0**2}
    r2 = {name: variance / (variance + 1 / value) for name, value in precision.items()}
    tolerance = {"atol": 0.015}
    np.testing.assert_allclose(parts.denominator, r2["a"], **tolerance)
    np.testing.assert_allclose(parts.residual, r2["b"], **tolerance)
    np.testing.assert_allclose(parts.both, r2["ab"], **tolerance)
    np.testing.assert_allclose(parts.shapley_denominator, (r2["a"] + r2["ab"] - r2["b"]) / 2, **tolerance)
    np.testing.assert_allclose(parts.common, r2["a"] + r2["b"] - r2["ab"], **tolerance)


def test_auc_of_gaussian_clues():
    rng, documents = np.random.default_rng(2), np.repeat(np.arange(60), 10)
    a = np.array([0.0, 1.0])[:, None] + rng.normal(size=(600, 2, 1))
    b = np.array([0.0, 0.5])[:, None] + rng.normal(size=(600, 2, 1))
    auc = discriminate(a, b, documents).auc()
    distance = np.array([1.0, 0.5, np.hypot(1.0, 0.5)])
    np.testing.assert_allclose(auc, stats.norm.cdf(distance / np.sqrt(2)), atol=0.03)


def test_parts_add_up_and_nothing_is_clipped():
    scores = np.array([[0.3, -0.1, 0.25], [0.2, 0.4, 0.5]])
    parts = Parts.of(scores)
    np.testing.assert_allclose(parts.shapley_denominator + parts.shapley_residual, parts.both)
    np.testing.assert_allclose(parts.unique_denominator + parts.unique_residual + parts.common, parts.both)
    np.testing.assert_allclose(parts.unique_denominator, [0.35, 0.1])
    np.testing.assert_allclose(parts.common, [-0.05, 0.1])


def test_what_one_document_knows_by_heart_is_not_decoded():
    """Sequences of a document share an arbitrary code of position: plain cross-validation over sequences finds it."""
    rng, documents = np.random.default_rng(3), np.repeat(np.arange(12), 4)
    code = rng.normal(size=(12, QUERIES.size, 150))[documents] + 0.1 * rng.normal(size=(48, QUERIES.size, 150))
    blind = rng.normal(size=(48, QUERIES.size, 1))
    assert decode(code, blind, QUERIES, documents).parts().denominator < 0.05
    assert decode(code, blind, QUERIES, np.arange(48)).parts().denominator > 0.2


def test_useless_features_score_about_nothing():
    rng = np.random.default_rng(4)
    parts = decode(rng.normal(size=(30, 22, 3)), rng.normal(size=(30, 22, 8)), QUERIES, np.arange(30)).parts()
    assert -0.05 < parts.both < 0.05
    auc = discriminate(rng.normal(size=(90, 2, 3)), rng.normal(size=(90, 2, 8)), np.arange(90)).auc()
    assert (np.abs(auc - 0.5) < 0.12).all()


def test_weights_count_documents(unequal):
    documents, a, b = unequal
    position = decode(a, b, QUERIES, documents, n_folds=3)
    weights = document_weights(9, 5, seed=0)
    r2 = position.parts(weights)
    assert r2.both.shape == (5,)
    drawn = np.repeat(np.arange(9), weights[2].astype(int))
    expected = 1 - position.squared_error[drawn].sum(axis=0) / position.total[drawn].sum()
    np.testing.assert_allclose([r2.denominator[2], r2.residual[2], r2.both[2]], expected)
    np.testing.assert_allclose(position.parts(np.ones(9)).both, position.parts().both)
    pair = discriminate(a[:, [0, 9]], b[:, [0, 9]], documents, n_folds=3)
    wins = sum(pair.wins[g, h] for g in drawn for h in drawn)
    np.testing.assert_allclose(pair.auc(weights)[2], wins / sum(pair.pairs[g, h] for g in drawn for h in drawn))
    np.testing.assert_allclose(pair.parts(weights).both, pair.auc(weights)[:, 2] - 0.5)


def test_order_of_sequences_and_repeats(unequal):
    documents, a, b = unequal
    order = np.random.default_rng(0).permutation(documents.size)
    first = decode(a, b, QUERIES, documents, n_folds=3, n_repeats=2)
    again = decode(a[order], b[order], QUERIES, documents[order], n_folds=3, n_repeats=2)
    np.testing.assert_allclose(first.squared_error, again.squared_error, rtol=1e-9)
    single = decode(a, b, QUERIES, documents, n_folds=3, n_repeats=1)
    np.testing.assert_array_equal(first.penalty[0], single.penalty[0])
    assert not np.allclose(first.squared_error, single.squared_error)


def test_features_that_are_constant_are_ignored(unequal):
    documents, a, b = unequal
    constant = np.full((*a.shape[:2], 1), 7.0)
    with_constant = decode(np.concatenate([a, constant], axis=2), b, QUERIES, documents, n_folds=3)
    np.testing.assert_allclose(
        with_constant.squared_error, decode(a, b, QUERIES, documents, n_folds=3).squared_error, rtol=1e-9
    )


def test_ceiling_and_chance_of_the_auc():
    rng, documents = np.random.default_rng(5), np.arange(20)
    apart = discriminate(np.array([0.0, 100.0])[:, None] + rng.normal(size=(20, 2, 1)), np.zeros((20, 2, 1)), documents)
    auc = apart.auc(document_weights(20, 50, seed=0))
    assert (auc[:, 0] == 1).all()
    assert (auc[:, 1] == 0.5).all()  # all scores tie
    assert apart.n_independent == 10
    lowest = stats.binomtest(10, 10).proportion_ci(0.95, method="exact").low
    np.testing.assert_allclose(apart.ceiling_bound(), lowest)
    np.testing.assert_allclose(apart.parts().shapley_denominator, 0.5)


@pytest.mark.parametrize("n_documents", [16, 32])
def test_jackknife_intervals_cover(n_documents):
    """Of the expected score at this number of documents; resampling fixed predictions is shown to fall short."""
    names = ("residual", "both", "shapley_denominator", "common")
    estimates, errors, fixed = [], [], []
    for seed in range(120):
        rng, documents = np.random.default_rng(seed), np.arange(n_documents)
        a, b = features(rng, documents, 4, 0.5), features(rng, documents, 12, np.linspace(0, 0.4, 12))
        result = decode(a, b, QUERIES, documents, seed=seed)
        parts, left_out = result.parts(), result.left_out_parts()
        without_refitting = result.parts(1 - np.eye(n_documents))
        estimates.append([getattr(parts, name) for name in names])
        errors.append([jackknife_error(getattr(left_out, name)) for name in names])
        fixed.append([jackknife_error(getattr(without_refitting, name)) for name in names])
    off = np.abs(estimates - np.mean(estimates, axis=0))
    reach = stats.t.ppf(0.975, n_documents - 1)
    coverage = (off <= reach * np.array(errors)).mean(axis=0)
    slack = 3 * np.sqrt(0.95 * 0.05 / 120)
    assert (np.abs(coverage - 0.95) <= slack).all(), dict(zip(names, coverage, strict=True))
    assert (off <= reach * np.array(fixed)).mean() < coverage.mean() - 0.02


def test_arguments(unequal):
    documents, a, b = unequal
    refused(DesignError, "4 documents are too few", decode, a[:4], b[:4], QUERIES, np.arange(4))
    refused(DesignError, "9 documents cannot be split into 10 folds", decode, a, b, QUERIES, documents, n_folds=10)
    refused(DesignError, "at most 4 folds", discriminate, a[:, :2], b[:, :2], documents)
    refused(DesignError, "two different query", decode, a[:, :1], b[:, :1], [20], documents, n_folds=3)
    for options in ({"n_folds": 2}, {"n_repeats": 0}):
        refused(InputError, "at least 3 folds and 1 repeat", decode, a, b, QUERIES, documents, **options)
    refused(InputError, "residual features must have shape", decode, a, b[:, :5], QUERIES, documents)
    refused(InputError, "one column per document", decode(a, b, QUERIES, documents, n_folds=3).parts, np.ones((2, 8)))
    with pytest.raises(DesignError, match="no two different documents"):
        discriminate(a[:, :2], b[:, :2], documents, n_folds=3).auc(np.eye(9)[0])
    b[0, 0, 0] = np.nan
    refused(NumericalError, "residual features must be finite", decode, a, b, QUERIES, documents)
