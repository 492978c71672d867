"""The options of the filters and metrics, which several commands share."""

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
from ..filters import METRICS
from ..io import images
from ..io.image_data import Picture
from ..metrics import Metric
from ..stencils import STENCILS


class Method(StrEnum):
    """Where each pixel looks."""

    tangent = "tangent"
    geodesic = "geodesic"
    box = "box"
    dilated = "dilated"
    interpolated = "interpolated"
    random = "random"


# Names to choose from, which the library knows: mypy does not, so that a member is MetricName("edge").
MetricName = StrEnum("MetricName", {name: name for name in METRICS})  # type: ignore[misc]
StencilName = StrEnum("StencilName", {name: name for name in STENCILS})  # type: ignore[misc]
# The default is shown first.
_MODES = sorted(PADDING_MODES, key=lambda mode: (mode != "reflect", mode))
Padding = StrEnum("Padding", {mode: mode for mode in _MODES})  # type: ignore[misc]
_REFLECT = Padding("reflect")

_METRIC, _FILTER, _FILES = "The metric", "The filter", "Files"

SamplesOption = Annotated[
    int, typer.Option("--samples", "-k", min=1, max=101, help="k, for k² samples a pixel.", rich_help_panel=_FILTER)
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Of what is random (0).", rich_help_panel=_FILTER)
]
InputArgument = Annotated[Path, typer.Argument(metavar="IN", help="The picture.", show_default=False)]


@dataclasses.dataclass(frozen=True)
class FileKnobs:
    """How files are read, and whether they are replaced."""

    axes: Annotated[
        str | None,
        typer.Option(
            "--axes",
            help="Of a .npy, .tif or .zarr: yx, yxc, cyx, zyx, zyxc or czyx (as the file says).",
            rich_help_panel=_FILES,
        ),
    ] = None
    max_pixels: Annotated[
        int | None,
        typer.Option(
            "--max-pixels",
            min=1,
            help=f"Refuse larger pictures ({images.MAX_PIXELS}); not in tiles.",
            rich_help_panel=_FILES,
        ),
    ] = None
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist.", rich_help_panel=_FILES)] = (
        False
    )

    def read(self, path: Path) -> Picture:
        """Read a picture."""
        return images.read(path, self.axes, self.max_pixels or images.MAX_PIXELS)


_LEAST_IOTA = 1e-12  # of whose cube, a volume's determinant, float32 still has a number


@dataclasses.dataclass(frozen=True)
class MetricKnobs:
    """How to read a metric off an image; what is None keeps its default."""

    name: Annotated[
        MetricName | None,
        typer.Option(
            "--metric",
            help="gradient: balls flat against edges (for tangent); edge: round, small at edges (for geodesic); "
            "structure: along stripes.",
            rich_help_panel=_METRIC,
        ),
    ] = None
    iota: Annotated[
        float | None,
        typer.Option(
            "--iota",
            max=1e6,
            help="ι, its scale: in flat regions a ball has radius 1/√ι pixels.",
            rich_help_panel=_METRIC,
        ),
    ] = None
    alpha: Annotated[
        float | None, typer.Option("--alpha", max=1e6, help="α, how much edges count.", rich_help_panel=_METRIC)
    ] = None
    scale: Annotated[
        float | None,
        typer.Option(
            "--scale",
            min=0.0,
            max=100.0,
            help="σ, in pixels, at which the gradient is taken; 0 for Sobel.",
            rich_help_panel=_METRIC,
        ),
    ] = None
    eps_omega: Annotated[
        float | None,
        typer.Option(
            "--eps-omega", help="ε_ω in (0, 1] (gradient): below 1, balls lean along edges.", rich_help_panel=_METRIC
        ),
    ] = None

    @property
    def given(self) -> dict[str, object]:
        """The options that were given, and their values."""
        options = {"--metric": self.name, "--iota": self.iota, "--alpha": self.alpha, "--scale": self.scale}
        return {key: value for key, value in (options | {"--eps-omega": self.eps_omega}).items() if value is not None}

    def check(self) -> None:
        """Refuse numbers out of range, by the names of their options."""
        if self.iota is not None and not self.iota > 0:
            raise UserError(f"--iota {self.iota:g}: must be positive")
        if self.iota is not None and self.iota < _LEAST_IOTA:
            raise UserError(f"--iota {self.iota:g}: must be at least {_LEAST_IOTA:g}, balls of a million pixels")
        if self.alpha is not None and not self.alpha >= 0:
            raise UserError(f"--alpha {self.alpha:g}: must be at least 0")
        if self.eps_omega is not None and not 0 < self.eps_omega <= 1:
            raise UserError(f"--eps-omega {self.eps_omega:g}: must be in (0, 1]")

    def function(self, default: str, padding_mode: str) -> Callable[..., Metric]:
        """Return the function from an image (1, C, *spatial) to its metric."""
        self.check()
        name = self.name or default
        options: dict[str, Any] = {"iota": self.iota, "alpha": self.alpha}
        if name == "structure":
            if self.scale == 0:
                raise UserError("--scale 0: the structure metric has no Sobel filter; it must be positive")
            options["noise_scale"] = self.scale
        else:
            options["scale"] = self.scale
        if name == "gradient":
            options["eps_omega"] = self.eps_omega
        elif self.eps_omega is not None:
            raise UserError(f"--eps-omega: the {name} metric has no drift; choose --metric gradient")
        options = {key: value for key, value in options.items() if value is not None}
        if options.get("scale") == 0:
            options["scale"] = None
        return functools.partial(METRICS[name], padding_mode=padding_mode, **options)


@dataclasses.dataclass(frozen=True)
class FilterKnobs:
    """Which filter, and how; what is None keeps its default."""

    method: Annotated[
        Method, typer.Option("--method", "-m", help="Where each pixel looks.", rich_help_panel=_FILTER)
    ] = Method.tangent
    samples: SamplesOption = 11
    metric: MetricKnobs = MetricKnobs()
    stencil: Annotated[
        StencilName | None, typer.Option("--stencil", help="How a ball is sampled (polar).", rich_help_panel=_FILTER)
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            max=100,
            help="Of the geodesics: more is finer (3 for k ≤ 5, else 4).",
            rich_help_panel=_FILTER,
        ),
    ] = None
    size: Annotated[
        float | None,
        typer.Option("--size", help="Pixels along its side: of box (k), of interpolated (5).", rich_help_panel=_FILTER),
    ] = None
    dilation: Annotated[
        int | None,
        typer.Option("--dilation", min=1, help="Pixels between samples of dilated (3).", rich_help_panel=_FILTER),
    ] = None
    centre: Annotated[
        bool, typer.Option("--centre", help="Take the pixel itself as one more sample.", rich_help_panel=_FILTER)
    ] = False
    padding: Annotated[
        Padding, typer.Option("--padding", help="What stands past the border.", rich_help_panel=_FILTER)
    ] = _REFLECT
    seed: SeedOption = None

    @property
    def function(self) -> str:
        """The name of the function in ``metricconv.filters``, and in ``metricconv.large``."""
        return "random_deformable_filter" if self.method == Method.random else f"{self.method}_filter"

    def keywords(self) -> dict[str, Any]:
        """Return its arguments, beside the image and the axis of its channels."""
        self._check()
        found: dict[str, Any] = {"padding_mode": self.padding.value}
        match self.method:
            case Method.tangent | Method.geodesic:
                default = "gradient" if self.method == Method.tangent else "edge"
                found |= {"samples": self.samples, "centre": self.centre}
                found["metric"] = self.metric.function(default, self.padding.value)
                found |= {"stencil": self.stencil.value} if self.stencil else {}
                found |= {"steps": self.steps} if self.steps is not None else {}
            case Method.box:
                found["size"] = self.samples if self.size is None else int(self.size)
            case Method.dilated:
                found |= {"samples": self.samples} | ({"dilation": self.dilation} if self.dilation is not None else {})
            case Method.interpolated:
                found |= {"samples": self.samples} | ({"size": self.size} if self.size is not None else {})
            case Method.random:
                found |= {"samples": self.samples, "seed": self.seed or 0}
        return found

    def check_reach(self, path: Path, spatial: tuple[int, ...]) -> None:
        """Refuse steps and boxes larger than the picture."""
        for option, value in (("--size", self.size), ("--dilation", self.dilation)):
            if value is not None and value > max(spatial):
                size = " × ".join(map(str, spatial))
                raise UserError(f"{option} {value:.12g}: must be at most {max(spatial)}, as {path} has {size} pixels")

    def _check(self) -> None:
        """Refuse options that the method would not heed, and values that it cannot take."""
        balls = self.method in (Method.tangent, Method.geodesic)
        unheeded = [] if balls else list(self.metric.given)
        for option, given, heeded in (
            ("--stencil", self.stencil is not None, balls),
            ("--centre", self.centre, balls),
            ("--steps", self.steps is not None, self.method == Method.geodesic),
            ("--size", self.size is not None, self.method in (Method.box, Method.interpolated)),
            ("--seed", self.seed is not None, self.method == Method.random),
            ("--dilation", self.dilation is not None, self.method == Method.dilated),
        ):
            unheeded += [option] if given and not heeded else []
        if unheeded:
            raise UserError(f"{', '.join(unheeded)}: of no use with --method {self.method}")
        if balls:
            self.metric.check()
            check_stencil(self.samples, self.stencil or "polar")
        elif self.method == Method.interpolated:
            self._check_interpolated()
        elif self.size is not None:
            if not self.size.is_integer():
                raise UserError(f"--size {self.size}: a box has a whole number of pixels; interpolated takes any size")
            _check_odd("--size", int(self.size))
        else:
            _check_odd("--samples", self.samples)

    def _check_interpolated(self) -> None:
        if self.samples < 2:
            raise UserError(f"--samples {self.samples}: must be at least 2 with --method interpolated")
        if self.size is not None and not 1 < self.size < math.inf:
            raise UserError(f"--size {self.size:g}: must be more than 1 and finite")


def check_stencil(samples: int, stencil: str) -> None:
    """Refuse a number of samples that balls cannot be sampled with."""
    if stencil != "polar":
        _check_odd("--samples", samples, f" with --stencil {stencil}")
    elif samples < 2:
        raise UserError(f"--samples {samples}: must be at least 2 with --stencil polar")


def _check_odd(option: str, value: int, where: str = "") -> None:
    if value < 1 or value % 2 == 0:
        raise UserError(f"{option} {value}: must be a positive odd number{where}, so that there is a central pixel")
