"""Datasets: searched folders, errors for missing ones, and downloads from (file) URLs."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from metricconv_experiments import data

TOY = data.Dataset("toy", ("toy.png", "old/toy.png"), "expected toy.png")


@pytest.fixture(autouse=True)
def no_usual_roots(tmp_path, monkeypatch):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_roots_are_searched_in_order(tmp_path, monkeypatch):
    for name in ("named", "environment", "home/.cache/metricconv"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "toy.png").touch()
    monkeypatch.setenv("METRICCONV_DATA", str(tmp_path / "environment"))
    assert data.find(TOY, tmp_path / "named") == tmp_path / "named" / "toy.png"
    assert data.find(TOY) == tmp_path / "environment" / "toy.png"
    monkeypatch.delenv("METRICCONV_DATA")
    assert data.find(TOY) == tmp_path / "home/.cache/metricconv/toy.png"


def test_dataset_is_found_at_second_path(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/toy.png").touch()
    assert data.find(TOY, tmp_path) == tmp_path / "old/toy.png"


def test_missing_dataset_error_states_expected_files(tmp_path):
    with pytest.raises(data.MissingData) as caught:
        data.find(TOY, tmp_path / "nowhere", download=True)
    message = str(caught.value)
    assert "no toy in" in message and str(tmp_path / "nowhere") in message and "expected toy.png" in message
    assert "\n" not in message and "--download" not in message  # it has no address to download from


def test_download_fills_the_first_root(tmp_path):
    toy = data.Dataset("toy", ("toy.txt",), "put it there", lambda path: data.fetch(source, path))
    (tmp_path / "source").write_text("hello")
    source = (tmp_path / "source").as_uri()
    with pytest.raises(data.MissingData, match="--download"):
        data.find(toy, tmp_path / "root")
    assert data.find(toy, tmp_path / "root", download=True).read_text() == "hello"
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["toy.txt"]


def test_interrupted_download_is_repeated(tmp_path):
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


def test_failed_download_leaves_no_files(tmp_path):
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


def test_archive_is_verified_before_it_is_moved(tmp_path):
    url = _archive(tmp_path / "a.tgz")
    data.fetch_archive(url, "BSD", tmp_path / "root/BSD", lambda folder: None)
    assert (tmp_path / "root/BSD/images/a.txt").read_bytes() == b"abc"

    def fail(folder):
        raise ValueError("wrong contents")

    with pytest.raises(ValueError, match="wrong contents"):
        data.fetch_archive(url, "BSD", tmp_path / "root/again", fail)
    (tmp_path / "broken").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a readable archive"):
        data.fetch_archive((tmp_path / "broken").as_uri(), "BSD", tmp_path / "root/again", fail)
    with pytest.raises(ValueError, match="not a readable archive"):  # a member that would be written elsewhere
        data.fetch_archive(_archive(tmp_path / "evil.tgz", "../out"), "BSD", tmp_path / "root/again", fail)
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
    first, same, other = (data.pixels_digest(data.open_gray(tmp_path / name)) for name in ("a.png", "a.bmp", "b.png"))
    assert first == same != other


def test_images_are_converted_to_gray_and_resized(tmp_path):
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "red.png")
    gray = data.open_gray(tmp_path / "red.png", (3, 2))
    assert gray.shape == (3, 2) and gray.dtype == np.float32
    np.testing.assert_allclose(gray, 76 / 255, atol=1e-6)  # 0.299 · 255


def test_invalid_or_large_image_files_raise(tmp_path, monkeypatch):
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"text\.png cannot be read as an image"):
        data.open_gray(tmp_path / "text.png")
    Image.effect_noise((40, 40), 50).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:600])
    with pytest.raises(ValueError, match=r"cut\.png cannot be read"):
        data.open_gray(tmp_path / "cut.png")
    monkeypatch.setattr(data, "MAX_PIXELS", 1000)
    with pytest.raises(ValueError, match="40 × 40 pixels, more than 1000"):
        data.open_gray(tmp_path / "whole.png")
