"""The first steps of training: what is recorded, how runs resume, and how the page selects accuracies."""

import pytest
import torch
from typer.testing import CliRunner

from classification import tiny
from metricconv._files import read_table
from metricconv.nn import MetricConv2d
from metricconv_experiments.classification import datasets, networks
from metricconv_experiments.classification.batches import DeviceDataset
from metricconv_experiments.stability import report, runs
from metricconv_experiments.stability.commands import app
from metricconv_experiments.stability.settings import KEY, VALUES, Recipe, settings

TINY = {"network": "tiny", "train_images": 48, "steps": 2, "batch": 16}


@pytest.fixture(autouse=True)
def tiny_data(tmp_path, monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", tiny.TinyResNet)
    monkeypatch.setattr(datasets, "SHAPES", {})
    tiny.write_dataset(tmp_path)


def test_recorded_motion_is_zero_without_learning_rate_and_grows_with_it(tmp_path):
    dataset = DeviceDataset(datasets.load("cifar10", tmp_path), torch.device("cpu"), train_images=48)
    moved = []
    for multiplier in (0.0, 0.1, 1.0):
        (setting,) = settings(Recipe(**TINY), ["deformable"], [multiplier], [1])
        curve = runs.train(setting, dataset)
        assert [point["step"] for point in curve] == [1, 2] and all(point["gradient"] > 0 for point in curve)
        moved.append(curve[0]["moved"])
    assert moved[0] == 0 and moved[2] == pytest.approx(10 * moved[1], rel=0.1)


def test_geodesic_balls_are_unlimited_only_within_the_context():
    layer = MetricConv2d(2, 2, 3, ball="geodesic")
    raw = torch.full((1, 1, 7, 4, 4), -6.0)
    limited = layer.make_support(raw).metric.bounding_radius
    with runs.without_largest_radius():
        unlimited = layer.make_support(raw).metric.bounding_radius
    assert (unlimited > 2 * limited).all()
    assert torch.equal(layer.make_support(raw).metric.bounding_radius, limited)


@pytest.mark.slow
def test_interrupted_study_resumes_to_the_same_rows_and_page(tmp_path, monkeypatch):
    recipe = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]

    def command(folder, code=0):
        selected = ("--support=tangent", "--support=geodesic, unlimited", "--multiplier=1")
        arguments = (*recipe, *selected, f"--data-root={tmp_path}", f"--output={tmp_path / folder}")
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code == code, outcome.output

    command("a")
    train = runs.train
    with monkeypatch.context() as patch:
        patch.setattr(runs, "train", lambda setting, _: 1 / 0 if setting["support"] != "tangent" else train(setting, _))
        command("b", code=1)
    assert len(read_table(tmp_path / "b/runs.csv")) == 1
    command("b")
    measured = (*KEY, *VALUES)
    first, second = (
        [[row[name] for name in measured] for row in read_table(tmp_path / folder / "runs.csv")] for folder in "ab"
    )
    assert first == second
    assert (tmp_path / "a/curves.csv").read_text() == (tmp_path / "b/curves.csv").read_text()
    page = (tmp_path / "b/README.md").read_text()
    assert "| tangent × 1 |" in page and "| geodesic, unlimited × 1 |" in page
    assert (tmp_path / "b/stability.png").stat().st_size > 10_000


def test_accuracies_are_those_of_plain_rows_of_the_small_network():
    plain = dict.fromkeys(("metric_parameters", "eps_omega", "stencil", "s_min", "s_max"), "")
    plain |= {"dataset": "cifar10", "network": networks.SMALL, "method": "shifted", "weights": "learnt"}
    plain |= {"start": "scratch", "init": "identity", "zero_gamma": "False", "metric_groups": "1"}
    plain |= {"l1": "0", "warmup": "0", "multiplier": "0.1", "top1": "0.4"}
    others = [plain | change for change in ({"init": "paper"}, {"network": "resnet18"}, {"weights": "fixed"})]
    assert report.accuracies([plain, *others]) == {("shifted", 0.1): [40.0]}
