"""Concurrent tests in the workers of pytest-xdist, except for tests that measure time, which run alone.

A running test holds a lock, the stage, shared or exclusively. A test that waits for the stage holds another lock, the
door, which admits one at a time. Thus an exclusive test waits for the running tests, but not for later ones.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """The turns of one worker; ``place`` is a directory that all workers of a session share."""

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
        finally:  # explicit unlock: a process that the test left behind has the same open file
            fcntl.flock(self._stage, fcntl.LOCK_UN)

    @contextmanager
    def first(self) -> Iterator[None]:
        """Let the first worker run alone; the others wait for it, but not for each other."""
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
