"""A script: the denoising commands, as torchrun starts them."""

if __name__ == "__main__":
    from conftest import _TORCHVISION_SCHEMAS  # noqa: F401  (as for the tests: before Lightning imports torchvision)
    from metricconv.experiments.denoising.commands import app

    app()
