"""Configuration files and invalid arguments of the denoising commands."""

from pathlib import Path

import pytest

from denoising.commands import call
from metricconv_experiments.denoising.commands import read_config

COMMITTED = Path(__file__).parents[3] / "results/denoising"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("image", 'k = "5"', "`k` (='5') must be a list"),
        ("image", 'k = ["5"]', "`k` (='5') must be an integer"),
        ("image", "iterations = 1.5", "`iterations` (=1.5) must be an integer"),
        ("image", "seed = true", "`seed` (=True) must be an integer"),
        ("image", "methods = [3]", "`methods` (=3) must be a string"),
        ("image", "k = [", "Invalid value"),
        ("heuristic", 'sigma = "0.1"', "`sigma` (='0.1') must be a number"),
        ("heuristic", "tuned = 3", "`tuned` (=3) must be a table"),
        ("heuristic", "[tuned.0.1]\ngaussian = { sigma = 1 }", "`tuned.0` has unknown entries ['1']"),
        ("heuristic", "[tuned.low]\ngaussian = { sigma = 1 }", "`tuned` has the entry 'low', expected a positive"),
        ("heuristic", '[tuned."0.1"]\ngaussian = { size = 1 }', "`tuned.0.1.gaussian` has unknown entries ['size']"),
        ("heuristic", '[tuned."0.1"]\nbilateral = { sigma_color = 1 }', "`tuned.0.1.bilateral` has no sigma_spatial"),
        (
            "heuristic",
            '[tuned."0.1"]\ngaussian = { sigma = "1" }',
            "`tuned.0.1.gaussian.sigma` (='1') must be a number",
        ),
        ("dataset", "[paper]\nepochs = '3'", "`paper.epochs` (='3') must be an integer"),
        ("dataset", "[paper]\nepoch = 3", "`paper` has unknown entries ['epoch']"),
    ],
)
def test_configuration_errors_name_the_file(name, text, words, root, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(text)
    result = call(f"denoise-{name}", "--data-root", root, "--output", tmp_path, "--config", path)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert f"error: `config` {path}: " in result.output and words in result.output


def test_partial_configuration_is_merged_with_the_packaged_one(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("seed = 3\n[paper]\nepochs = 7\nsigma = [1]")
    found, usual = read_config("dataset", path), read_config("dataset", None)
    assert (found["seed"], found["paper"]["epochs"], found["paper"]["sigma"]) == (3, 7, [1])
    assert found["paper"]["k"] == usual["paper"]["k"] and found["ours"] == usual["ours"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["denoise-heuristic", "--data-root", "nowhere"], "no cameraman in nowhere"),
        (["denoise-tuned", "--data-root", "nowhere"], "no BSDS300 in nowhere"),
        (["denoise-tuned", "--data-root", "ROOT", "--sigma", "-1"], "`sigma` (=-1.0) must be positive"),
        (["denoise-tuned", "--data-root", "ROOT", "--padding-mode", "soft"], "`padding_mode` (='soft') must be one of"),
        (["denoise-image", "--data-root", "nowhere"], "expected the classical 256 × 256 gray image"),
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
        (["denoise-heuristic", "--image", "TEXT"], "cannot be read as an image"),
        (["denoise-heuristic", "--image", "absent.png"], "absent.png"),
        (["denoise-heuristic", "--data-root", "ROOT", "--config", "CONFIG"], "unknown entries ['sigmas']"),
    ],
)
def test_invalid_input_ends_in_one_line(arguments, words, root, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "config.toml").write_text("sigmas = 3")
    paths = {"ROOT": root, "TEXT": tmp_path / "text.png", "CONFIG": tmp_path / "config.toml"}
    result = call(*(paths.get(argument, argument) for argument in arguments))
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    line = result.output.strip()
    assert line.startswith("error: ") and words in line and "\n" not in line
