"""Training: losses fall, an interrupted run ends where an unbroken one does, rows are never computed twice."""

import contextlib
import dataclasses
import os
import signal

import pytest
import torch

from metricconv_experiments.classification import module, networks, runs
from metricconv_experiments.classification.grids import single
from metricconv_experiments.classification.setting import Setting
from metricconv_experiments.training import CHECKPOINT, count_parameters, history

pytestmark = pytest.mark.slow
TINY = {"dataset": "cifar10", "network": "tiny", "batch": 16, "lr": 0.05, "augmentation": "none"}
CPU = {"accelerator": "cpu", "progress": False}


def runner(root, work, **options):
    return runs.Runner(runs.RunOptions(work, root, trainer=CPU, **options))


def test_tiny_metric_network_learns_a_synthetic_set(data_root, tmp_path):
    setting = Setting(**TINY, epochs=6, holdout=16, multiplier=1.0)
    values = runner(data_root, tmp_path / "work", eval_every=3).train(setting)
    logged = history(tmp_path / "work" / setting.folder)
    losses = [row["train_loss"] for row in logged if "train_loss" in row]
    assert len(losses) == 6 and losses[-1] < 0.5 * losses[0]
    assert values["train_loss"] == pytest.approx(losses[-1])
    assert values["top1"] > 0.7 and values["top5"] == 1 and 0 <= values["held_top1"] <= 1
    assert values["epoch_seconds"] > 0 and values["peak_mb"] is None
    again, network = networks.load_trained(tmp_path / "work" / setting.folder / runs.NETWORK)
    assert again == setting and count_parameters(network) == values["parameters"]
    assert any(layer.predictor.weight.abs().max() > 0 for _, layer in networks.adaptive_layers(network))


class Interrupted(Exception):
    pass


def signal_that_ended(function):
    """Call a function in a forked process, and return the signal that ended the process."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("killed", [False, True], ids=["exception", "SIGKILL"])
def test_interrupted_run_equals_uninterrupted_one(data_root, tmp_path, monkeypatch, killed):
    setting = Setting(
        **(TINY | {"augmentation": "pad-crop"}), recipe="onecycle", epochs=3, warmup=1, l1=1.0, train_images=48
    )

    def weights(work, **options):
        values = runner(data_root, work, checkpoint_every=1, **options).train(setting)
        state = torch.load(work / setting.folder / runs.NETWORK, weights_only=True)["state"]
        return values, state

    unbroken, expected = weights(tmp_path / "a")
    step = module.Classifier.training_step

    def die(self, batch, index):
        if self.current_epoch == 1 and index == 1:
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Interrupted
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(module.Classifier, "training_step", die)
        if killed:
            assert signal_that_ended(lambda: weights(tmp_path / "b")) == signal.SIGKILL
        else:
            with pytest.raises(Interrupted):
                weights(tmp_path / "b")
    torch.rand(5)  # other random numbers drawn in between
    resumed, found = weights(tmp_path / "b")
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    measured = ("top1", "train_loss", "parameters")
    assert {k: resumed[k] for k in measured} == {k: unbroken[k] for k in measured}


def test_checkpoint_with_duration_is_kept_until_its_row_is_written(data_root, tmp_path, monkeypatch):
    setting = Setting(**TINY, epochs=1, method="standard", train_images=32)
    results, one = runs.table(tmp_path), runner(data_root, tmp_path / "work", checkpoint_every=1)
    checkpoint = tmp_path / "work" / setting.folder / CHECKPOINT

    def full(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(runs.Results, "add", full)
        runs.run_all(results, single([setting]), one)
    state = torch.load(checkpoint)
    assert 0 < state["callbacks"]["Stopwatch"]["seconds"] < 300
    state["callbacks"]["Stopwatch"]["seconds"] = 1000.0
    torch.save(state, checkpoint)
    assert runs.run_all(results, single([setting]), one) == 1
    assert not checkpoint.exists() and 1000 < float(results.rows[0]["seconds"]) < 1300


def test_repeated_command_adds_only_missing_rows(data_root, tmp_path, capsys):
    settings = [Setting(**TINY, epochs=1, method=m) for m in ("standard", "shifted")]
    results = runs.table(tmp_path)
    runs.run_all(results, single(settings[:1]), runner(data_root, tmp_path / "work"))
    runs.run_all(runs.table(tmp_path), [("twice", lambda _: 2 * settings)], runner(data_root, tmp_path / "work"))
    rows = runs.table(tmp_path).rows
    assert [Setting.from_row(row) for row in rows] == settings
    assert all(row["seconds"] and row["hardware"] and row["torch"] and row["date"] for row in rows)
    assert [row["backend"] != "" for row in rows] == [False, True]
    assert capsys.readouterr().err.count("top-1") == 2


def test_no_run_starts_that_would_not_end_in_time(data_root, tmp_path, capsys):
    settings = [Setting(**TINY, epochs=1, seed=seed) for seed in (0, 1)]
    results = runs.table(tmp_path)
    results.add(settings[0].key, {"top1": 0.5, "top5": 1.0}, seconds=90)
    runs.run_all(results, single(settings), runner(data_root, tmp_path / "work"), max_minutes=1)
    assert len(results.rows) == 1 and "the next run takes about 90 s" in capsys.readouterr().err


def test_expected_seconds_are_the_median_of_similar_rows(tmp_path):
    results = runs.table(tmp_path)
    for seed, seconds in enumerate((3, 100, 110)):
        results.add(Setting(**TINY, epochs=2, seed=seed).key, {"top1": 0.5, "top5": 1.0}, seconds)
    results.rows.append(results.rows[0] | {"seconds": ""})
    assert runs.expected_seconds(results, Setting(**TINY, epochs=1, seed=9)) == 50
    results.rows = results.rows[-1:]
    assert runs.expected_seconds(results, Setting(**TINY, epochs=1, seed=9)) is None


def test_l1_penalty_shrinks_predictions_and_warm_up_disables_them(data_root, tmp_path):
    def head_size(**changes):
        setting = Setting(**TINY, method="deformable", epochs=1, multiplier=1.0, train_images=48, **changes)
        runner(data_root, tmp_path / "work").train(setting)
        _, network = networks.load_trained(tmp_path / "work" / setting.folder / runs.NETWORK)
        return sum(float(layer.predictor.weight.detach().abs().sum()) for _, layer in networks.adaptive_layers(network))

    free = head_size()
    assert head_size(warmup=1) == 0 < free
    assert head_size(l1=0.3) < free


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_half_precision_trains_with_float32_weights(data_root, tmp_path):
    setting = Setting(**TINY, epochs=1, precision="bf16-mixed")
    with torch.backends.mkldnn.flags(enabled=False):  # whose bfloat16 convolutions not every CPU has
        values = runner(data_root, tmp_path / "work").train(setting)
    assert 0 <= values["top1"] <= 1
    state = torch.load(tmp_path / "work" / setting.folder / runs.NETWORK, weights_only=True)["state"]
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}


def test_equivalent_settings_have_the_same_key():
    assert Setting(method="standard", multiplier=0.3) == Setting(method="standard", l1=5.0)
    assert Setting(method="shifted", eps_omega=0.3) == Setting(method="shifted")
    assert Setting(method="metric-riemann") == Setting(method="metric-riemann", eps_omega=0.3)
    assert Setting(precision="32") == Setting(precision="32-true") != Setting(precision="bf16")
    assert Setting(precision="bf16") == Setting(precision="bf16-mixed")
    assert Setting(weights="fixed").metric_parameters == 6 and Setting().metric_parameters == 7
    assert Setting(recipe="paper").epochs == 240
    assert len({Setting(seed=n).folder for n in range(3)}) == 3
    assert dataclasses.replace(Setting(), seed=1).seed == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "quantum"}, r"`method` \(='quantum'\) must be one of"),
        ({"dataset": "imagenet"}, r"`dataset` \(='imagenet'\)"),
        ({"method": "standard", "weights": "fixed", "layers": "1"}, r"`layers` \(='1'\)"),
        ({"epochs": 0}, r"`epochs` \(=0\) must be at least 1"),
        ({"lr": float("nan")}, r"`lr` \(=nan\)"),
        ({"metric_parameters": 9}, r"`metric_parameters` \(=9\)"),
        ({"layers": "1"}, r"`layers` \(='1'\)"),
    ],
)
def test_invalid_settings_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        Setting(**changes)


def test_time_limit_does_not_wait_for_other_processes(data_root, tmp_path, monkeypatch, capsys):
    results = runs.table(tmp_path)
    monkeypatch.setattr(results, "claimed", lambda setting, **how: contextlib.nullcontext(how["wait"]))
    setting = Setting(**TINY, epochs=1)
    assert runs.run_all(results, single([setting]), runner(data_root, tmp_path / "work"), max_minutes=1) == 0
    assert "in progress in another process" in capsys.readouterr().err and not results.rows
