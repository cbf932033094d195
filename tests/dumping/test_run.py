import errno
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from posstats.dataset import store
from posstats.dataset.conditions import parse_condition
from posstats.dataset.store import open_dump, parts_folder
from posstats.dumping.inputs.conditions import apply
from posstats.dumping.inputs.sequences import Sequences, random_sequences
from posstats.dumping.recorder.recorder import Recorder
from posstats.dumping.run import dump as run
from posstats.dumping.run import memory, work
from posstats.dumping.run.dump import dump, is_current, join_dump
from posstats.dumping.run.locks import lock
from posstats.dumping.run.memory import available_memory, is_out_of_memory, suggested_batch
from posstats.dumping.run.pieces import Pieces
from posstats.errors import DesignError, DumpError, InputError, NumericalError
from posstats.vocabulary import COORDINATES, VARIABLES
from tests import tiny

N, T = 8, 20
OPTIONS = {"conditions": ("baseline", "bos=mean", "bos@3"), "offsets": (0, 1, 4), "batch_size": 2, "progress": False}
BATCHES = 12


@pytest.fixture(scope="module")
def model():
    return tiny.build("llama")


@pytest.fixture(scope="module")
def seqs():
    return random_sequences(tiny.tokenizer(), n=N, length=T, seed=2)


@pytest.fixture(scope="module", autouse=True)
def batches_alone():
    """Known answers come from the same recorder (tests/dumping/test_controls.py): here its calls are batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posstats.dumping.run.work.control_facts", lambda *_: {"control_note": "left out"})
        yield


@pytest.fixture(scope="module")
def whole(model, seqs, tmp_path_factory):
    """An undisturbed dump."""
    return dump(model, seqs, tmp_path_factory.mktemp("whole") / "a.h5", tokenizer=tiny.tokenizer(), **OPTIONS)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "a.h5"


@pytest.fixture
def go(model, seqs, target):
    """The undisturbed dump again, at another place and with changed options."""

    def go(path=target, **changes):
        return dump(model, seqs, path, **{**OPTIONS, "tokenizer": tiny.tokenizer(), **changes})

    return go


def breaks_at(monkeypatch, owner, name, call, error, *, calls=None):
    """Let the call-th call of a function raise."""
    original, counted = getattr(owner, name), [] if calls is None else calls

    def breaking(*args, **options):
        counted.append(None)
        if len(counted) == call:
            raise error
        return original(*args, **options)

    monkeypatch.setattr(owner, name, breaking)


@pytest.fixture
def stop(go, monkeypatch):
    """Begin a dump that stops before its call-th batch is recorded: five of twelve pieces are there, if not said."""

    def stop(call=6, error=NumericalError, **changes):
        with monkeypatch.context() as patch:
            breaks_at(patch, Recorder, "record", call, error("layer 1 is not finite"))
            with pytest.raises(error, match="layer 1 is not finite"):
                go(**changes)

    return stop


def gather(paths):
    """Copy the pieces of a dump's shards to those of the first."""
    for path in paths[1:]:
        for piece in parts_folder(path).glob("*.piece"):
            shutil.copy(piece, parts_folder(paths[0]))


def damage(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def pieces_in(path):
    return sorted(file.name for file in parts_folder(path).glob("*.piece"))


class TestContent:
    def test_dims_coordinates_and_attributes(self, whole):
        with open_dump(whole) as ds:
            assert set(ds.data_vars) == set(VARIABLES) - {"residual_sample", "residual_sample_total"}
            for name in ds.data_vars:
                assert ds[name].dims == VARIABLES[name].dims
            assert set(ds.coords) == set(COORDINATES) - {"probe"}
            assert ds.condition.values.tolist() == list(OPTIONS["conditions"])
            assert ds.offset.values.tolist() == [0, 1, 4]
            assert ds.depth.values.tolist() == [0, 1, 2, 3]
            assert ds.document.values.tolist() == [f"random 2-{number:05d}" for number in range(N)]
            assert {k: ds.attrs[k] for k in ("bos", "bos_token", "bos_token_id", "seed", "sequences_seed")} == {
                "bos": "in ids", "bos_token": "<bos>", "bos_token_id": 1, "seed": 0, "sequences_seed": 2,
            }  # fmt: skip
            for name in ("model", "weights_sha256", "dtype", "tokenizer", "rope_parameters", "inverse_frequencies",
                         "torch_version", "transformers_version", "posstats_version", "schema_version", "sequences",
                         "length", "reference_queries", "received_queries"):  # fmt: skip
                assert name in ds.attrs
            assert ds.logit.dtype == np.float32
            assert ds.logit_total.dtype == np.float64
            assert {name: ds.sizes[name] for name in ("token", "query", "key", "lag")} == {
                "token": T, "query": T // 2, "key": T // 2, "lag": T // 2,
            }  # fmt: skip
            assert ds.attrs["length"] == T
            assert ds.attrs["reference_queries"].tolist() == list(range(15, T))
            assert ds.attrs["received_queries"].tolist() == list(range(5, T))
            for name in (name for name in ds.data_vars if not name.endswith("_total")):
                values, total = ds[name].load(), ds[f"{name}_total"]
                if values.dims != total.dims:
                    values = values.where(np.isfinite(values)).astype(float)
                    values = values.sum([dim for dim in values.dims if dim not in total.dims])
                np.testing.assert_allclose(total, values, rtol=1e-13, atol=1e-12, err_msg=name)

    def test_values_are_the_recorders(self, whole, model, seqs):
        with open_dump(whole) as ds, Recorder(model, length=T, offsets=(0, 1, 4)) as recorder:
            for number, condition in enumerate(OPTIONS["conditions"]):
                feed = apply(parse_condition(condition), seqs, model)
                record = recorder.record(*feed.batch(model, slice(4, 6)), anchor=feed.anchor)
                for name in set(record.__slots__) - {"residual_sample"}:
                    np.testing.assert_array_equal(ds[name][number, 4:6].values, getattr(record, name), err_msg=name)
                np.testing.assert_array_equal(ds.token_id[number].values, feed.token_id)
            np.testing.assert_array_equal(ds.visible_keys.values, recorder.visible_keys[:, : T // 2])
            assert np.isneginf(ds.learned_sink.values).all()
            assert ds.layer_window.values.tolist() == [0, 0, 0]
            assert ds.layer_rotary.values.tolist() == [1, 1, 1]
            anchored = ds.condition.values == "bos@3"
            for name in ("anchor_attention", "anchor_sink_attention"):
                np.testing.assert_array_equal(np.isnan(ds[name].values).all((1, 2, 3)), ~anchored)
                assert (ds[name].values[anchored] > 0).all()
            assert (ds.trajectory_departure.values < 1e-4).all()

    def test_replaced_tokens_are_recorded(self, whole, seqs):
        with open_dump(whole) as ds:
            ids = ds.token_id.load()
        assert (ids.sel(condition="bos=mean", token=0) == -1).all()
        moved = ids.sel(condition="bos@3")
        assert (moved.sel(token=3) == seqs.bos_id).all()
        assert len(set(moved.sel(token=0).values)) == N

    def test_probes_window_and_learned_sink(self, seqs, target):
        model = tiny.build("gpt_oss")
        with open_dump(dump(model, seqs, target, probes=(1, 5), offsets=(0,), progress=False)) as ds:
            assert ds.residual_sample.dims == VARIABLES["residual_sample"].dims
            assert ds.probe.values.tolist() == [1, 5]
            np.testing.assert_allclose(
                np.linalg.norm(ds.residual_sample.values, axis=-1),
                ds.residual_norm.sel(token=[1, 5]).values,
                rtol=1e-5,
            )
            assert np.isfinite(ds.learned_sink.values).all()
            assert ds.visible_keys.max("query").values.tolist() == [10, 10, 10]  # of the analysed queries
            assert ds.layer_window.values.tolist() == [10, 0, 10]

    def test_layers_as_they_show_themselves(self, seqs, target):
        # Chunks of 16 tokens, the last query sees 4 of them; the layer in between has neither chunks nor rotation.
        with open_dump(dump(tiny.build("llama4"), seqs, target, offsets=(0,), progress=False)) as ds:
            assert ds.layer_window.values.tolist() == [16, 0, 16]
            assert ds.layer_rotary.values.tolist() == [1, 0, 1]
            assert ds.sizes["channel"] == 16

    def test_trajectory_and_dealt_tokens(self, model, seqs, target):
        conditions = (
            "baseline", "trajectory=token:7@0", "trajectory=token:7@2", "bos=token:7", "bos=tokens:2",
            "trajectory=tokens:2@0",
        )  # fmt: skip
        with open_dump(dump(model, seqs, target, conditions=conditions, offsets=(0, 1), progress=False)) as ds:
            ds.load()
        baseline, embedded, later, token, dealt, trajectories = (ds.sel(condition=name) for name in conditions)
        assert (ds.substitute_id.values[:5] == np.array([-1, 7, 7, -1, -1])[:, None]).all()
        np.testing.assert_array_equal(trajectories.substitute_id, dealt.token_id[:, 0])
        np.testing.assert_array_equal(trajectories.token_id, seqs.ids)
        for name in ("logit", "sink_logit", "trajectory"):
            np.testing.assert_array_equal(trajectories[name], dealt[name], err_msg=name)
        np.testing.assert_array_equal(later.token_id, seqs.ids)
        assert len(set(dealt.token_id.values[:, 0])) == 2
        for name in ("logit", "sink_logit", "head_output", "trajectory", "trajectory_departure", "residual_norm"):
            np.testing.assert_array_equal(embedded[name], token[name], err_msg=name)
            part = {"depth" if "depth" in ds[name].dims else "layer": slice(0, 2)}
            np.testing.assert_array_equal(later[name].isel(part), baseline[name].isel(part), err_msg=name)
        assert (abs(later.sink_logit - baseline.sink_logit).sel(layer=2) > 1e-3).any()
        np.testing.assert_allclose(later.trajectory.sel(depth=[2, 3]), token.trajectory.sel(depth=[2, 3]), atol=1e-4)
        assert (ds.trajectory_departure < 1e-4).all()

    def test_float64_stays_float64(self, seqs, target):
        model = tiny.build("llama", dtype="float64")
        path = dump(model, seqs, target, conditions=("baseline", "shift=64", "repeat"), offsets=(0, 3), progress=False)
        with open_dump(path) as ds:
            assert ds.logit.dtype == ds.trajectory.dtype == ds.learned_sink.dtype == np.float64
            ds.load()
        baseline, shifted = ds.sel(condition="baseline"), ds.sel(condition="shift=64")
        for name in ("logit", "sink_logit", "log_denominator_rest", "steady_logit", "steady_log_sum",
                     "attention_received", "trajectory", "head_output", "sink_value_norm", "value_norm"):  # fmt: skip
            np.testing.assert_allclose(shifted[name], baseline[name], rtol=0, atol=1e-9)
        assert (ds.trajectory_departure < 1e-9).all()
        norms = ds.residual_norm.sel(condition="repeat").values
        np.testing.assert_allclose(norms, np.broadcast_to(norms[..., :1], norms.shape), rtol=1e-9)

    def test_documents_are_kept(self, model, target):
        ids = random_sequences(tiny.tokenizer(), n=N, length=T, bos=False).ids
        mine = Sequences(ids, ["é", "b", "c", "d", "e", "é", "b", "c"], "mine")
        with open_dump(dump(model, mine, target, offsets=(0,), progress=False)) as ds:
            assert ds.document.values.tolist() == mine.document.tolist()
            assert (ds.attrs["bos"], ds.attrs["bos_token_id"], ds.attrs["sequences_seed"]) == ("none", -1, -1)


class TestSameBytes:
    def test_two_runs(self, go, whole):
        assert go().read_bytes() == whole.read_bytes()

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_batch_size_does_not_matter_beyond_rounding(self, seqs, tmp_path, dtype):
        model = tiny.build("llama", dtype=dtype)
        found = []
        for batch in (1, 3, 8):
            path = dump(model, seqs, tmp_path / f"{batch}.h5", **{**OPTIONS, "batch_size": batch})
            with open_dump(path) as ds:
                found.append(ds.load())
        for other in found[1:]:
            for name in found[0].data_vars:
                np.testing.assert_allclose(
                    other[name], found[0][name], rtol=0, atol=1e-4 if dtype == "float32" else 1e-11, err_msg=name
                )
            assert other.attrs["settings_sha256"] == found[0].attrs["settings_sha256"]

    def test_killed_at_many_points_and_resumed(self, tmp_path):
        """20 kills at random steps towards the disk and 4 at random times, and three shards at once."""
        command = [sys.executable, "-m", "tests.killed", str(tmp_path), "0"]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["kills"] >= 20
        assert report["different"] == report["left_over"] == []
        assert report["shards"] == [0, 0, 0]
        assert report["joined"]


class TestResume:
    @pytest.mark.parametrize("call", [1, 2, 7, BATCHES])
    def test_numbers_that_are_not_finite_keep_what_is_done(self, go, stop, whole, target, call):
        stop(call=call)
        assert not target.exists()
        assert len(pieces_in(target)) == call - 1
        assert parts_folder(target).exists() == (call > 1), "without a piece there is nothing to keep"
        with pytest.raises(DumpError, match="is not finished: run the same dump again" if call > 1 else "there is no"):
            open_dump(target)
        assert go().read_bytes() == whole.read_bytes()
        assert not parts_folder(target).exists()

    def test_only_what_is_missing_is_computed(self, go, stop, target, monkeypatch):
        stop(call=8)
        calls = []
        breaks_at(monkeypatch, Recorder, "record", -1, None, calls=calls)
        go()
        assert len(calls) == BATCHES - 7
        assert target.exists()

    def test_interrupt(self, go, stop, whole, target, caplog):
        stop(error=KeyboardInterrupt)
        assert f"interrupted: 10 of 24 sequences are safe in {parts_folder(target)}" in caplog.text
        assert "started again, goes on from there" in caplog.text
        assert go().read_bytes() == whole.read_bytes()

    def test_damaged_piece_is_done_again(self, go, stop, whole, target):
        stop()
        piece = parts_folder(target) / pieces_in(target)[2]
        piece.write_bytes(piece.read_bytes()[:-5])
        assert go().read_bytes() == whole.read_bytes()

    def test_another_batch_size_fills_the_gaps(self, go, stop, whole):
        stop()
        assert go(batch_size=5).read_bytes() == whole.read_bytes()

    def test_interventions_on_the_trajectory(self, go, stop, tmp_path):
        options = {"conditions": ("trajectory=token:7@1", "bos=none", "bos=tokens:3"), "probes": (0, 4)}
        expected = go(tmp_path / "undisturbed.h5", **options)
        stop(call=7, **options)
        assert go(**options).read_bytes() == expected.read_bytes()

    def test_start_anew(self, go, stop, monkeypatch):
        stop()
        calls = []
        breaks_at(monkeypatch, Recorder, "record", -1, None, calls=calls)
        go(resume=False)
        assert len(calls) == BATCHES

    def test_unfinished_work_with_other_settings(self, go, stop, target):
        stop()
        with pytest.raises(DumpError, match=r"other settings \(different: seed\): use those"):
            go(seed=1)
        assert len(pieces_in(target)) == 5
        with open_dump(go(seed=1, overwrite=True)) as ds:
            assert ds.attrs["seed"] == 1


class TestPieces:
    """What lies in the folder of an unfinished dump, and should not count."""

    @pytest.mark.parametrize("steps", [1, 2, 4])
    @pytest.mark.parametrize("options", [{"overwrite": True}, {}])
    def test_pieces_without_a_manifest_count_for_no_dump(self, stop, go, whole, target, monkeypatch, steps, options):
        """Work with another seed is discarded; the process dies after the manifest and some more files are gone."""
        stop(seed=1)
        with monkeypatch.context() as patch:
            breaks_at(patch, Path, "unlink", steps + 1, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                go(overwrite=True)
        assert not (parts_folder(target) / "manifest.json").exists()
        assert pieces_in(target)
        assert go(**options).read_bytes() == whole.read_bytes()

    def test_content_that_has_changed_is_recorded_anew(self, stop, go, whole, target, caplog):
        stop()
        piece = parts_folder(target) / pieces_in(target)[2]
        damage(piece, 100)
        assert go().read_bytes() == whole.read_bytes()
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
            f"{piece} is damaged or of another dump: it is removed, and what is missing recorded anew"
        ]

    @pytest.mark.parametrize(
        "name",
        ["007-000000-000002.piece", "000-000006-000020.piece", "000-000004-000004.piece", "0-6-8.piece", "mine.piece"],
    )
    def test_stray_pieces(self, stop, go, whole, target, name):
        stop()
        folder = parts_folder(target)
        (folder / name).write_bytes((folder / "000-000000-000002.piece").read_bytes())
        with pytest.raises(DumpError, match=rf"damaged or of another dump \({name}\): remove them and run the same"):
            join_dump(target)
        assert go().read_bytes() == whole.read_bytes()

    def test_a_piece_counts_for_its_own_sequences_only(self, stop, go, whole, target):
        stop()
        folder = parts_folder(target)
        shutil.copy(folder / "000-000000-000002.piece", folder / "001-000002-000004.piece")
        assert go().read_bytes() == whole.read_bytes()

    def test_join_names_what_it_refuses(self, go, model, whole, tmp_path):
        """The shards of dumps of different sequences, put together."""
        paths = [tmp_path / str(k) / "a.h5" for k in (1, 2)]
        other = random_sequences(tiny.tokenizer(), n=N, length=T, seed=5)
        go(paths[0], shard=(1, 2))
        dump(model, other, paths[1], shard=(2, 2), **{**OPTIONS, "tokenizer": tiny.tokenizer()})
        gather(paths)
        names = r"000-000002-000004\.piece, .*, 001-000006-000008\.piece and 2 more"
        with pytest.raises(DumpError, match=rf"are damaged or of another dump \({names}\): remove them"):
            join_dump(paths[0])
        assert not paths[0].exists()
        assert go(paths[0]).read_bytes() == whole.read_bytes()

    def test_join_reads_every_piece(self, go, target):
        for k in (1, 2):
            go(shard=(k, 3))
        piece = parts_folder(target) / pieces_in(target)[0]
        damage(piece, 0)
        # The last shard answers for its own pieces only, and for the file.
        with pytest.raises(DumpError, match=rf"\({piece.name}\): remove them and run the same dump again"):
            go(shard=(3, 3))
        assert not target.exists()
        go(shard=(1, 3))
        assert target.exists()

    @pytest.mark.parametrize("left", [None, b"", 700, "another"])
    def test_frame(self, go, whole, target, left):
        go(shard=(1, 2))
        frame = parts_folder(target) / "frame.npz"
        if left is None:
            frame.unlink()
        elif left == "another":
            other = target.with_name("b.h5")
            go(other, shard=(1, 2), seed=1)
            shutil.copy(parts_folder(other) / "frame.npz", frame)
        else:
            frame.write_bytes(frame.read_bytes()[:left] if isinstance(left, int) else left)
        assert go().read_bytes() == whole.read_bytes()

    def test_frame_is_recorded_anew_where_nothing_else_is_missing(self, go, whole, tmp_path):
        paths = [tmp_path / str(k) / "a.h5" for k in (1, 2)]
        for k, path in enumerate(paths, start=1):
            go(path, shard=(k, 2))
        gather(paths)
        (parts_folder(paths[0]) / "frame.npz").unlink()
        with pytest.raises(DumpError, match=r"frame\.npz is missing, damaged or of another dump: run the same dump"):
            join_dump(paths[0])
        assert go(paths[0]).read_bytes() == whole.read_bytes()

    @pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"attrs": {}, "sizes": {}}', None])
    def test_damaged_manifest(self, stop, go, whole, target, content):
        stop(seed=1)
        file = parts_folder(target) / "manifest.json"
        file.write_bytes(file.read_bytes().replace(b'"unit": 2', b'"unit": 0') if content is None else content)
        with pytest.raises(DumpError, match=r"manifest\.json is damaged: dump again with overwrite=True"):
            go()
        assert pieces_in(target)
        options = {"resume": False} if content else {"overwrite": True}
        assert go(**options).read_bytes() == whole.read_bytes()


class TestReuse:
    def test_a_fraction_is_the_block_that_it_comes_to(self, go, target, caplog):
        conditions = ("trajectory=token:7@1/3", "baseline", "trajectory=token:7@4/12", "trajectory=token:7@9/10")
        with pytest.raises(InputError, match="given twice"):
            go(conditions=conditions)
        go(conditions=("trajectory=token:7@1/3", "baseline", "trajectory=token:7@3/10", "trajectory=token:7@9/10"))
        with open_dump(target) as ds:
            assert ds.condition.values.tolist() == ["trajectory=token:7@1", "baseline", "trajectory=token:7@2"]
        with caplog.at_level("INFO", logger="posstats"):
            go(conditions=("trajectory=token:7@1", "baseline", "trajectory=token:7@2"))
        assert "reusing" in caplog.text

    def test_finished_dump_is_reused(self, go, target, monkeypatch, caplog):
        go()
        before = target.stat()
        monkeypatch.setattr(Recorder, "record", None)
        with caplog.at_level(logging.INFO, "posstats"):
            assert go() == target
        assert target.stat().st_mtime_ns == before.st_mtime_ns
        assert "reusing" in caplog.text
        assert not parts_folder(target).exists()

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"seed": 1}, "seed"),
            ({"offsets": (0, 1)}, "offsets"),
            ({"conditions": ("baseline",)}, "conditions"),
            ({"probes": (3,), "seed": 2}, "seed, probes"),
        ],
    )
    def test_changed_setting(self, go, target, caplog, change, told):
        go()
        before = target.read_bytes()
        with pytest.raises(DumpError, match=rf"recorded with other settings \(different: {told}\): choose"):
            go(**change)
        assert target.read_bytes() == before
        with caplog.at_level(logging.INFO, "posstats"):
            assert go(**change, overwrite=True).read_bytes() != before
        assert f"replacing {target}, which was recorded with other settings (different: {told})" in caplog.messages

    def test_changed_sequences_or_weights(self, go, model, seqs, target):
        go()
        other = random_sequences(tiny.tokenizer(), n=N, length=T, seed=3)
        for changed in ((model, other), (tiny.build("llama", seed=1), seqs)):
            with pytest.raises(DumpError, match="recorded with other settings"):
                dump(*changed, target, tokenizer=tiny.tokenizer(), **OPTIONS)

    def test_something_else_at_the_target(self, go, target, whole):
        target.parent.mkdir()
        target.write_text("my notes")
        with pytest.raises(DumpError, match="not an HDF5 file"):
            go()
        assert target.read_text() == "my notes"
        assert go(overwrite=True).read_bytes() == whole.read_bytes()
        with pytest.raises(InputError, match="is a folder"):
            go(target.parent)

    def test_old_dump_stays_until_the_new_one_is_whole(self, go, stop, target):
        before = go().read_bytes()
        stop(seed=1, overwrite=True)
        assert target.read_bytes() == before

    def test_is_current(self, whole, target):
        with open_dump(whole) as ds:
            attrs = ds.attrs
        assert is_current(whole, attrs)
        assert not is_current(whole, attrs | {"settings_sha256": "other"}, overwrite=True)
        assert not is_current(target, attrs)


class TestDisk:
    @pytest.mark.parametrize("call", [1, 5])
    def test_full_disk_while_recording(self, go, whole, target, monkeypatch, call):
        calls = []
        with monkeypatch.context() as patch:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            breaks_at(patch, Pieces, "write", call, full)
            breaks_at(patch, Recorder, "record", -1, None, calls=calls)
            with pytest.raises(DumpError, match=r"a\.h5: No space left on device") as caught:
                go()
        assert len(calls) <= call + work._WAITING + 1, "the error has to stop the work at once"
        assert len(pieces_in(target)) >= call - 1
        # What was under way beside the one that failed may have been finished.
        assert ("finished batches stay in" in str(caught.value)) == (pieces_in(target) != [])
        assert parts_folder(target).exists() == (pieces_in(target) != [])
        assert go().read_bytes() == whole.read_bytes()

    def test_real_file_size_limit(self, go, whole, target):
        """A limit set at the operating system: the piece that does not fit leaves no trace."""
        import resource
        import signal

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            with pytest.raises(DumpError, match=r"File too large$"):
                go()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert not list(target.parent.iterdir())
        assert go().read_bytes() == whole.read_bytes()

    def test_full_disk_while_joining(self, go, whole, target, monkeypatch):
        with monkeypatch.context() as patch:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            breaks_at(patch, store, "_compressed_chunk", 4, full)
            with pytest.raises(DumpError, match="No space left on device"):
                go()
        assert len(pieces_in(target)) == BATCHES
        assert not target.exists()
        monkeypatch.setattr(Recorder, "record", None)
        assert go().read_bytes() == whole.read_bytes()

    def test_too_little_space_is_noticed_before_the_work(self, go, target, monkeypatch):
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        monkeypatch.setattr(Recorder, "record", None)
        with pytest.raises(DumpError, match=r"needs about .* MB while it is being written, and 0 MB are free"):
            go()
        assert pieces_in(target) == []

    def test_target_without_permission(self, go, tmp_path):
        folder = tmp_path / "locked"
        folder.mkdir()
        folder.chmod(0o555)
        privileged = os.geteuid() == 0
        if privileged:
            os.seteuid(65534)
        try:
            with pytest.raises(DumpError, match=r"cannot write .*Permission denied"):
                go(folder / "a.h5")
        finally:
            if privileged:
                os.seteuid(0)

    def test_little_space_is_noticed_before_joining(self, go, whole, target, monkeypatch):
        usage = shutil.disk_usage("/")
        with monkeypatch.context() as patch:
            free = itertools.chain([2**40], itertools.repeat(2**20))  # the disk fills while the dump is recorded
            patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=next(free)))
            patch.setattr(store.h5netcdf, "File", None)
            for _ in range(2):
                with pytest.raises(DumpError, match=r"could not be joined: .* 1\.0 MB are free; the pieces stay"):
                    go()
                patch.setattr(Recorder, "record", None)
        assert len(pieces_in(target)) == BATCHES
        assert not target.exists()
        assert go().read_bytes() == whole.read_bytes()

    def test_folder_that_takes_no_files(self, go):
        with pytest.raises(DumpError, match=r"cannot write /proc/x\.h5: No such file or directory$"):
            go(Path("/proc/x.h5"))

    @pytest.mark.parametrize("exists", [True, False])
    def test_link_to_a_file_is_followed(self, go, stop, whole, target, tmp_path, exists):
        real = tmp_path / "large disk" / "real.h5"
        target.parent.mkdir()
        target.symlink_to(real)
        if exists:
            real.parent.mkdir()
            real.write_bytes(b"")
        stop(call=4, overwrite=True)
        assert len(pieces_in(real)) == 3
        if not exists:
            with pytest.raises(DumpError, match="is not finished"):
                open_dump(target)
        assert go(overwrite=True) == target
        assert target.is_symlink()
        assert real.read_bytes() == whole.read_bytes()
        assert [file.name for folder in (target, real) for file in folder.parent.iterdir()] == ["a.h5", "real.h5"]

    def test_target_below_a_file(self, go, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(DumpError, match="cannot write"):
            go(tmp_path / "file" / "a.h5")


class TestLocks:
    def test_second_process_is_told_who_holds_it(self, go, whole, target):
        code = (
            "import sys, time; from pathlib import Path; from posstats.dumping.run.locks import lock\n"
            "with lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
        )
        file = parts_folder(target) / "dump.lock"
        holder = subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout.readline() == "held\n"
            for options in ({}, {"shard": (1, 2)}):
                with pytest.raises(DumpError, match=rf"is being written by process {holder.pid} on "):
                    go(**options)
            with pytest.raises(DumpError, match=f"process {holder.pid}"):
                join_dump(target)
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()
        assert go().read_bytes() == whole.read_bytes(), "a killed process holds nothing"

    def test_shards_exclude_the_whole_and_themselves(self, go, target):
        folder = parts_folder(target)
        with lock(folder / "dump.lock", shared=True), lock(folder / "shard-1-of-2.lock"):
            with pytest.raises(DumpError, match="is being written by"):
                go()
            with pytest.raises(DumpError, match="is being written by"):
                go(shard=(1, 2))
            go(shard=(2, 2))
        assert not target.exists()
        assert pieces_in(target)


class TestShards:
    def test_one_that_begins_while_another_joins_waits(self, go, whole, target, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(run, "join", lambda *_: None)
            for k in (1, 2):
                go(shard=(k, 2))
        folder = parts_folder(target)
        with ThreadPoolExecutor(1) as pool:
            with lock(folder / "dump.lock"):
                late = pool.submit(go, shard=(1, 2))
                time.sleep(0.2)
                assert not late.done()
                work.join(Pieces(folder), target)
            assert late.result(timeout=30).read_bytes() == whole.read_bytes()
        assert not folder.exists()

    def test_one_that_ends_turns_nobody_away_to_see_whether_it_is_the_last(self, go, monkeypatch):
        held, original = [], run.lock
        monkeypatch.setattr(run, "lock", lambda path, **how: (held.append((path.name, how)), original(path, **how))[1])
        go(shard=(1, 2))
        assert held == [("dump.lock", {"shared": True}), ("shard-1-of-2.lock", {})]

    def test_shards_one_after_another(self, go, whole, target, caplog):
        for k in (3, 1):
            go(shard=(k, 3))
            assert not target.exists()
        with pytest.raises(DumpError, match=r"4 batches .* are not recorded yet: run the remaining shards"):
            join_dump(target)
        go(shard=(2, 3))
        assert target.read_bytes() == whole.read_bytes()
        assert not parts_folder(target).exists()
        with caplog.at_level(logging.INFO, "posstats"):
            go(shard=(1, 3))
        assert "reusing" in caplog.text

    def test_shards_of_several_machines(self, go, whole, tmp_path):
        paths = [tmp_path / str(k) / "a.h5" for k in (1, 2)]
        for k, path in enumerate(paths, start=1):
            go(path, shard=(k, 2))
        gather(paths)
        assert join_dump(paths[0]).read_bytes() == whole.read_bytes()

    def test_more_shards_than_batches(self, go, whole, target):
        for k in range(1, 15):
            go(shard=(k, 14))
        assert target.read_bytes() == whole.read_bytes()

    @pytest.mark.parametrize("n", [2, 3, 5])
    def test_every_shard_gets_work(self, go, target, monkeypatch, n):
        """The batch that the memory allows would hold all sequences."""
        monkeypatch.setattr(work, "suggested_batch", lambda *_: 16)
        recorded = [0]
        for k in range(1, n):
            go(shard=(k, n), batch_size=None)
            recorded.append(len(pieces_in(target)))
        shares = np.diff(recorded)
        assert shares.min() > 0
        assert shares.max() - shares.min() <= 1
        assert not target.exists()
        go(shard=(n, n), batch_size=None)
        assert target.exists()

    def test_a_finished_shard_speaks_for_itself(self, go, caplog):
        with caplog.at_level(logging.INFO, "posstats"):
            for _ in range(2):
                go(shard=(1, 2))
        assert "0 sequences are left to record by this shard, 1 of 2" in caplog.text
        assert "this shard is done" in caplog.text

    def test_the_whole_dump_finishes_what_shards_left(self, go, whole):
        go(shard=(2, 3))
        assert go().read_bytes() == whole.read_bytes()

    def test_join_without_pieces(self, target):
        with pytest.raises(DumpError, match="no folder"):
            join_dump(target)
        parts_folder(target).mkdir(parents=True)
        with pytest.raises(DumpError, match="holds no manifest"):
            join_dump(target)


class TestMemory:
    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("CUDA out of memory."),
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory"),
            MemoryError(),
        ],
    )
    def test_out_of_memory_halves_the_batch(self, go, whole, monkeypatch, caplog, error):
        record = Recorder.record

        def small_memory(recorder, embeddings, positions, **options):
            if len(embeddings) > 3:
                raise error
            return record(recorder, embeddings, positions, **options)

        monkeypatch.setattr(Recorder, "record", small_memory)
        with open_dump(go(batch_size=8)) as halved, open_dump(whole) as expected:
            for name in expected.data_vars:
                np.testing.assert_array_equal(halved[name].values, expected[name].values)
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
            "out of memory with 8 sequences at once, going on with 4",
            "out of memory with 4 sequences at once, going on with 2",
        ]

    def test_one_sequence_too_large(self, go, monkeypatch):
        monkeypatch.setattr(Recorder, "record", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(DumpError, match="one sequence of 20 tokens does not fit into the memory"):
            go()

    def test_other_errors_are_not_swallowed(self, go, monkeypatch):
        breaks_at(monkeypatch, Recorder, "record", 1, RuntimeError("something else"))
        with pytest.raises(RuntimeError, match="something else"):
            go()

    def test_suggested_batch(self, model, monkeypatch):
        assert available_memory(torch.device("cpu")) > 2**20
        assert suggested_batch(model, 192, 10**6) in (1, 2, 4, 8, 16)
        monkeypatch.setattr(memory, "available_memory", lambda _: 10**9)
        assert suggested_batch(model, 192, 10**6) == 16
        assert suggested_batch(model, 192, 10**7) == 8
        assert suggested_batch(model, 10**6, 10**9) == 1
        assert not is_out_of_memory(RuntimeError("shapes do not match"))

    def test_default_batch(self, go, whole):
        with open_dump(go(batch_size=None)) as ds, open_dump(whole) as expected:
            np.testing.assert_allclose(ds.logit.values, expected.logit.values, atol=1e-4)


class TestChecksBeforeTheWork:
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"offsets": (0, T // 2)}, InputError, "offset must be a whole number from 0 to 9, not 10"),
            ({"offsets": (-1,)}, InputError, "offset must be a whole number from 0 to .*, not -1"),
            ({"offsets": ()}, InputError, "at least one offset"),
            ({"offsets": (1, 1)}, InputError, "once"),
            ({"probes": (T,)}, InputError, "probe must be a whole number from 0 to 19"),
            ({"conditions": ("baseline", "bos=two")}, InputError, "there is no condition 'bos=two'"),
            ({"conditions": ("baseline", "bos@20")}, InputError, "below the length"),
            ({"conditions": ("baseline", "bos=token:97")}, InputError, "vocabulary of 97"),
            ({"conditions": ("bos=tokens:5",)}, InputError, "at most 4 with 8 documents"),
            ({"conditions": ("trajectory=token:97@1",)}, InputError, "vocabulary of 97"),
            ({"conditions": ("trajectory=token:7@3",)}, InputError, r"the depth must be 0 \.\. 2"),
            ({"conditions": ("shift=109",)}, InputError, "shift=109 needs 129 positions, the model allows 128"),
            ({"batch_size": 0}, InputError, "batch_size"),
            ({"shard": (0, 2)}, InputError, "1 <= k <= n"),
            ({"shard": (3, 2)}, InputError, "1 <= k <= n"),
            ({"shard": (1, 2), "resume": False}, InputError, "belongs to the other shards"),
            ({"seed": -1}, InputError, "seed"),
        ],
    )
    def test_options(self, go, target, change, error, message):
        with pytest.raises(error, match=message):
            go(**change)
        assert not target.parent.exists()

    def test_sequences(self, model, target):
        tok = tiny.tokenizer()
        with pytest.raises(InputError, match="baseline needs 200 positions, the model allows 128"):
            dump(model, random_sequences(tok, n=5, length=200), target)
        with pytest.raises(DesignError, match="at least 5 are needed"):
            dump(model, random_sequences(tok, n=4, length=T), target)
        with pytest.raises(InputError, match=r"the length must be a multiple of 4 tokens, .* not 18"):
            dump(model, Sequences(np.full((5, 18), 7), np.arange(5), "mine"), target)
        ids = random_sequences(tok, n=6, length=T).ids
        with pytest.raises(DesignError, match=r"come from 2 document\(s\)"):
            dump(model, Sequences(ids, list("aabbab"), "mine"), target)
        with pytest.raises(InputError, match="token id 97"):
            dump(model, Sequences(np.full((5, T), 97), np.arange(5), "mine"), target, offsets=(0,))
        assert not target.parent.exists()
