"""The outcome of each item, for ``-vv``, ``--log`` and ``--dry-run``. A task collects outcomes in columns and sends
them to rank 0 when it is done.

The outcome of an item is recorded once it is final: copied, skipped or failed. If nobody requested outcomes, none are
collected.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Protocol

from pcopy.named import NamedTuple
from pcopy.signature.items import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, SYMLINK
from pcopy.tasks.base.actions import HARD_LINK, Action, NobodyAsks
from pcopy.tasks.base.values import Place
from pcopy.text import shown

ITEMS_AT_ONCE = 1024
"""Largest number of items of one message, so that rank 0 does not work on one message for long."""


WORDS = tuple(action.name.lower() for action in Action)
"""Words for the actions, by number."""

TYPES = {
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


class Itemized(NamedTuple):
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

    def path_of(self, row: int) -> bytes:
        """Return the path of the item number ``row``."""
        return self._path(self.names.split(b"/")[row])

    def _path(self, name: bytes) -> bytes:
        """Return the path of the item ``name``."""
        prefix = self.path if self.path in (b"", b"/") else self.path + b"/"
        return prefix + name if name else self.path

    def each(self) -> Iterator[ItemLine]:
        """Yield the items one by one."""
        numbers = zip(array("Q", self.sizes), array("Q", self.nanoseconds), strict=True)
        changes = self.changes.decode("ascii").split("\n") if self.changes else [""] * len(self.kinds)
        columns = zip(self.names.split(b"/"), self.kinds, numbers, changes, strict=True)
        for name, kind, (size, took), change in columns:
            type_name = TYPES.get(bytes((kind,)), "")
            yield ItemLine(WORDS[self.action], self._path(name), type_name, size, took / 10**9, change)


class ItemLine(NamedTuple):
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
        return " ".join(filter(None, (self.action, self.change, shown(self.path))))


class _Columns:
    """Columns of an ``Itemized`` while they are collected."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.kinds = bytearray()
        self.sizes = array("Q")
        self.nanoseconds = array("Q")
        self.changes: list[str] = []


class Shows(Protocol):
    """Protocol of a rank, with the attributes that this module uses."""

    job: Any

    def shown(self, place: Any, name: bytes, *, on_source: bool) -> bytes:
        """Return the path of an item as it is shown to the user."""


class Itemizer(NobodyAsks):
    """Recorder that collects the outcomes of the items of one task."""

    is_wanted = True

    def __init__(self, rank: Shows) -> None:
        self._rank = rank
        self._found: dict[tuple[int, bytes], _Columns] = {}

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
        columns, name = self._columns(action, place, name)
        columns.names.append(name)
        columns.kinds += kind or b"\0"
        columns.sizes.append(size)
        columns.nanoseconds.append(nanoseconds)
        if change:
            columns.changes.append(change)

    def did_files(
        self, action: Action, place: Place, names: list[bytes], sizes: array[int], nanoseconds: array[int] | None = None
    ) -> None:
        """Record the outcomes of regular files of one directory, as ``did`` does for one item."""
        if not names:
            return
        # Names of several roots that are single items: each has a path of its own.
        if len(names) > 1 and self._rank.job.roots[place.root].item:
            for row, each in enumerate(names):
                took = 0 if nanoseconds is None else nanoseconds[row]
                self.did(action, place, each, FILE, sizes[row], took)
            return
        columns, name = self._columns(action, place, names[0])
        columns.names += names if name else [name]
        columns.kinds += FILE * len(names)
        columns.sizes.extend(sizes)
        columns.nanoseconds.extend(nanoseconds or array("Q", bytes(8 * len(names))))

    def _columns(self, action: Action, place: Place, name: bytes) -> tuple[_Columns, bytes]:
        """Return the columns to which the item belongs, and its name in them. An item that is a root by itself is
        entered by its whole path, with an empty name.
        """
        is_alone = bool(self._rank.job.roots[place.root].item) and not place.path
        path = self._rank.shown(place, name if is_alone else b"", on_source=action != Action.DELETE)
        return self._found.setdefault((int(action), path), _Columns()), b"" if is_alone else name

    def packed(self) -> Iterator[Itemized]:
        """Yield all items, at most ``ITEMS_AT_ONCE`` in one value."""
        for (action, path), columns in self._found.items():
            for start in range(0, len(columns.names), ITEMS_AT_ONCE):
                part = slice(start, start + ITEMS_AT_ONCE)
                yield Itemized(
                    action,
                    path,
                    b"/".join(columns.names[part]),
                    bytes(columns.kinds[part]),
                    columns.sizes[part].tobytes(),
                    columns.nanoseconds[part].tobytes(),
                    "\n".join(columns.changes[part]).encode("ascii"),
                )
