"""``backend_report``: every backend, whether it can run here, and what is to be done if not."""

import dataclasses

import pytest
import torch

import metricconv as mc
from metricconv.ops import cpu, functional


def test_every_engine_is_reported_in_order_of_preference() -> None:
    report = mc.backend_report()
    assert [backend.name for backend in report.backends] == list(functional.BACKENDS)
    assert report.backends[-1].available
    for backend in report.backends:
        assert f"{backend.name}: {'available' if backend.available else 'not available: '}" in str(report)
        assert backend.what in str(report)


def test_without_numba_it_says_what_to_install_and_what_that_would_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_INSTALLED", False)
    backend = next(backend for backend in mc.backend_report().backends if backend.name == "cpu")
    assert not backend.available
    assert backend.missing == "numba is not installed; pip install 'metricconv[cpu]'"
    assert "compiled by numba" in backend.what


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    triton = mc.backend_report().backends[0]
    assert triton.missing is not None and "CUDA" in triton.missing


def test_a_report_is_a_value() -> None:
    assert mc.backend_report() == mc.backend_report()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mc.backend_report().backends = ()


def test_automatic_choice_is_logged_with_the_reasons(caplog):
    with caplog.at_level("DEBUG", logger="metricconv.ops.functional"):
        mc.support_conv(torch.randn(1, 1, 4, 4), mc.Grid(3), torch.randn(1, 1, 3, 3))
    (record,) = caplog.records
    assert "chosen: triton (" in record.getMessage() and "reference (available)" in record.getMessage()
