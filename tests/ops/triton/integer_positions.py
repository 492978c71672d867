"""Compare gradients at integer positions to the reference, for the tests in the interpreter and on a GPU.

Interpolated data has a kink there. Every backend uses the central difference, independent of rounding errors.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ops.cases import Case, outcome

ULP = 2.0**-24  # just below 1


def check_integer_positions(case: Case, offsets: str, tolerance: float = 1e-5, device: str = "cpu") -> None:
    """Compare the kernels to the reference for samples at integer positions: see ``integer_geometry``."""
    tensors, run = case.make(device)
    tensors |= integer_geometry(case, tensors, offsets)
    if case.modulated:  # positive, zero and negative
        tensors["modulation"] = torch.randn_like(tensors["modulation"]) * torch.randint_like(tensors["modulation"], 2)
    compare(tensors, run, tolerance)


def compare(tensors: dict[str, Tensor], run: Callable[..., Tensor], tolerance: float = 1e-5) -> None:
    """Compare the output and every gradient to the reference, relative to the largest element."""
    found, expected = (outcome(run, tensors, backend=backend) for backend in ("triton", "reference"))
    for name, reference in expected.items():
        error, largest = (found[name].float() - reference.float()).abs().max(), reference.float().abs().max()
        assert error <= tolerance * largest.clamp_min(0.1), f"{name}: {error} of {largest}"


def integer_geometry(case: Case, tensors: dict[str, Tensor], offsets: str) -> dict[str, Tensor]:
    """Return parameters of a support whose samples lie at integer positions.

    Args:
        case, tensors: the problem and its tensors.
        offsets: "start": samples as in an ordinary convolution; "integer": displaced by integers, also beyond borders;
            "near": the same, up to one unit in the last place; "mixed": some displaced by fractions.
    """
    (name,) = {"M", "displacement", "shift", "scale"} & set(tensors)
    field = tensors[name]
    if name == "M":
        reach = torch.full_like(field[:, :, :1], max(case.kernel) // 2 * case.dilation)
        if offsets != "start":  # 3 is an integer for samples 2 pixels from the center, 1.5 for others
            reach = torch.randint_like(reach, 3, 4 if offsets == "mixed" else 6)
        identity = torch.eye(len(case.kernel))[tuple(torch.triu_indices(*2 * [len(case.kernel)]))].to(field)
        field = identity.view(-1, *(1,) * len(case.kernel)) / reach.square()
        field = field * (1 + 2 * ULP * torch.randint_like(reach, -1, 2)) if offsets == "near" else field
        if "w" in tensors:  # along the first axis: samples on one side, and orthogonal to it, stay on pixels
            first = torch.arange(tensors["w"].shape[2], device=field.device).view(-1, *(1,) * len(case.kernel)) == 0
            return {"M": field, "w": tensors["w"] * first}
        return {"M": field} | ({"omega": torch.zeros_like(tensors["omega"])} if "omega" in tensors else {})
    low, high = {"start": (0, 1)}.get(offsets, (-7, 8))
    whole = torch.randint_like(field, low, high) + (name == "scale")
    if offsets == "near":
        whole += ULP * torch.randint_like(field, -1, 2)
    return {name: torch.where(torch.rand_like(field) < 0.5, whole, field) if offsets == "mixed" else whole}
