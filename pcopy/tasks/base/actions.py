"""What may become of an item, and what takes it where nobody wants to know (else ``pcopy.tasks.base.itemized``)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from pcopy.named import NamedTuple
from pcopy.tasks.base.values import Place


class Action(IntEnum):
    """What was done with an item; the word for users is the name in lower case. Codes travel, and never change."""

    COPY = 0
    """Nothing had its name in the target."""
    REPLACE = 1
    """Something else had."""
    META = 2
    """What is there stays, and gets other metadata."""
    DELETE = 3
    """It was in the target only, and is gone."""
    SKIP = 4
    """What is there stays as it is."""
    FAIL = 5


HARD_LINK = b"h"
"""The type byte of a further name of an inode, for whoever is told of each item."""


class How(NamedTuple):
    """An item was copied: which ``action`` that was, and for how many ``nanoseconds`` (0: nobody has measured it)."""

    action: Action = Action.COPY
    nanoseconds: int = 0

    @classmethod
    def over(cls, present: object, nanoseconds: int = 0) -> How:
        """``present`` is what had its name, or None."""
        return cls(Action.COPY if present is None else Action.REPLACE, nanoseconds)


AFRESH = How()


class NobodyAsks:
    """Takes what has become of items where nobody wants to know; the other one is
    ``pcopy.tasks.base.itemized.Itemizer``."""

    is_wanted = False

    def did(
        self,
        action: Action,
        place: Place,
        name: bytes,
        kind: bytes,
        size: int = 0,
        nanoseconds: int = 0,
        change: str = "",
    ) -> None:
        """An item is settled (the name ``b""``: the directory itself), which is counted elsewhere.

        ``kind`` is its type byte, empty where none is known. For so many ``nanoseconds`` it was copied; 0 where nobody
        has measured that. ``change``: what of it was changed, in ASCII; of one action all items tell it, or none.
        """

    def did_files(
        self, action: Action, place: Place, names: list[bytes], sizes: array[int], nanoseconds: array[int] | None = None
    ) -> None:
        """As ``did``, for regular files of one directory."""

    def failed(self, place: Place, name: bytes, size: int) -> None:
        """As ``did``, of whatever it is."""
        self.did(Action.FAIL, place, name, b"", size)

    def packed(self) -> Iterator[Any]:
        """All of them (``pcopy.tasks.base.itemized.Itemized``)."""
        yield from ()


NOBODY = NobodyAsks()
