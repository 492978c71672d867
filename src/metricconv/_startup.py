"""Imported before anything that takes long: ``python -m metricconv`` exits quietly on Ctrl+C during its imports."""

import sys

from _metricconv_command import exit_on_interrupt

if sys.argv[:1] == ["-m"] and "metricconv" in sys.orig_argv:  # as Python starts a package as a command
    exit_on_interrupt()
