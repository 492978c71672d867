"""Kernel launches with their buffers. Nothing here waits for the device."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from . import tiles
from .backward_data import backward_data_kernel
from .backward_weight import backward_weight_kernel
from .call import Call, deterministic, empty_output, image_strides, strides_of
from .forward import forward_kernel
from .launcher import Launch, on_device


def forward(call: Call, bias: Tensor | None, channels_last: bool) -> Tensor:
    """Return y, (B, C_out, *out)."""
    size = call.once("size", lambda: call.grid.size)
    images = images_by_columns(call)
    out = empty_output(call.x, call.weight.shape[0], size, channels_last or images > 0)
    if out.numel():
        with on_device(call.x):
            if images:
                _contract_columns(call, bias, out, images)
            else:
                _contract(call, bias, out, channels_last)
    return out if channels_last else out.contiguous()


def images_by_columns(call: Call) -> int:
    """Return for how many images at a time all samples, or their gradients, are kept; 0 for none."""

    def find() -> int:
        # Products of cuBLAS are deterministic only with CUBLAS_WORKSPACE_CONFIG: without it torch refuses them.
        if call.groups > 1 or deterministic():
            return 0
        return tiles.images_by_columns(call.shape(), call.channels(), call.x.element_size())

    found: int = call.once("columns", find)
    return found


def _contract(call: Call, bias: Tensor | None, out: Tensor, channels_last: bool) -> None:
    """Write y by one kernel, which gathers and contracts."""

    def plan() -> Launch:
        return _plan_forward(call, out, bias is not None, tiles.contraction(call.channels()))

    launch = call.once(("forward", bias is None, channels_last), plan)
    launch(**call.tensors(), weight=call.taps(), bias=None if bias is None else bias.contiguous(), out=out)


def _contract_columns(call: Call, bias: Tensor | None, out: Tensor, images: int) -> None:
    """Write y, channels last, as a product of the samples of some images (B·out, P·C) and the weights (P·C, C_out)."""
    weight = call.taps_matrix().T
    for some, part in call.parts(images):
        y = out[some].permute(0, 2, 3, 1).flatten(0, 2)
        columns = y.new_empty(y.shape[0], weight.shape[0])
        launch = part.once("keep", functools.partial(_plan_forward, part, out, False, "keep"))
        launch(**part.tensors(), weight=None, bias=None, out=columns)
        if bias is None:
            torch.mm(columns, weight, out=y)
        else:
            torch.addmm(bias.to(y.dtype), columns, weight, out=y)
        del columns  # whose room the next images' take


def _plan_forward(call: Call, out: Tensor, biased: bool, how: str) -> Launch:
    shape, channels = call.shape(), call.channels()
    cut = tiles.forward(how, call.kind, shape, channels, call.x.element_size(), tiles.roomy(call.x.device))
    if how in ("each", "keep"):
        blocks, steps = math.ceil(channels.span / cut["BN"]), 1
        programs = channels.ins // channels.span * blocks
    else:
        blocks, steps = math.ceil(channels.outs_per_group / cut["BN"]), math.ceil(channels.span / cut["BK"])
        programs = call.groups * blocks
    return Launch(
        forward_kernel,
        [tiles.count(shape, cut["BM"], cut["TW"]) * programs],
        **call.numbers(how),
        out_strides=image_strides(out),
        BIASED=biased,
        EVEN=channels.span % cut["BK"] == 0,
        BLOCKS=blocks,
        STEPS=steps,
        **cut,
    )


class Sums:
    """The image's gradient while it is summed: in its place where nothing is added in memory, else in float32, or in
    64-bit fixed point where the sum must not depend on the order.

    Args:
        call, grad, window: of the backward pass.
        into: where the gradient shall stand in the end, (B, C, H, W), channels last.
    """

    def __init__(self, call: Call, grad: Tensor, window: str, into: Tensor) -> None:
        self.into, self.how, self.scale = into, "add", None
        self.strays: Tensor | None = None  # which tiles have samples that left their window
        if window == "image":
            self.how, self.sums = "store", into
        elif deterministic():
            self.how, self.scale = "fixed", _fixed_point_scale(call, grad)
            self.sums = torch.zeros_like(into, dtype=torch.int64)
        elif into.dtype == torch.float32:
            self.sums = into.zero_()
        else:
            self.sums = torch.zeros_like(into, dtype=torch.float32)

    def settle(self) -> None:
        """Put what was summed in its place."""
        if self.sums is not self.into:
            self.into.copy_(self.sums if self.scale is None else (self.sums.double() / self.scale).float())


class _Room:
    """Where programs leave the gradients of modulation, field and drift.

    ``writers`` programs find something for each number: they "add" it in place, or "store" it in parts of their own,
    which are then summed in a fixed order.
    """

    names = ("modulation", "field", "drift")

    def __init__(self, call: Call, writers: int) -> None:
        self.fields = {name: getattr(call, name) for name in self.names if writers}
        self.parts = writers if deterministic() else min(writers, 1)
        self.how = "no" if writers == 0 else "store" if writers == self.parts else "add"

    def numbers(self) -> dict[str, Any]:
        """Return the kernels' arguments that say how to walk through it."""
        alike = {n: None if t is None else torch.empty(t.shape, device="meta") for n, t in self.fields.items()}
        return {f"grad_{name}_strides": strides_of(alike.get(name)) for name in self.names} | {"MOVES": self.how}

    def part_strides(self) -> tuple[int, ...]:
        """Return how far apart the parts of field, drift and modulation lie, 0 where there is one."""
        sizes = {name: 0 if t is None or self.parts <= 1 else t.numel() for name, t in self.fields.items()}
        return tuple(sizes.get(name, 0) for name in ("field", "drift", "modulation"))

    def make(self) -> dict[str, Tensor | None]:
        """Return new tensors [parts, B, G, …] by the kernels' names."""
        new = torch.empty if self.how == "store" else torch.zeros
        made: dict[str, Tensor | None] = {f"grad_{name}": None for name in self.names}
        for name, t in self.fields.items():
            if t is not None:
                made[f"grad_{name}"] = new((self.parts, *t.shape), dtype=torch.float32, device=t.device)
        return made


def launch_backward_data(
    call: Call,
    grad: Tensor,
    window: str,
    image: Sums | None,
    moves: bool,
    columns: Tensor | None = None,
    keep: bool = False,
) -> tuple[Tensor | None, ...]:
    """Add to the image's gradient; return those of modulation, field and drift, None where they are not asked for.

    With ``columns``, (B·out, P, C), the samples' gradients are read there, and samples to ``keep`` left in their place.
    """
    scatter, known = "no" if image is None else image.how, columns is not None
    name = ("data", window, scatter, moves, known, keep)
    launch, writers = call.once(name, lambda: _plan_backward_data(call, grad, *name[1:]))
    if image is not None and window == "patch":
        image.strays = torch.empty(launch.grid, dtype=torch.int32, device=call.x.device)
    moved = _Room(call, writers).make()
    launch(
        **call.tensors(),
        grad_out=grad,
        weight=None if known else call.taps(),
        columns=columns,
        grad_x=None if image is None else image.sums,
        strays=None if image is None else image.strays,
        scale=None if image is None else image.scale,
        **moved,
    )
    return tuple(map(_total, moved.values()))


def _plan_backward_data(
    call: Call, grad: Tensor, window: str, scatter: str, moves: bool, known: bool, keep: bool
) -> tuple[Launch, int]:
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    cutter = tiles.backward_columns if known else functools.partial(tiles.backward_data, how)
    cut = cutter(shape, channels, call.x.element_size(), window, moves, tiles.roomy(call.x.device))
    blocks = math.ceil(channels.span / cut["BK"])
    windows = math.ceil(shape.batch / cut["WB"]) if window == "image" else tiles.count(shape, cut["BM"], cut["TW"])
    writers = channels.spans_per_metric * blocks if moves else 0
    room = _Room(call, writers)
    launch = Launch(
        backward_data_kernel,
        [windows * (channels.ins // channels.span) * blocks],
        **call.numbers("known" if known else how),
        **room.numbers(),
        KEEP=keep,
        part_strides=room.part_strides(),
        out_strides=image_strides(grad),
        EVEN=channels.span % cut["BK"] == 0,
        SCATTER=scatter,
        BLOCKS=blocks,
        STEPS=1 if how == "each" else math.ceil(channels.outs_per_group / cut["BN"]),
        **cut,
    )
    return launch, writers


def launch_backward_weight(call: Call, grad: Tensor, moves: bool) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradient of the weights, (C_out, C/groups, k_h, k_w); and those of modulation, field and drift."""
    launch, parts, writers = call.once(("weight", moves), lambda: _plan_backward_weight(call, grad, moves))
    adds = launch.numbers["DEPOSIT"] == "add"
    outs, ins_per_group, *kernel = call.weight.shape
    new = torch.zeros if adds else torch.empty
    sums = new((1 if adds else parts, outs, *kernel, ins_per_group), dtype=torch.float32, device=call.x.device)
    moved = _Room(call, writers).make()
    launch(**call.tensors(), grad_out=grad, weight=call.taps(), grad_weight=sums, **moved)
    total = sums[0] if sums.shape[0] == 1 else sums.sum(0)
    return total.permute(0, 3, 1, 2), tuple(map(_total, moved.values()))


def _plan_backward_weight(call: Call, grad: Tensor, moves: bool) -> tuple[Launch, int, int]:
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    rays = call.kind == "ball" and call.modulation is None
    cut = tiles.backward_weight(how, shape, channels, call.x.element_size(), moves, rays, tiles.roomy(call.x.device))
    blocks = math.ceil(channels.span / cut["BK"])
    steps = 1 if how == "each" else math.ceil(channels.outs_per_group / cut["BN"])
    count = tiles.count(shape, cut["BM"], cut["TW"])
    programs = channels.ins // channels.span * blocks * steps * shape.samples
    per_part = math.ceil(count / tiles.parts(count, programs))
    parts = math.ceil(count / per_part)
    adds = parts > 1 and not deterministic()
    writers = programs if moves else 0
    launch = Launch(
        backward_weight_kernel,
        [programs * parts],
        **call.numbers(how),
        **_Room(call, writers).numbers(),
        out_strides=image_strides(grad),
        tiles=count,
        tiles_per_part=per_part,
        part_stride=0 if adds or parts == 1 else call.weight.numel(),
        EVEN=channels.span % cut["BK"] == 0,
        DEPOSIT="add" if adds else "store",
        BLOCKS=blocks,
        STEPS=steps,
        **cut,
    )
    return launch, parts, writers


def _total(parts: Tensor | None) -> Tensor | None:
    if parts is None:
        return None
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def _fixed_point_scale(call: Call, grad: Tensor) -> Tensor:
    """Return the power of 2 by which gradients are multiplied to be added as 64-bit integers without overflow.

    A sample adds at most max|∂L/∂y| · max_c Σ_o|w| · max|m| to an image's gradient, and a pixel is sampled at most
    P · H_out · W_out times. Not finite when the gradient is not: then so is the result.
    """
    bound = grad.abs().amax().double() * call.weight.abs().double().sum(0).amax()
    if call.modulation is not None:
        bound = bound * call.modulation.abs().amax()
    count = math.prod(call.weight.shape[2:]) * math.prod(call.grid.size)
    exponent = (61 - math.log2(count) - bound.clamp_min(2.0**-60).log2()).floor().clamp_max(126)
    return torch.exp2(exponent).float().view(1)
