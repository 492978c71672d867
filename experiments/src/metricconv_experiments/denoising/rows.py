"""Grouping and labels of the rows of denoising tables."""

from collections.abc import Sequence

Row = dict[str, str]

LABELS = {"deformable": "deformable", "utb 0.9": "UTB, ε_ω = 0.9", "utb 0.1": "UTB, ε_ω = 0.1"}


def grouped(rows: Sequence[Row], *columns: str) -> list[tuple[tuple[str, ...], list[Row]]]:
    """Return pairs of values of some columns and the rows with these values, in the order of the rows."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return list(groups.items())


def distinct_values(rows: Sequence[Row], *columns: str) -> list[tuple[str, ...]]:
    """Return the distinct values of some columns, in the order of the rows."""
    return list(dict.fromkeys(tuple(row[name] for name in columns) for row in rows))


def method_name(row: Row) -> str:
    """Return the method and its ε_ω, if it has one, as on the command line."""
    return f"{row['method']} {row['eps_omega']}".strip()


def decibels(value: str) -> str:
    """Return a PSNR with two decimals."""
    return f"{float(value):.2f}"
