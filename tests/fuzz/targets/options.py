"""Random command lines of filter, balls and compare: exit codes, errors of one line, complete files or none."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import PIL.Image
import tifffile
import zarr

from fuzz.commands import check_command, empty_folder
from metricconv.cli.options import Method, MetricName, Padding, StencilName

__all__ = ["Case", "check", "make"]

NUMBERS = ("0", "1", "2", "3", "5", "7", "-1", "0.5", "1.5", "1e-3", "1e6", "1e-12", "1e-300", "1e300", "1e-320")
NUMBERS += (
    "nan",
    "inf",
    "-inf",
    "-0.0",
    "abc",
    "",
    "٣",
    "0x10",
    "1_0",
    "1,5",
    "99",
    "100",
    "101",
    "1023",
    "4294967296",
)
PATHS = ("color.png", "gray16.png", "alpha.png", "float.npy", "volume.tif", "store.zarr", "folder", "missing.png")
PATHS += ("text.png", "tiny.png", "folder/color.png", ".", "")
OUTPUTS = ("out.png", "gray16.png", "out.tif", "out.npy", "out.jpg", "out.zarr", "new/out.png", "new")
OUTPUTS += ("out", "out.txt", "out.pdf", "out.svg", "folder", "store.zarr", "color.png/out.png", "x" * 300 + ".png", "")
CHOICES = {"--method": Method, "--metric": MetricName, "--stencil": StencilName, "--padding": Padding}
METRIC = ("--metric", "--iota", "--alpha", "--scale", "--eps-omega")
FILES = ("--axes", "--max-pixels", "--force", "--skip-existing")
SHARED = ("--samples", "--stencil", *METRIC, *FILES)
COMMANDS = {
    "filter": ("--method", "--steps", "--size", "--dilation", "--center", "--padding", "--seed", "--tile", *SHARED),
    "balls": ("--at", "--out", "--ball", "--whole", *SHARED[:-1]),
    "compare": ("--clean", "--noise", "--seed", "--out", "--csv", "--samples", *METRIC, *FILES[:3]),
}
FLAGS = ("--center", "--force", "--skip-existing", "--whole")


@dataclasses.dataclass
class Case:
    """A command line, run in a folder of small images."""

    seed: int
    arguments: list[str]
    outputs: list[str]

    def write_inputs(self) -> None:
        """Write the images that the command lines name."""
        generator = np.random.default_rng(0)
        color = generator.integers(0, 255, (12, 14, 4), dtype=np.uint8)
        Path("folder").mkdir()
        for path in ("color.png", "folder/color.png", "folder/b.jpg"):
            PIL.Image.fromarray(color[..., :3]).save(path)
        PIL.Image.fromarray(color).save("alpha.png")
        PIL.Image.fromarray(color[:1, :1, 0]).save("tiny.png")
        PIL.Image.fromarray(generator.integers(0, 65535, (9, 16), dtype=np.uint16)).save("gray16.png")
        np.save("float.npy", generator.random((10, 11)).astype(np.float32))
        tifffile.imwrite("volume.tif", generator.random((3, 6, 7)).astype(np.float32), photometric="minisblack")
        zarr.create_array("store.zarr", data=generator.random((20, 18)), chunks=(8, 8))
        Path("text.png").write_text("not an image")


def make(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    command = rng.choice(["filter", "filter", "filter", "filter", "balls", "compare"])
    # Many commands are valid: only some of the values are drawn from all of them.
    source = rng.choice(PATHS if rng.random() < 0.4 else PATHS[:6])
    arguments, outputs = [command, source], []
    if command == "filter":
        arguments.append(rng.choice(OUTPUTS if rng.random() < 0.4 else OUTPUTS[:6]))
        outputs.append(arguments[-1])
    odd = rng.random() < 0.6
    for option in rng.sample(COMMANDS[command], rng.choice([0, 1, 1, 2, 3, 5])):
        arguments.append(option)
        if option in FLAGS:
            continue
        arguments.append(_value(rng, option, odd))
        if option in ("--out", "--csv"):
            outputs.append(arguments[-1])
    if command != "filter" and "--out" not in arguments:
        outputs.append(f"{Path(source).stem}-{command}.png")
    if rng.random() < 0.05:
        arguments.insert(rng.randint(0, len(arguments)), rng.choice(["--help", "--unknown", "--", "extra", "-k"]))
    return Case(seed, arguments, outputs)


def check(case: Case) -> str:
    """Run the command."""
    with empty_folder():
        case.write_inputs()
        folder_input = case.arguments[0] == "filter" and case.arguments[1] in ("folder", ".")
        return check_command(case.arguments, [Path(path) for path in case.outputs], folder_input)


def _value(rng: random.Random, option: str, odd: bool) -> str:
    if odd and rng.random() < 0.3:
        return rng.choice(NUMBERS)
    match option:
        case "--method" | "--metric" | "--stencil" | "--padding":
            return rng.choice(list(CHOICES[option])).value
        case "--samples":
            return rng.choice(["2", "3", "4", "5", "7"])
        case "--out":
            return rng.choice(OUTPUTS if odd else ("out.png", "out.pdf", "out.svg"))
        case "--csv":
            return rng.choice([*OUTPUTS, "rows.csv"] if odd else ["rows.csv"])
        case "--clean":
            return rng.choice(PATHS)
        case "--at":
            return rng.choice(["3,4", "0,0", "8.5,2", "-1,2", "3", "nan,1", "1,2,3", "1e9,0", "a,b"])
        case "--ball":
            return rng.choice(["tangent", "geodesic", "both", "neither"])
        case "--axes":
            return rng.choice(["yx", "yxc", "cyx", "zyx", "zyxc", "xy", "YX", "yxyx", "q"])
        case "--tile":
            return rng.choice(["16", "17", "32", "1048576"])
        case "--max-pixels":
            return rng.choice(["1", "100", "1000000"])
        case "--seed" | "--steps" | "--dilation" | "--noise":
            return rng.choice(["0", "1", "2", "3"])
        case "--eps-omega" | "--iota":
            return rng.choice(["0.05", "0.3", "1"])
    return rng.choice(["0", "1", "3", "5", "1.5"])
