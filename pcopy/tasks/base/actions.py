"""The actions that were performed on items, for ``-vv``, ``--log`` and reports; and the recorder that is used if nobody
wants to know them. The recorder that collects them is in ``pcopy.tasks.base.item_outcomes``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from pcopy.fast_named_tuple import NamedTuple
from pcopy.tasks.base.values import Place


class ItemAction(IntEnum):
    """Action that was performed on an item. Users see the name in lower case. The numbers are sent in messages and must
    never change.
    """

    COPY = 0
    """The item was copied; nothing in the target had its name."""
    REPLACE = 1
    """The item was copied, and replaced an existing item."""
    META = 2
    """The existing item was kept, and its metadata was set to that of the source."""
    DELETE = 3
    """The item existed only in the target and was deleted (``--delete``)."""
    SKIP = 4
    """The existing item was left unchanged, with its metadata; or filters exclude the item."""
    FAIL = 5
    """The item could not be copied, changed or deleted."""


HARD_LINK_TYPE_BYTE = b"h"
"""Type byte that reports of items use for a name that was created as a hard link to a copy."""


class TimedCopyAction(NamedTuple):
    """Action and duration of the copy of an item, for the report of each item.

    Fields:
        action: COPY or REPLACE.
        nanoseconds: duration of the copy; 0 if it was not measured.
    """

    action: ItemAction = ItemAction.COPY
    nanoseconds: int = 0

    @classmethod
    def action_given_existing_item(cls, present: object, nanoseconds: int = 0) -> TimedCopyAction:
        """Return the value for a copy that took ``nanoseconds``. The action is REPLACE if ``present``, the item that
        had the name before, is not None; else it is COPY.
        """
        return cls(ItemAction.COPY if present is None else ItemAction.REPLACE, nanoseconds)


UNTIMED_NEW_COPY = TimedCopyAction()
"""``TimedCopyAction`` of an item that was copied to a free name, and whose duration was not measured."""


class NullItemOutcomeRecorder:
    """Base class of recorders of what was done with items. This one ignores everything: it is used if neither the user
    nor a report needs it. Otherwise ``pcopy.tasks.base.item_outcomes.ItemOutcomeRecorder`` is used.
    """

    is_recording = False
    """True if the recorder keeps what it is given."""

    def record_item_outcome(
        self,
        action: ItemAction,
        place: Place,
        name: bytes,
        kind: bytes,
        size: int = 0,
        nanoseconds: int = 0,
        change: str = "",
    ) -> None:
        """Record what was done with one item. The counters of the task are not changed.

        Args:
            action: what was done.
            place, name: directory and name of the item; the name is ``b""`` for the directory itself.
            kind: type byte; empty if the type is not known.
            size: size in bytes.
            nanoseconds: duration of the copy; 0 if it was not measured.
            change: description of what was changed, in ASCII. Either all items of one action have one, or none has.
        """

    def record_outcome_of_files(
        self,
        action: ItemAction,
        place: Place,
        names: list[bytes],
        sizes: array[int],
        nanoseconds: array[int] | None = None,
    ) -> None:
        """Record that ``action`` was performed on several regular files of the directory ``place``.

        Args:
            names, sizes: name and size in bytes of each file.
            nanoseconds: duration of each copy; None if it was not measured.
        """

    def record_failure(self, place: Place, name: bytes, size: int) -> None:
        """Record that an item failed whose type is not known. ``size`` is in bytes."""
        self.record_item_outcome(ItemAction.FAIL, place, name, b"", size)

    def packed_outcomes(self) -> Iterator[Any]:
        """Yield what was recorded, as ``pcopy.tasks.base.item_outcomes.PackedItemOutcomes`` values; here that is
        nothing.
        """
        yield from ()


NULL_RECORDER = NullItemOutcomeRecorder()
"""The instance that all tasks share; it has no state."""
