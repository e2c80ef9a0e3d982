"""What all tests of the engine need."""

from __future__ import annotations

import pytest

from pcopy.engine.transports import local


@pytest.fixture(autouse=True)
def _forks_beside_the_thread_of_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of pytest-xdist has a thread that waits for its orders, of which no child needs anything."""
    monkeypatch.setattr(local, "is_single_threaded", lambda: True)
