"""The commands: what they read (a configuration, data), what they write (CSV, Markdown, figures).

Lightning is imported by the commands that train, so that ``denoise-heuristic`` does without.
"""

import dataclasses
import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from ..._options import expand_options
from ..errors import in_one_line
from ..options import Accelerator, DataKnobs, Deterministic, Output, Strategy

app = typer.Typer()

RESULTS = Path("outputs/denoising")

Config = Annotated[Path | None, typer.Option(help="A TOML file in place of the packaged configuration.")]
Picture = Annotated[Path | None, typer.Option(help="Any image in place of cameraman.")]
Sigmas = Annotated[list[float] | None, typer.Option("--sigma", help="Of the noise; may be given several times.")]
Dataset = Annotated[str, typer.Option(help="bsds300, or voc2012 where it is present.")]
Seed = Annotated[int | None, typer.Option(help="Of the run.")]
Minutes = Annotated[float | None, typer.Option(min=0, help="Begin no row after so many minutes.")]
Devices = Annotated[int, typer.Option(help="How many devices.")]
Precision = Annotated[str, typer.Option(help="Lightning's: 32-true, bf16-mixed …")]


@dataclasses.dataclass(frozen=True)
class FileKnobs:
    """What is read and written where."""

    output: Output = RESULTS
    work: Annotated[Path, typer.Option(help="Folder of checkpoints, logs and pictures.")] = RESULTS / "work"
    config: Config = None
    data: DataKnobs = dataclasses.field(default_factory=DataKnobs)


@dataclasses.dataclass(frozen=True)
class TableKnobs:
    """Which part of a table to run; what is None is as the configuration says."""

    k: Annotated[list[int] | None, typer.Option("--k", help="Samples along each axis; may be given several times.")] = (
        None
    )
    sigma: Sigmas = None
    method: Annotated[list[str] | None, typer.Option("--method", help="Only this; may be given several times.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """What takes the place of a configuration's entries."""
        entries = {"k": self.k, "sigma": self.sigma, "methods": self.method}
        return {name: values for name, values in entries.items() if values}


@app.command()
@in_one_line()
@expand_options
def denoise_heuristic(
    *,
    files: FileKnobs,
    image: Picture = None,
    sigma: Annotated[float | None, typer.Option(help="Of the noise.")] = None,
    seed: Seed = None,
    padding_mode: Annotated[str | None, typer.Option(help="Past the border: zeros, reflect, border, circular.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search the knobs anew on other images, print them, stop.")
    ] = False,
) -> None:
    """Denoise one image by supports that are read off it, with no learning."""
    from ..results import Results
    from . import heuristic, report, tables

    chosen = read_config("heuristic", files.config, sigma=sigma, seed=seed, padding_mode=padding_mode)
    if tune:
        typer.echo(heuristic.tuned_toml(chosen["sigma"], chosen["seed"], chosen["padding_mode"]))
        return
    name, clean = _picture(image, files.data)
    results = Results(files.output / "heuristic.csv", tables.HEURISTIC_KEY, tables.HEURISTIC_VALUES)
    before = len(results.rows)
    heuristic.run(results, files.work / "heuristic", name, clean, chosen)
    _say_written(results, before, report.write_heuristic(files.output, files.work / "heuristic"))


@app.command()
@in_one_line()
@expand_options
def denoise_tuned(
    *,
    output: Output = RESULTS,
    config: Config = None,
    data: DataKnobs,
    dataset: Dataset = "bsds300",
    sigma: Sigmas = None,
    padding_mode: Annotated[
        list[str] | None, typer.Option(help="Past the border; zeros and reflect by default.")
    ] = None,
    pictures: Annotated[int | None, typer.Option(min=1, help="Only so many of its test pictures.")] = None,
    seed: Seed = None,
) -> None:
    """Denoise the test pictures of a dataset by the filters whose knobs were tuned on other images."""
    from ..results import Results
    from . import average, report, tables
    from .pictures import load, splits

    chosen = read_config("heuristic", config, seed=seed)
    clean = load(splits(dataset, data.data_root, download=data.download)[1][:pictures])
    todo = average.settings(
        dataset,
        sigma or [0.1, 0.3, 0.5],
        padding_mode or ["zeros", "reflect"],
        len(clean),
        chosen["seed"],
        chosen["tuned"],
    )
    results = Results(output / "tuned.csv", tables.TUNED_KEY, tables.TUNED_VALUES)
    before = len(results.rows)
    average.run(results, list(todo), clean, chosen["tuned"])
    _say_written(results, before, report.write_tuned(output))


@app.command()
@in_one_line()
@expand_options
def denoise_image(
    *,
    files: FileKnobs,
    image: Picture = None,
    part: TableKnobs,
    rate: Annotated[list[str] | None, typer.Option(help="paper, or range for our own range test.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Of gradient descent.")] = None,
    seed: Seed = None,
    max_minutes: Minutes = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    deterministic: Deterministic = False,
) -> None:
    """Learn sample locations on one noisy image and test them on another noise."""
    chosen = read_config("image", files.config, rates=rate, iterations=iterations, seed=seed, **part.given)
    name, clean = _picture(image, files.data)
    from ..results import Results
    from . import image as experiment
    from . import pictures, report, tables

    todo = experiment.settings(
        name,
        chosen["methods"],
        chosen["k"],
        chosen["sigma"],
        chosen["rates"],
        iterations=chosen["iterations"],
        seed=chosen["seed"],
        pixels=pictures.pixels_of(clean),
        precision=precision,
    )
    results = Results(files.output / "image.csv", tables.IMAGE_KEY, tables.IMAGE_VALUES)
    options: dict[str, Any] = {"accelerator": accelerator, "deterministic": deterministic}
    before = len(results.rows)
    experiment.run(results, list(todo), clean, files.work / "image", max_minutes, **options)
    _say_written(results, before, report.write_image(files.output, files.work / "image"), "image_curves.csv")


@app.command()
@in_one_line()
@expand_options
def denoise_dataset(
    *,
    files: FileKnobs,
    dataset: Dataset = "bsds300",
    recipe: Annotated[list[str] | None, typer.Option(help="paper or ours; both by default.")] = None,
    part: TableKnobs,
    weights: Annotated[list[str] | None, typer.Option(help="fixed or learnt; both by default.")] = None,
    rate: Annotated[str | None, typer.Option(help="paper, or range for our own range test.")] = None,
    noise: Annotated[str | None, typer.Option(help="8-bit (clamped and rounded) or float.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of training.")] = None,
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 256,
    seed: Seed = None,
    max_minutes: Minutes = None,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    deterministic: Deterministic = False,
) -> None:
    """Learn one layer on a dataset, by the paper's recipe and by ours."""
    from ... import _checks
    from . import pictures

    recipes = recipe or ["paper", "ours"]
    for name in recipes:
        _checks.one_of(name, ("paper", "ours"), "recipe")
    if size < 16:
        raise ValueError(f"`size` (={size}) must be at least 16 pixels")
    # Missing data is said before anything is imported.
    pictures.splits(dataset, files.data.data_root, download=files.data.download)
    whole = read_config("dataset", files.config, seed=seed, rate=rate, noise=noise)
    import torch

    from ..results import Results
    from . import dataset as experiment
    from . import report, tables

    todo: list[dict[str, Any]] = []
    for name in recipes:
        chosen = whole[name] | part.given | ({} if epochs is None else {"epochs": epochs})
        rest = {"epochs": chosen["epochs"], "size": size, "precision": precision, "devices": devices}
        rest |= {name: whole[name] for name in ("seed", "noise", "rate")}
        if name == "paper":
            kinds = weights or chosen["weights"]
            todo += experiment.paper_settings(dataset, chosen["methods"], kinds, chosen["k"], chosen["sigma"], **rest)
        else:
            todo += experiment.our_settings(dataset, chosen["methods"], chosen["k"], chosen["sigma"], **rest)
    results = Results(files.output / "dataset.csv", tables.DATASET_KEY, tables.DATASET_VALUES)
    options: dict[str, Any] = {"accelerator": accelerator, "strategy": strategy, "deterministic": deterministic}
    torch.set_float32_matmul_precision("high")  # as torch's convolutions are
    before = len(results.rows)
    experiment.run(results, todo, files.work / "dataset", files.data.data_root, max_minutes, **options)
    _say_written(results, before, report.write_dataset(files.output))


@app.command()
@in_one_line()
@expand_options
def lr_range(
    *,
    output: Output = RESULTS / "lr_range",
    data: DataKnobs,
    image: Picture = None,
    k: Annotated[int, typer.Option(help="Samples along each axis.")] = 5,
    sigma: Annotated[float, typer.Option(help="Of the noise.")] = 0.1,
    method: Annotated[str, typer.Option(help="utb 0.1, utb 0.9 or deformable.")] = "utb 0.1",
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 42,
    low: Annotated[float, typer.Option(help="The smallest rate.")] = 1.0,
    high: Annotated[float, typer.Option(help="The largest rate.")] = 1e10,
    steps: Annotated[int, typer.Option(help="Rates between them, evenly spread by their logarithm.")] = 100,
    accelerator: Accelerator = "auto",
) -> None:
    """Test learning rates for sample locations on one image, and suggest one."""
    name, clean = _picture(image, data)
    from . import image as experiment

    (setting,) = experiment.settings(name, [method], [k], [sigma], ["paper"], iterations=1, seed=seed)
    sweep = experiment.sweep(setting, clean, low, high, steps, accelerator=accelerator)
    sweep.write(output, f"{method}, k = {k}, σ = {sigma}")
    typer.echo(f"suggested learning rate: {sweep.suggestion:.3g}; wrote lr_range.csv and lr_range.png to {output}")


def read_config(name: str, path: Path | None, **overrides: Any) -> dict[str, Any]:
    """Return the packaged configuration of a command, or that of a file, with what the command line says instead."""
    packaged = resources.files(__package__).joinpath("configs", f"{name}.toml")
    usual = tomllib.loads(packaged.read_text(encoding="utf-8"))
    own = {} if path is None else _read_own(path, usual)
    # A recipe's entries that a file does not name are the packaged ones; its tuned knobs are all there are.
    own |= {key: usual[key] | own[key] for key in ("paper", "ours") if key in own}
    return usual | own | {key: value for key, value in overrides.items() if value is not None}


def _read_own(path: Path, usual: dict[str, Any]) -> dict[str, Any]:
    """Read a user's configuration; what is wrong with it is said with the file's name."""
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_like(own, usual)
        for sigma in own.get("tuned", {}):
            if not 0 < _number(sigma) < math.inf:
                raise ValueError(f"`tuned` has the entry {sigma!r}, which must be a positive σ")
    except ValueError as error:
        raise ValueError(f"`config` {path}: {error}") from None
    return own


def _check_like(own: object, usual: object, name: str = "") -> None:
    """Refuse a value of a type, or a table with an entry, that the packaged configuration has not."""
    if isinstance(usual, dict):
        if not isinstance(own, dict):
            raise ValueError(f"`{name}` (={own!r}) must be a table")
        # By σ there may be others; all have the same filters.
        known = dict.fromkeys(own, next(iter(usual.values()))) if name == "tuned" else usual
        unknown = sorted(set(own) - set(known))
        if unknown:
            raise ValueError(
                f"{f'`{name}` has ' if name else ''}unknown entries {unknown}; there are {', '.join(known)}"
            )
        knobs = name.startswith("tuned.") and not any(isinstance(value, dict) for value in known.values())
        if knobs and set(own) != set(known):
            raise ValueError(f"`{name}` lacks {', '.join(sorted(set(known) - set(own)))}")
        for key, value in own.items():
            _check_like(value, known[key], f"{name}.{key}" if name else key)
    elif isinstance(usual, list):
        if not isinstance(own, list):
            raise ValueError(f"`{name}` (={own!r}) must be a list")
        for value in own:
            _check_like(value, usual[0], name)
    else:
        kinds = (int, float) if isinstance(usual, float) else (type(usual),)
        if not isinstance(own, kinds) or isinstance(own, bool):
            what = {float: "a number", int: "a whole number", str: "a string"}[type(usual)]
            raise ValueError(f"`{name}` (={own!r}) must be {what}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _say_written(results: Any, before: int, pages: list[str], *beside: str) -> None:
    """Name the files that were written: the table, and those beside it, if it has more rows than before."""
    added = [results.path.name, *beside] if len(results.rows) > before else []
    written = ", ".join(added + pages)
    typer.echo(f"wrote {written} to {results.path.parent}" if written else "no rows yet, so nothing was written")


def _picture(path: Path | None, data: DataKnobs) -> tuple[str, Any]:
    """Return an image's name and the image, a tensor (H, W) in [0, 1]: the file that is named, or cameraman."""
    import torch

    from ..data import open_grey
    from .pictures import read_cameraman

    if path is None:
        return "cameraman", read_cameraman(data.data_root, download=data.download)
    image = torch.from_numpy(open_grey(path))
    if min(image.shape) < 16:
        raise ValueError(f"`image` {path} must be at least 16 × 16 pixels, got {tuple(image.shape)}")
    return path.stem, image
