"""Each command on a tiny dataset: from end to end, and interrupted and resumed."""

import re
import shutil
from importlib import resources
from pathlib import Path

import pytest
from skimage import io

from denoising.commands import call, dataset_command, heuristic_command, image_command, numbers
from metricconv._files import read_table
from metricconv_experiments.denoising import average, dataset, heuristic, image, tables
from metricconv_experiments.denoising.commands import read_config
from metricconv_experiments.results import Results

pytestmark = pytest.mark.slow
COMMITTED = Path(__file__).parents[3] / "results/denoising"


def test_heuristic_filters_write_a_table_a_page_and_a_figure(root, tmp_path):
    result = heuristic_command(root, tmp_path, "--padding-mode", "reflect")
    assert result.exit_code == 0, result.output
    rows = read_table(tmp_path / "heuristic.csv")
    names = [row["method"] for row in rows]
    assert names[0] == "noisy" and names.count("UTB, ε_ω = 0.5") == 2
    assert {"UGB, ε_ω = 0.1", "UGB of the edge metric, tuned", "non-local means", "total variation"} <= set(names)
    assert all(5 < float(row["psnr"]) < 60 and -1 < float(row["ssim"]) <= 1 for row in rows)
    assert all(row["image"] == "cameraman" and row["scikit-image"] and row["date"] for row in rows)
    (figure,) = tmp_path.glob("heuristic_*_0.1_42_reflect.png")
    assert io.imread(figure).std() > 10
    assert f"wrote heuristic.csv, heuristic.md, {figure.name} to {tmp_path}" in result.output
    assert "| **" in (tmp_path / "heuristic.md").read_text()


def test_heuristic_rows_are_added_and_not_run_twice(root, tmp_path, monkeypatch):
    three = [*heuristic.fixed_methods("zeros")[:1], *heuristic.paper_methods("zeros")][:3]
    monkeypatch.setattr(heuristic, "fixed_methods", lambda padding_mode: three)
    monkeypatch.setattr(heuristic, "paper_methods", lambda padding_mode: [])
    (tmp_path / "few.toml").write_text('[tuned."0.1"]\ngaussian = { sigma = 0.8 }')
    (tmp_path / "more.toml").write_text('[tuned."0.1"]\ngaussian = { sigma = 0.9 }')
    other = ("--image", root / "BSDS300/test/7.jpg")
    few, more = (("--config", tmp_path / f"{name}.toml") for name in ("few", "more"))
    counts = []
    for options in (few, few, (*few, "--sigma", 0.2), (*few, "--seed", 1), (*few, *other), more):
        result = heuristic_command(root, tmp_path, *options)
        assert result.exit_code == 0, result.output
        counts.append(len(read_table(tmp_path / "heuristic.csv")))
    assert counts == [5, 5, 10, 15, 20, 21]
    page = (tmp_path / "heuristic.md").read_text()
    assert page.count("## ") == 4 and page.count("sigma=0.9") == 1 and page.count("sigma=0.8") == 3


def test_any_image_can_be_filtered(root, tmp_path):
    result = call(
        "denoise-heuristic",
        "--image",
        root / "BSDS300/test/7.jpg",
        "--output",
        tmp_path,
        "--work",
        tmp_path,
        "--sigma",
        0.25,
    )
    assert result.exit_code == 0, result.output
    rows = read_table(tmp_path / "heuristic.csv")
    assert (rows[0]["image"], rows[0]["sigma"], rows[0]["released_psnr"]) == ("7", "0.25", "")


def test_tuned_filters_are_compared_on_many_images(root, tmp_path):
    common = ("denoise-tuned", "--data-root", root, "--output", tmp_path, "--images", 2, "--sigma", 0.1)
    assert call(*common, "--padding-mode", "zeros").exit_code == 0
    first = numbers(tmp_path / "tuned.csv")
    result = call(*common)
    assert result.exit_code == 0, result.output
    rows = read_table(tmp_path / "tuned.csv")
    assert len(rows) == 2 * len(first) and [row for row in numbers(tmp_path / "tuned.csv") if row in first] == first
    base = next(row for row in rows if row["method"] == "UTB of the edge metric, tuned")
    assert (float(base["gain"]), float(base["better"])) == (0, 0)
    noisy = next(row for row in rows if row["method"] == "noisy")
    assert float(noisy["psnr"]) - float(base["psnr"]) == pytest.approx(float(noisy["gain"]))
    assert "| noisy |" in (tmp_path / "tuned.md").read_text()


def test_other_filter_parameters_are_other_rows(root, tmp_path):
    common = ("denoise-tuned", "--data-root", root, "--output", tmp_path, "--images", 1, "--sigma", 0.1)
    usual = resources.files("metricconv_experiments.denoising").joinpath("configs/heuristic.toml").read_text()
    counts = []
    for name, pattern, value in (
        ("gaussian", r"(gaussian = \{ sigma = )[\d.]+", "0.9"),
        ("base", r"(utb_edge = \{ iota = )[\d.]+", "0.1"),  # what all others are compared with
    ):
        changed, count = re.subn(pattern, rf"\g<1>{value}", usual)
        assert count and changed != usual
        (tmp_path / f"{name}.toml").write_text(changed)
    for config in ((), ("--config", tmp_path / "gaussian.toml"), ("--config", tmp_path / "base.toml")):
        assert call(*common, "--padding-mode", "zeros", *config).exit_code == 0
        counts.append(len(read_table(tmp_path / "tuned.csv")))
    assert counts == [9, 10, 19]
    (tmp_path / "without.toml").write_text('[tuned."0.1"]\ngaussian = { sigma = 0.8 }')
    result = call(*common, "--config", tmp_path / "without.toml")
    assert result.exit_code == 1 and "has no utb_edge" in str(result.exception)


def test_sampling_locations_are_learned_and_reported(root, tmp_path):
    result = image_command(root, tmp_path, "--method", "utb 0.1", "--method", "deformable")
    assert result.exit_code == 0, result.output
    rows = read_table(tmp_path / "image.csv")
    assert [(row["method"], row["eps_omega"], row["rate"]) for row in rows] == [
        (method, eps, rate) for rate in ("paper", "range") for method, eps in (("utb", "0.1"), ("deformable", ""))
    ]
    for row in rows:
        train, test = float(row["train_mse"]), float(row["test_mse"])
        assert float(row["gap"]) == pytest.approx(test / train - 1, rel=1e-5)
    curve = [row for row in read_table(tmp_path / "image_curves.csv") if row["method"] == "utb"]
    assert float(curve[0]["iteration"]) == 5
    assert "k = 3" in (tmp_path / "image.md").read_text()
    assert io.imread(tmp_path / "image_curves.png").std() > 1
    (sweep, *_) = (tmp_path / "work/image").glob("*range*/lr_range.png")
    assert sweep.exists()


def test_rows_differ_by_pixels_iterations_and_precision(root, tmp_path):
    for name in ("7", "8"):
        (tmp_path / name).mkdir()
        shutil.copy(root / f"BSDS300/test/{name}.jpg", tmp_path / name / "cameraman.jpg")
    selected = ("--method", "utb 0.1", "--rate", "paper", "--k", 5)
    seven, eight = (("--image", tmp_path / name / "cameraman.jpg") for name in ("7", "8"))
    for more in (seven, eight, (*seven, "--iterations", 9), (*seven, "--precision", "bf16-mixed")):
        result = image_command(root, tmp_path, *selected, *more)
        assert result.exit_code == 0, result.output
    rows = [row for row in read_table(tmp_path / "image.csv") if row["k"] == "5"]  # of which the paper has numbers
    assert [row["image"] for row in rows] == ["cameraman"] * 4
    assert len({(row["test_mse"], row["pixels"], row["iterations"], row["precision"]) for row in rows}) == 4
    assert {row["paper_mse"] + row["paper_gap"] for row in rows} == {""}  # the paper's is another image
    page = (tmp_path / "image.md").read_text()
    assert page.count("Test MSE:") == 4 and "n = 2" not in page
    assert len(list((tmp_path / "work/image").glob("*_5_*"))) == 4


def test_interrupted_image_table_is_completed_identically(root, tmp_path, monkeypatch):
    assert image_command(root, tmp_path / "a", "--rate", "paper").exit_code == 0

    with monkeypatch.context() as patch:
        step, seen = image.SampleLocations.training_step, []

        def die(self, *arguments):
            seen.append(1)
            if len(seen) == 10:  # in the second row
                raise KeyboardInterrupt
            return step(self, *arguments)

        patch.setattr(image.SampleLocations, "training_step", die)
        assert image_command(root, tmp_path / "b", "--rate", "paper").exit_code != 0
    assert len(read_table(tmp_path / "b/image.csv")) == 1
    assert "2 rows left" in image_command(root, tmp_path / "b", "--rate", "paper", "--max-minutes", 0).stderr
    assert image_command(root, tmp_path / "b", "--rate", "paper").exit_code == 0
    assert numbers(tmp_path / "a/image.csv") == numbers(tmp_path / "b/image.csv")
    assert numbers(tmp_path / "a/image_curves.csv") == numbers(tmp_path / "b/image_curves.csv")


def test_layers_are_trained_with_both_recipes(root, tmp_path):
    result = dataset_command(root, tmp_path)
    assert result.exit_code == 0, result.output
    rows = read_table(tmp_path / "dataset.csv")
    assert len([row for row in rows if row["recipe"] == "paper"]) == 6
    by_method = {row["method"]: row for row in rows if row["recipe"] == "ours"}
    assert {"standard", "deformable", "utb", "utb deep", "ugb deep", "two plain layers"} <= set(by_method)
    assert by_method["standard"]["parameters"] == "10" and by_method["utb"]["parameters"] == "60"
    assert all(float(row["test_mse"]) > 0 for row in rows)
    page = (tmp_path / "dataset.md").read_text()
    assert "utb deep" in page and "3 epochs" in page
    assert io.imread(tmp_path / "dataset.png").std() > 1


def test_another_size_or_precision_is_another_run(root, tmp_path):
    selected = ("--recipe", "paper", "--weights", "fixed", "--method", "utb 0.1")
    assert dataset_command(root, tmp_path / "a", *selected, "--size", 20).exit_code == 0
    for more in ((), ("--size", 20), ("--precision", "bf16-mixed")):
        result = dataset_command(root, tmp_path / "b", *selected, *more)
        assert result.exit_code == 0, result.output
    rows = numbers(tmp_path / "b/dataset.csv")
    assert len(rows) == 3 and numbers(tmp_path / "a/dataset.csv")[0] in rows
    assert {row["devices"] for row in rows} == {"1"}
    page = (tmp_path / "b/dataset.md").read_text()
    assert "Images of 20 × 20 pixels, precision 32-true, 1 device." in page and page.count("Test MSE") == 3


def test_committed_tables_are_complete():
    parameters = read_config("heuristic", None)["tuned"]
    todo = average.settings("bsds300", [0.1, 0.3, 0.5], ["zeros", "reflect"], 100, 42, parameters)
    assert not list(Results(COMMITTED / "tuned.csv", tables.TUNED_KEY, tables.TUNED_VALUES).pending(todo))
    shown = Results(COMMITTED / "heuristic.csv", tables.HEURISTIC_KEY, tables.HEURISTIC_VALUES).rows
    tuned = {method.name: method.parameters_text for method in heuristic.tuned_methods(parameters["0.1"], 0.1, "zeros")}
    assert tuned == {row["method"]: row["filter_parameters"] for row in shown if row["method"] in tuned}
    usual, same = read_config("image", None), {"precision": "32-true", "seed": 42}
    todo = image.settings(
        "cameraman",
        usual["methods"],
        usual["k"],
        usual["sigma"],
        ["paper"],
        iterations=usual["iterations"],
        pixels="f6e16531bfb1",
        **same,
    )
    assert not list(Results(COMMITTED / "image.csv", tables.IMAGE_KEY, tables.IMAGE_VALUES).pending(todo))
    usual = read_config("dataset", None)
    rest = {"size": 256, "devices": 1, "noise": usual["noise"], "rate": usual["rate"], **same}
    ours, paper = usual["ours"], usual["paper"]
    todo = [
        *dataset.our_settings("bsds300", ours["methods"], ours["k"], ours["sigma"], epochs=ours["epochs"], **rest),
        *dataset.paper_settings(
            "bsds300", paper["methods"], paper["weights"], [5, 11], paper["sigma"], epochs=paper["epochs"], **rest
        ),
    ]
    assert not list(Results(COMMITTED / "dataset.csv", tables.DATASET_KEY, tables.DATASET_VALUES).pending(todo))


def test_interrupted_dataset_table_is_completed_identically(root, tmp_path, monkeypatch):
    selected = ("--recipe", "paper", "--weights", "learnt", "--method", "utb 0.1", "--method", "deformable")
    assert dataset_command(root, tmp_path / "a", *selected).exit_code == 0

    with monkeypatch.context() as patch:
        step, seen = dataset.Denoiser.training_step, []

        def die(self, *arguments):
            seen.append(self.current_epoch)
            if len(seen) == 6:  # in the last epoch of the second row
                raise KeyboardInterrupt
            return step(self, *arguments)

        patch.setattr(dataset.Denoiser, "training_step", die)
        assert dataset_command(root, tmp_path / "b", *selected).exit_code != 0

    with monkeypatch.context() as patch:
        step, epochs = dataset.Denoiser.training_step, []

        def watch(self, *arguments):
            epochs.append(self.current_epoch)
            return step(self, *arguments)

        patch.setattr(dataset.Denoiser, "training_step", watch)
        assert dataset_command(root, tmp_path / "b", *selected).exit_code == 0
    assert epochs == [2]  # the first two were not run again
    assert numbers(tmp_path / "a/dataset.csv") == numbers(tmp_path / "b/dataset.csv")


def test_resumed_run_has_the_same_range_test(root, tmp_path, monkeypatch):
    selected = ("--recipe", "paper", "--weights", "fixed", "--method", "deformable", "--rate", "range")
    assert dataset_command(root, tmp_path / "a", *selected).exit_code == 0

    with monkeypatch.context() as patch:
        step = dataset.Denoiser.training_step

        def die(self, *arguments):
            if self.trainer.max_epochs == 3 and self.current_epoch == 2:  # in the training, not in the range test
                raise KeyboardInterrupt
            return step(self, *arguments)

        patch.setattr(dataset.Denoiser, "training_step", die)
        assert dataset_command(root, tmp_path / "b", *selected).exit_code != 0
    (checkpoint,) = (tmp_path / "b").rglob("last.ckpt")
    (first,) = (tmp_path / "b").rglob("lr_range.csv")
    before = first.read_text()
    assert dataset_command(root, tmp_path / "b", *selected).exit_code == 0 and checkpoint.exists()
    assert first.read_text() == before
    assert numbers(tmp_path / "a/dataset.csv") == numbers(tmp_path / "b/dataset.csv")


def test_longer_run_continues_a_shorter_one(root, tmp_path):
    selected = ("--recipe", "paper", "--weights", "fixed", "--method", "utb 0.9")
    assert dataset_command(root, tmp_path / "a", *selected, epochs=4).exit_code == 0
    for epochs in (2, 4):
        result = dataset_command(root, tmp_path / "b", *selected, epochs=epochs)
        assert result.exit_code == 0
    (earlier,) = (tmp_path / "b").rglob("*_2_32-true_*/last.ckpt")
    message = " ".join(result.stderr.split())
    assert (
        f"copied the checkpoint of the same run with fewer epochs, {earlier}" in message
        and "after 2 of 4 epochs" in message
    )
    assert numbers(tmp_path / "a/dataset.csv")[0] in numbers(tmp_path / "b/dataset.csv")


def test_resumed_run_prints_a_message(root, tmp_path):
    selected = ("--recipe", "paper", "--weights", "fixed", "--method", "utb 0.9")
    assert "resumed from" not in dataset_command(root, tmp_path, *selected).stderr
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    (tmp_path / "dataset.csv").unlink()  # the row is lost, what was trained is not
    assert f"resumed from {checkpoint}, after 3 of 3 epochs" in dataset_command(root, tmp_path, *selected).stderr


@pytest.mark.parametrize("command", [image_command, dataset_command])
def test_run_without_rows_writes_nothing(command, root, tmp_path):
    result = command(root, tmp_path, "--max-minutes", 0)
    assert result.exit_code == 0, result.output
    assert "no rows, nothing written" in result.output and "wrote" not in result.output
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".csv", ".md", ".png")]


def test_range_test_is_written(root, tmp_path):
    result = call(
        "lr-range", "--data-root", root, "--output", tmp_path, "--k", 3, "--steps", 20, "--accelerator", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert re.search(r"suggested learning rate: \d", result.output)
    assert len(read_table(tmp_path / "lr_range.csv")) > 3 and (tmp_path / "lr_range.png").exists()
