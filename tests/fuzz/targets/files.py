"""Damaged files: reading and filtering them gives a result or an error of one line, and no incomplete output."""

import dataclasses
import random
from pathlib import Path
from unittest import mock

from fuzz.commands import NO_MEMORY, check_command, empty_folder
from fuzz.damage import DAMAGES, FORMATS, damage_store, sample, store
from metricconv._errors import UserError
from metricconv.io import images, tiled

__all__ = ["Case", "check", "make"]

MAX_PIXELS = 100_000
MAX_TILES = 2**11  # scheduling of the 2**16 that users may have takes minutes


@dataclasses.dataclass
class Case:
    """A file and how it is read; its content is that of the seed."""

    seed: int
    format: str
    damage: str
    suffix: str
    arguments: list[str] | None  # of the command; None reads the file by ``images.read``

    def write(self) -> Path:
        """Write the file, in the current folder."""
        rng, path = random.Random(self.seed), Path(f"in.{self.suffix}")
        if self.format == "zarr":
            store(rng, path)
            damage_store(rng, path)
        else:
            path.write_bytes(DAMAGES[self.damage](rng, bytearray(sample(rng, self.format)), self.format))
        return path


def make(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed + 2**32)
    format = rng.choice(["png", "png", "tif", "tif", "tif", "npy", "npy", "zarr", "zarr", *FORMATS])
    damage = "of a store" if format == "zarr" else rng.choice(["metadata", *DAMAGES])
    suffix = rng.choice(FORMATS) if format != "zarr" and rng.random() < 0.1 else format
    if format != "zarr" and rng.random() < 0.5:
        return Case(seed, format, damage, suffix, None)
    arguments = ["filter", f"in.{suffix}", f"out.{rng.choice([suffix, suffix, 'npy', 'png', 'tif', 'zarr'])}"]
    arguments += rng.choice([["-m", "box", "-k", "3"], ["-k", "3"], ["-m", "geodesic", "-k", "3"]])
    if suffix == "zarr" or arguments[2].endswith("zarr") or (suffix in ("tif", "npy") and rng.random() < 0.4):
        arguments += ["--tile", "16"]
    else:
        arguments += ["--max-pixels", str(MAX_PIXELS)]
    return Case(seed, format, damage, suffix, arguments)


def check(case: Case) -> str:
    """Read or filter the file."""
    with empty_folder(), mock.patch.object(tiled, "MAX_TILES", MAX_TILES):
        path = case.write()
        if case.arguments is not None:
            return check_command(case.arguments, [Path(case.arguments[2])])
        try:
            image = images.read(path, max_pixels=MAX_PIXELS)
        except UserError as error:
            assert str(path) in str(error) and not NO_MEMORY.search(str(error)), error
            return "error"
        assert image.pixels.size > 0 and image.spatial
        return "success"
