"""Sinks at any key: counts against loops, anchored to tokens, to positions or absent by construction."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import posstats as ps
from posstats.errors import InputError
from posstats.stats.sinks import Anchoring, first_occurrences, halves, order_blind, selecting
from posstats.vocabulary import received_queries
from tests import position0, sinks
from tests.refused import refused
from tests.sealed import sealed
from tests.sinks import HALF, LENGTH


@pytest.fixture(scope="module")
def anchored():
    ds, tokens = sinks.anchored("token")
    return ds, tokens, ps.sinks(ds, keys="all", n_permutations=199)


class TestCounts:
    def test_of_layers_keys_and_tokens_against_loops(self, anchored):
        ds, tokens, result = anchored
        received = ds.attention_received.values[0]
        found = [(n, layer, key) for n, layer, _, key in zip(*np.nonzero(received > 0.3), strict=True)]
        assert found
        layers = result.table.set_index("layers")
        for layer in (0, 1):
            assert layers.loc[str(layer)].n_sinks == sum(one[1] == layer for one in found)
        first = sum(key > 0 and tokens[n, key] not in tokens[n, :key] for n, _, key in found)
        keys = [np.flatnonzero(tokens[n, 1:HALF] == tokens[n, key]) for n, _, key in found if key > 0]
        assert layers.loc["all"].n_first == first
        assert layers.loc["all"].expected_first == pytest.approx(sum(1 / len(one) for one in keys))
        per_sequence = [sum(one[0] == n for one in found) for n in range(24)]
        assert layers.loc["all"].estimate == pytest.approx(np.mean(per_sequence))
        assert layers.loc["all"].se == pytest.approx(np.std(per_sequence, ddof=1) / np.sqrt(24))
        by_key = result.by_key.sel(layers="all").table.set_index("key").n_sinks
        assert by_key.to_dict() == {key: sum(one[2] == key for one in found) for key in range(HALF)}
        by_token = result.by_token.table.set_index("token").n_sinks
        ids = [tokens[n, key] for n, _, key in found]
        assert by_token.to_dict() == {token: ids.count(token) for token in by_token.index}
        assert by_token.sum() == len(found)
        assert by_token.index[0] == 7

    def test_attention_received_against_loops(self):
        weights = np.tril(np.ones((5, 1, 1, LENGTH, LENGTH)))
        weights[..., 3] *= np.arange(1, LENGTH + 1)
        weights = np.tril(weights) / np.tril(weights).sum(-1, keepdims=True)
        found = ps.from_attention(weights, offsets=(0,)).attention_received.values[0, 0, 0, 0]
        for key in (0, 3, 40):
            seen = [q for q in received_queries(LENGTH) if q - key >= 16]
            assert found[key] == pytest.approx(np.mean(weights[0, 0, 0, seen, key]))

    def test_position_0_counts_apart(self):
        weights = np.tril(np.ones((24, 1, 1, LENGTH, LENGTH)))
        weights[..., 0] *= 2 * np.arange(1, LENGTH + 1)
        tokens = np.zeros((24, LENGTH), int)
        ds = ps.from_attention(weights / weights.sum(-1, keepdims=True), tokens=tokens, offsets=(0,))
        row = ps.sinks(ds, keys="all", n_permutations=9).table.iloc[0]
        assert (row.n_sinks, row.position_0_share, row.n_first) == (24, 1, 0)

    def test_order_blind_counts_occurrences_beyond_position_0(self):
        token = np.array([[5, 5, 7, 5, 7, 9]])
        first = first_occurrences(token)
        beyond = np.arange(6)[None] > 0
        np.testing.assert_allclose(order_blind(beyond, first, token)[0], [0, 0, 0.5, 0, 0.5, 1])


class TestAnchoring:
    def test_to_a_token(self, anchored):
        _, _, result = anchored
        row = result.anchoring.table.set_index("layers").loc["1"]
        assert row.p == 1 / 200
        assert row.low > 0.05
        assert row.others == 0

    @pytest.mark.parametrize("kind", ["position", "none"])
    def test_not_of_a_position_and_not_without_sinks(self, kind):
        ds, _ = sinks.anchored(kind)
        result = ps.sinks(ds, keys="all", n_permutations=199)
        row = result.anchoring.table.set_index("layers").loc["1"]
        if kind == "none":
            assert np.isnan(row.p)
            assert row.note == "no sink beyond position 0"
            assert result.table.n_sinks.sum() == 0
        else:
            assert row.n_sinks == 24
            assert row.estimate == pytest.approx(0)
            assert row.p == 1

    def test_estimate_against_loops(self):
        rng = np.random.default_rng(3)
        token, holds = rng.integers(0, 15, (14, 9)), rng.random((14, 9)) < 0.3
        code = np.repeat(np.arange(7), 2)
        fold = halves(7, seed=1)
        above = below = 0.0
        for f in (0, 1):
            inside = np.flatnonzero(fold[code] == f)
            outside = np.setdiff1d(np.arange(14), inside)
            chosen = {t for n in outside for t in token[n][holds[n]]}
            for j in range(9):
                one = [holds[n, j] for n in inside if token[n, j] in chosen]
                zero = [holds[n, j] for n in inside if token[n, j] not in chosen]
                if one and zero:
                    weight = len(one) * len(zero) / len(inside)
                    above, below = above + weight * (np.mean(one) - np.mean(zero)), below + weight
        found = Anchoring.of(token, holds, code, fold).at(np.ones((1, 7)))[0]
        assert found[2] == pytest.approx(above / below)

    @pytest.mark.parametrize("clustered", [False, True])
    def test_p_and_estimate_where_sinks_do_not_go_with_tokens(self, clustered):
        """Under the null p is uniform and the estimate is 0 in the mean, documents of several sequences included."""
        rng = np.random.default_rng(5)
        p, estimates = [], []
        code = np.repeat(np.arange(12), 2)
        for k in range(200):
            token = rng.integers(0, 30, (24, 10))
            rate = np.linspace(0.02, 0.4, 10) * (rng.uniform(0, 2, 12)[code][:, None] if clustered else 1)
            if clustered:
                token = token[code * 2]  # both sequences of a document have the same tokens
            holds = rng.random((24, 10)) < rate
            one = Anchoring.of(token, holds, code, halves(12, k))
            p.append(one.p(99, k))
            estimates.append(one.at(np.ones((1, 12)))[0, 2])
        for level in (0.05, 0.2, 0.5):
            assert abs(np.mean(np.array(p) <= level) - level) < 3.5 * np.sqrt(level * (1 - level) / 200)
        assert abs(np.nanmean(estimates)) < 3.5 * np.nanstd(estimates) / np.sqrt(200)


def test_a_replacement_token_that_holds_sinks_is_noted(anchored):
    ds, _, _ = anchored
    both = [ds.assign_coords(condition=[name]) for name in ("baseline", "bos=token:7", "bos=token:70")]
    joined = xr.concat(both, "condition", data_vars="minimal", coords="minimal", compat="override", join="override")
    notes = [note for note in ps.sinks(joined, keys="all", n_permutations=9).notes if "sink token" in note]
    assert len(notes) == 1
    assert notes[0].startswith("bos=token:7: token 7 is a sink token, at ")


def test_without_received_attention_or_tokens_and_wrong_options(anchored):
    ds, _, _ = anchored
    for name in ("attention_received", "token_id"):
        refused(InputError, name, ps.sinks, ds.drop_vars(name), keys="all")
    weights = np.tril(np.ones((24, 1, 1, LENGTH, LENGTH))) / np.arange(1, LENGTH + 1)[:, None]
    for tokens in (np.zeros((3, 4), int), np.zeros((24, LENGTH)), "text"):
        refused(InputError, "tokens must be whole numbers", ps.from_attention, weights, tokens=tokens, offsets=(0,))


def test_contrast_of_heads_selected_by_other_documents_keeps_its_level():
    """Heads at the threshold, and a condition that does nothing: selected by the same documents they seem to lose."""
    rng = np.random.default_rng(7)
    n, runs = 24, 2000
    rejected = {"other": 0, "same": 0}
    for run in range(runs):
        baseline, condition = 0.3 + 0.1 * rng.normal(size=(2, n, 20))
        select = selecting(n, run)
        every = np.full(n, True)
        for name, first, second in (("other", select, ~select), ("same", every, every)):
            heads = baseline[first].mean(axis=0) > 0.3
            difference = (condition - baseline)[second][:, heads].mean(axis=1)
            rejected[name] += stats.ttest_1samp(difference, 0).pvalue < 0.05
    assert abs(rejected["other"] / runs - 0.05) < 3.5 * np.sqrt(0.05 * 0.95 / runs)
    assert rejected["same"] / runs > 0.25


def test_contrasts_of_sinks_take_heads_from_some_documents_and_compare_the_others():
    """Heads that only the selecting documents read position 0 with are compared, and in the others they do not."""
    ds = position0.synthetic(n=24)
    select = position0.selecting_sequences(ds, seed=3)
    logit = ds.sink_logit.copy(deep=True)
    logit.values[:, select, 1, 2] += 40  # a head that reads position 0 in the selecting documents alone
    found = ps.sinks(sealed(ds.assign(sink_logit=logit)), seed=3).contrasts
    row = found.table.set_index(["condition", "contrast"]).loc[("bos=token:7", "minus_baseline")]
    heads = [(0, 0), (1, 0), (1, 2)]
    assert row.n_heads == 3
    x, y = (
        np.mean([[position0.attention(ds, name, n, *at) for n in np.flatnonzero(~select)] for at in heads], axis=0)
        for name in ("bos=token:7", "baseline")
    )
    assert row.estimate == pytest.approx((x - y).mean())
    assert row.p == pytest.approx(stats.ttest_1samp(x - y, 0).pvalue, rel=1e-6)
    assert {name: found.settings[name] for name in ("n_documents", "selecting_documents")} == {
        "n_documents": 16, "selecting_documents": 8,
    }  # fmt: skip
