"""The notebook executes in an empty folder and shows what it is committed with; datasets explain themselves in it."""

import re
from html import escape

import nbformat
import numpy as np
import pytest
import xarray as xr

import posstats as ps
from tests import tiny
from tests.walkthrough import NOTEBOOK, execute

#: How dumps that were recorded apart are put together (data/README.md).
SIDE_BY_SIDE = {
    "combine": "nested", "concat_dim": "sequence", "data_vars": "minimal", "coords": "minimal", "compat": "equals",
    "join": "exact", "combine_attrs": "drop_conflicts",
}  # fmt: skip


def shown(notebook):
    """Of every output of every cell its kinds, and its text without addresses in memory."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {output.get("name", output.output_type): output.get("text", "")})
            text = data.get("text/plain", data.get("stdout", ""))
            found.append((sorted(data), re.sub(r"0x[0-9a-f]+", "", text)))
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean") / "analyses"
    folder.mkdir()
    return execute(folder)


class TestWalkthrough:
    def test_shows_what_it_is_committed_with(self, executed):
        committed = nbformat.read(NOTEBOOK, as_version=4)
        nbformat.validate(committed)
        assert shown(executed) == shown(committed)
        runs = [cell.execution_count for cell in committed.cells if cell.cell_type == "code"]
        assert runs == list(range(1, len(runs) + 1))

    def test_goes_from_a_dump_to_a_significance_table_and_two_figures(self, executed):
        assert len(executed.cells) < 20
        code = "\n".join(cell.source for cell in executed.cells if cell.cell_type == "code")
        assert "ps.open_dump(" in code
        kinds = [kind for kinds, _ in shown(executed) for kind in kinds]
        assert kinds.count("image/png") == 2
        assert kinds.count("text/html") == 6
        assert "stderr" not in kinds
        assert "error" not in kinds
        tables = [text for kinds, text in shown(executed) if "text/html" in kinds]
        assert any(re.search(r"layer +head +estimate +low +high +p +q", text) for text in tables)

    def test_uses_only_what_is_public(self):
        code = "\n".join(
            cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"
        )
        assert set(re.findall(r"\bps\.(\w+)", code)) <= set(ps.__all__)
        assert not re.search(r"\._\w|import _", code)

    def test_names_no_machine_and_no_time(self):
        text = NOTEBOOK.read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|Users|tmp|work)/|\d{4}-\d\d-\d\dT\d\d:", text)

    def test_every_link_leads_somewhere(self):
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
            for link in re.findall(r"\]\((?!https?:)([^)#]+)", cell.source):
                assert (NOTEBOOK.parent / link).is_file()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A dump of a tiny model, with everything that can be recorded of it."""
    sequences = ps.random_sequences(tiny.tokenizer(), n=6, length=24)
    path = tmp_path_factory.mktemp("recorded") / "tiny.h5"
    conditions = ("baseline", "bos=mean", "bos@4")
    return ps.dump(
        tiny.build("gemma2"), sequences, path, conditions=conditions, offsets=(0, 1), probes=(0, 20),
        tokenizer=tiny.tokenizer(), progress=False,
    )  # fmt: skip


@pytest.fixture(params=["simulated", "rehearsal on disk", "recorded", "terms"])
def dataset(request, tmp_path, recorded):
    simulated = ps.simulate(n=6, length=24, seed=0).dataset
    if request.param == "simulated":
        yield simulated
    elif request.param == "terms":
        yield ps.decompose(simulated)
    else:
        path = recorded if request.param == "recorded" else ps.write_dump(simulated, tmp_path / "rehearsal.h5")
        with ps.open_dump(path) as ds:
            yield ds


class TestDatasets:
    def test_every_variable_and_coordinate_has_units_and_a_name(self, dataset):
        for name in map(str, dataset.variables):
            assert dataset[name].attrs["units"], name
            assert len(dataset[name].attrs["long_name"]) > len("layer"), name

    def test_attributes_are_words_and_numbers(self, dataset):
        for name, value in dataset.attrs.items():
            assert isinstance(value, str | int | float | np.generic | np.ndarray | list), name
            assert not re.search(r"object at 0x|<class|b'", str(value)), name

    def test_html_shows_them(self, dataset):
        html = dataset._repr_html_()
        for variable in dataset.variables.values():
            assert escape(variable.attrs["long_name"]) in html
        assert all(name in html for name in dataset.attrs)


class TestSideBySide:
    @pytest.fixture(scope="class")
    @staticmethod
    def whole():
        return ps.simulate(n=24, length=32, offsets=(0, 1), heads=2, seed=0).dataset

    def joined(self, folder, *parts):
        for number, part in enumerate(parts):
            ps.write_dump(part, folder / f"part-{number}.h5")
        return xr.open_mfdataset(str(folder / "part-*.h5"), **SIDE_BY_SIDE)

    def test_pieces_of_a_dump_give_the_numbers_of_the_whole(self, whole, tmp_path):
        halves = (whole.isel(sequence=slice(12 * k, 12 * k + 12)) for k in range(2))
        with self.joined(tmp_path, *halves) as both:
            found = ps.leakage(both, octaves=False, n_permutations=99)
            again = ps.write_dump(both, tmp_path / "both.h5")
        expected = ps.leakage(whole, octaves=False, n_permutations=99)
        np.testing.assert_array_equal(found.table.estimate, expected.table.estimate)
        np.testing.assert_array_equal(found.table.low, expected.table.low)
        with ps.open_dump(again) as ds:
            assert ds.logit.equals(whole.logit)

    def test_documents_of_different_seeds_stay_apart(self, whole, tmp_path):
        other = ps.simulate(n=24, length=32, offsets=(0, 1), heads=2, seed=1).dataset
        with self.joined(tmp_path, whole, other) as both:
            assert ps.leakage(both, octaves=False, n_permutations=99).settings["n_documents"] == 48
            assert "seed" not in both.attrs

    def test_random_dumps_of_different_seeds_stay_apart(self, tmp_path):
        model, folder = tiny.build("llama"), tmp_path
        for seed in range(2):
            sequences = ps.random_sequences(tiny.tokenizer(), n=6, length=24, seed=seed)
            ps.dump(model, sequences, folder / f"part-{seed}.h5", offsets=(0, 1), progress=False)
        with xr.open_mfdataset(str(folder / "part-*.h5"), **SIDE_BY_SIDE) as both:
            assert len(set(both.document.values.tolist())) == 12
            assert both.attrs["weights_sha256"]
            assert "settings_sha256" not in both.attrs

    def test_what_does_not_belong_together_is_refused(self, whole, tmp_path):
        window = ps.simulate(n=24, length=32, offsets=(0, 1), heads=2, seed=1, window=8).dataset
        with pytest.raises(ValueError, match="visible_keys"):
            self.joined(tmp_path, whole, window)
        with pytest.raises(ValueError, match="offset"):
            self.joined(tmp_path, whole, whole.isel(offset=[0]))
