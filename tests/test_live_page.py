"""The page "Try it" of the documentation: its numbers are the library's, and it works in a browser."""

import importlib.util
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import metricconv as mc
from metricconv.io import images

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive a browser")
viz = pytest.importorskip("metricconv.viz", reason="needs matplotlib for the outlines of balls")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium browser, none is installed"),
]

ROOT = Path(__file__).parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SIZE = (15, 18)

# Metric, balls of some pixels, and both filters of a part: everything that the page computes.
NUMBERS = """({image, kind, options, pixels, part, k}) => {
    const live = metricconvLive, metric = live[kind](image, options), field = live.flowField(metric);
    return {
        M: metric.M.map((f) => [...f]),
        omega: metric.omega && metric.omega.map((f) => [...f]),
        balls: pixels.map(([y, x]) => {
            const ball = live.unitBalls(metric, field, y, x);
            return {center: ball.center, tangent: [...ball.tangent], geodesic: [...ball.geodesic]};
        }),
        tangent: live.average(image, part, live.tangentSampler(metric, k), k).channels.map((c) => [...c]),
        geodesic: live.average(image, part, live.geodesicSampler(field, k), k).channels.map((c) => [...c]),
    };
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def scripts(browser):
    page = browser.new_page()
    for name in ("metric", "ball"):
        page.add_script_tag(path=ROOT / "docs" / "live" / f"{name}.js")
    yield page
    page.close()


def close(actual, expected):
    torch.testing.assert_close(torch.tensor(actual, dtype=torch.float64), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gradient", {"iota": 0.05, "alpha": 10.0, "scale": 1.5}),
        ("gradient", {"iota": 0.02, "alpha": 30.0, "scale": 1.5, "eps_omega": 0.1}),
        ("gradient", {"iota": 0.1, "alpha": 100.0, "scale": None, "eps_omega": 0.5}),
        ("edge", {"iota": 0.02, "alpha": 10.0, "scale": 1.5}),
        ("edge", {"iota": 0.005, "alpha": 0.0, "scale": None}),  # a constant metric, whose balls leave the image
    ],
)
def test_page_computes_the_numbers_of_the_library(scripts, channels, kind, options):
    x = torch.rand(1, channels, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[..., 10:, 12:] = 0.5  # without gradient in the corner
    pixels, k = [(0, 0), (7, 9), (14, 17), (3, 16)], 11
    renamed = {"epsOmega" if name == "eps_omega" else name: value for name, value in options.items()}
    found = scripts.evaluate(
        NUMBERS,
        {
            "image": {"height": SIZE[0], "width": SIZE[1], "channels": [c.flatten().tolist() for c in x[0]]},
            "kind": f"{kind}Metric",
            "options": renamed,
            "pixels": pixels,
            "part": {"top": 2, "left": 5, "height": 13, "width": 7},
            "k": k,
        },
    )
    make = partial(mc.metrics.IMAGE_METRICS[kind], **options, padding_mode="reflect")
    metric = make(x)
    close(found["M"], metric.M[0, 0].flatten(1))
    assert (found["omega"] is not None) == isinstance(metric, mc.Randers)
    if isinstance(metric, mc.Randers):
        close(found["omega"], metric.omega[0, 0].flatten(1))
    for name in viz.balls.KINDS:
        for ball, expected in zip(found["balls"], viz.unit_balls(metric, pixels, name), strict=True):
            pixel = torch.tensor(expected.pixel, dtype=torch.float64)
            close(ball["center"], expected.center - pixel)
            close(ball[name], (expected.outline - pixel).flatten())
        average = {"tangent": mc.filters.tangent_filter, "geodesic": mc.filters.geodesic_filter}[name]
        close(found[name], average(x[0], k, make, channel_axis=0)[:, 2:15, 5:12].flatten(1))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs is not installed: pip install 'metricconv[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(params=[1200, 390])
def page(browser, site, request):
    """The page, opened from a folder, at the width of a desktop or of a phone with a touch screen."""
    phone = request.param < 500
    context = browser.new_context(viewport={"width": request.param, "height": 800}, has_touch=phone)
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda call: requests.append(call.url))
    page.goto((site / "live.html").as_uri())
    page.wait_for_function("document.querySelector('#live-geodesic + figcaption').textContent !== ''")
    yield page
    context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file://", "blob:", "data:"))] == []


def picture(page, name):
    return page.evaluate(f"document.getElementById('live-{name}').toDataURL()")


def changes(page, name, before):
    page.wait_for_function(f"document.getElementById('live-{name}').toDataURL() !== {before!r}")


def readout(page):
    return page.inner_text("#live-readout")


def over_image(page, down, right):
    """Return the position on the screen of a point of the image, given as fractions."""
    page.locator("#live-image").scroll_into_view_if_needed()
    box = page.locator("#live-image").bounding_box()
    return box["x"] + right * box["width"], box["y"] + down * box["height"]


def test_page_fits_its_width(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for name in ("image", "close", "original", "tangent", "geodesic"):
        box = page.locator(f"#live-{name}").bounding_box()
        assert box["width"] > 90 and box["height"] > 90, name


def test_pointer_moves_the_balls_and_a_click_filters(page):
    ball, filtered = picture(page, "close"), picture(page, "geodesic")
    page.mouse.move(*over_image(page, 0.25, 0.75))
    changes(page, "close", ball)
    assert readout(page).startswith("pixel (36, 144)")
    assert picture(page, "geodesic") == filtered  # until the click
    page.mouse.down()
    page.mouse.up()
    changes(page, "geodesic", filtered)


def test_touch_moves_the_balls_and_filters(page):
    if not page.evaluate("'ontouchstart' in window"):
        pytest.skip("a desktop")
    ball, filtered = picture(page, "close"), picture(page, "tangent")
    page.touchscreen.tap(*over_image(page, 0.75, 0.25))
    changes(page, "close", ball)
    changes(page, "tangent", filtered)
    assert readout(page).startswith("pixel (108, 48)")


def test_keys_move_the_pixel(page):
    page.mouse.move(0, 0)
    page.focus("#live-image")
    start = readout(page)
    y, x = map(int, re.match(r"pixel \((\d+), (\d+)\)", start).groups())
    filtered = picture(page, "geodesic")
    for key in ("ArrowDown", "ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    assert readout(page).startswith(f"pixel ({y + 1}, {x + 11})")
    for _ in range(30):
        page.keyboard.press("Shift+ArrowUp")
    assert readout(page).startswith(f"pixel (0, {x + 11})")  # not outside of the image
    page.keyboard.press("Enter")
    changes(page, "geodesic", filtered)


def set_value(page, name, value):
    page.locator(f"#live-{name}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def test_every_option_changes_the_balls(page):
    before = picture(page, "close")
    page.check("input[value=gradient]")
    changes(page, "close", before)
    for name, value in (("iota", "-1"), ("alpha", "30"), ("eps", "0.2"), ("noise", "0.2")):
        before = picture(page, "close")
        set_value(page, name, value)
        changes(page, "close", before)
    before = picture(page, "close")
    page.check("input[value=edge]")
    changes(page, "close", before)
    assert page.is_disabled("#live-eps")


def test_printed_code_computes_the_shown_average(page, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (24, 30, 3), dtype=np.uint8)
    images.write(tmp_path / "small.png", images.ImageData(noise, channel_axis=-1))
    page.check("input[value=gradient]")
    set_value(page, "noise", "0")
    set_value(page, "eps", "0.3")
    page.set_input_files("#live-file", tmp_path / "small.png")
    page.wait_for_function("document.querySelector('#live-code').textContent.includes('channel_axis')")
    names = {"image": noise / 255}
    exec(page.inner_text("#live-code"), names)
    for name in viz.balls.KINDS:
        shown = page.evaluate(
            """async (name) => {
                const canvas = document.getElementById(`live-${name}`), reduced = document.createElement("canvas");
                [reduced.width, reduced.height] = [30, 24];
                const pen = reduced.getContext("2d");
                pen.imageSmoothingEnabled = false;
                pen.drawImage(canvas, 0, 0, 30, 24);
                return [...pen.getImageData(0, 0, 30, 24).data];
            }""",
            name,
        )
        difference = np.abs(np.array(shown).reshape(24, 30, 4)[..., :3] / 255 - names[name])
        assert difference.max() < 0.01, name


def test_file_that_is_no_image_shows_error(page, tmp_path):
    (tmp_path / "rubbish.png").write_bytes(b"not an image" * 10)
    before = picture(page, "image")
    page.set_input_files("#live-file", tmp_path / "rubbish.png")
    page.wait_for_selector("text=rubbish.png: not an image")
    assert picture(page, "image") == before
