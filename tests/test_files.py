"""Files are written whole, or not at all."""

import re

import pytest

import metricconv as mc
from metricconv._files import read_table, versions, write_table, writing


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), writing(path) as temporary:
        temporary.write_text("half of the new")
        raise OSError("disk full")
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"] and path.read_text() == "old"


def test_a_written_file_keeps_its_suffix_on_the_way_and_makes_its_folder(tmp_path):
    with writing(tmp_path / "new" / "picture.png") as temporary:
        assert temporary.suffix == ".png"
        temporary.write_bytes(b"whole")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["picture.png"]


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_name_as_long_as_names_can_be_is_written(tmp_path, letter):
    path = tmp_path / (letter * (250 // len(letter.encode())) + ".png")
    with writing(path) as temporary:
        temporary.write_bytes(b"whole")
    assert list(tmp_path.iterdir()) == [path]


def test_two_files_can_be_written_at_once(tmp_path):
    with writing(tmp_path / ("a" * 60 + "1.csv")) as first, writing(tmp_path / ("a" * 60 + "2.csv")) as second:
        first.write_text("1")
        second.write_text("2")
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["1", "2"]


def test_a_replaced_file_keeps_its_permissions_and_a_link_its_place(tmp_path):
    private, link = tmp_path / "private.txt", tmp_path / "link.txt"
    private.write_text("old")
    private.chmod(0o600)
    link.symlink_to(private)
    with writing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and private.read_text() == "new" and private.stat().st_mode & 0o777 == 0o600


def test_a_link_may_have_another_suffix_than_its_file(tmp_path):
    link = tmp_path / "picture.png"
    link.symlink_to(tmp_path / "blob")
    with writing(link) as temporary:
        assert temporary.suffix == ".png"
        temporary.write_text("new")
    assert link.is_symlink() and (tmp_path / "blob").read_text() == "new"


def test_a_link_to_itself_is_replaced(tmp_path):
    link = tmp_path / "loop.txt"
    link.symlink_to(link)
    with writing(link) as temporary:
        temporary.write_text("new")
    assert link.read_text() == "new"


def test_tables_come_back_as_written(tmp_path):
    rows = [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]
    write_table(tmp_path / "t.csv", [rows[0], {"a": 2}])
    assert read_table(tmp_path / "t.csv") == rows
    assert read_table(tmp_path / "absent.csv") == []


@pytest.mark.parametrize("row", ["1", "1,2,3"])
def test_a_row_of_another_length_is_named(tmp_path, row):
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n0,0\n{row}")
    with pytest.raises(ValueError, match=r"t.csv, line 3: has not as many cells as there are columns"):
        read_table(path)


def test_versions_name_the_packages_behind_a_result():
    found = versions("scikit-image")
    assert {"metricconv", "torch", "python", "scikit-image"} == set(found)
    assert re.fullmatch(rf"{re.escape(mc.__version__)}\+[0-9a-f]{{8}}", found["metricconv"])
