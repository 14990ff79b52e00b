"""`edgespec serve` as a process: it says where it listens, answers, and stops when told."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.command_line import edgespec, environment
from tests.support.gguf_models import CHATML, write_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("served") / "tiny.gguf", template=CHATML)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for one process")
def test_a_server_answers_until_it_is_interrupted(model: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "edgespec",
        "serve",
        str(model),
        "--port",
        "0",
        "--alias",
        "me",
    ]
    with subprocess.Popen(
        [*command, "--port", "0", "--max-batch", "2", "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            found = re.search(r"serving tiny on (http://127\.0\.0\.1:\d+) ", line)
            assert found is not None, process.stderr.read() if process.stderr else line
            assert "2 replies at once" in line
            body = json.dumps({"model": "me", "prompt": "a", "max_tokens": 3}).encode()
            asked = urllib.request.Request(
                f"{found[1]}/v1/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] == 3
        finally:
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.splitlines()[-1] == "edgespec serve: stopped"
    assert "Traceback" not in said


def test_a_public_address_needs_a_key(model: Path) -> None:
    edgespec("serve", model, "--host", "0.0.0.0").assert_refused(2, "needs a key", "--api-key")


def test_a_port_that_is_taken_is_said(model: Path) -> None:

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        edgespec("serve", model, "--port", port, "--threads", "1").assert_refused(2, port)
