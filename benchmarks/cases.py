"""Shapes to measure, and the implementations compared on them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import metricconv as mc
from metricconv._torchvision import import_torchvision
from metricconv.supports import Rays

Inputs = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Shape:
    """One convolution, stride 1 and same-size output: (N, C, H, W), C → C, k×k samples, ``groups`` as in nn.Conv2d."""

    regime: str
    batch: int
    channels: int
    height: int
    width: int
    kernel: int
    groups: int = 1
    metric_groups: int = 1

    def __str__(self) -> str:
        grouped = f" g{self.groups}" * (self.groups > 1)
        return f"({self.batch},{self.channels},{self.height},{self.width}) k{self.kernel}{grouped}"


DENSE = [
    Shape("dense", 128, 128, 16, 16, 3),
    Shape("dense", 128, 256, 8, 8, 3),
    Shape("dense", 128, 512, 8, 8, 3),
    Shape("dense", 64, 128, 28, 28, 3),
    Shape("dense", 4, 64, 256, 256, 3),
    Shape("dense", 16, 64, 64, 64, 5),
]
FEW_CHANNELS = [Shape("few channels", 1, 1, 256, 256, k) for k in (3, 5, 11, 31, 121)]
# The published shapes of DCNv4: groups of 32 channels share sampling locations; one weight per channel and sample.
DEPTHWISE = [
    Shape("depthwise", n, c, s, s, 3, groups=c, metric_groups=c // 32)
    for n, c, s in ((64, 128, 56), (64, 256, 28), (64, 512, 14), (64, 1024, 7), (128, 128, 16))
]
SHAPES = [*DENSE, *FEW_CHANNELS, *DEPTHWISE]


@dataclasses.dataclass(frozen=True)
class Implementation:
    """An implementation of a convolution: its input tensors for a shape, and the call."""

    name: str
    dtype: torch.dtype
    channels_last: bool
    geometry: Callable[[Shape, str], Inputs]
    call: Callable[[Shape, Inputs], Tensor]

    def inputs(self, shape: Shape, device: str) -> Inputs:
        """Return random leaf tensors that require gradients."""
        n, c, h, w = shape.batch, shape.channels, shape.height, shape.width
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        fan_in = c // shape.groups * shape.kernel**2
        x = torch.randn(n, c, h, w, device=device, dtype=self.dtype).to(memory_format=layout)
        weight = torch.randn(c, c // shape.groups, shape.kernel, shape.kernel, device=device) * fan_in**-0.5
        tensors = {"x": x, "weight": weight.to(self.dtype).to(memory_format=layout), **self.geometry(shape, device)}
        return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def calls(shape: Shape, implementation: Implementation, tensors: Inputs) -> dict[str, Callable[[], object]]:
    """Return the functions to time: "fwd" computes the output, "fwd+bwd" also the gradients of all leaves."""
    leaves = [t for t in tensors.values() if t.requires_grad]
    gradient = torch.randn_like(implementation.call(shape, tensors).detach())

    def forward() -> object:
        with torch.no_grad():
            return implementation.call(shape, tensors)

    def both() -> object:
        return torch.autograd.grad(implementation.call(shape, tensors), leaves, gradient)

    return {"fwd": forward, "fwd+bwd": both}


def gpu_implementations(shape: Shape) -> Iterator[Implementation]:
    """Yield the implementations to compare on a GPU, baselines first."""
    half, single = (torch.bfloat16, torch.float16), torch.float32
    for dtype in (*half, single):
        yield Implementation("cudnn conv2d", dtype, True, no_inputs, conv2d)
    if shape.kernel <= 31:  # beyond, its offsets alone would take gigabytes
        for dtype in (torch.float16, single):
            ours = (_displacement, _displacement_and_modulation(dtype))
            plain, modulated = (_torchvision_inputs(geometry, dtype) for geometry in ours)
            yield Implementation("torchvision deform_conv2d", dtype, False, plain, _torchvision)
            yield Implementation("torchvision deform_conv2d v2", dtype, False, modulated, _torchvision)
    for dtype in (*half, single):
        yield Implementation("metric", dtype, True, metric_inputs, metric_conv)
    if shape.kernel <= 31 and shape.groups == 1:
        for dtype in (torch.bfloat16, single):
            yield Implementation("geodesic, 4 steps", dtype, True, metric_inputs, geodesic_conv(4))
    if shape.kernel == 11:
        yield Implementation("geodesic, 11 steps", single, True, metric_inputs, geodesic_conv(11))
    if shape.kernel <= 31:
        for dtype in (torch.bfloat16, single):
            yield Implementation("deformable", dtype, True, _displacement, _deformable)
            yield Implementation("deformable v2", dtype, True, _displacement_and_modulation(dtype), _deformable)
    if shape.kernel <= 11:
        yield Implementation("metric (reference)", single, False, metric_inputs, reference_conv)


def no_inputs(shape: Shape, device: str) -> Inputs:
    """Return no geometry."""
    return {}


def conv2d(shape: Shape, t: Inputs) -> Tensor:
    """Compute torch's convolution."""
    return nn.functional.conv2d(t["x"], t["weight"], padding=shape.kernel // 2, groups=shape.groups)


def metric_inputs(shape: Shape, device: str) -> Inputs:
    """Return a random metric whose balls are about as large as the kernel's grid, with radius at most 5 pixels."""
    size = (shape.batch, shape.metric_groups)
    field = (shape.height, shape.width)
    raw = torch.randn(*size, 7, *field, device=device) * 0.5
    metric = mc.metrics.Spectral7(eps_omega=0.5)(raw).scaled(min(max(shape.kernel // 2, 1), 5))
    return metric.tensors()


def _support_conv(shape: Shape, t: Inputs, support: mc.Support, backend: str = "auto") -> Tensor:
    return mc.support_conv(
        t["x"],
        support,
        t["weight"],
        padding=shape.kernel // 2,
        groups=shape.groups,
        modulation=t.get("modulation"),
        backend=backend,
    )


def metric_conv(shape: Shape, t: Inputs, backend: str = "auto") -> Tensor:
    """Compute the convolution over tangent balls."""
    ball = mc.TangentBall(mc.Randers(t["M"], t["omega"]), stencil(shape.kernel, t["M"].device))
    return _support_conv(shape, t, ball, backend)


def geodesic_conv(steps: int, backend: str = "auto") -> Callable[[Shape, Inputs], Tensor]:
    """Return the convolution over geodesic balls, integrated in ``steps`` steps."""

    def call(shape: Shape, t: Inputs) -> Tensor:
        ball = mc.GeodesicBall(mc.Randers(t["M"], t["omega"]), _rays(shape.kernel), steps)
        return _support_conv(shape, t, ball, backend)

    return call


@functools.cache
def _rays(kernel: int) -> Rays:
    return Rays.of(mc.stencils.onion(kernel))


def reference_conv(shape: Shape, t: Inputs) -> Tensor:
    """Compute the convolution over tangent balls by the reference backend."""
    return metric_conv(shape, t, backend="reference")


@functools.cache
def stencil(kernel: int, device: torch.device) -> mc.stencils.Stencil:
    """Return the stencil of the balls, cached."""
    return mc.stencils.onion(kernel).to(device)


def _displacement(shape: Shape, device: str) -> Inputs:
    size = (shape.batch, shape.metric_groups, shape.kernel**2, 2, shape.height, shape.width)
    return {"displacement": torch.randn(*size, device=device) * 0.5}


def _displacement_and_modulation(dtype: torch.dtype) -> Callable[[Shape, str], Inputs]:
    def inputs(shape: Shape, device: str) -> Inputs:
        size = (shape.batch, shape.metric_groups, shape.kernel**2, shape.height, shape.width)
        return {**_displacement(shape, device), "modulation": torch.rand(*size, device=device).to(dtype)}

    return inputs


def _deformable(shape: Shape, t: Inputs) -> Tensor:
    return _support_conv(shape, t, mc.Deformable(t["displacement"], shape.kernel))


def _torchvision_inputs(geometry: Callable[[Shape, str], Inputs], dtype: torch.dtype) -> Callable[[Shape, str], Inputs]:
    def inputs(shape: Shape, device: str) -> Inputs:
        given = geometry(shape, device)
        names = {"displacement": "offset", "modulation": "mask"}
        return {names[name]: t.flatten(1, -3).to(dtype) for name, t in given.items()}

    return inputs


def _torchvision(shape: Shape, t: Inputs) -> Tensor:
    deform_conv2d = import_torchvision("torchvision.ops").deform_conv2d
    return deform_conv2d(t["x"], t["offset"], t["weight"], padding=shape.kernel // 2, mask=t.get("mask"))
