"""The backward pass: which kernels find what, and in which order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import tiles
from .call import Call, deterministic, precision, wide_product
from .launch import Sums, images_by_columns, launch_backward_data, launch_backward_weight
from .launcher import on_device


def backward(call: Call, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of image, weights, modulation, field and drift, None where there is nothing to tell.

    All but the image's are in float32.
    """
    step = images_by_columns(call)
    if step:
        with on_device(call.x):
            return _by_columns(call, grad, needs, step)
    needs_x, needs_weight, *needs_geometry = needs
    window, fused = _window(call)
    moves = any(needs_geometry)
    with_weights = moves and needs_weight and fused
    with_image = moves and not with_weights and needs_x and window != "patch"
    x = weight = None
    moved: tuple[Tensor | None, ...] = (None, None, None)
    with on_device(call.x):
        if needs_x:
            x, found = _image(call, grad, window, with_image)
            moved = found if with_image else moved
        if moves and not with_weights and not with_image:
            moved = launch_backward_data(call, grad, "no", None, True)
        if needs_weight:
            weight, found = launch_backward_weight(call, grad, with_weights)
            moved = found if with_weights else moved
    return [x, weight, *moved]


def _window(call: Call) -> tuple[str, bool]:
    """Return over what the image's gradient is summed, and whether the geometry's comes with that of the weights.

    What is gathered for the weights serves the geometry too, but is then added tap by tap, in any order.
    """

    def find() -> tuple[str, bool]:
        how, size, roomy = tiles.contraction(call.channels()), call.x.element_size(), tiles.roomy(call.x.device)
        exact = call.x.dtype == torch.float32 and precision() == "ieee"
        window = tiles.window(how, call.shape(), call.padding_mode, size, exact, roomy)
        return window, tiles.geometry_with_weights(how, call.channels()) and not deterministic()

    found: tuple[str, bool] = call.once("window", find)
    return found


def _image(call: Call, grad: Tensor, window: str, moves: bool) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradient of the image; those of modulation, field and drift if the geometry ``moves``.

    What is summed in float32 to be rounded is summed a few images at a time, so that the sums take little memory.
    """
    result, moved = _empty_image(call), []
    in_place = window == "image" or call.x.dtype == torch.float32
    at_a_time = call.once("images", lambda: tiles.images_at_a_time(call.shape(), call.channels()))
    for some, part in call.parts(call.x.shape[0] if in_place else at_a_time):
        sums = Sums(part, grad[some], window, result[some])
        moved.append(_scatter(part, grad[some], window, sums, moves))
        sums.settle()
        del sums  # whose room the next images' take
    return result, tuple(_joined(parts) for parts in zip(*moved, strict=True))


def _scatter(
    call: Call, grad: Tensor, window: str, sums: Sums, moves: bool, columns: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Add to the sums; return the gradients of modulation, field and drift if the geometry ``moves``."""
    if window != "patch":
        return launch_backward_data(call, grad, window, sums, moves, columns)
    launch_backward_data(call, grad, "patch", sums, False, columns)
    return launch_backward_data(call, grad, "strays", sums, False, columns)


def _by_columns(call: Call, grad: Tensor, needs: Sequence[bool], step: int) -> list[Tensor | None]:
    """Return the same by two large matrix products, which torch's library takes faster than any kernel that gathers.

    The gradients of all samples of some images are one, ∂L/∂y (B·out, C_out) times the weights (C_out, P·C). Once the
    kernel has read such a gradient it leaves the sample in its place: the other product is theirs with ∂L/∂y.
    """
    needs_x, needs_weight, *needs_geometry = needs
    moves, outs, (window, _) = any(needs_geometry), call.weight.shape[0], _window(call)
    weight = call.taps_matrix()
    x, to_weight = _empty_image(call) if needs_x else None, None
    moved: list[tuple[Tensor | None, ...]] = []
    for some, part in call.parts(step):
        upstream = grad[some]
        gy = upstream.permute(0, 2, 3, 1).reshape(-1, outs)
        columns = gy @ weight if needs_x or moves else gy.new_empty(gy.shape[0], weight.shape[1])
        sums = None if x is None else Sums(part, upstream, window, x[some])
        if sums is not None and window == "patch":
            _scatter(part, upstream, window, sums, False, columns)
        rest, into = ("no", None) if sums is None or window == "patch" else (window, sums)
        if into is not None or moves or needs_weight:
            moved.append(launch_backward_data(part, upstream, rest, into, moves, columns, needs_weight))
        if sums is not None:
            sums.settle()
        if needs_weight:
            found = wide_product(gy.T, columns)
            to_weight = found if to_weight is None else to_weight.add_(found)
        del columns, sums  # whose room the next images' take
    if to_weight is not None:
        to_weight = to_weight.view(outs, *call.weight.shape[2:], -1).permute(0, 3, 1, 2)
    geometry = [_joined(parts) for parts in zip(*moved, strict=True)] if moved else [None] * 3
    return [x, to_weight, *geometry]


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Return the gradients of all images, from those of some and some; None where there are none."""
    return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat([t for t in parts if t is not None])


def _empty_image(call: Call) -> Tensor:
    """Return (B, C, H, W), channels last, not yet written."""
    return torch.empty(call.x.shape, dtype=call.x.dtype, device=call.x.device, memory_format=torch.channels_last)
