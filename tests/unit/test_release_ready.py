"""What systemd runs after a start, rendered and run as it is: until when it waits for the server."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jinja2
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """It holds its port, and answers once `serve_forever` runs."""
    with HTTPServer(("127.0.0.1", 0), Healthy, bind_and_activate=False) as made:
        made.server_bind()
        yield made


@pytest.fixture
def script(server: HTTPServer) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
        text = environment.from_string((ROOT / "templates/release/ready.j2").read_text()).render(_plan_cache="a/b")
        home = place / "servers/gpu0"
        home.mkdir(parents=True)
        (home / "server.env").write_text(f"SGLANG_PVE_HOST='0.0.0.0'\nSGLANG_PVE_PORT={server.server_port}\n")
        made = place / "ready"
        made.write_text(text.replace("/opt/sglang", name))
        yield made


def wait(script: Path, main: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/usr/bin/python3", script, "0"],
        env={"MAINPID": str(main)},
        user=NOBODY if os.getuid() == 0 else None,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_that_is_another_users_still_is_waited_for(script: Path, server: HTTPServer) -> None:
    """systemd runs it before the server's process has become the servers' user."""
    waiting = wait(script, 1)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2.5)
    server.server_activate()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert waiting.wait(20) == 0
    server.shutdown()


def test_a_server_that_ended_is_not_waited_for(script: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    said = wait(script, ended.pid).communicate(timeout=20)[1]
    assert said == "the server ended before it was ready\n"
