"""From tensors to kernel launches: sizes, strides, buffers. Nothing here waits for the device."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..problem import OutputGrid
from . import tiles
from .backward_data import backward_data_kernel
from .backward_weight import backward_weight_kernel
from .forward import Channels, forward_kernel
from .geometry import Lattice, Shape, Strides
from .launcher import Launch, on_device

_NO_STRIDES = Strides(0, 0, 0, 0, 0, 0)

# What is known about calls by their sizes, strides, types and options; forgotten when there are too many.
_memory: dict[tuple[Any, ...], dict[Any, Any]] = {}
_MOST = 4096


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the operator in two dimensions, in the tensors and numbers that kernels take."""

    x: Tensor  # [B, C, H, W]
    weight: Tensor  # [C_out, C/groups, k_h, k_w]
    modulation: Tensor | None  # [B, G, P, *out]
    field: Tensor | None  # [B, G, n, *out] or [B, G, P, 2, *out]
    drift: Tensor | None  # [B, G, 2, *out]
    table: Tensor | None  # [P, 3]: direction and radius of each sample
    kind: str
    kernel_size: tuple[int, ...]  # that of the grid of outputs; the weights may hold only some of its samples
    spacing: list[float]
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    padding_mode: str

    @functools.cached_property
    def memory(self) -> dict[Any, Any]:
        """What was found out about calls like this one, of the same sizes, strides, types and options."""
        fields = [None if t is None else (t.shape, t.stride(), t.dtype) for t in self._fields()]
        numbers = (self.kernel_size, self.spacing, self.dilation, self.stride, self.padding)
        options = (self.kind, self.groups, self.padding_mode, _precision(self.x), deterministic())
        image = (self.x.shape, self.x.dtype, self.x.device, self.weight.shape, self.table is None)
        key = (*image, *fields, *map(tuple, numbers), *options)
        if len(_memory) > _MOST:
            _memory.clear()
        return _memory.setdefault(key, {})

    def once(self, name: Any, find: Callable[[], Any]) -> Any:
        """Return what ``find`` found for the first call like this one."""
        if name not in self.memory:
            self.memory[name] = find()
        return self.memory[name]

    def _fields(self) -> tuple[Tensor | None, ...]:
        return self.modulation, self.field, self.drift

    @property
    def grid(self) -> OutputGrid:
        """Where the output's pixels lie in the input."""
        return OutputGrid(tuple(self.x.shape[2:]), self.kernel_size, self.dilation, self.stride, self.padding)

    @property
    def metric_groups(self) -> int:
        """The number G of groups of channels that look at the same places."""
        return 1 if self.field is None else self.field.shape[1]

    def shape(self) -> Shape:
        """Return the kernels' sizes."""
        kernel = self.weight.shape[2:]
        batch, _, height, width = self.x.shape
        rows, columns = self.grid.size
        sizes = (batch, height, width, rows, columns, math.prod(kernel), kernel[1])
        return Shape(*sizes, *_as_multiplication(rows), *_as_multiplication(columns))

    def channels(self) -> Channels:
        """Return how channels are shared out; channel by channel a span need not keep to a group."""
        ins, outs = self.x.shape[1], self.weight.shape[0]
        per_group, per_metric = ins // self.groups, ins // self.metric_groups
        outs_per_group = outs // self.groups
        span = per_metric if per_group == outs_per_group == 1 else math.gcd(per_group, per_metric)
        return Channels(ins, outs, per_group, outs_per_group, span, max(per_group // span, 1), per_metric // span)

    def lattice(self) -> Lattice:
        """Return the centres of outputs and the reference grid."""
        first = [-(k - 1) / 2 * s for k, s in zip(self.weight.shape[2:], self.spacing, strict=True)]
        return Lattice(*map(float, (*self.stride, *self.grid.origin, *first, *self.spacing)))

    def huge(self) -> bool:
        """Return whether any tensor is so large that its indices need 64 bits."""
        out = self.x.shape[0] * self.weight.shape[0] * math.prod(self.grid.size)
        fields = [t for t in self._fields() if t is not None]
        sizes = [self.x.numel(), out, self.weight.numel(), *(t.numel() for t in fields), *map(_reach, fields)]
        return max(sizes) >= 2**31

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors that every kernel takes."""
        return {
            "x": self.x.permute(0, 2, 3, 1).contiguous(),
            "modulation": self.modulation,
            "field": self.field,
            "drift": self.drift,
            "table": self.table,
        }

    def numbers(self, how: str) -> dict[str, Any]:
        """Return the other arguments that every kernel takes."""
        return {
            "shape": self.shape(),
            "channels": self.channels(),
            "lattice": self.lattice(),
            "field_strides": _strides(self.field),
            "drift_strides": _strides(self.drift),
            "modulation_strides": _strides(self.modulation),
            "KIND": self.kind,
            "DRIFT": self.drift is not None,
            "MODULATED": self.modulation is not None,
            "MODE": self.padding_mode,
            "HOW": how,
            "PRECISION": _precision(self.x),
            "HUGE": self.huge(),
        }


def forward(call: Call, bias: Tensor | None, channels_last: bool) -> Tensor:
    """Return y, (B, C_out, *out)."""
    out = empty_output(call.x, call.weight.shape[0], call.once("size", lambda: call.grid.size), channels_last)
    if out.numel():
        name = ("forward", bias is None, channels_last)
        launch = call.once(name, lambda: _plan_forward(call, out, bias is not None))
        with on_device(call.x):
            launch(**call.tensors(), weight=_by_tap(call), bias=bias, out=out)
    return out


def _plan_forward(call: Call, out: Tensor, biased: bool) -> Launch:
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    cut = tiles.forward(how, call.kind, shape, channels, call.x.element_size(), tiles.roomy(call.x.device))
    if how == "each":
        blocks, steps = math.ceil(channels.span / cut["BN"]), 1
        programs = channels.ins // channels.span * blocks
    else:
        blocks, steps = math.ceil(channels.outs_per_group / cut["BN"]), math.ceil(channels.span / cut["BK"])
        programs = call.groups * blocks
    return Launch(
        forward_kernel,
        [tiles.count(shape, cut["BM"], cut["TW"]) * programs],
        **call.numbers(how),
        out_strides=_image_strides(out),
        BIASED=biased,
        EVEN=channels.span % cut["BK"] == 0,
        BLOCKS=blocks,
        STEPS=steps,
        **cut,
    )


def backward(call: Call, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of image, weights, modulation, field and drift, None where there is nothing to tell."""
    needs_x, needs_weight, *needs_geometry = needs
    window, fused = call.once("window", lambda: _window(call))
    moves = any(needs_geometry)
    with_weights = moves and needs_weight and fused
    with_image = moves and not with_weights and needs_x and window != "patch"
    x = weight = None
    moved: tuple[Tensor | None, ...] = (None, None, None)
    with on_device(call.x):
        if needs_x and window == "patch":
            x = _image_by_patches(call, grad)
        elif needs_x:
            sums = _Sums(call, grad, window)
            found = _launch_backward_data(call, grad, window, sums, with_image)
            x, moved = sums.total().to(call.x.dtype), found if with_image else moved
        if moves and not with_weights and not with_image:
            moved = _launch_backward_data(call, grad, "no", None, True)
        if needs_weight:
            weight, found = _launch_backward_weight(call, grad, with_weights)
            moved = found if with_weights else moved
    return [x, weight, *moved]


def _window(call: Call) -> tuple[str, bool]:
    """Return over what the image's gradient is summed, and whether the geometry's comes with that of the weights.

    What is gathered for the weights serves the geometry too, but is then added tap by tap, in any order.
    """
    shape, how = call.shape(), tiles.contraction(call.channels())
    exact = call.x.dtype == torch.float32 and _precision(call.x) == "ieee"
    roomy = tiles.roomy(call.x.device)
    window = tiles.window(how, shape, call.padding_mode, call.x.element_size(), exact, roomy)
    return window, tiles.geometry_with_weights(how, call.channels()) and not deterministic()


def _image_by_patches(call: Call, grad: Tensor) -> Tensor:
    """Return the image's gradient, summed in float32 a few images at a time, so that the sums take little memory."""
    batch, channels, height, width = call.x.shape
    result = call.x.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)
    step = tiles.images_at_a_time(call.shape())
    for start in range(0, batch, step):
        some = slice(start, start + step)
        fields = {name: getattr(call, name) for name in ("x", "modulation", "field", "drift")}
        part = dataclasses.replace(call, **{name: t[some] for name, t in fields.items() if t is not None})
        sums = _Sums(part, grad[some], "patch")
        _launch_backward_data(part, grad[some], "patch", sums, False)
        _launch_backward_data(part, grad[some], "strays", sums, False)
        result[some] = sums.total()
    return result


class _Sums:
    """The image's gradient while it is summed: in its own dtype where nothing is added in memory, else in float32, or
    in 64-bit fixed point where the sum must not depend on the order."""

    def __init__(self, call: Call, grad: Tensor, window: str) -> None:
        batch, channels, height, width = call.x.shape
        size = (batch, height, width, channels)
        self.how, self.scale = "add", None
        self.strays: Tensor | None = None  # which tiles have samples that left their window
        if window == "image":
            self.how, self.sums = "no", call.x.new_empty(size)
        elif deterministic():
            self.how, self.scale = "fixed", _fixed_point_scale(call, grad)
            self.sums = torch.zeros(size, dtype=torch.int64, device=call.x.device)
        else:
            self.sums = torch.zeros(size, dtype=torch.float32, device=call.x.device)

    def total(self) -> Tensor:
        """Return (B, C, H, W), channels last; in float32 where it was summed in memory."""
        sums = self.sums if self.scale is None else (self.sums.double() / self.scale).float()
        return sums.permute(0, 3, 1, 2)


class _Room:
    """Where programs leave the gradients of modulation, field and drift.

    ``rivals`` programs find something for each number: they "add" it in place, or "store" it in parts of their own,
    which are then summed in a fixed order.
    """

    names = ("modulation", "field", "drift")

    def __init__(self, call: Call, rivals: int) -> None:
        self.fields = {name: getattr(call, name) for name in self.names if rivals}
        self.parts = rivals if deterministic() else min(rivals, 1)
        self.how = "no" if rivals == 0 else "store" if rivals == self.parts else "add"

    def numbers(self) -> dict[str, Any]:
        """Return the kernels' arguments that say how to walk through it."""
        alike = {n: None if t is None else torch.empty(t.shape, device="meta") for n, t in self.fields.items()}
        return {f"grad_{name}_strides": _strides(alike.get(name)) for name in self.names} | {"MOVES": self.how}

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


def _launch_backward_data(
    call: Call, grad: Tensor, window: str, image: _Sums | None, moves: bool
) -> tuple[Tensor | None, ...]:
    """Add to the image's gradient; return those of modulation, field and drift, None where they are not asked for."""
    scatter = "no" if image is None else image.how
    launch, rivals = call.once(
        ("data", window, scatter, moves), lambda: _plan_backward_data(call, grad, window, scatter, moves)
    )
    if image is not None and window == "patch":
        image.strays = torch.empty(launch.grid, dtype=torch.int32, device=call.x.device)
    moved = _Room(call, rivals).make()
    launch(
        **call.tensors(),
        grad_out=grad,
        weight=_by_tap(call),
        grad_x=None if image is None else image.sums,
        strays=None if image is None else image.strays,
        scale=None if image is None else image.scale,
        **moved,
    )
    return tuple(map(_total, moved.values()))


def _plan_backward_data(call: Call, grad: Tensor, window: str, scatter: str, moves: bool) -> tuple[Launch, int]:
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    roomy = tiles.roomy(call.x.device)
    cut = tiles.backward_data(how, shape, channels, call.x.element_size(), window, moves, roomy)
    blocks = math.ceil(channels.span / cut["BK"])
    windows = math.ceil(shape.batch / cut["WB"]) if window == "image" else tiles.count(shape, cut["BM"], cut["TW"])
    rivals = channels.spans_per_metric * blocks if moves else 0
    room = _Room(call, rivals)
    launch = Launch(
        backward_data_kernel,
        [windows * (channels.ins // channels.span) * blocks],
        **call.numbers(how),
        **room.numbers(),
        part_strides=room.part_strides(),
        out_strides=_image_strides(grad),
        EVEN=channels.span % cut["BK"] == 0,
        SCATTER=scatter,
        BLOCKS=blocks,
        STEPS=1 if how == "each" else math.ceil(channels.outs_per_group / cut["BN"]),
        **cut,
    )
    return launch, rivals


def _launch_backward_weight(call: Call, grad: Tensor, moves: bool) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradient of the weights, (C_out, C/groups, k_h, k_w); and those of modulation, field and drift."""
    launch, parts, rivals = call.once(("weight", moves), lambda: _plan_backward_weight(call, grad, moves))
    adds = launch.numbers["DEPOSIT"] == "add"
    outs, ins_per_group, *kernel = call.weight.shape
    new = torch.zeros if adds else torch.empty
    sums = new((1 if adds else parts, outs, *kernel, ins_per_group), dtype=torch.float32, device=call.x.device)
    moved = _Room(call, rivals).make()
    launch(**call.tensors(), grad_out=grad, weight=_by_tap(call), grad_weight=sums, **moved)
    total = sums[0] if len(sums) == 1 else sums.sum(0)
    return total.to(call.weight.dtype).permute(0, 3, 1, 2), tuple(map(_total, moved.values()))


def _plan_backward_weight(call: Call, grad: Tensor, moves: bool) -> tuple[Launch, int, int]:
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    cut = tiles.backward_weight(how, shape, channels, call.x.element_size(), moves, tiles.roomy(call.x.device))
    blocks = math.ceil(channels.span / cut["BK"])
    steps = 1 if how == "each" else math.ceil(channels.outs_per_group / cut["BN"])
    count = tiles.count(shape, cut["BM"], cut["TW"])
    programs = channels.ins // channels.span * blocks * steps * shape.samples
    per_part = math.ceil(count / tiles.parts(count, programs))
    parts = math.ceil(count / per_part)
    adds = parts > 1 and not deterministic()
    rivals = programs if moves else 0
    launch = Launch(
        backward_weight_kernel,
        [programs * parts],
        **call.numbers(how),
        **_Room(call, rivals).numbers(),
        out_strides=_image_strides(grad),
        tiles=count,
        tiles_per_part=per_part,
        part_stride=0 if adds or parts == 1 else call.weight.numel(),
        EVEN=channels.span % cut["BK"] == 0,
        DEPOSIT="add" if adds else "store",
        BLOCKS=blocks,
        STEPS=steps,
        **cut,
    )
    return launch, parts, rivals


def empty_output(x: Tensor, channels: int, size: tuple[int, ...], channels_last: bool) -> Tensor:
    """Return (B, C_out, *out), not yet written, in the layout of the input."""
    if channels_last:
        return x.new_empty((x.shape[0], *size, channels)).permute(0, 3, 1, 2)
    return x.new_empty((x.shape[0], channels, *size))


def _reach(t: Tensor) -> int:
    """Return how far a tensor's last number lies from its first."""
    return sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))


def _as_multiplication(divisor: int) -> tuple[int, int]:
    """Return the magic number and the shift by which kernels divide: see ``geometry.divide``."""
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor), shift


def _by_tap(call: Call) -> Tensor:
    """Return the weights as kernels read them, (C_out, k_h, k_w, C/groups) in the image's dtype."""
    weight = call.weight.permute(0, 2, 3, 1)
    if weight.dtype == call.x.dtype and weight.is_contiguous():
        return weight
    return torch.empty(weight.shape, dtype=call.x.dtype, device=weight.device).copy_(weight)


def _strides(field: Tensor | None) -> Strides:
    if field is None:
        return _NO_STRIDES
    b, g, n, *rest = field.stride()
    return Strides(b, g, n, rest[0] if len(rest) == 3 else 0, *rest[-2:])


def _image_strides(image: Tensor) -> Strides:
    b, c, y, x = image.stride()
    return Strides(b, 0, c, 0, y, x)


def _total(parts: Tensor | None) -> Tensor | None:
    if parts is None:
        return None
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def deterministic() -> bool:
    """Return whether sums must not depend on the order in which programs run."""
    return torch.are_deterministic_algorithms_enabled()


def _precision(x: Tensor) -> str:
    """Return how float32 products are taken: TF32 where torch's own flag for matrix products allows it."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


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
