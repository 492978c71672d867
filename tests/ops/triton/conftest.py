"""Share out the interpreter's tests among processes, each of which test_interpreted.py tells its number."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "INTERPRETED_SHARD" in os.environ:
        shard, shards = map(int, os.environ["INTERPRETED_SHARD"].split("/"))
        items[:] = items[shard::shards]
