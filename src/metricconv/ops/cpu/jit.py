"""How kernels are compiled: on their first call, kept on disk, without Python's lock, NaN and infinity respected."""

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from ... import _interpolation
from ...metrics import base, flow

_CONFIG: Any = numba.config

# Sums may be taken in another order, always the same one, and products fused into them. Nothing is assumed about NaN:
# a NaN position must reach the output, and must not become an address.
FAST = ("reassoc", "contract", "nsz", "arcp")
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": set(FAST),
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a kernel when it is first called, and keep the machine code for later processes."""
    folder = cache_folder()
    if folder is None:
        return numba.njit(**_OPTIONS, **options)(function)
    before = _CONFIG.CACHE_DIR
    try:
        _CONFIG.CACHE_DIR = str(folder)  # read when a function is decorated, and never again
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    finally:
        _CONFIG.CACHE_DIR = before


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile what kernels call and what allocates nothing: it need not count who holds an array, at a price."""
    return compiled(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function into what calls it: a loop around a call cannot become vector instructions, and to hand many
    arguments over at every tap takes longer than the tap.
    """
    return compiled(function, forceinline=True, _nrt=False)


@functools.cache
def cache_folder() -> Path | None:
    """Return where machine code is kept: NUMBA_CACHE_DIR, else beside the source, else the user's cache; None if none
    can be written.

    The folder is named by the source of all kernels and of the constants compiled into them: numba itself looks for
    changes only in the file of the kernel it loads, not in those it calls, and fails on what an earlier version left.
    """
    constants = [Path(str(module.__file__)) for module in (_interpolation, base, flow)]
    sources = [*sorted(Path(__file__).parent.glob("*.py")), *constants]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    given = [_CONFIG.CACHE_DIR] if _CONFIG.CACHE_DIR else []
    for parent in (*given, Path(__file__).parent / "__pycache__", Path(home) / "metricconv"):
        folder = Path(parent) / f"cpu-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    return None
