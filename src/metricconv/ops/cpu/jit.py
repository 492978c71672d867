"""Decorators that compile kernels with numba: on the first call, cached on disk, GIL released, NaN respected."""

import functools
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numba.extending

from ... import _compat, _interpolation
from ...metrics import base, flow

_LOGGER = logging.getLogger(__name__)

# LLVM may reorder sums, deterministically, and fuse products into them. It must not assume that there are no NaNs: a
# NaN position must reach the output, and must not become an address.
FAST = ("reassoc", "contract", "nsz", "arcp")
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": set(FAST),
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a kernel on its first call and cache the machine code on disk."""
    folder = cache_folder(Path(function.__code__.co_filename).parent)
    if folder is None:
        return _announced(numba.njit(**_OPTIONS, **options)(function))
    with _compat.use_numba_cache_dir(folder):
        return _announced(_compat.separate_numba_cache_files(numba.njit(cache=True, **_OPTIONS, **options)(function)))


def _announced(function: Any) -> Any:
    """Log a message when a kernel takes longer than a second to compile."""
    compile_kernel = function.compile

    def compile_announced(signature: Any) -> Any:
        timer = threading.Timer(1.0, _announce)
        timer.daemon = True
        timer.start()
        try:
            return compile_kernel(signature)
        finally:
            timer.cancel()

    function.compile = compile_announced
    return function


@functools.cache
def _announce() -> None:
    where = cache_folder()
    later = f"stored for later processes in {where}" if where else "not stored, since no folder can be written"
    _LOGGER.warning("numba compiles kernels for this processor, which takes some seconds. They are %s", later)


def inner(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function that kernels can call and that is compiled with them. Python runs it uncompiled."""
    register = numba.extending.register_jitable(**_OPTIONS, **options, pipeline_class=_compat.numba_inner_compiler)
    callable_by_kernels: Callable[..., Any] = register(function)
    return callable_by_kernels


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``compiled``, for a kernel that allocates no arrays: references to its arguments are not counted."""
    return compiled(function, **_compat.NUMBA_NO_REFERENCE_COUNTS)


def noalloc(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``inner``, for a function that allocates no arrays: references to its arguments are not counted."""
    return inner(function, **_compat.NUMBA_NO_REFERENCE_COUNTS)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``noalloc``, for a function that is always inlined.

    LLVM does not vectorize a loop around a call, and passing many arguments per sample takes longer than the sample.
    """
    return inner(function, forceinline=True, **_compat.NUMBA_NO_REFERENCE_COUNTS)


def optional(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``noalloc``, for a function that does nothing where its first argument is an empty tuple: it is not compiled.

    Python always runs it.
    """
    options: Any = {**_OPTIONS, **_compat.NUMBA_NO_REFERENCE_COUNTS, "pipeline_class": _compat.numba_inner_compiler}

    def select(*arguments: Any) -> Callable[..., Any]:
        return _do_nothing if arguments[0] == numba.types.Tuple(()) else function

    numba.extending.overload(function, jit_options=options, strict=False)(select)
    return function


def _do_nothing(*arguments: object) -> None:
    pass


@functools.cache
def cache_folder(package: Path | None = None) -> Path | None:
    """Return the folder of the machine code of a package's kernels (default: ops/cpu), or None if none can be written.

    Candidates are NUMBA_CACHE_DIR, the folder of the source and the user's cache folder. The name contains a hash of
    the source of all kernels of the package and of ops/cpu, and of the constants compiled into them: numba checks only
    the file of the kernel it loads for changes, not the files of the functions that this calls, and fails on caches of
    earlier versions.
    """
    constants = [Path(str(module.__file__)) for module in (_interpolation, base, flow)]
    here = Path(__file__).parent
    package = package or here
    sources = [*sorted(path for folder in {here, package} for path in folder.glob("*.py")), *constants]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    given = _compat.numba_cache_dir()
    parents = [Path(given)] if given else []
    for parent in (*parents, package / "__pycache__", Path(home) / "metricconv"):
        folder = parent / f"cpu-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    return None
