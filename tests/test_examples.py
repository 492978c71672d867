"""Every example runs unchanged at a small size, and the statement on its page holds."""

import importlib.util
import math
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("skimage")

EXAMPLES = Path(__file__).parents[1] / "examples"

# Arguments that make each example small, and a condition on its return value.
SMALL = {
    # The first four entries are the noisy image and supports without a metric.
    "denoise": ({"size": 48}, lambda psnr: min([*psnr.values()][4:]) > max([*psnr.values()][:4])),
    "drop_in": ({"steps": 4, "count": 6}, lambda seen: seen["gap"] < 1e-4 and len(seen["after"]) == 4),
    "implicit_metric": ({"size": 32, "steps": 3}, lambda fit: 0 <= fit["residual"] < 2 and fit["anisotropy"] >= 1),
    "learn_filter": ({"size": 32, "steps": 6}, lambda psnr: psnr["test noise"][-1] > psnr["test noise"][0]),
    "receptive_fields": ({"size": 32, "depth": 2}, lambda spread: all(9 < pixels < 32**2 for pixels in spread)),
    "remove_noise": ({"size": 96}, lambda psnr: max(psnr, key=psnr.get) == "mc.filters.denoise"),
    "thin_structures": ({"steps": 2, "count": 2}, lambda dice: all(0 <= score <= 1 for score in dice.values())),
    "vessels": ({"size": 120}, lambda covered: covered["geodesic"] > 1.5 * covered["tangent"]),
    "volume": ({"size": 12, "depth": 6, "samples": 3}, lambda seen: seen["tangent balls"] > seen["noisy"]),
    "learned_supports": ({"steps": 3, "count": 4}, lambda layers: all(1 <= a < math.inf for a in layers.values())),
}


@pytest.mark.parametrize("name", SMALL)
def test_example_runs_and_its_claim_holds(name, tmp_path):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options, holds = SMALL[name]
    returned = module.main(folder=tmp_path / "made by it", **options)
    assert holds(returned), returned
    assert [path.name for path in (tmp_path / "made by it").iterdir()] == [f"{name}.png"]


def test_every_example_is_tested_and_short():
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == SMALL.keys()
    assert all(len(text.splitlines()) <= 75 for text in scripts.values())
