"""Wrong arguments: every public function of the statistics refuses them with an error that names what is allowed."""

import inspect
import json
import re
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

import posstats as ps
from posstats.dataset.door import RECORDED
from posstats.dataset.parameters import TEXTS
from posstats.errors import PosstatsError
from posstats.estimators.earlier_metrics import trap_table
from posstats.figures import claims as claims_figures
from posstats.figures import leakage as leakage_figures
from posstats.figures import position0 as position0_figures
from posstats.figures import sinks as sinks_figures
from posstats.results import table as tables
from posstats.stats.inference.options import Inference
from posstats.stats.synthetic.design import Noise
from tests.sealed import sealed
from tests.sinks import anchored

CONDITIONS = ("baseline", "bos=mean", "bos=token:7")
QUICK = {"n_permutations": 39, "n_resamples": 99}


def world(seed=0, **options):
    """A small dump with what every estimator of the statistics reads."""
    size = {"n": 24, "length": 52, "layers": 3, "heads": 2, "offsets": (0, 1, 2)} | options
    ds = ps.simulate(**size, conditions=CONDITIONS, seed=seed).dataset
    return sealed(
        ds.assign(
            trajectory_departure=0 * ds.residual_norm.isel(token=0, drop=True),
            layer_window=("layer", np.full(size["layers"], 8, np.int32)),  # reach alone reads it
        )
    )


DS = world()
OTHER = world(seed=1)

#: Function -> how it is called on a dump with sound arguments.
CALLS = {
    "decompose": lambda data, **kw: ps.decompose(data, **kw),
    "leakage": lambda data, **kw: ps.leakage(data, **QUICK | kw),
    "shares": lambda data, **kw: ps.shares(data, **QUICK | kw),
    "size": lambda data, **kw: ps.size(data, **QUICK | kw),
    "magnitude": lambda data, **kw: ps.magnitude(data, **QUICK | kw),
    "removal": lambda data, **kw: ps.removal(data, **{"condition": "bos=mean"} | QUICK | kw),
    "position_tests": lambda data, **kw: ps.position_tests(data, **kw),
    "model_level": lambda data, **kw: ps.model_level(data, **{"n_permutations": 39} | kw),
    "sinks": lambda data, **kw: ps.sinks(data, **kw),
    "reach": lambda data, **kw: ps.reach(data, **QUICK | kw),
    "trajectory": lambda data, **kw: ps.trajectory(data, **{"n_permutations": 9} | kw),
    "readers": lambda data, **kw: ps.readers(data, **{"epsilon": 0.15} | QUICK | kw),
    "decode": lambda data, **kw: ps.decode(data, **kw),
    "discriminate": lambda data, **kw: ps.discriminate(data, **{"first": 5, "second": 20} | kw),
    "earlier_metrics": lambda data, **kw: ps.earlier_metrics(data, **QUICK | kw),
    "contrast": lambda data, **kw: ps.contrast(data, **{"b": OTHER, "n_permutations": 39} | kw),
    "claims": lambda data, **kw: ps.claims(data, **QUICK | kw),
}
ON_TERMS = ("leakage", "shares", "size", "magnitude", "removal", "position_tests", "model_level", "reach")
ON_DUMPS = tuple(name for name in CALLS if name not in ON_TERMS)


def parameters(name):
    return inspect.signature(getattr(ps, name)).parameters


#: Parameter -> wrong values and the words of the error; for every function that has the parameter.
SHARED = {
    "level": [("0.9", "between 0 and 1"), (1.0, "between 0 and 1"), (np.nan, "between 0 and 1"), (True, "between 0")],
    "method": [("guess", "'t'"), (3, "'t'")],
    "n_resamples": [(98, "from 99 to"), (1.5, "from 99 to"), ("9", "from 99 to")],
    "n_permutations": [(0, "from 1 to"), (True, "from 1 to")],
    "seed": [(1.5, "from 0 to"), (-1, "from 0 to"), (2**64, "from 0 to"), (None, "from 0 to")],
    "adjust": [("none", "'holm'"), (None, "'holm'")],
    "offsets": [
        ([0, 0, 1], "more than once; each of 0, 1, 2"), ([], "at least one"), ([7], "chosen from 0, 1, 2"),
        ("01", "whole numbers"), ([0.5], "whole numbers"), (True, "whole numbers"), ({0: 1}, "whole numbers"),
        (np.ndarray, "whole numbers"), ([10**30], "whole numbers"),
    ],
    "by": [(3, "text"), (["layer", "layer"], "more than once"), ("query", "chosen from layer, head"), (None, "text"),
        (np.ndarray, "text"), (np.array(3), "text")],
    "layers": [([0, 0], "more than once"), ([9], "chosen from 0, 1, 2"), ([], "at least one"), ("0", "whole numbers")],
    "keys": [("any", "'all'"), (None, "'first'"), (["all"], "'first'")],
    "threshold": [("0.3", "between 0 and 1"), (1, "between 0 and 1"), (np.nan, "between 0 and 1")],
    "epsilon": [("0.3", "between 0 and 1"), (1, "between 0 and 1"), (np.inf, "between 0 and 1")],
    "order": [("mask", "'mask_first'"), (None, "'shapley'"), (1, "'mask_last'")],
    "octaves": [("no", "True or False"), (1, "True or False")],
    "n_folds": [(2, "n_folds must"), (5.0, "n_folds must"), (10**30, "from 3 to"), (2**30, "fold")],
    "reference": [("mean", "one of"), (None, "one of")],
    "features": [("values", "'stream'"), ("stream", "residual_sample")],
    "condition": [("bos=zero", "chosen from bos=mean"), (["bos=mean", "bos=mean"], "more than once"), (3, "text")],
    "baseline": [("bos=zero", "'baseline'"), (["baseline"], "'baseline'")],
    "measure": [("size", "'share', 'slope'"), (None, "'share', 'slope'")],
    "term": [("relative", "'mask'"), (0, "'mask'")],
    "sink_length": [(0, "at least 1"), ("64", "at least 1"), (10**30, "from 1 to")],
    "first": [(1, "first < second among 3 .. 25"), ("5", "at least 0")],
    "second": [(26, "first < second among 3 .. 25"), (20.0, "at least 0")],
    "quantities": [(["slopes"], "chosen from leakage"), ([], "at least one"), (["share", "share"], "more than once")],
    "labels": [(("x", "x"), "two different"), ("ab", "two different"), (3, "text")],
    "slope_queries": [((2,), "two positions"), ((16, 2), "the lower first"), (("2", "16"), "whole numbers")],
    "pair_runs": [("yes", "True or False")],
    "allow_mixed": [(0, "True or False")],
    "which": [(["C10"], "chosen from C1"), ([], "at least one"), (["C1", "C1"], "more than once"), (1, "text")],
    "b": [(None, "a dump"), ([], "at least one"), ([None], "xarray.Dataset"), ("dump.h5", "a dump")],
}  # fmt: skip
OPTIONS = [
    pytest.param(name, parameter, value, words, id=f"{name}-{parameter}-{k}")
    for name in CALLS
    for parameter, cases in SHARED.items()
    if parameter in parameters(name)
    for k, (value, words) in enumerate(cases)
]


def refused(call, words):
    with pytest.raises(PosstatsError, match=re.escape(words)):
        call()


@pytest.mark.parametrize(("name", "parameter", "value", "words"), OPTIONS)
def test_wrong_options(name, parameter, value, words):
    refused(lambda: CALLS[name](DS, **{parameter: value}), words)


def shortened():
    """A part of the queries, as if it were a recording of its own."""
    part = DS.isel(query=slice(0, 20), lag=slice(0, 20)).copy(deep=True)
    del part.attrs["length"]
    return part


def packed(ds=DS):
    """Logits as they lie in a file that was written with a scale and a fill value, read by another library."""
    raw = (ds.logit / 0.01).round().fillna(-9999)
    return ds.assign(logit=raw, sink_logit=ds.sink_logit.fillna(-9999.0))


#: What is passed in place of a dataset -> words of the error.
DATA = {
    "None": (None, "xarray.Dataset"),
    "path": (Path("dump.h5"), "xarray.Dataset"),
    "text": ("dump.h5", "xarray.Dataset"),
    "array": (np.zeros((2, 3)), "xarray.Dataset"),
    "frame": (pd.DataFrame({"x": [1.0]}), "xarray.Dataset"),
    "data array": (DS.logit, "xarray.Dataset"),
    "empty": (xr.Dataset(), "lacks"),
    "no document": (DS.drop_vars("document"), "labels document"),
    "missing documents": (
        DS.assign_coords(document=("sequence", np.array(["a"] * 23 + [np.nan], object))), "document must be all text",
    ),
    "no condition": (DS.isel(condition=0, drop=True), "keep the dimension"),
    "no layer": (DS.isel(layer=0, drop=True), "keep the dimension"),
    "condition twice": (DS.sel(condition=["baseline", "baseline"]), "more than once"),
    "joined with itself": (xr.concat([DS, DS], "condition", data_vars="minimal", join="exact"), "more than once"),
    "head twice": (DS.isel(head=[0, 0]), "more than once"),
    "offset twice": (DS.sel(offset=[0, 0, 1]), "more than once"),
    "part of the queries": (DS.isel(query=slice(0, 20), lag=slice(0, 20)), "not the half of 52 tokens"),
    "part, unsaid": (shortened(), "do not add up"),
    "late queries": (DS.isel(query=slice(6, None)), "cannot be shortened"),
    "a single query": (DS.isel(query=5), "labels query"),
    "packed": (packed(), "do not add up"),
    "whole numbers": (DS.assign(logit=DS.logit.fillna(0).astype("int16")), "floats"),
    "text logits": (DS.assign(logit=DS.logit.astype(str)), "floats"),
    "dimension of its own": (DS.assign(logit=DS.logit.expand_dims(run=2)), "must have the dimensions"),
    "labels of text": (DS.assign_coords(layer=["a", "b", "c"]), "layer must be whole numbers"),
    "unknown format": (DS.assign_attrs(dtype="float8"), "float32"),
    "few documents": (DS.isel(sequence=[0, 1]), "at least 5"),
    "a single sequence": (DS.isel(sequence=0), "at least 5"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Numerical issues")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("what", DATA)
def test_what_is_no_whole_recording(name, what):
    data, words = DATA[what]
    if name == "decompose" and "at least 5" in words:
        assert ps.decompose(data).sizes["sequence"] in (1, 2)  # nothing is resampled
    elif name in ("claims", "contrast") and words == "xarray.Dataset":  # both take several dumps
        refused(lambda: CALLS[name](data), "dump")
    else:
        refused(lambda: CALLS[name](data), words)


@pytest.mark.parametrize("name", ON_DUMPS)
def test_terms_keep_what_was_recorded_per_head_and_no_more(name):
    if name in ("decompose", "readers", "decode", "discriminate"):
        found, expected = (CALLS[name](data) for data in (ps.decompose(DS), DS))
        same = xr.testing.assert_identical if name == "decompose" else pd.testing.assert_frame_equal
        same(*(one if name == "decompose" else one.table for one in (found, expected)))
    else:
        refused(lambda: CALLS[name](ps.decompose(DS)), "open_dump")


def test_a_changed_number_anywhere_is_noticed_where_it_is_read():
    broken = DS.copy(deep=True)
    broken["logit"].values[2, 20, 2, 1, 20, 1] += 1e-3
    for name in (*ON_TERMS, "decompose"):
        options = {"condition": "bos=token:7"} if name == "removal" else {}
        refused(lambda name=name, options=options: CALLS[name](broken, **options), "add up")
    whole = ps.leakage(sealed(broken), **QUICK)
    assert not whole.table.equals(ps.leakage(DS, **QUICK).table)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"visible_keys": DS.visible_keys + 1}, "visible_keys must be whole numbers from 1"),
        ({"visible_keys": DS.visible_keys - 1}, "visible_keys must be whole numbers from 1"),
        ({"visible_keys": DS.visible_keys * np.nan}, "visible_keys must be whole numbers from 1"),
        ({"visible_keys": DS.visible_keys - 0.5}, "visible_keys must be whole numbers from 1"),
        ({"learned_sink": DS.learned_sink * np.nan}, "learned_sink must be a number"),
        ({"learned_sink": -DS.learned_sink}, "learned_sink must be a number"),
        ({"sink_logit": DS.sink_logit.where(DS["query"] != 20)}, "sink_logit must be a number where position 0"),
        ({"sink_logit": DS.sink_logit.where(DS["layer"] == 0)}, "sink_logit must be a number where position 0"),
    ],
)
@pytest.mark.parametrize("function", [ps.decompose, ps.leakage, ps.shares, ps.position_tests])
def test_masks_that_no_model_has(function, changes, words):
    refused(
        lambda: (
            function(sealed(DS.assign(changes))).load()
            if function is ps.decompose
            else function(sealed(DS.assign(changes)))
        ),
        words,
    )


@pytest.mark.parametrize("function", [ps.decompose, ps.leakage, ps.shares, ps.magnitude, ps.position_tests, ps.decode])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: DS.isel(layer=[]), "holds no layer"),
        (lambda: DS.isel(condition=[]), "holds no condition"),
        (lambda: DS.isel(head=[]), "holds no head"),
        (lambda: DS.isel(offset=[]), "holds no offset"),
        (lambda: DS.assign_coords(offset=[*DS.offset.values[:-1], 64]), "offset must lie below"),
        (lambda: DS.assign_coords(document=("sequence", [None] * DS.sizes["sequence"])), "all text or all whole"),
        (lambda: DS.assign_coords(document=("sequence", [np.nan] * DS.sizes["sequence"])), "all text or all whole"),
    ],
)
def test_labels_that_no_dump_has(function, change, words):
    refused(lambda: function(change()), words)


#: Variable -> a function that reads it, and nothing of which hangs on the logits.
READERS = dict.fromkeys((*RECORDED, "learned_sink", "token_id"), ps.leakage) | {
    "sink_output_fraction": ps.sinks,
    "trajectory": ps.trajectory,
    "trajectory_departure": ps.trajectory,
    "residual_norm": ps.earlier_metrics,
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_a_constant_added_to_any_variable_is_refused_by_name(name, lazy):
    ds = sealed(DS.assign(learned_sink=xr.full_like(DS.learned_sink, 0.5)))
    changed = ds.assign({name: ds[name] + 1})
    refused(lambda: READERS[name](changed.chunk(layer=1, head=1) if lazy else changed), f"{name} do not add up")
    if name not in ("token_id", "trajectory_departure"):  # not needed, or what a dump may lack
        refused(lambda: READERS[name](ds.drop_vars(f"{name}_total")), f"lacks {name}_total")


def test_totals_are_sums_of_finite_values():
    for name in RECORDED:
        dim = DS[name].dims[4]
        found, expected = DS[f"{name}_total"], DS[name].where(np.isfinite(DS[name])).sum(dim)
        assert found.dtype == np.float64
        assert found.dims == expected.dims
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["logit", "trajectory", "token_id", "residual_norm"])
@pytest.mark.parametrize("packing", [{"scale_factor": 0.01}, {"add_offset": 1.0}, {"_FillValue": -9999}])
def test_packed_variables_are_refused_whatever_is_read(name, packing, tmp_path):
    changed = DS.copy()
    changed[name].encoding = packing
    refused(lambda: ps.leakage(changed), f"was written anew with {next(iter(packing))} of {name}")
    path = ps.write_dump(DS, tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file[name].attrs.update(packing)
    refused(lambda: ps.open_dump(path), f"was written anew with {next(iter(packing))} of {name}")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b"])
def test_names_of_files(results, tmp_path, name):
    refused(lambda: tables.write_table(results["leakage"], tmp_path, name), "name must be the name of a file")
    refused(lambda: leakage_figures.save_figure(Figure().add_subplot(), tmp_path, name), "name must be the name")


def test_a_length_is_a_number():
    refused(lambda: ps.leakage(DS.assign_attrs(length="64")), "attribute length must be the number of tokens")


def test_layers_read_depths_that_must_be_there():
    refused(lambda: ps.earlier_metrics(DS.isel(depth=[0]), **QUICK), "depth of a layer must be chosen from 0")
    probed = DS.assign(
        residual_sample=DS.residual_norm.isel(token=[6, 8, 12])
        .rename(token="probe")
        .expand_dims(hidden=DS.sizes["hidden"])
    )
    refused(lambda: ps.decode(probed.isel(depth=[0]), features="stream"), "depth of a layer must be chosen from 0")


def test_single_precision_passes():
    single = DS.assign({name: DS[name].astype("float32") for name in RECORDED})
    refused(lambda: ps.leakage(single), "logit do not add up")
    single = sealed(single)
    found = ps.leakage(single, octaves=False, **QUICK).table.estimate
    np.testing.assert_allclose(found, ps.leakage(DS, octaves=False, **QUICK).table.estimate, rtol=1e-4)


SIMULATE = [
    ({"n": 0}, "from 1"), ({"n": 3.0}, "from 1"), ({"length": 3}, "from 4"), ({"length": 26}, "multiple of 4"),
    ({"layers": True}, "from 1"),
    ({"heads": "4"}, "from 1"), ({"offsets": [0, 0]}, "more than once"), ({"offsets": [70]}, "chosen from"),
    ({"offsets": None}, "whole numbers"), ({"conditions": []}, "at least one"), ({"conditions": 3}, "text"),
    ({"conditions": ["a", "a"]}, "more than once"), ({"conditions": {"a": 3}}, "Effects"),
    ({"strength": "1"}, "finite"), ({"removal": 2}, "at most 1"), ({"removal": np.nan}, "at most 1"),
    ({"noise": 1.0}, "Noise"), ({"window": "8"}, "whole number"), ({"window": 0}, "from 1 to 65536"),
    ({"window": [4, 4]}, "at least 1"), ({"window": 10**30}, "from 1 to"), ({"window": np.array(8.0)}, "sequence of"),
    ({"window": np.ndarray}, "sequence of"), ({"window": [True]}, "from 1 to"), ({"offsets": np.ndarray}, "whole"),
    ({"seed": -1}, "from 0"), ({"sequences_per_document": 0}, "at least 1"), ({"strength": np.inf}, "finite"),
    ({"sequences_per_document": [1, 2]}, "one for each"), ({"sequences_per_document": None}, "whole numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), SIMULATE)
def test_simulations(options, words):
    refused(lambda: ps.simulate(**options), words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 7}, "at least 8"), ({"length": 31}, "from 32"), ({"length": 34}, "multiple of 4"),
        ({"offsets": [0, 0]}, "more than once"),
        ({"sink": "4"}, "finite"), ({"noise": -1}, "at least 0"), ({"seed": 0.5}, "from 0"),
    ],
)  # fmt: skip
def test_traps(options, words):
    refused(lambda: trap_table(**options), words)


@pytest.mark.parametrize(
    "options", [{"logit": "1"}, {"tails": 2}, {"autocorrelation": None}, {"head": -0.1}, {"skewed": 1}]
)
def test_noise(options):
    refused(lambda: Noise(**options), next(iter(options)))


@pytest.fixture(scope="module")
def results():
    """A result of every kind."""
    found = {name: CALLS[name](DS) for name in CALLS if name not in ("decompose", "claims")}
    found["claims"] = ps.claims(DS, which=["C1"], **QUICK)
    one = DS.sel(condition="baseline")
    found["by_layer"] = ps.shares(one, by="layer", octaves=False, **QUICK)
    found["by_head"] = ps.shares(one, by=["layer", "head"], octaves=False, **QUICK)
    found["identification"] = found["trajectory"].identification
    found["sinks_at_keys"] = ps.sinks(anchored("token")[0], keys="all", n_permutations=9)
    return found


#: Figure -> the result that it draws.
FIGURES = {
    leakage_figures.shares_by_layer: "by_layer",
    leakage_figures.head_map: "by_head",
    leakage_figures.magnitude_by_octave: "magnitude",
    leakage_figures.removal_by_octave: "removal",
    position0_figures.attention_map: "sinks",
    position0_figures.distance_by_depth: "trajectory",
    position0_figures.identification_by_layer: "identification",
    position0_figures.displacement_by_depth: "readers",
    position0_figures.anchoring_by_position: "sinks",
    sinks_figures.sink_map: "sinks_at_keys",
    sinks_figures.sink_tokens: "sinks_at_keys",
    sinks_figures.reach_by_layer: "reach",
    claims_figures.verdict_grid: "claims",
    claims_figures.contrast_by_quantity: "contrast",
}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_figures_take_their_own_results(figure, results):
    for result in results.values():
        if type(result) is not type(results[FIGURES[figure]]):
            refused(lambda result=result: figure(result), "This takes the")
    for other in (None, DS, results["shares"].table, [], "shares", 3):
        refused(lambda other=other: figure(other), "This takes the")


FIGURE_OPTIONS = [
    ("shares_by_layer", {"terms": ["mask", "mask"]}, "more than once"), ("shares_by_layer", {"terms": []}, "at least"),
    ("shares_by_layer", {"terms": ["values"]}, "chosen from mask"), ("shares_by_layer", {"ax": 3}, "axes of"),
    ("head_map", {"term": "values"}, "'mask'"), ("head_map", {"term": None}, "'mask'"),
    ("magnitude_by_octave", {"term": "relative"}, "'mask'"), ("magnitude_by_octave", {"ax": Figure()}, "axes of"),
    ("magnitude_by_octave", {"conditions": ["bos=zero"]}, "chosen from baseline"),
    ("removal_by_octave", {"reference": "0.4"}, "finite number"),
    ("removal_by_octave", {"conditions": ["bos=mean", "bos=mean"]}, "more than once"),
    ("sink_map", {"condition": "bos=zero"}, "'baseline'"), ("sink_tokens", {"n": 0}, "from 1 to 100"),
    ("sink_tokens", {"condition": 3}, "'baseline'"), ("reach_by_layer", {"condition": "bos=zero"}, "'baseline'"),
    ("attention_map", {"condition": "bos=zero"}, "'baseline'"), ("attention_map", {"condition": 1}, "'baseline'"),
    ("distance_by_depth", {"condition": None}, "'baseline'"),
    ("contrast_by_quantity", {"quantity": 3}, "text"), ("contrast_by_quantity", {"term": "values"}, "not one per side"),
    ("contrast_by_quantity", {"quantity": "magnitude"}, "choose queries="), ("verdict_grid", {"ax": "ax"}, "axes of"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "words"), FIGURE_OPTIONS)
def test_options_of_figures(name, options, words, results):
    figure, result = next((figure, result) for figure, result in FIGURES.items() if figure.__name__ == name)
    refused(lambda: figure(results[result], **options), words)


def test_figures_refuse_results_by_other_dimensions(results):
    refused(lambda: leakage_figures.head_map(results["by_layer"]), "layer, head")
    refused(lambda: leakage_figures.shares_by_layer(results["by_head"]), "layer, term")
    refused(lambda: leakage_figures.shares_by_layer(results["shares"]), "layer, term")


def test_tables_take_tables_and_results(results, tmp_path):
    functions = (tables.to_csv, tables.to_json, tables.to_markdown, tables.to_latex, tables.to_text)
    for function in functions:
        assert function(results["leakage"]) == function(tables.table_of(results["leakage"]))
        for other in (None, DS, pd.DataFrame(), "table"):
            refused(lambda function=function, other=other: function(other), "a table or a result")
    refused(lambda: tables.table_of(DS), "This takes the Result")
    refused(lambda: tables.write_table(None, tmp_path, "x"), "a table or a result")
    refused(lambda: tables.write_table(results["leakage"], 3, "x"), "folder must be a path")
    refused(lambda: tables.write_table(results["leakage"], tmp_path, None), "name must be text")
    refused(lambda: tables.to_latex(results["leakage"], 3), "label must be text")
    refused(lambda: leakage_figures.save_figure("ax", tmp_path, "x"), "axes of matplotlib")
    file = tmp_path / "file"
    file.touch()
    refused(lambda: tables.write_table(results["leakage"], file / "in", "x"), "cannot write to")
    refused(lambda: leakage_figures.save_figure(Figure().add_subplot(), file, "x"), "cannot write to")
    file.unlink()
    refused(lambda: results["leakage"].summary("all"), "rows must be a whole number")
    assert list(tmp_path.iterdir()) == []


TABLE = {"frame": pd.DataFrame({"layer": [0], "estimate": [0.5]}), "title": "Example"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frame": None}, "frame must be a pandas.DataFrame"), ({"frame": DS}, "frame must be"),
        ({"frame": pd.DataFrame([[1, 2]])}, "different texts"),
        ({"frame": pd.DataFrame([[1, 2]], columns=["a", "a"])}, "different texts"),
        ({"frame": pd.DataFrame({"a": [[1]]})}, "The column a must hold"),
        ({"frame": pd.DataFrame({"a": [1 + 2j]})}, "The column a must hold"),
        ({"frame": pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])})}, "The column a must hold"),
        ({"title": 3}, "title must be text"), ({"units": "nats"}, "units must be a mapping"),
        ({"units": {"p": "nats"}}, "units must be of columns"), ({"notes": [3]}, "notes must be text"),
        ({"notes": "text"}, "sequence of texts"), ({"level": 2}, "level must lie"), ({"level": "a"}, "level must lie"),
        ({"settings": None}, "settings must be a mapping"), ({"rests_on": []}, "rests_on must be a mapping"),
    ],
)  # fmt: skip
def test_tables_check_what_they_hold(options, words):
    refused(lambda: tables.Table(**TABLE | options), words)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("to_latex", {"columns": ["estimates"]}, "columns must be chosen"), ("to_latex", {"columns": []}, "at least"),
        ("to_latex", {"columns": ["term", "term"]}, "more than once"), ("to_latex", {"caption": 3}, "caption must be"),
        ("to_latex", {"where": "mask"}, "where must map"), ("to_latex", {"where": {"term": "values"}}, "has no term"),
        ("to_latex", {"where": {3: "values"}}, "where must be text"), ("to_latex", {"label": 3}, "label must be text"),
        ("to_markdown", {"columns": 3}, "sequence of text"), ("to_markdown", {"where": {"terms": 3}}, "no key column"),
        ("plot", {"ax": 3}, "axes of matplotlib"), ("plot", {"label": 3}, "label must be text"),
        ("sel", {"layer": True}, "has no layer True"), ("sel", {"layer": [[0]]}, "has no layer"),
        ("sel", {"layer": np.array(0)}, "sequence of labels"), ("sel", {"layer": np.ndarray}, "has no layer"),
        ("sel", {"layer": {0: 1}}, "sequence of labels"), ("sel", {"layer": None}, "has no layer None"),
        ("sel", {"layer": DS}, "sequence of labels"), ("sel", {"term": b"mask"}, "sequence of labels"),
        ("summary", {"rows": -1}, "rows must be"), ("summary", {"rows": 10**30}, "rows must be"),
    ],
)  # fmt: skip
def test_methods_of_results(results, method, options, words):
    refused(lambda: getattr(results["by_layer"], method)(**options), words)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("claims", "model_level")])
@pytest.mark.parametrize("dim", ["condition", "layer", "head"])
def test_a_selected_label_equals_a_selected_dimension(name, dim):
    """To the last bit; what the dataset lacks then is lacking in both."""
    label = DS[dim].values.tolist()[0]
    other = {"b": OTHER.sel({dim: [label]})} if name == "contrast" else {}
    try:
        expected = CALLS[name](DS.sel({dim: [label]}), **other)
    except PosstatsError as error:
        refused(lambda: CALLS[name](DS.sel({dim: label}), **other), str(error))
        return
    found = CALLS[name](DS.sel({dim: label}), **other)
    if name == "decompose":
        xr.testing.assert_identical(found, expected)
        return
    pd.testing.assert_frame_equal(found.table, expected.table, check_exact=True)
    if name in ON_TERMS:
        terms = ps.decompose(DS)
        pairs = (CALLS[name](terms.sel({dim: chosen})).table for chosen in (label, [label]))
        pd.testing.assert_frame_equal(*pairs, check_exact=True)


def test_model_level_of_one_condition_selected():
    found, expected = (ps.model_level(DS.sel(condition=chosen)).table for chosen in ("baseline", ["baseline"]))
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_other_spellings_of_the_same():
    expected = ps.leakage(DS, by=["head"], offsets=[1], octaves=False, **QUICK).table
    for options in (
        {"by": "head", "offsets": 1},
        {"by": ("head",), "offsets": np.array([1])},
        {"by": np.array(["head"]), "offsets": range(1, 2)},
        {"by": ["head"], "offsets": pd.Index([1]), "level": np.float64(0.95), "seed": np.int32(0)},
    ):
        found = ps.leakage(DS, octaves=np.False_, **QUICK | options).table
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
    pd.testing.assert_frame_equal(
        ps.leakage(DS.sel(offset=1), by="head", octaves=False, **QUICK).table, expected, check_exact=True
    )


class TestInference:
    def test_is_plain_and_stays_so(self):
        options = Inference(np.float32(0.5), "bootstrap", np.int64(99), np.uint8(9), "holm", np.int16(3))
        assert json.dumps(options.options()) == json.dumps(
            {"level": 0.5, "method": "bootstrap", "n_resamples": 99, "n_permutations": 9, "adjust": "holm", "seed": 3}
        )
        assert Inference().settings("fieller")["interval"] == "fieller"
        assert Inference().settings("fieller", pooled=True)["interval"] == "bootstrap_t"
        assert "n_resamples" not in Inference(method="t").settings("moments", pooled=True)
        with pytest.raises(AttributeError):
            options.level = 0.9

    def test_every_parameter_is_explained_where_it_stands(self):
        for name in CALLS:
            text = inspect.getdoc(getattr(ps, name))
            assert "%(" not in text
            for parameter in parameters(name):
                assert re.search(rf"^[\w, ]*\b{parameter}\b[\w, ]* : ", text, re.MULTILINE), (name, parameter)
                own = parameter in ("data", "method") or (name, parameter) == ("leakage", "by")
                if parameter in TEXTS and not own:
                    assert TEXTS[parameter] in text


@pytest.mark.parametrize("optimised", ["-O", "-OO"])
def test_texts_are_no_code(optimised):
    """Without docstrings there is nothing to fill, and nothing else changes."""
    code = (
        "import posstats as ps; print(ps.leakage.__name__, bool(ps.leakage.__doc__), ps.sinks.__kwdefaults__['seed'])"
    )
    answer = subprocess.run([sys.executable, optimised, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["leakage", str(optimised == "-O"), "0"]


#: What may be passed for anything, from fixed pools: hypothesis draws numbers and texts from the constants of the
#: modules that happen to be loaded, and then no two runs would try the same.
_PLAIN = st.sampled_from(
    [
        None, True, False, *range(-3, 41), 2**40, 2**40 + 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**66, 10**30, -(10**30),
        0.0, -0.0, 0.5, 0.95, 1.0, -1.5, 2.5, 1e308, 5e-324, np.inf, -np.inf, np.nan, "", "a", "é", "\0", "-1", "1e3",
        *CONDITIONS, "layer", "head", "offset", "bh", "t", "jackknife", "mask", "residual", "C1", "share", "all",
        b"", b"ab", 1j, complex(np.nan, 0), Decimal("0.5"), Decimal("NaN"), date(2000, 1, 1),
    ]
)  # fmt: skip
_MADE = [
    object(), len, np.arange(3), np.array(1.5), np.array(8), np.array(["a"]), np.zeros((2, 2)), np.float32(0.5),
    np.int8(3), pd.Series([0, 1]), pd.DataFrame({"a": [0]}), DS.offset, DS.logit, xr.Dataset(), Path("x"), int, np.nan,
    np.ndarray, pd.Series, xr.DataArray, list, str, pd.NA, pd.NaT, np.datetime64("NaT"), range(3), iter(()), Ellipsis,
]  # fmt: skip
_FEW = st.sampled_from([0, 1, 2, 5])
ANYTHING = st.one_of(
    _PLAIN, st.lists(_PLAIN, max_size=3), st.tuples(_PLAIN, _PLAIN), st.sampled_from(_MADE),
    st.dictionaries(st.sampled_from(["", "a", "bc"]), _PLAIN, max_size=2), st.sets(_FEW, max_size=3),
    st.lists(st.lists(_FEW, max_size=2), max_size=2),
)  # fmt: skip


TINY = world(n=6, length=40, layers=1, heads=1)
UNIFORM = np.broadcast_to(np.tril(np.ones((16, 16))) / np.arange(1, 17)[:, None], (6, 1, 1, 16, 16))
FUZZED = CALLS | {
    "simulate": lambda _, **options: ps.simulate(**{"n": 5, "length": 16} | options),
    "from_attention": lambda weights, **options: ps.from_attention(weights, **{"offsets": [0, 1]} | options),
    **{figure.__name__: figure for figure in FIGURES},
}


_DRAWN = {figure.__name__: figure for figure in FIGURES}
#: Every parameter of every function, in one order.
PAIRS = [
    (name, parameter)
    for name in sorted(FUZZED)
    for parameter in inspect.signature(_DRAWN.get(name) or getattr(ps, name)).parameters
]


@pytest.mark.filterwarnings("ignore::posstats.errors.FewDocumentsWarning")
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # datasets have long reprs
@settings(max_examples=600, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PAIRS), ANYTHING)
def test_no_other_error_leaves_the_package(results, pair, value):
    """Any value for any parameter of any function: a result, or a PosstatsError with a sentence."""
    name, parameter = pair
    sound = results[FIGURES[_DRAWN[name]]] if name in _DRAWN else UNIFORM if name == "from_attention" else TINY
    first = next(pair for pair in PAIRS if pair[0] == name)[1]
    message = "nothing was wrong with it"
    try:
        if parameter == first and name != "simulate":
            FUZZED[name](value)
        else:
            FUZZED[name](sound, **{parameter: value})
    except PosstatsError as error:
        message = str(error)
    assert len(message) > 20
