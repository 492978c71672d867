"""The backward pass: which kernels compute which gradients, and in which order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .backward_launches import GeometryGradients, ImageGradientSum, launch_backward_data, launch_backward_weight
from .bound_kernel import on_device
from .conv_call import ConvCall, float32_product


def backward(call: ConvCall, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of image, weight, modulation, field and drift, None for those not needed.

    All are in float32, except the image's.
    """
    if call.plan.im2col_images:
        with on_device(call.x):
            return _backward_im2col(call, grad, needs)
    needs_x, needs_weight, *others = needs
    needs_geometry, window = any(others), call.plan.window
    # Samples gathered for the weights serve the geometry too. Its gradient is then added atomically, sample by sample.
    with_weight = needs_geometry and needs_weight and call.plan.geometry_with_weight
    with_image = needs_geometry and not with_weight and needs_x and window != "patch"
    grad_x = grad_weight = None
    geometry: GeometryGradients = (None, None, None)
    with on_device(call.x):
        if needs_x:
            grad_x, found = _image_gradient(call, grad, window, with_image)
            geometry = found if with_image else geometry
        if needs_geometry and not with_weight and not with_image:
            geometry = launch_backward_data(call, grad, "none", None, True)
        if needs_weight:
            grad_weight, found = launch_backward_weight(call, grad, with_weight)
            geometry = found if with_weight else geometry
    return [grad_x, grad_weight, *geometry]


def _image_gradient(
    call: ConvCall, grad: Tensor, window: str, needs_geometry: bool
) -> tuple[Tensor, GeometryGradients]:
    """Return the gradients of the image and, if needed, of modulation, field and drift.

    Float32 sums that are then rounded are computed for a few images at a time, to bound the memory of the buffer.
    """
    result, geometry = _empty_image(call), []
    in_place = window == "image" or call.x.dtype == torch.float32
    for images, part in call.split(call.x.shape[0] if in_place else call.plan.images_per_sum):
        image = ImageGradientSum(part, grad[images], window, result[images])
        geometry.append(_scatter(part, grad[images], window, image, needs_geometry))
        image.write_result()
        del image  # before the next one is allocated
    return result, tuple(_concatenate(parts) for parts in zip(*geometry, strict=True))


def _scatter(
    call: ConvCall,
    grad: Tensor,
    window: str,
    image: ImageGradientSum,
    needs_geometry: bool,
    im2col: Tensor | None = None,
) -> GeometryGradients:
    """Add to the image's gradient; return those of modulation, field and drift if needed."""
    if window != "patch":
        return launch_backward_data(call, grad, window, image, needs_geometry, im2col)
    launch_backward_data(call, grad, "patch", image, False, im2col)
    return launch_backward_data(call, grad, "outliers", image, False, im2col)


def _backward_im2col(call: ConvCall, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the same by two large matrix products, which are faster by torch's library than in a kernel that gathers.

    The gradients of all samples of some images are the product of ∂L/∂y (B·out, C_out) and the weights (C_out, P·C).
    The kernel that reads them replaces them by the samples, whose product with ∂L/∂y is the weights' gradient.
    """
    needs_x, needs_weight, *others = needs
    needs_geometry, outs, window = any(others), call.weight.shape[0], call.plan.window
    weight = call.weight_matrix()
    grad_x, grad_weight = _empty_image(call) if needs_x else None, None
    geometry: list[GeometryGradients] = []
    for images, part in call.split(call.plan.im2col_images):
        part_grad = grad[images]
        rows = part_grad.permute(0, 2, 3, 1).reshape(-1, outs)
        im2col = rows @ weight if needs_x or needs_geometry else rows.new_empty(rows.shape[0], weight.shape[1])
        image = None if grad_x is None else ImageGradientSum(part, part_grad, window, grad_x[images])
        if image is not None and window == "patch":
            _scatter(part, part_grad, window, image, False, im2col)
        last_window, last_image = ("none", None) if image is None or window == "patch" else (window, image)
        if last_image is not None or needs_geometry or needs_weight:
            found = launch_backward_data(part, part_grad, last_window, last_image, needs_geometry, im2col, needs_weight)
            geometry.append(found)
        if image is not None:
            image.write_result()
        if needs_weight:
            product = float32_product(rows.T, im2col)
            grad_weight = product if grad_weight is None else grad_weight.add_(product)
        del im2col, image  # before the next ones are allocated
    if grad_weight is not None:
        grad_weight = grad_weight.view(outs, *call.weight.shape[2:], -1).permute(0, 3, 1, 2)
    return [grad_x, grad_weight, *([_concatenate(p) for p in zip(*geometry, strict=True)] if geometry else [None] * 3)]


def _concatenate(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Return the gradients of all images, given those of each part of the batch; None if there are none."""
    return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat([t for t in parts if t is not None])


def _empty_image(call: ConvCall) -> Tensor:
    """Return an uninitialized (B, C, H, W), channels last."""
    return torch.empty(call.x.shape, dtype=call.x.dtype, device=call.x.device, memory_format=torch.channels_last)
