"""Fixtures that all tests share: places to copy in, on each kind of file system, fresh for each test."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import command
from tests.support.filesystems import FileSystems, Place, mounted, remove, scratch

END_TO_END_SECONDS = 120
"""A test that runs longer hangs; whole runs take a second or two."""


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # runs inherit what nohup ignores, and would not stop at it
    config.addinivalue_line("markers", "timeout(seconds): the test is ended and fails after so long")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(END_TO_END_SECONDS))


@pytest.fixture(scope="session")
def session_scratch() -> Iterator[Path]:
    with scratch() as path:
        yield path
    command.clean_up()


@pytest.fixture(scope="session")
def file_systems(session_scratch: Path) -> Iterator[FileSystems]:
    made = FileSystems(session_scratch)
    yield made
    made.close()


@pytest.fixture
def area(session_scratch: Path) -> Iterator[Path]:
    """A fresh directory in memory, which every user may read and nobody else write."""
    path = Path(tempfile.mkdtemp(prefix="area-", dir=session_scratch))
    path.chmod(0o755)
    yield path
    remove(path)


@pytest.fixture
def on(file_systems: FileSystems) -> Iterator[Place]:
    """``on("xfs")``: a fresh directory on a file system of that kind; skips where it can't be had."""
    made: list[Path] = []

    def place(kind: str) -> Path:
        path = Path(tempfile.mkdtemp(prefix="test-", dir=file_systems.point(kind)))
        path.chmod(0o755)
        made.append(path)
        return path

    yield place
    for path in made:
        remove(path)


@pytest.fixture
def on_strict_atime(session_scratch: Path) -> Iterator[Path]:
    """A file system that records every access: the usual ``relatime`` would hide most of them."""
    with mounted("ext4", session_scratch, size=256 << 20, options="strictatime") as point:
        yield point


@pytest.fixture(params=["ext4", "xfs", "tmpfs"])
def filesystem(request: pytest.FixtureRequest, on: Place) -> Path:
    """A fresh directory on each kind of file system in turn."""
    return on(request.param)
