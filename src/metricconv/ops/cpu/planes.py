"""The few-channel way: every part of the output by ``direct``."""

from typing import Any

from torch import Tensor

from . import direct, launch, ring
from .bands import PARTS, Band, Gradients, Needs, Sums, cut
from .launch import Call
from .threads import share


def forward(call: Call, out: Tensor) -> None:
    """Add to out, (B, C_out, N), contiguous."""
    common, total = _common(call), out.numpy()

    def work(part: list[Band]) -> None:
        for band in part:
            direct.forward(*common, total, band.image, band.start, band.stop)

    share(work, cut(call, PARTS))


def backward(call: Call, grad: Tensor, needs: Needs) -> Gradients:
    """Return the gradients that are needed of input, weight, modulation and field; grad (B, C_out, N)."""
    common, upstream = _common(call), grad.contiguous().numpy()
    sums = Sums(call, needs, common[0], 2, common[3])

    def work(number: int) -> None:
        for band in sums.parts[number]:
            own = (*sums.window(band), sums.weights[number], sums.modulation, sums.field)
            direct.backward(*common, upstream, needs[3], *own, band.image, band.start, band.stop)

    share(work, range(len(sums.parts)))
    return (
        ring.without(call, sums.image()) if needs[0] else None,
        sums.weight().view(call.weight.shape) if needs[1] else None,
        *sums.numbers(),
    )


def _common(call: Call) -> tuple[Any, ...]:
    """Return what both kernels take first: image, field, taps, weights, modulation, geometry and channels."""
    field, modulation = call.fields()
    weight = call.weight.flatten(2).contiguous().numpy()  # [C_out, C/groups, P]
    ins, outs = call.x.shape[1], call.weight.shape[0]
    channels = direct.Channels(ins // call.metric_groups, ins // call.groups, outs // call.groups)
    return ring.as_planes(call), field, launch.taps(call), weight, modulation, call.geometry(), channels
