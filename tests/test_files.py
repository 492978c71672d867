"""Files are written whole, or not at all."""

import re

import pytest

import metricconv as mc
from metricconv._files import read_table, versions, write_table, writing


def test_failed_write_keeps_old_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), writing(path) as temporary:
        temporary.write_text("half of the new")
        raise OSError("disk full")
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"] and path.read_text() == "old"


def test_temporary_file_has_same_suffix_and_parents_are_created(tmp_path):
    with writing(tmp_path / "new" / "image.png") as temporary:
        assert temporary.suffix == ".png"
        temporary.write_bytes(b"whole")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["image.png"]


@pytest.mark.parametrize("letter", ["a", "é"])
def test_longest_file_names_are_written(tmp_path, letter):
    path = tmp_path / (letter * (250 // len(letter.encode())) + ".png")
    with writing(path) as temporary:
        temporary.write_bytes(b"whole")
    assert list(tmp_path.iterdir()) == [path]


def test_same_path_can_be_written_concurrently(tmp_path):
    with writing(tmp_path / ("a" * 60 + "1.csv")) as first, writing(tmp_path / ("a" * 60 + "2.csv")) as second:
        first.write_text("1")
        second.write_text("2")
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["1", "2"]


def test_permissions_and_links_are_kept(tmp_path):
    private, link = tmp_path / "private.txt", tmp_path / "link.txt"
    private.write_text("old")
    private.chmod(0o600)
    link.symlink_to(private)
    with writing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and private.read_text() == "new" and private.stat().st_mode & 0o777 == 0o600


def test_link_and_target_may_have_different_suffixes(tmp_path):
    link = tmp_path / "image.png"
    link.symlink_to(tmp_path / "blob")
    with writing(link) as temporary:
        assert temporary.suffix == ".png"
        temporary.write_text("new")
    assert link.is_symlink() and (tmp_path / "blob").read_text() == "new"


def test_circular_link_is_replaced(tmp_path):
    link = tmp_path / "loop.txt"
    link.symlink_to(link)
    with writing(link) as temporary:
        temporary.write_text("new")
    assert link.read_text() == "new"


def test_tables_round_trip(tmp_path):
    rows = [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]
    write_table(tmp_path / "t.csv", [rows[0], {"a": 2}])
    assert read_table(tmp_path / "t.csv") == rows
    assert read_table(tmp_path / "absent.csv") == []


@pytest.mark.parametrize("row", ["1", "1,2,3"])
def test_incomplete_row_raises(tmp_path, row):
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n0,0\n{row}")
    with pytest.raises(ValueError, match=r"t.csv, line 3: expected 2 columns, got [013]"):
        read_table(path)


def test_versions_include_packages():
    found = versions("scikit-image")
    assert {"metricconv", "torch", "python", "scikit-image"} == set(found)
    assert re.fullmatch(rf"{re.escape(mc.__version__)}\+[0-9a-f]{{8}}", found["metricconv"])
