"""Output paths that must not be replaced, interrupted jobs, stale temporary files, and messages of libraries."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

import metricconv as mc
from command_errors import fails
from metricconv.cli.app import run
from metricconv.cli.filtering import filter_file, progress_bar

BOX = ["-m", "box", "-k", "3"]


@pytest.fixture(autouse=True)
def _photographs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10), dtype=np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(pixels).save(Path("photos") / name)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("command", [["filter"], ["balls", "--out"]])
def test_pipes_are_not_replaced(command, linked, capsys):
    os.mkfifo("pipe.png")
    if linked:
        Path("link.png").symlink_to("pipe.png")
    name = "link.png" if linked else "pipe.png"
    fails([command[0], "photos/a.png", *command[1:], name, "--force"], capsys, "is not a regular file")
    assert stat.S_ISFIFO(os.stat("pipe.png").st_mode) and Path("link.png").is_symlink() == linked


def test_links_to_devices_are_not_replaced(capsys):
    # A pseudo-terminal, whose folder cannot hold files: if this test fails, no device of the machine is replaced.
    controller, terminal = os.openpty()
    device = Path(os.ttyname(terminal))
    Path("terminal.png").symlink_to(device)
    try:
        fails(["filter", "photos/a.png", "terminal.png", "--force", *BOX], capsys, "is not a regular file")
        assert device.is_char_device() and Path("terminal.png").is_symlink()
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize("options", [[], ["--tile", "16"]])
@pytest.mark.parametrize("name", ["pipe.tif", "pipe.npy", "pipe.zarr"])
def test_pipes_are_not_read(name, options, capsys):
    os.mkfifo(name)
    fails(["filter", name, "out.zarr" if options else "out.tif", *options, *BOX], capsys, f"{name}: ")
    assert not Path("out.tif").exists() and not Path("out.zarr").exists()


def test_names_of_files_do_not_control_the_terminal(capsys):
    name = "\x1b[2J\x07\x9b:[red].png"
    Path("photos/a.png").rename(f"photos/{name}")
    Path("photos/b.png").write_bytes(b"")
    escaped = r"\x1b[2J\x07\x9b:[red].png"
    assert run(["filter", f"photos/{name}", name, *BOX]) == 0
    assert capsys.readouterr().err == f"wrote {escaped}\n"
    fails(["filter", f"photos/{name}", name, *BOX], capsys, f"{escaped}: already exists")
    bar = progress_bar()
    bar.add_task(name)
    with bar.console.capture() as captured:
        bar.console.print(bar.get_renderable())
    assert escaped in captured.get()


def test_hidden_files_of_a_folder_are_ignored():
    Path("photos/.a.0123abcd.png").write_bytes(b"left over by a killed process")
    assert run(["filter", "photos", "out", *BOX]) == 0
    assert sorted(os.listdir("out")) == ["a.png", "b.png"]


def test_stale_temporary_files_are_deleted():
    Path("out").mkdir()
    leftovers = [Path("out/.a.0123abcd.png"), Path("out/.a.4567abcd.png"), Path("out/.other.0123abcd.png")]
    for path in leftovers:
        path.write_bytes(b"")
    for path in (leftovers[0], leftovers[2]):
        os.utime(path, (0, 0))
    assert run(["filter", "photos", "out", *BOX]) == 0
    assert [path.exists() for path in leftovers] == [False, True, True]  # the second may belong to a running process


def test_interrupted_folder_jobs_resume(capsys, monkeypatch):
    written = []

    def record(source, *arguments, **options):
        written.append(source.name)
        filter_file(source, *arguments, **options)

    monkeypatch.setattr("metricconv.cli.filtering.filter_file", record)
    assert run(["filter", "photos", "out", *BOX]) == 0
    before = Path("out/b.png").stat().st_mtime_ns
    Path("out/a.png").unlink()
    assert run(["filter", "photos", "out", "--skip-existing", *BOX]) == 0
    assert written == ["a.png", "b.png", "a.png"]
    assert "skipped 1 of 2 images" in capsys.readouterr().err
    assert Path("out/a.png").exists() and Path("out/b.png").stat().st_mtime_ns == before


@pytest.mark.parametrize("arguments", [["photos/a.png", "out.png"], ["photos", "out", "--force"]])
def test_skip_existing_requires_a_folder_without_force(arguments, capsys):
    fails(["filter", *arguments, "--skip-existing", *BOX], capsys, "--skip-existing: requires")


def test_damaged_tiff_prints_one_line():
    tifffile.imwrite("a.tif", np.zeros((64, 64), np.uint16), tile=(32, 32), compression="zlib")
    Path("a.tif").write_bytes(Path("a.tif").read_bytes()[:200])
    environment = os.environ | {"PYTHONPATH": str(Path(mc.__file__).parents[1])}
    command = [sys.executable, "-m", "metricconv", "filter", "a.tif", "out.tif", *BOX]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stderr.startswith("error: a.tif: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["torch", "metricconv.cli.app", "skimage"])
def test_interrupt_while_the_command_is_imported_exits_quietly(module):
    code = f"""if True:
        import os, signal, sys
        import _metricconv_command
        class Interrupt:
            def find_spec(self, name, *rest):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupt())
        _metricconv_command.main()
    """
    environment = os.environ | {"PYTHONPATH": str(Path(mc.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 130 and done.stderr == ""


def test_interrupt_while_the_module_is_imported_exits_quietly(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(mc.__file__).parents[1])])}
    done = subprocess.run([sys.executable, "-m", "metricconv"], capture_output=True, text=True, env=environment)
    assert done.returncode == 130 and done.stderr == ""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_stopped_command_deletes_its_temporary_file(name, code):
    script = f"""if True:
        import os, signal, sys
        import PIL.Image, metricconv.cli
        save = PIL.Image.Image.save
        def stop(image, path, **options):
            save(image, path, **options)
            os.kill(os.getpid(), signal.{name})
        PIL.Image.Image.save = stop
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["metricconv", "filter", "photos/a.png", "out.png", "-m", "box", "-k", "3"]
        metricconv.cli.main()
    """
    environment = os.environ | {"PYTHONPATH": str(Path(mc.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == code and done.stderr == ""
    assert os.listdir() == ["photos"]


def test_entry_point_runs_the_command():
    code = "import sys; sys.argv = ['metricconv', '--version']; import _metricconv_command; _metricconv_command.main()"
    environment = os.environ | {"PYTHONPATH": str(Path(mc.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.strip() == mc.__version__


def test_interrupted_imports_exit_quietly():
    code = """if True:
        import sys
        import metricconv.cli
        class Interrupt:
            def find_spec(self, name, *rest):
                if name == "metricconv.cli.app":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupt())
        metricconv.cli.main()
    """
    environment = os.environ | {"PYTHONPATH": str(Path(mc.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 130 and done.stderr == ""
