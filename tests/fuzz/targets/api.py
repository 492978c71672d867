"""Valid problems of the operator and of all layers: finite outputs, independent images, constant images preserved."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import metricconv as mc
from fuzz.problems import draw
from layers import randomize_predictors
from metricconv.metrics import PARAMETRIZATIONS
from ops.cases import Case
from raw_parameters import ELLIPSOIDS

__all__ = ["Call", "Layer", "check", "make"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAYERS = ("MetricConv1d", "MetricConv2d", "MetricConv2d", "MetricConv2d", "MetricConv3d")
LAYERS += ("DeformableConv2d", "ShiftedConv2d", "DilatedConv2d")


@dataclasses.dataclass
class Call:
    """A call of the operator."""

    seed: int
    case: Case
    backend: str

    def check(self) -> str:
        """Check the output of a random image, of each image alone, and of a constant image."""
        torch.manual_seed(self.seed)
        tensors, run = self.case.make()
        tensors = tensors | _geometry(tensors, self.case)

        def of(x: Tensor, images: slice = slice(None)) -> Tensor:
            own = {
                name: t[images] if name not in ("weight", "bias") and len(t) > 1 else t for name, t in tensors.items()
            }
            return run(own | {"input": x}, backend=self.backend)

        _check_images(of, tensors["input"])
        if self.case.mode != "zeros" and not self.case.modulated:
            tensors["weight"] = torch.full_like(tensors["weight"], 1 / tensors["weight"][0].numel())
            tensors.pop("bias", None)
            _check_constant(of, tensors["input"])
        return "operator"


@dataclasses.dataclass
class Layer:
    """A layer with a random predictor."""

    seed: int
    name: str
    arguments: dict[str, Any]
    shape: tuple[int, ...]
    std: float  # of the predictor's weights

    def check(self) -> str:
        """Check the output of a random image, of each image alone, of a constant image, and the gradients."""
        torch.manual_seed(self.seed)
        layer = getattr(mc.nn, self.name)(**self.arguments)
        if layer.predictor is not None:
            randomize_predictors(layer, self.std)
        x = torch.randn(self.shape, dtype=layer.weight.dtype, requires_grad=True)
        # Positions far from their pixels are rounded more.
        factor = max(self.std, 2 * (self.arguments.get("radius") or 1), 1)
        y = _check_images(lambda x, images=slice(None): layer(x), x, factor)
        y.float().square().mean().backward()
        for name, parameter in {"input": x, **dict(layer.named_parameters())}.items():
            assert parameter.grad is None or parameter.grad.isfinite().all(), f"gradient of {name}"
        if layer.padding_mode != "zeros" and not layer.modulation:
            nn.init.constant_(layer.weight, 1 / layer.weight[0].numel())
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
            _check_constant(layer, x)
        return self.name


def make(seed: int) -> Call | Layer:
    """Return the case of a seed."""
    rng = random.Random(seed)
    case = draw(rng, most_channels=12)
    backend = rng.choice(["auto", "auto", "reference"])
    if rng.random() < 0.5:
        return Call(seed, dataclasses.replace(case, dtype=rng.choice(DTYPES)), backend)
    name = rng.choice(LAYERS)
    if name[-2:] != f"{len(case.size)}d":
        case = draw(rng, dims=(int(name[-2]),), most_channels=12)
    arguments = {
        **dict(in_channels=case.channels[0], out_channels=case.channels[1], kernel_size=case.kernel),
        **dict(stride=case.stride, padding=case.padding, dilation=case.dilation, groups=case.groups),
        **dict(bias=case.biased, padding_mode=case.mode, metric_groups=case.metric_groups, backend=backend),
        **dict(modulation=case.modulated, dtype=rng.choice(DTYPES), learn_weight=rng.random() < 0.8),
    }
    if name.startswith("Metric"):
        arguments["kernel_size"] = tuple(k | 1 for k in case.kernel)
        parametrization = rng.choice(list(PARAMETRIZATIONS))
        arguments["parametrization"] = parametrization
        if parametrization in ELLIPSOIDS:
            arguments["eps_omega"] = rng.choice([0.05, 0.5, 1])
        arguments["radius"] = rng.choice([None, 0.1, 5.0])
        smooth = parametrization in (*ELLIPSOIDS, "asymmetric")
        if name == "MetricConv2d" and smooth and rng.random() < 0.3:
            arguments |= {"ball": "geodesic", "steps": rng.choice([None, 1, 3]), "smooth": rng.choice([0, 1, 2])}
        if rng.random() < 0.25:
            for option in ("parametrization", "eps_omega", "radius"):
                arguments.pop(option, None)
            arguments |= {"metric": rng.choice(["gradient", "edge", "structure"])}
            arguments |= {"modulation": False, "metric_groups": 1}
    kernel = arguments["kernel_size"]
    axes = zip(case.size, kernel, case.dilation, case.padding, strict=True)
    size = tuple(max(n, d * (k - 1) + 1 - 2 * p) for n, k, d, p in axes)
    return Layer(seed, name, arguments, (case.batch, case.channels[0], *size), rng.choice([0.0, 0.1, 1.0, 30.0]))


def check(case: Call | Layer) -> str:
    """Check the properties."""
    return case.check()


def _geometry(tensors: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    """Return the geometry in float64 if the input is; a metric is float32 or wider."""
    return {name: t.double() for name, t in tensors.items()} if case.dtype == torch.float64 else {}


def _check_images(of: Callable[..., Tensor], x: Tensor, factor: float = 1) -> Tensor:
    """Check that outputs are finite, and that the images of a batch are independent; return the outputs.

    Args:
        factor: of the tolerance.
    """
    y = of(x)
    assert y.isfinite().all() and y.dtype == x.dtype
    scale = y.abs().amax().clamp_min(1e-3).item()
    tolerance = factor * _tolerance(x.dtype)
    for n in range(len(x)):
        alone = of(x[n : n + 1], slice(n, n + 1))
        torch.testing.assert_close(alone, y[n : n + 1], atol=tolerance * scale, rtol=tolerance)
    return y


def _check_constant(of: Callable[..., Tensor], x: Tensor) -> None:
    y = of(torch.full_like(x, 3.5))
    torch.testing.assert_close(y, torch.full_like(y, 3.5), atol=0, rtol=_tolerance(x.dtype))


def _tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 16 * torch.finfo(dtype).eps)
