"""The outcome of each item, for ``-vv``, ``--log`` and ``--dry-run``. A task collects outcomes in columns and sends
them to rank 0 when it is done.

The outcome of an item is recorded once it is final: copied, skipped or failed. If nobody requested outcomes, none are
collected.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Protocol

from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.items import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, SYMLINK
from pcopy.tasks.base.actions import HARD_LINK, Action, NullItemRecorder
from pcopy.tasks.base.values import Place
from pcopy.text import printable_path

MAX_ITEMS_PER_MESSAGE = 1024
"""Largest number of items of one message, so that rank 0 does not work on one message for long."""


ACTION_WORDS = tuple(action.name.lower() for action in Action)
"""Words for the actions, by number."""

TYPE_NAMES = {
    FILE: "file",
    DIRECTORY: "directory",
    SYMLINK: "symlink",
    FIFO: "fifo",
    CHARACTER: "character",
    BLOCK: "block",
    b"s": "socket",
    HARD_LINK: "hardlink",
}
"""Names of the types of items, by type byte. The type of a failed item may be unknown."""


class ItemOutcomes(NamedTuple):
    """Items of one directory for which the same action was taken, in packed columns.

    Fields:
        action: number of the ``Action``.
        path: path of the directory, as it is shown to the user.
        names: names joined by slashes; the empty name stands for the directory itself.
        kinds: type byte of each item; 0 if the type is not known.
        sizes: sizes in bytes.
        nanoseconds: durations.
    """

    action: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    nanoseconds: bytes
    changes: bytes = b""
    """Description of what was changed in each item, one line each in ASCII; empty if there are no descriptions."""

    def path_of_row(self, row: int) -> bytes:
        """Return the path of the item number ``row``."""
        return self._path_of_name(self.names.split(b"/")[row])

    def _path_of_name(self, name: bytes) -> bytes:
        """Return the path of the item ``name``."""
        prefix = self.path if self.path in (b"", b"/") else self.path + b"/"
        return prefix + name if name else self.path

    def outcomes(self) -> Iterator[ItemOutcome]:
        """Yield the items one by one."""
        numbers = zip(array("Q", self.sizes), array("Q", self.nanoseconds), strict=True)
        changes = self.changes.decode("ascii").split("\n") if self.changes else [""] * len(self.kinds)
        columns = zip(self.names.split(b"/"), self.kinds, numbers, changes, strict=True)
        for name, kind, (size, took), change in columns:
            type_name = TYPE_NAMES.get(bytes((kind,)), "")
            yield ItemOutcome(
                ACTION_WORDS[self.action], self._path_of_name(name), type_name, size, took / 10**9, change
            )


class ItemOutcome(NamedTuple):
    """The outcome of one item, for a sink.

    Fields:
        action: word for the action.
        path: path of the item.
        type: name of its type; empty if that is not known.
        bytes: size in bytes.
        seconds: duration.
        change: description of what was changed, or empty.
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
    """Columns of an ``ItemOutcomes`` while they are collected."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.kinds = bytearray()
        self.sizes = array("Q")
        self.nanoseconds = array("Q")
        self.changes: list[str] = []


class PathDisplay(Protocol):
    """Protocol of a rank, with the attributes that this module uses."""

    job: Any

    def display_path(self, place: Any, name: bytes, *, on_source: bool) -> bytes:
        """Return the path of an item as it is shown to the user."""


class ItemRecorder(NullItemRecorder):
    """Recorder that collects the outcomes of the items of one task."""

    is_recording = True

    def __init__(self, rank: PathDisplay) -> None:
        self._rank = rank
        self._columns_by_path: dict[tuple[int, bytes], _OutcomeColumns] = {}

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
        columns, name = self._columns_for(action, place, name)
        columns.names.append(name)
        columns.kinds += kind or b"\0"
        columns.sizes.append(size)
        columns.nanoseconds.append(nanoseconds)
        if change:
            columns.changes.append(change)

    def record_files(
        self, action: Action, place: Place, names: list[bytes], sizes: array[int], nanoseconds: array[int] | None = None
    ) -> None:
        """Record the outcomes of regular files of one directory, as ``record`` does for one item."""
        if not names:
            return
        # Names of several roots that are single items: each has a path of its own.
        if len(names) > 1 and self._rank.job.roots[place.root].item:
            for row, each in enumerate(names):
                took = 0 if nanoseconds is None else nanoseconds[row]
                self.record(action, place, each, FILE, sizes[row], took)
            return
        columns, name = self._columns_for(action, place, names[0])
        columns.names += names if name else [name]
        columns.kinds += FILE * len(names)
        columns.sizes.extend(sizes)
        columns.nanoseconds.extend(nanoseconds or array("Q", bytes(8 * len(names))))

    def _columns_for(self, action: Action, place: Place, name: bytes) -> tuple[_OutcomeColumns, bytes]:
        """Return the columns to which the item belongs, and its name in them. An item that is a root by itself is
        entered by its whole path, with an empty name.
        """
        is_alone = bool(self._rank.job.roots[place.root].item) and not place.path
        path = self._rank.display_path(place, name if is_alone else b"", on_source=action != Action.DELETE)
        return self._columns_by_path.setdefault((int(action), path), _OutcomeColumns()), b"" if is_alone else name

    def packed_outcomes(self) -> Iterator[ItemOutcomes]:
        """Yield all items, at most ``MAX_ITEMS_PER_MESSAGE`` in one value."""
        for (action, path), columns in self._columns_by_path.items():
            for start in range(0, len(columns.names), MAX_ITEMS_PER_MESSAGE):
                part = slice(start, start + MAX_ITEMS_PER_MESSAGE)
                yield ItemOutcomes(
                    action,
                    path,
                    b"/".join(columns.names[part]),
                    bytes(columns.kinds[part]),
                    columns.sizes[part].tobytes(),
                    columns.nanoseconds[part].tobytes(),
                    "\n".join(columns.changes[part]).encode("ascii"),
                )
