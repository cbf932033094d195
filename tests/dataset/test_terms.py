"""Decomposition of labelled dumps: numpy, dask and chunks agree; labels and attributes are right."""

import numpy as np
import pytest
import xarray as xr

import posstats as ps
from posstats.errors import DesignError, FewDocumentsWarning, InputError
from tests import brute
from tests.estimators.test_leakage import DOCUMENTS, OFFSETS, logits

TERMS = ("relative", "mask", "sink", "redistribution")


@pytest.fixture(scope="module")
def dump():
    return brute.dump_dataset({"baseline": logits(1), "bos=mean": logits(2, 0.6)}, DOCUMENTS, OFFSETS)


@pytest.mark.parametrize("chunks", [None, {"condition": 1, "layer": 1}, {"layer": 2}, {}])
def test_terms_equal_brute_force_however_they_are_chunked(dump, chunks):
    terms = ps.decompose(dump if chunks is None else dump.chunk(chunks)).compute()
    for condition in ("baseline", "bos=mean"):
        oracle = brute.BruteDump(dump, condition)
        for name in (*TERMS, "log_attention"):
            expected = oracle.terms[name]  # (sequence, layer, head, query, offset)
            got = terms[name].sel(condition=condition)
            got = got.broadcast_like(terms["log_attention"].sel(condition=condition))
            got = got.transpose("sequence", "layer", "head", "query", "offset").values
            seen = np.isfinite(expected)
            np.testing.assert_allclose(got[seen], expected[seen], atol=1e-9)


def test_lazy_data_stay_lazy(dump):
    terms = ps.decompose(dump.chunk(layer=1))
    assert all(terms[name].chunks is not None for name in TERMS)


def test_labels_units_and_dims(dump):
    terms = ps.decompose(dump)
    assert terms["relative"].dims == ("condition", "layer", "head", "offset")
    assert terms["mask"].dims == ("condition", "sequence", "layer", "head", "query")
    assert terms["redistribution"].dims == ("condition", "sequence", "layer", "head", "query", "offset")
    for name in (*TERMS, "log_attention"):
        assert terms[name].attrs["units"] == "nats"
        assert terms[name].attrs["long_name"]
    xr.testing.assert_identical(terms["document"].drop_attrs(), dump["document"].drop_attrs())
    assert terms.attrs == dump.attrs | {"order": "shapley"}


def test_reference_per_sequence_is_decomposition_of_one_sequence_alone(dump):
    terms = ps.decompose(dump, reference="sequence")
    assert terms["relative"].dims == ("condition", "sequence", "layer", "head", "offset")
    for n in (0, 3):
        alone = ps.decompose(dump.isel(sequence=[n]))
        for name in TERMS:
            expected = alone[name].isel(sequence=0) if "sequence" in alone[name].dims else alone[name]
            np.testing.assert_allclose(terms[name].isel(sequence=n).values, expected.values)


def test_refusals(dump):
    with pytest.raises(InputError, match="there is no 5"):
        ps.decompose(dump, offsets=[0, 5])
    with pytest.raises(InputError, match="'pooled', 'sequence'"):
        ps.decompose(dump, reference="document")
    with pytest.raises(InputError, match="reference per sequence"), pytest.warns(FewDocumentsWarning):
        ps.leakage(ps.decompose(dump, reference="sequence"))
    assert ps.decompose(dump, offsets=[1]).sizes["offset"] == 1


def test_offsets_too_large_for_the_sequences_are_no_matter_of_a_window():
    dump = ps.simulate(n=24, length=32, offsets=(0, 12)).dataset
    with pytest.raises(DesignError, match=r"\[12\] are too large for 16 analysed queries, .* sees 9 keys"):
        ps.leakage(dump)
