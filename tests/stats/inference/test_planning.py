"""Plans against closed forms and against recordings of the planned size."""

import numpy as np
import pytest
from scipy import stats

from posstats.errors import InputError
from posstats.stats.inference.planning import FEWEST, Pilot
from posstats.stats.inference.squares import SquareSpread


def spread_of(rng, datasets, n, q, square):
    x = np.sqrt(square / q) + rng.normal(size=(datasets, n, q))
    gram = x @ x.transpose(0, 2, 1)
    gram[:, np.arange(n), np.arange(n)] = 0
    whole, rows = gram.sum(axis=(1, 2)), gram.sum(axis=2)
    left_out = ((whole[:, None] - 2 * rows) / ((n - 1) * (n - 2))).T
    return SquareSpread.of(whole / (n * (n - 1)), left_out, gram, np.ones(n))


def test_a_mean_has_the_textbook_half_width():
    x = np.random.default_rng(0).normal(size=20)
    interval = stats.t.interval(0.95, 19, x.mean(), stats.sem(x))
    pilot = Pilot.of_error(stats.sem(x), 20)
    np.testing.assert_allclose(pilot.half_width(20), (interval[1] - interval[0]) / 2)
    np.testing.assert_allclose(pilot.half_width(80), stats.t.ppf(0.975, 79) * x.std(ddof=1) / np.sqrt(80))


def test_both_parts_fall_as_those_of_the_planned_recording():
    """A pilot of 16 documents foresees the error of 64, the second-order part included."""
    rng, q, square = np.random.default_rng(1), 10, 0.5
    pilot = Pilot.of_squares(spread_of(rng, 1000, 16, q, square), 16)
    actual = spread_of(rng, 3000, 64, q, square).estimate.std()
    foreseen = np.sqrt((pilot.half_width(64) ** 2).mean()) / stats.t.ppf(0.975, 63)
    assert abs(foreseen / actual - 1) < 0.12
    naive = np.sqrt((pilot.first + pilot.second).mean()) / 2  # everything as 1/sqrt(N)
    assert naive / actual - 1 > 0.1


@pytest.mark.parametrize("half_width", [3.0, 0.3, 0.05, 0.01])
def test_documents_are_the_fewest_that_do(half_width):
    pilot = Pilot(np.array([0.01, 0.0, 0.04]), np.array([0.0, 0.02, 0.01]), 24)
    wanted = pilot.documents(half_width)
    assert (pilot.half_width(wanted) <= half_width).all()
    more = wanted > FEWEST
    fewer = np.where(more, wanted - 1, FEWEST)
    assert (pilot.half_width(fewer) > half_width)[more].all()
    assert (wanted >= FEWEST).all()


def test_limits():
    pilot = Pilot.of_error(np.array([0.0, 1.0, np.nan]), 10)
    assert pilot.documents(1e-4).tolist() == [5, np.inf, np.inf]
    with pytest.raises(InputError, match="half_width must be above 0, not 0"):
        pilot.documents(0)
    with pytest.raises(InputError, match="at least 5 documents, not 4"):
        pilot.half_width(4)
