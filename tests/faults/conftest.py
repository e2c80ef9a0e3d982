"""Runs that meet faults may hang; none of these tests has a reason to take long."""

from __future__ import annotations

import pytest

from tests.support.kernel_of_runs import kernel_of_runs

__all__ = ["kernel_of_runs"]

SECONDS = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "faults" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))
