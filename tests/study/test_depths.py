"""The default configuration on a model of another depth than the default one: fractions of its blocks."""

from dataclasses import replace
from pathlib import Path

import pytest

import posstats as ps
from posstats.dataset.conditions import at_depth, check_positions, parse_conditions
from posstats.dumping.run.cost import _Rehearsal
from posstats.errors import InputError
from posstats.study.config import load_config
from posstats.study.recording import estimate_dumps, record_dumps
from tests import tiny

DEFAULT = Path(__file__).parents[2] / "analyses" / "default.toml"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a model of 4 blocks."""
    folder = tmp_path_factory.mktemp("model")
    tiny.build("llama", num_hidden_layers=4, vocab_size=300, max_position_embeddings=512).save_pretrained(folder)
    tiny.byte_tokenizer(300).save_pretrained(folder)
    return folder


def dumps(config, folder):
    return {folder / f"{name}.h5": entry for name, entry in config.dumps.items()}


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
def test_the_quick_profile(model, tmp_path):
    config = load_config(DEFAULT, profile="quick", model=str(model))
    record_dumps(config, dumps(config, tmp_path), show=False)
    with ps.open_dump(tmp_path / "random.h5") as ds:
        assert [name for name in ds.condition.values if name.startswith("traj")] == ["trajectory=tokens:2@1"]
        assert ds.sizes["layer"] == 4
        rows = ps.readers(ds, n_permutations=9).table
        assert set(rows.condition) == {"trajectory=tokens:2@1"}


def test_the_whole_configuration(model, tmp_path, monkeypatch):
    monkeypatch.setattr("posstats.dumping.run.cost._measure", lambda *_: _Rehearsal(1, 1.0, 1.0, 1.0))
    config = load_config(DEFAULT, model=str(model))
    costs = estimate_dumps(config, dumps(config, tmp_path))
    # Of 10 conditions, two trajectories begin at block 1.
    assert [cost.sequences for cost in costs.values()] == [9 * 48, 4 * 48]


def test_a_token_that_the_model_does_not_know(tmp_path):
    tiny.build("llama").save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    config = load_config(DEFAULT, profile="quick", model=str(tmp_path / "model"))
    entry = replace(config.dumps["random"], conditions=("baseline", "trajectory=token:260@1/3"))
    config = replace(config, dumps={"random": entry})
    message = (
        r"trajectory=token:260@1: token id 260 is not in the model's vocabulary of 97 tokens; choose an id from 0 to"
    )
    with pytest.raises(InputError, match=message):
        record_dumps(config, dumps(config, tmp_path), show=False)


@pytest.mark.parametrize("depth", ["1/1", "2/1", "-1/3", "1/0", "0/0", "1/3/4", "0.3", "1 /3"])
def test_no_fraction_below_1_is_no_depth(depth):
    with pytest.raises(InputError, match="L may also be a fraction below 1 of the model's blocks, such as 1/3"):
        parse_conditions([f"trajectory=token:5@{depth}"])


@pytest.mark.parametrize(
    ("depths", "blocks", "found"),
    [
        (["0/1"], 1, [0]), (["9/10"], 1, [0]), (["9/10"], 2, [1]), (["1/2"], 3, [2]), (["999/1000"], 4, [3]),
        (["1/3", "1/4"], 4, [1]), (["1", "1/4"], 4, [1]), (["3", "3/4", "1/4"], 4, [3, 1]),
    ],
)  # fmt: skip
def test_a_depth_is_there_once(depths, blocks, found):
    conditions = parse_conditions(f"trajectory=token:5@{depth}" for depth in depths)
    assert [one.depth for one in at_depth(conditions, blocks)] == found


def test_one_fraction_spelled_twice_is_given_twice():
    with pytest.raises(InputError, match=r"given twice: trajectory=token:5@1/3"):
        parse_conditions(["trajectory=token:5@1/3", "trajectory=token:5@2/6"])


def test_half_an_offset_is_none():
    with pytest.raises(InputError, match=r"offset must be a whole number from 0 to 3, not 1\.5"):
        check_positions("offset", (0, 1.5), length=8)


def test_depths_of_the_default_model():
    found = at_depth(parse_conditions(load_config(DEFAULT).record.conditions), 30)
    depths = [one.name for one in found if one.kind == "trajectories"]
    assert depths == ["trajectory=tokens:8@5", "trajectory=tokens:8@10", "trajectory=tokens:8@20"]
