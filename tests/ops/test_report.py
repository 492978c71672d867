"""``backend_report`` and the log of selected backends."""

import dataclasses

import pytest
import torch

import metricconv as mc
from metricconv.ops import backends, cpu
from metricconv.ops.problem import Problem


def test_backends_are_reported_in_order_of_preference() -> None:
    report = mc.backend_report()
    assert [backend.name for backend in report.backends] == list(backends.BACKENDS)
    assert report.backends[-1].available
    for backend in report.backends:
        assert f"{backend.name}: {'available' if backend.available else 'not available: '}" in str(report)
        assert backend.description in str(report)


def test_report_without_numba_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_INSTALLED", False)
    backend = next(backend for backend in mc.backend_report().backends if backend.name == "cpu")
    assert not backend.available
    assert backend.missing == "numba is not installed (pip install 'metricconv[cpu]')"
    assert "compiled by numba" in backend.description


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_report_without_gpu_says_so() -> None:
    triton = mc.backend_report().backends[0]
    assert triton.missing is not None and "CUDA" in triton.missing


def test_reports_are_equal_and_frozen() -> None:
    assert mc.backend_report() == mc.backend_report()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mc.backend_report().backends = ()


def test_selection_is_logged_with_the_reasons_against_other_backends(caplog):
    with caplog.at_level("DEBUG", logger="metricconv.ops.backends"):
        mc.support_conv(torch.randn(1, 1, 4, 4), mc.Grid(3), torch.randn(1, 1, 3, 3))
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert "selected (triton: it requires a CUDA device" in record.getMessage()


def test_fallback_to_reference_is_logged_once_for_large_problems(caplog, monkeypatch):
    monkeypatch.setattr(cpu, "_INSTALLED", False)
    backends._log_fallback.cache_clear()
    with caplog.at_level("INFO", logger="metricconv.ops.backends"):
        for size in (8, 100, 100):
            x = torch.empty(1, 64, size, size, device="meta")
            options = (torch.empty(1, 64, 3, 3, device="meta"), None, (1, 1), (1, 1), 1, None, "zeros")
            backends.choose_backend(Problem(x, mc.Grid(3), *options))
    (record,) = caplog.records
    assert record.levelname == "INFO" and "slower backend 'reference'" in record.getMessage()


def test_backends_implement_the_protocol() -> None:
    for name, backend in backends.BACKENDS.items():
        assert backend.name == name and backend.description
        assert isinstance(backend.missing_dependency(), str | None)
        assert callable(backend.unsupported_reason) and callable(backend.run)
