"""How the page is served."""

import socket

import pytest
from torch import nn

from metricconv._errors import UserError
from metricconv.app import launch


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is taken"):
            launch(port, browser=False, block=False)


def test_a_network_comes_from_one_place():
    with pytest.raises(ValueError, match=r"`checkpoint` .* and `model` must not both be given"):
        launch(0, "trained.pt", browser=False, model=nn.Identity(), block=False)
