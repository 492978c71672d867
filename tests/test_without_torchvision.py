"""Commands that need no torchvision run where it cannot be imported; the others print in one line what to install."""

import re
import sys

import pytest
import torch

from isolated import BROKEN, SOURCE, importers, run_python
from metricconv._torchvision import TorchvisionError, import_torchvision
from metricconv.cli import doctor

# The modules that use torchvision: its models, and the check of `doctor`.
ALLOWED = {
    "app/networks.py",
    "cli/doctor.py",
}
ADVICE = f"install the build that matches torch {torch.__version__}, see https://pytorch.org/get-started"


def test_help_of_every_command_runs_without_torchvision(tmp_path):
    code = """
        import typer
        from metricconv.cli.app import app, run

        def names(app):
            command = typer.main.get_command(app)
            return getattr(command, "commands", [command.name])

        commands = [[], *([name] for name in names(app) if name not in ("reproduce", "report"))]
        for command in commands:
            code = run([*command, "--help"])
            assert code == 0, (command, code)
        print(len(commands), "commands")
    """
    done = run_python("-c", _dedented(code), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r"(\d+) commands", done.stdout)[-1]) >= 6


def test_every_module_can_be_imported_without_torchvision(tmp_path):
    code = """
        import importlib, pkgutil, sys
        import metricconv

        for module in pkgutil.walk_packages(metricconv.__path__, "metricconv."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        assert "torchvision" not in sys.modules
    """
    done = run_python("-c", _dedented(code), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_explore_prints_in_one_line_what_to_install(tmp_path):
    pytest.importorskip("imagecodecs")
    torch.save(
        {"conv.weight": torch.ones(2, 2, 3, 3), "conv.predictor.weight": torch.ones(7, 2, 3, 3)}, tmp_path / "net.pt"
    )
    command = ["-m", "metricconv", "explore", "--no-browser", "--checkpoint", "net.pt"]
    done = run_python(*command, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: torchvision cannot be imported ({BROKEN}): {ADVICE}"


@pytest.fixture
def no_torchvision(monkeypatch) -> None:
    for name in {"torchvision", *(name for name in sys.modules if name.startswith("torchvision."))}:
        monkeypatch.setitem(sys.modules, name, None)


def test_importing_a_missing_torchvision_raises_what_to_install(no_torchvision):
    with pytest.raises(TorchvisionError, match=re.escape(ADVICE)):
        import_torchvision()


def test_doctor_reports_what_to_install(no_torchvision):
    assert ADVICE in str(doctor.missing_reason("./experiments", ["torchvision"]))


def test_torchvision_is_imported_only_by_the_modules_that_need_it():
    assert not importers(SOURCE / "metricconv", r"(torchvision|timm)(\..*)?")  # import_torchvision is the only way
    assert importers(SOURCE / "metricconv", r"(.*\.)?_torchvision(\.import_torchvision)?") == ALLOWED


def _dedented(code: str) -> str:
    return re.sub(r"^ {8}", "", code, flags=re.MULTILINE)
