"""Limit the time of tests in this directory: runs with faults may hang, and none of these tests should take long."""

from __future__ import annotations

import pytest

from tests.support.backend_of_runs import backend_of_runs

__all__ = ["backend_of_runs"]

SECONDS = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "faults" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))
