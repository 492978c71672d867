"""The page "Try it" of the documentation: its numbers are the library's, and it works in a browser."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

import metricconv as mc

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive a browser")
viz = pytest.importorskip("metricconv.viz", reason="needs matplotlib for the outlines of balls")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium browser, none is installed"),
]

LIVE = Path(__file__).parents[1] / "docs" / "live"
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
        page.add_script_tag(path=LIVE / f"{name}.js")
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
