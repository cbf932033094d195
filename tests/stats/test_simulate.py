"""Synthetic data sets: what they say is true is what plain estimators find in them."""

import numpy as np
import pytest
import xarray as xr

import posstats as ps
from posstats.errors import DesignError, InputError
from posstats.stats.pair_products.terms import ORDERS
from posstats.stats.synthetic.design import Design, Effects, Noise, Population, expected_terms
from posstats.stats.synthetic.simulate import explicit_logits, record_logits, simulate_stream, simulate_terms
from posstats.vocabulary import COORDINATES, VARIABLES
from tests.brute import ANALYSED_VARIABLES, RESIDUAL_TERMS, TERMS, Brute, BruteDump, causal, dump_dataset, octave_bins
from tests.brute import removal as brute_removal

LENGTH = 48
QUERIES = LENGTH // 2
OFFSETS = (0, 1, 3)
POSITION = np.arange(QUERIES)
QUIET = Noise(logit=0, denominator=0, sink=0)
#: Something in every term, a second condition with less of it.
CONDITIONS = {
    "baseline": Effects(
        query_drift=0.2 * np.log2(POSITION + 1),
        sink=-0.8 * np.exp(-POSITION / 4) - 0.3,
        denominator_drift=[[[0.5]], [[-0.5]]] * np.exp(-POSITION / 6),
    ),
    "bos=mean": Effects(key_drift=0.02 * POSITION, sink=-0.1),
}


def small(**changes):
    settings = {
        "n_documents": 12, "length": LENGTH, "n_layers": 2, "n_heads": 2, "offsets": OFFSETS, "conditions": CONDITIONS,
    }  # fmt: skip
    return Design(**{**settings, **changes})


def as_dataset(recorded):
    """The recorded arrays under the names of the dump schema."""
    sizes = recorded.logit.shape
    coords = {
        "condition": list(recorded.conditions),
        "sequence": np.arange(sizes[1]),
        "document": recorded.document,
        "layer": np.arange(sizes[2]),
        "head": np.arange(sizes[3]),
        "query": np.arange(sizes[4]),
        "lag": np.arange(sizes[4]),
        "offset": list(recorded.offsets),
    }
    return xr.Dataset(
        {name: (VARIABLES[name].dims, getattr(recorded, name)) for name in ANALYSED_VARIABLES},
        coords={name: (COORDINATES[name][0], value) for name, value in coords.items()},
    )


class Fast:
    """Terms and pair products of a causal recording without loops; held against the brute force below."""

    def __init__(self, recorded):
        self.n, n_queries = recorded.logit.shape[1], recorded.logit.shape[4]
        ref, g = (one.mean(axis=1)[:, None] for one in (recorded.steady_logit, recorded.steady_log_sum))
        n = np.arange(1, n_queries)[:, None]  # ordinary keys of the queries from 1 on
        total, less, few, many = g[..., -1:], g[..., -2:-1], g[..., n[:, 0] - 1], g[..., n[:, 0]]
        rest, s0 = recorded.log_denominator_rest[..., 1:], recorded.sink_logit[..., 1:]
        sigma = s0 - rest + few
        world = {
            (0, 0): -total,
            (1, 0): -many,
            (0, 1): -np.logaddexp(less, sigma),
            (1, 1): -np.logaddexp(few, sigma),
        }
        first, last = world[1, 0] - world[0, 0], world[1, 1] - world[0, 1]

        def per_query(value):
            return np.insert(np.broadcast_to(value, rest.shape), 0, 0, axis=-1)[..., None]

        at_offset = ref[..., None, list(recorded.offsets)]
        # The first query has no ordinary key; its place is filled to keep the axis whole.
        own = np.insert(rest, 0, 0, axis=-1)[..., None]
        values = {
            "relative": at_offset - total[..., None],
            "mask": per_query((first + last) / 2),
            "sink": per_query((world[1, 1] - world[0, 0]) - (first + last) / 2),
            "redistribution": recorded.logit - own - at_offset + per_query(few),
            "mask_first": per_query(first),
            "mask_last": per_query(last),
        }
        self.terms = {name: np.where(np.isnan(recorded.logit), np.nan, value) for name, value in values.items()}
        self.terms["residual"] = sum(self.terms[name] for name in RESIDUAL_TERMS)
        self.terms["log_attention"] = sum(self.terms[name] for name in TERMS)
        self.same = recorded.document[:, None] == recorded.document
        self.queries = np.arange(max(recorded.offsets) + 1, n_queries)

    def pairs(self, x, z):
        same = np.einsum("nm,cnlhio,cmlhio->clhio", self.same.astype(float), x, z)
        return (x.sum(axis=1) * z.sum(axis=1) - same) / (self.n**2 - self.same.sum())

    def cross(self, term, other="log_attention"):
        x, z = (self.terms[name][..., self.queries, :] for name in (term, other))
        x, z = (value - value.mean(axis=4, keepdims=True) for value in (x, z))
        return self.pairs(x, z).mean(axis=3).sum(axis=-1)

    def magnitude(self, term, queries):
        values = self.terms[term] - (self.terms["relative"] if term == "log_attention" else 0)
        values = values[..., queries, :]
        return np.nanmean(self.pairs(values, values), axis=(3, 4))

    def slope(self, term):
        x = np.log2(self.queries + 1)
        x = x - x.mean()
        return np.einsum("i,cnlhio->clh", x / (x @ x), self.terms[term][..., self.queries, :]) / self.n / len(OFFSETS)


def datasets(design, count, seed=0):
    return [Fast(simulate_terms(design, child)) for child in np.random.SeedSequence(seed).spawn(count)]


def assert_unbiased(draws, truth, slack=0.1):
    """Mean within 4.5 Monte Carlo errors, after a slack in standard errors of a single data set."""
    draws = np.asarray(draws)
    spread = draws.std(axis=0, ddof=1)
    assert (np.abs(draws.mean(axis=0) - truth) <= (4.5 / np.sqrt(len(draws)) + slack) * spread + 1e-12).all()


@pytest.mark.parametrize("settings", [{}, {"window": [None, 6]}])
def test_without_noise_the_brute_force_finds_exactly_the_truth(settings):
    design = small(n_documents=3, noise=QUIET, **settings)
    truth, ds = expected_terms(design), as_dataset(simulate_terms(design))
    found = {name: BruteDump(ds, name) for name in CONDITIONS}
    for c, brute in enumerate(found.values()):
        for name, expected in truth.expected.items():
            np.testing.assert_allclose(
                brute.terms[name], np.broadcast_to(expected[c], brute.terms[name].shape), atol=1e-12
            )
        for queries in (None, [8, 9, 10, 11]):
            np.testing.assert_allclose(brute.leakage(queries), truth.leakage(queries)[c], rtol=1e-9)
            for name in (*TERMS, "residual", "mask_first", "mask_last"):
                np.testing.assert_allclose(brute.shares(queries)[name], truth.share(name, queries)[c], atol=1e-9)
                np.testing.assert_allclose(brute.size(name, queries), truth.size(name, queries)[c], atol=1e-12)
                pooled = truth.share(name, queries, pooled=True)[c]
                assert brute.pooled_shares(queries)[name] == pytest.approx(pooled, abs=1e-9)
        for queries in octave_bins(QUERIES):
            for name in (*TERMS, "residual"):
                np.testing.assert_allclose(
                    brute.magnitude(name, queries), truth.magnitude(name, queries)[c], atol=1e-12
                )
    for queries in octave_bins(QUERIES):
        assert brute_removal(*found.values(), queries) == pytest.approx(truth.removal("bos=mean", queries))


def test_slopes_of_the_truth_are_those_of_a_regression_with_a_level_per_offset():
    truth = expected_terms(small())
    queries = np.arange(4, QUERIES)
    levels = np.eye(3)[np.tile(np.arange(3), queries.size)]
    x = np.column_stack([np.repeat(np.log2(queries + 1), 3), levels])
    for name in (*TERMS, "residual", "log_attention"):
        y = truth.expected[name][1, 1, 0, queries, :].ravel()
        assert truth.slope(name)[1, 1, 0] == pytest.approx(np.linalg.lstsq(x, y)[0][0], abs=1e-12)
    total = sum(truth.slope(name) for name in TERMS)
    np.testing.assert_allclose(total, truth.slope("log_attention"), atol=1e-12)


def test_the_fast_estimators_of_these_tests_are_the_brute_force():
    noise = Noise(tails=5, autocorrelation=0.4, document=0.3, head=0.1, condition=0.2)
    recorded = simulate_terms(small(n_documents=4, sequences_per_document=[1, 3, 2, 1], noise=noise), seed=3)
    fast, ds = Fast(recorded), as_dataset(recorded)
    for c, condition in enumerate(CONDITIONS):
        brute = BruteDump(ds, condition)
        for name in (*TERMS, "residual", "log_attention"):
            np.testing.assert_allclose(fast.cross(name)[c], brute.cross(name), atol=1e-10)
            for queries in octave_bins(QUERIES)[1:]:
                np.testing.assert_allclose(fast.magnitude(name, queries)[c], brute.magnitude(name, queries), atol=1e-10)


@pytest.mark.parametrize(
    ("noise", "sequences"),
    [
        (Noise(), 1),
        (Noise(tails=3.5, autocorrelation=0.8), 1),
        (Noise(document=0.5, head=0.2, condition=0.2, autocorrelation=0.3), [1, 2, 3, 4] * 3),
    ],
)
def test_estimates_average_to_the_truth(noise, sequences):
    design = small(noise=noise, sequences_per_document=sequences)
    truth, found = expected_terms(design), datasets(design, 150)
    assert_unbiased([f.cross("log_attention") for f in found], truth.leakage(), slack=0)
    for name in (*TERMS, "residual"):
        assert_unbiased([f.cross(name) for f in found], truth.cross(name))
        assert_unbiased([f.slope(name) for f in found], truth.slope(name))
    for queries in octave_bins(QUERIES)[:3]:
        for name in (*RESIDUAL_TERMS, "residual"):
            # All sequences share the estimate of the steady state, so its noise enters every pair: a bias of order 1/N,
            # which is visible where the term itself is 0 and its magnitude varies by no more than that.
            expected = truth.magnitude(name, queries)
            assert_unbiased(
                [f.magnitude(name, queries) for f in found], expected, slack=np.where(expected > 1e-9, 0.1, 1)
            )


def test_terms_of_a_large_data_set_have_the_prescribed_means():
    noise = Noise(logit=1.5, sink=0.6, tails=4, autocorrelation=-0.5)
    design = small(n_documents=3000, noise=noise)
    truth, found = expected_terms(design), Fast(simulate_terms(design, 5))
    for name in (*TERMS, "residual", "log_attention"):
        mean, expected = found.terms[name].mean(axis=1), truth.expected[name]
        error = found.terms[name].std(axis=1) / np.sqrt(3000)
        seen = ~np.isnan(expected)
        # The steady state is itself an estimate, of as many reference queries per sequence as a quarter of its tokens.
        steady = 5 * 1.5 / np.sqrt(3000 * LENGTH / 4) * (name != "log_attention")
        assert (np.abs(mean - expected)[seen] < 5 * error[seen] + steady).all()


@pytest.mark.parametrize("noise", [Noise(), Noise(skewed=True), Noise(tails=4, autocorrelation=0.6, document=0.4)])
def test_a_flat_field_has_no_absolute_position_though_its_terms_do(noise):
    effects = Effects(sink=-np.exp(-POSITION / 5), query_drift=0.1 * POSITION, flat=True)
    design = small(conditions={"baseline": effects}, noise=noise, sequences_per_document=2)
    truth = expected_terms(design)
    assert (truth.leakage() < 1e-24).all()
    assert np.isnan(truth.share("mask")).all()
    assert np.isnan(truth.share("mask", pooled=True)).all()
    assert (truth.cross("mask", "mask") > 0.01).all()
    spread = np.ptp(truth.expected["log_attention"][..., 4:, :], axis=3)
    np.testing.assert_allclose(spread, 0, atol=1e-12)
    found = datasets(design, 200)
    assert_unbiased([f.cross("log_attention") for f in found], 0, slack=0)
    assert_unbiased([f.slope("log_attention") for f in found], 0, slack=0)


def test_without_effects_the_mask_has_it_all():
    quiet = small(conditions={"baseline": Effects()}, noise=QUIET)
    truth = expected_terms(quiet, "mask_first")
    np.testing.assert_allclose(truth.share("mask"), 1)
    np.testing.assert_allclose(truth.share("residual"), 0, atol=1e-12)
    uniform = small(conditions={"baseline": Effects(relative=0.0)}, noise=QUIET)
    for order in ORDERS:
        mask = expected_terms(uniform, order).expected["mask"][0, 0, 0, 4:, 0]
        np.testing.assert_allclose(mask, np.log(QUERIES) - np.log(POSITION[4:] + 1), atol=1e-14)


def test_a_window_bounds_mask_and_sink():
    truth = expected_terms(small(window=6, conditions={"baseline": Effects(sink=-0.5)}), "mask_first")
    np.testing.assert_allclose(np.ptp(truth.expected["mask"][..., 5:, 0], axis=3), 0, atol=1e-12)
    np.testing.assert_allclose(truth.expected["sink"][..., 6:, 0], 0, atol=1e-15)
    np.testing.assert_allclose(truth.expected["sink"][..., 2:6, 0], -0.5)
    recorded = simulate_terms(small(window=[None, 6]))
    assert np.isnan(recorded.sink_logit[:, :, 1, :, 6:]).all()
    assert not np.isnan(recorded.sink_logit[:, :, 0]).any()
    assert np.isnan(recorded.steady_log_sum[:, :, 1, :, 6:]).all()
    assert not np.isnan(recorded.steady_log_sum[:, :, 0]).any()


def content(noise, **changes):
    """Logits less their expectation, (condition, sequence, layer, head, query, offset); only offset 0."""
    design = small(noise=noise, offsets=(0,), **changes)
    recorded = simulate_terms(design, 11)
    mean = simulate_terms(small(noise=QUIET, offsets=(0,), **changes)).logit
    return (recorded.logit - mean)[..., 1:, 0]


def correlation(x, y):
    return (x * y).mean() / np.sqrt((x**2).mean() * (y**2).mean())


def test_autocorrelation_and_tails():
    x = content(Noise(logit=2, autocorrelation=0.7), n_documents=800)
    assert x.std() == pytest.approx(2, rel=0.03)
    assert x[..., 0].std() == pytest.approx(2, rel=0.05)
    assert correlation(x[..., 1:], x[..., :-1]) == pytest.approx(0.7, abs=0.02)
    assert correlation(x[..., 3:], x[..., :-3]) == pytest.approx(0.343, abs=0.03)
    heavy = content(Noise(tails=5), n_documents=2000)
    assert heavy.std() == pytest.approx(1, rel=0.03)
    assert (np.abs(heavy) > 4).mean() > 20 * 6.3e-5  # a Gaussian exceeds 4 standard deviations that often
    skewed = content(Noise(logit=2, skewed=True), n_documents=2000)
    assert (skewed.mean(), skewed.std()) == pytest.approx((0, 2), abs=0.06)
    assert (skewed**3).mean() / 8 == pytest.approx(2, rel=0.1)
    with pytest.raises(InputError, match="no tails"):
        Noise(skewed=True, tails=3)


def test_what_documents_heads_and_conditions_have_in_common():
    noise = Noise(document=0.4, head=0.25, condition=0.2)
    x = content(noise, n_documents=1500, sequences_per_document=2)
    assert x.std() == pytest.approx(1, rel=0.02)
    assert correlation(x[:, ::2], x[:, 1::2]) == pytest.approx(0.4, abs=0.02)
    assert correlation(x[:, 1:-1:2], x[:, 2::2]) == pytest.approx(0, abs=0.02)
    assert correlation(x[:, :, :, 0], x[:, :, :, 1]) == pytest.approx(0.25, abs=0.02)
    assert correlation(x[0], x[1]) == pytest.approx(0.8, abs=0.02)


def test_the_steady_state_scatters_like_means_over_reference_queries():
    """To first order in the scatter, which is small: explicit logits of the same noise vary alike."""
    relative = -np.log1p(np.arange(LENGTH)) / 2
    design = small(n_documents=2000, conditions={"baseline": Effects()}, noise=Noise(logit=0.2), offsets=(4,))
    drawn = simulate_terms(design, 2)
    explicit = explicit_logits(LENGTH, 2000, relative=relative, noise=0.2, seed=3)
    recorded = record_logits({"baseline": explicit}, (4,))
    for name in ("steady_logit", "steady_log_sum"):
        a, b = (getattr(one, name)[0, :, 0, 0] for one in (drawn, recorded))
        np.testing.assert_allclose(a.std(axis=0), b.std(axis=0), rtol=0.1)
        # Content of variance v adds v / 2 to a log-sum of many keys.
        np.testing.assert_allclose(a.mean(axis=0), b.mean(axis=0), atol=0.02 + 0.005)
    together = [np.corrcoef(one.steady_logit[0, :, 0, 0, 3], one.steady_log_sum[0, :, 0, 0, -1])[0, 1]
                for one in (drawn, recorded)]  # fmt: skip
    assert together[0] == pytest.approx(together[1], abs=0.08)


@pytest.mark.parametrize("tails", [None, 3])
def test_log_sums_of_a_sequence_never_fall(tails):
    """So that every sequence can be decomposed by itself; cutting steps down and up alike leaves the means exact."""
    design = Design(n_documents=4000, length=16, offsets=(0, 1), noise=Noise(logit=1.5, tails=tails))
    drawn = simulate_terms(design, 3).steady_log_sum
    assert (np.diff(drawn, axis=-1) > -1e-12).all()
    mean = Population.of(design, next(iter(design.conditions.values()))).steady_log_sum
    error = drawn.std(axis=1) / np.sqrt(4000)
    assert (np.abs(drawn.mean(axis=1) - mean) < 4.5 * error).all()
    terms = ps.decompose(ps.simulate(n=8, length=16, offsets=[0, 1]).dataset, reference="sequence")
    assert np.isfinite(terms.relative).all()


def test_attention_on_position_0_stays_a_probability():
    noisy = small(noise=Noise(sink=2.0), conditions={"baseline": Effects(sink=-6.0), "bos=zero": Effects(sink=0.0)})
    recorded = simulate_terms(noisy)
    assert np.isfinite(recorded.sink_logit).all()
    fraction = recorded.sink_output_fraction
    assert fraction.shape == (2, 12, 2, 2)
    assert ((fraction[0] > 0.1) & (fraction[0] < 1)).all()
    assert (fraction[1] < fraction[0] - 0.1).all()
    assert np.isnan(simulate_terms(small(length=28, conditions={"baseline": Effects()})).sink_output_fraction).all()


def test_one_seed_gives_one_data_set():
    one, same, other = (simulate_terms(small(), seed) for seed in (7, np.random.SeedSequence(7), 8))
    for name in ANALYSED_VARIABLES:
        np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
    assert not np.array_equal(one.logit, other.logit, equal_nan=True)


def test_the_stream_completes_the_schema():
    design = small()
    stream = simulate_stream(design, 1)
    sizes = {"condition": 2, "sequence": 12, "token": LENGTH, "depth": 3, "hidden": 8}
    for name in ("token_id", "trajectory", "residual_norm"):
        assert getattr(stream, name).shape == tuple(sizes[dim] for dim in VARIABLES[name].dims)
    assert (stream.token_id[..., 0] == 0).all()
    assert (stream.token_id[..., 1:] > 0).all()
    assert np.ptp(stream.trajectory, axis=1).max() == 0
    np.testing.assert_allclose(np.linalg.norm(stream.trajectory, axis=-1), stream.residual_norm[..., 0])


@pytest.mark.parametrize("window", [None, 5])
def test_explicit_logits_are_recorded_as_the_brute_force_records_them(window):
    logits = {name: explicit_logits(12, 5, 2, noise=1.0, tails=6, seed=k) for k, name in enumerate(CONDITIONS)}
    recorded = record_logits(logits, OFFSETS, document=[0, 0, 1, 2, 3], window=window)
    expected = dump_dataset(logits, [0, 0, 1, 2, 3], OFFSETS, visible=causal(12, window))
    for name in ANALYSED_VARIABLES:
        np.testing.assert_allclose(getattr(recorded, name), expected[name].values, atol=1e-12)
    assert recorded.document.tolist() == expected.document.values.tolist()
    assert recorded.conditions == tuple(CONDITIONS)


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        ({}, set()),
        ({"sink_column": 2.0}, {"sink"}),
        ({"query_drift": 0.1 * np.arange(LENGTH)}, set()),
        ({"key_drift": 0.1 * np.arange(LENGTH)}, set()),  # a slope on the distance, and what softmax cannot see
        ({"key_drift": np.log1p(np.arange(LENGTH))}, {"sink", "redistribution"}),
    ],
)
def test_explicit_fields_move_the_terms_they_should(settings, moved):
    logits = explicit_logits(LENGTH, 3, **settings)
    brute = Brute(logits, range(3), OFFSETS, order="mask_first")
    for name in RESIDUAL_TERMS:
        values = brute.terms[name][..., 4:, :]
        assert (np.ptp(values, axis=3).max() > 1e-3) == (name in moved)
    i, j = np.tril_indices(LENGTH, -1)
    expected = (
        -np.log1p(i - j) / 2
        + settings.get("query_drift", np.zeros(LENGTH))[i]
        + settings.get("key_drift", np.zeros(LENGTH))[j]
        + settings.get("sink_column", 0.0) * (j == 0)
    )
    np.testing.assert_allclose(logits[0, 0, i, j], expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_documents": 0}, "n_documents"),
        ({"length": 4, "offsets": (0,)}, "length"),
        ({"length": 50}, "divisible by 4"),
        ({"conditions": {}}, "condition"),
        ({"sequences_per_document": [1, 2]}, "sequences_per_document"),
        ({"sequences_per_document": 0}, "sequences_per_document"),
        ({"offsets": ()}, "offsets"),
        ({"offsets": (1, 1)}, "offsets"),
        ({"offsets": (0, QUERIES - 1)}, "offsets"),
        ({"window": [4]}, "window"),
        ({"window": 0}, "window"),
        ({"conditions": {"baseline": Effects(sink=5.0)}}, "sink exceeds"),
        ({"conditions": {"baseline": Effects(sink=np.zeros(7))}}, "broadcast"),
        ({"conditions": {"baseline": Effects(query_drift=np.nan)}}, "finite"),
        ({"conditions": {"baseline": Effects(key_drift=POSITION, flat=True)}}, "flat"),
    ],
)
def test_designs_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        small(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit": -1.0}, "at least 0"),
        ({"tails": 2.0}, "degrees of freedom"),
        ({"autocorrelation": 1.0}, "autocorrelation"),
        ({"document": 0.7, "head": 0.5}, "sum to more than 1"),
    ],
)
def test_noise_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        Noise(**settings)


def test_queries_without_any_offset_have_no_estimand():
    truth = expected_terms(small(offsets=(8, 9), window=[None, 4]))
    assert np.isnan(truth.leakage([2, 3])).all()
    assert np.isnan(truth.slope("mask", [2, 3])).all()
    assert np.isnan(truth.magnitude("mask", [2, 3])).all()
    assert np.isnan(truth.share("mask")[:, 1]).all()  # no offset lies within the window of layer 1
    layer = expected_terms(small(offsets=(8, 9), window=None)).cross("mask")[:, 0].sum(axis=-1)
    np.testing.assert_allclose(truth.share("mask", pooled=True), layer / truth.leakage()[:, 0].sum(axis=-1))


def test_without_queries_there_is_no_leakage():
    truth = expected_terms(small(offsets=(0, QUERIES - 2)))
    assert truth.leakage().max() < 1e-24  # a single query has no position to vary with
    with pytest.raises(DesignError, match="no analysed query"):
        truth.leakage([])
