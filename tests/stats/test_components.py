"""The fast kernels against the plain float64 brute force, at the estimate and at bootstrap weights."""

import numpy as np
import pytest

import posstats as ps
from posstats.dataset.blocks import field_blocks, layer_fields
from posstats.dataset.terms import decompose
from posstats.errors import DesignError
from posstats.stats.inference import squares
from posstats.stats.inference.resample import document_pairs, leave_out_weights
from posstats.stats.pair_products.components import (
    SHARE_COMPONENTS,
    SQUARE_COMPONENTS,
    analysed_queries,
    magnitude_statistics,
    share_parts,
    share_statistics,
    size_statistics,
)
from posstats.stats.pair_products.evaluate import evaluate, influence_products, mean_terms, pair_products
from posstats.stats.pair_products.terms import ORDERS
from tests import brute

LENGTH = 32
QUERIES = LENGTH // 2
#: What the second order of the change of the steady state leaves, at weights that draw few documents often.
CLOSE = {"rtol": 2e-3, "atol": 2e-4}
EXACT = {"rtol": 1e-9, "atol": 1e-10}
OFFSETS = (0, 1, 3)
DOCUMENTS = ["a", "b", "b", "c", "d", "e", "e", "e"]  # unequal numbers of sequences
WEIGHTS = [(1, 1, 1, 1, 1), (2, 1, 0, 1, 1), (0, 3, 0, 0, 2), (1, 0, 2, 0, 2)]


def field_logits(seed, layers=2, heads=2):
    rng = np.random.default_rng(seed)
    n = len(DOCUMENTS)
    shape = (n, layers, heads, LENGTH, LENGTH)
    distance = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    logits = rng.normal(size=shape) - 0.2 * distance
    logits[..., 0] += 2.0 + rng.normal(size=(n, layers, heads, 1))  # a sink
    return logits + 0.3 * np.log1p(np.arange(LENGTH))[:, None]


CASES = {
    "causal": {},
    "window": {"visible": brute.causal(LENGTH, window=6)},
    "learned sink": {"learned_sink": np.array([[0.5, -np.inf], [2.0, -1.0]])},
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    logits = field_logits(3)
    ds = brute.dump_dataset({"baseline": logits}, DOCUMENTS, OFFSETS, **CASES[request.param])
    return logits, CASES[request.param], ds


def tolerance(name, order, weights):
    """All but the mask counted last is exact at any weights; at the estimate everything is."""
    follows = name == "mask_last" or (order != "mask_first" and name in ("mask", "sink", "residual"))
    return CLOSE if follows and set(weights) != {1} else EXACT


@pytest.mark.parametrize("weights", WEIGHTS)
def test_share_components_equal_brute_force(case, weights):
    logits, options, ds = case
    oracle = brute.Brute(logits, DOCUMENTS, OFFSETS, weights=weights, **options)
    queries = analysed_queries(QUERIES, np.array(OFFSETS))
    for layer, field in layer_fields(decompose(ds).sel(condition="baseline")):
        stats = share_statistics(field, queries, np.array(OFFSETS))
        value = evaluate([stats], np.array([weights], dtype=float))[0][0]
        for k, name in enumerate(SHARE_COMPONENTS):
            close = tolerance(name, "", weights)
            np.testing.assert_allclose(value[:, k], oracle.cross(name)[layer], **close, err_msg=name)


@pytest.mark.parametrize("order", ORDERS)
def test_share_parts_equal_brute_force(case, order):
    logits, options, ds = case
    oracle = brute.Brute(logits, DOCUMENTS, OFFSETS, order=order, **options)
    queries = analysed_queries(QUERIES, np.array(OFFSETS))
    for layer, field in layer_fields(ds.sel(condition="baseline")):
        value = evaluate([share_statistics(field, queries, np.array(OFFSETS))], np.ones((1, 5)))[0][0]
        for name, part in share_parts(order).items():
            np.testing.assert_allclose(value @ part, oracle.cross(name)[layer], **EXACT, err_msg=name)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("order", ORDERS)
def test_sizes_equal_brute_force(case, weights, order):
    logits, options, ds = case
    oracle = brute.Brute(logits, DOCUMENTS, OFFSETS, weights=weights, order=order, **options)
    queries = analysed_queries(QUERIES, np.array(OFFSETS))
    for layer, field in layer_fields(ds.sel(condition="baseline")):
        stats = size_statistics(field, queries, np.array(OFFSETS), ORDERS[order])
        value = evaluate([stats], np.array([weights], dtype=float))[0][0]
        for k, name in enumerate(SQUARE_COMPONENTS):
            close = tolerance(name, order, weights)
            np.testing.assert_allclose(value[:, k], oracle.size(name)[layer], **close, err_msg=name)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("order", ORDERS)
def test_magnitudes_equal_brute_force(case, weights, order):
    logits, options, ds = case
    oracle = brute.Brute(logits, DOCUMENTS, OFFSETS, weights=weights, order=order, **options)
    for queries in (range(2, 4), range(4, 8), range(8, 16)):
        offsets = np.array([d for d in OFFSETS if d < queries[0]])
        for layer, field in layer_fields(ds.sel(condition="baseline")):
            stats = magnitude_statistics(field, np.array(queries), offsets, ORDERS[order])
            value = evaluate([stats], np.array([weights], dtype=float))[0][0]
            for k, name in enumerate(SQUARE_COMPONENTS):
                expected = oracle.magnitude(name, queries)[layer]
                np.testing.assert_allclose(value[:, k], expected, **tolerance(name, order, weights), err_msg=name)


@pytest.mark.parametrize("order", ORDERS)
def test_mean_terms_equal_brute_force(case, order):
    logits, options, ds = case
    oracle = brute.Brute(logits, DOCUMENTS, OFFSETS, order=order, **options)
    late = slice(max(OFFSETS) + 1, None)
    for layer, field in layer_fields(ds.sel(condition="baseline")):
        for name, values in mean_terms(field, np.ones((1, 5)), ORDERS[order]).items():
            expected = oracle.terms[name][:, layer].mean(axis=(0, -1))
            np.testing.assert_allclose(values[0, :, late], expected[:, late], **EXACT, err_msg=name)


def test_pair_products_add_up_to_the_estimate(case):
    _, _, ds = case
    queries = analysed_queries(QUERIES, np.array(OFFSETS))
    for _, field in layer_fields(decompose(ds).sel(condition="baseline")):
        both = [
            share_statistics(field, queries, np.array(OFFSETS)),
            magnitude_statistics(field, np.arange(4, 8), np.array(OFFSETS)),
        ]
        pairs = field.sequences.sum() ** 2 - (field.sequences**2).sum()
        for stats, result in zip(both, evaluate(both, np.ones((1, 5))), strict=True):
            np.testing.assert_allclose(pair_products(stats).sum(axis=(-1, -2)) / pairs, result[0], atol=1e-10)


def test_selecting_sequences_of_terms_re_estimates_the_reference():
    logits = field_logits(5)
    ds = brute.dump_dataset({"baseline": logits}, DOCUMENTS, OFFSETS)
    keep = [0, 1, 3, 4, 5, 6]
    queries = analysed_queries(QUERIES, np.array(OFFSETS))
    oracle = brute.Brute(logits[keep], [DOCUMENTS[n] for n in keep], OFFSETS)
    selected = decompose(ds).isel(sequence=keep).sel(condition="baseline")
    for layer, field in layer_fields(selected):
        value = evaluate([share_statistics(field, queries, np.array(OFFSETS))], np.ones((1, 5)))[0][0]
        np.testing.assert_allclose(value[:, 2], oracle.cross("mask_last")[layer], rtol=1e-9)


def test_weights_of_one_document_are_refused(case):
    _, _, ds = case
    _, field = next(layer_fields(decompose(ds).sel(condition="baseline")))
    stats = share_statistics(field, np.arange(4, 10), np.array(OFFSETS))
    with pytest.raises(DesignError, match="two distinct documents"):
        evaluate([stats], np.array([[5.0, 0, 0, 0, 0]]))


def test_too_long_offsets_leave_no_query():
    with pytest.raises(DesignError, match="at most 17"):
        analysed_queries(20, np.array([18]))


@pytest.mark.parametrize("length", [32, 128])
def test_products_of_documents_hold_what_they_do_to_the_steady_state(length):
    """Against products got back from leaving out every pair of documents, the steady state re-estimated each time."""
    ds = ps.simulate(n=24, length=length, heads=2, offsets=(0, 1, 2), seed=0).dataset
    (field,) = (field for block in field_blocks(ps.decompose(ds).isel(condition=0)) for field in block.fields())
    pairs = document_pairs(24, 24 * 23)
    queries = analysed_queries(length // 2, field.offsets)
    for kernel in (share_statistics, size_statistics):
        stats = kernel(field, queries, field.offsets)
        values = evaluate([stats], leave_out_weights(24, pairs))[0]
        exact = squares.pair_gram(values[0], values[1:25], pairs, values[25:], field.sequences)
        grams = exact, influence_products(stats), stats.gram
        exact, first, fixed = (squares.pair_interactions(one, field.sequences) for one in grams)
        size, error, without = (np.linalg.norm(one, axis=(-2, -1)) for one in (exact, exact - first, exact - fixed))
        assert (error < 0.25 * size).all()  # of the mask, whose own part is least; of the others it is 0.05
        moved = without > 0.02 * size  # the steady state matters
        assert moved.any()
        assert (error < 0.25 * without)[moved].all()
