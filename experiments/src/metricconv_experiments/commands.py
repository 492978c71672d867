"""``metricconv reproduce``: the commands of all experiments."""

import typer

from .classification.commands import app as classification
from .denoising.commands import app as denoising
from .lattice.commands import app as lattice
from .segmentation.commands import app as segmentation
from .segmentation.orientation import app as orientation
from .stability.commands import app as stability

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Experiments of the paper, one command per table.")
for experiment in (denoising, classification, lattice, stability, segmentation, orientation):
    app.registered_commands += experiment.registered_commands
