"""The comparison of architectures, and the configurations of larger models: the same code on tiny random ones."""

import ast
import logging
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats.dataset.comparable import window_binds
from posstats.errors import DesignError, FewDocumentsWarning, InputError
from posstats.stats.inference.options import Inference
from posstats.study.analysis import run_analyses
from posstats.study.config import AnalysesConfig, load_config
from posstats.study.recording import record_dumps
from tests import tiny, trained
from tests.processes import in_this_process

models, report, study, tasks = (
    trained.package(f"analyses.architectures.{name}") for name in ("models", "report", "study", "tasks")
)
SEEDS = (0, 1)
CONFIGURATIONS = sorted((trained.ROOT / "analyses" / "models").glob("*.toml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny base model, two adapted models per architecture, and everything that the command makes of them."""
    folder = tmp_path_factory.mktemp("architectures")
    base = trained.save_base(folder / "base", max_position_embeddings=256, num_hidden_layers=2)
    for name in ("standard", "ntk", "window"):
        for seed in SEEDS:
            trained.train(base, folder / "adapters", name, seed, steps=4)
    return folder


@pytest.fixture(scope="module")
def command(folder):
    whole = models.design

    def small(*arguments, **options):
        """What contrasts need and no more: the conditions of the other claims have their own tests."""
        config = whole(*arguments, **options)
        assert {"shift=64", "repeat", "bos@16", "trajectory=tokens:4@1"} < set(config.record.conditions)
        record = replace(config.record, conditions=("baseline", *models.REPLACEMENTS))
        return replace(config, record=record)

    def call(*more):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tasks, "in_processes", in_this_process)
            patch.setattr(models, "design", small)
            patch.setattr(models, "NTK_FACTORS", (8.0,))
            patch.setattr(models, "WINDOWS", (32,))
            arguments = ["--adapters", "adapters", "--dumps", "dumps", "--out", "results", "--docs", "docs"]
            arguments = [str(folder / one) if not one.startswith("--") else one for one in arguments]
            (folder / "docs").mkdir(exist_ok=True)
            study.main([*arguments, "--quick", "--model", str(folder / "base"), "--layer", "1", *more])

    return call


@pytest.fixture(scope="module")
def results(folder, command):
    command()
    return folder / "results"


def table(results, name):
    return pd.read_csv(results / f"{name}.csv")


# ---- the comparison


def test_every_model_is_recorded_on_the_same_sequences(folder, results):
    assert results
    kinds, ids = {}, []
    for path in sorted((folder / "dumps").glob("*.h5")):
        with ps.open_dump(path) as ds:
            kinds[path.stem] = ds.attrs["model_kind"]
            ids.append(ds.token_id.sel(condition="baseline").values)
    assert kinds == {
        "standard": "trained",
        "ntk-8": "inference-time variant",
        "window-32": "inference-time variant",
        **{f"adapted-{name}-{seed}": "adapted" for name in ("standard", "ntk", "window") for seed in SEEDS},
    }
    assert all(np.array_equal(one, ids[0]) for one in ids)


def test_every_attribute_of_a_dump_is_documented(folder, results):
    assert results
    schema = (trained.ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for path in (folder / "dumps").glob("*.h5"):
        with ps.open_dump(path) as ds:
            assert [name for name in ds.attrs if f"`{name}`" not in schema] == []


def test_a_ledger_of_every_model_and_no_mixture_of_kinds(results):
    variants, adapted = (table(results, f"{kind}-verdicts") for kind in ("inference-time-variants", "adapted-models"))
    assert (len(variants), len(adapted)) == (3, 6)
    assert list(variants.columns[1:]) == ["C1", "C2", "C3", "C4", "C5", "C7", "C8", "C9"]
    contrasts = table(results, "inference-time-variants-contrasts")
    assert set(contrasts.contrast) == {"standard", "ntk-8", "window-32", "ntk-8 - standard", "window-32 - standard"}
    assert set(contrasts.runs) == {1}
    contrasts = table(results, "adapted-models-contrasts")
    assert {"ntk - standard", "window - standard", "window - ntk"} < set(contrasts.contrast)
    assert set(contrasts.runs) == {len(SEEDS)}
    for name in ("inference-time-variants-c6", "adapted-models-c6"):
        c6 = table(results, name)
        assert set(c6.claim) == {"C6"}
        assert {"a", "b", "c", "d", "e", "claim"} == set(c6.part)


def test_contrasts_of_adapted_models_pair_runs_by_seed(folder, results):
    dumps = [[folder / "dumps" / f"adapted-{name}-{seed}.h5" for seed in SEEDS] for name in ("standard", "ntk")]
    sides = [[ps.open_dump(path) for path in side] for side in dumps]
    with pytest.warns(FewDocumentsWarning):
        expected = ps.contrast(
            *sides, quantities=["share"], labels=("standard", "ntk"), pair_runs=True, n_permutations=199
        )
    kept = table(results, "adapted-models-contrasts")
    for _, row in expected.table.iterrows():
        same = kept[(kept.contrast == row.contrast) & (kept.quantity == "share") & (kept.term == row.term)]
        found = same[["estimate", "se", "low", "high", "p"]].iloc[0].to_numpy(float)
        np.testing.assert_allclose(found, row[["estimate", "se", "low", "high", "p"]].to_numpy(float), rtol=1e-12)
    for side in sides:
        for ds in side:
            ds.close()


def test_what_is_current_is_not_computed_again(results, command, caplog):
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    caplog.set_level(logging.INFO, "analyses.architectures")
    command("--step", "analyse")
    assert not [record for record in caplog.records if record.getMessage().endswith("finished")]
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_the_page_names_what_it_rests_on(folder, results):
    page = (folder / "docs" / report.PAGE).read_text(encoding="utf-8")
    assert page == (results / report.PAGE).read_text(encoding="utf-8")
    for text in (
        "make claims",
        "Only 8 documents",
        "8 sequences of 144 iid tokens",
        "torch 2",
        "## Adapted models",
        "## Inference-time",
    ):
        assert text in page
    assert {path.suffix for path in (folder / "docs" / report.TABLES).iterdir()} == {".csv", ".json", ".md", ".tex"}


def test_the_analysis_imports_no_torch():
    for path in (trained.ROOT / "analyses" / "architectures").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("torch", "transformers", "peft") for name in names)
            assert not any(name.startswith("posstats.dumping") for name in names)


# ---- mistakes


def test_a_window_that_never_binds_is_refused_before_recording(folder, tmp_path):
    config = models.design(tmp_path, str(tmp_path), layer=1, quick=True)
    with pytest.raises(InputError, match="window-72: a window of 72 never binds among 72 analysed queries"):
        models.record(models.variants(str(folder / "base"), [], [72]), config)
    assert not list(tmp_path.iterdir())


def test_a_missing_run_is_named(folder, tmp_path):
    entries = models.adapted(str(folder / "base"), folder / "adapters")[1:]
    with pytest.raises(DesignError, match="every adapted architecture needs runs of the same seeds"):
        tasks.plan([], [(entry, tmp_path) for entry in entries], tmp_path, Inference())


def test_adapters_of_another_model_are_refused(folder):
    with pytest.raises(InputError, match=r"continues .*base, not another"):
        models.adapted("another", folder / "adapters")


# ---- configurations of larger models

#: Configuration -> tiny model of the same class and structure; the window is to the length as in the configuration.
SHAPES = {
    "gemma3-270m": ("gemma3", {"sliding_window": 16}),
    "llama-3.1-8b": ("llama-llama3", {}),
    "mistral-7b-v0.1": ("mistral", {"sliding_window": 32}),
    "mistral-7b-v0.3": ("mistral", {"sliding_window": None}),
}


def test_every_configuration_has_a_shape():
    assert [path.stem for path in CONFIGURATIONS] == list(SHAPES)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=list(SHAPES))
def test_configurations_of_larger_models_run_on_tiny_ones(path, tmp_path):
    family, changes = SHAPES[path.stem]
    tiny.build(family, max_position_embeddings=256, **changes).save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    config = load_config(path, model=str(tmp_path / "model"))
    full = config.sequences
    # Everything 128 times shorter: 12,288 tokens against a window of 4,096 become 96 against 32; of Gemma 32 times.
    scale = 32 if path.stem == "gemma3-270m" else 128
    shorter = {"bos@64": "bos@16", "bos=tokens:8": "bos=tokens:2", "trajectory=tokens:8@1/4": "trajectory=tokens:2@1"}
    assert set(shorter) < set(config.record.conditions)
    conditions = tuple(shorter.get(name, name) for name in config.record.conditions)
    config = replace(
        config,
        sequences=replace(full, n=6, length=full.length // scale),
        record=replace(config.record, conditions=conditions, offsets=(0, 1, 4, 8)),
        inference=Inference(n_resamples=99, n_permutations=99),
        run=replace(config.run, dumps=str(tmp_path)),
        analyses=AnalysesConfig(("../claims.py",)),
    )
    (name, entry), *_ = config.dumps.items()
    record_dumps(config, {config.dump_path(name): entry}, show=False)
    with ps.open_dump(config.dump_path(name)) as ds:
        assert window_binds(ds) == (changes.get("sliding_window") is not None)
    headline = run_analyses(config, {name: config.dump_path(name)}, tmp_path / "results", show=False).frame
    assert headline.estimate.sum() == 9
    ledger = pd.read_csv(tmp_path / "results" / name / "claims" / "claims.csv").set_index(["claim", "part"])
    # Known answers: a shift changes nothing, a repeated token has no residual term, position 0 runs by itself.
    assert set(ledger.loc[[("C1", "b"), ("C3", "b"), ("C4", "a")], "verdict"]) == {"supported"}


def test_configurations_of_larger_models_share_the_design_and_ask_everything():
    configs = [load_config(path) for path in CONFIGURATIONS if path.stem != "gemma3-270m"]
    assert len({config.sequences for config in configs}) == len({config.record for config in configs}) == 1
    assert configs[0].sequences.length // 2 > 4096
    default = load_config(trained.ROOT / "analyses" / "default.toml").analyses.files
    for config in configs:
        assert config.analyses.files == tuple(f"../{name}" for name in default)
