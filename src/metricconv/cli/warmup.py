"""``metricconv warmup``: compile the CPU backend's kernels ahead of time."""

from typing import Annotated

import typer

import metricconv as mc

from .._errors import UserError
from .console import print_line

__all__ = ["warmup_command"]


def warmup_command(
    ball: Annotated[
        str | None, typer.Option(help="Kernels to compile: tangent or geodesic. Both if it is not given.")
    ] = None,
) -> None:
    """Compile the kernels of the CPU backend and store them on disk.

    Without this they are compiled on the first call, which then takes seconds. Run it when you build a container image
    or before a job on many machines that share a file system. Progress is printed per group of kernels.
    """
    try:
        mc.warmup(ball, report=print_line)
    except RuntimeError as error:
        raise UserError(str(error)) from error
