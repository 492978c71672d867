"""Datasets: where they are looked for, what is said when they lack, and what comes over a (file) URL."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from metricconv.experiments import data

TOY = data.Dataset("toy", ("toy.png", "old/toy.png"), "put the picture there as toy.png")


@pytest.fixture(autouse=True)
def no_usual_roots(tmp_path, monkeypatch):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_named_root_comes_before_the_environment_and_that_before_the_cache(tmp_path, monkeypatch):
    for name in ("named", "environment", "home/.cache/metricconv"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "toy.png").touch()
    monkeypatch.setenv("METRICCONV_DATA", str(tmp_path / "environment"))
    assert data.find(TOY, tmp_path / "named") == tmp_path / "named" / "toy.png"
    assert data.find(TOY) == tmp_path / "environment" / "toy.png"
    monkeypatch.delenv("METRICCONV_DATA")
    assert data.find(TOY) == tmp_path / "home/.cache/metricconv/toy.png"


def test_a_dataset_may_lie_at_its_second_place(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/toy.png").touch()
    assert data.find(TOY, tmp_path) == tmp_path / "old/toy.png"


def test_a_missing_dataset_says_in_one_line_what_to_put_where(tmp_path):
    with pytest.raises(data.MissingData) as caught:
        data.find(TOY, tmp_path / "nowhere", download=True)
    message = str(caught.value)
    assert "no toy in" in message and str(tmp_path / "nowhere") in message and "as toy.png" in message
    assert "\n" not in message and "--download" not in message  # it has no address to download from


def test_download_fills_the_first_root(tmp_path):
    toy = data.Dataset("toy", ("toy.txt",), "put it there", lambda path: data.fetch(source, path))
    (tmp_path / "source").write_text("hello")
    source = (tmp_path / "source").as_uri()
    with pytest.raises(data.MissingData, match="--download"):
        data.find(toy, tmp_path / "root")
    assert data.find(toy, tmp_path / "root", download=True).read_text() == "hello"
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["toy.txt"]


def test_a_download_that_was_cut_short_is_fetched_again(tmp_path):
    """As torchvision's are, which are unpacked where they are downloaded to."""
    interrupted = [True, False]

    def unpack(path):
        path.mkdir(parents=True)
        (path / "a").touch()
        if interrupted.pop(0):
            raise KeyboardInterrupt
        (path / "b").touch()

    toy = data.Dataset("toy", ("Toy/raw",), "put it there", unpack)
    with pytest.raises(KeyboardInterrupt):
        data.find(toy, tmp_path / "root", download=True)
    assert not (tmp_path / "root/Toy/raw").exists()
    found = data.find(toy, tmp_path / "root", download=True)
    assert found == tmp_path / "root/Toy/raw" and sorted(path.name for path in found.iterdir()) == ["a", "b"]
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["Toy"]


def test_a_download_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "source").write_bytes(b"hello")
    data.fetch((tmp_path / "source").as_uri(), tmp_path / "here/got")
    assert (tmp_path / "here/got").read_bytes() == b"hello"
    with pytest.raises(ValueError, match="cannot be downloaded"):
        data.fetch((tmp_path / "absent").as_uri(), tmp_path / "here/none")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["got"]


def _archive(path, name="BSD/images/a.txt"):
    with tarfile.open(path, "w:gz") as file:
        member = tarfile.TarInfo(name)
        member.size = 3
        file.addfile(member, io.BytesIO(b"abc"))
    return path.as_uri()


def test_an_archive_is_verified_before_it_takes_its_place(tmp_path):
    url = _archive(tmp_path / "a.tgz")
    data.fetch_archive(url, "BSD", tmp_path / "root/BSD", lambda folder: None)
    assert (tmp_path / "root/BSD/images/a.txt").read_bytes() == b"abc"

    def refuse(folder):
        raise ValueError("wrong contents")

    with pytest.raises(ValueError, match="wrong contents"):
        data.fetch_archive(url, "BSD", tmp_path / "root/again", refuse)
    (tmp_path / "broken").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not an archive"):
        data.fetch_archive((tmp_path / "broken").as_uri(), "BSD", tmp_path / "root/again", refuse)
    with pytest.raises(ValueError, match="not an archive"):  # a member that would be written elsewhere
        data.fetch_archive(_archive(tmp_path / "evil.tgz", "../out"), "BSD", tmp_path / "root/again", refuse)
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["BSD"]


def test_digests_follow_names_contents_and_pixels(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    first = data.files_digest(tmp_path, "*.txt")
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    assert data.files_digest(tmp_path, "*.txt") != first
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for name in ("a.png", "a.bmp"):
        Image.fromarray(pixels).save(tmp_path / name)
    Image.fromarray(pixels.reshape(4, 3)).save(tmp_path / "b.png")
    first, same, other = (data.pixels_digest(data.open_grey(tmp_path / name)) for name in ("a.png", "a.bmp", "b.png"))
    assert first == same != other


def test_pictures_become_grey_and_take_the_size_that_is_asked_for(tmp_path):
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "red.png")
    grey = data.open_grey(tmp_path / "red.png", (3, 2))
    assert grey.shape == (3, 2) and grey.dtype == np.float32
    np.testing.assert_allclose(grey, 76 / 255, atol=1e-6)  # 0.299 · 255


def test_files_that_are_no_pictures_or_too_large_are_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text\.png cannot be read as a picture"):
        data.open_grey(tmp_path / "text.png")
    Image.effect_noise((40, 40), 50).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:600])
    with pytest.raises(ValueError, match=r"cut\.png cannot be read"):
        data.open_grey(tmp_path / "cut.png")
    monkeypatch.setattr(data, "MOST_PIXELS", 1000)
    with pytest.raises(ValueError, match="40 × 40 pixels, more than 1000"):
        data.open_grey(tmp_path / "whole.png")
