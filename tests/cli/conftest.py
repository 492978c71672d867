"""A working folder of its own for each test, and a small photograph."""

import pytest


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photo():
    np, skimage = pytest.importorskip("numpy"), pytest.importorskip("skimage")
    Image = pytest.importorskip("PIL.Image")
    image = skimage.transform.resize(skimage.data.astronaut(), (36, 48), anti_aliasing=True)
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save("photo.png")
    return "photo.png"
