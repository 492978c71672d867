"""Commands that read a configuration and data and write CSV, Markdown and figures.

Only the commands that train import Lightning.
"""

import dataclasses
import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from metricconv._options import expand_options

from ..errors import errors_in_one_line
from ..options import Accelerator, DataOptions, Deterministic, Output, Strategy

app = typer.Typer()

RESULTS = Path("outputs/denoising")

Config = Annotated[Path | None, typer.Option(help="TOML file that overrides the packaged configuration.")]
ImageFile = Annotated[Path | None, typer.Option(help="Image file. Default: cameraman.")]
Sigmas = Annotated[
    list[float] | None, typer.Option("--sigma", help="Standard deviation of the noise; may be repeated.")
]
Dataset = Annotated[str, typer.Option(help="Dataset: bsds300 or voc2012.")]
Seed = Annotated[int | None, typer.Option(help="Random seed.")]
Minutes = Annotated[float | None, typer.Option(min=0, help="Start no row after this many minutes.")]
Devices = Annotated[int, typer.Option(help="Number of devices.")]
Precision = Annotated[str, typer.Option(help="Precision in Lightning's terms: 32-true, bf16-mixed …")]


@dataclasses.dataclass(frozen=True)
class TableFiles:
    """Paths of data, results and checkpoints."""

    output: Output = RESULTS
    work: Annotated[Path, typer.Option(help="Folder for checkpoints, logs and images.")] = RESULTS / "work"
    config: Config = None
    data: DataOptions = dataclasses.field(default_factory=DataOptions)


@dataclasses.dataclass(frozen=True)
class TableSelection:
    """Selected rows of a table; None selects those of the configuration."""

    k: Annotated[list[int] | None, typer.Option("--k", help="Samples along each axis; may be repeated.")] = None
    sigma: Sigmas = None
    method: Annotated[list[str] | None, typer.Option("--method", help="Method; may be repeated.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """Entries that override those of the configuration."""
        entries = {"k": self.k, "sigma": self.sigma, "methods": self.method}
        return {name: values for name, values in entries.items() if values}


@app.command()
@errors_in_one_line()
@expand_options
def denoise_heuristic(
    *,
    files: TableFiles,
    image: ImageFile = None,
    sigma: Annotated[float | None, typer.Option(help="Standard deviation of the noise.")] = None,
    seed: Seed = None,
    padding_mode: Annotated[
        str | None, typer.Option(help="Padding mode at image borders: zeros, reflect, border or circular.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Tune the filter parameters on other images, print them and exit.")
    ] = False,
) -> None:
    """Denoise an image by filters whose supports are computed from it, without learning."""
    from ..results import Results
    from . import heuristic, report, tables

    values = read_config("heuristic", files.config, sigma=sigma, seed=seed, padding_mode=padding_mode)
    if tune:
        typer.echo(heuristic.tuned_toml(values["sigma"], values["seed"], values["padding_mode"]))
        return
    name, clean = _read_image(image, files.data)
    results = Results(files.output / "heuristic.csv", tables.HEURISTIC_KEY, tables.HEURISTIC_VALUES)
    before = len(results.rows)
    heuristic.run(results, files.work / "heuristic", name, clean, values)
    _print_written(results, before, report.write_heuristic(files.output, files.work / "heuristic"))


@app.command()
@errors_in_one_line()
@expand_options
def denoise_tuned(
    *,
    output: Output = RESULTS,
    config: Config = None,
    data: DataOptions,
    dataset: Dataset = "bsds300",
    sigma: Sigmas = None,
    padding_mode: Annotated[
        list[str] | None,
        typer.Option(help="Padding mode at image borders; may be repeated. Default: zeros and reflect."),
    ] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Number of test images. Default: all.")] = None,
    seed: Seed = None,
) -> None:
    """Denoise the test images of a dataset by filters that were tuned on other images."""
    from ..results import Results
    from . import average, report, tables
    from .inputs import load, splits

    values = read_config("heuristic", config, seed=seed)
    clean = load(splits(dataset, data.data_root, download=data.download)[1][:images])
    todo = average.settings(
        dataset,
        sigma or [0.1, 0.3, 0.5],
        padding_mode or ["zeros", "reflect"],
        len(clean),
        values["seed"],
        values["tuned"],
    )
    results = Results(output / "tuned.csv", tables.TUNED_KEY, tables.TUNED_VALUES)
    before = len(results.rows)
    average.run(results, list(todo), clean, values["tuned"])
    _print_written(results, before, report.write_tuned(output))


@app.command()
@errors_in_one_line()
@expand_options
def denoise_benchmark(
    *,
    output: Output = RESULTS,
    data: DataOptions,
    dataset: Annotated[
        list[str] | None, typer.Option(help="BSD68, Set12 or 'BSDS300 color'; may be repeated. Default: all.")
    ] = None,
    sigma: Annotated[
        list[int] | None, typer.Option(help="Standard deviation of the noise, of 255; may be repeated.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Random seed; may be repeated. Default: 0, 1 and 2.")] = None,
    images: Annotated[str, typer.Option(help="Range of images, such as 0:10.")] = ":",
    tune: Annotated[
        bool, typer.Option("--tune", help="Tune the baselines that lack parameters on training images, and exit.")
    ] = False,
    method: Annotated[list[str] | None, typer.Option(help="Baseline to tune; may be repeated. Default: all.")] = None,
) -> None:
    """Compare `denoise` with classical filters, given the noise level, on gray and color images."""
    from . import benchmark

    datasets, sigmas = dataset or list(benchmark.DATASETS), sigma or list(benchmark.SIGMAS)
    if method and not tune:
        raise ValueError("`method` requires `tune`")
    try:
        chosen = slice(*(int(part) if part else None for part in images.split(":", 1)))
    except ValueError:
        raise ValueError(f"`images` (={images!r}) must be a range such as 0:10") from None
    if tune:
        names = method or list(benchmark.BASELINES)
        for color in sorted({name == benchmark.COLOR for name in datasets}):
            benchmark.tune(output, names, sigmas, color, data.data_root)
        return
    for name in datasets:
        seeds = benchmark.SEEDS if seed is None else seed
        benchmark.run(output, name, sigmas, seeds, chosen, data.data_root, download=data.download)
    typer.echo(f"wrote benchmark.csv, {', '.join(benchmark.write_page(output))} to {output}")


@app.command()
@errors_in_one_line()
@expand_options
def denoise_image(
    *,
    files: TableFiles,
    image: ImageFile = None,
    part: TableSelection,
    rate: Annotated[list[str] | None, typer.Option(help="Learning rate: paper, or range (from a range test).")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations of gradient descent.")] = None,
    seed: Seed = None,
    max_minutes: Minutes = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    deterministic: Deterministic = False,
) -> None:
    """Learn sampling locations on one noisy image and test them with other noise."""
    values = read_config("image", files.config, rates=rate, iterations=iterations, seed=seed, **part.given)
    name, clean = _read_image(image, files.data)
    from ..results import Results
    from . import image as experiment
    from . import inputs, report, tables

    todo = experiment.settings(
        name,
        values["methods"],
        values["k"],
        values["sigma"],
        values["rates"],
        iterations=values["iterations"],
        seed=values["seed"],
        pixels=inputs.pixels_of(clean),
        precision=precision,
    )
    results = Results(files.output / "image.csv", tables.IMAGE_KEY, tables.IMAGE_VALUES)
    options: dict[str, Any] = {"accelerator": accelerator, "deterministic": deterministic}
    before = len(results.rows)
    experiment.run(results, list(todo), clean, files.work / "image", max_minutes, **options)
    _print_written(results, before, report.write_image(files.output, files.work / "image"), "image_curves.csv")


@app.command()
@errors_in_one_line()
@expand_options
def denoise_dataset(
    *,
    files: TableFiles,
    dataset: Dataset = "bsds300",
    recipe: Annotated[list[str] | None, typer.Option(help="Training recipe: paper or ours. Default: both.")] = None,
    part: TableSelection,
    weights: Annotated[list[str] | None, typer.Option(help="Kernel weights: fixed or learnt. Default: both.")] = None,
    rate: Annotated[str | None, typer.Option(help="Learning rate: paper, or range (from a range test).")] = None,
    noise: Annotated[str | None, typer.Option(help="Noise: 8-bit (clamped and rounded) or float.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Training epochs.")] = None,
    size: Annotated[int, typer.Option(help="Height and width of the images in pixels.")] = 256,
    seed: Seed = None,
    max_minutes: Minutes = None,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    deterministic: Deterministic = False,
) -> None:
    """Train one layer on a dataset, with the paper's recipe and with ours."""
    from metricconv import _checks

    from . import inputs

    recipes = recipe or ["paper", "ours"]
    for name in recipes:
        _checks.one_of(name, ("paper", "ours"), "recipe")
    if size < 16:
        raise ValueError(f"`size` (={size}) must be at least 16 pixels")
    # Reports missing data before torch is imported.
    inputs.splits(dataset, files.data.data_root, download=files.data.download)
    config = read_config("dataset", files.config, seed=seed, rate=rate, noise=noise)
    import torch

    from ..results import Results
    from . import dataset as experiment
    from . import report, tables

    todo: list[dict[str, Any]] = []
    for name in recipes:
        values = config[name] | part.given | ({} if epochs is None else {"epochs": epochs})
        rest = {"epochs": values["epochs"], "size": size, "precision": precision, "devices": devices}
        rest |= {name: config[name] for name in ("seed", "noise", "rate")}
        if name == "paper":
            kinds = weights or values["weights"]
            todo += experiment.paper_settings(dataset, values["methods"], kinds, values["k"], values["sigma"], **rest)
        else:
            todo += experiment.our_settings(dataset, values["methods"], values["k"], values["sigma"], **rest)
    results = Results(files.output / "dataset.csv", tables.DATASET_KEY, tables.DATASET_VALUES)
    options: dict[str, Any] = {"accelerator": accelerator, "strategy": strategy, "deterministic": deterministic}
    torch.set_float32_matmul_precision("high")  # the default for convolutions
    before = len(results.rows)
    experiment.run(results, todo, files.work / "dataset", files.data.data_root, max_minutes, **options)
    _print_written(results, before, report.write_dataset(files.output))


@app.command()
@errors_in_one_line()
@expand_options
def lr_range(
    *,
    output: Output = RESULTS / "lr_range",
    data: DataOptions,
    image: ImageFile = None,
    k: Annotated[int, typer.Option(help="Samples along each axis.")] = 5,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise.")] = 0.1,
    method: Annotated[str, typer.Option(help="Method: utb 0.1, utb 0.9 or deformable.")] = "utb 0.1",
    seed: Annotated[int, typer.Option(help="Random seed of the noise.")] = 42,
    low: Annotated[float, typer.Option(help="Lowest learning rate.")] = 1.0,
    high: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e10,
    steps: Annotated[int, typer.Option(help="Number of logarithmically spaced rates.")] = 100,
    accelerator: Accelerator = "auto",
) -> None:
    """Run a learning-rate range test for sampling locations on one image."""
    name, clean = _read_image(image, data)
    from . import image as experiment

    (setting,) = experiment.settings(name, [method], [k], [sigma], ["paper"], iterations=1, seed=seed)
    sweep = experiment.sweep(setting, clean, low, high, steps, accelerator=accelerator)
    sweep.write(output, f"{method}, k = {k}, σ = {sigma}")
    typer.echo(f"suggested learning rate: {sweep.suggestion:.3g}; wrote lr_range.csv and lr_range.png to {output}")


def read_config(name: str, path: Path | None, **overrides: Any) -> dict[str, Any]:
    """Return the configuration of a command: packaged values, overridden by a file and by command-line options."""
    packaged = resources.files(__package__).joinpath("configs", f"{name}.toml")
    default = tomllib.loads(packaged.read_text(encoding="utf-8"))
    given = {} if path is None else _read_file(path, default)
    # Recipes in a file are merged with the packaged ones; tuned parameters replace them.
    given |= {key: default[key] | given[key] for key in ("paper", "ours") if key in given}
    return default | given | {key: value for key, value in overrides.items() if value is not None}


def _read_file(path: Path, default: dict[str, Any]) -> dict[str, Any]:
    """Read and check a configuration file; errors name the file."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_like(given, default)
        for sigma in given.get("tuned", {}):
            if not 0 < _number(sigma) < math.inf:
                raise ValueError(f"`tuned` has the entry {sigma!r}, expected a positive σ")
    except ValueError as error:
        raise ValueError(f"`config` {path}: {error}") from None
    return given


def _check_like(given: object, default: object, name: str = "") -> None:
    """Raise ValueError for types and entries that the packaged configuration does not have."""
    if isinstance(default, dict):
        if not isinstance(given, dict):
            raise ValueError(f"`{name}` (={given!r}) must be a table")
        # Entries of "tuned" may have any σ; all have the same filters.
        known = dict.fromkeys(given, next(iter(default.values()))) if name == "tuned" else default
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(
                f"{f'`{name}` has ' if name else ''}unknown entries {unknown}; known are {', '.join(known)}"
            )
        is_filter = name.startswith("tuned.") and not any(isinstance(value, dict) for value in known.values())
        if is_filter and set(given) != set(known):
            raise ValueError(f"`{name}` has no {', '.join(sorted(set(known) - set(given)))}")
        for key, value in given.items():
            _check_like(value, known[key], f"{name}.{key}" if name else key)
    elif isinstance(default, list):
        if not isinstance(given, list):
            raise ValueError(f"`{name}` (={given!r}) must be a list")
        for value in given:
            _check_like(value, default[0], name)
    else:
        kinds = (int, float) if isinstance(default, float) else (type(default),)
        if not isinstance(given, kinds) or isinstance(given, bool):
            expected = {float: "a number", int: "an integer", str: "a string"}[type(default)]
            raise ValueError(f"`{name}` (={given!r}) must be {expected}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _print_written(results: Any, before: int, pages: list[str], *more: str) -> None:
    """Print the written files: pages, and the table and ``more`` if rows were added."""
    added = [results.path.name, *more] if len(results.rows) > before else []
    written = ", ".join(added + pages)
    typer.echo(f"wrote {written} to {results.path.parent}" if written else "no rows, nothing written")


def _read_image(path: Path | None, data: DataOptions) -> tuple[str, Any]:
    """Return the name of an image file (default: cameraman) and its pixels, a tensor (H, W) in [0, 1]."""
    import torch

    from ..data import open_gray
    from .inputs import read_cameraman

    if path is None:
        return "cameraman", read_cameraman(data.data_root, download=data.download)
    image = torch.from_numpy(open_gray(path))
    if min(image.shape) < 16:
        raise ValueError(f"`image` {path} must be at least 16 × 16 pixels, got {tuple(image.shape)}")
    return path.stem, image
