"""Fixture of the staging tests: three servers on a disk that outlasts a restart of the container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.fleet_kit import Fleet
from tests.lab_fixture import own_lab, present


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Deployed and verified."""
    with own_lab(first_vmid=271) as lab:
        present(lab)
        made = Fleet(lab, tmp_path_factory.mktemp("controller"))
        made.good_run()
        yield made
