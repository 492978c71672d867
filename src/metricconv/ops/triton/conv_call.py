"""One call of the operator: its tensors and options, and the kernel arguments derived from them."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..problem import OutputGrid
from . import plan
from .forward_kernel import Channels
from .geometry import Dimensions, SamplingGrid, Strides

_NO_STRIDES = Strides(0, 0, 0, 0, 0, 0)

# What was computed for calls with the same sizes, strides, dtypes and options. Emptied when it has too many entries.
_caches: dict[tuple[Any, ...], dict[Any, Any]] = {}
_MAX_CACHES = 4096


@dataclasses.dataclass(frozen=True)
class ConvCall:
    """One call of the operator in two dimensions, with the arguments of ``metricconv::support_conv``."""

    x: Tensor  # [B, C, H, W]
    weight: Tensor  # [C_out, C/groups, k_h, k_w]
    modulation: Tensor | None  # [B, G, P, *out]
    field: Tensor | None  # [B, G, n, *out] or [B, G, P, 2, *out]: M, shift, scale or displacement of the support
    drift: Tensor | None  # [B, G, 2, *out]: ω of a ball
    table: Tensor | None  # [P, 3]: direction and radius of each sample
    kind: str  # of support, see geometry.py; a "one-sided ball" is a ball with one-sided drift
    kernel_size: tuple[int, ...]  # of the output grid; the weights may have only some of its samples
    spacing: list[float]
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    padding_mode: str

    @functools.cached_property
    def cache(self) -> dict[Any, Any]:
        """What was computed for calls with the same sizes, strides, dtypes and options."""
        strided = [None if t is None else (t.shape, t.stride(), t.dtype) for t in self._strided_tensors()]
        geometry = (self.kernel_size, self.spacing, self.dilation, self.stride, self.padding)
        options = (self.kind, self.groups, self.padding_mode, self.precision, self.deterministic, *plan.fixed_key())
        image = (self.x.shape, self.x.dtype, self.x.device, self.weight.shape, self.table is None, self.load_pairs())
        key = (*image, *strided, *map(tuple, geometry), *options)
        if len(_caches) > _MAX_CACHES:
            _caches.clear()
        return _caches.setdefault(key, {})

    def cached(self, name: Any, compute: Callable[[], Any]) -> Any:
        """Return ``compute()``, computed for the first of all calls with the same cache."""
        if name not in self.cache:
            self.cache[name] = compute()
        return self.cache[name]

    @property
    def plan(self) -> plan.Plan:
        """Which kernels compute the call."""
        found: plan.Plan = self.cached("plan", lambda: plan.make_plan(self))
        return found

    @functools.cached_property
    def deterministic(self) -> bool:
        """Whether results must not depend on the order in which programs run."""
        return deterministic()

    @functools.cached_property
    def precision(self) -> str:
        """The precision of float32 products: "tf32" or "ieee"."""
        return precision()

    def _strided_tensors(self) -> tuple[Tensor | None, ...]:
        return self.modulation, self.field, self.drift

    @property
    def grid(self) -> OutputGrid:
        """The grid of the output's pixels in the input."""
        return OutputGrid(tuple(self.x.shape[2:]), self.kernel_size, self.dilation, self.stride, self.padding)

    @property
    def metric_groups(self) -> int:
        """The number G of groups of channels with sampling locations of their own."""
        return 1 if self.field is None else self.field.shape[1]

    @property
    def is_ball(self) -> bool:
        """Whether samples lie on rays, at distances that the norm of a metric determines."""
        return self.kind in ("ball", "one-sided ball")

    @property
    def drift_term(self) -> str:
        """How the drift enters the norm of a ball: "none", "linear" or "one-sided"."""
        if self.drift is None:
            return "none"
        return "one-sided" if self.kind == "one-sided ball" else "linear"

    def dims(self) -> Dimensions:
        """Return the dimensions of image, output and kernel."""
        kernel = self.weight.shape[2:]
        batch, _, height, width = self.x.shape
        out_height, out_width = self.grid.size
        sizes = (batch, height, width, out_height, out_width, math.prod(kernel), kernel[1])
        return Dimensions(*sizes, *division_factors(out_height), *division_factors(out_width))

    def channels(self) -> Channels:
        """Return the grouping of channels. In depthwise convolutions a run may cross groups of weights."""
        ins, outs = self.x.shape[1], self.weight.shape[0]
        per_group, per_metric = ins // self.groups, ins // self.metric_groups
        outs_per_group = outs // self.groups
        run = per_metric if per_group == outs_per_group == 1 else math.gcd(per_group, per_metric)
        return Channels(ins, outs, per_group, outs_per_group, run, max(per_group // run, 1), per_metric // run)

    def sampling_grid(self) -> SamplingGrid:
        """Return the centers of the outputs and the reference grid."""
        first = [-(k - 1) / 2 * s for k, s in zip(self.weight.shape[2:], self.spacing, strict=True)]
        origin = map(math.floor, self.grid.origin)
        return SamplingGrid(*self.stride, *origin, *map(float, (*self.grid.halves, *first, *self.spacing)))

    def needs_int64(self) -> bool:
        """Return whether a tensor is so large that its indices need 64 bits."""
        out = self.x.shape[0] * self.weight.shape[0] * math.prod(self.grid.size)
        strided = [t for t in self._strided_tensors() if t is not None]
        sizes = [self.x.numel(), out, self.weight.numel(), *(t.numel() for t in strided), *map(_extent, strided)]
        return max(sizes) >= 2**31 - 2**16  # the last tile may exceed a tensor

    def load_pairs(self) -> bool:
        """Return whether both displacement components of a deformable sample can be loaded as one 64-bit number."""
        if self.kind != "deformable" or self.field is None or self.field.dtype != torch.float32:
            return False
        *others, component, y, x = self.field.stride()
        aligned = all(stride % 2 == 0 for stride in (*others, y, x)) and self.field.data_ptr() % 8 == 0
        return component == 1 and aligned

    def split(self, max_images: int) -> Iterator[tuple[slice, "ConvCall"]]:
        """Split the batch into parts of at most ``max_images`` images; yield each part's slice and its call."""
        batch = self.x.shape[0]
        if max_images >= batch:
            yield slice(None), self
            return
        step = math.ceil(batch / math.ceil(batch / max_images))
        for start in range(0, batch, step):
            images, part = slice(start, start + step), copy.copy(self)
            tensors = {name: getattr(self, name) for name in ("x", "modulation", "field", "drift")}
            part.__dict__.update({name: t[images] for name, t in tensors.items() if t is not None})
            # Parts of one call differ in length only, which is faster to look up than the full key.
            part.__dict__["cache"] = self.cache.setdefault(("part", part.x.shape[0]), {})
            yield images, part

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors that all kernels take."""
        return {
            "x": self.x.contiguous(memory_format=torch.channels_last),
            "modulation": self.modulation,
            "field": self.field,
            "drift": self.drift,
            "table": self.table,
        }

    def kernel_weight(self) -> Tensor:
        """Return the weights in the layout and dtype of the kernels."""
        return kernel_weight(self.weight, self.x.dtype)

    def weight_matrix(self) -> Tensor:
        """Return the weights as a matrix, (C_out, P·C/groups)."""
        return self.kernel_weight().permute(0, 2, 3, 1).flatten(1)

    def kernel_options(self, contraction: str) -> dict[str, Any]:
        """Return the arguments, other than tensors, that all kernels take."""
        return {
            "dims": self.dims(),
            "channels": self.channels(),
            "sampling_grid": self.sampling_grid(),
            "field_strides": strides_of(self.field),
            "drift_strides": strides_of(self.drift),
            "modulation_strides": strides_of(self.modulation),
            "KIND": "ball" if self.is_ball else self.kind,
            "LOAD_PAIRS": self.load_pairs(),
            "DRIFT": self.drift_term,
            "MODULATED": self.modulation is not None,
            "PADDING": self.padding_mode,
            "CONTRACTION": contraction,
            "PRECISION": self.precision,
            "INT64": self.needs_int64(),
        }


def strides_of(t: Tensor | None) -> Strides:
    """Return the strides of (B, G, n, *out) or (B, G, P, d, *out); zeros for None."""
    if t is None:
        return _NO_STRIDES
    b, g, n, *rest = t.stride()
    return Strides(b, g, n, rest[0] if len(rest) == 3 else 0, *rest[-2:])


def image_strides(image: Tensor) -> Strides:
    """Return the strides of (B, C, H, W)."""
    b, c, y, x = image.stride()
    return Strides(b, 0, c, 0, y, x)


def empty_output(x: Tensor, channels: int, size: tuple[int, ...], channels_last: bool) -> Tensor:
    """Return an uninitialized output (B, C_out, *out) in the input's layout; no view, so it may be changed in place."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty((x.shape[0], channels, *size), dtype=x.dtype, device=x.device, memory_format=layout)


def kernel_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights in the layout of the kernels, channels last, and in the image's dtype."""
    if weight.dtype == dtype:
        return weight.contiguous(memory_format=torch.channels_last)
    return weight.to(dtype, memory_format=torch.channels_last)


def float32_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product a b in float32; on CUDA without rounding to half precision before."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.dtype != torch.float32 else (a @ b).float()


def _extent(t: Tensor) -> int:
    """Return the distance of a tensor's last element from its first."""
    return sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))


def division_factors(divisor: int) -> tuple[int, int]:
    """Return the magic number and the shift by which kernels divide: see ``geometry.divide``."""
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor), shift


def deterministic() -> bool:
    """Return whether results must not depend on the order in which programs run."""
    return torch.are_deterministic_algorithms_enabled()


def precision() -> str:
    """Return the precision of float32 products: "tf32" if torch's flag for matrix products allows it, else "ieee"."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
