"""One call of the operator: its tensors, and all that kernels must be told about them."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..problem import OutputGrid
from .forward import Channels
from .geometry import Lattice, Shape, Strides

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
        options = (self.kind, self.groups, self.padding_mode, precision(), deterministic())
        image = (self.x.shape, self.x.dtype, self.x.device, self.weight.shape, self.table is None, self.paired())
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
        return Shape(*sizes, *as_multiplication(rows), *as_multiplication(columns))

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
        whole = map(math.floor, self.grid.origin)
        return Lattice(*self.stride, *whole, *map(float, (*self.grid.halves, *first, *self.spacing)))

    def huge(self) -> bool:
        """Return whether any tensor is so large that its indices need 64 bits."""
        out = self.x.shape[0] * self.weight.shape[0] * math.prod(self.grid.size)
        fields = [t for t in self._fields() if t is not None]
        sizes = [self.x.numel(), out, self.weight.numel(), *(t.numel() for t in fields), *map(_reach, fields)]
        return max(sizes) >= 2**31 - 2**16  # tiles reach past the last of them

    def paired(self) -> bool:
        """Return whether the two numbers of each of a deformable field's samples can be loaded as one."""
        if self.kind != "deformable" or self.field is None or self.field.dtype != torch.float32:
            return False
        *others, along, y, x = self.field.stride()
        return along == 1 and all(stride % 2 == 0 for stride in (*others, y, x)) and self.field.data_ptr() % 8 == 0

    def parts(self, most: int) -> Iterator[tuple[slice, "Call"]]:
        """Cut the call into runs of about as many images each, ``most`` at most; yield which, and the call for them."""
        batch = self.x.shape[0]
        if most >= batch:
            yield slice(None), self
            return
        step = math.ceil(batch / math.ceil(batch / most))
        for start in range(0, batch, step):
            some, part = slice(start, start + step), copy.copy(self)
            fields = {name: getattr(self, name) for name in ("x", "modulation", "field", "drift")}
            part.__dict__.update({name: t[some] for name, t in fields.items() if t is not None})
            part.__dict__["memory"] = self.memory.setdefault(("part", part.x.shape[0]), {})  # known from its length
            yield some, part

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors that every kernel takes."""
        return {
            "x": self.x.contiguous(memory_format=torch.channels_last),
            "modulation": self.modulation,
            "field": self.field,
            "drift": self.drift,
            "table": self.table,
        }

    def taps(self) -> Tensor:
        """Return the weights as kernels read them, channels last in the image's dtype."""
        return by_tap(self.weight, self.x.dtype)

    def taps_matrix(self) -> Tensor:
        """Return them as a matrix, (C_out, P·C/groups)."""
        return self.taps().permute(0, 2, 3, 1).flatten(1)

    def numbers(self, how: str) -> dict[str, Any]:
        """Return the other arguments that every kernel takes."""
        return {
            "shape": self.shape(),
            "channels": self.channels(),
            "lattice": self.lattice(),
            "field_strides": strides_of(self.field),
            "drift_strides": strides_of(self.drift),
            "modulation_strides": strides_of(self.modulation),
            "KIND": self.kind,
            "PAIRED": self.paired(),
            "DRIFT": self.drift is not None,
            "MODULATED": self.modulation is not None,
            "MODE": self.padding_mode,
            "HOW": how,
            "PRECISION": precision(),
            "HUGE": self.huge(),
        }


def strides_of(field: Tensor | None) -> Strides:
    """Return how to walk through a field, or through none."""
    if field is None:
        return _NO_STRIDES
    b, g, n, *rest = field.stride()
    return Strides(b, g, n, rest[0] if len(rest) == 3 else 0, *rest[-2:])


def image_strides(image: Tensor) -> Strides:
    """Return how to walk through (B, C, H, W)."""
    b, c, y, x = image.stride()
    return Strides(b, 0, c, 0, y, x)


def empty_output(x: Tensor, channels: int, size: tuple[int, ...], channels_last: bool) -> Tensor:
    """Return (B, C_out, *out), not yet written, in the layout of the input: no view, so that it may change in place."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty((x.shape[0], channels, *size), dtype=x.dtype, device=x.device, memory_format=layout)


def by_tap(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights as kernels read them, channels last in the image's dtype."""
    if weight.dtype == dtype:
        return weight.contiguous(memory_format=torch.channels_last)
    return weight.to(dtype, memory_format=torch.channels_last)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product a b in float32, rounded to no narrower type on the way where torch can, on CUDA."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.dtype != torch.float32 else (a @ b).float()


def _reach(t: Tensor) -> int:
    """Return how far a tensor's last number lies from its first."""
    return sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))


def as_multiplication(divisor: int) -> tuple[int, int]:
    """Return the magic number and the shift by which kernels divide: see ``geometry.divide``."""
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor), shift


def deterministic() -> bool:
    """Return whether sums must not depend on the order in which programs run."""
    return torch.are_deterministic_algorithms_enabled()


def precision() -> str:
    """Return how float32 products are taken: TF32 where torch's own flag for matrix products allows it."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
