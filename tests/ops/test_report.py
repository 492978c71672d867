"""``backend_report``: every engine, whether it can run here, and what is to be done if not."""

import dataclasses

import pytest
import torch

import metricconv as mc
from metricconv.ops import cpu, functional


def test_every_engine_is_reported_in_order_of_preference() -> None:
    report = mc.backend_report()
    assert [engine.name for engine in report.engines] == list(functional.BACKENDS)
    assert report.engines[-1].available
    for engine in report.engines:
        assert f"{engine.name}: {'available' if engine.available else 'not available: '}" in str(report)
        assert engine.what in str(report)


def test_without_numba_it_says_what_to_install_and_what_that_would_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_INSTALLED", False)
    engine = next(engine for engine in mc.backend_report().engines if engine.name == "cpu")
    assert not engine.available
    assert engine.missing == "numba is not installed; pip install 'metricconv[cpu]'"
    assert "compiled by numba" in engine.what


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    triton = mc.backend_report().engines[0]
    assert triton.missing is not None and "CUDA" in triton.missing


def test_a_report_is_a_value() -> None:
    assert mc.backend_report() == mc.backend_report()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mc.backend_report().engines = ()
