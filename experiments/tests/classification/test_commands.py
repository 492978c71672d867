"""The commands end to end on a tiny set: rows, tables, figures, estimates; mistakes in one line."""

import pytest
from torch import nn
from typer.testing import CliRunner

from classification import tiny
from metricconv._files import read_table
from metricconv.viz import plot_gradcam
from metricconv_experiments.classification import diagnose, gradcam, grids, report, runs
from metricconv_experiments.classification.commands import app

pytestmark = pytest.mark.slow
TINY = ("--dataset=cifar10", "--network=tiny", "--batch=16", "--epochs=1", "--train-images=32", "--accelerator=cpu")


@pytest.fixture
def command(data_root, tmp_path):
    def invoke(*arguments, code=0):
        folders = [f"--output={tmp_path / 'out'}", f"--work={tmp_path / 'work'}", f"--data-root={data_root}"]
        outcome = CliRunner().invoke(app, [*arguments, *folders])
        assert outcome.exit_code == code, outcome.output
        return outcome.output if not code else str(outcome.exception) + outcome.output

    return invoke


def test_runs_are_added_reported_diagnosed_and_not_repeated(command, tmp_path):
    methods = ("--method=standard", "--method=metric-randers", "--method=deformable")
    output = command("classify", *TINY, *methods, "--multiplier=1", "--multiplier=0.1")
    assert output.count("top-1") == 5  # a standard network has no multiplier
    assert "top-1" not in command("classify", *TINY, *methods)
    page = (tmp_path / "out/classification.md").read_text()
    assert "## Table 4: CIFAR-10, tiny, SGD (Nesterov), cosine, 1 epoch, batch 16," in page
    assert "classification.md" in report.write_all(tmp_path / "out")
    output = command("classify-diagnose", "--images=8", "--accelerator=cpu")
    assert "metric (Randers)" in output and "deformable" in output and "4.1.conv2" in output
    assert output.count("residual") == 1  # a metric network needs no fit
    drawn = (tmp_path / "out/diagnosis.png").read_bytes()
    assert diagnose.draw(tmp_path / "out") == ["diagnosis.png"] and len(drawn) > 10_000
    assert (tmp_path / "out/diagnosis.png").read_bytes() == drawn  # from the CSV alone


def test_fixed_kernels_are_compared_with_a_control(command, tmp_path, monkeypatch):
    monkeypatch.setattr(grids, "TINY_MULTIPLIERS", (0.1, 1.0))
    options = (*TINY, "--grid=fixed", "--holdout=16", "--seed=0", "--seed=1", "--seed=2")
    assert command("classify", *options, "--max-minutes=0").startswith(
        "stopped at cifar10, fixed weights, multipliers, 1 of 16"
    )
    assert command("classify", *options).count("top-1") == 4 * 2 * 2 + 5 * 2 * 2
    assert "top-1" not in command("classify", *options)
    rows = read_table(tmp_path / "out/runs.csv")
    assert {(row["method"], row["zero_gamma"], row["weights"]) for row in rows} == {
        (method, gamma, "fixed")
        for method in ("metric-randers", "deformable", "shifted", "standard")
        for gamma in ("False", "True")
    }
    parameters = {(row["method"], row["metric_parameters"]): int(row["parameters"]) for row in rows}
    # The predictors of the 8 replaced layers, 3 of them with 8 input channels, 5 with 16.
    assert parameters["shifted", ""] - parameters["standard", ""] == 2 * (9 * (3 * 8 + 5 * 16) + 8)
    page = (tmp_path / "out/classification.md").read_text()
    assert "## Fixed kernels: CIFAR-10, tiny" in page and "## Table 4" not in page
    table = page.split("## Fixed kernels")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith(("| no geometry", "| metric", "| shifted"))]
    assert [line.split(" | ")[0] for line in lines] == [
        "| no geometry", "| shifted", "| metric (Randers)", "| metric (Randers), 7 parameters"
    ]  # fmt: skip
    assert all(line.count("(2)") == (3 if "no geometry" in line else 5) for line in lines)  # without the first seed


def test_command_prints_written_files(command, tmp_path):
    out = tmp_path / "out"
    assert f"wrote nothing: no runs in {out}" in command("classify", *TINY, "--max-minutes=0")
    assert not (out / "runs.csv").exists()
    assert f"wrote runs.csv, classification.md to {out}" in command("classify", *TINY)
    assert f"wrote classification.md to {out}" in command("classify", *TINY)


def test_unusable_output_raises_before_training(command, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.Runner, "train", lambda *_: pytest.fail("trained"))
    (tmp_path / "out").write_text("")
    assert "out/runs.csv cannot be written" in command("classify", *TINY, code=1)


def test_gradcam_figure_is_written(command, tmp_path):
    command("classify", *TINY, "--method=standard", "--method=shifted")
    command("classify-gradcam", "--image=1", "--image=2", "--accelerator=cpu")
    assert (tmp_path / "out/gradcam.png").stat().st_size > 5_000


def test_compiled_network_trains_like_uncompiled_one(command, tmp_path, monkeypatch):
    compiled, compiler = [], nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda net: compiled.append(net) or compiler(net, backend="eager"))
    losses = []
    for option in ((), ("--compile",)):
        command("classify", *TINY, *option)
        (row,) = read_table(tmp_path / "out/runs.csv")
        losses.append(float(row["train_loss"]))
        (tmp_path / "out/runs.csv").unlink()
    assert len(compiled) == 1 and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_compared_networks_have_the_same_seed_and_schedule(command, tmp_path):
    command("classify", *TINY, "--method=shifted", "--seed=0", "--seed=1", "--seed=2")
    command("classify", *TINY, "--method=deformable", "--seed=1", "--multiplier=1", "--multiplier=0.1")
    command("classify", *TINY, "--method=metric-randers", "--seed=1", "--lr=0.001")
    found = runs.trained_networks([], tmp_path / "out", tmp_path / "work")
    assert {(setting.method, setting.seed) for setting, _ in found.values()} == {("shifted", 1), ("deformable", 1)}


def test_networks_of_one_method_have_different_names_and_datasets(command, data_root, tmp_path, monkeypatch):
    tiny.write_dataset(data_root, "cifar100")
    command("classify", *TINY, "--method=shifted", "--seed=0", "--seed=1")
    command("classify", *TINY, "--method=deformable", "--dataset=cifar100")
    one, two, other = (f"--network={path}" for path in sorted(tmp_path.glob("work/*/network.pt")))
    assert "cifar10-tiny-shifted" in one and "cifar10-tiny-shifted" in two and "cifar100-tiny-deformable" in other

    command("classify-diagnose", other, one, two, "--images=8", "--accelerator=cpu")
    rows = read_table(tmp_path / "out/diagnosis.csv")
    labels = {("deformable", "cifar100"), ("shifted, seed 0", "cifar10"), ("shifted, seed 1", "cifar10")}
    assert {(row["method"], row["dataset"]) for row in rows} == labels

    drawn = []

    def draw(images, networks, *more, **options):
        drawn.extend(networks)
        return plot_gradcam(images, networks, *more, **options)

    monkeypatch.setattr(gradcam, "plot_gradcam", draw)
    command("classify-gradcam", one, two, "--image=1", "--accelerator=cpu")
    assert drawn == ["shifted, seed 0", "shifted, seed 1"]
    assert "must name networks that were trained on the same dataset" in command("classify-gradcam", one, other, code=1)
    assert "must name different runs" in command("classify-gradcam", one, one, code=1)


def test_grid_is_estimated_without_running_it(command):
    output = command("classify", *TINY, "--estimate", "--seed=0", "--seed=1")
    assert "2 runs, about" in output and "metric-randers, learnt weights, multiplier 0.1, 1 epoch, seed 1" in output


@pytest.mark.parametrize("grid", ["short", "paper", "ablation", "fixed"])
def test_single_grid_runs_the_given_settings(command, tmp_path, monkeypatch, grid):
    asked = []
    monkeypatch.setattr("metricconv_experiments.classification.runs.Runner.images", lambda *_: None)
    monkeypatch.setattr("metricconv_experiments.classification.runs.Runner.train", lambda _, setting: seen(setting))

    def seen(setting):
        asked.append(setting)
        return {"top1": 0.5, "top5": 0.5, "epoch_seconds": None, "peak_mb": None}

    options = ("--seed=6", "--network=tiny", "--pretrained=a.pth", "--batch=7", "--accelerator=cpu")
    command("classify", f"--grid={grid}", *options)
    starts = {"scratch", "a"} if grid == "paper" else {"a"}
    assert {(s.seed, s.network, s.batch) for s in asked} == {(6, "tiny", 7)} and {s.start for s in asked} == starts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("classify", "--method=quantum"), "error: `method` (='quantum') must be one of"),
        (("classify", "--dataset=cifar100"), "error: no cifar100 in"),
        (("classify", "--grid=long"), "error: `grid` (='long') must be one of 'short', 'paper', 'ablation', 'fixed'"),
        (
            ("classify", "--grid=short", "--method=shifted"),
            "error: `method` (=['shifted']) cannot be combined with `grid`",
        ),
        (("classify", "--grid=paper", "--multiplier=1"), "error: `multiplier` (=[1.0]) cannot be combined with `grid`"),
        (("classify", "--grid=short", "--weights=fixed"), "error: `weights` (='fixed') cannot be combined with `grid`"),
        (("classify", "--grid=ablation", "--layers=2-4"), "error: `layers` (='2-4') cannot be combined with `grid`"),
        (("classify", "--grid=fixed", "--zero-gamma"), "error: `zero_gamma` (=True) cannot be combined with `grid`"),
        (("classify", "--grid=ablation", "--dataset=mnist"), "error: `dataset` (='mnist') must be one of 'cifar100'"),
        (("classify", "--dataset=cifar10", "--network=vgg", "--batch=8"), "error: `network` (='vgg') must be one of"),
        (("classify", "--dataset=cifar10", "--batch=9999", "--network=tiny"), "error: `batch` (=9999) must be at most"),
        (("classify", *TINY, "--pretrained=none.pth"), "No such file or directory: 'none.pth'"),
        (("classify", *TINY, "--devices=2", "--max-minutes=1"), "error: `max_minutes` requires a single process"),
        (("classify", *TINY, "--precision=7-bit"), "error: "),
        (("classify-sweep", "--accelerator=cpu", "--graphs"), "error: `graphs` requires one GPU"),
        (("classify", *TINY, "--graphs"), "error: `graphs` requires one GPU, got `accelerator` (='cpu')"),
        (("classify-diagnose", "--accelerator=abacus"), "error: `accelerator` (='abacus') must be"),
        (("classify-diagnose",), "contains no trained network"),
        (("classify-gradcam",), "contains no trained network"),
    ],
)
def test_invalid_arguments_end_in_one_line(command, arguments, message, monkeypatch, tmp_path):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    output = command(*arguments, code=1)
    assert message in output and "Traceback" not in output
