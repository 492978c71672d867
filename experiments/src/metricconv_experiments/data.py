"""Finding, downloading and reading datasets.

Datasets are searched in ``--data-root``, then METRICCONV_DATA, then ~/.cache/metricconv. With ``--download``, a missing
dataset is downloaded to a temporary folder, verified, and then moved.
"""

import dataclasses
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from metricconv._files import writing

# Limits for images and downloads, which protect memory and disk.
MAX_PIXELS = 2**26
MAX_BYTES = 2**30


class MissingData(FileNotFoundError):
    """A dataset was not found; the message states the expected files."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Paths and download of a dataset.

    Args:
        name: name of the dataset.
        paths: possible paths below a root, in order of preference.
        advice: expected files, in one line.
        download: downloads the dataset, verifies it and writes it to the given path; None if it is not public.
    """

    name: str
    paths: tuple[str, ...]
    advice: str
    download: Callable[[Path], None] | None = None


def roots(root: Path | None) -> list[Path]:
    """Return the folders that are searched, in order."""
    folders = [root, os.environ.get("METRICCONV_DATA"), "~/.cache/metricconv"]
    return [Path(folder).expanduser() for folder in folders if folder]


def find(dataset: Dataset, root: Path | None = None, *, download: bool = False) -> Path:
    """Return the path of a dataset; raise ``MissingData`` if it is not found and not downloaded."""
    folders = roots(root)
    for folder in folders:
        for path in dataset.paths:
            if (folder / path).exists():
                return folder / path
    if download and dataset.download is not None:
        target = folders[0] / dataset.paths[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folders[0], prefix=".download.") as temporary:
            downloaded = Path(temporary, dataset.paths[0])
            dataset.download(downloaded)
            if not target.exists():  # otherwise another process was faster
                downloaded.rename(target)
        return target
    hint = "" if dataset.download is None or download else ", or use --download"
    raise MissingData(f"no {dataset.name} in {', '.join(map(str, folders))}: {dataset.advice}{hint}")


def open_gray(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return an image as gray float32 (H, W) in [0, 1], resized to ``size`` = (H, W) regardless of its aspect ratio.

    As in the paper, gray values have 8 bits, and resizing is Pillow's bilinear interpolation.
    """
    gray = _open(path, "L")
    if size is not None:
        gray = gray.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(gray, dtype=np.float32) / 255


def open_color(path: Path) -> np.ndarray:
    """Return an image as float32 RGB (H, W, 3) in [0, 1]."""
    return np.asarray(_open(path, "RGB"), dtype=np.float32) / 255


def _open(path: Path, mode: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"`image` {path} has {image.width} × {image.height} pixels, more than {MAX_PIXELS} in total"
                )
            return image.convert(mode)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"`image` {path} cannot be read as an image: {error}") from None


def fetch(url: str, path: Path) -> None:
    """Download a file; an interrupted download leaves no file."""
    with writing(path) as temporary:
        try:
            with urllib.request.urlopen(url, timeout=60) as source, temporary.open("wb") as target:
                for count, block in enumerate(iter(lambda: source.read(2**20), b"")):
                    if count * 2**20 > MAX_BYTES:
                        raise ValueError(f"{url} is larger than {MAX_BYTES} bytes")
                    target.write(block)
        except OSError as error:
            raise ValueError(f"{url} cannot be downloaded: {error}") from None


def fetch_archive(url: str, inner: str, path: Path, verify: Callable[[Path], None]) -> None:
    """Download a tar archive, check its folder ``inner`` with ``verify``, and move the folder to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        archive, contents = Path(folder) / "archive", Path(folder) / "contents"
        fetch(url, archive)
        try:
            with tarfile.open(archive) as file:
                file.extractall(contents, filter="data")
        except tarfile.TarError as error:
            raise ValueError(f"{url} is not a readable archive: {error}") from None
        verify(contents / inner)
        shutil.move(contents / inner, path)


def files_digest(folder: Path, pattern: str) -> str:
    """Return the SHA-256 of the names and contents of the files in a folder that match a pattern."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob(pattern)):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def pixels_digest(gray: np.ndarray) -> str:
    """Return the SHA-256 of the 8-bit pixels of an image from ``open_gray``, independent of its file format."""
    pixels = np.rint(gray * 255).astype(np.uint8)
    return hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).hexdigest()


def read_saved(path: Path, kind: str, advice: str = "") -> Any:
    """Read a file saved by torch, tensors and plain values only; ``kind`` and ``advice`` are for the error message."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # unpickling a damaged file can raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read as {kind}: {reason}{advice}") from None
