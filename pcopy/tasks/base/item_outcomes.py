"""What was done with each item, for ``-v``, ``--log`` and ``--dry-run``. A task collects this in columns and sends it
to rank 0 when it is done.

The outcome of an item is recorded once it is final: copied, skipped or failed. If neither the user nor a report needs
outcomes, none are collected.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Protocol

from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.items import BLOCK_DEVICE, CHARACTER_DEVICE, DIRECTORY, FIFO, FILE, SYMLINK
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE, ItemAction, NullItemOutcomeRecorder, difference_text
from pcopy.tasks.base.values import Place
from pcopy.text import printable_path

MAX_ITEMS_PER_MESSAGE = 1024
"""Largest number of items in one message, so that rank 0 does not handle one message for long."""


_NUMBER_BYTES = 8
"""Bytes of a number in a packed column."""

ACTION_WORDS = tuple(action.name.lower() for action in ItemAction)
"""Words that users see for the actions, by the number of the action."""

TYPE_NAMES = {
    FILE: "file",
    DIRECTORY: "directory",
    SYMLINK: "symlink",
    FIFO: "fifo",
    CHARACTER_DEVICE: "character",
    BLOCK_DEVICE: "block",
    b"s": "socket",
    HARD_LINK_TYPE_BYTE: "hardlink",
}
"""Words that users see for the types of items, by type byte. If the type of a failed item is not known, it has no
word.
"""


class PackedItemOutcomes(NamedTuple):
    """Items of one directory with which the same was done, in packed columns: value number i of each column belongs to
    item number i.

    Fields:
        action: number of the ``ItemAction``.
        path: path of the directory, as it is shown to the user.
        names: names joined by slashes; the empty name stands for the directory itself.
        kinds: type byte of each item; 0 if the type is not known.
        sizes: sizes in bytes, as 64-bit integers.
        nanoseconds: durations of the copies, as 64-bit integers; 0 if not measured.
    """

    action: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    nanoseconds: bytes
    changes: bytes = b""
    """What was changed in each item: one line of ASCII for each, which may be empty; empty if there are no such
    descriptions.
    """

    def path_of_item(self, row: int) -> bytes:
        """Return the path of item number ``row``, as it is shown to the user."""
        return self._path_of_name(self.names.split(b"/")[row])

    def _path_of_name(self, name: bytes) -> bytes:
        """Return the path of the item ``name``, as it is shown to the user."""
        prefix = self.path if self.path in (b"", b"/") else self.path + b"/"
        return prefix + name if name else self.path

    def unpacked_outcomes(self) -> Iterator[ItemOutcome]:
        """Yield each item as an ``ItemOutcome``, with words for the action and the type."""
        numbers = zip(array("Q", self.sizes), array("Q", self.nanoseconds), strict=True)
        changes = self.changes.decode("ascii").split("\n") if self.changes else [""] * len(self.kinds)
        columns = zip(self.names.split(b"/"), self.kinds, numbers, changes, strict=True)
        for name, kind, (size, took), change in columns:
            type_name = TYPE_NAMES.get(bytes((kind,)), "")
            yield ItemOutcome(
                ACTION_WORDS[self.action], self._path_of_name(name), type_name, size, took / 10**9, change
            )


class ItemOutcome(NamedTuple):
    """What was done with one item, as the receiver on rank 0 gets it (``ProgressSink.items``).

    Fields:
        action: word for the action, such as "copy".
        path: path of the item, as it is shown to the user.
        type: word for its type, such as "file"; empty if the type is not known.
        bytes: size in bytes.
        seconds: duration of the copy; 0 if it was not measured.
        change: what was changed, or empty.
    """

    action: str
    path: bytes
    type: str
    bytes: int
    seconds: float
    change: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.action, self.change, printable_path(self.path))))


class _OutcomeColumns:
    """The columns of one ``PackedItemOutcomes`` while they are being filled."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.kinds = bytearray()
        self.sizes = array("Q")
        self.nanoseconds = array("Q")
        self.changes: list[str] = []


class HasPathForDisplay(Protocol):
    """Protocol: what the recorder of outcomes needs of a rank: the roots of the job, and how the path of an item is
    shown to the user.
    """

    job: Any

    def path_for_display(self, place: Any, name: bytes, *, on_source: bool) -> bytes:
        """Return the path of an item as it is shown to the user: in the source if ``on_source`` is True, else in the
        target.
        """


class ItemOutcomeRecorder(NullItemOutcomeRecorder):
    """Recorder that collects what was done with the items of one task, in columns, until the task is done."""

    is_recording = True

    def __init__(self, rank: HasPathForDisplay, *, records_unchanged: bool = True) -> None:
        """``records_unchanged``: False to ignore items that are left unchanged."""
        self._rank = rank
        self._ignored = frozenset[ItemAction]() if records_unchanged else frozenset((ItemAction.SKIP,))
        self._columns_by_path: dict[tuple[int, bytes], _OutcomeColumns] = {}
        self._noted_differences: dict[tuple[tuple[int, bytes], bytes], int] = {}
        self._packed: list[PackedItemOutcomes] = []

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
        noted = self._text_of_noted_differences(action, place, name)
        if action in self._ignored:
            return
        columns, name = self._columns_and_name_of_item(action, place, name)
        columns.names.append(name)
        columns.kinds += kind or b"\0"
        columns.sizes.append(size)
        columns.nanoseconds.append(nanoseconds)
        columns.changes.append(change or noted)

    def note_differences(self, place: Place, name: bytes, differences: int) -> None:
        item = place.key, name
        self._noted_differences[item] = self._noted_differences.get(item, 0) | differences

    def take_noted_differences(self, place: Place, name: bytes) -> int:
        return self._noted_differences.pop((place.key, name), 0) if self._noted_differences else 0

    def _text_of_noted_differences(self, action: ItemAction, place: Place, name: bytes) -> str:
        """Return the words for the differences that were noted for an item on which ``action`` was performed; empty if
        there are none.
        """
        differences = self.take_noted_differences(place, name)
        return difference_text(differences) if action in (ItemAction.REPLACE, ItemAction.META) else ""

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
        if not names or action in self._ignored:
            return
        # Roots that are single files may share a task, but the user may have given each of them another path.
        if len(names) > 1 and self._rank.job.roots[place.root].item:
            for row, each in enumerate(names):
                took = 0 if nanoseconds is None else nanoseconds[row]
                self.record_item_outcome(action, place, each, FILE, sizes[row], took)
            return
        changes = [self._text_of_noted_differences(action, place, each) for each in names]
        columns, name = self._columns_and_name_of_item(action, place, names[0])
        columns.changes += changes
        columns.names += names if name else [name]
        columns.kinds += FILE * len(names)
        columns.sizes.extend(sizes)
        columns.nanoseconds.extend(nanoseconds or array("Q", bytes(8 * len(names))))

    def record_outcome_of_packed_files(
        self, action: ItemAction, place: Place, names: bytes, sizes: bytes, nanoseconds: bytes
    ) -> None:
        path = self._rank.path_for_display(place, b"", on_source=True)
        kinds = FILE * (len(sizes) // _NUMBER_BYTES)
        self._packed.append(PackedItemOutcomes(int(action), path, names, kinds, sizes, nanoseconds))

    def _columns_and_name_of_item(self, action: ItemAction, place: Place, name: bytes) -> tuple[_OutcomeColumns, bytes]:
        """Return the columns to which the outcome of an item is appended, and the name that it has there. Items of one
        directory with the same action share columns. A single file that is a root of its own has its whole path as the
        path of the columns, and an empty name.
        """
        is_alone = bool(self._rank.job.roots[place.root].item) and not place.path
        path = self._rank.path_for_display(place, name if is_alone else b"", on_source=action != ItemAction.DELETE)
        return self._columns_by_path.setdefault((int(action), path), _OutcomeColumns()), b"" if is_alone else name

    def packed_outcomes(self) -> Iterator[PackedItemOutcomes]:
        """Yield what was recorded, with at most ``MAX_ITEMS_PER_MESSAGE`` items in one value."""
        yield from self._packed
        for (action, path), columns in self._columns_by_path.items():
            for start in range(0, len(columns.names), MAX_ITEMS_PER_MESSAGE):
                part = slice(start, start + MAX_ITEMS_PER_MESSAGE)
                yield PackedItemOutcomes(
                    action,
                    path,
                    b"/".join(columns.names[part]),
                    bytes(columns.kinds[part]),
                    columns.sizes[part].tobytes(),
                    columns.nanoseconds[part].tobytes(),
                    "\n".join(columns.changes[part]).encode("ascii") if any(columns.changes[part]) else b"",
                )
