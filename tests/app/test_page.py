"""How the page is served."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import metricconv as mc
from metricconv._errors import UserError
from metricconv.app import launch

FILE = {"_type": "gradio.FileData"}


def test_port_in_use_raises():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            launch(port, browser=False, block=False)


@pytest.mark.parametrize("port", [-1, 2**16, 2**70, "7860"])
def test_port_out_of_range_raises(port):
    with pytest.raises(ValueError, match=r"`port` \(=.*\) must be an integer from 0 to 65535"):
        launch(port, browser=False, block=False)


def test_checkpoint_and_model_are_exclusive():
    with pytest.raises(ValueError, match=r"`checkpoint` .* cannot be combined with `model`"):
        launch(0, "trained.pt", browser=False, model=nn.Identity(), block=False)


def request(port, method, path, host="127.0.0.1", body=None):
    """Return the status and the text of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "Host": host}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    with connection.getresponse() as response:
        answer = response.status, response.read().decode()
    connection.close()
    return answer


def test_server_is_private(tmp_path):
    """One server, as it takes seconds to start: foreign hosts, invalid values, and its folder of uploads."""
    command = [sys.executable, "-m", "metricconv", "explore", "--port", "0", "--no-browser"]
    environment = os.environ | {"PYTHONPATH": str(Path(mc.__file__).parents[1]), "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as server:
        try:
            port = int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
            assert request(port, "GET", "/config", "localhost")[0] == 200
            assert request(port, "GET", "/config", "rebound.example") == (400, "Invalid host header")
            (folder,) = tmp_path.glob("metricconv-*")
            assert folder.stat().st_mode & 0o777 == stat.S_IRWXU
            for label, value in (("α: edge sensitivity", 1e9), ("α: edge sensitivity", None), ("stencil", None)):
                body = with_value(port, "filter_image", label, value)
                status, answer = request(port, "POST", "/gradio_api/run/filter_image", body=body)
                assert status == 500 and "Traceback" not in answer
            indices = ([10**9, -5], ["a", "b"], [None, 1], None)
            events = [*({"index": index, "value": None} for index in indices), {"index": [3, 4]}, {}, None, []]
            for event, expected in zip(events, (200, 500, 500, 500, 200, 500, 500, 500), strict=True):
                body = with_value(port, "click", None, None) | {"event_data": event}
                assert request(port, "POST", "/gradio_api/run/click", body=body)[0] == expected
            for path in (None, "a.png", {"path": "/etc/hostname"}, {"path": "/etc/hostname", "meta": FILE}):
                assert request(port, "POST", "/gradio_api/run/upload_image", body={"data": [path]})[0] == 500
            assert request(port, "POST", "/gradio_api/run/click", body={"data": []})[0] == 500
        finally:
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=60)
    assert "Traceback" not in errors and not folder.exists()


def with_value(port, handler, label, value):
    """Return the inputs of a handler, with one of them replaced."""
    config = json.loads(request(port, "GET", "/config")[1])
    components = {c["id"]: c["props"] for c in config["components"]}
    inputs = next(d["inputs"] for d in config["dependencies"] if d["api_name"] == handler)
    return {"data": [value if components[i].get("label") == label else components[i].get("value") for i in inputs]}
