"""The actions that were performed on items, for ``-v``, ``--log`` and reports; and the recorder that is used if nobody
wants to know them. The recorder that collects them is in ``pcopy.tasks.base.item_outcomes``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum, IntFlag
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


CHANGING_ACTIONS = (ItemAction.COPY, ItemAction.REPLACE, ItemAction.META, ItemAction.DELETE)
"""Actions that change something."""


class DifferingProperty(IntFlag):
    """What differs between an existing item of the target and its source. Users see the names in lower case, in this
    order.
    """

    TYPE = 1
    """It is an item of another type."""
    SIZE = 2
    """The size of a file, or the length of the text of a symbolic link."""
    TIME = 4
    """The modification time."""
    MODE = 8
    """The permission bits."""
    OWNER = 16
    """The owner or the group."""
    ACL = 32
    """An ACL."""
    XATTR = 64
    """An extended attribute that is no ACL."""
    CONTENT = 128
    """The contents of a file of the same size, the text of a symbolic link, or the number of a device."""
    LINK = 256
    """It is to be a hard link to another item, and is none."""


def difference_text(differences: int) -> str:
    """Return the words for the ``DifferingProperty`` bits ``differences``, separated by commas."""
    return ",".join(each.name.lower() for each in DifferingProperty if each & differences and each.name)


_DIFFERENCES_SHIFT = 3
"""Number of the bit at which the differences begin in a packed action; the number of the action is below it."""


def pack_action(action: ItemAction, differences: int) -> int:
    """Return a number from which ``unpack_action`` computes ``action`` and the ``DifferingProperty`` bits
    ``differences``.
    """
    return int(action) + (differences << _DIFFERENCES_SHIFT)


def unpack_action(packed: int) -> tuple[ItemAction, int]:
    """Return the action and the ``DifferingProperty`` bits from which ``pack_action`` made the number ``packed``."""
    return ItemAction(packed & ((1 << _DIFFERENCES_SHIFT) - 1)), packed >> _DIFFERENCES_SHIFT


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
            change: description of what was changed, in ASCII. By default it consists of the differences that were
                noted before (``note_differences``).
        """

    def note_differences(self, place: Place, name: bytes, differences: int) -> None:
        """Note what differs between an existing item and its source, for the report of the item, which the same task
        records later. Differences that were noted for the item before remain. If it is kept with its metadata, they are
        not reported.

        Args:
            place, name: directory and name of the item in the source.
            differences: ``DifferingProperty`` bits.
        """

    def take_noted_differences(self, place: Place, name: bytes) -> int:
        """Return the differences that were noted for an item (``DifferingProperty`` bits), and forget them. A task
        needs them if another one records the outcome.
        """
        return 0

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

    def record_outcome_of_packed_files(
        self, action: ItemAction, place: Place, names: bytes, sizes: bytes, nanoseconds: bytes
    ) -> None:
        """Record that ``action`` was performed on several regular files of the directory ``place``, none of which is a
        root, and whose differences were not noted.

        Args:
            names: their names, joined by slashes.
            sizes, nanoseconds: sizes in bytes and durations of the copies, as 64-bit integers.
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
