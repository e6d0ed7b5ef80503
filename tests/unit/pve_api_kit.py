"""Proxmox VE's API as a small server of its own: a mapping from path to data, behind a token."""

from __future__ import annotations

import contextlib
import functools
import json
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = ("sglang@pve!read", "9f2c-secret")
BROKEN = 595  # what Proxmox VE answers for a node of the cluster that is down


@functools.cache
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sglang-pve-tls-")


@functools.cache
def certificate(name: str = "node", address: str = "127.0.0.1") -> Path:
    """A certificate for an address that is its own authority, with its key beside it; gone when the tests end."""
    place = Path(_place().name) / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=IP:{address}", "-keyout", f"{place}.key", "-out", str(place)]
    subprocess.run(command, check=True, capture_output=True)
    return place


@contextlib.contextmanager
def served(answers: Mapping[str, Any], shown: Path | None = None) -> Iterator[str]:
    """The API's URL. A number in place of data is answered as that status, a pair as status and reason."""
    shown = shown or certificate()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = answers.get(self.path.removeprefix("/api2/json"), 404)
            if self.headers.get("Authorization") != "PVEAPIToken={}={}".format(*TOKEN):
                data = 401
            status, reason = data if isinstance(data, tuple) else (data if isinstance(data, int) else 200, None)
            self.send_response(status, reason)
            body = b"" if status != 200 else data if isinstance(data, bytes) else json.dumps({"data": data}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, f"{shown}.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def cluster() -> dict[str, Any]:
    """Two nodes that are up and one that is down; containers with and without the tag, in both styles."""

    def guest(vmid: int, node: str, tags: str, kind: str = "lxc", **more: Any) -> dict[str, Any]:
        return {
            "id": f"{kind}/{vmid}",
            "vmid": vmid,
            "node": node,
            "tags": tags,
            "type": kind,
            "status": "running",
            **more,
        }

    # What waits for a restart; without current=1 it is in the answer, and may be what nobody runs.
    waiting = {"memory": 512, "dev0": "/dev/ttyUSB0"}
    devices = {f"dev{n}": f"/dev/nvidia{n},mode=0666" for n in range(8)}
    raw = [["lxc.mount.entry", f"/dev/nvidia{n} dev/nvidia{n} none bind,optional,create=file"] for n in (4, 6)]
    return {
        "/cluster/status": [
            {"type": "cluster", "name": "farm", "quorate": 1},
            {"type": "node", "name": "pve1", "ip": "192.0.2.10", "online": 1},
            {"type": "node", "name": "pve2", "ip": "192.0.2.11", "online": 1},
            {"type": "node", "name": "pve3", "ip": "192.0.2.12", "online": 0},
        ],
        "/cluster/resources?type=vm": [
            guest(200, "pve1", "gpu;sglang"),
            guest(201, "pve2", "sglang"),
            guest(202, "pve1", "sglang-old"),
            guest(203, "pve1", ""),
            guest(204, "pve2", "sglang", "qemu"),
            guest(205, "pve1", "sglang", template=1),
            guest(206, "pve3", "sglang", status="unknown"),
            guest(207, "pve2", "sglang"),
        ],
        "/nodes/pve1/lxc/200/config?current=1": {"memory": 262144, "tags": "gpu;sglang", "unprivileged": 1, **devices},
        "/nodes/pve2/lxc/201/config?current=1": {"memory": 65536, "lxc": raw},
        "/nodes/pve3/lxc/206/config?current=1": BROKEN,
        "/nodes/pve1/lxc/200/config": waiting,
        "/nodes/pve2/lxc/201/config": waiting,
        "/nodes/pve2/lxc/207/config?current=1": {"memory": 512, "dev0": "/dev/ttyUSB0"},
    }
