"""The commands other than ``filter``: output files, printed results and exit codes."""

import csv
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from rich.progress import MofNCompleteColumn

import metricconv
from command_errors import fails
from metricconv import filters, viz
from metricconv._images import psnr
from metricconv._interpolation import PADDING_MODES
from metricconv.cli import doctor, filtering
from metricconv.cli.app import run
from metricconv.cli.options import MetricName, Padding, StencilName
from metricconv.io import images
from metricconv.io.image_data import ImageData
from metricconv.metrics import IMAGE_METRICS, gradient_metric
from metricconv.stencils import STENCILS


def test_balls_are_plotted_and_printed(photo, capsys):
    assert run(["balls", photo, "--at", "10,20", "--at", "30,7", "--eps-omega", "0.5", "-k", "3"]) == 0
    assert images.read(Path("photo-balls.png")).pixels.std() > 10
    out = capsys.readouterr().out
    assert "10, 20" in out and "30, 7" in out and "0.5" in out


def test_balls_of_a_large_image_are_shown_in_the_region_with_the_most_contrast(monkeypatch):
    image = np.zeros((400, 600), np.uint8)
    image[300:330:3, 200:260] = 255
    images.write(Path("stripes.png"), ImageData(image))
    seen, draw = [], viz.plot_unit_balls
    monkeypatch.setattr(viz, "plot_unit_balls", lambda *args, **options: seen.append((args[2], draw(*args, **options))))
    assert run(["balls", "stripes.png"]) == 0
    assert run(["balls", "stripes.png", "--whole", "--force"]) == 0
    (zoomed, axes), (grid, whole) = seen
    (y0, x0), (y1, x1) = np.min(zoomed, 0), np.max(zoomed, 0)
    assert len(zoomed) == len(grid) == 64 and y0 < 300 < 330 < y1 + 12 < y0 + 108 and x0 - 6 < 200 < 260 < x1 + 12
    assert np.ptp(axes.get_xlim()) == np.ptp(axes.get_ylim()) == 96 and np.ptp(whole.get_xlim()) == 600


def test_filter_passes_the_spacing_to_the_metric():
    volume = np.random.default_rng(0).random((5, 9, 8))
    np.save("v.npy", volume)
    assert (
        run(["filter", "v.npy", "out.npy", "--axes", "zyx", "-k", "3", "--metric", "edge", "--spacing", "6,2,2"]) == 0
    )
    expected = filters.tangent_filter(volume, 3, "edge", spacing=(3, 1, 1))
    np.testing.assert_allclose(np.load("out.npy"), expected)


def test_balls_use_padding_mode_of_filters(photo, capsys):
    assert run(["balls", photo, "--at", "0,20"]) == 0
    (row,) = (line.split("│") for line in capsys.readouterr().out.splitlines() if "0, 20" in line)
    image = torch.from_numpy(images.read(Path(photo)).to_float()).permute(2, 0, 1).unsqueeze(0)
    reach, other = (
        f"{gradient_metric(image, padding_mode=mode).bounding_radius[0, 0, 0, 20].item():.3g}"
        for mode in ("reflect", "border")
    )
    assert row[2].strip() == reach != other


@pytest.mark.parametrize(
    ("enum", "names"), [(MetricName, IMAGE_METRICS), (StencilName, STENCILS), (Padding, (*PADDING_MODES, "replicate"))]
)
def test_choices_equal_those_of_library(enum, names):
    assert {member.value for member in enum} == set(names)


def test_default_padding_is_listed_first():
    assert list(Padding) == ["reflect", "border", "circular", "replicate", "zeros"]


def test_geodesic_balls_on_whole_image_as_svg(photo):
    assert run(["balls", photo, "--ball", "geodesic", "--metric", "edge", "--whole", "-o", "b.svg"]) == 0
    assert "<svg" in Path("b.svg").read_text(encoding="utf-8")


def test_compare_writes_figure_and_table(photo, capsys):
    assert run(["compare", photo, "-k", "5", "--csv", "rows.csv", "--noise", "0.2", "--seed", "3"]) == 0
    with open("rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [r["method"] for r in rows][:2] == ["noisy", "box 3 × 3"] and rows[-1]["method"] == "denoise"
    assert float(rows[0]["psnr"]) == pytest.approx(-20 * np.log10(0.2), abs=0.3)
    assert all(r["noise"] == "0.2" and r["seed"] == "3" and r["torch"] for r in rows)
    assert "PSNR (dB)" in capsys.readouterr().out and images.read(Path("photo-compare.png")).spatial[1] > 500


def test_printed_commands_reproduce_table(photo, capsys):
    clean = images.read(Path(photo)).to_float()
    np.save("clean.npy", clean)
    np.save("noisy.npy", clean + np.random.default_rng(0).normal(0.0, 0.1, clean.shape))
    given = ["--csv", "rows.csv", "-k", "4", "--alpha", "12.5", "--eps-omega", "0.6"]
    assert run(["compare", "noisy.npy", "--clean", "clean.npy", *given]) == 0
    commands = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("metricconv ")]
    assert [" ".join(c[:4]) for c in commands] == ["metricconv filter IN OUT"] * 2
    with open("rows.csv", newline="", encoding="utf-8") as file:
        rows = {row["method"]: float(row["psnr"]) for row in csv.DictReader(file)}
    for command in commands:
        out = f"{command[5]}.npy"
        assert run(["filter", "noisy.npy", out, *command[4:]]) == 0
        assert psnr(clean, np.load(out)) == pytest.approx(rows[f"{command[5]} balls"], abs=1e-3)


def test_clean_reference_is_used(photo, capsys):
    assert run(["compare", photo, "--clean", photo, "-k", "3", "--metric", "structure"]) == 0
    assert "inf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dtype", "arguments", "words"),
    [
        (np.float32, ["odd.tif"], "odd.tif: contains floats from 0 to 255, outside [0, 1], expected"),
        (np.float32, ["photo.tif", "--clean", "odd.tif"], "odd.tif: contains floats from 0 to 255"),
        (np.float32, ["odd.tif", "--clean", "photo.tif"], "odd.tif: contains floats from 0 to 255"),
        (np.int16, ["odd.tif"], "odd.tif: contains signed int16"),
        (np.int16, ["odd.tif", "--clean", "photo.tif"], "odd.tif: contains signed int16"),
    ],
)
def test_compare_requires_unit_range(dtype, arguments, words, capsys):
    values = np.linspace(0, 255, 256).reshape(16, 16)
    images.write(Path("odd.tif"), images.ImageData(values.astype(dtype)))
    images.write(Path("photo.tif"), images.ImageData((values / 255).astype(np.float32)))
    fails(["compare", *arguments, "-k", "3"], capsys, words)
    assert not list(Path().glob("*.png"))


def test_failed_table_leaves_no_figure(photo, tmp_path, monkeypatch, capsys):
    def broken(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr("metricconv.cli.compare.write_table", broken)
    fails(["compare", photo, "-k", "3", "--csv", "rows.csv"], capsys, "the disk is full")
    assert [p.name for p in tmp_path.iterdir()] == ["photo.png"]


def test_progress_shows_no_count_of_an_unknown_number():
    bar = filtering.progress_bar()
    (count,) = (column for column in bar.columns if isinstance(column, MofNCompleteColumn))
    for total in (None, 7):
        bar.add_task("filtering", total=total)
    assert [str(count.render(task)).strip() for task in bar.tasks] == ["", "0/7"]


def test_doctor_prints_backends_and_extras(capsys):
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("torch", "reference", "ready", "triton", "works", "experiments"):
        assert word in out


def test_doctor_prints_reason_for_missing_backend(monkeypatch, capsys):
    import metricconv

    backends = [
        types.SimpleNamespace(name="fast", missing="a device [none]"),
        types.SimpleNamespace(name="slow", missing=None),
    ]
    monkeypatch.setattr(metricconv, "backend_report", lambda: types.SimpleNamespace(backends=backends))
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "not available: a device [none]" in out and "slow" in out and "reference" not in out


def test_doctor_prints_import_error_of_extra(monkeypatch, capsys):
    def broken(name):
        raise RuntimeError("wrong build")

    monkeypatch.setattr(doctor, "importlib", types.SimpleNamespace(import_module=broken))
    assert run(["doctor"]) == 0
    assert "numba cannot be imported (wrong build)" in capsys.readouterr().out


def test_progress_is_passed_to_filters_that_support_it(photo, monkeypatch):
    calls = []

    def tangent_filter(image, samples, metric, *, center, channel_axis, padding_mode, progress=None):
        progress(12, 36)
        calls.append(progress)
        return image / 255

    monkeypatch.setattr(filters, "tangent_filter", tangent_filter)
    assert run(["filter", photo, "out.png"]) == 0 and len(calls) == 1


def test_doctor_fails_if_convolution_fails(monkeypatch, capsys):
    from metricconv.nn import MetricConv2d

    def broken(*args):
        raise RuntimeError("no such backend")

    monkeypatch.setattr(MetricConv2d, "forward", broken)
    assert run(["doctor"]) == 1
    assert "RuntimeError: no such backend" in capsys.readouterr().out


def install(monkeypatch, name, **commands):
    """Make a typer app with these commands the entry point of a command of the experiments."""
    app = typer.Typer()
    app.callback()(lambda: None)
    for command, function in commands.items():
        app.command(command)(function)
    point = types.SimpleNamespace(load=lambda: app)
    found = {("metricconv.commands", name): (point,)}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group, name: found.get((group, name), ()))


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_installed_experiments_are_run(command, monkeypatch, capsys):
    install(monkeypatch, command, one=lambda: print("ran one"), two=lambda: print("ran two"))
    assert run([command, "two"]) == 0
    assert capsys.readouterr().out == "ran two\n"
    assert run([command, "--help"]) == 0
    assert "one" in capsys.readouterr().out
    assert run([command, "three"]) == 2


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_missing_experiments_print_how_to_install_them(command, monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    fails([command, "one", "--seed=1"], capsys, f"metricconv {command}: ", "pip install ./experiments")
    assert run(["doctor"]) == 0
    assert "experiments are not installed" in " ".join(capsys.readouterr().out.split())


def test_system_exit_message_is_printed(monkeypatch, capsys):
    def fail():
        raise SystemExit("error: no data [here]")

    install(monkeypatch, "reproduce", fail=fail)
    assert run(["reproduce", "fail"]) == 1
    assert capsys.readouterr().err.strip() == "error: no data [here]"


def test_experiment_that_needs_a_missing_package_prints_one_line(monkeypatch, capsys):
    def train():
        raise ModuleNotFoundError("No module named 'lightning'", name="lightning")

    install(monkeypatch, "reproduce", train=train)
    fails(["reproduce", "train"], capsys, "metricconv reproduce needs lightning: pip install ./experiments")


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "metricconv.app", raising=False)
    from metricconv.cli import external

    def missing(name):
        raise ModuleNotFoundError("No module named 'gradio'", name="gradio")

    monkeypatch.setattr(external.importlib, "import_module", missing)
    fails(["explore"], capsys, "needs gradio: pip install 'metricconv[app]'")


def test_help_and_version_are_printed(capsys):
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("filter", "balls", "compare", "explore", "reproduce", "report", "doctor"):
        assert command in out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == metricconv.__version__


def test_python_m_runs_the_command():
    source = Path(filters.__file__).parents[1]
    command = [sys.executable, "-m", "metricconv", "filter", "nowhere.png", "out.png"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(source)})
    assert done.returncode == 1 and done.stderr.strip() == "error: nowhere.png: no such file"
