"""What ``torch.utils.flop_counter`` counts for the backends' operators: their products, as for an ordinary convolution.

Interpolation is left out, as torch leaves out all that is not a product of matrices.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


def count_products(forward: Any, backward: Any) -> None:
    """Tell torch what a pair of operators costs: (input, weight, …) → output, and (input, weight, …, grad, needs)."""

    @register_flop_formula(forward, get_raw=True)
    def _(input: Tensor, weight: Tensor, *others: Any, out_val: Tensor, **options: Any) -> int:
        return _products(out_val, weight)

    @register_flop_formula(backward, get_raw=True)
    def _(input: Tensor, weight: Tensor, *others: Any, out_val: Any, **options: Any) -> int:
        grad: Tensor = others[-2]
        needs: Sequence[bool] = others[-1]
        of_samples = needs[0] or any(needs[2:])
        return _products(grad, weight) * (of_samples + needs[1])


def _products(output: Tensor, weight: Tensor) -> int:
    """Return the multiplications and additions: two for each output and number of its kernel."""
    return 2 * output.numel() * (weight.numel() // weight.shape[0])
