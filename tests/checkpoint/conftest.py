"""Fixtures of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def state(area: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this test, which does not exist yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(area / "state"))
    return area / "state" / "pcopy"
