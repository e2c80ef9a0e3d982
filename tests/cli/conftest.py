"""The directory of stored jobs for the tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def state(area: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with monkeypatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(area / "state"))
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield area / "state" / "pcopy"
    time.tzset()
