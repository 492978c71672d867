"""A script: the denoising commands on a tiny data root, as torchrun starts them."""

import sys
from pathlib import Path

if __name__ == "__main__":
    from experiments.denoising.conftest import expected
    from metricconv.experiments.denoising import pictures
    from metricconv.experiments.denoising.commands import app

    for name, value in expected(Path(sys.argv[sys.argv.index("--data-root") + 1])).items():
        setattr(pictures, name, value)
    app()
