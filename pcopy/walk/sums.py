"""stub"""

from __future__ import annotations


class WalkSums:
    MASK = 0

    def __init__(self, now: int) -> None: ...
    def add(self, items: object, depth: int) -> None: ...
    def add_directory(self, path: bytes, entries: int) -> None: ...
