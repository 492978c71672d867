"""Entry points of the experiments for all tests, also where the project is not installed."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.fixture(autouse=True)
def _entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    points = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, value, group)
        for group, entries in groups.items()
        for name, value in entries.items()
    )
    find = importlib.metadata.entry_points

    def entry_points(**selection: str) -> importlib.metadata.EntryPoints:
        return points.select(**selection) if selection.get("group") in groups else find(**selection)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
