"""One seed gives one result: the same bits whatever the chunks, the threads, and the order of the layers."""

import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats.execution import parallel as side_by_side
from posstats.stats.inference.resample import document_weights
from posstats.stats.pair_products import evaluate

CONDITIONS = ["baseline", "bos=mean"]
ESTIMATORS = {
    "leakage": lambda ds, **options: ps.leakage(ds, **options),
    "shares": lambda ds, **options: ps.shares(ds, octaves=False, **options),
    "magnitude": lambda ds, **options: ps.magnitude(ds, **options),
    "removal": lambda ds, **options: ps.removal(ds, "bos=mean", **options),
}


@pytest.fixture(scope="module")
def ds():
    return ps.simulate(n=24, length=40, layers=3, heads=3, offsets=[0, 1, 4], conditions=CONDITIONS, seed=2).dataset


@pytest.fixture(scope="module", params=ESTIMATORS)
def estimator(request):
    return ESTIMATORS[request.param]


@pytest.fixture(scope="module", params=["t", "bootstrap"])
def expected(request, ds, estimator):
    options = {"method": request.param, "n_resamples": 99, "n_permutations": 99, "by": ()}
    return options, estimator(ds, **options).table


def same(ds, estimator, expected):
    options, table = expected
    pd.testing.assert_frame_equal(estimator(ds, **options).table, table, check_exact=True)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads(monkeypatch, threads, ds, estimator, expected):
    monkeypatch.setattr(side_by_side.os, "cpu_count", lambda: threads)
    same(ds, estimator, expected)


@pytest.mark.parametrize("chunks", [{"layer": 1}, {"sequence": 5, "head": 2}, {"query": 7, "offset": 1}])
def test_chunks(chunks, ds, estimator, expected):
    same(ds.chunk(chunks), estimator, expected)


def test_order_of_layers(ds, estimator, expected):
    same(ds.isel(layer=[2, 0, 1]), estimator, expected)


def test_blocks_of_heads_and_replicates(monkeypatch, ds, estimator, expected):
    monkeypatch.setattr(evaluate, "_BLOCK_BYTES", 1)
    same(ds, estimator, expected)


def test_fewer_replicates_are_the_first_of_more():
    few, many = (document_weights(20, n, seed=4) for n in (100, 1000))
    np.testing.assert_array_equal(few, many[:100])


def test_a_family_too_large_for_the_sign_flips_is_said(ds):
    heads = ps.leakage(ds, by=["layer", "head"], octaves=False, n_permutations=99)
    assert "cannot make a single one of 9 tests significant" in heads.notes[-1]
    assert "180 or more" in heads.notes[-1]
    assert not ps.leakage(ds, by=["layer", "head"], octaves=False, n_permutations=199).notes
