"""The commands end to end on a tiny set: rows, tables, figures, estimates; mistakes in one line."""

import pytest
from torch import nn
from typer.testing import CliRunner

from experiments.classification import tiny
from metricconv._files import read_table
from metricconv.experiments.classification import diagnose, gradcam, report, runs
from metricconv.experiments.classification.commands import app
from metricconv.viz import plot_gradcam

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
    output = command("classify", *TINY, *methods, "--head-multiplier=1", "--head-multiplier=0.1")
    assert output.count("top-1") == 5  # a standard network has no heads
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


def test_a_command_says_what_it_wrote(command, tmp_path):
    out = tmp_path / "out"
    assert f"wrote nothing: {out} has no runs yet" in command("classify", *TINY, "--max-minutes=0")
    assert not (out / "runs.csv").exists()
    assert f"wrote runs.csv, classification.md to {out}" in command("classify", *TINY)
    assert f"wrote classification.md to {out}" in command("classify", *TINY)


def test_an_output_that_is_no_folder_is_refused_before_training(command, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.Runner, "train", lambda *_: pytest.fail("trained"))
    (tmp_path / "out").write_text("")
    assert "out/runs.csv cannot be written" in command("classify", *TINY, code=1)


def test_what_networks_look_at_is_drawn(command, tmp_path):
    command("classify", *TINY, "--method=standard", "--method=shifted")
    command("classify-gradcam", "--image=1", "--image=2", "--accelerator=cpu")
    assert (tmp_path / "out/gradcam.png").stat().st_size > 5_000


def test_a_compiled_network_learns_as_it_would_otherwise(command, tmp_path, monkeypatch):
    compiled, compiler = [], nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda net: compiled.append(net) or compiler(net, backend="eager"))
    losses = []
    for option in ((), ("--compile",)):
        command("classify", *TINY, *option)
        (row,) = read_table(tmp_path / "out/runs.csv")
        losses.append(float(row["train_loss"]))
        (tmp_path / "out/runs.csv").unlink()
    assert len(compiled) == 1 and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_networks_that_are_compared_share_seed_and_schedule(command, tmp_path):
    command("classify", *TINY, "--method=shifted", "--seed=0", "--seed=1", "--seed=2")
    command("classify", *TINY, "--method=deformable", "--seed=1", "--head-multiplier=1", "--head-multiplier=0.1")
    command("classify", *TINY, "--method=metric-randers", "--seed=1", "--lr=0.001")
    found = runs.trained_networks([], tmp_path / "out", tmp_path / "work")
    assert {(setting.method, setting.seed) for setting, _ in found.values()} == {("shifted", 1), ("deformable", 1)}


def test_networks_of_one_method_are_told_apart_and_each_has_its_own_dataset(command, data_root, tmp_path, monkeypatch):
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
    assert "must name networks of one dataset" in command("classify-gradcam", one, other, code=1)
    assert "must name different runs" in command("classify-gradcam", one, one, code=1)


def test_a_grid_is_estimated_before_it_is_run(command):
    output = command("classify", *TINY, "--estimate", "--seed=0", "--seed=1")
    assert "2 runs, about" in output and "metric-randers, learnt weights, heads × 0.1, 1 epoch, seed 1" in output


@pytest.mark.parametrize("grid", ["short", "paper", "ablation"])
def test_a_grid_runs_what_the_command_line_says(command, tmp_path, monkeypatch, grid):
    asked = []
    monkeypatch.setattr("metricconv.experiments.classification.runs.Runner.images", lambda *_: None)
    monkeypatch.setattr("metricconv.experiments.classification.runs.Runner.train", lambda _, setting: seen(setting))

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
        (("classify", "--grid=long"), "error: `grid` (='long') must be one of 'short', 'paper', 'ablation'"),
        (("classify", "--grid=short", "--method=shifted"), "error: `method` (=['shifted']) cannot be given: `grid`"),
        (("classify", "--grid=paper", "--head-multiplier=1"), "error: `head_multiplier` (=[1.0]) cannot be given"),
        (("classify", "--grid=short", "--weights=fixed"), "error: `weights` (='fixed') cannot be given"),
        (("classify", "--grid=ablation", "--layers=2-4"), "error: `layers` (='2-4') cannot be given"),
        (("classify", "--grid=ablation", "--dataset=mnist"), "error: `dataset` (='mnist') must be one of 'cifar100'"),
        (("classify", "--dataset=cifar10", "--network=vgg", "--batch=8"), "error: `network` (='vgg') must be one of"),
        (("classify", "--dataset=cifar10", "--batch=9999", "--network=tiny"), "error: `batch` (=9999) must be at most"),
        (("classify", *TINY, "--pretrained=none.pth"), "No such file or directory: 'none.pth'"),
        (("classify", *TINY, "--devices=2", "--max-minutes=1"), "error: `max_minutes` needs a single process"),
        (("classify", *TINY, "--precision=7-bit"), "error: "),
        (("classify-sweep", "--accelerator=cpu", "--graphs"), "error: `graphs` needs one GPU"),
        (("classify", *TINY, "--graphs"), "error: `graphs` needs one GPU, got `accelerator` (='cpu')"),
        (("classify-diagnose", "--accelerator=abacus"), "error: `accelerator` (='abacus') must be"),
        (("classify-diagnose",), "has no trained network"),
        (("classify-gradcam",), "has no trained network"),
    ],
)
def test_mistakes_are_said_in_one_line(command, arguments, message, monkeypatch, tmp_path):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    said = command(*arguments, code=1)
    assert message in said and "Traceback" not in said
