"""Every notebook runs from start to end, as scripts of its cells, and is committed without outputs."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("skimage")

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
# What each notebook prints and defines at the end.
SHOWN = {
    "denoise": ("estimated σ = 2", lambda names: names["psnr"](names["denoised"]) > names["psnr"](names["noisy"]) + 6),
    "balls_of_a_network": ("largest difference: ", lambda names: names["losses"][-1] < names["losses"][0] / 4),
}


def cells(name: str) -> list[str]:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["nbformat"] == 4 and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    return ["".join(cell["source"]) for cell in code]


@pytest.mark.parametrize("name", SHOWN)
def test_notebook_runs_and_shows_what_its_text_says(name):
    text, holds = SHOWN[name]
    printed, names = io.StringIO(), {}
    with redirect_stdout(printed):
        for cell in cells(name):
            exec(compile(cell, f"{name}.ipynb", "exec"), names)
    assert text in printed.getvalue() and holds(names)
    assert names["plt"].get_fignums()


def test_every_notebook_is_tested():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(SHOWN)
