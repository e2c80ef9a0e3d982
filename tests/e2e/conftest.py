"""Whole runs use the C backend; with ``PCOPY_TESTS=all`` each does so once more with the Python backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backend_of_runs import backend_of_runs

__all__ = ["backend_of_runs"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where archives are unpacked."""
    place = tmp_path / "place"
    place.mkdir()
    return place
