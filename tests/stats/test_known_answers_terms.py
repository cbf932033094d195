"""Known answers of the terms and of what is estimated of them (docs/method.md, section 10)."""

import numpy as np
import pytest

import posstats as ps
from posstats.dataset.simulate import recorded_dataset
from posstats.errors import DesignError, InputError, NumericalError
from posstats.stats.inference.resample import leave_out_weights
from posstats.stats.pair_products.components import LayerField, magnitude_statistics, share_statistics, size_statistics
from posstats.stats.pair_products.evaluate import evaluate
from posstats.stats.pair_products.terms import ORDERS, KeyCounts, Shared, SteadyState
from posstats.stats.synthetic.simulate import Recorded, explicit_logits, record_logits
from posstats.vocabulary import DEFAULT_OFFSETS
from tests.sealed import sealed

TERMS = ["relative", "mask", "sink", "redistribution"]
QUICK = {"n_permutations": 99}


def dataset(logits, offsets=(0, 1, 2, 4), **options):
    """Explicit logits of the baseline, or of several conditions, as a dump."""
    conditions = logits if isinstance(logits, dict) else {"baseline": logits}
    length = next(iter(conditions.values())).shape[-1]
    return recorded_dataset(record_logits(conditions, offsets, **options), length, {"model": "explicit logits"})


def iid_logits(length, n, heads, profile, sd, seed):
    """The same Gaussian noise on every key, scaled by `sd`, over a flat or a decaying profile."""
    lag = np.arange(length)
    relative = np.zeros(length) if profile == "flat" else -np.log1p(lag) / 2
    noise = np.random.default_rng(seed).standard_normal((n, heads, length, length), dtype=np.float32)
    return relative[np.abs(lag[:, None] - lag)] + sd * noise


@pytest.mark.parametrize(("length", "n", "heads"), [(64, 240, 8), (256, 48, 6)])
@pytest.mark.parametrize("profile", ["flat", "decaying"])
@pytest.mark.parametrize("sd", [0.0, 1.0, 2.0, 3.0])
def test_content_is_no_position(length, n, heads, profile, sd):
    """iid Gaussian logits: the number of keys is all the position there is, however far the logits scatter."""
    ds = dataset(iid_logits(length, n, heads, profile, sd, seed=5), offsets=DEFAULT_OFFSETS)
    share = ps.shares(ds, octaves=False, **QUICK).table.set_index("term")
    # 0.02, and what the estimate may miss by: se is at most 0.01, but for short sequences that scatter by 3 nats.
    allowed = 0.02 + 2 * share.se
    for term in ("mask", "mask_first", "mask_last"):
        assert abs(share.estimate[term] - 1) < allowed[term]
    size = ps.size(ds, octaves=False, **QUICK).table.set_index("term").loc["residual"]
    # Without scatter it is what position 0, nearer than the farthest key, gets more than an ordinary key: rounding but
    # for the decaying profile, where nothing varies between documents.
    assert abs(size.estimate) < max(3 * size.se, 1e-3 * share.leakage["mask"])


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
def test_shifts_that_softmax_cannot_see_change_no_number():
    """Any c[n, i] added to all logits of a query, reference queries included."""
    rng = np.random.default_rng(0)
    logits = {
        name: explicit_logits(64, 24, 2, noise=1.0, sink_column=sink, key_drift=0.02 * np.arange(64), seed=seed)
        for name, sink, seed in (("baseline", 1.5, 1), ("bos=mean", 0.5, 2))
    }
    shifted = {name: one + 1e3 * rng.standard_normal((24, 2, 64, 1)) for name, one in logits.items()}
    document = np.repeat(np.arange(8), 3)
    plain, other = (dataset(one, document=document) for one in (logits, shifted))
    for order in ORDERS:
        a, b = (ps.decompose(one, order=order) for one in (plain, other))
        for name in (*TERMS, "log_attention"):
            np.testing.assert_allclose(a[name], b[name], atol=1e-10)
    tables = [
        [
            ps.leakage(one, by=["head", "offset"], **QUICK),
            ps.shares(one, by=["layer", "head"], **QUICK),
            ps.size(one, **QUICK),
            ps.magnitude(one, **QUICK),
            ps.removal(one, "bos=mean", **QUICK),
            ps.position_tests(one),
        ]
        for one in (plain, other)
    ]
    for first, second in zip(*tables, strict=True):
        numbers = first.table.select_dtypes("number")
        np.testing.assert_allclose(numbers, second.table[numbers.columns], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ORDERS)
def test_uniform_logits(dtype, order):
    """All keys alike: the number of keys is everything, in either order."""
    ds = dataset(np.zeros((6, 2, 64, 64))).astype(dtype)
    ds = sealed(ds.assign(visible_keys=ds.visible_keys.astype(int)))
    terms = ps.decompose(ds, order=order).isel(query=slice(1, None))
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    expected = np.log(32) - np.log(np.arange(2, 33))
    np.testing.assert_allclose(terms.mask, np.broadcast_to(expected, terms.mask.shape), atol=tolerance)
    np.testing.assert_allclose(terms.relative, -np.log(32), atol=tolerance)
    for name in ("sink", "redistribution"):
        assert float(abs(terms[name]).max()) < tolerance


@pytest.mark.parametrize("level", [-3.0, 0.0, 4.0])
def test_sink_of_constant_logit(level):
    """Over equal keys every term has a closed form; over keys that scatter the means are near it."""
    logits = np.zeros((30, 1, 64, 64))
    logits[..., 0] = level
    n = np.arange(2.0, 33.0)
    total, given_sink = np.log(n - 1 + np.exp(level)), np.log(31 + np.exp(level))
    first, last = np.log(32 / n), given_sink - total
    sink_first, sink_last = np.log(32) - given_sink, np.log(n) - total
    expected = {
        "mask_first": (first, sink_last),
        "mask_last": (last, np.full(31, sink_first)),
        "shapley": ((first + last) / 2, (sink_first + sink_last) / 2),
    }
    noise = 0.3 * np.random.default_rng(0).standard_normal(logits.shape)
    noise[..., 0] = 0.0
    for order, (mask, sink) in expected.items():
        terms = ps.decompose(dataset(logits), order=order).isel(query=slice(1, None))
        for name, value in (("mask", mask), ("sink", sink)):
            np.testing.assert_allclose(terms[name], np.broadcast_to(value, terms[name].shape), atol=1e-12)
        # Content of variance v adds v / 2 to the log-sum of many keys: the sink counts for that much less.
        scattered = ps.decompose(dataset(logits + noise), order=order).isel(query=slice(16, None))
        assert float(abs(scattered.mask.mean("sequence") - mask[15:]).max()) < 0.05


def test_longer_sequences_give_the_same_shares():
    """T doubled: the same queries have the same shares, within their intervals."""
    rows = []
    for length in (64, 128):
        logits = explicit_logits(length, 60, 2, noise=1.0, sink_column=2.0, seed=length)
        table = ps.shares(dataset(logits), **QUICK).table
        rows.append(table[table.queries == "[16, 32)"].set_index("term"))
    short, long = rows
    for term in ("mask", "sink", "redistribution", "residual"):
        assert abs(short.estimate[term] - long.estimate[term]) < 2 * np.hypot(short.se[term], long.se[term]) + 0.02


@pytest.mark.parametrize("order", ORDERS)
def test_window(order):
    """Beyond the window nothing depends on the number of keys or on position 0."""
    logits = explicit_logits(64, 6, 2, noise=1.0, sink_column=2.0, seed=3)
    terms = ps.decompose(dataset(logits, window=8), order=order)
    late = terms.isel(query=slice(8, None))
    assert float(abs(late.mask).max()) == 0.0
    assert float(abs(late.sink).max()) < 1e-12
    assert float(abs(terms.mask.isel(query=slice(1, 7))).min()) > 0.01


@pytest.mark.parametrize("order", ORDERS)
def test_learned_sink(order):
    """A learned sink over equal keys: the number of keys is everything again, and it is no reading of position 0."""
    b = np.array([[1.5, -np.inf]])
    terms = ps.decompose(dataset(np.zeros((6, 2, 64, 64)), learned_sink=b), order=order).isel(query=slice(1, None))
    n = np.arange(2.0, 33.0)
    for head, extra in enumerate(np.exp(b[0])):
        one = terms.isel(head=head)
        np.testing.assert_allclose(one.mask[0, 0, 0], np.log(32 + extra) - np.log(n + extra), atol=1e-12)
        np.testing.assert_allclose(one.relative, -np.log(32 + extra), atol=1e-12)
        assert float(abs(one.sink).max()) < 1e-12
        assert float(abs(one.redistribution).max()) < 1e-12


def test_mask_first_is_the_same_in_every_sequence():
    logits = explicit_logits(64, 6, 2, noise=1.0, sink_column=2.0, seed=3)
    masks = {order: ps.decompose(dataset(logits), order=order).mask.isel(query=slice(1, None)) for order in ORDERS}
    assert float(masks["mask_first"].std("sequence").max()) < 1e-14
    assert float(masks["mask_last"].std("sequence").max()) > 1e-2
    np.testing.assert_allclose(masks["shapley"], (masks["mask_first"] + masks["mask_last"]) / 2, atol=1e-14)


def test_steady_state_that_falls_is_refused():
    logits = np.log(np.ones(8) + np.arange(8))
    steady = SteadyState.of(logits[None], logits[::-1][None])
    with pytest.raises(NumericalError, match="falls by"):
        steady.mean()


def field_of(recorded: Recorded, chosen=slice(None)) -> LayerField:
    """The only layer of the only condition, or some sequences of it."""
    names = ("logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum")
    codes = np.unique(recorded.document[chosen], return_inverse=True)[1]
    return LayerField.of(
        {name: getattr(recorded, name)[0, chosen, 0] for name in names},
        codes,
        recorded.visible_keys[0],
        recorded.learned_sink[0],
        np.array(recorded.offsets),
    )


@pytest.mark.parametrize("learned_sink", [-np.inf, 0.5])
def test_leaving_a_document_out_is_exact_to_third_order(learned_sink):
    """Against the field of the others alone: the error is far below 1e-6 and falls with the cube of the documents."""
    queries, offsets = np.arange(3, 32), np.array([0, 1, 2])
    worst = []
    for n_documents in (12, 24, 48):
        logits = explicit_logits(64, 2 * n_documents, 2, noise=1.0, sink_column=1.0, seed=n_documents)
        document = np.repeat(np.arange(n_documents), 2)
        recorded = record_logits({"baseline": logits}, offsets.tolist(), document, learned_sink=learned_sink)
        error = 0.0
        for kernel in (share_statistics, size_statistics, magnitude_statistics):
            (whole,) = evaluate([kernel(field_of(recorded), queries, offsets)], leave_out_weights(n_documents))
            for g in range(8):
                rest = kernel(field_of(recorded, document != g), queries, offsets)
                (exact,) = evaluate([rest], np.ones((1, n_documents - 1)))
                off = np.abs(whole[1 + g] - exact[0]) / np.abs(whole[0]).max()
                error = max(error, float(off.max()))
        worst.append(error)
    assert worst[1] < 1e-7
    assert worst[2] < worst[0] / 8


def test_gain_of_a_query_that_sees_as_many_keys_as_the_steady_state():
    """Nothing is left to gain there, and -G(n*) cancels everywhere."""
    ds = dataset(explicit_logits(64, 6, 1, noise=1.0, seed=0))
    steady = SteadyState.of(ds.steady_logit.values[0, :, 0], ds.steady_log_sum.values[0, :, 0]).mean()
    keys = KeyCounts.of(ds.visible_keys.values[0], 32)
    shared = Shared.of(steady.log_sum, steady.level, -np.inf, keys)
    assert float(abs(shared.mask_first[..., -1]).max()) == 0.0
    assert float(abs(shared.gain[..., -1]).max()) == 0.0
    with pytest.raises(DesignError, match="reference queries see at most 8"):
        KeyCounts.of(ds.visible_keys.values[0], 8)


def test_order_is_checked():
    ds = dataset(np.zeros((6, 1, 64, 64)))
    for function in (ps.decompose, ps.shares, ps.size, ps.magnitude, ps.position_tests):
        with pytest.raises(InputError, match="order must be one of 'shapley', 'mask_first', 'mask_last'"):
            function(ds, order="sink")


def test_content_scatter():
    """The scatter of Gaussian logits, less what all keys of a query share; nothing that softmax cannot see."""
    logits = iid_logits(128, 40, 2, "decaying", 1.0, seed=0)
    rng = np.random.default_rng(1)
    logits[:, 1] *= 2.0
    columns = []
    for one in (logits, logits + 100 * rng.standard_normal((40, 2, 128, 1))):
        table = ps.leakage(dataset(one), by=["layer", "head"], octaves=False, **QUICK).table
        columns.append(table.content_scatter.to_numpy())
    np.testing.assert_allclose(columns[0], columns[1], rtol=1e-6)
    # The log-sum of a query scatters too, by sqrt((exp(sd^2) - 1) / keys) about: little for one nat.
    assert abs(columns[0][0] - 1.0) < 0.05
    assert columns[0][1] > 1.8
