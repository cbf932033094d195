"""Fixtures shared by all tests."""

import sys
from pathlib import Path

import pytest

from posstats.cli.app import main


@pytest.fixture(scope="session")
def default_model():
    """The real pretrained default model with its tokenizer, converted once under data/models/."""
    import posstats as ps

    return ps.load_model(models_dir=Path(__file__).parents[1] / "data" / "models")


@pytest.fixture(scope="session")
def results():
    """One result of every kind, with every key column it can have."""
    import posstats as ps
    from posstats.estimators.earlier_metrics import trap_table
    from tests import position0
    from tests.sinks import anchored

    ds = ps.simulate(n=24, length=80, offsets=(0, 1, 2), conditions=["baseline", "bos=mean"], seed=0).dataset
    deep = ps.simulate(n=24, length=80, offsets=(0, 1, 2), layers=3, heads=2, seed=0).dataset
    first = position0.synthetic(n=24)
    sinks, trajectory = ps.sinks(first, method="bootstrap", n_resamples=99), ps.trajectory(first, n_permutations=9)
    keys = ps.sinks(anchored("token")[0], keys="all", n_permutations=9)
    reach = ps.reach(ps.simulate(n=24, length=64, layers=2, window=8, seed=0).dataset, offsets=[0, 1], n_permutations=9)
    by, quick = ["layer", "head"], {"n_resamples": 99}
    return [
        ps.leakage(ds, by=by, method="bootstrap", **quick),
        ps.shares(ds, by=by, **quick),
        ps.size(ds, by=by, **quick),
        ps.magnitude(ds, by=by, **quick),
        ps.removal(ds, "bos=mean", by=by, **quick),
        ps.position_tests(ds),
        ps.decode(ds),
        ps.discriminate(ds, 5, 20),
        ps.model_level(deep, n_permutations=99),
        ps.model_level(deep, measure="slope"),
        ps.earlier_metrics(ds, **quick, n_permutations=99),
        trap_table(n=24, length=32),
        sinks,
        sinks.contrasts,
        keys,
        keys.by_key,
        keys.by_token,
        keys.anchoring,
        reach,
        reach.slope,
        trajectory,
        trajectory.identification,
        ps.readers(first, n_permutations=9),
        ps.contrast(ds, ds, condition="bos=mean", n_permutations=9),
        ps.claims(first, **quick, n_permutations=9),
    ]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["posstats", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def mistake(run):
    """Run a command line that ends in a mistake: the one line on stderr that says so."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        (line,) = (line for line in err.splitlines() if line.startswith("posstats: "))
        assert err.rstrip().endswith(line)
        return line

    return call
