"""Coverage of the paper's tables, counted from CSVs."""

from pathlib import Path

import pytest

from metricconv_experiments import coverage

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one number of each of three tables."""
    (tmp_path / "denoising").mkdir()
    (tmp_path / "classification").mkdir()
    (tmp_path / "denoising/image.csv").write_text(
        "image,iterations,rate,method,eps_omega,k,sigma\n"
        "cameraman,100,paper,utb,0.1,5,0.1\n"
        "cameraman,100,paper,utb,0.1,5,0.1\n"  # another seed of the same cell
        "cameraman,50,paper,utb,0.1,11,0.1\n"  # another schedule
        "cameraman,100,paper,utb,0.5,5,0.1\n"  # not in the paper
    )
    columns = "dataset,network,method,weights,start,layers,recipe,epochs,epoch_seconds,peak_mb\n"
    (tmp_path / "classification/runs.csv").write_text(
        columns + "cifar100,resnet18,metric-randers,learnt,scratch,2-4,paper,240,36,\n"
        "cifar100,resnet18,metric-randers,learnt,scratch,2-4,onecycle,4,36,\n"
        "cifar100,resnet18,shifted,fixed,scratch,2-4,onecycle,4,,\n"
        "cifar100,resnet18-width8,deformable,fixed,scratch,2-4,onecycle,4,,\n"
    )
    return tmp_path


def test_each_number_is_counted_once(folder):
    counts = {table.name: table[1:4] for table in coverage.tables(folder)}
    assert counts["one image, test MSE"] == (45, 1, 0)
    assert counts["one image, learning rates"] == (45, 0, 0)
    assert counts["cifar100, top-1"] == (14, 1, 1)
    assert counts["cifar10, top-1"] == (14, 0, 0)
    assert counts["memory and time of an epoch"] == (5, 0, 1)


def test_costs_are_estimated_from_measured_epochs(folder):
    (table,) = (table for table in coverage.tables(folder) if table.name == "cifar10, top-1")
    # Four numbers of metric layers, eight runs each, 240 epochs of 36 s; other methods were not timed.
    assert f"{4 * 8 * 240 * 36 / 3600:.0f} GPU hours" in table.missing


def test_page_is_not_written_without_rows(tmp_path):
    assert coverage.write(tmp_path) == [] and not list(tmp_path.iterdir())


def test_page_adds_up(folder):
    assert coverage.write(folder) == ["coverage.md"]
    lines = [line.split(" | ") for line in (folder / "coverage.md").read_text().splitlines() if line.startswith("| ")]
    counts = [[int(cell) for cell in line[1:5]] for line in lines if line[1].isdigit()]
    *parts, total = counts
    assert total == [sum(column) for column in zip(*parts, strict=True)]
    assert all(cells == same + other + missing for cells, same, other, missing in counts)


def test_committed_page_is_current(tmp_path):
    for name in ("denoising", "classification"):
        (tmp_path / name).symlink_to(RESULTS / name)
    coverage.write(tmp_path)
    assert (tmp_path / "coverage.md").read_text() == (RESULTS / "coverage.md").read_text()
