"""The CPU backend agrees with the reference in outputs and all gradients, in float32 and float64."""

import dataclasses
import random
from collections.abc import Callable

import torch

from fuzz.problems import draw
from ops.cases import Case, outcome, relative, truth

__all__ = ["Problem", "check", "compare", "make"]

GEOMETRY = ("M", "omega", "displacement", "shift", "scale")
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclasses.dataclass
class Problem:
    """A problem and the seed of its values."""

    seed: int
    case: Case


def make(seed: int) -> Problem:
    """Return the problem of a seed."""
    return Problem(seed, draw(random.Random(seed)))


def check(problem: Problem) -> str:
    """Compare the backend with the reference."""
    return compare(problem, "cpu")


def compare(problem: Problem, backend: str) -> str:
    """Compare outputs and gradients with the reference; where rounding may decide, also for other values.

    A sample at the tolerance of lattice points may be on either side of it. Geodesics may amplify rounding: then the
    reference itself changes as much if the last bits of the geometry do. A wrong kernel fails with other values too.
    """
    first = _errors(problem.case, problem.seed, backend)
    if not first:
        return problem.case.kind
    sensitivity = _sensitivity(problem.case, problem.seed)
    if all(error <= 10 * sensitivity[name] for name, error in first.items()):
        return "ill-conditioned"
    assert not _errors(problem.case, problem.seed + 2**32, backend), first
    return "undecided at a lattice point"


def _sensitivity(case: Case, seed: int) -> dict[str, float]:
    """Return the largest relative changes of the reference if the last bits of the geometry change, in four trials."""
    tensors, run = _problem(case, seed)
    expected, found = truth(run, tensors), dict.fromkeys([*tensors, "output"], 0.0)
    for _ in range(4):
        changed = {
            name: t * (1 + torch.finfo(case.dtype).eps * (torch.rand(t.shape, dtype=t.dtype) - 0.5).sign())
            if name in GEOMETRY
            else t
            for name, t in tensors.items()
        }
        other = truth(run, changed)
        found = {name: max(value, float(relative(other[name], expected[name]))) for name, value in found.items()}
    return found


def _problem(case: Case, seed: int) -> tuple[dict[str, torch.Tensor], Callable[..., torch.Tensor]]:
    """Return the tensors of a problem, all in its dtype, and the operator."""
    torch.manual_seed(seed)
    tensors, run = case.make()
    return {name: t.to(case.dtype) for name, t in tensors.items()}, run


def _errors(case: Case, seed: int, backend: str) -> dict[str, float]:
    """Return the relative errors above the tolerance."""
    tensors, run = _problem(case, seed)
    found, expected = outcome(run, tensors, backend=backend), truth(run, tensors)
    for name, t in {**tensors, "output": expected["output"]}.items():
        assert found[name].shape == t.shape, name
    assert all(found[name].dtype == case.dtype for name in found)
    # Rounding errors of positions grow with the radius.
    tolerance = TOLERANCES[case.dtype] * max(case.radius, 1)
    errors = {name: relative(found[name], expected[name]) for name in expected}
    return {name: error for name, error in errors.items() if not error <= tolerance}  # NaN is an error
