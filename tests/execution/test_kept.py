"""Writing beside and renaming, and results that are kept: whole or not there, current or computed anew."""

import json
from pathlib import Path

import pytest

from posstats.execution.files import replacing
from posstats.execution.kept import keep, kept, rested_on

BASIS = {"code": "c", "settings": {"level": 0.95, "offsets": (0, 1)}}


class TestReplacing:
    def test_a_file_holds_the_old_content_until_the_block_ends(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("old")
        with replacing(path) as temporary:
            temporary.write_text("new")
            assert path.read_text() == "old"
        assert path.read_text() == "new"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_appears_whole(self, tmp_path):
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / "a.txt").write_text("a")
            assert not (tmp_path / "folder").exists()
        assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/a.txt"]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    @pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
    def test_a_failure_leaves_what_was_there(self, tmp_path, kind, error):
        path = tmp_path / "a.txt"
        path.write_text("old")
        begin = {"file": lambda place: place.write_text("half"), "folder": Path.mkdir, "nothing": lambda _: None}[kind]

        def fail():
            with replacing(path) as temporary:
                begin(temporary)
                raise error

        with pytest.raises(error):
            fail()
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_that_is_there_is_not_replaced(self, tmp_path):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "a.txt").write_text("old")
        with pytest.raises(OSError, match="folder"), replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
        assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/a.txt"]


class TestKept:
    @pytest.fixture
    def manifest(self, tmp_path):
        (tmp_path / "a.csv").write_text("1")
        keep(tmp_path / "manifest.json", BASIS, [tmp_path / "a.csv"], headline=[1, 2])
        return tmp_path / "manifest.json"

    def test_what_nothing_has_changed_of_is_current(self, manifest):
        assert kept(manifest, BASIS)["headline"] == [1, 2]
        assert kept(manifest, dict(reversed(BASIS.items()))) is not None

    @pytest.mark.parametrize("change", [{"code": "d"}, {"settings": {"level": 0.9, "offsets": (0, 1)}}, {"more": 1}])
    def test_another_basis_is_not(self, manifest, change):
        assert kept(manifest, BASIS | change) is None
        assert rested_on(manifest) == json.loads(json.dumps(BASIS))

    @pytest.mark.parametrize("content", ["2", None])
    def test_a_changed_or_missing_file_is_not(self, manifest, content):
        file = manifest.with_name("a.csv")
        file.unlink() if content is None else file.write_text(content)
        assert kept(manifest, BASIS) is None

    @pytest.mark.parametrize(
        "content", [None, "", "{", "[1]", "1", "{}", '{"rests_on": 3}', '{"files": [], "digest": 1}']
    )
    def test_a_damaged_manifest_is_not(self, manifest, content):
        manifest.unlink() if content is None else manifest.write_text(content)
        assert kept(manifest, BASIS) is None
        assert rested_on(manifest) == {}
