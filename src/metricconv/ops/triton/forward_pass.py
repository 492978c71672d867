"""The forward pass: its kernel launches and buffers. Nothing here waits for the device."""

import functools
import math

import torch
from torch import Tensor

from . import tiles
from .bound_kernel import BoundKernel, on_device
from .conv_call import ConvCall, empty_output, image_strides
from .forward_kernel import forward_kernel


def forward(call: ConvCall, bias: Tensor | None, channels_last: bool) -> Tensor:
    """Return y, (B, C_out, *out)."""
    size = call.cached("size", lambda: call.grid.size)
    im2col_images = call.plan.im2col_images
    out = empty_output(call.x, call.weight.shape[0], size, channels_last or im2col_images > 0)
    if out.numel():
        with on_device(call.x):
            if im2col_images:
                _multiply_im2col(call, bias, out)
            else:
                _convolve(call, bias, out, channels_last)
    return out if channels_last else out.contiguous()


def _convolve(call: ConvCall, bias: Tensor | None, out: Tensor, channels_last: bool) -> None:
    """Write y by one kernel, which gathers samples and multiplies them by the weights."""

    def bind() -> BoundKernel:
        return _bind_forward(call, out, bias is not None, call.plan.contraction)

    launch = call.cached(("forward", bias is None, channels_last), bind)
    launch(**call.tensors(), weight=call.kernel_weight(), bias=None if bias is None else bias.contiguous(), out=out)


def _multiply_im2col(call: ConvCall, bias: Tensor | None, out: Tensor) -> None:
    """Write y, channels last, as products of the im2col buffer (B·out, P·C) of some images and the weights."""
    weight = call.weight_matrix().T
    for images, part in call.split(call.plan.im2col_images):
        y = out[images].permute(0, 2, 3, 1).flatten(0, 2)
        im2col = y.new_empty(y.shape[0], weight.shape[0])
        launch = part.cached("im2col", functools.partial(_bind_forward, part, out, False, "im2col"))
        launch(**part.tensors(), weight=None, bias=None, out=im2col)
        if bias is None:
            torch.mm(im2col, weight, out=y)
        else:
            torch.addmm(bias.to(y.dtype), im2col, weight, out=y)
        del im2col  # before the next one is allocated


def _bind_forward(call: ConvCall, out: Tensor, biased: bool, contraction: str) -> BoundKernel:
    dims, channels = call.dims(), call.channels()
    tile = tiles.forward_tile(
        contraction, call.kind, dims, channels, call.x.element_size(), call.plan.large_shared_memory
    )
    if contraction in ("depthwise", "im2col"):
        blocks, steps = math.ceil(channels.run / tile["BN"]), 1
        programs = channels.ins // channels.run * blocks
    else:
        blocks, steps = math.ceil(channels.outs_per_group / tile["BN"]), math.ceil(channels.run / tile["BK"])
        programs = call.groups * blocks
    return BoundKernel(
        forward_kernel,
        [tiles.tile_count(dims, tile["BM"], tile["TW"]) * programs],
        **call.kernel_options(contraction),
        out_strides=image_strides(out),
        BIASED=biased,
        EVEN=channels.run % tile["BK"] == 0,
        BLOCKS=blocks,
        STEPS=steps,
        **tile,
    )
