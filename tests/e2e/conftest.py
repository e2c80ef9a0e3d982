"""Fixtures of the end-to-end tests.

Runs use the C backend; with ``PCOPY_TESTS=all`` each test runs a second time with the Python backend.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backend_of_runs import backend_of_runs

__all__ = ["backend_of_runs"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory into which archives are extracted."""
    place = tmp_path / "place"
    place.mkdir()
    return place
