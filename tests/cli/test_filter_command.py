"""``metricconv filter``: output files, errors and exit codes."""

import csv
import errno
import io
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import rich.console
import torch

from command_errors import fails
from metricconv import filters
from metricconv.cli import filtering
from metricconv.cli.app import run
from metricconv.io import images
from metricconv.metrics import gradient_metric


def test_filter_command_equals_library(photo):
    assert run(["filter", photo, "out.png", "-k", "5", "--alpha", "10", "--scale", "1.5"]) == 0
    image = images.read(Path(photo)).pixels
    metric = partial(gradient_metric, iota=0.15, alpha=10.0, scale=1.5, padding_mode="reflect")
    expected = np.rint(255 * np.clip(filters.tangent_filter(image, 5, metric, channel_axis=-1), 0, 1))
    assert np.array_equal(images.read(Path("out.png")).pixels, expected)


@pytest.mark.parametrize(
    ("method", "defaults"),
    [
        ("tangent", "--metric gradient --iota 0.15 --alpha 20 --scale 1.5"),
        ("geodesic", "--metric edge --iota 0.01 --alpha 20 --scale 1"),
    ],
)
def test_defaults_are_those_that_compare_prints(photo, method, defaults):
    assert run(["filter", photo, "default.png", "-m", method, "-k", "3"]) == 0
    assert run(["filter", photo, "explicit.png", "-m", method, "-k", "3", *defaults.split()]) == 0
    assert Path("default.png").read_bytes() == Path("explicit.png").read_bytes()


@pytest.mark.parametrize("method", ["tangent", "geodesic", "box", "dilated", "interpolated", "random"])
def test_every_method_runs_with_its_defaults(photo, method):
    assert run(["filter", photo, "out.png", "--method", method, "-k", "3"]) == 0
    assert images.read(Path("out.png")).spatial == (36, 48)


@pytest.mark.parametrize("metric", ["gradient", "edge", "structure"])
def test_metric_options_are_accepted(photo, metric):
    options = ["--metric", metric, "--iota", "0.2", "--alpha", "5", "--scale", "1.0", "--stencil", "onion", "--center"]
    assert run(["filter", photo, "out.png", "-k", "3", *options]) == 0


@pytest.mark.parametrize("name", ["photo [edited].png", "o[/red].png", "so :smile: long " + "a" * 90 + ".png"])
def test_file_names_are_printed_verbatim(photo, name, capsys):
    drawing, folder = name.replace(".png", ".svg"), name.removesuffix(".png")
    assert run(["filter", photo, name, "-m", "box", "-k", "3"]) == 0
    assert run(["balls", name, "--at", "9,9", "--ball", "tangent", "-o", drawing]) == 0
    assert run(["filter", ".", folder, "-m", "box", "-k", "3"]) == 0
    *files, last = capsys.readouterr().err.splitlines()
    assert files == [f"wrote {name}", f"wrote {drawing}"] and last.endswith(f"images to {folder}")


def test_progress_prints_file_names_verbatim(photo, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(filtering, "console", rich.console.Console(file=shown, force_terminal=True, width=200))
    Path("photo [edited].png").write_bytes(Path(photo).read_bytes())
    assert run(["filter", "photo [edited].png", "out.png", "-m", "box", "-k", "3"]) == 0
    assert "filtering photo [edited].png" in shown.getvalue()


def test_16_bit_images_stay_16_bit(tmp_path):
    deep = np.random.default_rng(0).integers(0, 65535, (12, 14, 3), dtype=np.uint16)
    images.write(tmp_path / "deep.png", images.ImageData(deep, -1))
    assert run(["filter", "deep.png", "out.png", "-m", "box", "-k", "3"]) == 0
    out = images.read(tmp_path / "out.png").pixels
    expected = np.rint(65535 * filters.box_filter(deep, 3, channel_axis=-1))
    assert out.dtype == np.uint16 and np.array_equal(out, expected)


def test_opacity_is_not_filtered(tmp_path):
    opacity = np.random.default_rng(0).integers(0, 255, (12, 14), dtype=np.uint8)
    images.write(tmp_path / "a.png", images.ImageData(np.zeros((12, 14, 3), np.uint8), -1, opacity))
    assert run(["filter", "a.png", "b.png", "-m", "box", "-k", "3"]) == 0
    assert np.array_equal(images.read(tmp_path / "b.png").opacity, opacity)


@pytest.mark.parametrize("method", ["box", "tangent", "geodesic"])
def test_transparent_pixels_do_not_affect_filtered_colors(method):
    opacity = np.zeros((24, 24), np.uint8)
    opacity[6:18, 6:18] = 255
    hidden = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    images.write(
        Path("a.png"), images.ImageData(np.where(opacity[..., None] == 255, np.uint8(200), hidden), -1, opacity)
    )
    assert run(["filter", "a.png", "b.png", "-m", method, "-k", "5"]) == 0
    assert (images.read(Path("b.png")).pixels[opacity == 255] == 200).all()


def test_transparent_pixels_do_not_affect_balls(capsys):
    opacity = np.zeros((24, 24), np.uint8)
    opacity[6:18, 6:18] = 255
    printed = []
    for seed in (0, 1):
        hidden = np.random.default_rng(seed).integers(0, 255, (24, 24, 3), dtype=np.uint8)
        colors = np.where(opacity[..., None] == 255, np.uint8(200), hidden)
        images.write(Path("a.png"), images.ImageData(colors, -1, opacity), force=True)
        assert run(["balls", "a.png", "-o", "balls.png", "--at", "7,12", "-f"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize("method", ["box", "tangent", "geodesic"])
def test_opaque_image_equals_image_without_opacity(photo, method):
    colors = images.read(Path(photo)).pixels
    images.write(Path("a.png"), images.ImageData(colors, -1, np.full(colors.shape[:2], 255, np.uint8)))
    for name in ("a.png", photo):
        assert run(["filter", name, f"out-{Path(name).name}", "-m", method, "-k", "5"]) == 0
    found, expected = (images.read(Path(f"out-{Path(name).name}")).pixels.astype(int) for name in ("a.png", photo))
    assert np.abs(found - expected).max() <= 1  # rounding


def test_out_of_memory_names_image_and_continues_folder(photo, monkeypatch, capsys):
    Path("in").mkdir()
    for name in ("a.png", "b.png"):
        images.write(Path("in", name), images.read(Path(photo)))
    calls, box = [], filters.box_filter

    def hungry(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return box(*args, **options)

    monkeypatch.setattr(filters, "box_filter", hungry)
    assert run(["filter", "in", "out", "-m", "box", "-k", "3"]) == 1
    printed = capsys.readouterr()
    assert "a.png: not enough memory" in printed.err + printed.out and Path("out/b.png").exists()


def test_psnr_of_pgm_equals_png(capsys):
    pixels = np.random.default_rng(0).integers(0, 65535, (16, 16), dtype=np.uint16)
    images.write(Path("p.pgm"), images.ImageData(pixels))
    images.write(Path("p.png"), images.ImageData(pixels))
    for name in ("p.pgm", "p.png"):
        assert run(["compare", name, "-k", "3", "--csv", f"{name}.csv", "-o", f"{name}.svg"]) == 0
    deep, other = (Path(f"{name}.csv").read_text(encoding="utf-8") for name in ("p.pgm", "p.png"))
    rows = [[row["psnr"] for row in csv.DictReader(text.splitlines())] for text in (deep, other)]
    assert rows[0] == rows[1]


def test_non_finite_result_is_not_written(photo, monkeypatch, capsys):
    monkeypatch.setattr(filters, "box_filter", lambda image, size, **options: np.full(image.shape, np.nan))
    fails(["filter", photo, "out.png", "-m", "box"], capsys, "photo.png: the result contains NaN")
    np.save("a.npy", np.zeros((40, 40), np.uint8))
    fails(["filter", "a.npy", "out.npy", "-m", "box", "--tile", "16"], capsys, "a.npy: the result contains NaN")
    assert not Path("out.png").exists() and not Path("out.npy").exists()


def test_out_of_memory_prints_one_line(photo, monkeypatch, capsys):
    monkeypatch.setattr(filters, "box_filter", lambda *args, **options: torch.empty(2**50))
    fails(["filter", photo, "out.png", "-m", "box"], capsys, "not enough memory")


def test_broken_link_is_not_replaced(photo, capsys):
    Path("link.png").symlink_to("nowhere.png")
    fails(["filter", photo, "link.png", "-m", "box", "-k", "3"], capsys, "link.png: already exists", "--force")
    assert Path("link.png").is_symlink()


def test_float_volume_is_filtered(tmp_path):
    volume = np.random.default_rng(0).random((5, 6, 7)).astype(np.float32)
    np.save("v.npy", volume)
    assert run(["filter", "v.npy", "w.npy", "-m", "box", "-k", "3", "--axes", "zyx"]) == 0
    assert np.allclose(np.load("w.npy"), filters.box_filter(volume, 3))


def test_folder_is_filtered_to_folder(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.tif"):
        images.write(tmp_path / "in" / name, images.ImageData(np.zeros((9, 9), np.uint8)))
    (tmp_path / "in" / "notes.txt").write_text("not an image")
    assert run(["filter", "in", "out", "-m", "box", "-k", "3"]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.png", "b.tif"]
    assert "wrote 2 of 2 images to out" in capsys.readouterr().err


def test_unreadable_file_in_folder_sets_exit_code(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    images.write(tmp_path / "in" / "b.png", images.ImageData(np.zeros((9, 9), np.uint8)))
    (tmp_path / "in" / "a.png").write_text("rubbish")
    assert run(["filter", "in", "out", "-m", "box", "-k", "3"]) == 1
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["b.png"]
    assert "a.png: not a supported image" in capsys.readouterr().err


def test_write_error_in_folder_does_not_stop_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.png"):
        images.write(tmp_path / "in" / name, images.ImageData(np.zeros((9, 9), np.uint8)))
    save = PIL.Image.Image.save

    def full(image, path, **options):
        if ".a." in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(image, path, **options)

    monkeypatch.setattr(PIL.Image.Image, "save", full)
    assert run(["filter", "in", "out", "-m", "box", "-k", "3"]) == 1
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["b.png"]
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["error: in/a.png: No space left on device", "wrote 1 of 2 images to out"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--iota", "-1"], "--iota -1: must be positive"),
        (["--alpha", "-2"], "--alpha -2: must be at least 0"),
        (["--iota", "1e-300"], "--iota 1e-300: must be at least 1e-12"),
        (["--eps-omega", "1.5"], "--eps-omega 1.5: must be in (0, 1]"),
        (["--scale", "1e-320"], "--scale 9.99989e-321: must be 0 or at least 0.1"),
        (["--scale", "0.05", "-m", "geodesic", "--metric", "structure"], "--scale 0.05: must be 0 or at least 0.1"),
        (["-m", "box", "--size", "1025"], "--size 1025: must be at most 1023 with --method box"),
        (["-m", "box", "--size", "1e300"], "--size 1e+300: must be at most 1023 with --method box"),
        (["-k", "4", "--stencil", "onion"], "--samples 4: must be a positive odd number with --stencil onion"),
        (["-k", "1"], "--samples 1: must be at least 2 with --stencil polar"),
        (["-m", "dilated", "-k", "4"], "--samples 4: must be a positive odd number"),
        (["-m", "random", "-k", "4"], "--samples 4: must be a positive odd number"),
        (["-m", "box", "--size", "4"], "--size 4: must be a positive odd number"),
        (["-m", "interpolated", "-k", "1"], "--samples 1: must be at least 2 with --method interpolated"),
        (["-m", "interpolated", "--size", "1"], "--size 1: must be more than 1"),
    ],
)
def test_invalid_option_value_is_reported_once_per_folder(tmp_path, options, words, capsys):
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.png"):
        images.write(tmp_path / "in" / name, images.ImageData(np.zeros((9, 9), np.uint8)))
    fails(["filter", "in", "out", *options], capsys, words)
    assert not Path("out").exists()


def test_existing_files_require_force(photo, capsys):
    before = Path(photo).read_bytes()
    fails(["filter", photo, photo], capsys, "is the input file", "--force")
    Path("there.png").write_bytes(b"mine")
    fails(["filter", photo, "there.png"], capsys, "there.png: already exists", "--force")
    assert Path(photo).read_bytes() == before and Path("there.png").read_bytes() == b"mine"
    assert run(["filter", photo, photo, "-m", "box", "-k", "3", "--force"]) == 0
    assert Path(photo).read_bytes() != before


def test_failed_write_leaves_no_file(photo, tmp_path, monkeypatch, capsys):
    def broken(*args, **options):
        raise OSError("the disk is full")

    monkeypatch.setattr(PIL.Image.Image, "save", broken)
    fails(["filter", photo, "out.png", "-m", "box", "-k", "3"], capsys, "the disk is full")
    assert [p.name for p in tmp_path.iterdir()] == ["photo.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["filter", "nowhere.png", "out.png"], ["nowhere.png: no such file"]),
        (
            ["filter", "photo.png", "out.png", "-m", "box", "--iota", "1", "--steps", "3"],
            ["--iota, --steps: cannot be combined with --method box"],
        ),
        (["filter", "photo.png", "out.png", "-m", "box", "-k", "4"], ["--samples 4: must be a positive odd number"]),
        (
            ["filter", "photo.png", "out.png", "--spacing", "1,2,3"],
            ["--spacing 1,2,3: must be 2 numbers for photo.png"],
        ),
        (
            ["filter", "photo.png", "out.png", "--spacing", "1,x"],
            ["--spacing 1,x: must be two or three positive numbers"],
        ),
        (["filter", "photo.png", "out.png", "-m", "box", "--spacing", "1,1"], ["--spacing: cannot be combined with"]),
        (["balls", "photo.png", "--iota", "-1"], ["--iota -1: must be positive"]),
        (["balls", "photo.png", "-k", "4", "--stencil", "onion"], ["--samples 4: must be a positive odd number with"]),
        (["compare", "nowhere.png", "-k", "1"], ["--samples 1: must be at least 2 with --stencil polar"]),
        (["compare", "nowhere.png", "--alpha", "-1"], ["--alpha -1: must be at least 0"]),
        (["filter", "photo.png", "out.xyz"], ["cannot write .xyz"]),
        (["filter", "photo.png", "out.png", "--metric", "edge", "--eps-omega", "0.5"], ["--eps-omega", "no drift"]),
        (["filter", "photo.png", "out.png", "--max-pixels", "99"], ["the limit of 99", "--max-pixels"]),
        (["filter", "photo.png", ".", "--force"], ["is a folder"]),
        (["filter", ".", "out.png"], ["out.png: must be a folder because IN is one"]),
        (["filter", "photo.png", "photo.png/out.png"], ["photo.png is not a writable folder"]),
        (["filter", "", "out"], ["arguments must not be empty"]),
        (["filter", "other.npy", "photo.zarr", "--force"], ["photo.zarr: is a file, expected a .zarr folder"]),
        (["filter", "photo.png", "out.pgm"], ["out.pgm: .pgm does not support 3 channels, expected one of .png"]),
        (["filter", "bright.npy", "out.png"], ["out.png: .png does not support floats from 0 to 255, outside [0, 1]"]),
        (
            ["filter", "photo.png", "out.png", "-m", "box", "--size", "301"],
            ["--size 301: must be at most 48 for photo.png of 36 × 48 pixels"],
        ),
        (["filter", "photo.png", "out.png", "-m", "interpolated", "-k", "5", "--size", "1e300"], ["at most 48"]),
        (["filter", "photo.png", "out.png", "-m", "dilated", "--dilation", "9" * 20], ["--dilation", "at most 48"]),
        (["filter", "photo.png", "out.png", "-m", "dilated", "--dilation", "9" * 400], ["--dilation", "at most 48"]),
        (["filter", "other.npy", "out.npy", "-m", "box", "--size", "5", "--tile", "16"], ["--size 5", "at most 3"]),
        (["explore", "--checkpoint", "."], ["--checkpoint .: is a folder"]),
        (["balls", "endless.npy"], ["NaN or infinite"]),
        (["balls", "photo.png", "--at", "3"], ["--at 3", "Y,X"]),
        (["balls", "photo.png", "--at", "36,3"], ["outside the image of height 36 and width 48"]),
        (["balls", "photo.png", "--ball", "square"], ["--ball square"]),
        (["balls", "photo.png", "--out", "balls.doc"], ["balls.doc"]),
        (["compare", "photo.png", "--clean", "other.npy"], ["other.npy: expected shape (36, 48, 3) as IN, got (3, 3)"]),
        (["compare", "photo.png", "--clean", "photo.png", "--noise", "0.3"], ["--noise 0.3", "--clean"]),
        (["compare", "photo.png", "-o", "a.png", "--csv", "a.png"], ["--csv a.png: cannot write .png, expected .csv"]),
        (["compare", "endless.npy"], ["endless.npy: contains NaN or infinite values"]),
        (["filter", "endless.npy", "out.npy"], ["endless.npy: contains NaN or infinite values"]),
        (["filter", "wide.npy", "out.npy"], ["wide.npy: dtype", "at most 64 bits"]),
        (
            ["filter", "photo.png", "out.png", "--axes", "cyx"],
            ["axes 'cyx': supported only for .npy, .tif", "got photo.png"],
        ),
        (["compare", "photo.png", "--axes", "yxc"], ["axes 'yxc': supported only for .npy"]),
        (["balls", "photo.png", "--axes", "yxc"], ["axes 'yxc': supported only for .npy"]),
        (["balls", "photo.png", "--stencil", "onion"], ["--stencil onion: requires --samples"]),
        (
            ["filter", "photo.png", "out.png", "-m", "box", "--seed", "3"],
            ["--seed: cannot be combined with --method box"],
        ),
        (["filter", "photo.png", "out.png", "-m", "box", "--size", "inf"], ["--size inf: must be an integer"]),
        (["filter", "photo.png", "out.png", "-m", "box", "--size", "nan"], ["--size nan: must be an integer"]),
    ],
)
def test_user_errors_print_one_line_and_exit_with_1(photo, arguments, words, capsys):
    np.save("other.npy", np.zeros((3, 3)))
    np.save("endless.npy", np.full((9, 9), np.inf))
    np.save("wide.npy", np.zeros((9, 9), np.longdouble))
    np.save("bright.npy", np.arange(256, dtype=np.float32).reshape(16, 16))
    Path("photo.zarr").write_bytes(b"no folder")
    before = sorted(Path.cwd().iterdir())
    fails(arguments, capsys, *words)
    assert sorted(Path.cwd().iterdir()) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, which even root cannot write to")
@pytest.mark.parametrize(
    "arguments", [["filter", "photo.png", "/proc/a.png"], ["compare", "photo.png", "-k", "3", "--csv", "/proc/a.csv"]]
)
def test_unwritable_output_fails_before_computation(photo, arguments, capsys):
    fails(arguments, capsys, f"{arguments[-1]}: /proc is not a writable folder")


def test_wrong_option_exits_with_2(photo, capsys):
    assert run(["filter", photo, "out.png", "--method", "median"]) == 2
    wrong = {"-k": "102", "--scale": "101", "--steps": "101", "--seed": "-1", "--alpha": "1e30", "--iota": "1e39"}
    for option, value in wrong.items():
        assert run(["filter", photo, "out.png", option, value]) == 2, option
    assert run(["compare", photo, "--noise", "inf"]) == 2
    assert run(["no-such-command"]) == 2
    capsys.readouterr()


def test_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("METRICCONV_TRACEBACK", "1")
    with pytest.raises(Exception, match="no such file"):
        run(["filter", "nowhere.png", "out.png"])
