"""The brute force against closed forms worked out by hand, before anything is compared with it."""

import numpy as np
import pytest

from tests.brute import (
    NAMES,
    RESIDUAL_TERMS,
    TERMS,
    Brute,
    BruteDump,
    causal,
    dump_dataset,
    octave_bins,
    reference_queries,
    removal,
)

LENGTH = 24
QUERIES = LENGTH // 2
OFFSETS = (0, 1, 3)


def gaussian(seed, n=6, layers=2, heads=2, length=LENGTH):
    return np.random.default_rng(seed).normal(size=(n, layers, heads, length, length))


def stationary(profile, n=4, heads=1):
    """Logits that depend on the offset alone."""
    length = len(profile)
    i, j = np.mgrid[:length, :length]
    return np.broadcast_to(np.where(i >= j, np.asarray(profile)[np.abs(i - j)], 0.0), (n, heads, length, length))


def test_uniform_logits_leave_the_mask_alone():
    brute = Brute(np.zeros((3, 1, LENGTH, LENGTH)), [0, 1, 2], OFFSETS)
    i = np.arange(1, QUERIES)
    expected = np.log(QUERIES) - np.log(i + 1)
    for name in ("mask", "mask_first", "mask_last"):
        np.testing.assert_allclose(
            brute.terms[name][:, 0, 0, 1:, 0], np.broadcast_to(expected, (3, len(i))), atol=1e-14
        )
    np.testing.assert_allclose(brute.terms["relative"][:, 0, 0, 4:], -np.log(QUERIES))
    for name in RESIDUAL_TERMS:
        np.testing.assert_allclose(brute.terms[name][:, 0, 0, 4:], 0, atol=1e-14)
    assert np.isnan(brute.terms["mask"][:, :, :, 1, 1]).all()  # key 0 is never an ordinary key
    centred = expected[3:] - expected[3:].mean()
    assert brute.leakage()[0, 0] == pytest.approx(3 * np.mean(centred**2))
    assert brute.pooled_shares()["mask"] == pytest.approx(1)
    assert brute.size("mask")[0, 0] == pytest.approx(brute.leakage()[0, 0])


def test_uniform_logits_under_a_window_have_no_mask_term_beyond_it():
    brute = Brute(np.zeros((3, 1, LENGTH, LENGTH)), [0, 1, 2], (0, 1, 5), visible=causal(LENGTH, window=4))
    assert brute.most == [4]
    np.testing.assert_allclose(brute.terms["mask"][:, 0, 0, 3:, 0], 0, atol=1e-15)
    np.testing.assert_allclose(brute.terms["relative"][:, 0, 0, 3:, 0], -np.log(4))
    assert np.isnan(brute.terms["mask"][..., 2]).all()  # offset 5 lies outside the window
    np.testing.assert_allclose(brute.leakage(), 0, atol=1e-28)


def test_stationary_logits_have_no_residual_where_the_mask_is_counted_first():
    profile = -np.log1p(np.arange(LENGTH))
    brute = Brute(stationary(profile), range(4), OFFSETS, order="mask_first")
    for name in RESIDUAL_TERMS:
        np.testing.assert_allclose(brute.terms[name][..., 4:, :], 0, atol=1e-14)
    sums = np.cumsum(np.exp(profile[:QUERIES]))
    np.testing.assert_allclose(brute.terms["mask"][0, 0, 0, 4:, 0], np.log(sums[-1] / sums[4:]), atol=1e-14)
    # Counted last, the mask meets position 0 nearer by than the farthest key of the steady state.
    other = Brute(stationary(profile), range(4), OFFSETS, order="mask_last")
    near = np.log(sums[-1] / (sums[-2] + np.exp(profile[4:QUERIES])))
    np.testing.assert_allclose(other.terms["sink"][0, 0, 0, 4:, 0], near, atol=1e-14)


def test_a_sink_column_is_the_sink_term_alone():
    column = 2.5
    logits = np.zeros((3, 1, LENGTH, LENGTH))
    logits[..., 0] = column
    brute = Brute(logits, [0, 1, 2], OFFSETS, order="mask_first")
    i = np.arange(4, QUERIES)
    np.testing.assert_allclose(brute.terms["sink"][0, 0, 0, 4:, 0], np.log((i + 1) / (np.exp(column) + i)))
    np.testing.assert_allclose(brute.terms["redistribution"][..., 4:, :], 0, atol=1e-14)
    last = np.log((QUERIES - 1 + np.exp(column)) / (i + np.exp(column)))
    np.testing.assert_allclose(brute.terms["mask_last"][0, 0, 0, 4:, 0], last)


def test_a_drift_of_all_keys_of_a_query_changes_nothing():
    drift = 0.3 * np.arange(LENGTH)[:, None]
    logits = gaussian(11)
    plain, drifting = (Brute(x, range(6), OFFSETS) for x in (logits, logits + drift))
    for name in NAMES:
        np.testing.assert_allclose(drifting.terms[name], plain.terms[name], atol=1e-12)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("learned_sink", [None, [[0.5, -np.inf], [1.0, -2.0]]])
def test_the_terms_sum_to_an_explicit_softmax(window, learned_sink):
    visible = causal(LENGTH, window)
    logits = gaussian(1)
    brute = Brute(logits, [0, 0, 1, 2, 2, 3], OFFSETS, visible, learned_sink)
    total = sum(brute.terms[name] for name in TERMS)
    np.testing.assert_allclose(total, brute.terms["log_attention"], atol=1e-12)
    extra = np.zeros((2, 2)) if learned_sink is None else np.exp(learned_sink)
    exponentials = np.where(visible, np.exp(logits), 0)
    attention = exponentials / (exponentials.sum(-1) + extra[None, :, :, None])[..., None]
    for o, d in enumerate(OFFSETS):
        i = np.arange(d + 1, QUERIES)
        np.testing.assert_allclose(brute.terms["log_attention"][..., i, o], np.log(attention[..., i, i - d]))
    shares = brute.shares()
    np.testing.assert_allclose(sum(shares[name] for name in TERMS), 1)
    assert sum(brute.pooled_shares()[name] for name in TERMS) == pytest.approx(1)
    np.testing.assert_allclose(sum(shares[name] for name in RESIDUAL_TERMS), shares["residual"])


def test_a_sink_is_zero_where_position_0_is_out_of_the_window():
    brute = Brute(gaussian(2), range(6), OFFSETS, visible=causal(LENGTH, window=4))
    np.testing.assert_allclose(brute.terms["sink"][..., 4:, 0], 0, atol=1e-15)


def test_pair_products_use_only_pairs_of_different_documents():
    brute = Brute(gaussian(3), ["b", "b", "a", "a", "a", "c"], OFFSETS)
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    z = np.array([7.0, 1.0, 2.0, 5.0, 3.0, 4.0])
    expected = (3 * (10 + 4) + 12 * (8 + 4) + 6 * (8 + 10)) / (2 * 4 + 3 * 3 + 1 * 5)
    assert brute._pair_mean(x, z) == pytest.approx(expected)


def test_weights_equal_repeated_sequences_of_the_same_document():
    logits = gaussian(4)
    documents = [0, 0, 1, 2, 2, 3]
    weights = [2, 0, 3, 1]
    picked = [n for n, d in enumerate(documents) for _ in range(weights[d])]
    weighted = Brute(logits, documents, OFFSETS, weights=weights)
    repeated = Brute(logits[picked], [documents[n] for n in picked], OFFSETS)
    np.testing.assert_allclose(weighted.reference, repeated.reference)
    np.testing.assert_allclose(weighted.leakage(), repeated.leakage())
    np.testing.assert_allclose(weighted.cross("sink"), repeated.cross("sink"))
    for queries in octave_bins(QUERIES):
        np.testing.assert_allclose(weighted.magnitude("residual", queries), repeated.magnitude("residual", queries))
    other = gaussian(5)
    pair = [Brute(x, documents, OFFSETS, weights=weights) for x in (logits, other)]
    again = [Brute(x[picked], [documents[n] for n in picked], OFFSETS) for x in (logits, other)]
    assert removal(*pair, queries=[2, 3]) == pytest.approx(removal(*again, queries=[2, 3]))


def test_magnitude_is_the_square_of_the_term():
    column = 2.5
    logits = np.zeros((3, 1, LENGTH, LENGTH))
    logits[..., 0] = column
    brute = Brute(logits, [0, 1, 2], OFFSETS, order="mask_first")
    i = np.array([2, 3])
    assert brute.magnitude("sink", i)[0, 0] == pytest.approx((np.log((i + 1) / (np.exp(column) + i)) ** 2).mean())
    half = logits.copy()
    half[..., 0] = 0.0
    assert removal(brute, Brute(half, [0, 1, 2], OFFSETS), [2, 3]) == pytest.approx(1)
    # offset 3 has no ordinary key at queries 2 and 3
    assert brute.existing_offsets([2, 3], 0) == [0, 1]


def test_octave_bins_end_with_the_analysed_half():
    assert octave_bins(12) == [[2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert reference_queries(16) == [12, 13, 14, 15]
    assert len(reference_queries(512)) == 64


def test_the_dataset_holds_what_the_logits_say():
    visible = np.stack([causal(LENGTH), causal(LENGTH, 4)])
    sink = np.array([[0.5, -np.inf], [1.0, -np.inf]])
    base, other = gaussian(6), gaussian(7)
    documents = [0, 0, 1, 2, 2, 3]
    ds = dump_dataset({"baseline": base, "bos=mean": other}, documents, OFFSETS, visible, sink)
    assert dict(ds.sizes) == {
        "condition": 2, "sequence": 6, "layer": 2, "head": 2, "query": QUERIES, "offset": 3, "lag": QUERIES,
    }  # fmt: skip
    assert ds.visible_keys.values.tolist() == [list(range(1, 13)), [1, 2, 3, *[4] * 9]]
    for condition, logits in (("baseline", base), ("bos=mean", other)):
        brute = Brute(logits, documents, OFFSETS, visible, sink)
        one = ds.sel(condition=condition)
        everything = np.logaddexp(one.log_denominator_rest, one.sink_logit.fillna(-np.inf))
        everything = np.logaddexp(everything, one.learned_sink)
        np.testing.assert_allclose((one.logit - everything).values, brute.terms["log_attention"], atol=1e-12)
        np.testing.assert_allclose(one.steady_logit.mean("sequence"), brute.reference)
        np.testing.assert_allclose(one.steady_log_sum.mean("sequence"), brute.log_sum[..., 1:])
    assert ds.sink_logit.sel(layer=1, query=slice(4, None)).isnull().all()
    assert np.isneginf(ds.log_denominator_rest.sel(query=0)).all()


@pytest.mark.parametrize("window", [None, 4])
def test_the_dataset_leads_to_the_same_estimates(window):
    visible, sink, documents = causal(LENGTH, window), np.array([[0.5, -np.inf], [1.0, -2.0]]), [4, 4, 1, 2, 2, 0]
    logits = {"baseline": gaussian(9), "bos=mean": gaussian(10)}
    ds = dump_dataset(logits, documents, OFFSETS, visible, sink)
    for condition, values in logits.items():
        explicit = Brute(values, documents, OFFSETS, visible, sink, weights=[1, 2, 0, 3])
        recorded = BruteDump(ds, condition, weights=[1, 2, 0, 3])
        for name in explicit.terms:
            np.testing.assert_allclose(recorded.terms[name], explicit.terms[name], atol=1e-12)
        np.testing.assert_allclose(recorded.leakage(), explicit.leakage(), rtol=1e-10)
        np.testing.assert_allclose(recorded.magnitude("sink", [2, 3]), explicit.magnitude("sink", [2, 3]), rtol=1e-10)


def test_mismatched_labels_are_refused():
    with pytest.raises(ValueError, match="weights"):
        Brute(gaussian(8), range(6), OFFSETS, weights=[1, 2])
    with pytest.raises(ValueError, match="documents"):
        Brute(gaussian(8), range(5), OFFSETS)
