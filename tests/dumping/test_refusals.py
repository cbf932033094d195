"""Wrong arguments of the dump side are refused by one sentence that says what is allowed; what is obvious is taken.

A case is a function, an argument of it, a value that is not allowed, and words of the error. All other arguments are
right. Values that hold a model or a dataset are made when the case runs.
"""

import datetime
import re
from contextlib import suppress
from copy import deepcopy
from datetime import date
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import posstats as ps
from posstats.errors import PosstatsError
from tests import tiny

LENGTH = 8
IDS = np.arange(5 * LENGTH).reshape(5, LENGTH) % 90 + 3
TEXTS = {f"story {k}": "w5 w17 w8 w40 " * (4 + k) for k in range(6)}


@lru_cache(maxsize=1)
def model():
    return tiny.build("llama")


def sequences():
    return ps.random_sequences(tiny.tokenizer(), n=5, length=LENGTH)


@lru_cache(maxsize=1)
def dataset():
    return ps.simulate(n=30, length=16, layers=1, heads=2, offsets=(0, 1), seed=0).dataset


def made(value):
    """The value of a case, made now where it is given by a function without a name."""
    return value() if getattr(value, "__name__", "") == "<lambda>" else value


#: Function -> its right arguments, by name.
RIGHT = {
    "dump": lambda: {"model": model(), "sequences": sequences(), "path": "d.h5", "offsets": [0], "progress": False},
    "join_dump": lambda: {"path": "d.h5"},
    "random_sequences": lambda: {"tokenizer": tiny.tokenizer(), "n": 5, "length": LENGTH},
    "repeat_sequences": lambda: {"tokenizer": tiny.tokenizer(), "n": 5, "length": LENGTH},
    "text_sequences": lambda: {"tokenizer": tiny.tokenizer(), "source": TEXTS, "n": 5, "length": LENGTH},
    "Sequences": lambda: {"ids": IDS, "document": list("abcde")},
    "load_model": lambda: {"name": "saved", "device": "cpu"},
    "write_dump": lambda: {"dataset": dataset(), "path": "d.h5"},
    "open_dump": lambda: {"path": "d.h5"},
}

MODEL = "model must be a model of transformers, as posstats.load_model returns"
TOKENIZER = "tokenizer must be a tokenizer of transformers, as posstats.load_model returns"
PATH = "path must be a path, as text or pathlib.Path"
IDS_ARE = "token ids must be a non-empty array of integers >= 0 with dims (sequence, token)"

CASES = [
    ("dump", "model", None, MODEL),
    ("dump", "model", "smollm2-135m", MODEL),
    ("dump", "model", Path("data/models"), MODEL),
    ("dump", "model", lambda: sequences(), MODEL),
    ("dump", "model", lambda: tiny.tokenizer(), MODEL),
    ("dump", "model", transformers.LlamaForCausalLM, MODEL),
    ("dump", "model", lambda: model().lm_head, MODEL),
    ("dump", "model", lambda: (model(), tiny.tokenizer()), "model, tokenizer = posstats.load_model(...)"),
    ("dump", "model", lambda: torch.nn.DataParallel(model()), "DataParallel wraps one: give its attribute module"),
    ("dump", "model", lambda: torch.compile(model()), "OptimizedModule wraps one: give its attribute _orig_mod"),
    ("dump", "model", lambda: pipeline(), "TextGenerationPipeline wraps one: give its attribute model"),
    ("dump", "model", lambda: mixed_model(), "mixes weights of the number formats torch.float16, torch.float32"),
    ("dump", "model", lambda: meta_model(), "has no weights, only their shapes: load it on a device"),
    ("dump", "model", lambda: tiny.build("gpt2"), "posstats records rotary decoders only"),
    ("dump", "model", lambda: tiny.build("bert"), "stacks of 3 blocks, not one"),
    ("dump", "sequences", None, "sequences must be a sequence of what to feed (posstats.Sequences, token ids"),
    ("dump", "sequences", "texts.jsonl", "sequences must be a sequence of what to feed"),
    ("dump", "sequences", lambda: model(), "sequences must be a sequence of what to feed"),
    ("dump", "sequences", IDS, "token ids need document=, a label per sequence"),
    ("dump", "sequences", [], "token ids need document="),
    ("dump", "sequences", ["w5 w6 w7"] * 5, "texts need tokenizer=, the tokenizer of the model"),
    ("dump", "sequences", {"a": "w5 w6 w7"}, "texts need tokenizer="),
    ("dump", "sequences", lambda: ps.Sequences(IDS + 97, list("abcde")), "choose an id from 0 to 96"),
    ("dump", "sequences", lambda: ps.Sequences(IDS[:4], list("abcd")), "at least 5 are needed"),
    ("dump", "document", list("abcde"), "document= goes with an array of token ids only"),
    ("dump", "tokenizer", "gpt2", TOKENIZER),
    ("dump", "tokenizer", lambda: tiny.tokenizer().backend_tokenizer, TOKENIZER),
    ("dump", "path", None, PATH),
    ("dump", "path", b"d.h5", PATH),
    ("dump", "path", 5, PATH),
    ("dump", "path", "", "path . is a folder; give the name of a file, such as mine.h5"),
    ("dump", "path", "/", "is a folder; give the name of a file"),
    ("dump", "path", Path.cwd(), "is a folder; give the name of a file"),
    ("dump", "path", "d\0.h5", PATH),
    ("dump", "path", "d" * 5000, "is not a name that a file can have: File name too long"),
    ("dump", "path", lambda: sequences(), PATH),
    ("dump", "conditions", None, "conditions must be a sequence of text, not None"),
    ("dump", "conditions", [], "at least one condition, for example 'baseline'"),
    ("dump", "conditions", ["baseline", "baseline"], "each condition can be given once; given twice: baseline"),
    ("dump", "conditions", [0], "a condition must be text such as 'baseline' or 'bos=mean', not 0"),
    ("dump", "conditions", {"baseline": True}, "conditions must be a sequence of text"),
    ("dump", "conditions", ["bos=token:" + "9" * 30], "whole numbers of at most 9 digits in place of ID"),
    ("dump", "conditions", ["shift=" + "9" * 5000], "whole numbers of at most 9 digits"),
    ("dump", "offsets", [], "at least one offset must be recorded, such as 0"),
    ("dump", "offsets", [0, 0], "each offset can be given once, not 0, 0"),
    ("dump", "offsets", [LENGTH // 2], "offset must be a whole number from 0 to 3, not 4"),
    ("dump", "offsets", [-1], "offset must be a whole number from 0 to 2147483647, not -1"),
    ("dump", "offsets", [0.5], "offset must be a whole number from 0"),
    ("dump", "offsets", [True], "offset must be a whole number from 0"),
    ("dump", "offsets", ["0"], "offset must be a whole number from 0"),
    ("dump", "offsets", [2**70], "offset must be a whole number from 0"),
    ("dump", "offsets", np.zeros((2, 2), int), "offset must be a whole number from 0"),
    ("dump", "offsets", 3, "offsets must be a sequence of whole numbers, not 3"),
    ("dump", "offsets", "01", "offsets must be a sequence of whole numbers"),
    ("dump", "offsets", {0: 1}, "offsets must be a sequence of whole numbers"),
    ("dump", "probes", [LENGTH], "probe must be a whole number from 0 to 7, not 8"),
    ("dump", "probes", None, "probes must be a sequence of whole numbers"),
    ("dump", "batch_size", 0, "batch_size must be a whole number of at least 1, not 0"),
    ("dump", "batch_size", 2.0, "batch_size must be a whole number of at least 1"),
    ("dump", "seed", 1.5, "seed must be a whole number from 0 to 18446744073709551615, not 1.5"),
    ("dump", "seed", -1, "seed must be a whole number from 0"),
    ("dump", "seed", 2**64, "seed must be a whole number from 0 to 18446744073709551615"),
    ("dump", "seed", lambda: 10**5000, "not a number of more digits than Python prints"),
    ("dump", "seed", None, "seed must be a whole number from 0"),
    ("dump", "shard", (2, 1), "shard must be (k, n) with 1 <= k <= n, not (2, 1)"),
    ("dump", "shard", (1, 2, 3), "shard must be (k, n) with 1 <= k <= n"),
    ("dump", "shard", "1/2", "shard must be a sequence of two whole numbers, k and n"),
    ("dump", "resume", "no", "resume must be True or False"),
    ("dump", "overwrite", 1, "overwrite must be True or False"),
    ("dump", "progress", None, "progress must be True or False"),
    ("join_dump", "path", None, PATH),
    ("join_dump", "path", "nothing.h5", "with pieces to join"),
    ("join_dump", "path", Path.cwd(), "is a folder; give the name of a file"),
    ("join_dump", "path", ["a.h5", "b.h5"], PATH),
    ("random_sequences", "tokenizer", None, TOKENIZER),
    ("random_sequences", "tokenizer", lambda: model(), TOKENIZER),
    ("random_sequences", "n", 0, "n must be a whole number of at least 1, not 0"),
    ("random_sequences", "n", True, "n must be a whole number of at least 1, not True"),
    ("random_sequences", "n", 10**15, "tokens do not fit into the memory: at most"),
    ("random_sequences", "length", "64", "length must be a whole number of at least 0, not '64'"),
    ("random_sequences", "length", 2, "the length must be a multiple of 4 tokens"),
    ("random_sequences", "length", 2**70, "length must be a whole number from 0"),
    ("random_sequences", "bos", None, "bos must be True or False, not None"),
    ("random_sequences", "bos_token", 1.5, "bos_token, where it is no text, must be a whole number from 0 to 96"),
    ("random_sequences", "bos_token", [1], "bos_token, where it is no text, must be a whole number"),
    ("random_sequences", "bos_token", "<none>", "is not in the vocabulary; the special tokens are"),
    ("random_sequences", "seed", "0", "seed must be a whole number from 0"),
    ("repeat_sequences", "tokenizer", "llama", TOKENIZER),
    ("repeat_sequences", "n", 1000, "need as many different tokens; the vocabulary has 94"),
    ("repeat_sequences", "length", 2.5, "length must be a whole number"),
    ("text_sequences", "source", [], "source holds no text: give texts, a mapping of document label to text, or the"),
    ("text_sequences", "source", {}, "source holds no text"),
    ("text_sequences", "source", [1, 2], "source must be texts, a mapping of document label to text, or the name of"),
    ("text_sequences", "source", [b"w5 w6"], "is no text"),
    ("text_sequences", "source", {"a": None}, "None is no text"),
    ("text_sequences", "source", {None: "w5"}, "document labels must be all strings or all integers, not None"),
    ("text_sequences", "source", b"w5 w6", "source must be a sequence of texts, a mapping of document label"),
    ("text_sequences", "source", 5, "source must be a sequence of texts"),
    ("text_sequences", "source", "w5 w6 w7", "no file or folder w5 w6 w7; texts themselves are given as a list"),
    ("text_sequences", "source", "w5 " * 5000, "is not a name that a file can have: File name too long"),
    ("text_sequences", "source", ["w5 \udce9"] * 5, "the text of text"),
    ("text_sequences", "tokenizer", lambda: TEXTS, TOKENIZER),
    ("Sequences", "ids", IDS / 2, f"{IDS_ARE}, not of shape (5, 8) and type float64"),
    ("Sequences", "ids", [[1, 2], [3]], IDS_ARE),
    ("Sequences", "ids", [[2**64]] * 5, IDS_ARE),
    ("Sequences", "ids", np.full((5, 2), 2**63, np.uint64), f"{IDS_ARE}; these run from 9223372036854775808 to"),
    ("Sequences", "ids", IDS > 4, IDS_ARE),
    ("Sequences", "ids", None, IDS_ARE),
    ("Sequences", "ids", lambda: tiny.tokenizer()(["w5 w6"] * 5), IDS_ARE),
    ("Sequences", "document", "abcde", "one document label per sequence"),
    ("Sequences", "document", [True] * 5, "document labels must be all strings or all integers, not True"),
    ("Sequences", "document", [1.0] * 5, "document labels must be all strings or all integers, not 1.0"),
    ("Sequences", "document", None, "one document label per sequence"),
    ("Sequences", "source", 5, "source must be text, not 5"),
    ("Sequences", "bos_id", 1.5, "bos_id must be a whole number of at least 0, not 1.5"),
    ("Sequences", "bos_id", "<bos>", "bos_id must be a whole number of at least 0"),
    ("Sequences", "bos_token", None, "bos_token must be text, not None"),
    ("Sequences", "ordinary", [3, 3, 4], "ordinary must be different integers >= 0 in one dimension"),
    ("Sequences", "ordinary", [3.5], "ordinary must be different integers >= 0"),
    ("Sequences", "seed", -1, "seed must be a whole number from 0"),
    ("load_model", "name", None, "name must be a path, as text or pathlib.Path, not None"),
    ("load_model", "name", lambda: model(), "name must be a path, as text or pathlib.Path"),
    ("load_model", "name", "./nowhere", "there is no folder './nowhere'; give 'smollm2-135m', a folder, a .gguf file"),
    ("load_model", "dtype", "int8", "dtype must be one of 'float32', 'float64', 'bfloat16', 'float16', not 'int8'"),
    ("load_model", "dtype", torch.float32, "dtype must be one of 'float32', 'float64'"),
    ("load_model", "dtype", np.array(["float32"]), "dtype must be one of 'float32', 'float64'"),
    ("load_model", "device", 1.5, "device must be text such as 'cpu' or 'cuda:0', not 1.5"),
    ("load_model", "device", True, "device must be text such as 'cpu'"),
    ("load_model", "device", "gpu", "there is no device 'gpu' here; there is cpu"),
    ("load_model", "revision", 3, "revision must be text, a branch, tag or commit such as 'main', not 3"),
    ("load_model", "models_dir", None, "models_dir must be a path"),
    ("load_model", "rope_parameters", ["factor"], "rope_parameters must map names, such as 'factor', to values"),
    ("load_model", "rope_parameters", {1: 2}, "rope_parameters must map names, such as 'factor', to values"),
    ("load_model", "rope_parameters", {"rope_type": ["yarn"]}, "rope_type in rope_parameters must be one of 'default'"),
    ("load_model", "rope_parameters", {"rope_type": "linear", "factor": {2}}, "rope_parameters do not fit the model"),
    ("load_model", "ntk_factor", "2", "ntk_factor must be a finite number, not '2'"),
    ("load_model", "ntk_factor", float("inf"), "ntk_factor must be a finite number"),
    ("load_model", "ntk_factor", 1, "ntk_factor must be above 1, where RoPE is as it was trained"),
    ("load_model", "sliding_window", 4.0, "sliding_window must be a whole number of at least 1, not 4.0"),
    ("load_model", "adapter", 7, "adapter must be a path"),
    ("load_model", "adapter", "~nobody/adapter", "an adapter is a folder with adapter_config.json"),
    ("write_dump", "dataset", None, "dataset must be an xarray.Dataset of the dump schema, not None"),
    ("write_dump", "dataset", "d.h5", "dataset must be an xarray.Dataset of the dump schema"),
    ("write_dump", "dataset", lambda: dataset().logit, "dataset must be an xarray.Dataset of the dump schema"),
    ("write_dump", "dataset", lambda: dataset().isel(sequence=slice(0)), "needs one at least along every dim"),
    ("write_dump", "dataset", lambda: dataset().assign(logit=dataset().logit > 0), "type bool; a dump holds numbers"),
    ("write_dump", "dataset", lambda: dataset().assign_coords(condition=[True]), "must hold texts or numbers"),
    ("write_dump", "path", None, PATH),
    ("write_dump", "path", lambda: dataset(), PATH),
    ("write_dump", "workers", 0, "workers must be a whole number of at least 1, not 0"),
    ("write_dump", "workers", "2", "workers must be a whole number of at least 1"),
    ("write_dump", "dataset", lambda: dataset().assign_attrs({5: 1}), "an attribute cannot be called 5"),
    ("write_dump", "dataset", lambda: dataset().assign_attrs(CLASS="a"), "an attribute cannot be called 'CLASS'"),
    ("open_dump", "path", None, PATH),
    ("open_dump", "path", lambda: dataset(), PATH),
    ("open_dump", "path", Path.cwd(), "is a folder; give the name of a file"),
    ("open_dump", "path", "nothing.h5", "there is no dump nothing.h5"),
    ("open_dump", "path", __file__, "is not an HDF5 file, so it cannot be read as a posstats dump"),
    ("open_dump", "path", lambda: foreign(), "is not a posstats dump: it has no attribute schema_version"),
    ("open_dump", "path", lambda: foreign(schema_version="3"), "is not a whole posstats dump: the variable token_id"),
]  # fmt: skip


def pipeline():
    return transformers.TextGenerationPipeline(model=tiny.build("llama"), tokenizer=tiny.tokenizer())


def mixed_model():
    mixed = deepcopy(model())
    mixed.model.layers[1].self_attn.q_proj.half()
    return mixed


def meta_model():
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(tiny.config("llama"))


def foreign(**attrs):
    """An HDF5 file that is no dump: strings, groups, and what netCDF has no type for."""
    with h5py.File("foreign.h5", "w") as file:
        file["a/b"] = np.arange(3)
        file["logit"] = ["x", "y"]
        file["flags"] = np.array([True, False])
        file["record"] = np.zeros(2, dtype=[("x", "i4"), ("y", "f8")])
        file.attrs.update(attrs)
    return "foreign.h5"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with the saved tiny model where one is loaded."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def saved():
    model().save_pretrained("saved")
    tiny.tokenizer().save_pretrained("saved")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("function", "argument", "value", "words"), CASES, ids=[f"{case[0]}-{case[1]}-{n}" for n, case in enumerate(CASES)]
)
def test_a_wrong_argument_is_refused(request, function, argument, value, words):
    if function == "load_model":
        request.getfixturevalue("saved")
    with pytest.raises(PosstatsError, match=re.escape(words)) as caught:
        getattr(ps, function)(**{**RIGHT[function](), argument: made(value)})
    assert "\n" not in str(caught.value)
    assert not Path("d.h5").exists()
    assert not Path("d.h5.parts").exists()


@pytest.mark.parametrize(
    "value",
    [True, None, {"a": 1}, [1, "a"], [1, None], [True, 1], datetime.date(2020, 1, 1), np.datetime64("2020"), b"text",
     "null\0", "\ud800", 2**64, [-1, 2**63 + 1], [[1], [2, 3]], {1, 2}, Decimal(1), object(), int, sequences],
)  # fmt: skip
def test_an_attribute_that_a_file_would_not_give_back_is_refused(value):
    words = "the attribute mine is .*, which a dump cannot hold: give text, a number, or a list of texts or of numbers"
    with pytest.raises(PosstatsError, match=words):
        ps.write_dump(dataset().assign_attrs(mine=value), "d.h5")
    assert not Path("d.h5").exists()


def test_swapped_arguments_are_refused():
    with pytest.raises(PosstatsError, match=MODEL):
        ps.dump(sequences(), model(), "d.h5")
    with pytest.raises(PosstatsError, match=PATH):
        ps.write_dump("d.h5", dataset())


def recorded(path, *args, **options):
    return ps.dump(model(), *args, path, offsets=[0], progress=False, **options).read_bytes()


class TestAccepted:
    """What is obvious enough: the same bytes as by the long way."""

    @pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist, np.uint16, iter])
    def test_token_ids_with_their_documents(self, kind):
        expected = recorded("a.h5", ps.Sequences(IDS, list("abcde")))
        assert recorded("b.h5", kind(IDS), document=list("abcde")) == expected

    @pytest.mark.parametrize("kind", [dict, lambda texts: iter(texts.values())])
    def test_texts(self, kind):
        texts = {f"text {k}": text * 30 for k, text in enumerate(TEXTS.values())}
        drawn = ps.text_sequences(tiny.tokenizer(), texts, length=128, seed=2)  # as many tokens as the model allows
        expected = recorded("a.h5", drawn, seed=2, tokenizer=tiny.tokenizer())
        assert recorded("b.h5", kind(texts), seed=2, tokenizer=tiny.tokenizer()) == expected

    def test_a_list_of_texts(self):
        named, listed = (
            ps.text_sequences(tiny.tokenizer(), texts, n=6, length=LENGTH) for texts in (TEXTS, [*TEXTS.values()])
        )
        assert (named.ids == listed.ids).all()
        assert sorted(set(listed.document)) == [f"text {k}" for k in range(6)]

    def test_other_iterables_and_numbers_of_numpy(self):
        expected = recorded("a.h5", sequences(), conditions=["baseline", "bos=mean"], seed=3, probes=[1, 2])
        options = {"conditions": iter(["baseline", " bos=mean"]), "seed": np.int8(3), "probes": np.array([2, 1])}
        assert recorded("b.h5", sequences(), **options) == expected

    def test_the_largest_seed(self):
        assert recorded("a.h5", sequences(), seed=2**64 - 1)
        assert ps.open_dump("a.h5").attrs["seed"] == 2**64 - 1

    @pytest.mark.parametrize(
        "value",
        ["text", "", "ü", 5, 2**64 - 1, -1.5, float("inf"), ["a", "b"], (1, 2), [1.5, 2], range(3), np.float32(0.1),
         np.int8(3), np.array(["a", "b"]), np.str_("a"), np.arange(4).reshape(2, 2), []],
    )  # fmt: skip
    def test_attributes_come_back_as_they_were(self, value):
        ps.write_dump(dataset().assign_attrs(mine=value), "a.h5")
        with ps.open_dump("a.h5") as ds:
            np.testing.assert_array_equal(np.asarray(ds.attrs["mine"]), np.asarray(value))


#: Values of every type that users have at hand; texts hold nothing that leads out of a folder.
_NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 5, 2**31, 2**63, 2**64, -(2**70), 0.5, 2.0, 1e300, float("nan"), float("inf"), 1j, True, False,
     np.int64(3), np.float32(2), np.bool_(True), Decimal(2)]
) | st.just(1).map(lambda one: one << 2**15)  # fmt: skip
#: Fixed pools: hypothesis draws free texts from the constants of the modules that happen to be loaded.
_TEXTS = st.sampled_from(
    [
        "baseline",
        "bos=mean",
        "bos@3",
        "float32",
        "cpu",
        "<bos>",
        "w5",
        "none",
        "",
        "a",
        "é",
        "\0",
        "-1",
        "x\ny",
        " ",
        "$a$",
    ]
)
_SCALARS = st.none() | _NUMBERS | _TEXTS | st.sampled_from([b"", b"ab", date(2000, 1, 1), object(), str])
_ARRAYS = st.sampled_from(
    [IDS, IDS.astype(float), IDS[0], IDS[:, :0], IDS[None], IDS.astype(object), IDS.astype("U"), np.array(3),
     np.array([]), np.array(["a"]), np.array([None, 1], dtype=object), np.array(["2020"], dtype="M8[D]"),
     torch.arange(3), torch.ones(2, 3)]
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS | _ARRAYS,
    lambda values: (
        st.lists(values, max_size=5)
        | st.lists(values, max_size=3).map(tuple)
        | st.lists(values, max_size=3).map(iter)
        | st.dictionaries(_TEXTS, values, max_size=3)
    ),
    max_leaves=6,
) | st.sampled_from([model, tiny.tokenizer, sequences, dataset]).map(lambda make: make())  # fmt: skip
#: Arguments that are varied: those of the signatures, without what a text could lead to another machine by.
_ARGUMENTS = {
    "dump": ("model", "sequences", "path", "document", "conditions", "offsets", "probes", "tokenizer", "batch_size",
             "seed", "shard", "resume", "overwrite", "progress"),
    "join_dump": ("path",),
    "random_sequences": ("tokenizer", "n", "length", "bos", "bos_token", "seed"),
    "repeat_sequences": ("tokenizer", "n", "length", "seed"),
    "text_sequences": ("tokenizer", "source", "n", "length", "bos", "bos_token", "seed"),
    "Sequences": ("ids", "document", "source", "bos_id", "bos_token", "ordinary", "seed"),
    "load_model": ("dtype", "device", "revision", "models_dir", "rope_parameters", "ntk_factor", "sliding_window",
                   "adapter"),
    "write_dump": ("dataset", "path", "workers"),
    "open_dump": ("path",),
}  # fmt: skip
_PAIRS = [(function, name) for function, names in _ARGUMENTS.items() for name in names]


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
@pytest.mark.usefixtures("saved")
@settings(
    max_examples=600,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(_PAIRS), _VALUES)
def test_nothing_but_errors_of_posstats_escapes(pair, value):
    function, name = pair
    with suppress(PosstatsError):
        getattr(ps, function)(**{**RIGHT[function](), name: value})


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(value=_VALUES, name=_TEXTS | st.sampled_from([0, -1, 2**70]))
def test_attributes_come_back_or_are_refused(tmp_path_factory, value, name):
    path = tmp_path_factory.mktemp("attributes") / "a.h5"
    try:
        ps.write_dump(dataset().assign_attrs({name: value}), path)
    except PosstatsError:
        return
    with ps.open_dump(path) as ds:
        np.testing.assert_array_equal(np.asarray(ds.attrs[name]), np.squeeze(np.asarray(value)))
