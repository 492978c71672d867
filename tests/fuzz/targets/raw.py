"""Raw parameters: metrics of random and extreme ones are positive, bounded and differentiable."""

import dataclasses
import random

import torch
from torch import Tensor

from metricconv.metrics import Parametrization
from raw_parameters import ELLIPSOIDS, EXTREMES, assert_sound, field

__all__ = ["Case", "check", "make"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FRAMES = {1: (None,), 2: (None, "vector", "skew", "givens", "qr"), 3: (None, "skew", "givens", "qr"), 4: (None, "qr")}
VECTORS = 64


@dataclasses.dataclass
class Case:
    """Raw parameters of a kind for a parametrization."""

    seed: int
    parametrization: Parametrization
    dtype: torch.dtype
    kind: str
    start: bool  # from the identity, as a layer does
    gain: float | None

    def raw(self) -> Tensor:
        """Return (VECTORS, 1, n, 1, …), finite in the dtype."""
        torch.manual_seed(self.seed)
        shape = (VECTORS, self.parametrization.channels)
        limits = torch.finfo(self.dtype)
        match self.kind:
            case "normal":
                raw = torch.randn(shape, dtype=torch.float64)
            case "magnitudes":
                raw = torch.randn(shape, dtype=torch.float64).sign() * 10 ** (20 * torch.rand(shape).double() - 10)
            case "equal":
                raw = torch.randn(VECTORS, 1, dtype=torch.float64).mul(10).expand(shape)
            case "nearly equal":
                raw = torch.randn(VECTORS, 1, dtype=torch.float64) + limits.eps * torch.randn(shape).double()
            case "subnormal":
                raw = limits.tiny * torch.randn(shape, dtype=torch.float64)
            case "zeros":
                raw = torch.zeros(shape, dtype=torch.float64) * torch.randn(shape, dtype=torch.float64)
            case _:
                values = torch.tensor([*EXTREMES, limits.max, limits.min, limits.tiny, -limits.smallest_normal, 1.0])
                raw = values.double()[torch.randint(len(values), shape)]
                mixed = torch.rand(shape) < 0.3
                raw = torch.where(mixed, torch.randn(shape, dtype=torch.float64), raw)
        return field(raw.clamp(limits.min, limits.max).to(self.dtype), self.parametrization.dim)


def make(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    cls = rng.choice(list(ELLIPSOIDS.values()))
    dim = rng.choice([1, 2, 2, 3, 3, 4])
    options = {"dim": dim, "eps_omega": rng.choice([0.02, 0.1, 0.5, 0.9, 1]), "detach_factor": rng.random() < 0.5}
    if "frame" in {f.name for f in dataclasses.fields(cls)}:
        options["frame"] = rng.choice(FRAMES[dim])
    return Case(
        seed,
        cls(**options),
        rng.choice(DTYPES),
        rng.choice(["normal", "magnitudes", "equal", "nearly equal", "subnormal", "zeros", "extreme"]),
        rng.random() < 0.5,
        rng.choice([None, 0.0, 1.0, 1e-30, -3.0, 1e4]),
    )


def check(case: Case) -> str:
    """Check the metrics of the parameters."""
    start = case.parametrization.identity() if case.start else None
    gain = None if case.gain is None else torch.tensor(case.gain)
    assert_sound(case.parametrization, case.raw(), start, gain)
    return str(case.dtype).removeprefix("torch.")
