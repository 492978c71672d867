"""The Triton kernels, in Triton's interpreter, agree with the reference in outputs and all gradients."""

import dataclasses
import random

import torch

from fuzz.problems import draw
from fuzz.targets.backends import Problem, compare

__all__ = ["check", "make"]


def make(seed: int) -> Problem:
    """Return the problem of a seed, small because the interpreter is slow."""
    case = draw(random.Random(seed), dims=(1, 2, 2, 2), largest=2, most_channels=20)
    return Problem(seed, dataclasses.replace(case, dtype=torch.float32, batch=min(case.batch, 2)))


def check(problem: Problem) -> str:
    """Compare the kernels with the reference."""
    return compare(problem, "triton")
