"""FLOP counts of the backends' operators for ``torch.utils.flop_counter``: those of an ordinary convolution.

Interpolation is not counted, as torch counts matrix products only.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

__all__ = ["count_products"]


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


def _products(output: Tensor, weight: Tensor) -> int:
    """Return the number of multiplications and additions: two for each output value and weight of its kernel."""
    return 2 * output.numel() * (weight.numel() // weight.shape[0])
