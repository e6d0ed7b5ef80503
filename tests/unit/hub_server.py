"""The few answers of a model hub that huggingface_hub asks for, on loopback, with faults that a test chooses."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPO = "lab/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """``cut``: file name -> bytes after which its next answer breaks off. ``wrong``: names with a wrong digest."""

    def __init__(self, files: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob("*") if path.is_file()}
        self.cut: dict[str, int] = {}
        self.wrong: set[str] = set()
        self.token = ""
        self.sent: list[tuple[str, int]] = []  # (file, from which byte)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def sha256(self, name: str) -> str:
        return "0" * 64 if name in self.wrong else hashlib.sha256(self.files[name]).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_words: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.refuse(401, "RepoNotFound")
            return
        if path.startswith(f"/api/models/{REPO}"):
            self.info(path.rpartition("/revision/")[2])
            return
        place, _, name = path.partition(f"/resolve/{COMMIT}/")
        if place != f"/{REPO}" or name not in self.server.files:
            self.refuse(404, "RepoNotFound" if place != f"/{REPO}" else "EntryNotFound")
            return
        self.file(name)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def info(self, revision: str) -> None:
        if revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
            return
        siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
        body = json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self, name: str) -> None:
        data, start = self.server.files[name], 0
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{self.server.sha256(name)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.server.sent.append((name, start))
        end = self.server.cut.pop(name, len(data))
        self.wfile.write(data[start:end])
        if end < len(data):
            self.close_connection = True


@contextlib.contextmanager
def serving(files: Path) -> Iterator[Hub]:
    with Hub(files) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()
