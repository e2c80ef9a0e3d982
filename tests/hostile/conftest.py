"""Removes what was compiled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.hostile import window


@pytest.fixture(scope="session", autouse=True)
def compiled_programs() -> Iterator[None]:
    """They serve all tests of a session."""
    yield
    window.compiled.cache_clear()
    while window.made:
        shutil.rmtree(window.made.pop())
