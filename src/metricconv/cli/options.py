"""Options of filters, metrics and files that commands share."""

import dataclasses
import functools
import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .._errors import UserError
from .._interpolation import PADDING_MODES
from ..filters._limits import MAX_SIDE
from ..io import images
from ..io.image_data import ImageData
from ..metrics import IMAGE_METRICS, Metric
from ..stencils import STENCILS

__all__ = [
    "FilterOptions",
    "ImageFileOptions",
    "ImageMetricOptions",
    "InputArgument",
    "Method",
    "MetricName",
    "Padding",
    "SamplesOption",
    "SeedOption",
    "SpacingOption",
    "StencilName",
    "check_figure_path",
    "check_spacing",
    "check_stencil",
    "parse_point",
    "parse_spacing",
]


class Method(StrEnum):
    """Filters, by the support that they average over."""

    tangent = "tangent"
    geodesic = "geodesic"
    box = "box"
    dilated = "dilated"
    interpolated = "interpolated"
    random = "random"


# Choices come from the library. mypy cannot infer them, so a member is written MetricName("edge").
MetricName = StrEnum("MetricName", {name: name for name in IMAGE_METRICS})  # type: ignore[misc]
StencilName = StrEnum("StencilName", {name: name for name in STENCILS})  # type: ignore[misc]
# The help lists the default first.
_MODES = sorted((*PADDING_MODES, "replicate"), key=lambda mode: (mode != "reflect", mode))
Padding = StrEnum("Padding", {mode: mode for mode in _MODES})  # type: ignore[misc]
_REFLECT = Padding("reflect")

_FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
_METRIC, _FILTER, _FILES = "Metric", "Filter", "Files"

SamplesOption = Annotated[
    int,
    typer.Option(
        "--samples", "-k", min=1, max=101, help="Kernel size k: k² samples per pixel.", rich_help_panel=_FILTER
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed. Default: 0.", rich_help_panel=_FILTER)
]
SpacingOption = Annotated[
    str | None,
    typer.Option(
        "--spacing",
        metavar="Z,Y,X",
        help="Distance between pixels along each axis, such as 3,1,1. Default: that of a NIfTI file for denoise, "
        "otherwise the same along all axes.",
    ),
]
InputArgument = Annotated[Path, typer.Argument(metavar="IN", help="Input image.", show_default=False)]


@dataclasses.dataclass(frozen=True)
class ImageFileOptions:
    """Options for reading and writing image files."""

    axes: Annotated[
        str | None,
        typer.Option(
            "--axes",
            help="Axis order of a .npy, .tif or .zarr: yx, yxc, cyx, zyx, zyxc or czyx. Default: that of the file.",
            rich_help_panel=_FILES,
        ),
    ] = None
    max_pixels: Annotated[
        int | None,
        typer.Option(
            "--max-pixels",
            min=1,
            help=f"Maximum number of pixels per image, without tiles. Default: {images.MAX_PIXELS}.",
            rich_help_panel=_FILES,
        ),
    ] = None
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.", rich_help_panel=_FILES)] = (
        False
    )

    def read(self, path: Path) -> ImageData:
        """Read an image."""
        return images.read(path, self.axes, self.max_pixels or images.MAX_PIXELS)


_TUNED: dict[Method, dict[str, Any]] = {
    Method.tangent: {"name": MetricName("gradient"), "iota": 0.15, "alpha": 20.0, "scale": 1.5},
    Method.geodesic: {"name": MetricName("edge"), "iota": 0.01, "alpha": 20.0, "scale": 1.0},
}
_MIN_IOTA = 1e-12  # its cube, the determinant of a volume's metric, is still a normal float32
_MIN_SCALE = 0.1  # pixels; at smaller scales the sampled filter is the same


@dataclasses.dataclass(frozen=True)
class ImageMetricOptions:
    """Parameters of the metric computed from the image; None means the default."""

    name: Annotated[
        MetricName | None,
        typer.Option(
            "--metric",
            help="Metric computed from the image. gradient: ellipses elongated along edges; edge: discs that shrink at "
            "edges; structure: ellipses along oriented texture. Default: edge for geodesic, else gradient.",
            rich_help_panel=_METRIC,
        ),
    ] = None
    iota: Annotated[
        float | None,
        typer.Option(
            "--iota",
            max=1e6,
            help="Scale ι, 1e-12 to 1e6: in flat regions balls have radius 1/√ι pixels.",
            rich_help_panel=_METRIC,
        ),
    ] = None
    alpha: Annotated[
        float | None, typer.Option("--alpha", max=1e6, help="Edge sensitivity α, 0 to 1e6.", rich_help_panel=_METRIC)
    ] = None
    scale: Annotated[
        float | None,
        typer.Option(
            "--scale",
            min=0.0,
            max=100.0,
            help="Standard deviation σ of the Gaussian derivative filter, 0.1 to 100 pixels; 0 for a Sobel filter.",
            rich_help_panel=_METRIC,
        ),
    ] = None
    eps_omega: Annotated[
        float | None,
        typer.Option(
            "--eps-omega",
            help="Symmetry ε_ω in (0, 1] of the gradient metric: below 1, balls are shifted along edges. Default: 1.",
            rich_help_panel=_METRIC,
        ),
    ] = None

    @property
    def given(self) -> dict[str, object]:
        """The options that are not None, with their values."""
        options = {"--metric": self.name, "--iota": self.iota, "--alpha": self.alpha, "--scale": self.scale}
        return {key: value for key, value in (options | {"--eps-omega": self.eps_omega}).items() if value is not None}

    def or_tuned(self, method: Method) -> "ImageMetricOptions":
        """Return the options with the defaults of a method, which are tuned for Gaussian noise of σ = 0.1.

        Those of another metric than the default of the method are the defaults of its function.
        """
        tuned = _TUNED[method]
        if self.name not in (None, tuned["name"]):
            return self
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        return ImageMetricOptions(**tuned | given)

    def check(self) -> None:
        """Check ranges; errors name the option."""
        if self.iota is not None and not self.iota > 0:
            raise UserError(f"--iota {self.iota:g}: must be positive")
        if self.iota is not None and self.iota < _MIN_IOTA:
            raise UserError(f"--iota {self.iota:g}: must be at least {_MIN_IOTA:g} (balls of radius 1e6 pixels)")
        if self.alpha is not None and not self.alpha >= 0:
            raise UserError(f"--alpha {self.alpha:g}: must be at least 0")
        if self.scale and not self.scale >= _MIN_SCALE:
            raise UserError(f"--scale {self.scale:g}: must be 0 or at least {_MIN_SCALE:g}")
        if self.eps_omega is not None and not 0 < self.eps_omega <= 1:
            raise UserError(f"--eps-omega {self.eps_omega:g}: must be in (0, 1]")

    def function(
        self, default: str, padding_mode: str, spacing: tuple[float, ...] | None = None
    ) -> Callable[..., Metric]:
        """Return the function that computes the metric of an image (1, C, *spatial)."""
        self.check()
        name = self.name or default
        options: dict[str, Any] = {"iota": self.iota, "alpha": self.alpha, "spacing": spacing}
        if name == "structure":
            if self.scale == 0:
                raise UserError("--scale 0: must be positive for the structure metric")
            options["noise_scale"] = self.scale
        else:
            options["scale"] = self.scale
        if name == "gradient":
            options["eps_omega"] = self.eps_omega
        elif self.eps_omega is not None:
            raise UserError(f"--eps-omega {self.eps_omega:g}: not supported by --metric {name}, which has no drift")
        options = {key: value for key, value in options.items() if value is not None}
        if options.get("scale") == 0:
            options["scale"] = None
        return functools.partial(IMAGE_METRICS[name], padding_mode=padding_mode, **options)


@dataclasses.dataclass(frozen=True)
class FilterOptions:
    """The filter and its parameters; None means the default."""

    method: Annotated[
        Method,
        typer.Option(
            "--method",
            "-m",
            help="Support to average over: unit balls (tangent, geodesic) or a baseline (box, dilated, …).",
            rich_help_panel=_FILTER,
        ),
    ] = Method.tangent
    samples: SamplesOption = 11
    metric: ImageMetricOptions = ImageMetricOptions()
    stencil: Annotated[
        StencilName | None,
        typer.Option("--stencil", help="Sampling pattern of a ball. Default: polar.", rich_help_panel=_FILTER),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            max=100,
            help="Integration steps per geodesic. Default: 3 for k ≤ 5, otherwise 4.",
            rich_help_panel=_FILTER,
        ),
    ] = None
    size: Annotated[
        float | None,
        typer.Option(
            "--size",
            help="Side length in pixels of box (odd, at most 1023; default: k) or interpolated (more than 1; default: "
            "5), at most that of the image.",
            rich_help_panel=_FILTER,
        ),
    ] = None
    dilation: Annotated[
        int | None,
        typer.Option(
            "--dilation",
            min=1,
            help="Sample spacing of dilated in pixels, at most the image size. Default: 3.",
            rich_help_panel=_FILTER,
        ),
    ] = None
    center: Annotated[
        bool, typer.Option("--center", help="The pixel itself as one more sample of its ball.", rich_help_panel=_FILTER)
    ] = False
    spacing: SpacingOption = None
    padding: Annotated[
        Padding, typer.Option("--padding", help="Padding mode at image borders.", rich_help_panel=_FILTER)
    ] = _REFLECT
    seed: SeedOption = None

    @property
    def function(self) -> str:
        """The name of the function in ``metricconv.filters`` and ``metricconv.large``."""
        return "random_deformable_filter" if self.method == Method.random else f"{self.method}_filter"

    def keywords(self) -> dict[str, Any]:
        """Return the arguments of the function other than ``image`` and ``channel_axis``."""
        self._check()
        arguments: dict[str, Any] = {"padding_mode": self.padding.value}
        match self.method:
            case Method.tangent | Method.geodesic:
                metric = self.metric.or_tuned(self.method)
                arguments |= {"samples": self.samples, "center": self.center}
                spacing = parse_spacing(self.spacing)
                arguments["metric"] = metric.function(str(metric.name), self.padding.value, spacing)
                arguments |= {"stencil": self.stencil.value} if self.stencil else {}
                arguments |= {"steps": self.steps} if self.steps is not None else {}
            case Method.box:
                arguments["size"] = self.samples if self.size is None else int(self.size)
            case Method.dilated:
                arguments |= {"samples": self.samples} | (
                    {"dilation": self.dilation} if self.dilation is not None else {}
                )
            case Method.interpolated:
                arguments |= {"samples": self.samples} | ({"size": self.size} if self.size is not None else {})
            case Method.random:
                arguments |= {"samples": self.samples, "seed": self.seed or 0}
        return arguments

    def check_fits(self, path: Path, spatial: tuple[int, ...]) -> None:
        """Check that box and dilation are not larger than the image, and that the spacing has its axes."""
        check_spacing(self.spacing, path, spatial)
        for option, value in (("--size", self.size), ("--dilation", self.dilation)):
            if value is not None and value > max(spatial):
                size = " × ".join(map(str, spatial))
                given = f"{value:.12g}" if isinstance(value, float) else str(value)
                raise UserError(f"{option} {given}: must be at most {max(spatial)} for {path} of {size} pixels")

    def _check(self) -> None:
        """Check that each option applies to the method, and its value."""
        balls = self.method in (Method.tangent, Method.geodesic)
        unused = [] if balls else list(self.metric.given)
        for option, given, applies in (
            ("--stencil", self.stencil is not None, balls),
            ("--center", self.center, balls),
            ("--spacing", self.spacing is not None, balls),
            ("--steps", self.steps is not None, self.method == Method.geodesic),
            ("--size", self.size is not None, self.method in (Method.box, Method.interpolated)),
            ("--seed", self.seed is not None, self.method == Method.random),
            ("--dilation", self.dilation is not None, self.method == Method.dilated),
        ):
            unused += [option] if given and not applies else []
        if unused:
            raise UserError(f"{', '.join(unused)}: cannot be combined with --method {self.method}")
        if balls:
            self.metric.check()
            check_stencil(self.samples, self.stencil or "polar")
        elif self.method == Method.interpolated:
            self._check_interpolated()
        elif self.size is not None:
            if not self.size.is_integer():
                raise UserError(f"--size {self.size}: must be an integer with --method box")
            if self.size > MAX_SIDE:
                raise UserError(f"--size {self.size:g}: must be at most {MAX_SIDE} with --method box")
            _check_odd("--size", int(self.size))
        else:
            _check_odd("--samples", self.samples)

    def _check_interpolated(self) -> None:
        if self.samples < 2:
            raise UserError(f"--samples {self.samples}: must be at least 2 with --method interpolated")
        if self.size is not None and not 1 < self.size < math.inf:
            raise UserError(f"--size {self.size:g}: must be more than 1 and finite")


def parse_spacing(text: str | None) -> tuple[float, ...] | None:
    """Return the numbers of the option --spacing."""
    if text is None:
        return None
    try:
        spacing = tuple(float(part) for part in text.split(","))
    except ValueError:
        spacing = ()
    if len(spacing) not in (2, 3) or not all(1e-18 <= step <= 1e18 for step in spacing):
        raise UserError(f"--spacing {text}: must be two or three positive numbers, such as 3,1,1")
    return spacing


def check_spacing(text: str | None, path: Path, spatial: tuple[int, ...]) -> None:
    """Check that the option --spacing has one number per axis of an image."""
    if text is not None and text.count(",") + 1 != len(spatial):
        raise UserError(f"--spacing {text}: must be {len(spatial)} numbers for {path}, one per axis")


def check_stencil(samples: int, stencil: str) -> None:
    """Check that a stencil has a pattern of ``samples``² points."""
    if stencil != "polar":
        _check_odd("--samples", samples, f" with --stencil {stencil}")
    elif samples < 2:
        raise UserError(f"--samples {samples}: must be at least 2 with --stencil polar")


def _check_odd(option: str, value: int, where: str = "") -> None:
    if value < 1 or value % 2 == 0:
        raise UserError(f"{option} {value}: must be a positive odd number{where}")


def check_figure_path(path: Path, *, force: bool, inputs: tuple[Path, ...]) -> None:
    """Check that a figure can be written to ``path``."""
    if path.suffix.lower() not in _FIGURE_SUFFIXES:
        expected = " ".join(_FIGURE_SUFFIXES)
        raise UserError(f"{path}: cannot write {path.suffix or 'a file without suffix'}, expected one of {expected}")
    images.check_output(path, force=force, inputs=inputs)


def parse_point(option: str, text: str, size: tuple[int, ...]) -> tuple[float, float]:
    """Return the point Y,X of an option, within the image."""
    try:
        y, x = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: expected two numbers, Y,X") from None
    if not (0 <= y <= size[0] - 1 and 0 <= x <= size[1] - 1):
        raise UserError(f"{option} {text}: outside the image of height {size[0]} and width {size[1]}")
    return y, x
