"""Datasets from attention weights: the same terms as from logits, and what is refused."""

import numpy as np
import pytest

import posstats as ps
from posstats.dataset.simulate import recorded_dataset
from posstats.errors import InputError
from posstats.stats.synthetic.simulate import explicit_logits, record_logits

OFFSETS = (0, 1, 2)


def weights_of(logits, window=None):
    """Softmax over the keys that a query sees."""
    position = np.arange(logits.shape[-1])
    visible = (position <= position[:, None]) & (position > position[:, None] - (window or len(position)))
    e = np.where(visible, np.exp(logits - logits.max(axis=-1, keepdims=True)), 0.0)
    return e / e.sum(axis=-1, keepdims=True)


@pytest.fixture
def logits():
    return explicit_logits(64, 10, 2, noise=1.0, sink_column=2.0, seed=0)


@pytest.mark.parametrize("window", [None, 9])
def test_same_terms_as_from_logits(logits, window):
    documents = np.repeat(np.arange(5), 2)
    recorded = record_logits({"baseline": logits}, OFFSETS, documents, window=window)
    from_logits = recorded_dataset(recorded, 64, {})
    found = ps.from_attention(weights_of(logits, window)[:, None], document=documents, offsets=OFFSETS)
    for order in ("shapley", "mask_first", "mask_last"):
        a, b = (ps.decompose(ds, order=order) for ds in (from_logits, found))
        for name in ("relative", "mask", "sink", "redistribution", "log_attention"):
            np.testing.assert_allclose(a[name], b[name], atol=1e-12)
    assert found.attrs["length"] == 64
    assert found.document.values.tolist() == documents.tolist()


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
def test_every_estimator_of_terms_takes_it(logits):
    weights = weights_of(np.concatenate([logits, logits[::-1] + 0.1 * logits]))[:, None]
    other = weights_of(np.concatenate([logits, 0.5 * logits]))[:, None]
    ds = ps.from_attention({"baseline": weights, "bos=mean": other}, offsets=OFFSETS, layers=[7], heads=[3, 5])
    options = {"n_permutations": 99}
    table = ps.leakage(ds, by=["layer", "head"], **options).table
    results = [ps.shares(ds, **options), ps.size(ds, **options), ps.magnitude(ds, **options)]
    results += [ps.removal(ds, "bos=mean", **options), ps.position_tests(ds), ps.decode(ds)]
    assert set(table["head"]) == {3, 5}
    assert set(table.layer) == {7}
    assert all(len(one.table) for one in results)


def test_takes_torch_tensors_and_single_precision(logits):
    torch = pytest.importorskip("torch")
    weights = weights_of(logits)[:, None]
    expected = ps.decompose(ps.from_attention(weights, offsets=OFFSETS))
    tensor = torch.from_numpy(weights).to(torch.float32)
    found = ps.decompose(ps.from_attention(tensor, offsets=OFFSETS))
    np.testing.assert_allclose(found.mask, expected.mask, atol=1e-5)
    with pytest.raises(InputError, match="cannot be read as an array"):
        ps.from_attention(tensor.requires_grad_())


def spoilt(weights, where, value):
    copy = weights.copy()
    copy[where] = value
    return copy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w[0], "must be .sequence, layer, head, query, key."),
        (lambda w: w[..., :60], "as many keys as queries"),
        (lambda w: w[..., :62, :62], "divisible by 4"),
        (lambda w: spoilt(w, (0, 0, 0, 5, 3), np.nan), "finite and not negative"),
        (lambda w: spoilt(w, (0, 0, 0, 5, 3), -0.1), "finite and not negative"),
        (lambda w: spoilt(w, (0, 0, 0, 5, 9), 0.1), "not causal"),
        (lambda w: spoilt(w, (0, 0, 0, 5, 3), 0.9), "must sum to 1"),
        (lambda w: w * 0.99, "must sum to 1"),
        (lambda w: {"baseline": w, "other": w[:5]}, "one shape"),
        (lambda _: {}, "at least one condition"),
        (lambda _: "weights", "cannot be read as an array"),
    ],
)
def test_refused(logits, change, words):
    with pytest.raises(InputError, match=words):
        ps.from_attention(change(weights_of(logits)[:, None]), offsets=OFFSETS)


def test_attention_of_0_between_visible_keys_is_refused(logits):
    weights = weights_of(logits)[:, None]
    weights[0, 0, 0, 40, 20] = 0.0
    weights[0, 0, 0, 40] /= weights[0, 0, 0, 40].sum()
    with pytest.raises(InputError, match="exactly 0 on a key between visible ones"):
        ps.from_attention(weights, offsets=OFFSETS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"document": [1, 2]}, "one label for each of the 10 sequences"),
        ({"document": [*"abcdefghi", 1]}, "sequence of whole numbers, and holds 'a'"),
        ({"document": 3}, "document must be a sequence of labels"),
        ({"offsets": ()}, "offsets must hold at least one entry"),
        ({"offsets": (0, 0)}, "offsets has 0 more than once"),
        ({"offsets": (31,)}, "there is no 31"),
        ({"offsets": (0.5,)}, "offsets must be a sequence of whole numbers"),
        ({"layers": [0, 1]}, "layers must be 1 different whole numbers"),
        ({"heads": [0, 0]}, "heads must be 2 different whole numbers"),
        ({"source": 3}, "source must be text"),
    ],
)
def test_options_are_checked(logits, options, words):
    with pytest.raises(InputError, match=words):
        ps.from_attention(weights_of(logits)[:, None], **({"offsets": OFFSETS} | options))


def test_recordings_under_new_names_are_noted():
    rng = np.random.default_rng(0)
    weights = np.tril(rng.uniform(0.1, 1, size=(24, 1, 2, 16, 16)))
    weights /= weights.sum(-1, keepdims=True)
    quick = {"offsets": (0, 1), "document": [f"d{n}" for n in range(24)]}
    assert not [note for note in ps.leakage(ps.from_attention(weights, **quick)).notes if "independent" in note]
    weights[12:15] = weights[:3]
    note = "3 of 24 documents have the numbers of another: they are not independent"
    assert [one for one in ps.leakage(ps.from_attention(weights, **quick)).notes if "independent" in one] == [note]
