"""Convolutions with few outputs, as those of heads are: a matrix product at every pixel, then a sum over taps.

A library's convolution pads few outputs to a whole tile. But W_t x for all taps t together is a product with as many
columns as taps and outputs, which it computes at the speed of the memory; an output is a sum of one number a tap.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..problem import OutputGrid
from .call import deterministic, precision, wide_product
from .launcher import Launch, on_device
from .shortcut import traced

_HALF = (torch.float16, torch.bfloat16)
_PIXELS = 32  # of a program
_ALIGNED = 8  # numbers of half precision that are loaded at once; of float32, in two loads


def narrow_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor | None:
    """Return what ``nn.functional.conv2d`` does, or None where that one is as fast, or needed."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(x.device.type))
    elif weight.dtype != x.dtype:  # which torch's refuses
        return None
    if (
        not _on_tensor_cores(x.dtype)
        or traced(x)
        or deterministic()  # as cuBLAS is not without settings of its own
        or 2 * _columns(weight) > 3 * x.shape[1]  # the products would take much more room than the image
        or x.shape[1] % _ALIGNED
        or not x.is_contiguous(memory_format=torch.channels_last)
        or not 0 < x.numel() < 2**30  # products are found by 32 bits
    ):
        return None
    grid = OutputGrid(tuple(x.shape[2:]), tuple(weight.shape[2:]), dilation, stride, padding)
    if min(grid.size) < 1:
        return None
    return _Narrow.apply(x, weight, bias, grid)


def _on_tensor_cores(dtype: torch.dtype) -> bool:
    """Return whether products of a type are fast ones: the others were not measured."""
    return dtype in _HALF or (dtype == torch.float32 and precision() == "tf32")


def _columns(weight: Tensor) -> int:
    """Return how many products there are at a pixel, rounded up."""
    return math.ceil(weight.shape[0] * math.prod(weight.shape[2:]) / _ALIGNED) * _ALIGNED


@triton.jit
def sum_kernel(
    products, bias, out, pixels, height, width, out_height, out_width, stride_y, stride_x, padding_y, padding_x,
    dilation_y, dilation_x, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr, TAPS: tl.constexpr, ACROSS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write y(o) = bias + Σ_t products(o·stride − padding + t·dilation, t), (B, n, *out), for BM pixels o."""
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)  # [BM]
    live = pixel < pixels
    row, column = pixel // out_width % out_height, pixel % out_width
    image = pixel // (out_width * out_height)
    number = tl.arange(0, BN)  # [BN]
    known = number < NUMBERS
    acc = tl.zeros([BM, BN], tl.float32)
    for tap in tl.range(TAPS):
        y = row * stride_y - padding_y + tap // ACROSS * dilation_y
        x = column * stride_x - padding_x + tap % ACROSS * dilation_x
        inside = live & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        at = ((image * height + y) * width + x) * COLUMNS + tap
        value = tl.load(products + at[:, None] + number[None, :] * TAPS, inside[:, None] & known[None, :], other=0.0)
        acc += value.to(tl.float32)
    acc += tl.load(bias + number, known, other=0.0).to(tl.float32)[None, :]
    to = (image[:, None] * NUMBERS + number[None, :]) * out_height * out_width + (row * out_width + column)[:, None]
    tl.store(out + to, acc.to(out.dtype.element_ty), live[:, None] & known[None, :])


@triton.jit
def spread_kernel(
    grad, products, sums, pixels, height, width, out_height, out_width, stride_y: tl.constexpr, stride_x: tl.constexpr,
    padding_y, padding_x, dilation_y, dilation_x, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr, TAPS: tl.constexpr,
    ACROSS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Write the gradient of every product, (B·H·W, columns): that of the one output it went to, if any.

    Those of the tap WHOLE, which finds every output, are added to ``sums``, (n,).
    """
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]  # [BM, 1]
    live = pixel < pixels
    column = tl.arange(0, BN)[None, :]  # [1, BN]
    tap, number = column % TAPS, column // TAPS
    y = pixel // width % height + padding_y - tap // ACROSS * dilation_y  # [BM, BN]
    x = pixel % width + padding_x - tap % ACROSS * dilation_x
    image = pixel // (width * height)
    met = live & (number < NUMBERS) & (y >= 0) & (y % stride_y == 0) & (x >= 0) & (x % stride_x == 0)
    y, x = y // stride_y, x // stride_x
    met = met & (y < out_height) & (x < out_width)
    value = tl.load(grad + ((image * NUMBERS + number) * out_height + y) * out_width + x, met, other=0.0)
    tl.store(products + pixel * COLUMNS + column, value, live & (column < COLUMNS))
    if sums is not None:
        found = tl.sum(value.to(tl.float32), 0)[None, :]  # [1, BN]
        tl.atomic_add(sums + number, found, mask=(tap == WHOLE) & (number < NUMBERS), sem="relaxed")


class _Narrow(torch.autograd.Function):
    """The convolution, and its first derivative; higher ones are those of torch's convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, grid: OutputGrid) -> Tensor:
        """Return (B, n, *out) in the image's dtype."""
        table = x.new_zeros(_columns(weight), x.shape[1])
        _by_tap(table, weight).copy_(weight.permute(0, 2, 3, 1))
        images, numbers = x.shape[0], weight.shape[0]
        out = torch.empty((images, numbers, *grid.size), dtype=x.dtype, device=x.device)
        with on_device(x):
            launch, _ = _launches(grid, images, numbers, table.shape[0])
            launch(products=_rows(x) @ table.T, bias=bias, out=out)
        ctx.save_for_backward(x, weight, table)
        ctx.grid, ctx.bias_dtype = grid, bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of image, weights and bias."""
        x, weight, table = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        of_x = of_weight = of_bias = sums = None
        if torch.is_grad_enabled():
            of_x, of_weight = _differentiable(ctx.grid, grad, x, weight, [needs_x, needs_weight, False])
            return of_x, of_weight, grad.sum((0, 2, 3), dtype=ctx.bias_dtype) if needs_bias else None, None
        with on_device(x):
            _, launch = _launches(ctx.grid, x.shape[0], weight.shape[0], table.shape[0])
            products = x.new_empty(x.numel() // x.shape[1], table.shape[0])
            if needs_bias and launch.numbers["WHOLE"] is not None:
                sums = torch.zeros(weight.shape[0], dtype=torch.float32, device=x.device)
            launch(grad=grad.contiguous(), products=products, sums=sums)
            if needs_bias:
                of_bias = grad.sum((0, 2, 3), dtype=ctx.bias_dtype) if sums is None else sums.to(ctx.bias_dtype)
            if needs_x:
                of_x = (products @ table).unflatten(0, (x.shape[0], *x.shape[2:])).permute(0, 3, 1, 2)
            if needs_weight:
                of_weight = _by_tap(wide_product(products.T, _rows(x)), weight).permute(0, 3, 1, 2).to(weight.dtype)
        return of_x, of_weight, of_bias, None


def _differentiable(
    grid: OutputGrid, grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of image and weights by torch's own convolution, which has derivatives of its own."""
    sizes = (grid.stride, grid.padding, grid.dilation)
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight.to(x.dtype), None, *sizes, False, [0, 0], 1, needs
    )
    return of_x, None if of_weight is None else of_weight.to(weight.dtype)


def _rows(x: Tensor) -> Tensor:
    """Return an image as a matrix, (B·H·W, C)."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


def _by_tap(table: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of a table that are not there for alignment, as (n, k_h, k_w, C)."""
    numbers, channels, *kernel = weight.shape
    return table[: numbers * math.prod(kernel)].view(numbers, *kernel, channels)


def _whole(grid: OutputGrid) -> int | None:
    """Return the number of a tap that no output has past the image's border, or None."""
    places = []
    for size, kernel, dilation, stride, padding, out in zip(
        grid.input_size, grid.kernel_size, grid.dilation, grid.stride, grid.padding, grid.size, strict=True
    ):
        inside = [k for k in range(kernel) if 0 <= k * dilation - padding < size - (out - 1) * stride]
        if not inside:
            return None
        places.append(inside[len(inside) // 2])
    return places[0] * grid.kernel_size[1] + places[1]


@functools.lru_cache(maxsize=1024)
def _launches(grid: OutputGrid, images: int, numbers: int, columns: int) -> tuple[Launch, Launch]:
    """Return the launches of both kernels."""
    sizes = dict(zip(("height", "width"), grid.input_size, strict=True))
    sizes |= dict(zip(("out_height", "out_width"), grid.size, strict=True))
    for name in ("stride", "padding", "dilation"):
        sizes |= {f"{name}_{axis}": value for axis, value in zip("yx", getattr(grid, name), strict=True)}
    sizes |= {"TAPS": math.prod(grid.kernel_size), "ACROSS": grid.kernel_size[1]}
    sizes |= {"COLUMNS": columns, "NUMBERS": numbers, "BM": _PIXELS}

    def launch(kernel: Any, size: tuple[int, ...], block: int, **more: Any) -> Launch:
        pixels = images * math.prod(size)
        programs = triton.cdiv(pixels, _PIXELS)
        return Launch(kernel, (programs,), pixels=pixels, BN=triton.next_power_of_2(block), **sizes, **more)

    return launch(sum_kernel, grid.size, numbers), launch(spread_kernel, grid.input_size, columns, WHOLE=_whole(grid))
