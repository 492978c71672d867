"""Runs a command line in this process and checks its exit code, its messages and the files that it leaves."""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import zarr

from metricconv.cli.app import run
from metricconv.io import images

__all__ = ["NO_MEMORY", "check_command", "empty_folder"]

# Of errors for lack of memory: cases are small, so that none may need much.
NO_MEMORY = re.compile(r"not enough memory|unable to allocate|MemoryError|DefaultCPUAllocator|bad_alloc", re.IGNORECASE)


def check_command(arguments: Sequence[str], outputs: Sequence[Path], folder_input: bool = False) -> str:
    """Run a command in the current folder and return "success", "error" (code 1) or "usage error" (code 2).

    A command that succeeds writes complete ``outputs``, and replaces files only with --force; otherwise files are left
    unchanged. An error is one line.

    Args:
        folder_input: the command filters a folder: files without errors are written even if others have errors.
    """
    before = _contents()
    with _captured() as texts:
        code = run(arguments)
    out, error = texts
    after = _contents()
    written = {path for path in after if after[path] != before.get(path)}
    assert "Traceback" not in out + error, error
    assert not NO_MEMORY.search(error), error
    assert set(before) <= set(after), f"deleted: {set(before) - set(after)}"
    assert "--force" in arguments or not written & set(before), f"overwritten without --force: {written & set(before)}"
    assert code in (0, 1, 2), f"exit code {code}"
    lines = error.strip().splitlines()
    if code == 2:
        assert "─ Error ─" in error, error
    elif code == 1 and not folder_input:
        assert len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) > 10, error
    else:
        assert all(line.startswith(("error: ", "wrote ", "skipped ")) for line in lines), error
    if code == 0 or (folder_input and code == 1):
        for path in written:
            assert any(path.is_relative_to(output) for output in outputs), f"unexpected file {path}"
            _read_whole(path)
        assert code or written or "--help" in arguments or "skipped" in error, "nothing is written"
    else:
        assert not written, f"exit code {code}, but written: {written}"
    return ("success", "error", "usage error")[code]


def _read_whole(path: Path) -> None:
    """Read a written file to its end, of a zarr array all of it; raise if it is not complete."""
    if images.is_zarr(path):
        store = next(folder for folder in (path, *path.parents) if folder.suffix.lower() == ".zarr")
        assert zarr.open_array(store, mode="r")[...].size
    elif path.suffix.lower() in images.SUFFIXES:
        images.read(path)
    else:
        assert path.stat().st_size


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Change to an empty folder, which is deleted afterwards."""
    before, folder = Path.cwd(), Path(tempfile.mkdtemp())
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def _contents() -> dict[Path, bytes]:
    """Return the files below the current folder with a digest of each."""
    files = (path for path in Path().rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in files}


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Capture standard output and error, also of compiled libraries; both are in the list afterwards."""
    texts: list[str] = []
    before = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        os.dup2(out.fileno(), 1)
        os.dup2(error.fileno(), 2)
        try:
            yield texts
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, file, copy in zip((1, 2), (out, error), before, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
