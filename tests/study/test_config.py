"""The configuration: read strictly, fully documented, profiles that replace and nothing else."""

import re
from pathlib import Path

import pytest

from posstats.errors import InputError
from posstats.stats.inference.options import Inference
from posstats.study.config import SECTIONS, load_config, options
from posstats.vocabulary import DEFAULT_LENGTH, DEFAULT_OFFSETS, DEFAULT_SEQUENCES
from tests.refused import refused

ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / "analyses" / "default.toml"


@pytest.fixture
def written(tmp_path):
    """Write a configuration and read it."""

    def write(text, name="default.toml", **more):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_config(path, **more)

    return write


def test_what_is_left_out_has_its_default(written):
    config = written("[dumps.one]\n")
    assert config.sequences.n == DEFAULT_SEQUENCES
    assert config.sequences.length == DEFAULT_LENGTH
    assert config.record.offsets == DEFAULT_OFFSETS
    assert config.dumps["one"].source == "random"
    assert {option: getattr(getattr(config, option.split(".")[0], None), option.split(".")[1], None)
            for option in options() if not option.startswith("dumps.")} == {
        option: default for option, default in options().items() if not option.startswith("dumps.")
    }  # fmt: skip


def test_the_default_configuration_is_the_default_design():
    config = load_config(DEFAULT)
    assert config.sequences.n == DEFAULT_SEQUENCES
    assert config.sequences.length == DEFAULT_LENGTH
    assert config.record.offsets == DEFAULT_OFFSETS
    assert set(config.dumps) == {"random", "text"}
    assert config.inference == Inference()
    assert all((DEFAULT.parent / name).is_file() for name in config.analyses.files)


def test_every_analysis_file_is_run_by_default():
    files = {path.name for path in DEFAULT.parent.glob("*.py")}
    assert set(load_config(DEFAULT).analyses.files) == files


def test_the_quick_profile_changes_what_it_says():
    quick, full = load_config(DEFAULT, profile="quick"), load_config(DEFAULT)
    assert quick.sequences.n == 8
    assert quick.sequences.seed == full.sequences.seed
    assert quick.model == full.model
    assert quick.run.dumps != full.run.dumps
    assert quick.results_folder() != full.results_folder()


def test_every_key_is_in_the_default_configuration_with_a_comment():
    lines = DEFAULT.read_text(encoding="utf-8").split("[profile.")[0].splitlines()
    section, seen = "", set()
    for above, line in zip(["", *lines], lines, strict=False):
        header = re.match(r"\[([\w.]+)\]", line)
        key = re.match(r"(?:# )?(\w+) = ", line)
        if header:
            section = header[1].split(".")[0]
        elif key and f"{section}.{key[1]}" in options():
            if f"{section}.{key[1]}" not in seen and section != "dumps":
                assert above.startswith("# "), line
            seen.add(f"{section}.{key[1]}")
    assert seen == set(options())


def test_every_key_is_in_the_document_and_in_a_docstring():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for option in options():
        section, key = option.split(".")
        shown = f"dumps.NAME.{key}" if section == "dumps" else option
        assert f"| `{shown}` |" in text, option
        assert re.search(rf"^\s+(\w+, )*{key}(, \w+)* : ", SECTIONS[section].__doc__ or "", re.MULTILINE), option


def test_the_document_states_the_defaults():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for option, default in options().items():
        section, key = option.split(".")
        row = re.search(rf"^\| `{section}\.(?:NAME\.)?{key}` \| ([^|]*) \|", text, re.MULTILINE)
        assert row, option
        stated = row[1].strip("` ")
        if isinstance(default, tuple):
            assert stated == str(list(default)).replace("'", '"'), option
        elif default is None:
            assert stated.startswith("left out"), option
        else:
            assert stated == (str(default).lower() if isinstance(default, bool) else str(default)), option


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[dump.one]", r"there is no section \[dump\]; the sections are model, sequences, dumps"),
        ("[dumps.one]\nsauce = 'text'", r"\[dumps.one\] has no key 'sauce'; its keys are source, text, conditions"),
        ("[dumps.one]\n[sequences]\nN = 3", r"\[sequences\] has no key 'N'; its keys are n, length"),
        ("[dumps.one]\n[sequences]\nn = 4", r"\[sequences\]: n = 4 sequences .* at least 5 are needed"),
        ("[dumps.one]\n[sequences]\nlength = 2", r"\[sequences\]: the length must be a multiple of 4 tokens"),
        ("[dumps.one]\n[record]\nconditions = ['basline']", r"\[record\]: there is no condition .*mean baseline\?"),
        ("[dumps.one]\nconditions = ['repeat', 'repeat']", r"\[dumps.one\]: .* given twice: repeat"),
        ("[dumps.one]\n[record]\nseed = -1", r"\[record\]: seed must be a whole number from 0"),
        ("[dumps.one]\n[run]\nbatch_size = 0", r"\[run\]: batch_size must be a whole number of at least 1"),
        ("[dumps.one]\n[sequences]\nn = 3.5", r"\[sequences\] n must be a whole number, not 3.5"),
        ("[dumps.one]\n[sequences]\nn = true", r"\[sequences\] n must be a whole number, not True"),
        ("[dumps.one]\n[sequences]\nbos = 1", r"bos must be true or false, not 1"),
        ("[dumps.one]\n[sequences]\nbos_token = 1.5", r"bos_token must be text in quotes or a whole number"),
        ("[dumps.one]\n[record]\nconditions = 'baseline'", r"conditions must be a list"),
        ("[dumps.one]\n[record]\noffsets = [0, 'a']", r"offsets must be a whole number, not 'a'"),
        ("[dumps.one]\n[record]\nconditions = ['bos=mean']", r"must contain \"baseline\""),
        ("[dumps.one]\nconditions = ['repeat']", r"of \[dumps.one\] must contain \"baseline\""),
        ("[dumps.one]\nconditions = 'repeat'", r"\[dumps.one\] conditions must be a list, not 'repeat'"),
        ("[dumps.one]\nsource = 'web'", r"\[dumps.one\]: source must be one of random, text, not 'web'"),
        ("[dumps.one]\ntext = 'a.txt'", r"only where source is \"text\""),
        ("[dumps.'a/b']", r"a dump's name has letters"),
        ("[dumps]\none = 1", r"\[dumps.one\] must be a table"),
        ("model = 'x'\n[dumps.one]", r"\[model\] must be a table"),
        ("[model]", r"names no dump"),
        ("[dumps.one]\n[inference]\nmethod = 'guess'", r"\[inference\]: method must be one of .*'guess'"),
        ("[dumps.one]\n[inference]\nlevel = 1.5", r"level must lie between 0 and 1"),
        ("[dumps.one]\n[inference]\nadjust = 'none'", r"\[inference\]:.*bh"),
        ("[dumps.one]\n[inference]\nn_resamples = 0", r"n_resamples must be a whole number from 99"),
        ("[dumps.one]\n[run]\nworkers = 0", r"workers must be a whole number of at least 1"),
        ("[dumps.one]\n[profile.fast.sequences]\nm = 3", r"profile.fast: \[sequences\] has no key 'm'"),
        ("[dumps.one]\n[profile.fast.sequence]\nn = 3", r"profile.fast: there is no section \[sequence\]"),
        ("[dumps.one", "is not valid TOML"),
    ],
)
def test_mistakes_are_named(written, text, message):
    refused(InputError, message, written, text)


def test_the_section_that_is_wrong_is_named_whether_a_profile_is_chosen_or_not(written):
    profile = "[profile.quick.sequences]\nn = 7\n"
    for chosen in (None, "quick"):
        with pytest.raises(InputError, match=r"^\[dumps.text\] has no key 'offsets'"):
            written(f"[dumps.text]\noffsets = [0]\n{profile}", profile=chosen)
        with pytest.raises(InputError, match=r"^profile.quick: \[sequences\] has no key 'm'"):
            written(f"[dumps.text]\n{profile}m = 3\n", profile=chosen)


def test_a_whole_number_will_do_for_a_number(written):
    refused(InputError, r"level must lie between 0 and 1, not 1\.0", written, "[dumps.one]\n[inference]\nlevel = 1")


def test_a_profile_merges_key_by_key(written):
    text = "[sequences]\nn = 30\nlength = 100\n[dumps.a]\n"
    text += "[profile.p.sequences]\nn = 7\n[profile.p.dumps.b]\nsource = 'text'"
    config = written(text, profile="p")
    assert (config.sequences.n, config.sequences.length) == (7, 100)
    assert {name: entry.source for name, entry in config.dumps.items()} == {"a": "random", "b": "text"}
    assert set(written(text).dumps) == {"a"}


def test_an_unknown_profile_is_refused(written):
    with pytest.raises(InputError, match="no profile 'slow'; it has fast"):
        written("[dumps.one]\n[profile.fast.sequences]\nn = 9", profile="slow")
    refused(InputError, "it has none", written, "[dumps.one]", profile="slow")


def test_a_missing_file_is_named(tmp_path):
    refused(InputError, r"cannot read the configuration .*none.toml: No such file", load_config, tmp_path / "none.toml")


def test_another_model_brings_its_own_file_names(written):
    text = "[model]\nname = 'org/Some-Model'\nrevision = 'v1'\n[dumps.one]"
    config = written(text)
    assert config.dump_path("one").as_posix() == "data/org-some-model-one.h5"
    other = written(text, model="/models/Mine.gguf")
    assert other.model.revision is None
    assert re.fullmatch("analyses/results/mine.gguf-[0-9a-f]{8}", other.results_folder().as_posix())


def test_a_local_model_is_called_by_its_place_however_it_is_spelled(written, tmp_path, monkeypatch):
    for folder in ("a/mymodel", "b/mymodel", "c"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "c")
    spellings = [[f"../{one}/mymodel", f"../{one}/mymodel/", str(tmp_path / one / "mymodel")] for one in "ab"]
    slugs = [{written("[dumps.one]", model=name).slug for name in names} for names in spellings]
    assert [len(found) for found in slugs] == [1, 1]
    # Dumps hold the name: were it another one, they would be recorded anew.
    assert {written("[dumps.one]", model=name).model.name for name in spellings[0]} == {str(tmp_path / "a/mymodel")}
    (tmp_path / "c" / "inside").mkdir()
    names = ["inside", "./inside/", "../c/inside", str(tmp_path / "c" / "inside")]
    assert {written("[dumps.one]", model=name).model.name for name in names} == {"inside"}
    assert written("[dumps.one]", model="./none").model.name == "./none"
    assert slugs[0] != slugs[1]
    assert all(re.fullmatch("mymodel-[0-9a-f]{8}", *found) for found in slugs)
    (tmp_path / "c" / "smollm2-135m").mkdir()
    assert written("[dumps.one]").slug == "smollm2-135m"


def test_adapters_of_one_base_name_and_bos_tokens_are_told_apart(written):
    text = "[dumps.one]\n[model]\nadapter = '{}/ntk-0'"
    assert len({written(text.format(folder)).slug for folder in ("data", "data/../data", "other")}) == 2
    text = "[dumps.one]\n[sequences]\nbos_token = {}"
    assert re.fullmatch("smollm2-135m-bos-im_start-[0-9a-f]{8}", written(text.format("'<|im_start|>'")).slug)
    assert written(text.format(3)).slug == "smollm2-135m-bos-3"


def test_a_configuration_of_ones_own_has_folders_of_its_own(written):
    text = "[dumps.one]\n[profile.p.run]\ndumps = 'data/p'\n[profile.own.run]\ndumps = 'x/mine'\nresults = 'y/mine'"
    places = {
        (name, profile): written(text, name, profile=profile).dump_path("one").as_posix()
        for name in ("default.toml", "mine.toml") for profile in (None, "p", "own")
    }  # fmt: skip
    assert places == {
        ("default.toml", None): "data/smollm2-135m-one.h5",
        ("default.toml", "p"): "data/p/smollm2-135m-one.h5",
        ("default.toml", "own"): "x/mine/smollm2-135m-one.h5",
        ("mine.toml", None): "data/mine/smollm2-135m-one.h5",
        ("mine.toml", "p"): "data/p/mine/smollm2-135m-one.h5",
        ("mine.toml", "own"): "x/mine/smollm2-135m-one.h5",  # which it names itself
    }
    assert written(text, "mine.toml").results_folder().as_posix() == "analyses/results/mine/smollm2-135m"
    assert written(text, "mine.toml", profile="own").results_folder().as_posix() == "y/mine/smollm2-135m"


def test_names_in_any_script_have_folders_of_their_own(written):
    names = ["模型", "模型2", "型", "<b>x&y", "b-x-y", "x_%#", "é", "./é"]
    folders = {written("[dumps.one]", model=name).results_folder().as_posix() for name in names}
    assert len(folders) == len(names)
    assert all(re.fullmatch("analyses/results/[a-z0-9._-]+", folder) for folder in folders)
