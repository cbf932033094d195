"""Larger than memory, larger than one machine: the same bits in little memory, on a cluster, and without a worker."""

import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest

import posstats as ps
from posstats.dataset import blocks, store
from posstats.dataset.store import open_dump, write_dump
from posstats.errors import FewDocumentsWarning, InputError
from posstats.execution import cluster
from posstats.ledger import controls as known_answers
from posstats.stats.synthetic.design import Noise
from tests import limited, position0, tiny

distributed = pytest.importorskip("distributed")

ROOT = Path(__file__).parents[2]
OPTIONS = {"n_permutations": 99}
ESTIMATORS = {
    "leakage": lambda ds: ps.leakage(ds, by=["head"], **OPTIONS),
    "shares": lambda ds: ps.shares(ds, by=["layer", "head"], octaves=False, **OPTIONS),
    "shares, bootstrap": lambda ds: ps.shares(ds, octaves=False, method="bootstrap", n_resamples=99, **OPTIONS),
    "magnitude": lambda ds: ps.magnitude(ds, by=["layer"], **OPTIONS),
    "magnitude, bootstrap": lambda ds: ps.magnitude(ds, method="bootstrap", n_resamples=99, **OPTIONS),
    "removal": lambda ds: ps.removal(ds, "bos=token:7", **OPTIONS),
    "position_tests": ps.position_tests,
    "position_tests, fixed": lambda ds: ps.position_tests(ds, reference="fixed"),
    "model_level, share": lambda ds: ps.model_level(ds, **OPTIONS),
    "model_level, slope": lambda ds: ps.model_level(ds, measure="slope"),
    "sinks": ps.sinks,
    "readers": lambda ds: ps.readers(ds, **OPTIONS),
    "trajectory": lambda ds: ps.trajectory(ds, n_permutations=9),
    "contrast": lambda ds: ps.contrast(ds, ds, condition="bos=token:7", **OPTIONS),
    "earlier_metrics": lambda ds: ps.earlier_metrics(ds, **OPTIONS),
    "decode": ps.decode,
    "discriminate": lambda ds: ps.discriminate(ds, 5, 15),
}


def tables(result):
    """All tables of a result."""
    more = [getattr(result, name) for name in ("contrasts", "identification") if hasattr(result, name)]
    return [result.table, *(one.table for one in more)]


def assert_identical(found, expected):
    for one, other in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


@pytest.fixture(scope="module")
def ds():
    return position0.synthetic(layers=3, heads=5, sequences_per_document=2)


@pytest.fixture(scope="module")
def path(ds, tmp_path_factory):
    """A file whose chunks hold some of the heads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK_BYTES", 100_000)
        return write_dump(ds, tmp_path_factory.mktemp("scale") / "dump.h5")


@pytest.fixture(scope="module", params=ESTIMATORS)
def asked(request, ds):
    """An estimator, and what it says of whole layers in memory."""

    def estimator(data):
        if request.param not in ("sinks", "trajectory"):  # which look at all conditions
            data = data.sel(condition=["baseline", "bos=token:7"])
        return ESTIMATORS[request.param](data)

    return estimator, tables(estimator(ds))


class TestBlocks:
    def test_every_estimator_gives_the_same_bits_when_heads_are_read_one_by_one(self, monkeypatch, ds, asked):
        estimator, expected = asked
        monkeypatch.setattr(blocks, "_heads_at_once", lambda *_: 1)
        assert_identical(tables(estimator(ds)), expected)

    def test_known_answers(self, monkeypatch):
        ds = ps.simulate(
            n=8,
            length=32,
            layers=2,
            heads=3,
            conditions=["baseline", "repeat"],
            seed=1,
            noise=Noise(logit=0.1),
        ).dataset
        expected = known_answers.shift_differences(ds, "repeat"), known_answers.repeat_residuals(ds)
        monkeypatch.setattr(blocks, "_heads_at_once", lambda *_: 1)
        assert (known_answers.shift_differences(ds, "repeat"), known_answers.repeat_residuals(ds)) == expected

    def test_a_block_is_bounded_by_bytes_and_holds_whole_chunks(self, ds):
        one = ds.sel(condition="baseline").chunk(head=2)
        n_offsets = ds.sizes["offset"]
        per_head = 8 * (
            ds.sizes["sequence"] * (ds.sizes["query"] * (n_offsets + 2) + n_offsets + 2 * ds.sizes["lag"]) + 1
        )
        sizes = {
            bound: [b.heads.stop - b.heads.start for b in blocks.field_blocks(one, bound=bound)][:3]
            for bound in (per_head - 1, per_head, 3 * per_head, 4 * per_head, np.inf)
        }
        assert list(sizes.values()) == [[1, 1, 1], [1, 1, 1], [2, 2, 1], [4, 1, 4], [5, 5, 5]]
        products = blocks.field_blocks(one, bound=4 * per_head, products=1000)
        assert next(products).heads == slice(0, 1)

    def test_half_of_the_heads_is_half_of_the_reading(self, monkeypatch, ds, tmp_path):
        monkeypatch.setattr(store, "CHUNK_BYTES", 2**14)
        monkeypatch.setattr(store, "SMALL_BYTES", 0)
        with open_dump(write_dump(ds.isel(head=slice(4)), tmp_path / "d.h5")) as lazy:
            sizes = []
            original = store._Stored.__getitem__

            def counting(self, key):
                values = original(self, key)
                sizes.append(values.nbytes)
                return values

            monkeypatch.setattr(store._Stored, "__getitem__", counting)
            one = lazy.isel(condition=0, layer=1)[["logit"]]
            assert not sizes
            whole = blocks.read(one).logit.nbytes
            assert sum(sizes) == whole
            sizes.clear()
            half = blocks.read(one.isel(head=slice(2)))
            assert sum(sizes) == half.logit.nbytes == whole / 2

    def test_a_size_of_blocks_that_is_none(self, ds):
        with dask.config.set({"posstats.block-bytes": "lots"}), pytest.raises(InputError, match="must be a size"):
            next(blocks.field_blocks(ds.sel(condition="baseline")))

    @pytest.mark.parametrize(
        "how", [lambda ds: ds.transpose(*reversed(list(ds.dims))), lambda ds: ds.chunk(query=7, layer=2)]
    )
    def test_nor_do_the_order_of_dims_and_chunks_matter(self, ds, asked, how):
        estimator, expected = asked
        assert_identical(tables(estimator(how(ds))), expected)

    def test_a_description_is_small(self, path):
        with open_dump(path) as lazy:
            block = next(blocks.field_blocks(lazy.sel(condition="baseline")))
            assert len(pickle.dumps(block)) < 20_000
            np.testing.assert_array_equal(
                next(pickle.loads(pickle.dumps(block)).fields()).logit, next(block.fields()).logit
            )


@pytest.fixture(scope="module")
def client():
    """A cluster whose worker are threads of this process."""
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        yield client


@pytest.fixture
def submitted(monkeypatch):
    """Jobs that went to a cluster."""
    jobs = []
    original = cluster.Jobs.submit

    def counting(self, piece):
        jobs.append(piece)
        return original(self, piece)

    monkeypatch.setattr(cluster.Jobs, "submit", counting)
    return jobs


@pytest.mark.usefixtures("client")
class TestCluster:
    def test_every_estimator_gives_the_same_bits_two_heads_at_a_time(self, submitted, path, asked):
        estimator, expected = asked
        with open_dump(path) as lazy, dask.config.set({"posstats.block-bytes": "230 kB"}):
            (of_block, *_) = (one.heads for one in blocks.field_blocks(lazy.sel(condition="baseline")))
            assert of_block == slice(0, 2)
            assert lazy.logit.chunksizes["head"] == (2, 2, 1)
            assert_identical(tables(estimator(lazy)), expected)
        assert submitted

    def test_only_jobs_go_to_the_cluster(self, monkeypatch, path, asked):
        """What this process computes by itself does not wait for workers that may never come."""
        estimator, _ = asked
        monkeypatch.setattr(distributed.Client, "get", None)
        with open_dump(path) as lazy:
            estimator(lazy)

    def test_large_data_in_memory_stay_here(self, monkeypatch, submitted, ds, path):
        with open_dump(path) as lazy:
            expected = ps.shares(lazy, **OPTIONS).table
        n_jobs = len(submitted)
        assert n_jobs
        monkeypatch.setattr(cluster, "JOB_BYTES", 100_000)
        for there in (ds, ds.chunk(layer=1)):
            assert_identical([ps.shares(there, **OPTIONS).table], [expected])
        assert len(submitted) == n_jobs

    def test_terms_go_too(self, submitted, ds, path):
        expected = ps.shares(ps.decompose(ds), **OPTIONS).table
        with open_dump(path) as lazy:
            assert_identical([ps.shares(ps.decompose(lazy), **OPTIONS).table], [expected])
        assert submitted

    def test_a_mistake_is_told_as_ever(self, ds, tmp_path):
        broken = ds.copy(deep=True)
        broken["logit"][0, 3, 1, 2, 20, 0] = np.inf
        with open_dump(write_dump(broken, tmp_path / "d.h5")) as lazy, pytest.raises(ps.errors.NumericalError):
            ps.leakage(lazy)


class TestWorkers:
    def payload(self, piece):
        import cloudpickle

        return cloudpickle.dumps((lambda job, piece: job(piece), len, piece))

    def test_a_job_is_done(self):
        assert cluster._work(self.payload("abc"), cluster.versions()) == 3

    def test_other_versions_are_refused(self):
        with pytest.raises(InputError, match=r"other versions.*: numpy .* there, 1\.0 here"):
            cluster._work(self.payload("abc"), cluster.versions() | {"numpy": "1.0"})

    def test_files_that_are_not_there(self, path):
        shutil.copy(path, path.with_name("gone.h5"))
        with open_dump(path.with_name("gone.h5")) as lazy:
            payload = self.payload(lazy)
        path.with_name("gone.h5").unlink()
        with pytest.raises(ps.errors.DumpError, match="need the same files under the same names"):
            cluster._work(payload, cluster.versions())

    @pytest.mark.parametrize(
        ("error", "kind", "message"),
        [
            (distributed.KilledWorker("job", None, 3), ps.errors.ClusterError, "more memory"),
            (distributed.client.FutureCancelledError("job", "lost"), ps.errors.ClusterError, "the scheduler.*was lost"),
            (ModuleNotFoundError("No module named 'posstats'"), InputError, "need the same posstats"),
        ],
    )
    def test_what_becomes_of_a_job(self, error, kind, message):
        class Future:
            def done(self):
                return True

            def cancelled(self):
                return False

            def result(self):
                raise error

        with pytest.raises(kind, match=message):
            cluster._Awaited(None, Future()).result()

    def test_a_scheduler_or_worker_need_not_know_our_functions_to_read_a_job(self):
        class Client:
            def submit(self, function, job, **_):
                assert function is pickle.loads
                return function(job)

        awaited = cluster.Jobs(Client(), lambda job, piece: job(piece), len).submit("abc")
        assert awaited._future == 3

    def test_a_client_that_is_closed(self):
        with distributed.Client(processes=False, n_workers=1, dashboard_address=":0") as gone:
            jobs = cluster.Jobs(gone, len, len)
        for act in (jobs.ahead, lambda: jobs.submit("abc")):
            with pytest.raises(ps.errors.ClusterError, match="was lost"):
                act()

    @pytest.mark.parametrize("paused", [False, True])
    def test_work_does_not_wait_for_ever_for_workers(self, monkeypatch, path, paused):
        monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.02)
        with (
            distributed.Client(
                processes=False, n_workers=int(paused), memory_limit=0, dashboard_address=":0"
            ) as client,
            open_dump(path) as lazy,
            dask.config.set({"posstats.worker-wait": "300 ms"}),
        ):
            for worker in client.cluster.workers.values():
                worker.status = distributed.core.Status.paused
            with pytest.raises(ps.errors.ClusterError, match="no worker that takes work"):
                ps.leakage(lazy, **OPTIONS)

    def test_how_long_is_a_time(self):
        assert cluster.worker_wait() == 600
        with dask.config.set({"posstats.worker-wait": "a while"}), pytest.raises(InputError, match="must be a time"):
            cluster.worker_wait()


ANALYSIS = """
import posstats as ps
from posstats.study.analysis import Findings, Quantity

def analyse(ds, inference):
    shares = ps.shares(ds, by=["layer"], octaves=False, **inference.options())
    leakage = ps.leakage(ds, octaves=False, **inference.options())
    return Findings({"shares": shares, "sinks": ps.sinks(ds)}, headline=[
        Quantity.of("leakage", leakage.units, leakage, condition="baseline")])
"""


class TestCommandLine:
    @pytest.fixture
    def config(self, tmp_path):
        (tmp_path / "shares.py").write_text(ANALYSIS)
        file = tmp_path / "config.toml"
        file.write_text(
            '[inference]\nn_permutations = 99\n[dumps.none]\n[analyses]\nfiles = ["shares.py"]\n[run]\nworkers = 1\n'
        )
        return file

    @pytest.mark.parametrize("content", ["no JSON", '{"type": "Scheduler"}', "[1]"])
    def test_a_file_that_names_no_scheduler(self, mistake, config, path, tmp_path, content):
        (tmp_path / "file").write_text(content)
        said = mistake("analyze", path, "--config", config, "--scheduler", tmp_path / "file")
        assert "dask scheduler --scheduler-file` wrote" in said

    @pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere"])
    def test_no_scheduler_answers(self, mistake, config, path, address):
        said = mistake("analyze", path, "--config", config, "--scheduler", address)
        assert f"no scheduler answers at '{address}'" in said

    def test_distributed_is_not_installed(self, mistake, monkeypatch, config, path):
        monkeypatch.setitem(sys.modules, "distributed", None)
        said = mistake("analyze", path, "--config", config, "--scheduler", "local")
        assert said.endswith("needs distributed, which is not installed: pip install posstats[distributed]")

    def test_shards_and_schedulers(self, mistake, tmp_path):
        assert "--shards goes with --scheduler" in mistake("dump", tmp_path / "d.h5", "--shards", 2)
        said = mistake("dump", tmp_path / "d.h5", "--scheduler", "local", "--shard", "1/2")
        assert "--shard K/N is for processes that you start" in said

    def test_a_local_scheduler_writes_the_same_files(self, run, config, path, tmp_path):
        written = []
        for scheduler in ("none", "local"):
            folder = tmp_path / scheduler
            code, out, err = run(
                "analyze", path, "--config", config, "--results", folder, "--scheduler", scheduler, "--quiet"
            )
            assert code == 0, err
            files = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
            written.append((out, files))
        assert written[0] == written[1]
        assert len(written[0][1]) > 6


def test_a_dump_by_shares_has_the_same_bytes_though_a_worker_is_lost(run, tmp_path, monkeypatch):
    """Four shares on two workers; the one that writes the first piece is killed at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tiny.build("llama").save_pretrained("model")
    tiny.tokenizer().save_pretrained("model")
    what = ("--model", "model", "-n", 8, "-t", 24, "-c", "baseline", "-c", "bos=mean", "-d", 0, "-d", 1,
            "--batch-size", 1, "--quiet")  # fmt: skip
    assert run("dump", "alone.h5", *what)[0] == 0
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers:
        killer = limited.Killer(Path("shared.h5.parts"))
        killer.start()
        code, _, err = run("dump", "shared.h5", *what, "--scheduler", workers.scheduler_address, "--shards", 4)
        killer.join()
    assert code == 0, err
    assert killer.killed
    assert Path("shared.h5").read_bytes() == Path("alone.h5").read_bytes()
    assert not Path("shared.h5.parts").exists()


#: Memory that a process under the hard limit has for everything. Most of it are imports, and what BLAS reserves for
#: each thread that calls it.
LIMIT = 344 * 2**20
#: How often the layers of two small dumps are repeated, for a dump that does not fit the limit, and for a large one.
FEW, MANY = 5, 24


def under_limit(mode, out, *arguments):
    """Run limited.py; the memory that numpy's and torch's thread pools would reserve is not at issue here."""
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.limited", mode, str(LIMIT), str(out), *map(str, arguments)],
        env=os.environ | one, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Two dumps of one layer."""
    folder, files = tmp_path_factory.mktemp("parts"), []
    for seed in (0, 1):
        simulated = ps.simulate(
            n=8, sequences_per_document=12, length=1024, layers=1, heads=8, offsets=(0, 1, 2, 4),
            conditions=["baseline", "bos=mean"], seed=seed,
        )  # fmt: skip
        files.append(write_dump(simulated.dataset, folder / f"{seed}.h5"))
    return files


@pytest.fixture(scope="module")
def large(parts, tmp_path_factory):
    """A dump five times larger than the limit, whose layers are those of the parts again and again."""
    compressed, original = {}, store._compressed_chunk

    def once(variable, corner, chunk):
        key = (
            variable.name,
            tuple(at % len(parts) if dim == "layer" else at for dim, at in zip(variable.dims, corner, strict=True)),
        )
        if key not in compressed:
            compressed[key] = original(variable, corner, chunk)
        return compressed[key]

    path = tmp_path_factory.mktemp("large") / "large.h5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_compressed_chunk", once)
        write_dump(limited.concatenated(parts, MANY), path)
    assert path.stat().st_size >= 5 * LIMIT
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def expected(large):
    """What the same estimators say of the dump in memory, in this process, without a limit."""
    with open_dump(large) as lazy:
        ds = lazy.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewDocumentsWarning)  # eight documents are few
        return limited.shares(ds) | limited.others(ds)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux enforces RLIMIT_DATA on arrays")
class TestHardLimit:
    def test_a_dump_is_written_under_the_limit(self, parts, tmp_path):
        path = under_limit("write", tmp_path / "d.h5", FEW, *parts)
        with open_dump(path) as lazy, open_dump(parts[1]) as part:
            assert lazy.nbytes > LIMIT
            for name in ("logit", "steady_log_sum"):
                np.testing.assert_array_equal(lazy[name].isel(layer=-1).values, part[name].isel(layer=0).values)

    def test_the_numbers_are_those_of_memory(self, large, expected, tmp_path):
        """On threads; on two workers that have the limit too, one of which is killed midway. In one test, which
        makes the large dump once."""
        said = under_limit("load", tmp_path / "load", large).read_text()
        assert said.startswith("MemoryError: ") or "not enough memory" in said  # the limit bites
        for mode in ("threads", "cluster"):
            found = pickle.loads(under_limit(mode, tmp_path / mode, large).read_bytes())
            assert set(found) == (set(expected) if mode == "threads" else {"shares"})
            for name, table in found.items():
                pd.testing.assert_frame_equal(table, expected[name], check_exact=True)
