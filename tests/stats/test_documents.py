"""Effective number of documents and leverage of a single one."""

import numpy as np
import pytest

from posstats.stats.inference.documents import effective_documents, leverage, leverage_note


def test_effective_number_is_the_ratio_of_variances():
    """Of a mean over sequences whose documents vary and whose sequences do not, against one document."""
    counts = np.array([5, 1, 2, 8])
    of_documents = np.random.default_rng(0).normal(size=(200_000, 4))
    variance = (of_documents @ counts / counts.sum()).var()
    assert 1 / variance == pytest.approx(effective_documents(counts), rel=0.02)


@pytest.mark.parametrize("counts", [[1] * 48, [7] * 5])
def test_equal_documents_count_as_many_as_they_are(counts):
    assert effective_documents(counts) == len(counts)


def test_leverage_is_the_largest_part():
    addends = np.random.default_rng(0).normal(size=(6, 3, 2))
    for at in np.ndindex(3, 2):
        sizes = [abs(one) for one in addends[:, *at]]
        assert leverage(addends)[at] == pytest.approx(max(sizes) / sum(sizes), rel=1e-12)
    assert np.isnan(leverage(np.zeros((6, 1)))).all()
    assert leverage([[0.0], [3.0], [0.0]]) == [1.0]


def test_a_note_only_above_a_quarter():
    assert leverage_note([0.25, 0.1, np.nan], "slopes") == ()
    assert leverage_note([], "slopes") == ()
    (note,) = leverage_note([0.26, 0.1, np.nan], "slopes")
    assert note.endswith("in 1 of 2 slopes, up to 0.26")
