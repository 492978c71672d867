"""The operator as users call it: argument checks, defaults, autocast, selection of the backend."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from .. import _checks
from ..metrics import Metric, check_positive
from ..metrics.flow import metric_padding
from ..stencils import Stencil, square_onion
from ..supports import GeodesicBall, Support, TangentBall, from_torchvision_offsets
from .backends import choose_backend
from .problem import OutputGrid, Problem, check, check_broadcast, support_tensors

__all__ = [
    "MetricConvOptions",
    "check_finite",
    "deform_conv2d",
    "metric_conv",
    "metric_conv1d",
    "metric_conv2d",
    "metric_conv3d",
    "support_conv",
]


def support_conv(
    input: Tensor,
    support: Support,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    groups: int = 1,
    modulation: Tensor | None = None,
    padding_mode: str = "zeros",
    backend: str = "auto",
) -> Tensor:
    """Return the weighted sum of the input over a support: y(o) = bias + Σ_j w_j · m_j(o) · x(center(o) + Δ_j(o)).

    Standard, dilated, shifted, deformable and metric convolutions are this operator with different supports.

    Between pixels x is interpolated linearly along each axis. It has a kink wherever a coordinate is an integer,
    which includes all coordinates of a converted layer at initialization. The derivative there is the mean of the two
    one-sided slopes, that is, the central difference of the neighboring pixels (padded by ``padding_mode``), in every
    backend. A coordinate counts as an integer within 2⁻¹⁶ pixels in float32 and 2⁻³⁶ in float64.

    Args:
        input: (B, C_in, *spatial).
        support: sampling locations of each output pixel; its metric groups G split the input channels evenly.
        weight: (C_out, C_in/groups, *kernel_size); sample j uses cell j in row-major order.
        bias: (C_out,).
        stride, padding: as in ``nn.Conv2d``, which also gives the size of the output.
        groups: number of channel groups with separate weights, as in ``nn.Conv2d``; independent of G.
        modulation: (B, G, P, *out), factor of each sample.
        padding_mode: values outside the image: "zeros" (default), "border" (also called "replicate"), "reflect" or
            "circular".
        backend: "auto" (default), or the name of a backend, which raises an error with the reason if it does not
            support the call.

    Returns:
        (B, C_out, *out), in the dtype of the input, or of autocast.

    >>> import metricconv as mc
    >>> x, w = torch.randn(1, 3, 8, 8), torch.randn(5, 3, 3, 3)
    >>> y = mc.support_conv(x, mc.Grid(3), w, padding=1)
    >>> torch.allclose(y, torch.nn.functional.conv2d(x, w, padding=1), atol=1e-5)
    True
    """
    _checks.instance_of(support, Support, "support")
    stride = _checks.tuple_of(stride, support.dim, "stride", minimum=1)
    padding = _checks.tuple_of(padding, support.dim, "padding", minimum=0)
    mode = _checks.padding_mode(padding_mode)
    device = _checks.floating(input, "input").device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    if autocast and input.dtype != torch.float64:  # backends convert the weights to the dtype of the input
        dtype = torch.get_autocast_dtype(device)
        input = input.to(dtype)
        bias, modulation = (t if t is None else t.to(dtype) for t in (bias, modulation))
    problem = Problem(input, support, weight, bias, stride, padding, groups, modulation, mode)
    check(problem)
    if isinstance(support, GeodesicBall):
        _checks.not_traced("geodesic balls")
        problem = dataclasses.replace(problem, support=support.expand_to(problem.grid.size))
    if not torch.compiler.is_compiling() and _checks.checking_finite.get():
        _check_finite(problem)
    run = choose_backend(problem, backend).run
    if not autocast:
        return run(problem)
    with torch.autocast(device, enabled=False):
        return run(problem)


class MetricConvOptions(TypedDict, total=False):
    """Keyword arguments of ``metric_conv``."""

    stride: int | Sequence[int]
    padding: int | Sequence[int]
    dilation: int | Sequence[int]
    modulation: Tensor | None
    stencil: Stencil | None
    ball: str
    steps: int | None
    smooth: int
    padding_mode: str
    backend: str


def metric_conv(
    input: Tensor,
    metric: Metric,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    modulation: Tensor | None = None,
    stencil: Stencil | None = None,
    ball: str = "tangent",
    steps: int | None = None,
    smooth: int = 1,
    padding_mode: str = "zeros",
    backend: str = "auto",
) -> Tensor:
    """Return the convolution of the input over the unit balls of a metric: ``MetricConv`` as a function.

    Args:
        input, weight, bias, stride, padding, modulation, padding_mode, backend: as in ``support_conv``; ``groups``
            follows from the shapes of input and weight.
        metric: the metric at each output pixel.
        dilation: determines the size of the output and the centers of its pixels, as in ``nn.Conv2d``, and the default
            stencil. The size of the balls depends on the metric only.
        stencil: sampling pattern of the ball. Default: the square onion of the weight's kernel size, which must be odd,
            and dilation, as in ``MetricConv``. A round metric of the kernel's extent then gives the ordinary
            convolution.
        ball: "tangent" (default) or "geodesic"; see ``TangentBall`` and ``GeodesicBall``.
        steps: integration steps per geodesic. Default: 3 for kernels up to 5 wide, otherwise 4.
        smooth: how many times the metric is smoothed before geodesics are traced. Default: 1.

    >>> import metricconv as mc
    >>> x, w = torch.randn(1, 3, 8, 8), torch.randn(5, 3, 3, 3)
    >>> y = mc.metric_conv(x, mc.Riemannian.isotropic(1.0), w, padding=1)
    >>> torch.allclose(y, torch.nn.functional.conv2d(x, w, padding=1), atol=1e-5)
    True
    """
    _checks.instance_of(metric, Metric, "metric")
    groups = _groups(input, weight)
    dilation = _checks.tuple_of(dilation, metric.dim, "dilation", minimum=1)
    if stencil is None:
        stencil = _square_onion_of(weight, metric.dim, dilation)
    support: Support
    if _checks.one_of(ball, ("tangent", "geodesic"), "ball") == "geodesic":
        mode = metric_padding(_checks.padding_mode(padding_mode))
        support = GeodesicBall(metric, stencil, steps, smooth, dilation, stride=stride, padding_mode=mode)
    else:
        smooth = _checks.whole(smooth, "smooth", minimum=0)
        for name, value, default in (("steps", steps, None), ("smooth", smooth, 1)):
            if value is not default and value != default:
                raise ValueError(f"`{name}` (={value!r}) requires ball='geodesic'")
        support = TangentBall(metric, stencil, dilation)
    return support_conv(
        input,
        support,
        weight,
        bias,
        stride=stride,
        padding=padding,
        groups=groups,
        modulation=modulation,
        padding_mode=padding_mode,
        backend=backend,
    )


def metric_conv1d(
    input: Tensor, metric: Metric, weight: Tensor, bias: Tensor | None = None, **options: Unpack[MetricConvOptions]
) -> Tensor:
    """Return ``metric_conv`` of signals (B, C, L); raise an error for metrics of other than 1 spatial axis."""
    _check_dim(metric, 1)
    return metric_conv(input, metric, weight, bias, **options)


def metric_conv2d(
    input: Tensor, metric: Metric, weight: Tensor, bias: Tensor | None = None, **options: Unpack[MetricConvOptions]
) -> Tensor:
    """Return ``metric_conv`` of images (B, C, H, W); raise an error for metrics of other than 2 spatial axes."""
    _check_dim(metric, 2)
    return metric_conv(input, metric, weight, bias, **options)


def metric_conv3d(
    input: Tensor, metric: Metric, weight: Tensor, bias: Tensor | None = None, **options: Unpack[MetricConvOptions]
) -> Tensor:
    """Return ``metric_conv`` of volumes (B, C, D, H, W); raise an error for metrics of other than 3 spatial axes."""
    _check_dim(metric, 3)
    return metric_conv(input, metric, weight, bias, **options)


def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Return ``torchvision.ops.deform_conv2d`` of the same arguments, on any device and in any dtype.

    Outputs are equal to torchvision's, and so are gradients wherever no sample has an integer coordinate. At an integer
    coordinate, as everywhere at zero offsets, torchvision's gradient of ``offset`` is the slope on one side; here it is
    the mean of the slopes on both sides, as in ``support_conv``.
    """
    groups = _groups(input, weight)
    if weight.dim() != 4 or not all(weight.shape[2:]):
        raise ValueError(f"`weight` must be (C_out, C_in/groups, k_h, k_w), got shape {tuple(weight.shape)}")
    support = from_torchvision_offsets(offset, tuple(weight.shape[2:]), dilation)
    stride = _checks.tuple_of(stride, 2, "stride", minimum=1)
    padding = _checks.tuple_of(padding, 2, "padding", minimum=0)
    grid = OutputGrid(tuple(input.shape[2:]), support.kernel_size, support.dilation, stride, padding)
    for name, tensor in (("offset", offset), ("mask", mask)):
        if tensor is not None and input.dim() == 4:
            check_broadcast(_checks.floating(tensor, name), name, input.shape[0], grid.size)
    modulation = None
    if mask is not None:
        if _checks.floating(mask, "mask").dim() != 4 or mask.shape[1] != support.groups * support.samples:
            raise ValueError(
                f"`mask` must be (B, G·{support.samples}, H, W), with G = {support.groups} as for `offset`, got shape "
                f"{tuple(mask.shape)}"
            )
        modulation = mask.unflatten(1, (support.groups, support.samples))
    return support_conv(
        input, support, weight, bias, stride=stride, padding=padding, groups=groups, modulation=modulation
    )


@contextlib.contextmanager
def check_finite() -> Iterator[None]:
    """Check the arguments of every ``support_conv`` inside: all values finite, all metrics positive.

    It also checks images of which a metric is computed (``gradient_metric`` and others), which on the CPU are always
    checked. The error names the pixel. Checks are off by default, since they synchronize with the device. Compiled
    graphs are not checked: run the network uncompiled, or under ``torch.compiler.set_stance("force_eager")``.

    >>> import metricconv as mc
    >>> with mc.check_finite():
    ...     mc.support_conv(torch.full((1, 1, 3, 3), torch.nan), mc.Grid(3), torch.ones(1, 1, 3, 3))
    Traceback (most recent call last):
        ...
    ValueError: `input` must be finite, got nan at index (0, 0, 0, 0) (9 such of 9 values)
    """
    token = _checks.checking_finite.set(True)
    try:
        yield
    finally:
        _checks.checking_finite.reset(token)


def _groups(input: Tensor, weight: Tensor) -> int:
    """Return the number of groups that follows from the channels of input and weight."""
    for name, tensor in (("input", input), ("weight", weight)):
        if _checks.floating(tensor, name).dim() < 3:
            raise ValueError(f"`{name}` must have spatial axes after its first two, got shape {tuple(tensor.shape)}")
    _checks.divisible(input.shape[1], weight.shape[1], "input channels", "weight's input channels")
    return input.shape[1] // weight.shape[1]


def _square_onion_of(weight: Tensor, dim: int, dilation: tuple[int, ...]) -> Stencil:
    """Return the square onion of a weight's kernel size."""
    kernel_size = tuple(weight.shape[2:])
    if len(kernel_size) != dim or any(k % 2 == 0 for k in kernel_size):
        raise ValueError(
            f"`weight` has kernel size {kernel_size}: it must be odd along the {dim} spatial axes of `metric`; an even "
            "one requires a `stencil`"
        )
    return square_onion(kernel_size, spacing=dilation)


def _check_dim(metric: Metric, dim: int) -> None:
    if isinstance(metric, Metric) and metric.dim != dim:
        raise ValueError(f"`metric` has {metric.dim} spatial axes; metric_conv{dim}d needs {dim}")


def _check_finite(problem: Problem) -> None:
    tensors = {"input": problem.input, "weight": problem.weight, "bias": problem.bias, "modulation": problem.modulation}
    tensors |= support_tensors(problem.support)
    for name, tensor in tensors.items():
        if tensor is not None:
            _checks.finite(tensor, name)
    metric = getattr(problem.support, "metric", None)
    if isinstance(metric, Metric):
        check_positive(metric)
