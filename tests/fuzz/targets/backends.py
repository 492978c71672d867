"""The CPU backend agrees with the reference in outputs and all gradients, in float32 and float64."""

import dataclasses
import random

import torch

from fuzz.problems import draw
from ops.cases import Case, outcome, relative, truth

__all__ = ["Problem", "check", "compare", "make"]

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
    """Compare outputs and gradients with the reference; where a lattice point may decide, also for other values.

    A sample at the tolerance of lattice points may be on either side of it. A wrong kernel fails with other values too.
    """
    first = _errors(problem.case, problem.seed, backend)
    if not first:
        return problem.case.kind
    assert not _errors(problem.case, problem.seed + 2**32, backend), first
    return "undecided at a lattice point"


def _errors(case: Case, seed: int, backend: str) -> dict[str, float]:
    """Return the relative errors above the tolerance."""
    torch.manual_seed(seed)
    tensors, run = case.make()
    # float64 throughout: a support in another dtype is not supported.
    tensors = {name: t.to(case.dtype) for name, t in tensors.items()}
    found, expected = outcome(run, tensors, backend=backend), truth(run, tensors)
    for name, t in {**tensors, "output": expected["output"]}.items():
        assert found[name].shape == t.shape, name
    assert all(found[name].dtype == case.dtype for name in found)
    # Rounding errors of positions grow with the radius.
    tolerance = TOLERANCES[case.dtype] * max(case.radius, 1)
    errors = {name: relative(found[name], expected[name]) for name in expected}
    return {name: error for name, error in errors.items() if not error <= tolerance}  # NaN is an error
