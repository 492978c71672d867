"""Compilation ahead of time."""

import pytest
import torch

import metricconv as mc
from metricconv.cli.app import run
from metricconv.ops import cpu, functional
from metricconv.ops import warmup as function


@pytest.fixture
def calls(monkeypatch):
    """Record the balls and channels of the convolutions instead of compiling."""
    found = []
    conv = functional.metric_conv

    def recorded(x, metric, weight, **options):
        found.append((options["ball"], x.shape[1], x.dtype))
        return conv(x, metric, weight, **options | {"backend": "reference"})

    monkeypatch.setitem(function.__globals__, "metric_conv", recorded)
    monkeypatch.setattr(cpu, "missing_dependency", lambda: None)
    return found


def test_warmup_runs_each_family_of_kernels_with_each_ball(calls):
    lines = []
    mc.warmup(report=lines.append)
    assert [call[:2] for call in calls] == [(ball, c) for ball in ("tangent", "geodesic") for c in (1, 16, 64)]
    assert len(lines) == 6 and lines[0].startswith("tangent balls, few channels: ")


def test_warmup_runs_under_no_grad_and_in_the_given_dtype(calls):
    with torch.no_grad():
        mc.warmup("tangent", dtype=torch.float64)
    assert {dtype for *_, dtype in calls} == {torch.float64}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ball": "round"}, "`ball`"), ({"dtype": torch.float16}, "`dtype`"), ({"report": 3}, "`report`")],
)
def test_warmup_names_unsuitable_arguments(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mc.warmup(**options)


def test_command_prints_progress_and_reports_missing_numba(calls, monkeypatch, capsys):
    assert run(["warmup", "--ball", "tangent"]) == 0
    assert "many channels" in capsys.readouterr().err
    monkeypatch.setattr(cpu, "missing_dependency", lambda: "numba is not installed")
    assert run(["warmup"]) == 1
    assert "numba is not installed" in capsys.readouterr().err
