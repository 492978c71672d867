"""A script: the denoising commands on a tiny data root, as torchrun starts them."""

import sys
from pathlib import Path

if __name__ == "__main__":
    from denoising.conftest import expected
    from metricconv_experiments.denoising import inputs
    from metricconv_experiments.denoising.commands import app

    for name, value in expected(Path(sys.argv[sys.argv.index("--data-root") + 1])).items():
        setattr(inputs, name, value)
    app()
