import json
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from posstats.dumping.inputs.sequences import (
    Sequences,
    ordinary_tokens,
    random_sequences,
    repeat_sequences,
    text_sequences,
)
from posstats.errors import FewDocumentsWarning, InputError
from tests import tiny

WORDS = [f"w{i}" for i in range(40)]


def tokenizer(bos="<bos>", prepends=False):
    """Words, a control token, reserved entries, one token added later; at will one that prepends its BOS."""
    entries = ["<unk>", "<bos>", "<|im_start|>", "<unused0>", "[unused7]", "<|reserved_special_token_3|>", *WORDS]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(entries)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if prepends:
        backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    built = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token=bos, additional_special_tokens=["<|im_start|>"]
    )
    built.add_tokens(["later"])
    return built


def text(n, offset=0):
    return " ".join(WORDS[(offset + i) % len(WORDS)] for i in range(n))


def test_ordinary_tokens_leave_out_special_added_and_reserved_ones():
    spelled = tokenizer().convert_ids_to_tokens(ordinary_tokens(tokenizer()).tolist())
    assert spelled == WORDS


def test_random_sequences():
    seqs = random_sequences(tokenizer(), n=30, length=52, seed=4)
    assert seqs.ids.shape == (30, 52)
    assert seqs.ids.dtype == np.int64
    assert (seqs.ids[:, 0] == 1).all()
    assert np.isin(seqs.ids[:, 1:], seqs.ordinary).all()
    assert set(seqs.ids[:, 1:].ravel()) == set(seqs.ordinary.tolist())
    assert seqs.documents == 30
    assert (seqs.bos, seqs.bos_id, seqs.bos_token, seqs.seed) == ("in ids", 1, "<bos>", 4)
    assert "BOS '<bos>' (1) in the ids" in repr(seqs)
    again = random_sequences(tokenizer(), n=30, length=52, seed=4)
    np.testing.assert_array_equal(seqs.ids, again.ids)
    assert (random_sequences(tokenizer(), n=30, length=52, seed=5).ids != seqs.ids).any()
    without = random_sequences(tokenizer(), n=30, length=52, seed=4, bos=False)
    assert (without.bos, without.bos_id) == ("none", None)
    assert not (without.ids == 1).any()
    np.testing.assert_array_equal(without.ids[:, 1:], seqs.ids[:, 1:])


@pytest.mark.parametrize("draw", [random_sequences, repeat_sequences])
def test_documents_that_are_drawn_are_labelled_by_seed_and_sort_as_they_were_drawn(draw):
    one, other = (draw(tokenizer(), n=12, length=8, seed=seed).document.tolist() for seed in (0, 1))
    assert one == sorted(one)
    assert len(set(one) | set(other)) == 24
    # The same documents, with fewer of them or without BOS.
    assert draw(tokenizer(), n=7, length=8, seed=0).document.tolist() == one[:7]


def test_random_tokens_are_uniform_and_independent():
    ids = random_sequences(tokenizer(), n=200, length=100, bos=False).ids
    counts = np.bincount(ids.ravel(), minlength=46)[6:46]
    assert abs(counts / 500 - 1).max() < 0.25
    assert abs((ids[:, 1:] == ids[:, :-1]).mean() - 1 / 40) < 0.005


@pytest.mark.parametrize("prepends", [True, False])
def test_bos_is_never_doubled_and_never_prepended_silently(prepends):
    source = {f"d{k}": text(60, k) for k in range(6)}
    with_bos = text_sequences(tokenizer(prepends=prepends), source, n=6, length=20)
    assert (with_bos.ids[:, 0] == 1).all()
    assert not (with_bos.ids[:, 1:] == 1).any()
    without = text_sequences(tokenizer(prepends=prepends), source, n=6, length=20, bos=False)
    assert not (without.ids == 1).any()


def test_choice_of_bos():
    by_name = random_sequences(tokenizer(), n=5, length=8, bos_token="<|im_start|>")
    by_id = random_sequences(tokenizer(), n=5, length=8, bos_token=2)
    assert by_name.bos_id == by_id.bos_id == 2
    assert by_name.bos_token == by_id.bos_token == "<|im_start|>"
    ordinary = random_sequences(tokenizer(), n=5, length=8, bos_token="w3")
    assert ordinary.bos_id not in ordinary.ordinary
    for chosen in ("nothing", 1000, -1):
        with pytest.raises(InputError, match="bos_token"):
            random_sequences(tokenizer(), n=5, length=8, bos_token=chosen)
    with pytest.raises(InputError, match="bos=False"):
        random_sequences(tokenizer(), n=5, length=8, bos_token=2, bos=False)


def test_model_without_bos():
    with pytest.raises(InputError, match=r"no BOS token: choose one.*bos_token=.*<\|im_start\|>.*bos=False"):
        random_sequences(tokenizer(bos=None), n=5, length=8)
    for spelling in ("--bos-token", "BOS_TOKEN=", "sequences.bos_token", "--no-bos"):
        with pytest.raises(InputError, match=spelling):
            random_sequences(tokenizer(bos=None), n=5, length=8)
    assert random_sequences(tokenizer(bos=None), n=5, length=8, bos=False).bos == "none"
    assert random_sequences(tokenizer(bos=None), n=5, length=8, bos_token="<|im_start|>").bos_id == 2


def test_repeat_sequences():
    seqs = repeat_sequences(tokenizer(), n=8, length=12)
    assert (seqs.ids == seqs.ids[:, :1]).all()
    assert len(set(seqs.ids[:, 0])) == seqs.documents == 8
    assert np.isin(seqs.ids, seqs.ordinary).all()
    assert seqs.bos == "none"
    with pytest.raises(InputError, match="as many different tokens"):
        repeat_sequences(tokenizer(), n=41, length=12)


@pytest.mark.parametrize("bad", [{"n": 0}, {"length": 0}, {"length": 10}, {"seed": -1}])
def test_sizes_are_checked(bad):
    with pytest.raises(InputError):
        random_sequences(tokenizer(), **{"n": 5, "length": 8, **bad})


class TestText:
    def crop_of(self, tok, row, source):
        """Whether a row is a contiguous piece of a text."""
        ids = tok(source, add_special_tokens=False)["input_ids"]
        return any(ids[k : k + len(row)] == list(row) for k in range(len(ids)))

    def test_crops_come_from_their_document(self):
        tok, source = tokenizer(), {f"d{k}": text(40 + 7 * k, 3 * k) for k in range(8)}
        seqs = text_sequences(tok, source, n=20, length=16, seed=1)
        for label, row in zip(seqs.document, seqs.ids, strict=True):
            assert self.crop_of(tok, row[1:], source[label])
        assert sorted(np.unique(seqs.document, return_counts=True)[1]) == [2, 2, 2, 2, 3, 3, 3, 3]
        again = text_sequences(tok, source, n=20, length=16, seed=1)
        np.testing.assert_array_equal(again.ids, seqs.ids)
        assert (text_sequences(tok, source, n=20, length=16, seed=2).ids != seqs.ids).any()

    def test_as_many_documents_as_possible(self):
        source = {f"d{k}": text(30, k) for k in range(30)}
        assert text_sequences(tokenizer(), source, n=12, length=12).documents == 12

    def test_short_texts_are_left_out_and_counted(self):
        source = {f"d{k}": text(30 if k % 2 else 5) for k in range(12)}
        seqs = text_sequences(tokenizer(), source, n=6, length=12)
        assert all(int(label[1:]) % 2 for label in seqs.document)
        assert "too short for 11 tokens and left out" in seqs.source
        with pytest.raises(InputError, match=r"only 120 different crops of 11 tokens, 200 are wanted \(6 texts are"):
            text_sequences(tokenizer(), source, n=200, length=12)

    def test_no_crop_is_taken_twice(self):
        source = {"a": text(13), "b": text(41), "c": text(12), "d": text(11), "e": text(11)}
        seqs = text_sequences(tokenizer(), source, n=3 + 31 + 2 + 1 + 1, length=12, seed=3)
        pairs = {(label, *row) for label, row in zip(seqs.document, seqs.ids.tolist(), strict=True)}
        assert len(pairs) == 38

    def test_special_tokens_in_a_text_are_plain_characters(self):
        source = {f"d{k}": text(20) + " <|im_start|> <bos> " + text(20) for k in range(5)}
        seqs = text_sequences(tokenizer(), source, n=5, length=40)
        assert (seqs.ids[:, 0] == 1).all()
        assert not np.isin(seqs.ids[:, 1:], [1, 2]).any()

    def test_folder(self, tmp_path):
        (tmp_path / "sub").mkdir()
        for k in range(6):
            (tmp_path / ("sub" if k % 2 else ".") / f"{k}.txt").write_text(text(30, k))
        (tmp_path / ".hidden").write_text(text(30))
        seqs = text_sequences(tokenizer(), tmp_path, n=6, length=12)
        assert sorted(seqs.document) == ["0.txt", "2.txt", "4.txt", "sub/1.txt", "sub/3.txt", "sub/5.txt"]

    def test_json_lines(self, tmp_path):
        file = tmp_path / "a.jsonl"
        lines = [{"text": text(30, k), "document": f"book {k % 5}"} for k in range(10)] + [{"text": text(30)}]
        file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
        seqs = text_sequences(tokenizer(), file, n=40, length=12)
        assert set(seqs.document) == {"book 0", "book 1", "book 2", "book 3", "book 4", "11"}

    def test_text_file_is_one_document(self, tmp_path):
        file = tmp_path / "a.txt"
        file.write_text(text(60))
        with pytest.warns(FewDocumentsWarning, match="come from 1 document"):
            seqs = text_sequences(tokenizer(), file, n=4, length=12)
        assert set(seqs.document) == {"a.txt"}

    def test_default_is_pythons_help(self):
        seqs = text_sequences(tokenizer(), n=12, length=64)
        assert seqs.documents == 12
        assert seqs.source.startswith("pydoc_data.topics: random crops of 12 documents")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.jsonl", b'{"text": "x"}\n{', "line 2 of .* is not JSON"),
            ("a.jsonl", b'{"words": "x"}', 'not an object with a string "text"'),
            ("a.jsonl", b"\n", "holds no text"),
            ("a.txt", b"\xff\xfe\x00", "not a text file in UTF-8"),
        ],
    )
    def test_unreadable_files(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            text_sequences(tokenizer(), tmp_path / name, n=4, length=12)

    def test_missing_and_empty_folders(self, tmp_path):
        with pytest.raises(InputError, match="holds no file"):
            text_sequences(tokenizer(), tmp_path, n=4, length=12)
        with pytest.raises(InputError, match="there is no file or folder"):
            text_sequences(tokenizer(), tmp_path / "none", n=4, length=12)


class TestSequences:
    def test_own_ids(self):
        mine = Sequences([[5, 6], [7, 8]], ["a", "b"], "mine")
        assert mine.ids.dtype == np.int64
        assert (mine.bos, mine.count, mine.length, mine.documents) == ("none", 2, 2, 2)

    @pytest.mark.parametrize(
        ("ids", "document", "bos_id", "message"),
        [
            ([1, 2], [0], None, "dims"),
            ([[1.5, 2]], [0], None, "integers"),
            ([[-1, 2]], [0], None, ">= 0"),
            (np.empty((0, 3), int), [], None, "non-empty"),
            ([[1, 2]], [0, 1], None, "one document label per sequence"),
            ([[1, 2], [3, 2]], [0, 1], 1, "not every sequence begins"),
            ([[1, 1, 4], [1, 1, 5]], [0, 1], 1, "stands twice"),
        ],
    )
    def test_bad_ids(self, ids, document, bos_id, message):
        with pytest.raises(InputError, match=message):
            Sequences(ids, document, "mine", bos_id)

    @pytest.mark.parametrize(
        ("document", "kind"),
        [
            (["a", "b"], "U"),
            (("ü", ""), "U"),
            (np.array(["a", "b"], dtype=object), "U"),
            (np.array([2, 1], dtype=object), "i"),
            (np.array([2, 1], dtype=np.uint8), "i"),
            (range(2), "i"),
        ],
    )
    def test_labels_become_strings_or_integers(self, document, kind):
        found = Sequences([[5, 6], [7, 8]], document, "mine").document
        assert found.dtype.kind == kind
        assert found.tolist() == list(document)

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (["caf\udce9", "b"], r"document 'caf\\udce9' contains what is no Unicode character, as the name of a file"),
            (["a", "a\0"], r"document 'a\\x00' contains a null character"),
            (["a", 1], "all strings or all integers, not 1 beside 'a'"),
            ([1, "1"], "all strings or all integers, not '1' beside 1"),
            (np.array([None, "a"], dtype=object), "all strings or all integers, not None$"),
            ([1.0, 2.0], r"all strings or all integers, not 1\.0$"),
            ([b"a", b"b"], "all strings or all integers, not b'a'$"),
            ([(1, 2), "a"], "all strings or all integers, not \\(1, 2\\)$"),
            ([2**70, 1], "fit into 64 bits; give strings"),
        ],
    )
    def test_labels_that_a_dump_cannot_hold(self, document, message):
        with pytest.raises(InputError, match=message):
            Sequences([[5, 6], [7, 8]], document, "mine")

    @pytest.mark.parametrize("text", ["caf\udce9", "a\0"])
    def test_texts_that_a_dump_cannot_hold(self, text):
        for name, options in (("source", {"source": text}), ("bos_token", {"source": "mine", "bos_token": text})):
            with pytest.raises(InputError, match=f"{name} '.*' contains"):
                Sequences([[5, 6], [7, 8]], ["a", "b"], **options)

    def test_names_of_files_that_are_not_in_utf8(self, tmp_path):
        for k in range(5):
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9%d.txt" % k)).write_text(text(30, k))
        with pytest.raises(InputError, match=r"document 'caf\\udce9\d\.txt' contains what is no Unicode character"):
            text_sequences(tokenizer(), tmp_path, n=5, length=12)

    def test_null_characters_at_the_end_of_labels_of_texts(self):
        source = {"a": text(30), "a\0": text(30, 3), "b": text(30), "c": text(30), "d": text(30)}
        with pytest.raises(InputError, match="contains a null character"):
            text_sequences(tokenizer(), source, n=5, length=12)


def test_tiny_tokenizer_fits_the_tiny_models():
    seqs = random_sequences(tiny.tokenizer(), n=5, length=8)
    assert seqs.bos_id == 1
    assert seqs.ids.max() < 97
