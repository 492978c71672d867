"""The operator as users call it: argument checks, defaults, choice of the backend, autocast."""

import contextlib
import contextvars
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec

import torch
from torch import Tensor

from .. import _checks
from ..metrics import Metric, check_positive
from ..stencils import Stencil, square_onion
from ..supports import GeodesicBall, Support, TangentBall, from_torchvision_offsets
from . import cpu, reference, triton
from .problem import Problem, check

_LOGGER = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}

_checking_finite = contextvars.ContextVar("checking_finite", default=False)


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend: a function that computes a problem, and one that returns why it cannot, or None."""

    run: Callable[[Problem], Tensor]
    unsupported_reason: Callable[[Problem], str | None]


# In order of preference: "auto" takes the first that supports the problem.
BACKENDS: dict[str, Backend] = {
    "triton": Backend(triton.run, triton.unsupported_reason),
    "cpu": Backend(cpu.run, cpu.unsupported_reason),
    "reference": Backend(reference.run, lambda problem: None),
}


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
    """Sum an image over a support: y(o) = bias + Σ_j w_j · m_j(o) · x(centre(o) + Δ_j(o)).

    Standard, dilated, shifted, deformable and metric convolutions are this one operator with another support.

    Between pixels x is interpolated linearly along each axis, so it has a kink wherever a coordinate is a whole number,
    as all coordinates of a converted layer are at first. The derivative there is the mean of the two one-sided slopes,
    that is, the central difference of the neighbouring pixels (padded by ``padding_mode``), in every backend. A
    coordinate counts as whole within 2⁻¹⁶ pixels in float32 and 2⁻³⁶ in float64.

    Args:
        input: (B, C_in, *spatial).
        support: where each output pixel looks; its metric groups G split the input channels evenly.
        weight: (C_out, C_in/groups, *kernel_size), cell j row by row for sample j.
        bias: (C_out,).
        stride, padding: as in ``nn.Conv2d``; the output has the size ``nn.Conv2d`` would give it.
        groups: splits the channels among the weights, as in ``nn.Conv2d``; independent of G.
        modulation: (B, G, P, *out), multiplies each sample.
        padding_mode: what samples see past the border: "zeros", "border", "reflect" or "circular".
        backend: "auto", or the name of a backend; one that does not support the call raises an error with the reason.

    Returns:
        (B, C_out, *out), in the input's dtype, or autocast's.

    >>> import metricconv as mc
    >>> x, w = torch.randn(1, 3, 8, 8), torch.randn(5, 3, 3, 3)
    >>> y = mc.support_conv(x, mc.Grid(3), w, padding=1)
    >>> torch.allclose(y, torch.nn.functional.conv2d(x, w, padding=1), atol=1e-5)
    True
    """
    _checks.instance_of(support, Support, "support")
    stride = _checks.tuple_of(stride, support.dim, "stride", minimum=1)
    padding = _checks.tuple_of(padding, support.dim, "padding", minimum=0)
    device = _checks.floating(input, "input").device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    if autocast and input.dtype != torch.float64:  # backends convert the weights to the input's dtype
        dtype = torch.get_autocast_dtype(device)
        input = input.to(dtype)
        bias, modulation = (t if t is None else t.to(dtype) for t in (bias, modulation))
    problem = Problem(input, support, weight, bias, stride, padding, groups, modulation, padding_mode)
    check(problem)
    if isinstance(support, GeodesicBall):
        problem = dataclasses.replace(problem, support=support.expand_to(problem.grid.size))
    if not torch.compiler.is_compiling() and _checking_finite.get():
        _check_finite(problem)
    chosen = choose_backend(problem, backend)
    with torch.autocast(device, enabled=False) if autocast else contextlib.nullcontext():
        return chosen.run(problem)


def metric_conv(
    input: Tensor,
    metric: Metric,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    modulation: Tensor | None = None,
    *,
    stencil: Stencil | None = None,
    padding_mode: str = "zeros",
    backend: str = "auto",
) -> Tensor:
    """Convolve over the unit tangent balls of a metric, in any dimension; arguments ordered as torchvision's.

    Args:
        input, weight, bias, stride, padding, modulation, padding_mode, backend: as in ``support_conv``; ``groups``
            follows from the shapes of input and weight.
        metric: the metric at each output pixel.
        dilation: sets the output's size and centres, as in ``nn.Conv2d``; the ball's size is the metric's affair.
        stencil: how the ball is sampled; if not given, by the square onion of the weight's kernel size, odd then, and
            dilation, as in ``MetricConv2d``: a round metric of the kernel's reach gives the ordinary convolution.

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
        kernel_size = tuple(weight.shape[2:])
        if len(kernel_size) != metric.dim or any(k % 2 == 0 for k in kernel_size):
            raise ValueError(
                f"`weight` has kernel size {kernel_size}: it must be odd along the {metric.dim} spatial axes of "
                "`metric`; give a `stencil` for an even one"
            )
        stencil = square_onion(kernel_size, spacing=dilation)
    return support_conv(
        input,
        TangentBall(metric, stencil, dilation),
        weight,
        bias,
        stride=stride,
        padding=padding,
        groups=groups,
        modulation=modulation,
        padding_mode=padding_mode,
        backend=backend,
    )


def _face(general: Callable[_Arguments, Tensor], dim: int, what: str) -> Callable[_Arguments, Tensor]:
    """Return the operator for one dimension, with the arguments of the general one."""

    @functools.wraps(general)
    def face(*args: _Arguments.args, **options: _Arguments.kwargs) -> Tensor:
        metric = args[1] if len(args) > 1 else options.get("metric")
        if isinstance(metric, Metric) and metric.dim != dim:
            raise ValueError(f"`metric` has {metric.dim} spatial axes; metric_conv{dim}d needs {dim}")
        return general(*args, **options)

    face.__name__ = face.__qualname__ = f"metric_conv{dim}d"
    face.__doc__ = f"Convolve {what} over the unit tangent balls of a metric: ``metric_conv``, in {dim}-D alone."
    return face


metric_conv1d = _face(metric_conv, 1, "signals (B, C, L)")
metric_conv2d = _face(metric_conv, 2, "images (B, C, H, W)")
metric_conv3d = _face(metric_conv, 3, "volumes (B, C, D, H, W)")


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
    """Compute ``torchvision.ops.deform_conv2d`` with its own arguments, on any device and in any dtype.

    Outputs are equal to torchvision's, and so are gradients wherever no sample has a whole coordinate. At a whole
    coordinate, as everywhere at zero offsets, torchvision's gradient of ``offset`` is the slope on one side; here it is
    the mean of the slopes on both sides, as in ``support_conv``.
    """
    groups = _groups(input, weight)
    support = from_torchvision_offsets(offset, tuple(weight.shape[2:]), dilation)
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


def narrow_conv(
    input: Tensor, weight: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Compute torch's own convolution, in 1-D to 3-D; by kernels for few outputs where these are faster."""
    y = triton.narrow_conv(input, weight, bias, stride, padding, dilation)
    return _CONV[input.dim() - 2](input, weight, bias, stride, padding, dilation) if y is None else y


def choose_backend(problem: Problem, name: str = "auto") -> Backend:
    """Return the backend of that name, or with "auto" the first that supports the problem."""
    if name == "auto":
        chosen = next(key for key, backend in BACKENDS.items() if backend.unsupported_reason(problem) is None)
        if not torch.compiler.is_compiling() and _LOGGER.isEnabledFor(logging.DEBUG):
            _LOGGER.debug("backend %s chosen: %s", chosen, _availability(problem))
        return BACKENDS[chosen]
    if name not in BACKENDS:
        raise ValueError(f"`backend` (={name!r}) must be 'auto' or one of these: {_availability(problem)}")
    reason = BACKENDS[name].unsupported_reason(problem)
    if reason is not None:
        raise ValueError(f"`backend` (={name!r}) cannot compute this: {reason}. Available: {_availability(problem)}")
    return BACKENDS[name]


@contextlib.contextmanager
def check_finite() -> Iterator[None]:
    """Raise an error that names the pixel if a ``support_conv`` inside meets NaN, infinity or a metric not positive.

    Off by default, since looking synchronises with the device. Compiled graphs are not checked: run the network
    uncompiled, or under ``torch.compiler.set_stance("force_eager")``.

    >>> import metricconv as mc
    >>> with mc.check_finite():
    ...     mc.support_conv(torch.full((1, 1, 3, 3), torch.nan), mc.Grid(3), torch.ones(1, 1, 3, 3))
    Traceback (most recent call last):
        ...
    ValueError: `input` must be finite, got nan at index (0, 0, 0, 0) (9 such of 9 values)
    """
    token = _checking_finite.set(True)
    try:
        yield
    finally:
        _checking_finite.reset(token)


def _groups(input: Tensor, weight: Tensor) -> int:
    """Return the number of groups that the channels of input and weight imply."""
    for name, tensor in (("input", input), ("weight", weight)):
        if _checks.floating(tensor, name).dim() < 3:
            raise ValueError(f"`{name}` must have spatial axes after its first two, got shape {tuple(tensor.shape)}")
    _checks.divisible(input.shape[1], weight.shape[1], "input channels", "weight's input channels")
    return input.shape[1] // weight.shape[1]


def _availability(problem: Problem) -> str:
    states = {name: backend.unsupported_reason(problem) for name, backend in BACKENDS.items()}
    return "; ".join(f"{name} ({'available' if why is None else why})" for name, why in states.items())


def _check_finite(problem: Problem) -> None:
    tensors = {"input": problem.input, "weight": problem.weight, "bias": problem.bias, "modulation": problem.modulation}
    tensors |= {f"support.{name}": tensor for name, tensor in problem.support.tensors().items()}
    for name, tensor in tensors.items():
        if tensor is not None:
            _checks.finite(tensor, name)
    metric = getattr(problem.support, "metric", None)
    if isinstance(metric, Metric):
        check_positive(metric)
