"""The actions that are recorded for items, and a recorder that ignores them. The recorder that keeps them is in
``pcopy.tasks.base.item_outcomes``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from pcopy.fast_named_tuple import NamedTuple
from pcopy.tasks.base.values import Place


class Action(IntEnum):
    """Action that was taken for an item. The word for users is the name in lower case. The numbers are sent in messages
    and never change.
    """

    COPY = 0
    """The item was copied, and its name was free in the target."""
    REPLACE = 1
    """The item was copied and replaced an existing item."""
    META = 2
    """The existing item was kept, and its metadata was updated."""
    DELETE = 3
    """The item existed only in the target and was deleted."""
    SKIP = 4
    """The existing item was left unchanged."""
    FAIL = 5
    """The item failed."""


HARD_LINK = b"h"
"""Type byte of a further hard link of an inode, used in reports of items."""


class CopyAction(NamedTuple):
    """The action by which an item was copied, and the duration in ``nanoseconds`` (0: not measured)."""

    action: Action = Action.COPY
    nanoseconds: int = 0

    @classmethod
    def replacing(cls, present: object, nanoseconds: int = 0) -> CopyAction:
        """Return the value for a copy under a name that the item ``present`` had; None means that the name was free."""
        return cls(Action.COPY if present is None else Action.REPLACE, nanoseconds)


NEW_COPY = CopyAction()
"""A copy under a free name whose duration was not measured."""


class NullItemRecorder:
    """Recorder of outcomes that ignores everything, used if no outcomes are wanted.
    ``pcopy.tasks.base.item_outcomes.ItemRecorder`` is the other one.
    """

    is_recording = False
    """True if outcomes are recorded."""

    def record(
        self,
        action: Action,
        place: Place,
        name: bytes,
        kind: bytes,
        size: int = 0,
        nanoseconds: int = 0,
        change: str = "",
    ) -> None:
        """Record the outcome of one item. The counters of the task are not changed.

        Args:
            name: name in the directory; ``b""`` for the directory itself.
            kind: type byte; empty if the type is not known.
            size: size in bytes.
            nanoseconds: duration of the copy; 0 if it was not measured.
            change: description of the change, in ASCII. Either all items of one action have one, or none has.
        """

    def record_files(
        self, action: Action, place: Place, names: list[bytes], sizes: array[int], nanoseconds: array[int] | None = None
    ) -> None:
        """Record the outcomes of regular files of one directory, as ``record`` does for one item."""

    def record_failure(self, place: Place, name: bytes, size: int) -> None:
        """Record that an item of unknown type failed."""
        self.record(Action.FAIL, place, name, b"", size)

    def packed_outcomes(self) -> Iterator[Any]:
        """Yield the recorded items as ``pcopy.tasks.base.item_outcomes.ItemOutcomes`` values."""
        yield from ()


NULL_RECORDER = NullItemRecorder()
"""The only instance that is needed."""
