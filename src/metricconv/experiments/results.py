"""Tables of results: one long CSV an experiment, rows that are never computed twice, Markdown with the paper's numbers.

A row has a key (what was run: method, k, σ, seed …), values (what came out) and its provenance (how long it took, on
what, with which versions, when). A command that is run again, or that was cut short, adds only the rows that lack.
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

import torch

from .._files import read_table, versions, write_table, writing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PROVENANCE = ("seconds", "hardware", "metricconv", "torch", "python", "date")


class Results:
    """The rows of one experiment, in a CSV that is whole after each of them.

    Several processes may add to one CSV, each row by one of them. ``rows`` are those that the CSV had when it was last
    read, and those that were added here since.

    Args:
        path: of the CSV; made with the first row.
        key: the columns that tell rows apart.
        values: the columns that hold what was measured.
    """

    def __init__(self, path: Path, key: Sequence[str], values: Sequence[str]) -> None:
        self.path, self.key = path, tuple(key)
        self.columns = (*key, *values, *PROVENANCE)
        self.rows = self._read()

    def __contains__(self, setting: Mapping[str, object]) -> bool:
        """Say whether the table has a row with the key of this setting."""
        wanted = self._key(setting)
        return any(self._key(row) == wanted for row in self.rows)

    def pending(
        self, settings: Iterable[Mapping[str, object]], max_minutes: float | None = None, *, together: bool = False
    ) -> Iterator[dict[str, object]]:
        """Yield the settings that the table lacks, saying on stderr where we are, until the minutes are spent.

        The budget is looked at between rows: no row is cut short. What another process has made, or is at, is left out;
        ``together`` is as for ``claimed``.
        """
        start = time.monotonic()
        distinct = {self._key(setting): dict(setting) for setting in settings}
        lacking = [setting for setting in distinct.values() if setting not in self]
        if lacking:
            self.prepare()
        for n, setting in enumerate(lacking, 1):
            spent = (time.monotonic() - start) / 60
            if max_minutes is not None and spent >= max_minutes:
                _say(
                    f"stopped after {spent:.1f} min: {len(lacking) - n + 1} rows to go, run the command again for them"
                )
                return
            with self.claimed(setting, together=together) as mine:
                if mine:
                    label = " ".join(f"{name}={setting[name]}" for name in self.key if setting.get(name, "") != "")
                    _say(f"[{n}/{len(lacking)}, {spent:.1f} min] {label}")
                    yield setting

    def prepare(self) -> None:
        """Make the CSV's folder and see that it can be written to, before hours are spent on a row."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path.parent).close()
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}: {self.path.parent}") from None

    @contextlib.contextmanager
    def claimed(self, setting: Mapping[str, object], *, wait: bool = False, together: bool = False) -> Iterator[bool]:
        """Yield whether a row lacks and is this process's to make: until this ends, it is no other's.

        The CSV is read anew first. Where another process is at the row, it is not ours, or with ``wait``, we wait for
        that one to end. Processes that make a row ``together``, those of one distributed run, claim nothing and read
        nothing anew, so that all of them go on with the same row.
        """
        if together or any(int(os.environ.get(name, "1")) > 1 for name in ("WORLD_SIZE", "SLURM_NTASKS")):
            yield setting not in self
            return
        with _claim(self.path, "\n".join(self._key(setting)), wait) as mine:
            if mine:
                with locked(self.path):
                    self.rows = self._read()
            yield mine and setting not in self

    def add(self, setting: Mapping[str, object], values: Mapping[str, object], seconds: float) -> None:
        """Add a row, in place of one with its key, to what the CSV holds by now."""
        stamp = {"seconds": f"{seconds:.2f}", "hardware": hardware(), **versions(), "date": today()}
        row = {name: text(value) for name, value in {**setting, **values, **stamp}.items()}
        unknown = set(row) - set(self.columns)
        if unknown:
            raise ValueError(f"{sorted(unknown)} are not columns of {self.path}: {', '.join(self.columns)}")
        self.rows.append({name: row.get(name, "") for name in self.columns})
        with locked(self.path):
            others = [other for other in self._read() if self._key(other) != self._key(row)]
            write_table(self.path, [*others, self.rows[-1]], self.columns)

    def _read(self) -> list[dict[str, str]]:
        rows = read_table(self.path)
        found = {name for row in rows for name in row}
        for names, fault in ((set(self.key) - found, "lacks"), (found - set(self.columns), "has unknown")):
            if rows and names:
                raise ValueError(
                    f"{self.path} is a table of something else, or of another version: it {fault} columns: "
                    f"{', '.join(sorted(map(repr, names)))}"
                )
        return [{name: row.get(name, "") for name in self.columns} for row in rows]  # of values, all may be lacking

    def _key(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(text(row.get(name, "")) for name in self.key)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time read a file and write it anew; where the system knows no such lock, let all.

    The lock is on an empty file beside it, and ends with the process that holds it, however that ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _claim(path: Path, name: str, wait: bool) -> Iterator[bool]:
    """Yield whether a name is ours: one byte, by the name's checksum, is locked in a file beside ``path``.

    A process must not claim two names at a time: it would lose the first with the second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = True
    with path.with_name(f".{path.name}.claims.lock").open("w") as file:
        if fcntl is not None:
            how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
            try:
                fcntl.lockf(file, how, 1, zlib.crc32(name.encode()))
            except (BlockingIOError, PermissionError):
                mine = False
            except OSError:  # a file system without locks
                pass
        yield mine


def text(value: object) -> str:
    """Return a value as the CSV holds it: numbers so that they read back the same."""
    if isinstance(value, float):
        return f"{value:.9g}"
    return "" if value is None else str(value)


def hardware() -> str:
    """Return the name of the GPU, or of the CPU's kind and how many threads torch uses."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"


def today() -> str:
    """Return the date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, its first column to the left and the others to the right.

    >>> print(markdown_table(["k", "MSE"], [["5", "1.6e-3"]]), end="")
    | k | MSE |
    |:--|--:|
    | 5 | 1.6e-3 |
    """
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| :-- |", "|:--|").replace(" --: |", "--:|")


def write_markdown(path: Path, *parts: str) -> None:
    """Write paragraphs and tables, a blank line between any two."""
    with writing(path) as temporary:
        temporary.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")


def scientific(value: str, digits: int = 2) -> str:
    """Return a number as the paper prints it.

    >>> scientific("0.0016")
    '1.60e-3'
    """
    mantissa, exponent = f"{float(value):.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def beside(ours: str, paper: str) -> str:
    """Return our number with the paper's behind it, in brackets.

    >>> beside("1.60e-3", "1.59e-3"), beside("1.60e-3", "")
    ('1.60e-3 (1.59e-3)', '1.60e-3')
    """
    return f"{ours} ({paper})" if ours and paper else ours


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
