"""Limit the time of tests in this directory: runs on unusual file systems may hang, and none of these tests should take
long."""

from __future__ import annotations

import pytest

SECONDS = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "quirks" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))
