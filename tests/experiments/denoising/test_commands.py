"""Each command on a tiny subset: from end to end, killed and resumed, and told nonsense."""

import math
import re
import shutil
import statistics
from importlib import resources
from pathlib import Path

import pytest
from skimage import io
from typer.testing import CliRunner

from metricconv._files import read_table, write_table
from metricconv.experiments import report
from metricconv.experiments.denoising import average, dataset, heuristic, image, tables
from metricconv.experiments.denoising import report as pages
from metricconv.experiments.denoising.commands import app, read_config
from metricconv.experiments.denoising.report import write_dataset
from metricconv.experiments.results import Results

MOMENT = ("seconds", "ms_per_image", "date")
COMMITTED = Path(__file__).parents[3] / "results/denoising"


@pytest.fixture(autouse=True)
def no_other_roots(tmp_path, monkeypatch):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def numbers(path):
    """Return the rows of a table without what depends on the moment, in an order that does not."""
    rows = [{name: value for name, value in row.items() if name not in MOMENT} for row in read_table(path)]
    return sorted(rows, key=str)


def image_command(root, folder, *more):
    common = ("--data-root", root, "--output", folder, "--work", folder / "work", "--accelerator", "cpu")
    return call("denoise-image", *common, "--k", 3, "--sigma", 0.1, "--iterations", 7, *more)


def heuristic_command(root, folder, *more):
    return call("denoise-heuristic", "--data-root", root, "--output", folder, "--work", folder / "work", *more)


def dataset_command(root, folder, *more, epochs=3):
    common = ("--data-root", root, "--output", folder, "--work", folder / "work", "--accelerator", "cpu", "--size", 16)
    return call("denoise-dataset", *common, "--k", 3, "--sigma", 0.1, "--epochs", epochs, *more)


def test_the_heuristic_filters_leave_a_table_a_page_and_a_figure(root, tmp_path):
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


def test_heuristic_rows_are_added_and_never_run_twice(root, tmp_path, monkeypatch):
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


def test_figures_of_filters_show_the_pictures_of_their_own_numbers(root, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(pages, "_show", lambda axes, path, label, **more: shown.append((io.imread(path), label)))
    config = tmp_path / "none.toml"
    config.write_text("tuned = {}")
    for sigma in (0.05, 0.4):
        assert heuristic_command(root, tmp_path, "--config", config, "--sigma", sigma).exit_code == 0
    shown.clear()
    names = pages.write_heuristic(tmp_path, tmp_path / "work/heuristic")
    assert len(names) == 3 and all((tmp_path / name).exists() for name in names)
    clean = io.imread(root / "cameraman256.png") / 255.0
    noisy = [(picture, label) for picture, label in shown if label.startswith("noisy")]
    assert len(noisy) == 2
    for picture, label in noisy:
        error = ((picture / 255 - clean) ** 2).mean()  # of a picture that was clamped: somewhat better than its number
        assert float(label.split()[1]) == pytest.approx(-10 * math.log10(error), abs=4)
    (folder, *_) = (tmp_path / "work/heuristic").glob("*_0.4_*")
    shutil.rmtree(folder)
    assert len(pages.write_heuristic(tmp_path, tmp_path / "work/heuristic")) == 2


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


def test_tuned_filters_are_compared_on_many_pictures(root, tmp_path):
    common = ("denoise-tuned", "--data-root", root, "--output", tmp_path, "--pictures", 2, "--sigma", 0.1)
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


def test_other_knobs_are_other_rows(root, tmp_path):
    common = ("denoise-tuned", "--data-root", root, "--output", tmp_path, "--pictures", 1, "--sigma", 0.1)
    usual = resources.files("metricconv.experiments.denoising").joinpath("configs/heuristic.toml").read_text()
    counts = []
    for name, old, new in (
        ("gaussian", "gaussian = { sigma = 0.8 }", "gaussian = { sigma = 0.9 }"),
        ("base", "utb_edge = { iota = 0.12", "utb_edge = { iota = 0.1"),  # what all others are compared with
    ):
        assert old in usual
        (tmp_path / f"{name}.toml").write_text(usual.replace(old, new))
    for config in ((), ("--config", tmp_path / "gaussian.toml"), ("--config", tmp_path / "base.toml")):
        assert call(*common, "--padding-mode", "zeros", *config).exit_code == 0
        counts.append(len(read_table(tmp_path / "tuned.csv")))
    assert counts == [8, 9, 17]
    (tmp_path / "without.toml").write_text('[tuned."0.1"]\ngaussian = { sigma = 0.8 }')
    result = call(*common, "--config", tmp_path / "without.toml")
    assert result.exit_code == 1 and "has no utb_edge" in str(result.exception)


def test_sample_locations_are_learnt_and_shown(root, tmp_path):
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


def test_pictures_of_one_name_and_other_iterations_and_precisions_are_told_apart(root, tmp_path):
    for name in ("7", "8"):
        (tmp_path / name).mkdir()
        shutil.copy(root / f"BSDS300/test/{name}.jpg", tmp_path / name / "cameraman.jpg")
    chosen = ("--method", "utb 0.1", "--rate", "paper", "--k", 5)
    seven, eight = (("--image", tmp_path / name / "cameraman.jpg") for name in ("7", "8"))
    for more in (seven, eight, (*seven, "--iterations", 9), (*seven, "--precision", "bf16-mixed")):
        result = image_command(root, tmp_path, *chosen, *more)
        assert result.exit_code == 0, result.output
    rows = [row for row in read_table(tmp_path / "image.csv") if row["k"] == "5"]  # of which the paper has numbers
    assert [row["image"] for row in rows] == ["cameraman"] * 4
    assert len({(row["test_mse"], row["pixels"], row["iterations"], row["precision"]) for row in rows}) == 4
    assert {row["paper_mse"] + row["paper_gap"] for row in rows} == {""}  # the paper's is another picture
    page = (tmp_path / "image.md").read_text()
    assert page.count("Test MSE:") == 4 and "n = 2" not in page
    assert len(list((tmp_path / "work/image").glob("*_5_*"))) == 4


def test_an_image_table_that_was_cut_short_is_completed_to_the_same(root, tmp_path, monkeypatch):
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
    assert "2 rows to go" in image_command(root, tmp_path / "b", "--rate", "paper", "--max-minutes", 0).stderr
    assert image_command(root, tmp_path / "b", "--rate", "paper").exit_code == 0
    assert numbers(tmp_path / "a/image.csv") == numbers(tmp_path / "b/image.csv")
    assert numbers(tmp_path / "a/image_curves.csv") == numbers(tmp_path / "b/image_curves.csv")


def test_one_layer_is_learnt_by_either_recipe(root, tmp_path):
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
    chosen = ("--recipe", "paper", "--weights", "fixed", "--method", "utb 0.1")
    assert dataset_command(root, tmp_path / "a", *chosen, "--size", 20).exit_code == 0
    for more in ((), ("--size", 20), ("--precision", "bf16-mixed")):
        result = dataset_command(root, tmp_path / "b", *chosen, *more)
        assert result.exit_code == 0, result.output
    rows = numbers(tmp_path / "b/dataset.csv")
    assert len(rows) == 3 and numbers(tmp_path / "a/dataset.csv")[0] in rows
    assert {row["devices"] for row in rows} == {"1"}
    page = (tmp_path / "b/dataset.md").read_text()
    assert "Pictures of 20 × 20 pixels, precision 32-true, 1 device." in page and page.count("Test MSE") == 3


def test_the_page_of_a_dataset_has_means_over_seeds(root, tmp_path):
    chosen = ("--recipe", "paper", "--weights", "learnt", "--method", "deformable")
    for seed in (1, 2, 3):
        assert dataset_command(root, tmp_path, *chosen, "--seed", seed, epochs=1).exit_code == 0
    values = [float(row["test_psnr"]) for row in read_table(tmp_path / "dataset.csv")]
    cell = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}, n = 3"
    assert f"| σ = 0.1, deformable, weights learnt | {cell} |" in (tmp_path / "dataset.md").read_text()


def test_a_run_that_diverged_is_called_so(root, tmp_path):
    chosen = ("--recipe", "paper", "--weights", "learnt", "--method", "deformable")
    for seed in (1, 2):
        assert dataset_command(root, tmp_path, *chosen, "--seed", seed, epochs=1).exit_code == 0
    rows = read_table(tmp_path / "dataset.csv")
    for name in ("train_mse", "test_mse", "test_psnr", "gap"):
        rows[0][name] = "nan"
    write_table(tmp_path / "dataset.csv", rows)
    write_dataset(tmp_path)
    cell = f"{float(rows[1]['test_psnr']):.2f}, 1 diverged"
    assert f"| σ = 0.1, deformable, weights learnt | {cell} |" in (tmp_path / "dataset.md").read_text()
    write_table(tmp_path / "dataset.csv", rows[:1])
    write_dataset(tmp_path)
    assert "| σ = 0.1, deformable, weights learnt | diverged |" in (tmp_path / "dataset.md").read_text()


def test_the_committed_rows_are_done():
    knobs = read_config("heuristic", None)["tuned"]
    todo = average.settings("bsds300", [0.1, 0.3, 0.5], ["zeros", "reflect"], 100, 42, knobs)
    assert not list(Results(COMMITTED / "tuned.csv", tables.TUNED_KEY, tables.TUNED_VALUES).pending(todo))
    shown = Results(COMMITTED / "heuristic.csv", tables.HEURISTIC_KEY, tables.HEURISTIC_VALUES).rows
    tuned = {method.name: method.setting for method in heuristic.tuned_methods(knobs["0.1"], 0.1, "zeros")}
    assert tuned == {row["method"]: row["knobs"] for row in shown if row["method"] in tuned}
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


def test_a_dataset_table_that_was_cut_short_is_completed_to_the_same(root, tmp_path, monkeypatch):
    chosen = ("--recipe", "paper", "--weights", "learnt", "--method", "utb 0.1", "--method", "deformable")
    assert dataset_command(root, tmp_path / "a", *chosen).exit_code == 0

    with monkeypatch.context() as patch:
        step, seen = dataset.Denoiser.training_step, []

        def die(self, *arguments):
            seen.append(self.current_epoch)
            if len(seen) == 6:  # in the last epoch of the second row
                raise KeyboardInterrupt
            return step(self, *arguments)

        patch.setattr(dataset.Denoiser, "training_step", die)
        assert dataset_command(root, tmp_path / "b", *chosen).exit_code != 0

    with monkeypatch.context() as patch:
        step, epochs = dataset.Denoiser.training_step, []

        def watch(self, *arguments):
            epochs.append(self.current_epoch)
            return step(self, *arguments)

        patch.setattr(dataset.Denoiser, "training_step", watch)
        assert dataset_command(root, tmp_path / "b", *chosen).exit_code == 0
    assert epochs == [2]  # the first two were not run again
    assert numbers(tmp_path / "a/dataset.csv") == numbers(tmp_path / "b/dataset.csv")


def test_a_run_that_was_cut_short_has_the_rate_of_its_range_test_again(root, tmp_path, monkeypatch):
    chosen = ("--recipe", "paper", "--weights", "fixed", "--method", "deformable", "--rate", "range")
    assert dataset_command(root, tmp_path / "a", *chosen).exit_code == 0

    with monkeypatch.context() as patch:
        step = dataset.Denoiser.training_step

        def die(self, *arguments):
            if self.trainer.max_epochs == 3 and self.current_epoch == 2:  # in the training, not in the range test
                raise KeyboardInterrupt
            return step(self, *arguments)

        patch.setattr(dataset.Denoiser, "training_step", die)
        assert dataset_command(root, tmp_path / "b", *chosen).exit_code != 0
    (checkpoint,) = (tmp_path / "b").rglob("last.ckpt")
    (first,) = (tmp_path / "b").rglob("lr_range.csv")
    before = first.read_text()
    assert dataset_command(root, tmp_path / "b", *chosen).exit_code == 0 and checkpoint.exists()
    assert first.read_text() == before
    assert numbers(tmp_path / "a/dataset.csv") == numbers(tmp_path / "b/dataset.csv")


def test_more_epochs_go_on_where_fewer_ended(root, tmp_path):
    chosen = ("--recipe", "paper", "--weights", "fixed", "--method", "utb 0.9")
    assert dataset_command(root, tmp_path / "a", *chosen, epochs=4).exit_code == 0
    for epochs in (2, 4):
        result = dataset_command(root, tmp_path / "b", *chosen, epochs=epochs)
        assert result.exit_code == 0
    (earlier,) = (tmp_path / "b").rglob("*_2_32-true_*/last.ckpt")
    said = " ".join(result.stderr.split())
    assert f"took the checkpoint of the same run with fewer epochs, {earlier}" in said and "after 2 of 4 epochs" in said
    assert numbers(tmp_path / "a/dataset.csv")[0] in numbers(tmp_path / "b/dataset.csv")


def test_a_run_that_is_taken_up_again_says_so(root, tmp_path):
    chosen = ("--recipe", "paper", "--weights", "fixed", "--method", "utb 0.9")
    assert "goes on from" not in dataset_command(root, tmp_path, *chosen).stderr
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    (tmp_path / "dataset.csv").unlink()  # the row is lost, what was trained is not
    assert f"goes on from {checkpoint}, after 3 of 3 epochs" in dataset_command(root, tmp_path, *chosen).stderr


@pytest.mark.parametrize("command", [image_command, dataset_command])
def test_a_run_without_rows_writes_nothing_and_says_so(command, root, tmp_path):
    result = command(root, tmp_path, "--max-minutes", 0)
    assert result.exit_code == 0, result.output
    assert "no rows yet, so nothing was written" in result.output and "wrote" not in result.output
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".csv", ".md", ".png")]


def test_tables_of_a_header_alone_are_left_out(tmp_path):
    for name in ("heuristic", "tuned", "image", "image_curves", "dataset"):
        (tmp_path / f"{name}.csv").write_text("image,dataset,sigma\n")
    assert pages.write_all(tmp_path, tmp_path) == []


@pytest.mark.parametrize("name", ["heuristic", "tuned", "image", "image_curves", "dataset"])
def test_a_blank_number_is_refused_with_its_file_and_line(name, tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "denoising")
    path = tmp_path / "denoising" / f"{name}.csv"
    rows = read_table(path)
    column = "psnr" if name in ("heuristic", "tuned") else "test_mse"
    for value, said in (("", "''"), ("good", "'good'")):
        rows[3][column] = value
        write_table(path, rows)
        result = CliRunner().invoke(report.app, [str(tmp_path), "--work", str(tmp_path / "nowhere")])
        assert result.exit_code == 1
        assert f"{path}, line 5: `{column}` (={said}) is not a number" in result.output


def test_the_files_that_a_report_names_are_there(tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "denoising")
    for path in (*(tmp_path / "denoising").glob("*.md"), *(tmp_path / "denoising").glob("*.png")):
        path.unlink()
    names = pages.write_all(tmp_path / "denoising", tmp_path / "nowhere")
    assert {"heuristic.md", "tuned.md", "image.md", "image_curves.png", "dataset.md", "dataset.png"} == set(names)
    assert all((tmp_path / "denoising" / name).exists() for name in names)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("image", 'k = "5"', "`k` (='5') must be a list"),
        ("image", 'k = ["5"]', "`k` (='5') must be a whole number"),
        ("image", "iterations = 1.5", "`iterations` (=1.5) must be a whole number"),
        ("image", "seed = true", "`seed` (=True) must be a whole number"),
        ("image", "methods = [3]", "`methods` (=3) must be a string"),
        ("image", "k = [", "Invalid value"),
        ("heuristic", 'sigma = "0.1"', "`sigma` (='0.1') must be a number"),
        ("heuristic", "tuned = 3", "`tuned` (=3) must be a table"),
        ("heuristic", "[tuned.0.1]\ngaussian = { sigma = 1 }", "`tuned.0` has unknown entries ['1']"),
        ("heuristic", "[tuned.low]\ngaussian = { sigma = 1 }", "`tuned` has the entry 'low', which must be a positive"),
        ("heuristic", '[tuned."0.1"]\ngaussian = { size = 1 }', "`tuned.0.1.gaussian` has unknown entries ['size']"),
        ("heuristic", '[tuned."0.1"]\nbilateral = { sigma_color = 1 }', "`tuned.0.1.bilateral` lacks sigma_spatial"),
        (
            "heuristic",
            '[tuned."0.1"]\ngaussian = { sigma = "1" }',
            "`tuned.0.1.gaussian.sigma` (='1') must be a number",
        ),
        ("dataset", "[paper]\nepochs = '3'", "`paper.epochs` (='3') must be a whole number"),
        ("dataset", "[paper]\nepoch = 3", "`paper` has unknown entries ['epoch']"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_path(name, text, words, root, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(text)
    result = call(f"denoise-{name}", "--data-root", root, "--output", tmp_path, "--config", path)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert f"error: `config` {path}: " in result.output and words in result.output


def test_what_a_configuration_does_not_name_is_as_packaged(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("seed = 3\n[paper]\nepochs = 7\nsigma = [1]")
    found, usual = read_config("dataset", path), read_config("dataset", None)
    assert (found["seed"], found["paper"]["epochs"], found["paper"]["sigma"]) == (3, 7, [1])
    assert found["paper"]["k"] == usual["paper"]["k"] and found["ours"] == usual["ours"]


def test_a_range_test_is_written(root, tmp_path):
    result = call(
        "lr-range", "--data-root", root, "--output", tmp_path, "--k", 3, "--steps", 20, "--accelerator", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert re.search(r"suggested learning rate: \d", result.output)
    assert len(read_table(tmp_path / "lr_range.csv")) > 3 and (tmp_path / "lr_range.png").exists()


def test_pages_are_rendered_anew_from_the_tables_alone(root, tmp_path):
    assert image_command(root, tmp_path / "denoising", "--rate", "paper").exit_code == 0
    page = tmp_path / "denoising" / "image.md"
    before = page.read_text()
    page.unlink()
    result = CliRunner().invoke(report.app, [str(tmp_path), "--work", str(tmp_path / "nowhere")])
    assert result.exit_code == 0, result.output
    assert page.read_text() == before


def test_nothing_to_render_is_said_in_one_line(tmp_path):
    result = CliRunner().invoke(report.app, [str(tmp_path / "nowhere")])
    assert result.exit_code == 1 and "has no tables of experiments" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["denoise-heuristic", "--data-root", "nowhere"], "no cameraman in nowhere"),
        (["denoise-tuned", "--data-root", "nowhere"], "no BSDS300 in nowhere"),
        (["denoise-tuned", "--data-root", "ROOT", "--sigma", "-1"], "`sigma` (=-1.0) must be positive"),
        (["denoise-tuned", "--data-root", "ROOT", "--padding-mode", "soft"], "`padding_mode` (='soft') must be one of"),
        (["denoise-image", "--data-root", "nowhere"], "put the classical 256 × 256 grey picture there"),
        (["denoise-dataset", "--data-root", "nowhere"], "no BSDS300 in nowhere"),
        (["denoise-dataset", "--dataset", "voc2012", "--data-root", "nowhere"], "no PASCAL VOC 2012 in nowhere"),
        (["denoise-heuristic", "--data-root", "ROOT", "--sigma", "-1"], "`sigma` (=-1.0) must be positive"),
        (["denoise-image", "--data-root", "ROOT", "--sigma", "0"], "`sigma` (=0.0) must be positive"),
        (["denoise-image", "--data-root", "ROOT", "--k", "4"], "`k` (=4) must be a positive odd number"),
        (["denoise-image", "--data-root", "ROOT", "--method", "magic"], "`method` (='magic') must be one of 'utb 0.1'"),
        (["denoise-dataset", "--data-root", "ROOT", "--sigma", "nan"], "`sigma` (=nan) must be positive"),
        (["denoise-dataset", "--data-root", "ROOT", "--epochs", "-2"], "`epochs` (=-2) must be at least 1"),
        (["denoise-dataset", "--data-root", "ROOT", "--epochs", "0"], "`epochs` (=0) must be at least 1"),
        (["denoise-dataset", "--data-root", "ROOT", "--seed", "-1"], "`seed` (=-1) must be at least 0"),
        (["denoise-dataset", "--data-root", "ROOT", "--devices", "0"], "`devices` (=0) must be at least 1"),
        (["denoise-image", "--data-root", "ROOT", "--iterations", "0"], "`iterations` (=0) must be at least 1"),
        (["denoise-dataset", "--data-root", "ROOT", "--rate", "rnage"], "`rate` (='rnage') must be one of 'paper', "),
        (["denoise-dataset", "--data-root", "ROOT", "--recipe", "ours", "--rate", "rnage"], "`rate` (='rnage')"),
        (
            ["denoise-dataset", "--data-root", "ROOT", "--recipe", "magic"],
            "`recipe` (='magic') must be one of 'paper', 'ours'",
        ),
        (["denoise-heuristic", "--image", "TEXT"], "cannot be read as a picture"),
        (["denoise-heuristic", "--image", "absent.png"], "absent.png"),
        (["denoise-heuristic", "--data-root", "ROOT", "--config", "CONFIG"], "unknown entries ['sigmas']"),
    ],
)
def test_bad_input_ends_in_one_clear_line(arguments, words, root, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "config.toml").write_text("sigmas = 3")
    places = {"ROOT": root, "TEXT": tmp_path / "text.png", "CONFIG": tmp_path / "config.toml"}
    result = call(*(places.get(argument, argument) for argument in arguments))
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    line = result.output.strip()
    assert line.startswith("error: ") and words in line and "\n" not in line
