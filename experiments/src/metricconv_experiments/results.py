"""Result tables: one CSV per experiment, whose existing rows are not computed again, and Markdown.

A row has a key (method, k, σ, seed …), values (the results) and its provenance (duration, hardware, backends of the
adaptive layers, versions, date).
A command that is run again, for example after an interruption, adds only missing rows.
"""

import contextlib
import datetime
import os
import platform
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from metricconv._files import read_table, versions, write_table, writing
from metricconv.ops.backends import record_backends

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Columns of earlier versions, by their present names.
RENAMED_COLUMNS = {
    "head": "metric_parameters",
    "head_multiplier": "multiplier",
    "knobs": "filter_parameters",
    "pictures": "images",
}
PROVENANCE = ("seconds", "hardware", "backend", "metricconv", "torch", "python", "date")


class Results:
    """The rows of one experiment, in a CSV that is written after every row.

    Several processes may add rows to the same CSV. ``rows`` are those of the last reading of the CSV and those added by
    this process.

    Args:
        path: path of the CSV, which is created with the first row.
        key: columns that identify a row.
        values: columns of the results.
    """

    def __init__(self, path: Path, key: Sequence[str], values: Sequence[str]) -> None:
        self.path, self.key = path, tuple(key)
        self.columns = tuple(dict.fromkeys((*key, *values, *PROVENANCE)))
        self.rows = self._read()
        self._backends: set[str] = set()

    def __contains__(self, setting: Mapping[str, object]) -> bool:
        """Return whether the table has a row for a setting."""
        key = self._key(setting)
        return any(self._key(row) == key for row in self.rows)

    def pending(
        self, settings: Iterable[Mapping[str, object]], max_minutes: float | None = None, *, distributed: bool = False
    ) -> Iterator[dict[str, object]]:
        """Yield the settings missing in the table until ``max_minutes`` are over; print progress to stderr.

        The time limit is checked between rows. Rows that another process has added, or is computing, are skipped;
        ``distributed`` is as for ``claimed``.
        """
        start = time.monotonic()
        distinct = {self._key(setting): dict(setting) for setting in settings}
        missing = [setting for setting in distinct.values() if setting not in self]
        if missing:
            self.prepare()
        for n, setting in enumerate(missing, 1):
            spent = (time.monotonic() - start) / 60
            if max_minutes is not None and spent >= max_minutes:
                _print_progress(
                    f"stopped after {spent:.1f} min: {len(missing) - n + 1} rows left; run the command again to resume"
                )
                return
            with self.claimed(setting, distributed=distributed) as claimed:
                if claimed:
                    label = " ".join(f"{name}={setting[name]}" for name in self.key if setting.get(name, "") != "")
                    _print_progress(f"[{n}/{len(missing)}, {spent:.1f} min] {label}")
                    yield setting

    def prepare(self) -> None:
        """Create the folder of the CSV and check that it can be written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path.parent).close()
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}: {self.path.parent}") from None

    @contextlib.contextmanager
    def claimed(
        self, setting: Mapping[str, object], *, wait: bool = False, distributed: bool = False
    ) -> Iterator[bool]:
        """Claim a row for the duration of the context; yield whether it is missing and was claimed.

        The CSV is read again first. If another process has claimed the row, the result is False, or with ``wait``, we
        wait for that process. The processes of a ``distributed`` run neither claim rows nor read the CSV again, so that
        all of them compute the same rows.
        """
        with record_backends() as self._backends:
            if distributed or any(int(os.environ.get(name, "1")) > 1 for name in ("WORLD_SIZE", "SLURM_NTASKS")):
                yield setting not in self
                return
            with _claim(self.path, "\n".join(self._key(setting)), wait) as claimed:
                if claimed:
                    with locked(self.path):
                        self.rows = self._read()
                yield claimed and setting not in self

    def add(self, setting: Mapping[str, object], values: Mapping[str, object], seconds: float) -> None:
        """Add a row to the CSV, or replace the row with the same key; its backends are those of the present claim."""
        backend = "+".join(sorted(self._backends))
        provenance = {"seconds": f"{seconds:.2f}", "hardware": hardware(), "backend": backend}
        provenance |= {**versions(), "date": today()}
        row = {name: text(value) for name, value in {**provenance, **setting, **values}.items()}
        unknown = set(row) - set(self.columns)
        if unknown:
            raise ValueError(f"{sorted(unknown)} are not columns of {self.path}: {', '.join(self.columns)}")
        self.rows.append({name: row.get(name, "") for name in self.columns})
        with locked(self.path):
            others = [other for other in self._read() if self._key(other) != self._key(row)]
            write_table(self.path, [*others, self.rows[-1]], self.columns)

    def _read(self) -> list[dict[str, str]]:
        rows = read_rows(self.path)
        found = {name for row in rows for name in row}
        for names, fault in ((set(self.key) - found, "has no"), (found - set(self.columns), "has unknown")):
            if rows and names:
                raise ValueError(
                    f"{self.path} is of another experiment or version: it {fault} columns: "
                    f"{', '.join(sorted(map(repr, names)))}"
                )
        return [{name: row.get(name, "") for name in self.columns} for row in rows]  # all values may be missing

    def _key(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(text(row.get(name, "")) for name in self.key)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV, those of earlier versions as by ``upgraded``; none if it does not exist."""
    return [{name: text(value) for name, value in upgraded(row).items()} for row in read_table(path)]


def upgraded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row or setting of an earlier version with its present columns and values.

    Columns are renamed. Rows of classification without the column ``zero_gamma`` are of versions in which no γ was set
    to 0, and in which ``init="paper"`` set all predictors to zero, unlike the released code; this is now "constant".
    """
    row = {RENAMED_COLUMNS.get(name, name): value for name, value in row.items()}
    if "init" in row and "zero_gamma" not in row:
        row |= {"zero_gamma": False, "init": "constant" if row["init"] == "paper" else row["init"]}
    return row


def add_curve(
    path: Path,
    setting: Mapping[str, object],
    curve: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    key: Sequence[str],
) -> None:
    """Add the curve of a run to the CSV of all curves, or replace the curve with the same key."""
    keys = {name: text(setting[name]) for name in key}
    points = [keys | {name: text(value) for name, value in point.items()} for point in curve]
    with locked(path):
        others = [row for row in read_table(path) if any(row[name] != value for name, value in keys.items())]
        write_table(path, [*others, *points], columns)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against other processes while it is read and replaced; no effect on systems without such locks.

    The lock is on an additional empty file. It is released if the process ends for any reason.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _claim(path: Path, name: str, wait: bool) -> Iterator[bool]:
    """Yield whether a name could be claimed, by locking one byte, selected by its checksum, of a file next to ``path``.

    A process can claim only one name at a time: a second claim releases the first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    claimed = True
    with path.with_name(f".{path.name}.claims.lock").open("w") as file:
        if fcntl is not None:
            mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
            try:
                fcntl.lockf(file, mode, 1, zlib.crc32(name.encode()))
            except (BlockingIOError, PermissionError):
                claimed = False
            except OSError:  # a file system without locks
                pass
        yield claimed


def text(value: object) -> str:
    """Return a value as text for the CSV; floats have nine digits, None is empty."""
    if isinstance(value, float):
        return f"{value:.9g}"
    return "" if value is None else str(value)


def hardware() -> str:
    """Return the name of the GPU, or the architecture of the CPU and the number of threads."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"


def today() -> str:
    """Return the date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; the first column is left-aligned, the others right-aligned.

    >>> print(markdown_table(["k", "MSE"], [["5", "1.6e-3"]]), end="")
    | k | MSE |
    |:--|--:|
    | 5 | 1.6e-3 |
    """
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| :-- |", "|:--|").replace(" --: |", "--:|")


def write_markdown(path: Path, *parts: str) -> None:
    """Write paragraphs and tables, separated by blank lines."""
    with writing(path) as temporary:
        temporary.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")


def scientific(value: str, digits: int = 2) -> str:
    """Return a number in the scientific notation of the paper.

    >>> scientific("0.0016")
    '1.60e-3'
    """
    mantissa, exponent = f"{float(value):.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def with_published(ours: str, paper: str) -> str:
    """Return a value followed by that of the paper in parentheses.

    >>> with_published("1.60e-3", "1.59e-3"), with_published("1.60e-3", "")
    ('1.60e-3 (1.59e-3)', '1.60e-3')
    """
    return f"{ours} ({paper})" if ours and paper else ours


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
