"""Fixtures for all unit tests."""

from tests.lab_fixture import lab  # noqa: F401
