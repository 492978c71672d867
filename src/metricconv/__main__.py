"""``python -m metricconv`` is the command ``metricconv``."""

from _metricconv_command import main

main()
