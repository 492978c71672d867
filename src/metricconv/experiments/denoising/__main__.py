"""``python -m metricconv.experiments.denoising COMMAND``."""

from .commands import app

app(prog_name="python -m metricconv.experiments.denoising")
