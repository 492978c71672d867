"""The study of the derivative at lattice points: its runs, its tables, and the derivative it switches."""

import csv
import math

import pytest
import torch

from classification import tiny
from helpers import PADDING_MODES
from metricconv import _interpolation
from metricconv.cli.app import run
from metricconv.nn import DeformableConv2d, MetricConv2d, param_groups, record_supports
from metricconv.ops import support_conv
from metricconv.supports import Deformable
from metricconv_experiments.classification import datasets
from metricconv_experiments.lattice import pairs, runs
from metricconv_experiments.lattice.derivative import DERIVATIVES, lattice_derivative
from metricconv_experiments.lattice.network import build

TINY = ["--train-images", "32", "--test-images", "20", "--epochs", "2", "--batch", "16", "--width", "2"]
TINY += ["--backend", "reference", "--multiplier", "1"]


@pytest.fixture
def lattice(tmp_path, monkeypatch):
    """Return a function that runs the command on a small dataset, and the folder of its results."""
    monkeypatch.setattr(datasets, "SHAPES", {})
    tiny.write_dataset(tmp_path)
    output = tmp_path / "lattice"
    fixed = ["reproduce", "lattice", *TINY, "--data-root", str(tmp_path), "--output", str(output)]

    def call(*options: str) -> int:
        return run([*fixed, *options])

    return call, output


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def row(layer, derivative, seed, accuracy, multiplier="0.1"):
    """Return the part of a row that statistics use."""
    return {
        "layer": layer, "derivative": derivative, "multiplier": multiplier, "seed": seed, "test_accuracy": str(accuracy)
    }  # fmt: skip


@pytest.mark.slow
def test_run_writes_rows_for_both_derivatives_and_resumes(lattice, capsys):
    call, output = lattice
    assert call("--seed", "0") == 0
    first = read(output / "runs.csv")
    assert [(r["layer"], r["derivative"]) for r in first] == [
        ("standard", ""),
        ("metric", "one-sided"),
        ("metric", "central"),
        ("deformable", "one-sided"),
        ("deformable", "central"),
    ]
    assert all(r["metricconv"] and r["torch"] and r["hardware"] and 0 <= float(r["test_accuracy"]) <= 1 for r in first)
    assert "README.md" not in capsys.readouterr().out  # one seed is no sample
    assert call("--seed", "0", "--seed", "1") == 0
    second = read(output / "runs.csv")
    assert second[:5] == first and len(second) == 10
    assert "README.md" in capsys.readouterr().out
    points = read(output / "curves.csv")
    assert len({tuple(p[name] for name in (*runs.KEY, "step")) for p in points}) == len(points)
    (output / "README.md").unlink()
    assert run(["report", str(output.parent)]) == 0
    text = (output / "README.md").read_text(encoding="utf-8")
    assert "| metric × 1 |" in text and "| deformable × 1 |" in text and "nan" not in text
    assert (output / "lattice.png").stat().st_size > 10_000
    (output / "README.md").write_text("edited", encoding="utf-8")
    assert run(["report", str(output.parent)]) == 1
    assert f"{output / 'README.md'} would change: use --force" in capsys.readouterr().err
    assert run(["report", str(output.parent), "--force"]) == 0
    assert (output / "README.md").read_text(encoding="utf-8") == text
    assert run(["report", str(output.parent)]) == 0
    assert "no file changed" in capsys.readouterr().out


def test_runs_of_a_pair_start_from_the_same_weights_and_the_same_first_loss(lattice):
    call, output = lattice
    assert call("--seed", "3") == 0
    losses = {p["train_loss"] for p in read(output / "curves.csv") if p["step"] == "1"}
    assert max(map(float, losses)) == pytest.approx(min(map(float, losses)), rel=1e-5)


def test_results_of_another_recipe_are_not_compared(lattice, capsys):
    call, _ = lattice
    assert call("--layer", "metric", "--seed", "0") == 0
    assert call("--layer", "metric", "--seed", "0", "--lr", "0.2") == 1
    assert "mixes runs with `lr` 0.1, 0.2" in capsys.readouterr().err


def test_unknown_layers_are_named(lattice, capsys):
    call, output = lattice
    assert call("--layer", "shifted") == 1
    assert "`layer` (='shifted')" in capsys.readouterr().err and not output.exists()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("kind", [MetricConv2d, DeformableConv2d])
def test_one_sided_context_changes_the_gradient_at_zero_offsets_and_restores_the_table(kind, backend):
    if backend == "cpu":
        pytest.importorskip("numba")
    before = dict(_interpolation._LATTICE_TOLERANCE)
    torch.manual_seed(0)
    layer, x, direction = (
        kind(2, 3, 3, padding=1, backend=backend),
        torch.randn(1, 2, 6, 6),
        torch.randn(1, 3, 6, 6),
    )

    _, predictor = param_groups(layer, lr=1.0)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad((layer(x) * direction).sum(), predictor["params"])[0]

    central = gradient()
    with lattice_derivative("one-sided"):
        one_sided = gradient()
        assert set(_interpolation._LATTICE_TOLERANCE.values()) == {-1.0}
    assert before == _interpolation._LATTICE_TOLERANCE
    assert not torch.allclose(one_sided, central, rtol=0.01)
    with pytest.raises(RuntimeError, match="inside"), lattice_derivative("one-sided"):
        raise RuntimeError("inside")
    assert before == _interpolation._LATTICE_TOLERANCE
    torch.testing.assert_close(gradient(), central)
    with lattice_derivative("central"):
        torch.testing.assert_close(gradient(), central)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("padding_mode", PADDING_MODES)
def test_derivatives_are_the_same_off_the_lattice_at_borders_too(padding_mode, backend):
    if backend == "cpu":
        pytest.importorskip("numba")
    torch.manual_seed(0)
    x, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    offsets = (torch.rand(1, 1, 9, 2, 5, 5) * 0.8 + 0.1) * torch.randn(1, 1, 9, 2, 5, 5).sign()
    gradients = []
    for derivative in DERIVATIVES:
        displacement = offsets.clone().requires_grad_()
        with lattice_derivative(derivative):
            y = support_conv(
                x, Deformable(displacement, 3), weight, padding=1, padding_mode=padding_mode, backend=backend
            )
            gradients += torch.autograd.grad(y.square().sum(), displacement)
    assert torch.equal(*gradients)


def test_geodesic_gradients_are_the_same_off_the_lattice():
    pytest.importorskip("numba")
    torch.manual_seed(0)
    layer = MetricConv2d(2, 3, 3, padding=1, ball="geodesic", backend="cpu")
    _, predictor = param_groups(layer, lr=1.0)
    for parameter in predictor["params"]:
        torch.nn.init.normal_(parameter, std=0.1)
    x, gradients = torch.randn(1, 2, 6, 6), []
    for derivative in DERIVATIVES:
        with lattice_derivative(derivative):
            gradients.append(torch.autograd.grad(layer(x).square().sum(), predictor["params"])[0])
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.05 * float(gradients[1].abs().max()))


def test_unknown_derivatives_raise():
    with pytest.raises(ValueError, match="`derivative` \\(='left'\\)"), lattice_derivative("left"):
        pass


@pytest.mark.parametrize("layer", ["metric", "deformable"])
def test_every_sample_that_can_move_starts_on_the_lattice_and_leaves_it(layer):
    network, x = build(layer, 3, 4, 2, "reference"), torch.randn(2, 3, 8, 8)
    fractions = []
    for noise in (0.0, 0.1):
        _, predictors = param_groups(network, lr=1.0)
        for parameter in predictors["params"]:
            torch.nn.init.normal_(parameter, std=noise)
        with record_supports(network) as supports:
            network(x)
        fractions.append(runs.fraction_on_lattice(supports, 1e-5))
    assert fractions == [1.0, 0.0]


def test_paired_differences_by_hand():
    accuracies = {"0": (0.50, 0.51), "1": (0.52, 0.55), "2": (0.40, 0.42)}
    rows = [
        row("metric", derivative, seed, value)
        for seed, both in accuracies.items()
        for derivative, value in zip(("one-sided", "central"), both, strict=True)
    ]
    rows.append(row("metric", "central", "3", 0.9))  # without its other half
    rows.append(row("standard", "", "0", 0.9, ""))
    (difference,) = pairs.differences(rows, "test_accuracy", 100).values()
    assert difference.mean == pytest.approx(2) and difference.error == pytest.approx(1 / math.sqrt(3))
    assert difference.interval == pytest.approx((2 - 4.30 / math.sqrt(3), 2 + 4.30 / math.sqrt(3)))
    assert not difference.resolved
    assert pairs.overall(rows, "test_accuracy", 100).mean == pytest.approx(2)
