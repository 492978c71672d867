"""The explorer in a real browser: clicks, sliders, uploads, networks, bad files; and no external requests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

import metricconv as mc
from layers import randomize_predictors
from metricconv.io import images

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive a browser")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium browser, none is installed"),
]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE = 60_000  # ms, on a busy machine


@pytest.fixture(scope="module")
def address():
    # conftest, as for the tests: it lets torchvision be imported
    code = "from conftest import _TORCHVISION_SCHEMAS; from metricconv.cli import main; main()"
    command = [sys.executable, "-c", code, "explore", "--no-browser", "--port", "0"]
    paths = (Path(mc.__file__).parents[1], Path(__file__).parents[2], Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as server:
        try:
            printed = ""
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", printed)):
                line = server.stdout.readline()
                assert line, f"the explorer did not start: {printed}"
                printed += line
            yield found[0]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, address):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PATIENCE)
    page.requests = []
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(address)
    page.wait_for_selector("#shown img")
    page.wait_for_selector("#close img")
    yield page
    page.close()


def source(page, name):
    return page.get_attribute(f"#{name} img", "src")


def changes(page, name, before, wait=PATIENCE):
    """Wait until an image changes."""
    page.wait_for_function(f"document.querySelector('#{name} img').src !== {before!r}", timeout=wait)


def click(page, x, y, before):
    """Click the image until the close-up changes: clicks during an update are ignored."""
    for wait in (5_000, 15_000, PATIENCE):
        page.click("#shown img", position={"x": x, "y": y})
        try:
            return changes(page, "close", before, wait)
        except playwright.TimeoutError:
            continue
    pytest.fail("clicks changed nothing")


def number(page, name):
    row = page.locator("#properties tr", has_text=name)
    return row.locator("td, th").nth(1).inner_text()


def test_page_makes_no_external_requests(page, address):
    assert page.inner_text("h1") == "metricconv explorer"
    page.wait_for_selector("#filtered img")
    elsewhere = [url for url in page.requests if not url.startswith((address, "data:", "blob:"))]
    assert elsewhere == []


def test_click_shows_ball_of_pixel(page):
    before, close = number(page, "pixel"), source(page, "close")
    box = page.locator("#shown img").bounding_box()
    side = min(box["width"], box["height"])  # the image is square and centered
    x, y = (box["width"] - side) / 2 + 0.75 * side, (box["height"] - side) / 2 + 0.25 * side
    click(page, x, y, close)
    assert number(page, "pixel") != before
    row, column = map(int, number(page, "pixel").split(","))
    assert abs(row - 128) <= 4 and abs(column - 384) <= 4


def test_slider_changes_ball(page):
    close, radius = source(page, "close"), float(number(page, "radius"))
    slider = page.locator("#iota input[type=range]")
    slider.click(position={"x": 0.8 * slider.bounding_box()["width"], "y": 4})
    changes(page, "close", close)
    assert float(number(page, "radius")) < 0.5 * radius


def test_image_is_uploaded_and_noise_added(page, tmp_path):
    image = images.ImageData(np.random.default_rng(0).integers(0, 255, (60, 80), dtype=np.uint8))
    images.write(tmp_path / "small.png", image)
    before = source(page, "shown")
    page.set_input_files("#file input[type=file]", tmp_path / "small.png")
    changes(page, "shown", before)
    page.wait_for_function("document.querySelector('#shown img').naturalWidth === 480")
    assert number(page, "pixel") == "29, 39"
    slider = page.locator("#noise input[type=range]")
    slider.click(position={"x": 0.4 * slider.bounding_box()["width"], "y": 4})
    page.wait_for_selector("#filtered >> text=/→ .* dB/")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    net = mc.convert(torchvision.models.resnet18(num_classes=7), ["layer2.1.conv2", "layer3.1.conv2"])
    path = tmp_path_factory.mktemp("networks") / "trained.pt"
    torch.save(randomize_predictors(net).state_dict(), path)
    return path


def give_checkpoint(page, path):
    if not page.is_visible("#checkpoint"):
        page.click("text=trained network")
    page.set_input_files("#checkpoint input[type=file]", path)


def test_balls_of_network_layers_are_shown(page, checkpoint):
    own, shown = source(page, "close"), source(page, "shown")
    give_checkpoint(page, checkpoint)
    changes(page, "close", own)
    assert source(page, "shown") != shown
    assert number(page, "layer") == "layer2.1.conv2"
    first = source(page, "close")
    page.click("#layer input")
    page.click("[role=option] >> text=layer3.1.conv2")
    changes(page, "close", first)
    assert number(page, "layer") == "layer3.1.conv2"
    second = source(page, "close")
    click(page, 250, 150, second)


def test_ambiguous_checkpoint_shows_warning(page, tmp_path):
    net = mc.convert(torchvision.models.resnet18(num_classes=7), "layer[234].?.conv?")
    torch.save(net.state_dict(), tmp_path / "bare.pt")
    give_checkpoint(page, tmp_path / "bare.pt")
    page.wait_for_selector("text=bare.pt: strides are unknown")


def test_invalid_checkpoint_shows_error(page, tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    (tmp_path / "rubbish.ckpt").write_bytes(b"this is no checkpoint" * 10)
    close = source(page, "close")
    give_checkpoint(page, tmp_path / "rubbish.ckpt")
    page.wait_for_selector("text=rubbish.ckpt: is not a checkpoint")
    page.click("#checkpoint [aria-label='Clear']")
    give_checkpoint(page, tmp_path / "other.pt")
    page.wait_for_selector("text=other.pt: has no adaptive convolutions")
    click(page, 200, 200, close)
    assert float(number(page, "radius")) > 0


def test_invalid_image_shows_error(page, tmp_path):
    (tmp_path / "rubbish.png").write_bytes(b"not an image" * 10)
    before = source(page, "shown")
    page.set_input_files("#file input[type=file]", tmp_path / "rubbish.png")
    page.wait_for_selector("text=rubbish.png: not a supported image")
    assert source(page, "shown") == before
    close = source(page, "close")
    click(page, 200, 200, close)


@pytest.mark.timing
@pytest.mark.parametrize("layer", [False, True])
def test_click_takes_less_than_300_ms(page, checkpoint, layer):
    if layer:
        own = source(page, "close")
        give_checkpoint(page, checkpoint)
        changes(page, "close", own)
        click(page, 240, 140, source(page, "close"))
    page.wait_for_timeout(5_000)
    times = []
    for step in range(15):
        box = page.locator("#shown img").bounding_box()
        before = source(page, "close")
        page.evaluate(f"""() => {{
            window.took = 0;
            const watch = () => {{ if (document.querySelector("#close img").src === {before!r}) setTimeout(watch, 2);
                                   else window.took = performance.now() - window.start; }};
            window.addEventListener("click", () => {{ window.start = performance.now(); watch(); }},
                                    {{capture: true, once: true}});
        }}""")
        page.mouse.click(box["x"] + 150 + 12 * step, box["y"] + 120 + 9 * step)
        page.wait_for_function("window.took > 0")
        times.append(page.evaluate("window.took"))
        page.wait_for_timeout(300)
    print(f"median {sorted(times)[7]:.0f} ms, longest {max(times):.0f} ms")
    assert sorted(times)[7] < 300
