"""``python -m metricconv.experiments.classification COMMAND``."""

from .commands import app

app(prog_name="python -m metricconv.experiments.classification")
