"""Fixtures for all unit tests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.lab_fixture import lab  # noqa: F401


@pytest.fixture
def serve():
    """Start a server from {path: (status, body)} and return its base URL; a body may be text."""
    running = []

    def start(answers):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = answers.get(self.path, (404, "no such path"))
                text = body if isinstance(body, str) else json.dumps(body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
