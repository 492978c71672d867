"""The launches of the backward kernels, and their buffers. Nothing here waits for the device."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from . import tiles
from .backward_data_kernel import backward_data_kernel
from .backward_weight_kernel import backward_weight_kernel
from .bound_kernel import BoundKernel
from .conv_call import ConvCall, image_strides, strides_of

GeometryGradients = tuple[Tensor | None, ...]  # of modulation, field and drift, in float32


class ImageGradientSum:
    """The buffer in which kernels sum the image's gradient.

    It is the result itself if programs write disjoint pixels or the result is in float32, and otherwise in float32, or
    in 64-bit fixed point if the sum must not depend on the order of additions.

    Args:
        call, grad, window: of the backward pass.
        result: where the gradient is written in the end, (B, C, H, W), channels last.
    """

    def __init__(self, call: ConvCall, grad: Tensor, window: str, result: Tensor) -> None:
        self.result, self.scatter, self.scale = result, "add", None
        self.outlier_tiles: Tensor | None = None  # 1 for tiles with samples outside their window
        if window == "image":
            self.scatter, self.sum = "store", result
        elif call.deterministic:
            self.scatter, self.scale = "fixed", _fixed_point_scale(call, grad)
            self.sum = torch.zeros_like(result, dtype=torch.int64)
        elif result.dtype == torch.float32:
            self.sum = result.zero_()
        else:
            self.sum = torch.zeros_like(result, dtype=torch.float32)

    def write_result(self) -> None:
        """Write the sum to the result."""
        if self.sum is not self.result:
            self.result.copy_(self.sum if self.scale is None else (self.sum.double() / self.scale).float())


class _GeometryBuffers:
    """Buffers for the gradients of modulation, field and drift.

    ``writers`` programs contribute to each element. They add atomically to one buffer. If there is one writer, or the
    sum must be deterministic, each stores in a part of its own, and the parts are summed in a fixed order.
    """

    names = ("modulation", "field", "drift")

    def __init__(self, call: ConvCall, writers: int) -> None:
        self.tensors = {name: getattr(call, name) for name in self.names if writers}
        self.parts = writers if call.deterministic else min(writers, 1)
        self.write = "none" if writers == 0 else "store" if writers == self.parts else "add"

    def kernel_options(self) -> dict[str, Any]:
        """Return the kernels' arguments that describe the buffers."""
        contiguous = {n: None if t is None else torch.empty(t.shape, device="meta") for n, t in self.tensors.items()}
        strides = {f"grad_{name}_strides": strides_of(contiguous.get(name)) for name in self.names}
        return strides | {"GEOMETRY": self.write}

    def part_strides(self) -> tuple[int, ...]:
        """Return the distances between the parts of field, drift and modulation; 0 if there is one part."""
        sizes = {name: 0 if t is None or self.parts <= 1 else t.numel() for name, t in self.tensors.items()}
        return tuple(sizes.get(name, 0) for name in ("field", "drift", "modulation"))

    def allocate(self) -> dict[str, Tensor | None]:
        """Return new buffers [parts, B, G, …] by the kernels' argument names."""
        new = torch.empty if self.write == "store" else torch.zeros
        buffers: dict[str, Tensor | None] = {f"grad_{name}": None for name in self.names}
        for name, t in self.tensors.items():
            if t is not None:
                buffers[f"grad_{name}"] = new((self.parts, *t.shape), dtype=torch.float32, device=t.device)
        return buffers


def launch_backward_data(
    call: ConvCall,
    grad: Tensor,
    window: str,
    image: ImageGradientSum | None,
    needs_geometry: bool,
    im2col: Tensor | None = None,
    store_samples: bool = False,
) -> GeometryGradients:
    """Add to the image's gradient; return those of modulation, field and drift, None for those not needed.

    Args:
        call, grad, window: of the backward pass.
        image: the sum to add to; None if the image's gradient is not needed.
        needs_geometry: compute the gradients of modulation, field and drift.
        im2col: (B·out, P, C), the gradients of the samples, if they have been computed.
        store_samples: replace the gradients in ``im2col`` by the samples.
    """
    scatter, from_im2col = "none" if image is None else image.scatter, im2col is not None
    options = (window, scatter, needs_geometry, from_im2col, store_samples)
    launch, writers = call.cached(("data", *options), lambda: _bind_backward_data(call, grad, *options))
    if image is not None and window == "patch":
        image.outlier_tiles = torch.empty(launch.grid, dtype=torch.int32, device=call.x.device)
    geometry = _GeometryBuffers(call, writers).allocate()
    launch(
        **call.tensors(),
        grad_out=grad,
        weight=None if from_im2col else call.kernel_weight(),
        im2col=im2col,
        grad_x=None if image is None else image.sum,
        outlier_tiles=None if image is None else image.outlier_tiles,
        scale=None if image is None else image.scale,
        **geometry,
    )
    return tuple(map(_sum_parts, geometry.values()))


def _bind_backward_data(
    call: ConvCall,
    grad: Tensor,
    window: str,
    scatter: str,
    needs_geometry: bool,
    from_im2col: bool,
    store_samples: bool,
) -> tuple[BoundKernel, int]:
    dims, channels, contraction = call.dims(), call.channels(), call.plan.contraction
    choose = tiles.backward_im2col_tile if from_im2col else functools.partial(tiles.backward_data_tile, contraction)
    tile = choose(dims, channels, call.x.element_size(), window, needs_geometry, call.plan.large_shared_memory)
    blocks = math.ceil(channels.run / tile["BK"])
    if window == "image":
        windows = math.ceil(dims.batch / tile["WB"])
    else:
        windows = tiles.tile_count(dims, tile["BM"], tile["TW"])
    writers = channels.runs_per_metric * blocks if needs_geometry else 0
    geometry = _GeometryBuffers(call, writers)
    launch = BoundKernel(
        backward_data_kernel,
        [windows * (channels.ins // channels.run) * blocks],
        **call.kernel_options("im2col" if from_im2col else contraction),
        **geometry.kernel_options(),
        STORE_SAMPLES=store_samples,
        part_strides=geometry.part_strides(),
        out_strides=image_strides(grad),
        EVEN=channels.run % tile["BK"] == 0,
        SCATTER=scatter,
        BLOCKS=blocks,
        STEPS=1 if contraction == "depthwise" else math.ceil(channels.outs_per_group / tile["BN"]),
        **tile,
    )
    return launch, writers


def launch_backward_weight(call: ConvCall, grad: Tensor, needs_geometry: bool) -> tuple[Tensor, GeometryGradients]:
    """Return the gradient of the weights, (C_out, C/groups, k_h, k_w); and those of modulation, field and drift."""
    launch, parts, writers = call.cached(
        ("weight", needs_geometry), lambda: _bind_backward_weight(call, grad, needs_geometry)
    )
    adds = launch.options["WRITE"] == "add"
    outs, ins_per_group, *kernel = call.weight.shape
    new = torch.zeros if adds else torch.empty
    weight = new((1 if adds else parts, outs, *kernel, ins_per_group), dtype=torch.float32, device=call.x.device)
    geometry = _GeometryBuffers(call, writers).allocate()
    launch(**call.tensors(), grad_out=grad, weight=call.kernel_weight(), grad_weight=weight, **geometry)
    total = weight[0] if weight.shape[0] == 1 else weight.sum(0)
    return total.permute(0, 3, 1, 2), tuple(map(_sum_parts, geometry.values()))


def _bind_backward_weight(call: ConvCall, grad: Tensor, needs_geometry: bool) -> tuple[BoundKernel, int, int]:
    dims, channels, plan = call.dims(), call.channels(), call.plan
    along_rays = call.is_ball and call.modulation is None
    tile = tiles.backward_weight_tile(
        plan.contraction,
        dims,
        channels,
        call.x.element_size(),
        needs_geometry,
        along_rays,
        plan.large_shared_memory,
    )
    blocks = math.ceil(channels.run / tile["BK"])
    steps = 1 if plan.contraction == "depthwise" else math.ceil(channels.outs_per_group / tile["BN"])
    count = tiles.tile_count(dims, tile["BM"], tile["TW"])
    programs = channels.ins // channels.run * blocks * steps * dims.samples
    per_part = math.ceil(count / tiles.weight_parts(count, programs))
    parts = math.ceil(count / per_part)
    adds = parts > 1 and not call.deterministic
    writers = programs if needs_geometry else 0
    launch = BoundKernel(
        backward_weight_kernel,
        [programs * parts],
        **call.kernel_options(plan.contraction),
        **_GeometryBuffers(call, writers).kernel_options(),
        out_strides=image_strides(grad),
        tiles=count,
        tiles_per_part=per_part,
        part_stride=0 if adds or parts == 1 else call.weight.numel(),
        EVEN=channels.run % tile["BK"] == 0,
        WRITE="add" if adds else "store",
        BLOCKS=blocks,
        STEPS=steps,
        **tile,
    )
    return launch, parts, writers


def _sum_parts(parts: Tensor | None) -> Tensor | None:
    if parts is None:
        return None
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def _fixed_point_scale(call: ConvCall, grad: Tensor) -> Tensor:
    """Return the power of 2 by which gradients are multiplied so that their sum fits in 64-bit integers.

    A sample adds at most max|∂L/∂y| · max_c Σ_o|w| · max|m| to an image's gradient, and a pixel is sampled at most
    P · H_out · W_out times. If the gradient is not finite, neither is the scale, nor the result.
    """
    bound = grad.abs().amax().double() * call.weight.abs().double().sum(0).amax()
    if call.modulation is not None:
        bound = bound * call.modulation.abs().amax()
    count = math.prod(call.weight.shape[2:]) * math.prod(call.grid.size)
    exponent = (61 - math.log2(count) - bound.clamp_min(2.0**-60).log2()).floor().clamp_max(126)
    return torch.exp2(exponent).float().view(1)
