"""Fixture of the staging tests: three servers on a disk that outlasts a restart of the container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.fleet_kit import Fleet, in_own_lab


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Deployed and verified."""
    with in_own_lab(271, tmp_path_factory.mktemp("controller")) as made:
        made.good_run()
        yield made
