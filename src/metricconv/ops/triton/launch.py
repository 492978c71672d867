"""From tensors to kernel launches: sizes, strides, buffers. Nothing here waits for the device."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..problem import OutputGrid
from . import tiles
from .backward_data import backward_data_kernel
from .backward_weight import backward_weight_kernel
from .forward import Channels, forward_kernel
from .geometry import Lattice, Shape, Strides

_NO_STRIDES = Strides(0, 0, 0, 0, 0, 0)


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
        fields = [t for t in (self.modulation, self.field, self.drift) if t is not None]
        sizes = [self.x.numel(), out, self.weight.numel(), *(t.numel() for t in fields), *map(_reach, fields)]
        return max(sizes) >= 2**31

    def common(self, how: str) -> dict[str, Any]:
        """Return the arguments that every kernel takes."""
        return {
            "x": self.x.permute(0, 2, 3, 1).contiguous(),
            "modulation": self.modulation,
            "field": self.field,
            "drift": self.drift,
            "table": self.table,
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
    shape, channels = call.shape(), call.channels()
    out = empty_output(call.x, channels.outs, call.grid.size, channels_last)
    if out.numel() == 0:
        return out
    how = tiles.contraction(channels)
    cut = tiles.forward(how, call.kind, shape, channels, call.x.element_size())
    if how == "each":
        blocks, steps = math.ceil(channels.span / cut["BN"]), 1
        programs = channels.ins // channels.span * blocks
    else:
        blocks, steps = math.ceil(channels.outs_per_group / cut["BN"]), math.ceil(channels.span / cut["BK"])
        programs = call.groups * blocks
    with on_device(call.x):
        forward_kernel[(tiles.count(shape, cut["BM"], cut["TW"]) * programs,)](
            **call.common(how),
            weight=_by_tap(call.weight),
            bias=bias,
            out=out,
            out_strides=_image_strides(out),
            BIASED=bias is not None,
            EVEN=channels.span % cut["BK"] == 0,
            BLOCKS=blocks,
            STEPS=steps,
            **cut,
        )
    return out


def backward(call: Call, grad: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients of image, weights, modulation, field and drift, None where there is nothing to tell."""
    needs_x, needs_weight, *needs_geometry = needs
    shape, how = call.shape(), tiles.contraction(call.channels())
    exact = call.x.dtype == torch.float32 and _precision(call.x) == "ieee"
    window = tiles.window(how, shape, call.padding_mode, call.x.element_size(), exact)
    geometry = _Geometry(call) if any(needs_geometry) else None
    # What is gathered for the weights serves the geometry too, but is then added tap by tap, in any order.
    apart = geometry is not None and needs_weight and tiles.geometry_with_weights(how, call.channels())
    apart = apart and not torch.are_deterministic_algorithms_enabled()
    x = None
    together = needs_x and window != "patch"
    if together:
        image = _Image(call, grad, window)
        _launch_backward_data(call, grad, window, image, None if apart else geometry)
        x = image.total().to(call.x.dtype)
    elif needs_x:
        x = _image_by_patches(call, grad)
    if geometry is not None and not apart and not together:
        _launch_backward_data(call, grad, "no", None, geometry)
    weight = _launch_backward_weight(call, grad, geometry if apart else None) if needs_weight else None
    moved = (None, None, None) if geometry is None else geometry.totals()
    return [x, weight, *moved]


def _image_by_patches(call: Call, grad: Tensor) -> Tensor:
    """Return the image's gradient, summed in float32 a few images at a time, so that the sums take little memory."""
    batch, channels, height, width = call.x.shape
    result = call.x.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)
    step = tiles.images_at_a_time(call.shape())
    for start in range(0, batch, step):
        some = slice(start, start + step)
        fields = {name: getattr(call, name) for name in ("x", "modulation", "field", "drift")}
        part = dataclasses.replace(call, **{name: t[some] for name, t in fields.items() if t is not None})
        image = _Image(part, grad[some], "patch")
        _launch_backward_data(part, grad[some], "patch", image, None)
        _launch_backward_data(part, grad[some], "strays", image, None)
        result[some] = image.total()
    return result


class _Image:
    """The image's gradient while it is summed: in its own dtype where nothing is added in memory, else in float32, or
    in 64-bit fixed point where the sum must not depend on the order."""

    def __init__(self, call: Call, grad: Tensor, window: str) -> None:
        batch, channels, height, width = call.x.shape
        size = (batch, height, width, channels)
        self.how, self.scale = "add", None
        self.strays: Tensor | None = None  # which tiles have samples that left their window
        if window == "image":
            self.how, self.sums = "no", call.x.new_empty(size)
        elif torch.are_deterministic_algorithms_enabled():
            self.how, self.scale = "fixed", _fixed_point_scale(call, grad)
            self.sums = torch.zeros(size, dtype=torch.int64, device=call.x.device)
        else:
            self.sums = torch.zeros(size, dtype=torch.float32, device=call.x.device)

    def total(self) -> Tensor:
        """Return (B, C, H, W), channels last; in float32 where it was summed in memory."""
        sums = self.sums if self.scale is None else (self.sums.double() / self.scale).float()
        return sums.permute(0, 3, 1, 2)


class _Geometry:
    """The gradients of field, drift and modulation while they are summed over blocks of channels."""

    def __init__(self, call: Call) -> None:
        self.tensors = {"modulation": call.modulation, "field": call.field, "drift": call.drift}
        self.buffers: dict[str, Tensor | None] = {}
        self.deposit = ""

    def allocate(self, rivals: int) -> None:
        """Make room for what ``rivals`` programs find for each number: added in place, or in fixed order apart."""
        parts = rivals if torch.are_deterministic_algorithms_enabled() else 1
        self.deposit = "store" if rivals == parts else "add"
        new = torch.empty if rivals == parts else torch.zeros
        self.buffers = {
            name: None if t is None else new((parts, *t.shape), dtype=torch.float32, device=t.device)
            for name, t in self.tensors.items()
        }

    def totals(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of modulation, field and drift."""
        return tuple(_total(self.buffers[name]) for name in ("modulation", "field", "drift"))


def _where(geometry: _Geometry | None) -> dict[str, Any]:
    """Return the kernels' arguments that say where the geometry's gradients go."""
    found: dict[str, Any] = {}
    for name in ("modulation", "field", "drift"):
        buffer = None if geometry is None else geometry.buffers[name]
        found |= {f"grad_{name}": buffer, f"grad_{name}_strides": _strides(None if buffer is None else buffer[0])}
    return found


def _launch_backward_data(
    call: Call, grad: Tensor, window: str, image: _Image | None, geometry: _Geometry | None
) -> None:
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    cut = tiles.backward_data(how, shape, channels, call.x.element_size(), window, geometry is not None)
    blocks = math.ceil(channels.span / cut["BK"])
    if geometry is not None:
        geometry.allocate(channels.spans_per_metric * blocks)
    buffers = {} if geometry is None else geometry.buffers
    batch = call.x.shape[0]
    windows = math.ceil(batch / cut["WB"]) if window == "image" else tiles.count(shape, cut["BM"], cut["TW"])
    programs = windows * (channels.ins // channels.span) * blocks
    if window == "patch" and image is not None:
        image.strays = torch.empty(programs, dtype=torch.int32, device=call.x.device)
    with on_device(call.x):
        backward_data_kernel[(programs,)](
            **call.common(how),
            grad_out=grad,
            weight=_by_tap(call.weight),
            grad_x=None if image is None else image.sums,
            **_where(geometry),
            strays=None if image is None else image.strays,
            scale=None if image is None else image.scale,
            out_strides=_image_strides(grad),
            part_strides=tuple(_part_stride(buffers.get(name)) for name in ("field", "drift", "modulation")),
            EVEN=channels.span % cut["BK"] == 0,
            SCATTER="no" if image is None else image.how,
            MOVES="no" if geometry is None else geometry.deposit,
            BLOCKS=blocks,
            STEPS=1 if how == "each" else math.ceil(channels.outs_per_group / cut["BN"]),
            **cut,
        )


def _launch_backward_weight(call: Call, grad: Tensor, geometry: _Geometry | None) -> Tensor:
    """Return the gradient of the weights, (C_out, C/groups, k_h, k_w)."""
    shape, channels = call.shape(), call.channels()
    how = tiles.contraction(channels)
    cut = tiles.backward_weight(how, shape, channels, call.x.element_size(), geometry is not None)
    blocks = math.ceil(channels.span / cut["BK"])
    steps = 1 if how == "each" else math.ceil(channels.outs_per_group / cut["BN"])
    count = tiles.count(shape, cut["BM"], cut["TW"])
    programs = channels.ins // channels.span * blocks * steps * shape.samples
    parts = tiles.parts(count, programs)
    per_part = math.ceil(count / parts)
    parts = math.ceil(count / per_part)
    adds = parts > 1 and not torch.are_deterministic_algorithms_enabled()
    size = (1 if adds else parts, channels.outs, *call.weight.shape[2:], channels.ins_per_group)
    sums = (torch.zeros if adds else torch.empty)(size, dtype=torch.float32, device=call.x.device)
    if geometry is not None:
        geometry.allocate(programs)
    with on_device(call.x):
        backward_weight_kernel[(programs * parts,)](
            **call.common(how),
            grad_out=grad,
            weight=_by_tap(call.weight),
            grad_weight=sums,
            **_where(geometry),
            out_strides=_image_strides(grad),
            tiles=count,
            tiles_per_part=per_part,
            part_stride=_part_stride(sums),
            EVEN=channels.span % cut["BK"] == 0,
            MOVES="no" if geometry is None else geometry.deposit,
            DEPOSIT="add" if adds else "store",
            BLOCKS=blocks,
            STEPS=steps,
            **cut,
        )
    total = sums[0] if sums.shape[0] == 1 else sums.sum(0)
    return total.to(call.weight.dtype).permute(0, 3, 1, 2)


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


def _by_tap(weight: Tensor) -> Tensor:
    """Return the weights as kernels read them, (C_out, k_h, k_w, C/groups): no copy where they are channels_last."""
    return weight.permute(0, 2, 3, 1).contiguous()


def _strides(field: Tensor | None) -> Strides:
    if field is None:
        return _NO_STRIDES
    b, g, n, *rest = field.stride()
    return Strides(b, g, n, rest[0] if len(rest) == 3 else 0, *rest[-2:])


def _part_stride(parts: Tensor | None) -> int:
    """Return how far apart the parts of a sum lie, 0 where all programs add to the same."""
    return 0 if parts is None or parts.shape[0] == 1 else parts.stride(0)


def _image_strides(image: Tensor) -> Strides:
    b, c, y, x = image.stride()
    return Strides(b, 0, c, 0, y, x)


def _total(parts: Tensor | None) -> Tensor | None:
    if parts is None:
        return None
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


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


def on_device(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make the tensor's device the current one: a launch goes there."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
