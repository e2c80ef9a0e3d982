"""Tests side by side in the workers of pytest-xdist, but for those that measure time: they run while nothing else does.

A test holds the stage for as long as it runs, shared with others or alone. Who waits for the stage stands in the door,
where there is room for one: thus a test that has to be alone waits for those that run, and not for any that come later.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """One worker's part in it; ``place`` is a directory that all workers of a run have in common."""

    def __init__(self, place: Path) -> None:
        names = "door", "stage", "first"
        self._door, self._stage, self._first = (os.open(place / name, os.O_RDWR | os.O_CREAT, 0o600) for name in names)

    @contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._stage, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:  # in words: a process that the test has left has the same open file
            fcntl.flock(self._stage, fcntl.LOCK_UN)

    @contextmanager
    def first(self) -> Iterator[None]:
        """Whoever comes first is alone, and all others have to wait for it, but not for one another."""
        fcntl.flock(self._first, fcntl.LOCK_EX)
        if os.fstat(self._first).st_size:
            fcntl.flock(self._first, fcntl.LOCK_UN)
            yield
            return
        try:
            yield
        finally:
            os.write(self._first, b"over")
            fcntl.flock(self._first, fcntl.LOCK_UN)
