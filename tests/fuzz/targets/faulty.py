"""A target that fails in every way that the runner reports, for the runner's own tests."""

import os
import time

__all__ = ["check", "make"]

WAYS = ("holds", "raises", "dies", "hangs", "allocates")


def make(seed: int) -> str:
    """Return the way to fail; seed 0 does not."""
    return WAYS[seed % len(WAYS)]


def check(case: str) -> str:
    """Fail in the given way."""
    if case == "raises":
        raise AssertionError("1 is not 2")
    if case == "dies":
        os.abort()
    if case == "hangs":
        time.sleep(3600)
    if case == "allocates":
        bytearray(2**40)
    return "held"
