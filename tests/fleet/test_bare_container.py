"""Before the first deployment: what is wrong with the container itself."""

from __future__ import annotations

import pytest
from fleet_kit import Fleet, changes, said, wait

pytestmark = pytest.mark.container


def test_stopped_container_is_unreachable_and_named(bare: Fleet) -> None:
    vmid = str(bare.lab.vmid)
    assert bare.lab.pct("stop", vmid).returncode == 0
    try:
        done = bare.run()
    finally:
        assert bare.lab.pct("start", vmid).returncode == 0
    assert done.returncode == 4, done.stdout
    assert done.stdout.count("fatal: ") == 1
    assert f"container {vmid} on node 127.0.0.1 is not running" in said(done)
    assert f"Start it on the node: `pct start {vmid}`." in said(done)
    assert changes(done) == 0
    wait(lambda: bare.attempt("systemctl is-system-running").stdout == "running\n", "the container is up")
