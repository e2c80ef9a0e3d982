"""What becomes of each item, for whoever wants to know (``-vv``, ``--log``, ``--dry-run``): gathered by a task in
columns, and told to rank 0 when the task is done.

An item is told once it is settled: copied, skipped, failed. Where nobody asks, nothing is gathered.
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
"""Items of one note at most, so that rank 0 looks up from its work."""


WORDS = tuple(action.name.lower() for action in Action)

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
"""By type byte; of what has failed none may be known."""


class Itemized(NamedTuple):
    """Items of one directory with which the same was done: ``names`` joined by slashes (the name ``b""``: the directory
    ``path`` itself), a type byte each (0: not known), sizes in bytes and nanoseconds in packed columns. ``path`` is as
    the user is shown it."""

    action: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    nanoseconds: bytes
    changes: bytes = b""
    """What was changed of each, a line each in ASCII; empty where that is not told of any."""

    def path_of(self, row: int) -> bytes:
        """Of one of them."""
        return self._path(self.names.split(b"/")[row])

    def _path(self, name: bytes) -> bytes:
        around = self.path if self.path in (b"", b"/") else self.path + b"/"
        return around + name if name else self.path

    def each(self) -> Iterator[ItemLine]:
        numbers = zip(array("Q", self.sizes), array("Q", self.nanoseconds), strict=True)
        changes = self.changes.decode("ascii").split("\n") if self.changes else [""] * len(self.kinds)
        columns = zip(self.names.split(b"/"), self.kinds, numbers, changes, strict=True)
        for name, kind, (size, took), change in columns:
            kind_told = TYPES.get(bytes((kind,)), "")
            yield ItemLine(WORDS[self.action], self._path(name), kind_told, size, took / 10**9, change)


class ItemLine(NamedTuple):
    """One item, for a sink: the word for what was done, its path, type (empty: not known), bytes, and seconds; and what
    was changed of it, if that is told."""

    action: str
    path: bytes
    type: str
    bytes: int
    seconds: float
    change: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.action, self.change, shown(self.path))))


class _Columns:
    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.kinds = bytearray()
        self.sizes = array("Q")
        self.nanoseconds = array("Q")
        self.changes: list[str] = []


class Shows(Protocol):
    """A rank, as far as it matters here."""

    job: Any

    def shown(self, place: Any, name: bytes, *, on_source: bool) -> bytes:
        """A path as the user is shown it."""


class Itemizer(NobodyAsks):
    """Gathers the items of one task."""

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
        """As ``did``, for regular files of one directory."""
        if not names:
            return
        if len(names) > 1 and self._rank.job.roots[place.root].item:  # of several roots: each path is one of its own
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
        """Where the item belongs, and its name there: what a single item is called is all of its path."""
        is_alone = bool(self._rank.job.roots[place.root].item) and not place.path
        path = self._rank.shown(place, name if is_alone else b"", on_source=action != Action.DELETE)
        return self._found.setdefault((int(action), path), _Columns()), b"" if is_alone else name

    def packed(self) -> Iterator[Itemized]:
        """All of them, in parts of ``ITEMS_AT_ONCE``."""
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
