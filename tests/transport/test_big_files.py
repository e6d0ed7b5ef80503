"""A file of 64 MiB to a real container and back: exact, and without being held in memory."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.transport_node import ROOT

pytestmark = pytest.mark.container

SIZE = 64 << 20
SCRIPT = """
import json, resource, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/module_utils"]
from tests.transport_node import connect
connection = connect(json.loads(sys.argv[2]))
connection.exec_command("true")
own, children = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
before = resource.getrusage(own).ru_maxrss, resource.getrusage(children).ru_maxrss
connection.put_file(sys.argv[3] + "/source", "/run/big")
print(connection.exec_command("sha256sum </run/big")[1].decode())
connection.fetch_file("/run/big", sys.argv[3] + "/back")
connection.exec_command("rm /run/big")
print(resource.getrusage(own).ru_maxrss - before[0], resource.getrusage(children).ru_maxrss - before[1])
"""


def test_64_mib_go_there_and_back_in_constant_memory(tmp_path: Path, variables: dict[str, Any]) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "source").write_bytes(content)
    command = [sys.executable, "-c", SCRIPT, str(ROOT), json.dumps(variables), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    sha256, _, own_kib, children_kib = done.stdout.split()
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "back").read_bytes() == content
    assert int(own_kib) < 8 << 10
    assert int(children_kib) < 8 << 10
