"""Convolutions with few output channels, such as predictors: a matrix product at every pixel, then a sum.

cuDNN pads few output channels to a whole tile. Here, the products W_t x of all kernel positions t and all outputs are
computed by one matrix product, which is limited by memory bandwidth. An output is a sum of one product per position.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operators import is_traced
from ..problem import OutputGrid
from .bound_kernel import BoundKernel, on_device
from .conv_call import deterministic, float32_product, precision

_HALF = (torch.float16, torch.bfloat16)
_PIXELS = 32  # per program
_ALIGNMENT = 8  # half-precision elements per load; float32 needs two loads


def few_outputs_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor | None:
    """Return the convolution, or None if ``nn.functional.conv2d`` is as fast or supports more."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(x.device.type))
    elif weight.dtype != x.dtype:  # an error in torch
        return None
    if (
        not _on_tensor_cores(x.dtype)
        or is_traced(x)
        or deterministic()  # cuBLAS is not, by default
        or 2 * _columns(weight) > 3 * x.shape[1]  # the products would need much more memory than the image
        or x.shape[1] % _ALIGNMENT
        or not x.is_contiguous(memory_format=torch.channels_last)
        or not 0 < x.numel() < 2**30  # products have 32-bit indices
    ):
        return None
    grid = OutputGrid(tuple(x.shape[2:]), tuple(weight.shape[2:]), dilation, stride, padding)
    if min(grid.size) < 1:
        return None
    return _FewOutputsConv.apply(x, weight, bias, grid)


def _on_tensor_cores(dtype: torch.dtype) -> bool:
    """Return whether products of this dtype run on the tensor cores. Others were not measured."""
    return dtype in _HALF or (dtype == torch.float32 and precision() == "tf32")


def _columns(weight: Tensor) -> int:
    """Return the number of products per pixel, rounded up to the alignment."""
    return math.ceil(weight.shape[0] * math.prod(weight.shape[2:]) / _ALIGNMENT) * _ALIGNMENT


@triton.jit
def sum_products_kernel(
    products, bias, out, pixels, height, width, out_height, out_width, stride_y, stride_x, padding_y, padding_x,
    dilation_y, dilation_x, COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr, POSITIONS: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write y(o) = bias + Σ_t products(o·stride − padding + t·dilation, t), (B, n, *out), for BM pixels o."""
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)  # [BM]
    valid = pixel < pixels
    row, column = pixel // out_width % out_height, pixel % out_width
    image = pixel // (out_width * out_height)
    output = tl.arange(0, BN)  # [BN]
    is_output = output < OUTPUTS
    acc = tl.zeros([BM, BN], tl.float32)
    for position in tl.range(POSITIONS):
        y = row * stride_y - padding_y + position // KERNEL_WIDTH * dilation_y
        x = column * stride_x - padding_x + position % KERNEL_WIDTH * dilation_x
        inside = valid & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        at = ((image * height + y) * width + x) * COLUMNS + position
        value = tl.load(
            products + at[:, None] + output[None, :] * POSITIONS, inside[:, None] & is_output[None, :], other=0.0
        )
        acc += value.to(tl.float32)
    acc += tl.load(bias + output, is_output, other=0.0).to(tl.float32)[None, :]
    to = (image[:, None] * OUTPUTS + output[None, :]) * out_height * out_width + (row * out_width + column)[:, None]
    tl.store(out + to, acc.to(out.dtype.element_ty), valid[:, None] & is_output[None, :])


@triton.jit
def product_gradient_kernel(
    grad, products, bias_sums, pixels, height, width, out_height, out_width, stride_y: tl.constexpr,
    stride_x: tl.constexpr, padding_y, padding_x, dilation_y, dilation_x, COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr,
    POSITIONS: tl.constexpr, KERNEL_WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, COMPLETE: tl.constexpr,
):  # fmt: skip
    """Write the gradients of all products, (B·H·W, columns): that of the output it was added to, or 0.

    Those of the kernel position COMPLETE, which contributes to every output, are added to ``bias_sums``, (n,).
    """
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]  # [BM, 1]
    valid = pixel < pixels
    column = tl.arange(0, BN)[None, :]  # [1, BN]
    position, output = column % POSITIONS, column // POSITIONS
    y = pixel // width % height + padding_y - position // KERNEL_WIDTH * dilation_y  # [BM, BN]
    x = pixel % width + padding_x - position % KERNEL_WIDTH * dilation_x
    image = pixel // (width * height)
    used = valid & (output < OUTPUTS) & (y >= 0) & (y % stride_y == 0) & (x >= 0) & (x % stride_x == 0)
    y, x = y // stride_y, x // stride_x
    used = used & (y < out_height) & (x < out_width)
    value = tl.load(grad + ((image * OUTPUTS + output) * out_height + y) * out_width + x, used, other=0.0)
    tl.store(products + pixel * COLUMNS + column, value, valid & (column < COLUMNS))
    if bias_sums is not None:
        found = tl.sum(value.to(tl.float32), 0)[None, :]  # [1, BN]
        tl.atomic_add(bias_sums + output, found, mask=(position == COMPLETE) & (output < OUTPUTS), sem="relaxed")


class _FewOutputsConv(torch.autograd.Function):
    """The convolution and its first derivative. Higher derivatives are those of torch's convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, grid: OutputGrid) -> Tensor:
        """Return (B, n, *out) in the image's dtype."""
        table = x.new_zeros(_columns(weight), x.shape[1])
        _unpadded_rows(table, weight).copy_(weight.permute(0, 2, 3, 1))
        images, outputs = x.shape[0], weight.shape[0]
        out = torch.empty((images, outputs, *grid.size), dtype=x.dtype, device=x.device)
        with on_device(x):
            launch, _ = _bind(grid, images, outputs, table.shape[0])
            launch(products=_rows(x) @ table.T, bias=bias, out=out)
        ctx.save_for_backward(x, weight, table)
        ctx.grid, ctx.bias_dtype = grid, bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of image, weights and bias."""
        x, weight, table = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = bias_sums = None
        if torch.is_grad_enabled():
            grad_x, grad_weight = _differentiable_gradients(ctx.grid, grad, x, weight, [needs_x, needs_weight, False])
            return grad_x, grad_weight, grad.sum((0, 2, 3), dtype=ctx.bias_dtype) if needs_bias else None, None
        with on_device(x):
            _, launch = _bind(ctx.grid, x.shape[0], weight.shape[0], table.shape[0])
            products = x.new_empty(x.numel() // x.shape[1], table.shape[0])
            if needs_bias and launch.options["COMPLETE"] is not None:
                bias_sums = torch.zeros(weight.shape[0], dtype=torch.float32, device=x.device)
            launch(grad=grad.contiguous(), products=products, bias_sums=bias_sums)
            if needs_bias:
                grad_bias = (
                    grad.sum((0, 2, 3), dtype=ctx.bias_dtype) if bias_sums is None else bias_sums.to(ctx.bias_dtype)
                )
            if needs_x:
                grad_x = (products @ table).unflatten(0, (x.shape[0], *x.shape[2:])).permute(0, 3, 1, 2)
            if needs_weight:
                rows = _unpadded_rows(float32_product(products.T, _rows(x)), weight)
                grad_weight = rows.permute(0, 3, 1, 2).to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None


def _differentiable_gradients(
    grid: OutputGrid, grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of image and weights by torch's convolution, which is differentiable again."""
    sizes = (grid.stride, grid.padding, grid.dilation)
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight.to(x.dtype), None, *sizes, False, [0, 0], 1, needs
    )
    return grad_x, None if grad_weight is None else grad_weight.to(weight.dtype)


def _rows(x: Tensor) -> Tensor:
    """Return an image as a matrix, (B·H·W, C)."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


def _unpadded_rows(table: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of a table without those added for alignment, as (n, k_h, k_w, C)."""
    outputs, channels, *kernel = weight.shape
    return table[: outputs * math.prod(kernel)].view(outputs, *kernel, channels)


def _complete_position(grid: OutputGrid) -> int | None:
    """Return the index of a kernel position that is inside the image for every output, or None."""
    positions = []
    for size, kernel, dilation, stride, padding, out in zip(
        grid.input_size, grid.kernel_size, grid.dilation, grid.stride, grid.padding, grid.size, strict=True
    ):
        inside = [k for k in range(kernel) if 0 <= k * dilation - padding < size - (out - 1) * stride]
        if not inside:
            return None
        positions.append(inside[len(inside) // 2])
    return positions[0] * grid.kernel_size[1] + positions[1]


@functools.lru_cache(maxsize=1024)
def _bind(grid: OutputGrid, images: int, outputs: int, columns: int) -> tuple[BoundKernel, BoundKernel]:
    """Return both kernels with bound arguments."""
    sizes = dict(zip(("height", "width"), grid.input_size, strict=True))
    sizes |= dict(zip(("out_height", "out_width"), grid.size, strict=True))
    for name in ("stride", "padding", "dilation"):
        sizes |= {f"{name}_{axis}": value for axis, value in zip("yx", getattr(grid, name), strict=True)}
    sizes |= {"POSITIONS": math.prod(grid.kernel_size), "KERNEL_WIDTH": grid.kernel_size[1]}
    sizes |= {"COLUMNS": columns, "OUTPUTS": outputs, "BM": _PIXELS}

    def bind(kernel: Any, size: tuple[int, ...], block: int, **more: Any) -> BoundKernel:
        pixels = images * math.prod(size)
        programs = triton.cdiv(pixels, _PIXELS)
        return BoundKernel(kernel, (programs,), pixels=pixels, BN=triton.next_power_of_2(block), **sizes, **more)

    forward = bind(sum_products_kernel, grid.size, outputs)
    return forward, bind(product_gradient_kernel, grid.input_size, columns, COMPLETE=_complete_position(grid))
