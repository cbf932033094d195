import numpy as np
import pytest
import torch

from posstats.dataset.conditions import Condition, at_depth, parse_condition, parse_conditions
from posstats.dumping.inputs.conditions import NO_TOKEN, apply, fed_tokens, substituted_tokens
from posstats.dumping.inputs.sequences import Sequences, random_sequences
from posstats.dumping.model.load import embed
from posstats.errors import InputError
from posstats.vocabulary import CONDITIONS
from tests import tiny

T = 12


@pytest.fixture(scope="module")
def model():
    return tiny.build("llama", dtype="float64")


@pytest.fixture(scope="module")
def seqs():
    return random_sequences(tiny.tokenizer(), n=9, length=T, seed=1)


@pytest.fixture(scope="module")
def without():
    return random_sequences(tiny.tokenizer(), n=9, length=T, seed=1, bos=False)


def feed(text, seqs, model, **options):
    return apply(parse_condition(text), seqs, model, **options)


def batch(text, seqs, model, rows=slice(None), **options):
    embeddings, positions = feed(text, seqs, model, **options).batch(model, rows)
    return embeddings.numpy(), positions.numpy()


class TestParsing:
    def test_every_documented_spelling(self):
        for spelling in CONDITIONS:
            text = spelling.replace("ID", "7").replace("@P", "@3").replace("K", "64").replace("@L", "@2")
            assert parse_condition(text).name == text

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (" shift=010 ", Condition("shift=10", "shift", 10)),
            ("bos=token:0", Condition("bos=token:0", "token", 0)),
            ("bos@5", Condition("bos@5", "at", 5)),
            ("bos=tokens:02", Condition("bos=tokens:2", "tokens", 2)),
            ("trajectory=token:07@00", Condition("trajectory=token:7@0", "trajectory", 7, 0)),
            ("trajectory=token:7@12", Condition("trajectory=token:7@12", "trajectory", 7, 12)),
            ("trajectory=tokens:08@3", Condition("trajectory=tokens:8@3", "trajectories", 8, 3)),
        ],
    )
    def test_canonical(self, text, expected):
        assert parse_condition(text) == expected

    @pytest.mark.parametrize(
        "text",
        ["", "bos", "bos=", "bos@0", "bos@-1", "shift=0", "shift=-3", "shift=x", "bos=token:", "Repeat",
         "bos=tokens:1", "bos=tokens:", "trajectory=token:7", "trajectory=token:@1", "trajectory=token:7@-1",
         "trajectory=mean@1", "trajectory=token:7@3/3", "trajectory=token:7@1/0", "trajectory=token:7@0.5",
         "trajectory=tokens:1@1", "trajectory=tokens:8"],
    )  # fmt: skip
    def test_unknown(self, text):
        with pytest.raises(InputError, match=r"there is no condition .*; the conditions are baseline, bos=zero"):
            parse_condition(text)

    def test_several(self):
        assert [c.kind for c in parse_conditions(["baseline", "bos=mean"])] == ["baseline", "mean"]
        assert [c.kind for c in parse_conditions("baseline")] == ["baseline"]
        with pytest.raises(InputError, match="given twice: shift=1"):
            parse_conditions(["shift=1", "baseline", "shift=01"])
        with pytest.raises(InputError, match="at least one"):
            parse_conditions([])

    @pytest.mark.parametrize(
        ("text", "meant"),
        [
            ("basline", "baseline"),
            ("Repeat", "repeat"),
            ("bos=nil", "bos=none"),
            ("bos-mean", "bos=mean"),
            ("trajectroy=token:5@1", "trajectory=token:ID@L"),
            ("trajectory=toknes:5@1", "trajectory=tokens:K@L"),
        ],
    )
    def test_what_was_meant(self, text, meant):
        with pytest.raises(InputError, match=rf"no condition '{text}' \(did you mean {meant}\?\); the conditions are"):
            parse_condition(text)

    def test_a_depth_can_be_a_fraction_of_the_blocks(self):
        depths = parse_conditions(["baseline", *(f"trajectory=token:7@{depth}" for depth in ("1/6", "2/6", "2/3"))])
        assert [one.name for one in depths][2:] == ["trajectory=token:7@1/3", "trajectory=token:7@2/3"]
        for blocks, expected in ((30, [5, 10, 20]), (4, [1, 3]), (3, [0, 1, 2]), (1, [0])):
            found = at_depth(depths, blocks)
            assert found[0] == Condition("baseline", "baseline")
            assert [one.depth for one in found[1:]] == expected
            assert found[1:] == tuple(parse_condition(f"trajectory=token:7@{depth}") for depth in expected)
        assert at_depth(parse_conditions(["trajectory=token:7@9/10"]), 4)[0].depth == 3  # the last block

    def test_a_depth_that_was_given_too_is_recorded_once(self):
        given = parse_conditions(["trajectory=token:7@1/3", "trajectory=token:7@1", "trajectory=token:8@1/3"])
        assert [one.name for one in at_depth(given, 4)] == ["trajectory=token:7@1", "trajectory=token:8@1"]
        with pytest.raises(InputError, match="given twice: trajectory=token:7@1/3"):
            parse_conditions(["trajectory=token:7@1/3", "trajectory=token:7@2/6"])

    def test_a_fraction_is_worked_out_before_it_is_applied(self, seqs, model):
        with pytest.raises(InputError, match="worked out for the model's blocks"):
            feed("trajectory=token:7@1/3", seqs, model)

    def test_nothing_to_repeat(self):
        only = Sequences(np.ones((6, 1), dtype=int), np.arange(6), "mine", bos_id=1)
        with pytest.raises(InputError, match="repeats the token behind the BOS, and these sequences hold nothing"):
            fed_tokens(parse_condition("repeat"), only)


class TestTokens:
    def test_baseline_and_shift_feed_the_sequences(self, seqs):
        for text in ("baseline", "shift=5", "trajectory=token:7@2"):
            np.testing.assert_array_equal(fed_tokens(parse_condition(text), seqs), seqs.ids)

    @pytest.mark.parametrize(
        "text", ["bos=zero", "bos=mean", "bos=gaussian", "bos=token:7", "bos=none", "bos=tokens:4"]
    )
    def test_only_position_0_is_replaced(self, text, seqs):
        ids = fed_tokens(parse_condition(text), seqs)
        np.testing.assert_array_equal(ids[:, 1:], seqs.ids[:, 1:])
        assert (ids[:, 0] != seqs.bos_id).all()
        if text in ("bos=zero", "bos=mean", "bos=gaussian"):
            assert (ids[:, 0] == NO_TOKEN).all()

    def test_bos_none_puts_different_ordinary_tokens(self, seqs):
        first = fed_tokens(parse_condition("bos=none"), seqs)[:, 0]
        assert len(set(first)) == seqs.count
        assert np.isin(first, seqs.ordinary).all()
        assert (fed_tokens(parse_condition("bos=none"), seqs, seed=1)[:, 0] != first).any()

    def test_tokens_are_dealt_to_the_documents(self, seqs):
        first = fed_tokens(parse_condition("bos=tokens:4"), seqs)[:, 0]
        assert len(set(first[:4])) == 4
        assert np.isin(first, seqs.ordinary).all()
        np.testing.assert_array_equal(first, first[np.arange(9) % 4])
        np.testing.assert_array_equal(fed_tokens(parse_condition("bos=tokens:3"), seqs)[:3, 0], first[:3])
        assert (fed_tokens(parse_condition("bos=tokens:4"), seqs, seed=1)[:, 0] != first).any()

    def test_sequences_of_one_document_get_one_token(self, seqs):
        labels = ["z", "z", "a", "a", "m", "z", "k", "a", "k"]
        mine = Sequences(seqs.ids, labels, "mine", seqs.bos_id, "<bos>", seqs.ordinary)
        first = fed_tokens(parse_condition("bos=tokens:2"), mine)[:, 0]
        assert len(set(first)) == 2
        np.testing.assert_array_equal(first == first[0], [label in "zm" for label in labels])  # z, a, m, k in turn

    def test_dealt_trajectories_are_those_of_the_dealt_tokens(self, seqs, without, model):
        first = fed_tokens(parse_condition("bos=tokens:4"), seqs, seed=5)[:, 0]
        found = feed("trajectory=tokens:4@2", seqs, model, seed=5)
        np.testing.assert_array_equal(found.token_id, seqs.ids)
        assert found.substitute.depth == 2
        np.testing.assert_array_equal(found.substitute.embedding, embed(model, torch.from_numpy(first)[None])[0])
        np.testing.assert_array_equal(found.substitutes(slice(3, 5)).embedding, found.substitute.embedding[3:5])
        assert len(set(substituted_tokens(parse_condition("trajectory=tokens:4@0"), without).tolist())) == 4
        with pytest.raises(InputError, match=r"trajectory=tokens:5@1: every token .* at most 4 with 9 documents"):
            feed("trajectory=tokens:5@1", seqs, model)

    def test_dealt_tokens_have_to_come_back(self, seqs):
        with pytest.raises(InputError, match=r"bos=tokens:5: every token .* at most 4 with 9 documents"):
            fed_tokens(parse_condition("bos=tokens:5"), seqs)
        few = Sequences(seqs.ids, seqs.document, "mine", seqs.bos_id, "<bos>", seqs.ordinary[:3])
        with pytest.raises(InputError, match="needs 4 ordinary tokens, and the sequences name 3"):
            fed_tokens(parse_condition("bos=tokens:4"), few)

    def test_bos_at(self, seqs):
        ids, none = fed_tokens(parse_condition("bos@4"), seqs), fed_tokens(parse_condition("bos=none"), seqs)
        assert (ids[:, 4] == seqs.bos_id).all()
        keep = np.arange(T) != 4
        np.testing.assert_array_equal(ids[:, keep], none[:, keep])
        assert (ids == seqs.bos_id).sum() == seqs.count
        with pytest.raises(InputError, match="below the length of 12"):
            fed_tokens(parse_condition("bos@12"), seqs)

    def test_repeat_uses_the_first_ordinary_token(self, seqs, without):
        np.testing.assert_array_equal(
            fed_tokens(parse_condition("repeat"), seqs), np.repeat(seqs.ids[:, 1:2], T, axis=1)
        )
        np.testing.assert_array_equal(
            fed_tokens(parse_condition("repeat"), without), np.repeat(without.ids[:, :1], T, axis=1)
        )

    @pytest.mark.parametrize(
        "text", ["bos=zero", "bos=mean", "bos=gaussian", "bos=token:7", "bos=none", "bos@3", "bos=tokens:2"]
    )
    def test_without_bos_there_is_nothing_to_replace(self, text, without):
        with pytest.raises(InputError, match="have none in their ids"):
            fed_tokens(parse_condition(text), without)

    def test_too_few_ordinary_tokens(self):
        many = random_sequences(tiny.tokenizer(), n=95, length=T)
        with pytest.raises(InputError, match="different ordinary token for each of the 95 sequences"):
            fed_tokens(parse_condition("bos=none"), many)


class TestEmbeddings:
    def test_baseline(self, seqs, model):
        embeddings, positions = batch("baseline", seqs, model)
        np.testing.assert_array_equal(embeddings, embed(model, torch.as_tensor(seqs.ids)).numpy())
        np.testing.assert_array_equal(positions, np.tile(np.arange(T), (9, 1)))

    def test_shift(self, seqs, model):
        embeddings, positions = batch("shift=64", seqs, model)
        np.testing.assert_array_equal(embeddings, batch("baseline", seqs, model)[0])
        np.testing.assert_array_equal(positions, np.tile(np.arange(T) + 64, (9, 1)))

    def test_replacements(self, seqs, model):
        matrix = model.get_input_embeddings().weight.detach().numpy()
        baseline = batch("baseline", seqs, model)[0]
        for text, expected in (
            ("bos=zero", np.zeros(48)),
            ("bos=mean", matrix.mean(0)),
            ("bos=token:7", matrix[7]),
        ):
            embeddings = batch(text, seqs, model)[0]
            np.testing.assert_allclose(embeddings[:, 0], np.tile(expected, (9, 1)), rtol=0, atol=1e-15)
            np.testing.assert_array_equal(embeddings[:, 1:], baseline[:, 1:])

    def test_gaussian_has_the_moments_of_the_embedding(self, model):
        many = random_sequences(tiny.tokenizer(), n=1500, length=4)
        matrix = model.get_input_embeddings().weight.detach().numpy()
        drawn = batch("bos=gaussian", many, model)[0][:, 0]
        z = (drawn.mean(0) - matrix.mean(0)) / (matrix.std(0) / np.sqrt(1500))
        assert abs(z).max() < 4.5
        np.testing.assert_allclose(drawn.std(0), matrix.std(0), rtol=0.1)
        assert abs(np.corrcoef(drawn.T)[np.triu_indices(48, 1)]).max() < 0.15

    def test_draws_depend_on_the_seed_alone(self, seqs, model):
        whole = batch("bos=gaussian", seqs, model, seed=3)[0]
        np.testing.assert_array_equal(batch("bos=gaussian", seqs, model, slice(4, 6), seed=3)[0], whole[4:6])
        few = random_sequences(tiny.tokenizer(), n=4, length=T, seed=1)
        np.testing.assert_array_equal(batch("bos=gaussian", few, model, seed=3)[0][:, 0], whole[:4, 0])
        assert (batch("bos=gaussian", seqs, model, seed=4)[0][:, 0] != whole[:, 0]).all()

    @pytest.mark.parametrize("family", ["gemma3", "gemma2"])
    def test_units_are_those_of_the_embedding_modules_output(self, seqs, family):
        model = tiny.build(family, dtype="float64")
        matrix = embed(model, torch.arange(97)[None])[0].numpy()
        np.testing.assert_allclose(batch("bos=mean", seqs, model)[0][0, 0], matrix.mean(0), atol=1e-12)
        np.testing.assert_array_equal(batch("bos=token:7", seqs, model)[0][0, 0], matrix[7])

    def test_anchor_and_substitute(self, seqs, without, model):
        for text in ("baseline", "bos=mean", "bos=none", "shift=3"):
            assert feed(text, seqs, model).anchor is feed(text, seqs, model).substitute is None
        assert feed("bos@4", seqs, model).anchor == 4
        for sequences in (seqs, without):
            fed = feed("trajectory=token:7@2", sequences, model)
            assert (fed.anchor, fed.substitute.depth) == (None, 2)
            row = model.get_input_embeddings().weight[7].expand(9, -1)
            torch.testing.assert_close(fed.substitute.embedding, row, rtol=0, atol=0)
            np.testing.assert_array_equal(fed.token_id, sequences.ids)

    def test_dtype_is_the_models(self, seqs):
        model = tiny.build("llama", dtype="bfloat16")
        embeddings, _ = feed("bos=gaussian", seqs, model).batch(model, slice(0, 2))
        assert embeddings.dtype == torch.bfloat16

    def test_token_outside_the_vocabulary(self, seqs, model):
        for text in ("bos=token:97", "trajectory=token:97@1"):
            with pytest.raises(InputError, match=f"{text}: token id 97 is not in the model's vocabulary of 97 tokens"):
                feed(text, seqs, model)

    def test_depth_outside_the_model(self, seqs, model):
        with pytest.raises(InputError, match=r"trajectory=token:7@3: the depth must be 0 \.\. 2, .* has 3 blocks"):
            feed("trajectory=token:7@3", seqs, model)
