"""How the page is served."""

import socket

import pytest
from torch import nn

from metricconv._errors import UserError
from metricconv.app import launch


def test_port_in_use_raises():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            launch(port, browser=False, block=False)


def test_checkpoint_and_model_are_exclusive():
    with pytest.raises(ValueError, match=r"`checkpoint` .* cannot be combined with `model`"):
        launch(0, "trained.pt", browser=False, model=nn.Identity(), block=False)
