import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from posstats.dataset import store
from posstats.dataset.store import check_schema, open_dump, parts_folder, write_dump
from posstats.errors import DumpError
from posstats.vocabulary import COORDINATES, SCHEMA_VERSION, VARIABLES
from tests.refused import refused

SIZES = {
    "condition": 2, "sequence": 7, "layer": 3, "head": 2, "token": 36, "query": 18, "key": 18, "offset": 2,
    "lag": 18, "depth": 4, "hidden": 8,
    "probe": 2, "channel": 5,
}  # fmt: skip


INTEGERS = {"token_id": "int64", "visible_keys": "int32", "layer_window": "int32", "layer_rotary": "int8"}


def example(seed=0, dtype="float32", optional=True):
    """A dump of noise that has every variable, or every one it must have, NaN and -inf where the schema allows them."""
    rng = np.random.default_rng(seed)
    variables = {}
    for name, spec in VARIABLES.items():
        if spec.optional and not optional:
            continue
        shape = [SIZES[dim] for dim in spec.dims]
        integer = INTEGERS.get(name)
        values = rng.integers(0, 50, shape).astype(integer) if integer else rng.normal(size=shape).astype(dtype)
        variables[name] = (spec.dims, values)
    variables["logit"][1][..., :3, :] = np.nan
    variables["log_denominator_rest"][1][..., 0] = -np.inf
    variables["learned_sink"][1][:] = -np.inf
    coords = {
        name: (dim, np.arange(SIZES[dim]))
        for name, (dim, _, _) in COORDINATES.items()
        if name not in ("condition", "document") and (optional or dim not in ("probe", "key"))
    }
    coords["condition"] = ("condition", np.array(["baseline", "bos=mean"], dtype=object))
    coords["document"] = ("sequence", np.array([f"Dökument {n % 5}" for n in range(SIZES["sequence"])]))
    attrs = {"model": "noise", "seed": 3, "model_revision": "", "inverse_frequencies": np.array([1.0, 0.1])}
    return xr.Dataset(variables, coords, attrs)


@pytest.fixture
def path(tmp_path):
    return write_dump(example(), tmp_path / "example.h5")


def assert_same(found, expected):
    assert set(found.data_vars) == set(expected.data_vars)
    for name in (*expected.data_vars, *expected.coords):
        np.testing.assert_array_equal(found[name].values, expected[name].values, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optional", [True, False])
def test_what_is_written_is_read(tmp_path, dtype, optional):
    expected = example(dtype=dtype, optional=optional)
    path = write_dump(expected, tmp_path / "a.h5")
    with open_dump(path) as lazy:
        assert_same(lazy, expected)
        assert lazy.logit.dtype == dtype
    with xr.open_dataset(path) as plain:
        assert_same(plain, expected)
        assert plain.attrs["schema_version"] == SCHEMA_VERSION
        assert plain.attrs["model_revision"] == ""
        np.testing.assert_array_equal(plain.attrs["inverse_frequencies"], [1.0, 0.1])
        assert set(plain.coords) == set(expected.coords)


@pytest.mark.parametrize("cap", [500, 4000])
def test_chunks_of_any_size_hold_the_same_values(tmp_path, monkeypatch, cap):
    monkeypatch.setattr(store, "CHUNK_BYTES", cap)
    monkeypatch.setattr(store, "SMALL_BYTES", cap // 10)
    path = write_dump(example(), tmp_path / "a.h5")
    with open_dump(path) as lazy:
        assert_same(lazy, example())
    with h5py.File(path) as file:
        for name in ("logit", "steady_logit", "token_id", "residual_norm"):
            assert np.prod(file[name].chunks) * file[name].dtype.itemsize <= cap


def test_dims_units_and_names_are_the_vocabulary(path):
    with open_dump(path) as dump:
        for name, spec in VARIABLES.items():
            assert dump[name].dims == spec.dims
            assert dump[name].attrs == {"units": spec.units, "long_name": spec.long_name}
        for name, (dim, units, long_name) in COORDINATES.items():
            assert dump[name].dims == (dim,)
            assert dump[name].attrs == {"units": units, "long_name": long_name}


def test_storage_layout(path):
    with h5py.File(path) as file:
        for name, spec in VARIABLES.items():
            assert file[name].shuffle
            assert file[name].compression == "gzip"
            assert "_FillValue" not in file[name].attrs
            if "condition" in spec.dims:
                assert file[name].chunks[0] == 1


def test_one_lazy_chunk_is_one_condition_and_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SMALL_BYTES", 0)
    path = write_dump(example(), tmp_path / "a.h5")
    with open_dump(path) as dump:
        assert dump.logit.data.chunksize == (1, 7, 1, 2, 18, 2)
        assert dump.residual_sample.data.chunksize == (1, 7, 1, 2, 8)


def test_netcdf_tools_read_it(path):
    """netCDF-C is not a dependency; where its ncdump is installed, it has to agree that this is netCDF-4."""
    ncdump = shutil.which("ncdump")
    if ncdump is None:
        with h5py.File(path) as file:
            assert "_NCProperties" in file.attrs
        return
    text = subprocess.run([ncdump, "-h", path], check=True, capture_output=True, text=True).stdout
    assert "float logit(condition, sequence, layer, head, query, offset) ;" in text
    assert "string condition(condition) ;" in text
    values = subprocess.run([ncdump, "-v", "visible_keys", path], check=True, capture_output=True, text=True).stdout
    assert str(int(example().visible_keys[0, 0])) in values.split("visible_keys =")[1]


def test_same_numbers_give_same_bytes(tmp_path):
    paths = [write_dump(example(), tmp_path / f"{k}.h5", workers=k) for k in (1, 4)]
    lazy = open_dump(paths[0])
    paths.append(write_dump(lazy, tmp_path / "again.h5"))
    lazy.close()
    assert len({p.read_bytes() for p in paths}) == 1
    assert write_dump(example(seed=1), tmp_path / "other.h5").read_bytes() != paths[0].read_bytes()


def test_compression_is_worth_it_and_valid_for_all_kinds_of_data(tmp_path):
    data = example()
    data["logit"] = data.logit.dims, np.zeros(data.logit.shape, dtype="float32")
    data["steady_logit"] = data.steady_logit.dims, np.full(data.steady_logit.shape, 1 / 3, dtype="float32")
    path = write_dump(data, tmp_path / "a.h5")
    with h5py.File(path) as file:
        assert file["logit"].id.get_storage_size() < 0.2 * data.logit.nbytes
        assert file["trajectory"].id.get_storage_size() < data.trajectory.nbytes
    with open_dump(path) as dump:
        assert_same(dump, data)


def test_a_failed_write_leaves_the_old_dump(path, monkeypatch):
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_compressed_chunk", full)
    refused(DumpError, r"cannot write .*example\.h5: No space left on device", write_dump, example(seed=1), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["example.h5"]


def test_a_file_that_the_system_would_cut_off(path):
    """A limit set at the operating system. In a process of its own, since HDF5 can crash when it meets it."""
    before = path.read_bytes()
    code = (
        "import resource, sys; from posstats.errors import DumpError; from posstats.dataset.store import write_dump\n"
        "from tests.dataset.test_store import example\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, resource.RLIM_INFINITY))\n"
        "try: write_dump(example(seed=1), sys.argv[1])\n"
        "except DumpError as error: print(error)\n"
    )
    command, root = [sys.executable, "-c", code, str(path)], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"cannot write {path}: File too large\n"), done.stderr
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["example.h5"]


def test_the_errors_of_h5py_are_ours(path, monkeypatch):
    """What it raises where closing a file fails is no OSError."""
    before = path.read_bytes()
    message = (
        "Can't decrement id ref count (file write failed: time = Mon Nov 30 12:48:20 2026\n, filename = 'x', "
        "file descriptor = 3, errno = 28, error message = 'No space left on device', buf = 0x55b36ea5bfe8)"
    )

    def fail(*_):
        raise RuntimeError(message)

    monkeypatch.setattr(store, "_put_oldest", fail)
    refused(DumpError, r"cannot write .*example\.h5: No space left on device$", write_dump, example(seed=1), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["example.h5"]


def test_too_little_space(path, monkeypatch):
    before, usage = path.read_bytes(), shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(DumpError, match=r"example\.h5: up to 1\.\d MB are needed, and 1\.0 MB are free"):
        write_dump(example(seed=1), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["example.h5"]


def test_links_are_followed(path, tmp_path):
    link, real = tmp_path / "link.h5", tmp_path / "folder" / "real.h5"
    real.parent.mkdir()
    link.symlink_to("folder/real.h5")
    assert write_dump(example(), link) == link
    assert link.is_symlink()
    assert real.read_bytes() == path.read_bytes()
    assert parts_folder(link) == real.with_name("real.h5.parts")
    link.unlink()
    link.symlink_to("link.h5")
    refused(DumpError, r"cannot write .*link\.h5", write_dump, example(), link / "below.h5")


def test_unwritable_folder(tmp_path):
    refused(DumpError, "cannot write", write_dump, example(), tmp_path / "missing" / "a.h5")


@pytest.mark.parametrize("keep", [0, 100, 5000, -1])
def test_truncated_file(path, keep):
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    refused(DumpError, r"damaged or truncated|not an HDF5 file", open_dump, path)


def test_not_a_dump(tmp_path):
    refused(DumpError, "there is no dump", open_dump, tmp_path / "none.h5")
    text = tmp_path / "text.h5"
    text.write_text("not HDF5")
    refused(DumpError, "not an HDF5 file", open_dump, text)
    other = tmp_path / "other.h5"
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(other, engine="h5netcdf")
    refused(DumpError, "not a posstats dump", open_dump, other)
    (tmp_path / "begun.h5.parts").mkdir()
    refused(DumpError, "not finished", open_dump, tmp_path / "begun.h5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.assign_attrs(schema_version="99"), "version 99"),
        (
            lambda d: d.assign_attrs(schema_version="1"),
            r"version 1 .* anew with `posstats dump \S+ --overwrite`",
        ),
        (lambda d: d.drop_vars("logit"), "the variable logit is missing"),
        (lambda d: d.assign(logit=d.logit.rename(offset="lag2")), "logit has the dims"),
        (lambda d: d.drop_vars("document"), "the coordinate document"),
    ],
)
def test_schema_is_checked(change, message):
    changed = change(example().assign_attrs(schema_version=SCHEMA_VERSION))
    refused(DumpError, message, check_schema, changed, "data/mine.h5")


def test_lazy_arrays_travel_to_other_processes(path):
    with open_dump(path) as dump:
        travelled = pickle.loads(pickle.dumps(dump.logit.data))
        np.testing.assert_array_equal(travelled.compute(), example().logit.values)
        again = open_dump(path)
        assert again.logit.data.name == dump.logit.data.name
        again.close()


@pytest.mark.parametrize("at", [0, -1])
def test_another_file_of_the_same_name_is_refused_elsewhere(path, at):
    with open_dump(path) as dump:
        travelling = pickle.dumps(dump.logit.data)
    moved = path.with_name("moved.h5")
    path.rename(moved)
    shutil.copyfile(moved, path)  # of another time and inode, as on a machine that has a copy
    np.testing.assert_array_equal(pickle.loads(travelling).compute(), example().logit.values)
    if at == 0:
        write_dump(example(seed=1), path)
    else:
        path.write_bytes(path.read_bytes() + b"\0")
    refused(DumpError, "is not the file that was opened", pickle.loads, travelling)


def test_a_damaged_chunk(tmp_path):
    path = write_dump(example(), tmp_path / "d.h5")
    with h5py.File(path) as file:
        chunk = file["trajectory"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + 2 : chunk.byte_offset + chunk.size] = bytes(chunk.size - 2)
    path.write_bytes(content)
    with open_dump(path) as dump, pytest.raises(DumpError, match="values of trajectory cannot be read"):
        dump.trajectory.load()
