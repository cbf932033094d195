"""The study of the intervals: every cell once, seeds of its own, tables that count what was drawn."""

import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("analyses.calibration.inference.study")


def test_the_study_lists_every_cell_once(study):
    names = [cell.name for cell in study.cells()]
    assert len(names) == len(set(names))


def test_every_kind_of_cell_draws(study):
    kinds = {cell.kind: cell for cell in study.cells()}
    assert set(kinds) == {"squares", "ratios", "runs", "families", "bootstrap_squares", "bootstrap_ratios"}
    for cell in kinds.values():
        drawn = cell.draw(0, 6)
        assert {len(values) for values in drawn.values()} == {6}
        again = cell.draw(0, 6)
        for name, values in drawn.items():
            np.testing.assert_array_equal(values, again[name])
    one, other = (kinds["squares"].draw(start, start + 6)["estimate"] for start in (0, study.CHUNK))
    assert not set(one) & set(other)


@pytest.mark.parametrize("content", ["gaussian", "exponential", "lognormal", "contaminated"])
def test_content_has_mean_zero_and_variance_one(study, content):
    x = study.trials.designs.noise(np.random.default_rng(0), content, (40, 5000, 2))
    assert abs(x.mean()) < 0.01
    assert abs(x.var() - 1) < 0.06


@pytest.mark.parametrize("sizes", ["equal", "1 to 4", "40, 20, 13 ..."])
def test_truth_and_error_at_zero_are_those_of_the_design(study, sizes):
    designs = study.trials.designs
    design = designs.Squares("gaussian", "few", "any", 3, sizes, 24)
    x, n = design.draw(np.random.default_rng(1), 3000)
    estimate, left_out = designs.pair_mean(designs.gram(x, x), n)
    assert abs(estimate.mean() - design.truth) < 4 * estimate.std() / np.sqrt(3000)
    zero = designs.documents(np.random.default_rng(2), "gaussian", designs.SPECTRA["few"], n, 3000)
    spread = designs.pair_mean(designs.gram(zero, zero), n)[0].std()
    assert abs(spread / designs.error_at_zero(designs.SPECTRA["few"], n) - 1) < 0.12
    kept = np.arange(24) != 5
    np.testing.assert_allclose(left_out[5], designs.pair_mean(designs.gram(x[:, kept], x[:, kept]), n[kept])[0])


def test_a_row_counts_what_was_drawn(study, tmp_path):
    cell = next(cell for cell in study.cells() if cell.kind == "squares")
    drawn = cell.draw(0, 20)
    np.savez(tmp_path / f"{cell.name}-20.npz", **drawn)
    row = study.tables.summary(cell, tmp_path, 20)
    assert row["mixture|covered"] == drawn["mixture|covered"].mean()
    assert row["mixture|length"] == np.median(drawn["mixture|length"])
    assert row["p below 0.05"] == (drawn["p"] < 0.05).mean()
    assert (row["content"], row["n"], row["datasets"]) == ("gaussian", 16, 20)
