"""Fixtures of the transport's slow tests: a lab's container, reached through a node that is as sshd is by default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab_fixture import Lab, lab  # noqa: F401
from tests.transport_node import Node, connect


@pytest.fixture(name="node")
def node_of_the_lab(lab: Lab, tmp_path: Path) -> Iterator[Node]:  # noqa: F811
    node = Node(tmp_path, lab.dir / "node/bin")
    node.start()
    yield node
    node.close_master()
    node.stop()


@pytest.fixture
def variables(lab: Lab, node: Node) -> dict[str, Any]:  # noqa: F811
    return node.variables(lab.vmid)


@pytest.fixture
def connection(variables: dict[str, Any]) -> Any:
    return connect(variables)
