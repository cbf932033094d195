"""Known answers of whole tables (docs/method.md, section 10); those of the terms are in tests/stats."""

import numpy as np
import pytest

import posstats as ps
from posstats.stats.pair_products.terms import ORDERS
from tests import position0, sinks
from tests.sealed import sealed

pytestmark = pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
LENGTH, HALF = 64, 32
QUICK = {"n_permutations": 99, "n_resamples": 99}
OFFSETS = (0, 1, 2, 4)
#: Keys visible to the analysed queries of the bin `all`, max offset < i < HALF.
KEYS = np.arange(max(OFFSETS) + 1, HALF) + 1.0


def attention(logits):
    """Causal softmax of logits, (sequence, head, query, key), as a dataset of one layer."""
    hidden = np.triu(np.ones(logits.shape[-2:], bool), 1)
    weights = np.exp(np.where(hidden, -np.inf, logits - logits.max(axis=-1, keepdims=True)))
    return ps.from_attention((weights / weights.sum(axis=-1, keepdims=True))[:, None], offsets=OFFSETS)


def by_term(result):
    return result.table.set_index("term")


def numbers(result):
    """Every number that a result holds, its side tables included."""
    tables = [result.table] + [getattr(result, name).table for name in ("contrasts", "slope") if hasattr(result, name)]
    return [table.select_dtypes("number") for table in tables]


@pytest.mark.parametrize("profile", ["flat", "decaying"])
@pytest.mark.parametrize("sd", [1.0, 2.0, 3.0])
def test_content_has_no_residual_size(sd, profile):
    """iid Gaussian logits: the interval of the residual size holds 0, which no size is below."""
    lag = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    relative = 0.0 if profile == "flat" else -np.log1p(lag) / 2
    noise = np.random.default_rng(11).standard_normal((96, 4, LENGTH, LENGTH))
    ds = attention(relative + sd * noise)
    for order in ORDERS:
        size = by_term(ps.size(ds, octaves=False, order=order, **QUICK))
        assert size.low["residual"] == 0
        assert 0 < size.high["residual"] < size.low["mask"]
        assert size.p["residual"] > 0.05


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_logits(order, dtype):
    """Uniform attention: the number of keys is everything, in every table, and rounding is none of it."""
    ds = attention(np.zeros((30, 2, LENGTH, LENGTH)))
    ds = sealed(ds.astype(dtype).assign(visible_keys=ds.visible_keys).assign_attrs(dtype=dtype))
    shares = by_term(ps.shares(ds, octaves=False, order=order, **QUICK)).estimate
    sizes = by_term(ps.size(ds, octaves=False, order=order, **QUICK))
    gained = np.log(HALF) - np.log(KEYS)
    assert shares["mask"] == pytest.approx(1, abs=1e-5)
    assert sizes.estimate["mask"] == pytest.approx(2 * len(OFFSETS) * gained.var(), rel=1e-5)
    for term in ("sink", "redistribution", "residual"):
        assert abs(shares[term]) < 1e-5
        assert abs(sizes.estimate[term]) < 1e-9
    assert sizes.p["residual"] == 1  # rounding, not a finding


@pytest.mark.parametrize("level", [-3.0, 0.0, 4.0])
def test_sink_of_constant_logit(level):
    """Shares of either order from the closed forms of mask and sink."""
    logits = np.zeros((30, 1, LENGTH, LENGTH))
    logits[..., 0] = level
    ds = attention(logits)
    n = KEYS
    alone, given_sink = np.log(HALF / n), np.log((HALF - 1 + np.exp(level)) / (n - 1 + np.exp(level)))
    masks = {"mask_first": alone, "mask_last": given_sink, "shapley": (alone + given_sink) / 2}
    for order, mask in masks.items():
        y = -np.log(n - 1 + np.exp(level))
        expected = np.cov(mask, y)[0, 1] / np.var(y, ddof=1)
        row = by_term(ps.shares(ds, octaves=False, order=order, **QUICK))
        assert row.estimate["mask"] == pytest.approx(expected, abs=1e-9)
        assert row.estimate["sink"] == pytest.approx(1 - expected, abs=1e-9)
        assert row.estimate["redistribution"] == pytest.approx(0, abs=1e-9)


def test_order_range_holds_both_orders():
    """The range beside a share is that of the two orders, each estimated by itself."""
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((30, 2, LENGTH, LENGTH))
    logits[..., 0] += 3
    ds = attention(logits)
    first, last = (
        by_term(ps.shares(ds, octaves=False, order=order, **QUICK)).estimate for order in ("mask_first", "mask_last")
    )
    row = by_term(ps.shares(ds, octaves=False, **QUICK))
    for term in ("mask", "sink", "residual"):
        assert row.order_low[term] == pytest.approx(min(first[term], last[term]), abs=1e-9)
        assert row.order_high[term] == pytest.approx(max(first[term], last[term]), abs=1e-9)
    assert row.order_high["mask"] - row.order_low["mask"] > 0.05


@pytest.fixture(scope="module")
def shifted():
    """A dump, and the same with a number c[n, i] added to all logits of a query."""
    ds = position0.synthetic(n=24, layers=3)
    rng = np.random.default_rng(4)
    c = ds.sink_logit.copy(data=30 * rng.standard_normal(ds.sink_logit.shape))
    of_reference = c.isel(query=0, drop=True)  # for the mean over the reference queries any number will do
    added = dict.fromkeys(("logit", "sink_logit", "log_denominator_rest"), c)
    added |= dict.fromkeys(("steady_logit", "steady_log_sum"), of_reference)
    moved = {name: (ds[name] + by).transpose(*ds[name].dims) for name, by in added.items()}
    return ds, sealed(ds.assign(moved))


ESTIMATORS = {
    "sinks": lambda ds: ps.sinks(ds),
    "readers": lambda ds: ps.readers(ds, **QUICK),
    "model_level": lambda ds: ps.model_level(ds, measure="slope", n_permutations=99),
    "shares by head": lambda ds: ps.shares(ds, by=["layer", "head"], **QUICK),
    "removal by layer": lambda ds: ps.removal(ds, "bos=token:7", by=["layer"], **QUICK),
    "contrast": lambda ds: ps.contrast(
        ds.isel(sequence=slice(0, 12)), ds.isel(sequence=slice(12, 24)), n_permutations=99
    ),
    "claims": lambda ds: ps.claims(ds, n_permutations=99),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_shifts_that_softmax_cannot_see_change_no_table(shifted, name):
    first, second = (numbers(ESTIMATORS[name](ds)) for ds in shifted)
    assert sum(one.notna().to_numpy().sum() for one in first) > 10
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other[one.columns], rtol=1e-6, atol=1e-9)


def test_what_reads_log_denominators_sees_the_shift(shifted):
    """The exceptions that docs/method.md names: the question of decoding is what log Z itself tells."""
    scores = [ps.decode(ds, layers=[0]).table.set_index(["condition", "part"]).estimate for ds in shifted]
    assert abs(scores[0] - scores[1]).max() > 0.1


def test_sink_at_a_key_is_found_there_and_nowhere_else():
    ds, tokens = sinks.anchored("position")
    result = ps.sinks(ds, keys="all", n_permutations=19)
    found = result.by_key.table.query("n_sinks > 0 and layers != 'all'")
    assert found[["layers", "key", "n_sinks"]].to_numpy().tolist() == [["1", 5, len(tokens)]]
    layers = result.table.set_index("layers")
    assert (layers.n_sinks["0"], layers.n_sinks["1"], layers.position_0_share["1"]) == (0, len(tokens), 0)
