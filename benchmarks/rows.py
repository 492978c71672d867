"""The CSV of a benchmark, written after every row. Rows that are not measured again are not changed."""

from collections.abc import Sequence
from pathlib import Path

from metricconv._files import read_table, write_table

Row = dict[str, str]


class Rows(list[Row]):
    """The rows of a CSV.

    Args:
        path: path of the CSV.
        columns: its columns.
        key: columns that identify a row.
        only: value of ``--only``. If empty, existing rows are discarded; otherwise they stay until they are replaced.
    """

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str], only: str) -> None:
        super().__init__(read_table(path) if only else [])
        self.path, self.columns, self.key, self.only, self.measured = path, columns, key, only, 0

    def add(self, row: Row) -> None:
        """Add a row, or replace the row with the same key, and write the CSV."""
        keys = [self._key(known) for known in self]
        if self._key(row) in keys:
            self[keys.index(self._key(row))] = row
        else:
            self.append(row)
        self.measured += 1
        write_table(self.path, self, self.columns)

    def written(self) -> Path:
        """Return the path of the CSV; exit if nothing was measured."""
        if not self.measured:
            raise SystemExit(f"--only (={self.only!r}): no shape or implementation has a name that contains it")
        return self.path

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(row.get(name, "") for name in self.key)
