"""Fixtures of tests that end jobs early and resume them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.dataset import make_dataset
from tests.chaos.unfinished import Stop, stopped
from tests.support.filesystems import scratch


@pytest.fixture(scope="session")
def tree() -> Iterator[Path]:
    """A source tree that no test changes. Test files that need another source define their own fixture."""
    with scratch() as place:
        make_dataset(place / "source", 31, files=500, directories=70)
        yield place / "source"


@pytest.fixture
def env(area: Path) -> dict[str, str]:
    """An environment in which each test has its own job directory."""
    return {"XDG_STATE_HOME": str(area / "state")}


@pytest.fixture
def stop(area: Path, env: dict[str, str]) -> Stop:
    return functools.partial(stopped, area, env)
