"""The barrier at the end of a job, upward: which children are ready, and what ranks say of themselves at last.

A rank makes one value of its own words and of those from below it, and gives that to its parent: the root hears of all
ranks by messages that are as small as whoever makes these values wants. The engine does not read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pcopy.engine.messages import Ready

LastWords = Callable[[Sequence[bytes]], bytes]
"""What a rank says when all its tasks are over, with what those below it have said."""


class Barrier:
    """One rank's part."""

    def __init__(self, children: Iterable[int]) -> None:
        self.awaited = set(children)
        """Those whose Ready is missing."""
        self.last_words: LastWords = lambda below: b""
        self.words = b""
        """What was said here; at the root, of all ranks."""
        self._below: list[bytes] = []

    def heard(self, child: int, ready: Ready) -> None:
        self.awaited.discard(child)
        if ready.words:
            self._below.append(ready.words)

    def ready(self) -> Ready:
        """The subtree is ready."""
        self.words = self.last_words(self._below)
        self._below.clear()
        return Ready(self.words)
