"""The table that a benchmark fills: whole after every row, and kept where only some rows are measured again."""

from collections.abc import Sequence
from pathlib import Path

from .._files import read_table, write_table

Row = dict[str, str]


class Rows(list[Row]):
    """The rows of a CSV.

    Args:
        path: of the CSV.
        columns: its columns.
        key: those that tell rows apart.
        only: what is measured; if that is not all, the rows that the CSV has already stay until they are replaced.
    """

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str], only: str) -> None:
        super().__init__(read_table(path) if only else [])
        self.path, self.columns, self.key, self.only, self.measured = path, columns, key, only, 0

    def add(self, row: Row) -> None:
        """Write a row, in the place of one with the same key."""
        keys = [self._key(known) for known in self]
        if self._key(row) in keys:
            self[keys.index(self._key(row))] = row
        else:
            self.append(row)
        self.measured += 1
        write_table(self.path, self, self.columns)

    def written(self) -> Path:
        """Return the path of the table, once something was measured."""
        if not self.measured:
            raise SystemExit(f"--only (={self.only!r}) is in the name of no shape and of no contender")
        return self.path

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(row.get(name, "") for name in self.key)
