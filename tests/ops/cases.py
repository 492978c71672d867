"""Problems on which compiled backends are compared with the reference in float64: outputs and all gradients."""

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import metricconv as mc
from helpers import CONVOLUTIONS, random_modulation
from metricconv._interpolation import lattice_tolerance, use_lattice_tolerance

KINDS = ("randers", "riemannian", "asymmetric", "geodesic", "deformable", "shifted", "dilated", "grid")
BALLS = ("randers", "riemannian", "asymmetric", "geodesic")
MODES = ("zeros", "border", "reflect", "circular")


@dataclasses.dataclass
class Case:
    """One problem; sizes are uneven, so that mixed-up axes show."""

    kind: str = "randers"
    mode: str = "zeros"
    batch: int = 2
    channels: tuple[int, int] = (6, 4)
    size: tuple[int, ...] = (5, 4)
    kernel: tuple[int, ...] = (3, 3)
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    metric_groups: int = 1
    modulated: bool = False
    biased: bool = True
    radius: float = 1.7
    constant: bool = False  # one metric for all pixels and images, broadcast
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    whole: float = 0.0  # fraction of the geometry whose samples lie exactly on pixels

    def make(self, device: str = "cpu") -> tuple[dict[str, Tensor], Callable[..., Tensor]]:
        """Return the tensors by name, and the operator as a function of them and of options."""
        dim = len(self.kernel)
        ins, outs = self.channels
        x = torch.randn(self.batch, ins, *self.size)
        weight = torch.randn(outs, ins // self.groups, *self.kernel)
        grid = mc.Grid(self.kernel, self.dilation)
        out = self._out_size(grid)
        field = (1, 1) if self.constant else (self.batch, self.metric_groups)
        spatial = (1,) * dim if self.constant else out
        tensors = {"input": x, "weight": weight}
        if self.biased:
            tensors["bias"] = torch.randn(outs)
        if self.modulated:
            tensors["modulation"] = random_modulation(self.batch, self.metric_groups, grid.samples, *out)
        if self.kind in BALLS:
            root = torch.eye(dim).view(1, 1, dim, dim, *(1,) * dim) + 0.2 * torch.randn(*field, dim, dim, *spatial)
            square = torch.einsum("bgij...,bgkj...->bgik...", root, root) / self.radius**2
            upper = [square[:, :, i, j] for i in range(dim) for j in range(i, dim)]
            tensors["M"] = torch.stack(upper, 2)
        if self.kind in ("randers", "geodesic"):
            drift = 0.2 * torch.randn(*field, dim, *spatial) / self.radius
            asymmetry = mc.Randers(tensors["M"], drift).asymmetry.unsqueeze(2)
            tensors["omega"] = drift * (0.6 / asymmetry.clamp_min(0.6))
        if self.kind == "asymmetric":
            tensors["w"] = torch.randn(*field, dim, *spatial) / self.radius
        if self.kind == "deformable":
            tensors["displacement"] = self.radius * torch.randn(*field, grid.samples, dim, *spatial)
        if self.kind == "shifted":
            tensors["shift"] = self.radius * torch.randn(*field, dim, *spatial)
        if self.kind == "dilated":
            tensors["scale"] = self.radius * (0.5 + torch.rand(*field, 1, *spatial))
        self._put_on_pixels(tensors)
        geometry = ("M", "omega", "w", "displacement", "shift", "scale")
        for name, t in tensors.items():
            tensors[name] = t.to(device) if name in geometry else t.to(device, self.dtype)
        stencil = mc.stencils.square_onion(self.kernel) if self.kind in BALLS else None

        def support_of(t: dict[str, Tensor]) -> mc.Support:
            if self.kind == "randers":
                return mc.TangentBall(mc.Randers(t["M"], t["omega"]), stencil, self.dilation)
            if self.kind == "geodesic":
                metric = mc.Randers(t["M"], t["omega"])
                mode = "circular" if self.mode == "circular" else "border"
                return mc.GeodesicBall(metric, stencil, dilation=self.dilation, stride=self.stride, padding_mode=mode)
            if self.kind == "asymmetric":
                return mc.TangentBall(mc.AsymmetricQuadratic(t["M"], t["w"]), stencil, self.dilation)
            if self.kind == "riemannian":
                return mc.TangentBall(mc.Riemannian(t["M"]), stencil, self.dilation)
            if self.kind == "deformable":
                return mc.Deformable(t["displacement"], self.kernel, self.dilation)
            if self.kind == "shifted":
                return mc.Shifted(t["shift"], self.kernel, self.dilation)
            if self.kind == "dilated":
                return mc.Dilated(t["scale"], self.kernel, self.dilation)
            return mc.Grid(self.kernel, self.dilation, spacing=0.83)

        for _ in range(20 if self.kind != "grid" else 0):
            near = self._near_the_lattice(support_of(tensors))
            for name in (set(geometry) & set(tensors)) - {"omega", "w"} if near.any() else ():
                extra = tensors[name].dim() - near.dim()
                tensors[name] *= torch.where(near, 1.01, 1.0).unflatten(1, (-1, *(1,) * extra))
        tensors = {name: self._laid_out(name, t) for name, t in tensors.items()}

        def run(t: dict[str, Tensor], **options: Any) -> Tensor:
            return mc.support_conv(
                t["input"],
                support_of(t),
                t["weight"],
                t.get("bias"),
                stride=self.stride,
                padding=self.padding,
                groups=self.groups,
                modulation=t.get("modulation"),
                padding_mode=self.mode,
                **options,
            )

        return tensors, run

    def _put_on_pixels(self, tensors: dict[str, Tensor]) -> None:
        """Change a fraction of the geometry so that its samples have integer coordinates; all of it for geodesics."""
        for name in ("displacement", "shift", "scale"):
            if name in tensors:
                t = tensors[name]
                tensors[name] = torch.where(torch.rand(t.shape) < self.whole, t.round(), t)
        if "M" in tensors and self.whole:
            dim, M = len(self.kernel), tensors["M"]
            identity = mc.Riemannian.isotropic(float(max(max(self.kernel) // 2, 1)), dim=dim).M
            changed = torch.rand(M[:, :, :1].shape) < (1 if self.kind == "geodesic" else self.whole)
            tensors["M"] = torch.where(changed, identity.to(M), M)
            if "omega" in tensors:
                tensors["omega"] = torch.where(changed, 0.0, tensors["omega"])
            if "w" in tensors:  # along the first axis: samples on one side, and orthogonal to it, stay on pixels
                others = torch.arange(dim).view(-1, *(1,) * dim) > 0
                tensors["w"] = torch.where(changed & others, 0.0, tensors["w"])

    def _near_the_lattice(self, support: mc.Support) -> Tensor:
        """Return where a coordinate is nearly whole, so that precisions may differ whether it is: (B, G, *out).

        Interpolation has a kink there, and its derivatives jump.
        """
        offsets = support.offsets()
        half = torch.tensor([d * (k - 1) / 2 for d, k in zip(support.dilation, self.kernel, strict=True)])
        at = offsets + half.to(offsets).view(-1, *(1,) * len(self.kernel))
        distance = (at - at.round()).abs()
        return ((distance > 2.0**-18) & (distance < 1e-4)).any(3).any(2)

    def _out_size(self, grid: mc.Grid) -> tuple[int, ...]:
        image = torch.empty(1, 1, *self.size, device="meta")
        weight = torch.empty(1, 1, *self.kernel, device="meta")
        return tuple(
            CONVOLUTIONS[len(self.kernel)](image, weight, None, self.stride, self.padding, grid.dilation).shape[2:]
        )

    def _laid_out(self, name: str, t: Tensor) -> Tensor:
        if self.layout == "channels_last" and name in ("input", "weight"):
            return t.movedim(1, -1).contiguous().movedim(-1, 1)
        if self.layout == "strided":  # every other value of a larger tensor
            wider = torch.full((*t.shape[:-1], 2 * t.shape[-1]), torch.nan, dtype=t.dtype, device=t.device)
            wider[..., ::2] = t
            return wider[..., ::2]
        return t


# Input channels, output channels, groups and metric groups, one for each way to contract them.
_CHANNELS = [(1, 1, 1, 1), (3, 5, 1, 1), (24, 24, 24, 2), (6, 12, 6, 3), (20, 24, 1, 4), (36, 40, 2, 2), (64, 48, 1, 1)]


def random_case(seed: int, largest: int) -> Case:
    """Return a random 2-D problem on an image of at most ``largest`` pixels per side."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    ins, outs, groups, metric_groups = rng.choice(_CHANNELS)
    kernel, dilation = rng.choice([(1, 3), (3, 3), (3, 3), (3, 1), (5, 5)]), rng.choice([(1, 1), (1, 2), (2, 1)])
    padding = (math.ceil((k - 1) * d / 2) + rng.randint(0, 1) for k, d in zip(kernel, dilation, strict=True))
    return Case(
        kind=kind,
        mode=rng.choice(MODES),
        batch=rng.randint(1, 3),
        channels=(ins, outs),
        size=(rng.randint(3, largest), rng.randint(3, largest)),
        kernel=kernel,
        stride=rng.choice([1, 1, 2, (2, 1), (1, 3)]),
        padding=tuple(padding),  # enough for an output
        dilation=dilation,
        groups=groups,
        metric_groups=1 if kind == "grid" else rng.choice([1, metric_groups]),
        modulated=rng.random() < 0.4,
        biased=rng.random() < 0.5,
        radius=rng.choice([0.7, 1.2, 1.7]),
        layout=rng.choice(["contiguous", "channels_last", "strided"]),
        whole=rng.choice([0.0, 0.0, 0.5]),
    )


def outcome(run: Callable[..., Tensor], tensors: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """Return the output and the gradient of each tensor, for a fixed random gradient of the output."""
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}
    y = run(leaves, **options)
    generator = torch.Generator().manual_seed(7)
    upstream = torch.randn(y.shape, generator=generator).to(y.dtype).to(y.device)
    grads = torch.autograd.grad(y, list(leaves.values()), upstream)
    return {"output": y.detach(), **dict(zip(leaves, grads, strict=True))}


def truth(run: Callable[..., Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the reference's outcome in float64, with the lattice tolerance of the tensors' dtype."""
    dtype = tensors["input"].dtype
    wide = {name: t.double() for name, t in tensors.items()}
    leaves = {name: t.requires_grad_() for name, t in wide.items()}
    with use_lattice_tolerance(torch.float64, lattice_tolerance(dtype)):
        y = run(leaves, backend="reference")
        generator = torch.Generator().manual_seed(7)
        upstream = torch.randn(y.shape, generator=generator).to(dtype).double().to(y.device)
        grads = torch.autograd.grad(y, list(leaves.values()), upstream)
    return {"output": y.detach(), **dict(zip(leaves, grads, strict=True))}


def relative(found: Tensor, expected: Tensor) -> float:
    """Return ‖found − expected‖ / max(‖expected‖, 0.1); NaN if any value is NaN."""
    difference = (found.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp_min(0.1)).item()


def check(case: Case, tolerance: float, device: str = "cpu", backend: str = "triton") -> None:
    """Compare a backend with the reference: output and all gradients."""
    tensors, run = case.make(device)
    found, expected = outcome(run, tensors, backend=backend), truth(run, tensors)
    errors = {name: relative(found[name], expected[name]) for name in expected}
    assert all(error <= tolerance for error in errors.values()), errors  # NaN never passes
    assert found["output"].dtype == case.dtype
    for name, t in tensors.items():
        assert found[name].shape == t.shape and found[name].dtype == t.dtype, name


def check_inference(case: Case, tolerance: float, device: str = "cpu", backend: str = "triton") -> None:
    """Compare the output of a backend with the reference where nothing requires gradients."""
    tensors, run = case.make(device)
    expected = run({name: t.double() for name, t in tensors.items()}, backend="reference")
    assert relative(run(tensors, backend=backend), expected) <= tolerance


def check_clamped_norm(tolerance: float, backend: str) -> None:
    """Compare the gradients of a metric whose F is clamped along +x, and so constant there, with the reference.

    Images are circular: elsewhere a sample so far away has no gradient whether F is clamped or not.
    """
    tensors, run = Case(mode="circular", kernel=(1, 3), padding=(0, 1)).make()
    tensors["omega"] = torch.tensor([0.0, -3.0]).view(1, 1, 2, 1, 1).repeat(2, 1, 1, 5, 4)  # F(+x) < 0
    found, expected = outcome(run, tensors, backend=backend), truth(run, tensors)
    for name in ("M", "omega"):
        assert expected[name].any() and relative(found[name], expected[name]) <= tolerance, name
