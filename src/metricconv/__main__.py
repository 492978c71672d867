"""``python -m metricconv`` is the command ``metricconv``."""

from .cli import main

main()
