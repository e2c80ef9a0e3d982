"""A member of an archive, and what its name may be.

Names are bytes, as they stand in the archive; a directory's ends with a slash.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

from pcopy.named import NamedTuple

BLOCK = 512
"""Bytes of which headers are made, and which contents are filled up to."""
RECORD = 10240
"""An archive is filled up to multiples of so many bytes: tar's blocking factor of 20."""

FILE, LINK, SYMLINK, CHARACTER, DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
"""The types of members; LINK is a further name of an earlier one."""

MOST_HEADERS = 1 << 20
"""Bytes of all pax headers and long names of one member, and of all global headers, that are written and read."""
LONGEST_NAME, LONGEST_TEXT = 255, 4095
"""Bytes of a name in a directory, and of the text of a symbolic link, at most (linux/limits.h)."""

_OF_MODE = {
    stat.S_IFREG: FILE,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: DEVICE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFIFO: FIFO,
}
_FORMAT = {kind: mode for mode, kind in _OF_MODE.items()} | {LINK: stat.S_IFREG}


class NumberPairs(Sequence[tuple[int, int]]):
    """Pairs of numbers, packed: 16 bytes of memory for each."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: array[int]) -> None:
        """``numbers``: first and second ones in turn, of type code ``q``."""
        self.numbers = numbers

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Return them packed."""
        return cls(array("q", (number for pair in pairs for number in pair)))

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """Return the pairs of which ``packed`` was made."""
        return cls(array("q", packed))

    @property
    def packed(self) -> bytes:
        """The pairs as bytes, in the byte order of this host."""
        return self.numbers.tobytes()

    def __len__(self) -> int:
        return len(self.numbers) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = iter(self.numbers)
        return zip(numbers, numbers, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | Self:
        if isinstance(index, slice):
            return self.of([self[at] for at in range(*index.indices(len(self)))])
        at = range(len(self))[index]
        return self.numbers[2 * at], self.numbers[2 * at + 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberPairs) and self.numbers == other.numbers

    def __hash__(self) -> int:
        return hash(self.packed)


class Extents(NumberPairs):
    """The stretches of a sparse file that hold data: offset and length of each."""

    __slots__ = ()

    @property
    def stored(self) -> int:
        """The sum of all lengths."""
        return sum(memoryview(self.numbers)[1::2])


class Member(NamedTuple):
    """``mode`` holds the permission bits, ``mtime`` nanoseconds since 1970. ``size`` is that of the contents, holes
    included; of what is no file it is 0. ``link``: the text of a symbolic link, or the name of the member that a LINK
    is another name of. ``extents`` is None unless the file is stored without its holes. ``user`` and ``group`` are
    names, empty where nobody tells them."""

    name: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    link: bytes = b""
    device: int = 0
    xattrs: tuple[tuple[str, bytes], ...] = ()
    extents: Extents | None = None
    user: bytes = b""
    group: bytes = b""

    @property
    def primitives(self) -> tuple[Any, ...]:
        """The fields as values that ``marshal`` takes; ``from_primitives`` is the inverse."""
        extents = self.extents if self.extents is None else self.extents.packed
        return (*self[:_EXTENTS], extents, *self[_EXTENTS + 1 :])

    @classmethod
    def from_primitives(cls, values: Sequence[Any]) -> Member:
        """Return the member whose ``primitives`` are ``values``."""
        member = cls(*values)
        packed = values[_EXTENTS]
        return member if packed is None else member._replace(extents=Extents.unpacked(packed))

    @property
    def st_mode(self) -> int:
        """As stat(2) tells it."""
        return _FORMAT[self.kind] | self.mode


def kind_of(mode: int) -> bytes:
    """The type of a member for an ``st_mode``; empty for a socket, which no archive holds."""
    return _OF_MODE.get(stat.S_IFMT(mode), b"")


def filled_up(size: int, unit: int = BLOCK) -> int:
    """``size``, up to the next multiple of ``unit``."""
    return -(-size // unit) * unit


class Unsafe(ValueError):
    """A name that would lead out of the directory that is extracted into; its text says why."""


def safe_path(name: bytes) -> bytes:
    """The path of a member below the directory that it is extracted into, without a leading or trailing slash; empty
    for that directory itself. Raises ``Unsafe``."""
    if name.startswith(b"/"):
        name = name.lstrip(b"/")
    if b"./" not in name and b"//" not in name and name[-1:] not in (b"/", b"."):
        if b"\0" in name:
            raise Unsafe("its name contains a NUL")
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Unsafe("its name contains .., which leads out of the directory that is extracted into")
    if b"\0" in name:
        raise Unsafe("its name contains a NUL")
    return b"/".join(parts)


def refusal(member: Member) -> str:
    """Return why a member cannot be unpacked, whatever else is in the archive or the target; empty if it can.

    All that read archives ask this function.
    """
    try:
        path = safe_path(member.name)
    except Unsafe as unsafe:
        return str(unsafe)
    if not path and member.kind != DIRECTORY:
        return "a member without a name"
    if len(path) > LONGEST_NAME and max(map(len, path.split(b"/"))) > LONGEST_NAME:
        return f"its name has a part of more than {LONGEST_NAME} bytes"
    if member.kind == SYMLINK and not 0 < len(member.link) <= LONGEST_TEXT:
        return f"a symbolic link with a text of {len(member.link):,} bytes: 1 to {LONGEST_TEXT:,} are possible"
    return _link_refusal(member.link) if member.kind == LINK else ""


def _link_refusal(link: bytes) -> str:
    """Return why a hard link to what is called ``link`` cannot be made; empty if it can."""
    try:
        return "" if safe_path(link) else "it is a link to nothing"
    except Unsafe:
        return "it is a link to what lies outside of the directory"


_EXTENTS = Member._fields.index("extents")


def order_key(path: bytes) -> bytes:
    """What sorts paths so that a directory comes before what is in it, and all of that beside each other."""
    return path.replace(b"/", b"\0")


def name_in_archive(given: bytes, path: bytes) -> bytes:
    """The name of a member: ``path`` below the PATH that was ``given``, without what tar strips from the front."""
    name = os.path.join(given, path) if path else given
    if name.startswith(b"/"):
        name = name.lstrip(b"/") or b"./"
    if b".." in name:
        parts = name.split(b"/")
        if b".." in parts:  # as tar does: what is before the last of them goes, too
            name = b"/".join(parts[len(parts) - parts[::-1].index(b"..") :]) or b"./"
    return name
