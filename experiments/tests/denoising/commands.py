"""Commands on a tiny dataset, for tests."""

from typer.testing import CliRunner

from metricconv._files import read_table
from metricconv_experiments.denoising.commands import app

MOMENT = ("seconds", "ms_per_image", "date")


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
