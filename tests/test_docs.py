"""The documentation builds without warnings, loads nothing from other servers, and its snippets and commands run."""

import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import metricconv as mc

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

# Commands that serve, download or need a GPU: only their options are checked.
_NOT_RUN = ("explore", "reproduce")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs is not installed: pip install 'metricconv[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stderr
    return folder


class _References(HTMLParser):
    """Collects what a page loads by itself, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("img", "script", "iframe") and given.get("src"):
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload") and given.get("href"):
            self.loaded.append(given["href"])


@pytest.mark.slow
def test_site_builds_and_loads_nothing_from_other_servers(site):
    pages = {path: _References(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > len(PAGES) - 1
    for path, page in pages.items():
        assert not [url for url in page.loaded if re.match(r"(https?:)?//", url)], path
        for url in page.loaded + page.links:
            target = url.split("#")[0].split("?")[0]
            if target and path.name != "404.html" and not re.match(r"https?:|mailto:", target):
                assert (path.parent / target).exists(), f"{path.name} refers to {url}"


@pytest.mark.slow
def test_site_has_every_page_of_results_and_benchmarks(site):
    index = (site / "index.html").read_text(encoding="utf-8")
    for path in (path for name in ("results", "benchmarks") for path in (ROOT / name).rglob("*.md")):
        page = path.relative_to(ROOT).with_name(path.name.replace("README", "index")).with_suffix(".html")
        assert (site / page).exists() and f'href="{page.as_posix()}"' in index


@pytest.mark.slow
def test_links_between_docs_and_results_work_in_the_site(site):
    assert 'href="results/claims.html"' in (site / "reproduction.html").read_text(encoding="utf-8")
    assert 'href="../reproduction.html"' in (site / "results/index.html").read_text(encoding="utf-8")
    assert ".csv)" not in (site / "results/classification/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_formulas_of_the_site_are_mathml(site):
    page = (site / "concepts.html").read_text(encoding="utf-8")
    assert page.count("<math") > 5 and "<msqrt>" in page
    for path in site.rglob("*.html"):
        assert "$$" not in path.read_text(encoding="utf-8"), path


@pytest.mark.slow
def test_docstrings_of_the_site_have_no_markup_left(site):
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<em>" not in text and "<blockquote>" not in text and "\\_" not in text, page.name


def test_docstrings_are_escaped_and_doctests_become_code_blocks():
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "_docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "Take x (B, *out) to ``y_1``.\n\n    M_1 * M_2\n\nArgs:\n    x_1: as s_1.\n\n>>> 1 + 1  # doctest: +SKIP\n2"
    assert module.readable(text) == (
        "Take x (B, \\*out) to ``y_1``.\n\n    M_1 * M_2\n\nArgs:\n    x_1: as s\\_1.\n\n```pycon\n>>> 1 + 1\n2\n```"
    )


def test_api_pages_document_every_public_name():
    viz = pytest.importorskip("metricconv.viz")
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = {name.rpartition(".")[2] for name in re.findall(r"^::: metricconv\.(\S+)", text, re.MULTILINE)}
    names |= {"PARAMETRIZATIONS", "STENCILS", "metric_conv1d", "metric_conv2d", "metric_conv3d"}  # in the text
    modules = (mc, mc.conversion, mc.filters, mc.geodesic, mc.metrics, mc.nn, mc.ops, mc.stencils, mc.supports, viz)
    public = {name for module in modules for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
    assert public - names == set()


def _with_snippets() -> list[object]:
    """Return the pages with snippets. The export takes long, and tests/nn/test_export.py makes the same call."""
    pages = [page for page in PAGES if _blocks(page, "python")]
    return [pytest.param(page, marks=pytest.mark.slow) if page.stem == "export" else page for page in pages]


@pytest.mark.parametrize("page", _with_snippets(), ids=_name)
def test_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    blocks = _blocks(page, "python")
    for module in ("onnxscript", "onnxruntime") if page.stem == "export" else ("dask",):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, _name(page), "exec"), names)
    assert len(names) > 1  # what the page defines, beside __builtins__


def test_training_guide_runs_with_its_distributed_block():
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        names: dict[str, object] = {}
        for block in _blocks(DOCS / "guides/train.md", "py(?:thon)?"):
            exec(compile(block, "train.md", "exec"), names)
        assert isinstance(names["net"], torch.nn.Module)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("page", [*(p for p in PAGES if _blocks(p, "console")), ROOT / "README.md"], ids=_name)
def test_commands_of_a_page_work_as_printed(page, tmp_path, monkeypatch):
    cli = pytest.importorskip("metricconv.cli.app")
    monkeypatch.chdir(tmp_path)
    _write_images(tmp_path)
    lines = [line for block in _blocks(page, "console") for line in block.splitlines()]
    assert lines and all(line.startswith("$ ") for line in lines)
    for line in lines:
        program, *arguments = shlex.split(line[2:], comments=True)
        if program == "python" and arguments[0] == "-m":
            assert (ROOT / f"{arguments[1].replace('.', '/')}.py").exists()
        elif program == "python":
            assert (ROOT / arguments[0]).exists()
        elif program == "dask":
            assert arguments[0] in ("scheduler", "worker")
        elif program == "metricconv" and (arguments[0] in _NOT_RUN or "--scheduler" in arguments):
            _parses(*arguments)
        elif program == "metricconv":
            assert cli.run(arguments) == 0, line
        else:
            assert program == "pip" and _extras(line) <= _extras_known(), line


@pytest.mark.parametrize("page", sorted(ROOT.glob("results/*/README.md")), ids=_name)
def test_commands_of_results_pages_parse(page, tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    printed = re.findall(r"`(?:[\w. -]*metricconv )?((?:reproduce |classify|lr-range)[^`]*)`", page.read_text())
    assert printed
    for line in printed:
        name, *arguments = shlex.split(line.removeprefix("reproduce ").replace("…", ""))
        for weights in (word for word in arguments if word.endswith(".pth")):
            Path(weights).touch()
        _parses("reproduce", name, *arguments)


def _write_images(folder: Path) -> None:
    """Write the images that the commands read."""
    numpy, skimage = pytest.importorskip("numpy"), pytest.importorskip("skimage")
    zarr = pytest.importorskip("zarr")
    gray = skimage.data.camera()[96:120, 256:280]
    skimage.io.imsave(folder / "photo.png", gray)
    skimage.io.imsave(folder / "big.tif", gray.astype(numpy.float32) / 255)
    zarr.create_array(folder / "big.zarr", data=gray.astype(numpy.float32) / 255, chunks=(16, 16))


def _parses(name: str, *arguments: str) -> None:
    """Check a command's options without running it."""
    import typer

    from metricconv.cli.app import app
    from metricconv_experiments.commands import app as reproduce

    commands = typer.main.get_command(app).commands
    if name == "reproduce" and "--help" not in arguments:
        commands = typer.main.get_command(reproduce).commands
        name, *arguments = arguments
    assert name in commands
    if "--help" not in arguments:
        commands[name].make_context(name, list(arguments))


def _extras(line: str) -> set[str]:
    found = re.search(r"\[(.*?)\]", line)
    return set(found[1].split(",")) if found else set()


def _extras_known() -> set[str]:
    import tomllib

    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_every_figure_is_used_and_every_example_is_shown():
    text = "".join(page.read_text(encoding="utf-8") for page in [*PAGES, ROOT / "README.md"])
    assert not [path.name for path in DOCS.rglob("*.png") if path.name not in text]
    assert all(f'--8<-- "examples/{path.name}"' in text for path in (ROOT / "examples").glob("*.py"))
