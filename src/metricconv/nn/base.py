"""Base class of the adaptive convolutions: a predictor, a support made from its output, and weights."""

import contextvars
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack

import torch
from torch import Tensor, fx, nn

from .. import _checks
from ..ops import support_conv
from ..ops.backends import BACKENDS
from ..ops.problem import OutputGrid, check_output_size
from ..supports import Support
from .predictor import Predictor, pad

__all__ = ["AdaptiveConv", "AdaptiveOptions"]

LAZY = "it is lazy and has no weights yet"
# Arguments that `from_conv` copies from the convolution it replaces.
_COPIED_ARGUMENTS = set(inspect.signature(nn.Conv2d).parameters) - {"padding", "padding_mode"}
# Functions called with each layer and its support. They are local to the context, so that threads can record the same
# network at once. torch.compile cannot trace a context variable, but it can trace the length of a list.
RECORDERS: contextvars.ContextVar[tuple[Callable[["AdaptiveConv", Support], None], ...]] = contextvars.ContextVar(
    "recorders", default=()
)
ACTIVE_RECORDINGS: list[object] = []  # of all threads


class AdaptiveOptions(TypedDict, total=False):
    """Options of every adaptive convolution that ``from_conv`` accepts; see ``MetricConv``."""

    padding: int | Sequence[int] | str
    padding_mode: str
    metric_groups: int
    learn_weight: bool
    modulation: bool
    backend: str


class AdaptiveConv(nn.Module, ABC):
    """Base class of convolutions with input-dependent sampling locations.

    ::

        x ──predictor──▶ raw parameters ──▶ support ──▶ Σ_j w_j · m_j · x(p + Δ_j)

    The raw parameters are ``identity + gain · predictor(x)``. The predictor is initialized to zero and the identity is
    a constant, so the layer starts as an ordinary convolution, weight decay pulls it back towards one, and ``gain``
    (see ``set_geometry_gain``) can ramp up the geometry.

    A subclass defines ``dim``, ``identity_parameters`` and ``make_support``. The arguments are documented in
    ``MetricConv``.
    """

    dim: ClassVar[int]
    weight: Tensor
    bias: Tensor | None

    if TYPE_CHECKING:  # nn.Module declares that a call returns Any

        def __call__(self, x: Tensor) -> Tensor: ...

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        metric_groups: int = 1,
        learn_weight: bool = True,
        modulation: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not hasattr(self, "dim"):
            name = type(self).__name__
            raise TypeError(f"{name} does not define `dim`, the number of spatial axes: use MetricConv2d, for example")
        self.in_channels, self.out_channels, self.groups, self.metric_groups = (
            in_channels,
            out_channels,
            groups,
            metric_groups,
        )
        self.kernel_size = _checks.tuple_of(kernel_size, self.dim, "kernel_size", minimum=1)
        self.stride = _checks.tuple_of(stride, self.dim, "stride", minimum=1)
        self.dilation = _checks.tuple_of(dilation, self.dim, "dilation", minimum=1)
        self.padding, self.pads_at_run_time = self._padding(padding)
        for name in ("in_channels", "out_channels", "groups", "metric_groups"):
            setattr(self, name, _checks.whole(getattr(self, name), name, minimum=1))
        _checks.divisible(in_channels, groups, "in_channels", "groups")
        _checks.divisible(out_channels, groups, "out_channels", "groups")
        _checks.divisible(in_channels, metric_groups, "in_channels", "metric_groups")
        self.padding_mode = _checks.padding_mode(padding_mode)
        self.backend = _checks.one_of(backend, ("auto", *BACKENDS), "backend")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"`dtype` (={dtype!r}) must be a torch.dtype of floating-point numbers")
        self.modulation = _checks.boolean(modulation, "modulation")
        self.learn_weight = _checks.boolean(learn_weight, "learn_weight")

        weight = torch.empty(out_channels, in_channels // groups, *self.kernel_size, device=device, dtype=dtype)
        if learn_weight:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)
        bias = _checks.boolean(bias, "bias")
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_buffer("geometry_gain", torch.ones((), device=device, dtype=dtype))
        self.geometry_gain: Tensor
        self.predictor: Predictor | None = None
        self.identity: Tensor | None = None  # in float32, or float64 in a layer of that dtype
        self.reset_parameters()
        identity = self.identity_parameters()
        if identity is not None:
            self.add_predictor(identity)

    def identity_parameters(self) -> Tensor | None:
        """Return the raw parameters (n,), in float64, for which the layer is an ordinary convolution.

        None, the default, adds no predictor: the subclass has none, or calls ``add_predictor`` itself.
        """
        return None

    def add_predictor(self, identity: Tensor) -> None:
        """Add the predictor of ``len(identity)`` parameters per pixel and metric group, and of the modulation."""
        channels = len(identity) + (math.prod(self.kernel_size) if self.modulation else 0)
        self.identity = self._exact_identity = identity
        self.predictor = Predictor(
            self.in_channels,
            channels * self.metric_groups,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.padding_mode,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        self.sync_constants()

    @abstractmethod
    def make_support(self, predicted: Tensor) -> Support:
        """Return the support of the raw parameters ``identity + geometry_gain · predicted``.

        Args:
            predicted: (B, G, n, *out), the output of the predictor without the modulation.
        """

    def reset_parameters(self) -> None:
        """Initialize weights and bias, and reset the geometry. A fixed kernel is set to the mean."""
        self.reset_geometry()
        fan_in = self.weight[0].numel()
        with torch.no_grad():
            if not self.learn_weight:
                self.weight.fill_(1 / fan_in)
            else:
                nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
            if self.bias is not None:
                bound = 1 / math.sqrt(fan_in)
                nn.init.uniform_(self.bias, -bound, bound)

    def reset_geometry(self) -> None:
        """Set the predictor to zero and its gain to 1; weights and bias are unchanged."""
        self.geometry_gain.fill_(1.0)
        if self.predictor is not None:
            self.predictor.reset_parameters()

    def predict_support(self, x: Tensor) -> tuple[Support, Tensor | None]:
        """Return the support for an input (B, C_in, *spatial), and the modulation (B, G, P, *out) or None."""
        self.check_input(x)
        assert self.predictor is not None and self.identity is not None  # a layer without them overrides this
        predicted = self.predictor(self.pad_input(x))
        one = self.metric_groups == 1  # unsqueeze, unlike unflatten, does not add sizes to an exported graph
        predicted = predicted.unsqueeze(1) if one else predicted.unflatten(1, (self.metric_groups, -1))
        if not self.modulation:  # predicted: [B, G, n (+ P), *out]
            return self.make_support(predicted), None
        predicted, modulation = predicted.tensor_split([len(self.identity)], 2)
        return self.make_support(predicted), 2 * (modulation * self.geometry_gain).sigmoid()

    def check_input(self, x: Tensor) -> None:
        """Check that the input has shape (B, C_in, *spatial)."""
        if _checks.floating(x, "input").dim() != self.dim + 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"`input` must be (B, {self.in_channels}, *spatial) with {self.dim} spatial axes, got {tuple(x.shape)}"
            )
        if not self.pads_at_run_time or 0 in x.shape[2:]:
            check_output_size(
                OutputGrid(tuple(x.shape[2:]), self.kernel_size, self.dilation, self.stride, self.padding)
            )
        gain = self.geometry_gain  # a weight with a parametrization would be computed here
        if x.is_meta != gain.is_meta:
            raise ValueError(f"`input` is on {x.device}, the layer on {gain.device}: one has no values")
        autocast = not x.is_meta and torch.is_autocast_enabled(x.device.type)
        dtype = x.dtype if self.predictor is None or autocast else self.predictor.weight.dtype
        if x.dtype != dtype:
            raise TypeError(f"`input` has dtype {x.dtype}, the layer {dtype}: convert one of them")

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, C_in, *spatial) to (B, C_out, *out); the batch axis may be missing."""
        if isinstance(x, fx.Proxy):  # type: ignore[unreachable]
            return self._trace(x)  # type: ignore[unreachable]
        if _checks.floating(x, "input").dim() == self.dim + 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        support, modulation = self.predict_support(x)
        if ACTIVE_RECORDINGS:
            for record in RECORDERS.get():
                record(self, support)
        return support_conv(
            self.pad_input(x),
            support,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
            modulation=None if modulation is None else modulation.to(x.dtype),
            padding_mode=self.padding_mode,
            backend=self.backend,
        )

    def _trace(self, x: fx.Proxy) -> fx.Proxy:
        """Record the layer as one ``call_module`` node, as torch.fx does with torch's own layers."""
        path = x.tracer.path_of_module(self)  # type: ignore[attr-defined]
        if not path:
            name = type(self).__name__
            raise ValueError(f"a {name} is one node of a traced graph and cannot be its root: wrap it in nn.Sequential")
        return x.tracer.create_proxy("call_module", path, (x,), {})

    @classmethod
    def from_conv(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, **geometry: Unpack[AdaptiveOptions]) -> Self:
        """Return an adaptive convolution that shares the weights of an ordinary one: the same Parameters, not copies.

        The layer has the size, stride, dilation, groups, dtype, device and training mode of ``conv``, and its padding
        and padding mode unless they are given.
        """
        return cls._from_conv(conv, geometry)

    @classmethod
    def _from_conv(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, geometry: Mapping[str, Any]) -> Self:
        expected = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}.get(cls.dim)
        if expected is None:
            raise TypeError(f"torch has no convolution with {cls.dim} spatial axes that {cls.__name__} could replace")
        if not isinstance(conv, expected):
            raise TypeError(f"`conv` must be an nn.{expected.__name__}, got {type(conv).__name__}")
        copied = next((name for name in geometry if name in _COPIED_ARGUMENTS), None)
        if copied is not None:
            raise TypeError(f"`{copied}` (={geometry[copied]!r}) is taken from `conv` and cannot be given")
        if isinstance(conv, nn.modules.lazy.LazyModuleMixin):
            raise ValueError(f"`conv` cannot be replaced: {LAZY}")
        if not isinstance(conv.weight, nn.Parameter):
            raise TypeError("`conv` computes its weight, by a parametrization or weight norm: remove that first")
        if not geometry.get("learn_weight", True):
            raise ValueError("`learn_weight` (=False) would discard the weights of `conv`")
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            conv.stride,
            dilation=conv.dilation,
            groups=conv.groups,
            bias=conv.bias is not None,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
            **{"padding": conv.padding, "padding_mode": conv.padding_mode, **geometry},
        )
        layer.weight, layer.bias = conv.weight, conv.bias
        return layer.train(conv.training)

    def extra_repr(self) -> str:
        """Describe the layer in a printed model."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        options: dict[str, tuple[Any, Any]] = {
            "padding": ("same" if self.pads_at_run_time else self.padding, (0,) * self.dim),
            "dilation": (self.dilation, (1,) * self.dim),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
            "padding_mode": (self.padding_mode, "zeros"),
            "metric_groups": (self.metric_groups, 1),
            "learn_weight": (self.learn_weight, True),
            "modulation": (self.modulation, False),
            "backend": (self.backend, "auto"),
        }
        return text + "".join(f", {name}={value}" for name, (value, default) in options.items() if value != default)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("weight", "bias"):  # checkpoints of version 0.1
            if f"{prefix}head.{name}" in state_dict:
                state_dict[f"{prefix}predictor.{name}"] = state_dict.pop(f"{prefix}head.{name}")
        gain = self.geometry_gain
        # A checkpoint without a gain leaves it unchanged; on the meta device it has no value yet.
        state_dict.setdefault(f"{prefix}geometry_gain", torch.ones((), dtype=gain.dtype) if gain.is_meta else gain)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _padding(self, padding: int | Sequence[int] | str) -> tuple[tuple[int, ...], bool]:
        """Return the padding on both sides of each axis, and whether inputs are padded at run time in addition."""
        if not isinstance(padding, str):
            return _checks.tuple_of(padding, self.dim, "padding", minimum=0), False
        if _checks.one_of(padding, ("same", "valid"), "padding") == "valid":
            return (0,) * self.dim, False
        extents = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        if any(s != 1 for s in self.stride) or any(extent % 2 for extent in extents):
            return (0,) * self.dim, True
        return tuple(extent // 2 for extent in extents), False

    def pad_input(self, x: Tensor) -> Tensor:
        """Pad for ``padding="same"`` if its amounts depend on the input size; otherwise return the input."""
        if not self.pads_at_run_time:
            return x
        _checks.not_traced("padding='same' with amounts that depend on the input size")
        axes = zip(x.shape[2:], self.kernel_size, self.stride, self.dilation, strict=True)
        sums = [torch.sym_max(((n + s - 1) // s - 1) * s + d * (k - 1) + 1 - n, 0) for n, k, s, d in axes]
        return pad(x, [(total // 2, total - total // 2) for total in sums], self.padding_mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the constants of the geometry with the weights; they keep their precision."""
        super()._apply(fn, recurse)
        self.sync_constants()
        return self

    def sync_constants(self) -> None:
        """Move the constants to the device of the weights, except to the meta device, where they lose their values."""
        if self.weight.device.type != "meta":
            self.move_constants(self.weight.device)

    def move_constants(self, device: torch.device) -> None:
        """Move tensors that are neither parameters nor buffers."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        if self.identity is not None and (self.identity.device, self.identity.dtype) != (device, dtype):
            self.identity = self._exact_identity.to(device, dtype)
