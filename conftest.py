"""Shared by all tests: fixed seeds, one thread per worker, skips where something is not installed, poisoned memory."""

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from optional_packages import OPTIONAL

SEED = 20250
FIRST_TIER_SECONDS = 20  # longer tests are listed in the summary

os.environ.setdefault("MPLBACKEND", "Agg")  # figures are drawn in memory

MISSING = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
# The experiments are a project of their own, which has no optional packages.
collect_ignore = []
if MISSING & {"PIL", "lightning", "rich", "skimage", "torchmetrics", "torchvision", "typer"}:
    collect_ignore += ["experiments/src", "experiments/tests"]


def _declare_torchvision_schemas() -> torch.library.Library | None:
    """Make a CUDA build of torchvision importable beside a CPU build of torch.

    Such a torchvision cannot load its compiled operators, and its Python side then fails on the two schemas it
    expects them to define. Declaring these is enough for models, datasets and transforms; torchvision.ops stays
    unusable. Nothing is declared where torch is a CUDA build, whose torchvision has its own.
    """
    if torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# Before any test module imports torchvision; the name keeps the library, and so its schemas, alive.
_TORCHVISION_SCHEMAS = _declare_torchvision_schemas()


class _TorchRandom:
    """torch's global generator in the form that Hypothesis resets before each example."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_TORCH_RANDOM = _TorchRandom()  # Hypothesis holds only a weak reference
hypothesis.register_random(_TORCH_RANDOM)
hypothesis.settings.register_profile("metricconv", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("metricconv")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # an xdist worker: its siblings use the other cores
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch.cuda.is_available() is False")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_report_header() -> list[str]:
    ignored = "; the experiments are not collected" if collect_ignore else ""
    return [f"not installed: {', '.join(sorted(MISSING))}{ignored}"] if MISSING else []


def _skip_if_package_is_missing(report: pytest.CollectReport | pytest.TestReport, error: str, path: Path) -> None:
    # Python's message, or that of our own errors.
    found = re.search(r"No module named '(\w+)|(\w+) is not installed", error) if report.failed else None
    name = found and (found[1] or found[2])
    if name in MISSING:
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"needs {name}, which is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    imported = set(sys.modules)
    report = yield
    if report.failed:  # pytest leaves incomplete modules behind, which later imports would find
        files = {str(collector.path), *(str(folder / "__init__.py") for folder in collector.path.parents)}
        for name in sys.modules.keys() - imported:
            if getattr(sys.modules[name], "__file__", None) in files:
                del sys.modules[name]
    _skip_if_package_is_missing(report, str(report.longrepr), collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    error = "" if call.excinfo is None else call.excinfo.exconly()
    _skip_if_package_is_missing(report, error, item.path)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("passed", []):
        if report.duration > FIRST_TIER_SECONDS and not {"slow", "gpu", "timing"} & set(report.keywords):
            terminalreporter.line(f"{report.duration:.0f} s {report.nodeid}: long for the first tier, mark it `slow`")


@pytest.fixture(autouse=True)
def _figures_closed() -> Iterator[None]:
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(SEED)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill what Python code allocates uninitialized, so that an output left unwritten shows.

    Floating and complex tensors are filled with NaN, integers with their largest value. Allocations inside
    compiled code are out of reach.
    """

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(allocate)
        def wrapper(*args: object, **kwargs: object) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            with torch.no_grad():
                if tensor.is_floating_point() or tensor.is_complex():
                    tensor.fill_(float("nan"))
                elif tensor.dtype != torch.bool:
                    tensor.fill_(torch.iinfo(tensor.dtype).max)
            return tensor

        return wrapper

    with torch.device("cpu"):  # torch lists its factory functions on first use; list the original ones
        torch.empty(0)
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))
    yield
