"""The experiments of the metric convolutions paper, run by ``metricconv reproduce`` and ``metricconv report``."""

__version__ = "0.2.0"
