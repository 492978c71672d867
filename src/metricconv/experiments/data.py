"""Where datasets lie, what to put where when one is missing, and files opened with care.

A dataset is looked for below ``--data-root``, then METRICCONV_DATA, then ~/.cache/metricconv. With ``--download`` a
missing one is fetched from its home and verified in a folder of its own, and moved to its place whole.
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

from .._files import writing

# A picture or a download beyond this is refused before it fills the memory or the disk.
MOST_PIXELS = 2**26
MOST_BYTES = 2**30


class MissingData(FileNotFoundError):
    """No root has the dataset; the message says what to put where."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset by name: where it lies below a root, and how to come by it.

    Args:
        name: as users say it.
        places: paths below a root, any of which is the dataset, in order of preference.
        advice: what to put where, in one line.
        download: fetches the dataset, verifies it and writes it to a path that is ``places[0]`` below some empty
            folder; None if it has no public address.
    """

    name: str
    places: tuple[str, ...]
    advice: str
    download: Callable[[Path], None] | None = None


def roots(root: Path | None) -> list[Path]:
    """Return the folders that are searched, in order."""
    named = [root, os.environ.get("METRICCONV_DATA"), "~/.cache/metricconv"]
    return [Path(folder).expanduser() for folder in named if folder]


def find(dataset: Dataset, root: Path | None = None, *, download: bool = False) -> Path:
    """Return where a dataset lies; raise ``MissingData`` if nowhere and it may not, or cannot, be downloaded."""
    folders = roots(root)
    for folder in folders:
        for place in dataset.places:
            if (folder / place).exists():
                return folder / place
    if download and dataset.download is not None:
        path = folders[0] / dataset.places[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folders[0], prefix=".download.") as temporary:
            whole = Path(temporary, dataset.places[0])
            dataset.download(whole)
            if not path.exists():  # else another process was faster
                whole.rename(path)
        return path
    hint = "" if dataset.download is None or download else ", or let --download fetch it"
    raise MissingData(f"no {dataset.name} in {', '.join(map(str, folders))}: {dataset.advice}{hint}")


def open_grey(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return a picture as grey float32 (H, W) in [0, 1], resized to ``size`` = (H, W) without keeping its proportions.

    Greys are 8-bit and resizing is Pillow's bilinear one, as in the paper's protocol.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(
                    f"`image` {path} has {image.width} × {image.height} pixels, more than {MOST_PIXELS} in all"
                )
            grey = image.convert("L")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"`image` {path} cannot be read as a picture: {error}") from None
    if size is not None:
        grey = grey.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(grey, dtype=np.float32) / 255


def fetch(url: str, path: Path) -> None:
    """Download a file, whole or not at all."""
    with writing(path) as temporary:
        try:
            with urllib.request.urlopen(url, timeout=60) as source, temporary.open("wb") as target:
                for count, block in enumerate(iter(lambda: source.read(2**20), b"")):
                    if count * 2**20 > MOST_BYTES:
                        raise ValueError(f"{url} is larger than {MOST_BYTES} bytes")
                    target.write(block)
        except OSError as error:
            raise ValueError(f"{url} cannot be downloaded: {error}") from None


def fetch_archive(url: str, inner: str, path: Path, verify: Callable[[Path], None]) -> None:
    """Download a tar archive and move its folder ``inner`` to ``path`` once ``verify`` has found no fault with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        archive, contents = Path(folder) / "archive", Path(folder) / "contents"
        fetch(url, archive)
        try:
            with tarfile.open(archive) as file:
                file.extractall(contents, filter="data")
        except tarfile.TarError as error:
            raise ValueError(f"{url} is not an archive that can be read: {error}") from None
        verify(contents / inner)
        shutil.move(contents / inner, path)


def files_digest(folder: Path, pattern: str) -> str:
    """Return one SHA-256 of the names and contents of the files of a folder that match."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob(pattern)):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def pixels_digest(grey: np.ndarray) -> str:
    """Return the SHA-256 of the pixels of a picture that ``open_grey`` opened: the same for each lossless format."""
    pixels = np.rint(grey * 255).astype(np.uint8)
    return hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).hexdigest()


def read_saved(path: Path, what: str, advice: str = "") -> Any:
    """Read what torch saved, tensors and plain values alone; a file that is damaged is refused as no ``what``."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # whatever unpickling a file that is none may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read as {what}: {reason}{advice}") from None
