"""Files that programs write: whole or not at all, tables with what is needed to compare them with another run."""

import contextlib
import csv
import functools
import hashlib
import importlib.metadata
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from . import __version__


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; its file takes the place of ``path`` in one move, or vanishes if an error is raised.

    Folders are made as needed. The path keeps its suffix, by which many writers choose a format. Where ``path`` is a
    link, what it points to is replaced; a file that is replaced keeps its permissions.
    """
    suffix = path.suffix
    with contextlib.suppress(RuntimeError):  # links that lead back to themselves lead nowhere
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Most of a name may be as long as file systems allow already.
    temporary = path.with_name(f".{path.stem[:32]}.{secrets.token_hex(4)}{suffix}")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_table(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> None:
    """Write rows as CSV, with these columns, or those of the first row; what a row lacks stays empty."""
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns or list(rows[0]), restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read what ``write_table`` wrote; no rows if there is no such file. A row that is cut short is refused."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        table, rows = csv.DictReader(file), []
        for row in table:
            if None in row or None in row.values():
                raise ValueError(f"{path}, line {table.line_num}: has not as many cells as there are columns; mend it")
            rows.append(row)
        return rows


def versions(*packages: str) -> dict[str, str]:
    """Return the versions behind a result: of metricconv, with eight digits of its code, torch, Python and these."""
    found = {"metricconv": f"{__version__}+{_code()}", "torch": torch.__version__, "python": platform.python_version()}
    return found | {package: importlib.metadata.version(package) for package in packages}


@functools.cache
def _code() -> str:
    """Return eight digits that are others for every other code of the package."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
