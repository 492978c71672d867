"""Pages and figures of the denoising tables."""

import math
import shutil
import statistics
from pathlib import Path

import pytest
from skimage import io
from typer.testing import CliRunner

from denoising.commands import dataset_command, heuristic_command, image_command
from metricconv._files import read_table, write_table
from metricconv_experiments import report
from metricconv_experiments.denoising import figures, heuristic
from metricconv_experiments.denoising import report as pages
from metricconv_experiments.denoising.report import write_dataset, write_tuned

pytestmark = pytest.mark.slow
COMMITTED = Path(__file__).parents[3] / "results/denoising"


def test_figures_of_filters_show_images_that_match_their_psnr(root, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "_show", lambda axes, path, label, **more: shown.append((io.imread(path), label)))
    config = tmp_path / "none.toml"
    config.write_text("tuned = {}")
    for sigma in (0.05, 0.4):
        assert heuristic_command(root, tmp_path, "--config", config, "--sigma", sigma).exit_code == 0
    shown.clear()
    names = pages.write_heuristic(tmp_path, tmp_path / "work/heuristic")
    assert len(names) == 3 and all((tmp_path / name).exists() for name in names)
    clean = io.imread(root / "cameraman256.png") / 255.0
    noisy = [(pixels, label) for pixels, label in shown if label.startswith("noisy")]
    assert len(noisy) == 2
    for pixels, label in noisy:
        error = ((pixels / 255 - clean) ** 2).mean()  # the saved image is clamped, which lowers its error
        assert float(label.split()[1]) == pytest.approx(-10 * math.log10(error), abs=4)
    (folder, *_) = (tmp_path / "work/heuristic").glob("*_0.4_*")
    shutil.rmtree(folder)
    assert len(pages.write_heuristic(tmp_path, tmp_path / "work/heuristic")) == 2


def test_dataset_page_has_means_over_seeds(root, tmp_path):
    selected = ("--recipe", "paper", "--weights", "learnt", "--method", "deformable")
    for seed in (1, 2, 3):
        assert dataset_command(root, tmp_path, *selected, "--seed", seed, epochs=1).exit_code == 0
    values = [float(row["test_psnr"]) for row in read_table(tmp_path / "dataset.csv")]
    cell = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}, n = 3"
    assert f"| σ = 0.1, deformable, weights learnt | {cell} |" in (tmp_path / "dataset.md").read_text()


def test_diverged_runs_are_marked(root, tmp_path):
    selected = ("--recipe", "paper", "--weights", "learnt", "--method", "deformable")
    for seed in (1, 2):
        assert dataset_command(root, tmp_path, *selected, "--seed", seed, epochs=1).exit_code == 0
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


def test_page_names_parameters_at_an_edge_and_other_tuning(tmp_path):
    rows = [row for row in read_table(COMMITTED / "tuned.csv") if row["method"] in ("Gaussian", "total variation")]
    write_table(tmp_path / "tuned.csv", rows)
    write_tuned(tmp_path)
    page = (tmp_path / "tuned.md").read_text()
    assert "with 192 trials per filter" in page and "Not tuned" not in page and "No value is at the edge" in page
    for row in rows:
        if row["method"] == "Gaussian" and row["sigma"] == "0.5":
            row["filter_parameters"] = f"sigma={heuristic.TUNABLE['gaussian'].ranges['sigma'][1]:g}"
    write_table(tmp_path / "tuned.csv", rows)
    write_tuned(tmp_path)
    page = (tmp_path / "tuned.md").read_text()
    assert "At the edge of their ranges: Gaussian, sigma at σ = 0.5." in page
    rows[0]["filter_parameters"] = "sigma=0.123456"
    write_table(tmp_path / "tuned.csv", rows)
    write_tuned(tmp_path)
    assert "Not tuned with this budget: Gaussian." in (tmp_path / "tuned.md").read_text()


def test_tables_without_rows_are_skipped(tmp_path):
    for name in ("heuristic", "tuned", "image", "image_curves", "dataset"):
        (tmp_path / f"{name}.csv").write_text("image,dataset,sigma\n")
    assert pages.write_all(tmp_path, tmp_path) == []


@pytest.mark.parametrize("name", ["heuristic", "tuned", "image", "image_curves", "dataset"])
def test_missing_numbers_are_reported_with_file_and_line(name, tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "denoising")
    path = tmp_path / "denoising" / f"{name}.csv"
    rows = read_table(path)
    column = "psnr" if name in ("heuristic", "tuned") else "test_mse"
    for value, shown in (("", "''"), ("good", "'good'")):
        rows[3][column] = value
        write_table(path, rows)
        result = CliRunner().invoke(report.app, [str(tmp_path), "--work", str(tmp_path / "nowhere")])
        assert result.exit_code == 1
        assert f"{path}, line 5: `{column}` (={shown}) is not a number" in result.output


def test_files_named_by_a_report_exist(tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "denoising")
    for path in (*(tmp_path / "denoising").glob("*.md"), *(tmp_path / "denoising").glob("*.png")):
        path.unlink()
    names = pages.write_all(tmp_path / "denoising", tmp_path / "nowhere")
    assert set(names) == {
        "benchmark.md", "heuristic.md", "tuned.md", "image.md", "image_curves.png", "dataset.md", "dataset.png"
    }  # fmt: skip
    assert all((tmp_path / "denoising" / name).exists() for name in names)


def test_pages_are_regenerated_from_the_tables(root, tmp_path):
    assert image_command(root, tmp_path / "denoising", "--rate", "paper").exit_code == 0
    page = tmp_path / "denoising" / "image.md"
    before = page.read_text()
    page.unlink()
    result = CliRunner().invoke(report.app, [str(tmp_path), "--work", str(tmp_path / "nowhere")])
    assert result.exit_code == 0, result.output
    assert page.read_text() == before


def test_report_without_tables_raises(tmp_path):
    result = CliRunner().invoke(report.app, [str(tmp_path / "nowhere")])
    assert result.exit_code == 1 and "contains no CSV with rows" in str(result.exception)
