"""What every adaptive convolution is: a head that predicts numbers, a support made of them, and weights."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, fx, nn

from .. import _checks
from .._interpolation import PADDING_MODES
from ..ops import support_conv
from ..ops.functional import BACKENDS
from ..supports import Support
from .predictor import Predictor

INITS = ("identity", "paper")
LAZY = "it is lazy and has no weights yet"
# What an adaptive convolution takes over from the ordinary one that it replaces; past the border it may look otherwise.
_TAKEN_OVER = set(inspect.signature(nn.Conv2d).parameters) - {"padding_mode"}


class AdaptiveConv(nn.Module, ABC):
    """A convolution that looks elsewhere at each pixel.

    ::

        x ──head──▶ numbers ──▶ support ──▶ Σ_j w_j · m_j · x(p + Δ_j)

    The numbers are ``identity + gain · head(x)``: the head starts at zero and the identity is a constant, so the layer
    begins as an ordinary convolution, weight decay pulls it back there, and ``gain`` (see ``set_geometry_gain``) fades
    the geometry in. A subclass says what its identity is and how numbers become a support.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as in ``nn.Conv2d``.
        padding_mode: what samples see past the border: "zeros", "border" (``nn.Conv2d``'s "replicate"), "reflect" or
            "circular".
        metric_groups: channels are split evenly into so many groups, each of which looks at places of its own.
        learn_weight: False fixes the kernel to the mean over samples and channels; it is then a buffer.
        modulation: weigh each sample, at each pixel, by a predicted factor in (0, 2) that starts at 1.
        init: "identity" draws weights as ``nn.Conv2d`` does; "paper" fills them with 1/(C·P), as the published
            experiments did (with batch normalisation every output channel is then the same).
        backend: the engine, as in ``support_conv``.
        device, dtype: of the parameters, as in ``nn.Conv2d``; the geometry is computed in float32 or wider.
    """

    dim: ClassVar[int]
    __signature__: ClassVar[inspect.Signature]
    weight: Tensor
    bias: Tensor | None

    def __init_subclass__(cls, **options: Any) -> None:
        """Spell out, for ``help``, the arguments that a subclass takes as ``*args, **options`` and hands on."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__signature__ = _spelt_out(cls)

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
        init: str = "identity",
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not hasattr(self, "dim"):
            raise TypeError(f"{type(self).__name__} has no number of spatial axes: use one that has, as MetricConv2d")
        self.in_channels, self.out_channels, self.groups, self.metric_groups = (
            in_channels,
            out_channels,
            groups,
            metric_groups,
        )
        self.kernel_size = _checks.tuple_of(kernel_size, self.dim, "kernel_size", minimum=1)
        self.stride = _checks.tuple_of(stride, self.dim, "stride", minimum=1)
        self.dilation = _checks.tuple_of(dilation, self.dim, "dilation", minimum=1)
        self.padding = self._padding(padding)
        for name in ("in_channels", "out_channels", "groups", "metric_groups"):
            setattr(self, name, _checks.whole(getattr(self, name), name, minimum=1))
        _checks.divisible(in_channels, groups, "in_channels", "groups")
        _checks.divisible(out_channels, groups, "out_channels", "groups")
        _checks.divisible(in_channels, metric_groups, "in_channels", "metric_groups")
        _checks.one_of(padding_mode, (*PADDING_MODES, "replicate"), "padding_mode")
        self.padding_mode = "border" if padding_mode == "replicate" else padding_mode
        self.init = _checks.one_of(init, INITS, "init")
        self.backend = _checks.one_of(backend, ("auto", *BACKENDS), "backend")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"`dtype` (={dtype!r}) must be a torch.dtype of floating-point numbers")
        self.modulation = _checks.truth(modulation, "modulation")
        self.learn_weight = _checks.truth(learn_weight, "learn_weight")

        weight = torch.empty(out_channels, in_channels // groups, *self.kernel_size, device=device, dtype=dtype)
        if learn_weight:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_buffer("geometry_gain", torch.ones((), device=device, dtype=dtype))
        self.geometry_gain: Tensor
        self._recorder: Callable[[Support], None] | None = None
        self.predictor: Predictor | None = None
        self.identity: Tensor | None = None  # in float32, or float64 in a layer of that dtype
        self.reset_parameters()

    def add_predictor(self, identity: Tensor) -> None:
        """Add the predictor of ``len(identity)`` numbers a pixel and metric group (and of the modulation)."""
        numbers = len(identity) + (math.prod(self.kernel_size) if self.modulation else 0)
        self.identity = self._exact_identity = identity
        self.predictor = Predictor(
            self.in_channels,
            numbers * self.metric_groups,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.padding_mode,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        self.follow_weights()

    @abstractmethod
    def make_support(self, predicted: Tensor) -> Support:
        """Turn what the head predicted, (B, G, n, *out), into a support, by ``identity + geometry_gain · it``."""

    def reset_parameters(self) -> None:
        """Draw weights and bias anew (a fixed kernel is the mean), and reset the geometry."""
        self.reset_geometry()
        fan_in = self.weight[0].numel()
        with torch.no_grad():
            if self.init == "paper" or not self.learn_weight:
                self.weight.fill_(1 / fan_in)
            else:
                nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
            if self.bias is not None:
                bound = 1 / math.sqrt(fan_in)
                nn.init.uniform_(self.bias, -bound, bound)

    def reset_geometry(self) -> None:
        """Set what the head predicts to zero and its gain to 1; weights and bias stay."""
        self.geometry_gain.fill_(1.0)
        if self.predictor is not None:
            self.predictor.reset_parameters()

    def predict_support(self, x: Tensor) -> tuple[Support, Tensor | None]:
        """Return where each output pixel looks, and the modulation (B, G, P, *out) if there is one."""
        self.check_input(x)
        assert self.predictor is not None and self.identity is not None  # a layer without them overrides this
        predicted = self.predictor(x).unflatten(1, (self.metric_groups, -1))  # [B, G, n (+ P), *out]
        if not self.modulation:
            return self.make_support(predicted).with_stride(self.stride), None
        predicted, modulation = predicted.tensor_split([len(self.identity)], 2)
        return self.make_support(predicted).with_stride(self.stride), 2 * (modulation * self.geometry_gain).sigmoid()

    def check_input(self, x: Tensor) -> None:
        """Refuse what is not (B, C_in, *spatial)."""
        if _checks.floating(x, "input").dim() != self.dim + 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"`input` must be (B, {self.in_channels}, *spatial) with {self.dim} spatial axes, got {tuple(x.shape)}"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, C_in, *spatial) to (B, C_out, *out), or one image without its batch axis."""
        if isinstance(x, fx.Proxy):  # type: ignore[unreachable]
            return self._traced(x)  # type: ignore[unreachable]
        if _checks.floating(x, "input").dim() == self.dim + 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        support, modulation = self.predict_support(x)
        if self._recorder is not None:
            self._recorder(support)
        return support_conv(
            x,
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

    def _traced(self, x: fx.Proxy) -> fx.Proxy:
        """Let a traced graph call the layer as a whole, as it does torch's own."""
        path = x.tracer.path_of_module(self)  # type: ignore[attr-defined]
        if not path:
            name = type(self).__name__
            raise ValueError(f"a {name} alone cannot be traced, as graphs call it as a whole: wrap it in nn.Sequential")
        return x.tracer.create_proxy("call_module", path, (x,), {})

    @classmethod
    def from_conv(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, **geometry: Any) -> Self:
        """Return an adaptive convolution with the weights of an ordinary one: the same Parameters, not copies.

        Keeps size, stride, padding, dilation, groups, dtype, device and training mode, and the padding mode if none is
        given. With ``init="paper"`` the weights are made anew, as the published experiments did; a fixed kernel
        (``learn_weight=False``) needs that.
        """
        expected = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[cls.dim]
        if not isinstance(conv, expected):
            raise TypeError(f"`conv` must be an nn.{expected.__name__}, got {type(conv).__name__}")
        taken = next((name for name in geometry if name in _TAKEN_OVER), None)
        if taken is not None:
            raise TypeError(f"`{taken}` (={geometry[taken]!r}) is taken from `conv` and cannot be given")
        if isinstance(conv, nn.modules.lazy.LazyModuleMixin):
            raise ValueError(f"`conv` cannot be replaced: {LAZY}")
        if not isinstance(conv.weight, nn.Parameter):
            raise TypeError("`conv` computes its weight, by a parametrization or weight norm: remove that first")
        if not geometry.get("learn_weight", True) and geometry.get("init") != "paper":
            raise ValueError(
                "`learn_weight` (=False) would throw the weights of `conv` away: say init='paper' for that"
            )
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups,
            conv.bias is not None,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
            **{"padding_mode": conv.padding_mode, **geometry},
        )
        if layer.init == "identity":
            layer.weight, layer.bias = conv.weight, conv.bias
        return layer.train(conv.training)

    def extra_repr(self) -> str:
        """Describe the layer in a printed model."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        options: dict[str, tuple[Any, Any]] = {
            "padding": (self.padding, (0,) * self.dim),
            "dilation": (self.dilation, (1,) * self.dim),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
            "padding_mode": (self.padding_mode, "zeros"),
            "metric_groups": (self.metric_groups, 1),
            "learn_weight": (self.learn_weight, True),
            "modulation": (self.modulation, False),
            "init": (self.init, "identity"),
            "backend": (self.backend, "auto"),
        }
        return text + "".join(f", {name}={value}" for name, (value, usual) in options.items() if value != usual)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorder": None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("weight", "bias"):  # of version 0.1
            if f"{prefix}head.{name}" in state_dict:
                state_dict[f"{prefix}predictor.{name}"] = state_dict.pop(f"{prefix}head.{name}")
        gain = self.geometry_gain
        # A checkpoint without it leaves it as it is; on the meta device it has no value yet.
        state_dict.setdefault(f"{prefix}geometry_gain", torch.ones((), dtype=gain.dtype) if gain.is_meta else gain)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _padding(self, padding: int | Sequence[int] | str) -> tuple[int, ...]:
        if not isinstance(padding, str):
            return _checks.tuple_of(padding, self.dim, "padding", minimum=0)
        _checks.one_of(padding, ("same", "valid"), "padding")
        if padding == "valid":
            return (0,) * self.dim
        reaches = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        if any(s != 1 for s in self.stride) or any(reach % 2 for reach in reaches):
            raise ValueError(
                f"`padding` (='same') needs stride 1 and an even dilation·(kernel_size − 1), got stride {self.stride}, "
                f"kernel_size {self.kernel_size}, dilation {self.dilation}"
            )
        return tuple(reach // 2 for reach in reaches)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow the weights to another device; the geometry's constants keep their precision."""
        super()._apply(fn, recurse)
        self.follow_weights()
        return self

    def follow_weights(self) -> None:
        """Move the constants to where the weights are; not to the meta device, where they would lose their values."""
        if self.weight.device.type != "meta":
            self.move_constants(self.weight.device)

    def move_constants(self, device: torch.device) -> None:
        """Move what is neither parameter nor buffer."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        if self.identity is not None and (self.identity.device, self.identity.dtype) != (device, dtype):
            self.identity = self._exact_identity.to(device, dtype)


def _spelt_out(cls: type[AdaptiveConv]) -> inspect.Signature:
    """Return the signature of a class, with the arguments of its base in place of ``*args, **options``."""
    _, *own = inspect.signature(cls.__init__).parameters.values()
    named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(own) - len(named) == 2:
        names = {p.name for p in named}
        named += [p for p in inspect.signature(cls.__mro__[1]).parameters.values() if p.name not in names]
        return inspect.Signature(sorted(named, key=lambda p: p.kind))
    return inspect.Signature(own)
