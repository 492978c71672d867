"""FLOP counts of the backends' operators for ``torch.utils.flop_counter`` and fvcore: those of a convolution.

Interpolation is not counted, as torch counts matrix products only.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .. import _compat

__all__ = ["count_products", "fvcore_handles"]

_OPERATORS = ("metricconv::support_conv", "metricconv::support_conv_cpu")


def fvcore_handles() -> dict[str, Callable[[Any, Any], int]]:
    """Return handles by which ``fvcore.nn.FlopCountAnalysis`` counts adaptive convolutions.

    Pass them to its method ``set_op_handle``. As in fvcore, a multiplication with the addition that follows counts as
    one operation; ``torch.utils.flop_counter`` counts two. Interpolation is not counted.

    >>> sorted(fvcore_handles())
    ['metricconv::support_conv', 'metricconv::support_conv_cpu']
    """

    def products(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        weight, output = (value.type().sizes() for value in (inputs[1], outputs[0]))
        return math.prod(output) * math.prod(weight[1:])

    return dict.fromkeys(_OPERATORS, products)


def count_products(forward: Any, backward: Any) -> None:
    """Register the counts of a forward operator (input, weight, …) and its backward (input, weight, …, grad, needs)."""

    @register_flop_formula(forward, get_raw=True)
    def _(input: Tensor, weight: Tensor, *others: Any, out_val: Tensor, **options: Any) -> int:
        return _products(out_val, weight)

    @register_flop_formula(backward, get_raw=True)
    def _(input: Tensor, weight: Tensor, *others: Any, out_val: Any, **options: Any) -> int:
        grad: Tensor = others[-2]
        needs: Sequence[bool] = others[-1]
        gradient_of_samples = needs[0] or any(needs[2:])
        return _products(grad, weight) * (gradient_of_samples + needs[1])

    _compat.update_flop_counters()  # backends are imported on first use, perhaps within a counter


def _products(output: Tensor, weight: Tensor) -> int:
    """Return the number of multiplications and additions: two for each output value and weight of its kernel."""
    return 2 * output.numel() * (weight.numel() // weight.shape[0])
