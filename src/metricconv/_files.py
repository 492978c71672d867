"""Atomic writing of files, CSV tables, and the versions that results depend on."""

import contextlib
import csv
import functools
import glob
import hashlib
import importlib.metadata
import platform
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from . import __version__
from ._errors import UserError

# Age after which a temporary file is taken as left over by a killed process.
_STALE_SECONDS = 24 * 3600


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that atomically replaces ``path`` on success and is deleted on error.

    Parent folders are created. The temporary path has the same suffix, by which many writers choose a format. If
    ``path`` is a link, its target is replaced; the permissions of an existing file are kept. Devices, pipes and folders
    are not replaced. Temporary files that killed processes left for this path are deleted after a day.
    """
    suffix = path.suffix
    with contextlib.suppress(RuntimeError):  # raised for circular links
        path = path.resolve()
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The stem is shortened as it may already have the maximum length.
    stem = f".{path.stem[:32]}."
    for leftover in path.parent.glob(f"{glob.escape(stem)}{'[0-9a-f]' * 8}{glob.escape(suffix)}"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                leftover.unlink()
    temporary = path.with_name(f"{stem}{secrets.token_hex(4)}{suffix}")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Check that ``path`` does not exist or is a regular file: devices and pipes must not be replaced."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: exists and is not a regular file; it is not overwritten")


def write_table(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> None:
    """Write rows as CSV with the given columns, by default those of the first row; missing cells are empty."""
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns or list(rows[0]), restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a table written by ``write_table``; empty if the file does not exist. Raises for incomplete rows."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        table, rows = csv.DictReader(file), []
        for row in table:
            if None in row or None in row.values():
                cells = len(row.get(None, [])) + sum(isinstance(value, str) for value in row.values())
                expected = len(table.fieldnames or [])
                raise ValueError(f"{path}, line {table.line_num}: expected {expected} columns, got {cells}")
            rows.append(row)
        return rows


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of metricconv (with a hash of its source), torch, Python and ``packages``."""
    found = {
        "metricconv": f"{__version__}+{_source_hash()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return found | {package: importlib.metadata.version(package) for package in packages}


@functools.cache
def _source_hash() -> str:
    """Return eight hex digits of a hash of the package's source code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
