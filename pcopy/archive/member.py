"""Members of an archive (its files, directories, links and devices), and the rules for their names.

Names are the bytes that the archive contains; the name of a directory ends with a slash.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

from pcopy.fast_named_tuple import NamedTuple

TAR_BLOCK_BYTES = 512
"""Number of bytes of a block: headers consist of whole blocks, and contents are padded to whole blocks."""
TAR_RECORD_BYTES = 10240
"""The size of an archive is padded to a multiple of this number of bytes: 20 blocks, the default blocking factor of
tar.
"""

FILE, HARD_LINK_MEMBER, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO = (
    b"0",
    b"1",
    b"2",
    b"3",
    b"4",
    b"5",
    b"6",
)
"""Types of members, as in the type field of a header. LINK is a hard link to an earlier member."""

MAX_HEADER_BYTES = 1 << 20
"""Maximum number of bytes of all pax headers and long names of one member, and of all global headers. A member with
more is not written; when it is read, it is reported as damaged.
"""
MAX_FILE_NAME_BYTES, MAX_LINK_TARGET_BYTES = 255, 4095
"""Maximum number of bytes of a file name, and of the target of a symbolic link (linux/limits.h)."""

_MEMBER_TYPE_OF_FILE_FORMAT = {
    stat.S_IFREG: FILE,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFCHR: CHARACTER_DEVICE,
    stat.S_IFBLK: BLOCK_DEVICE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFIFO: FIFO,
}
_FILE_FORMAT_OF_MEMBER_TYPE = {kind: mode for mode, kind in _MEMBER_TYPE_OF_FILE_FORMAT.items()} | {
    HARD_LINK_MEMBER: stat.S_IFREG
}


class NumberPairs(Sequence[tuple[int, int]]):
    """A sequence of pairs of integers, stored in one array: it takes 16 bytes of memory for each pair."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: array[int]) -> None:
        """Use ``numbers``, an array of type code ``q`` that contains the first and second numbers in turn."""
        self.numbers = numbers

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Return a ``NumberPairs`` object that contains ``pairs``."""
        return cls(array("q", (number for pair in pairs for number in pair)))

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Return the pairs in ``packed``, bytes that ``as_bytes`` has returned."""
        return cls(array("q", packed))

    @property
    def as_bytes(self) -> bytes:
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
            return self.from_pairs([self[at] for at in range(*index.indices(len(self)))])
        at = range(len(self))[index]
        return self.numbers[2 * at], self.numbers[2 * at + 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberPairs) and self.numbers == other.numbers

    def __hash__(self) -> int:
        return hash(self.as_bytes)


class Extents(NumberPairs):
    """The parts of a sparse file that hold data (outside of holes), each as a pair of offset and length."""

    __slots__ = ()

    @property
    def data_size(self) -> int:
        """The sum of all lengths, in bytes."""
        return sum(memoryview(self.numbers)[1::2])


class ArchiveMember(NamedTuple):
    """A member of an archive: a file, directory, link, device or FIFO with its metadata.

    Fields:
      name: the name, as the archive contains it.
      kind: the type (FILE, LINK, ...).
      mode: the permission bits.
      mtime: nanoseconds since 1970.
      size: number of bytes of the contents, holes included; 0 unless it is a regular file.
      link: the target of a symbolic link, or the name of the member to which a LINK is a hard link.
      device: the device number (st_rdev) of a device.
      xattrs: names and values of extended attributes, including those that contain ACLs.
      extents: for a file that is stored without its holes: the parts that are stored; otherwise None.
      user, group: names of the owner; empty if they are unknown.
    """

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
    def marshallable_fields(self) -> tuple[Any, ...]:
        """The fields as values of simple types, which ``marshal`` accepts, so that a member can be sent.
        ``from_marshallable_fields`` is the inverse.
        """
        extents = self.extents if self.extents is None else self.extents.as_bytes
        return (*self[:_EXTENTS_INDEX], extents, *self[_EXTENTS_INDEX + 1 :])

    @classmethod
    def from_marshallable_fields(cls, values: Sequence[Any]) -> ArchiveMember:
        """Return the member whose fields are ``values``, a result of ``marshallable_fields``."""
        member = cls(*values)
        packed = values[_EXTENTS_INDEX]
        return member if packed is None else member._replace(extents=Extents.from_bytes(packed))

    @property
    def st_mode(self) -> int:
        """Type and permission bits, as stat(2) reports them."""
        return _FILE_FORMAT_OF_MEMBER_TYPE[self.kind] | self.mode


def member_type(mode: int) -> bytes:
    """Return the type of a member (FILE, SYMLINK, ...) for an ``st_mode``; empty for a socket, which no archive can
    contain.
    """
    return _MEMBER_TYPE_OF_FILE_FORMAT.get(stat.S_IFMT(mode), b"")


def rounded_up_to_multiple(size: int, unit: int = TAR_BLOCK_BYTES) -> int:
    """Return ``size`` rounded up to a multiple of ``unit``."""
    return -(-size // unit) * unit


class UnsafeMemberNameError(ValueError):
    """Error for a name of a member that leads out of the directory into which the archive is extracted, or that
    contains a NUL. The text of the error is the reason.
    """


def safe_member_path(name: bytes) -> bytes:
    """Return the path of the member ``name`` below the directory into which the archive is extracted, without a leading
    or trailing slash, ``.`` or double slashes.

    The path is empty for that directory itself. Raise ``UnsafeMemberNameError`` if the name leads out of that
    directory, or contains a NUL.
    """
    if name.startswith(b"/"):
        name = name.lstrip(b"/")
    name = name.removesuffix(b"/")
    if b"./" not in name and b"//" not in name and name[-1:] not in (b"/", b"."):
        if b"\0" in name:
            raise UnsafeMemberNameError("its name contains a NUL")
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise UnsafeMemberNameError("its name contains .., which could lead out of the target directory")
    if b"\0" in name:
        raise UnsafeMemberNameError("its name contains a NUL")
    return b"/".join(parts)


def extraction_refusal_reason(member: ArchiveMember) -> str:
    """Return why ``member`` can never be extracted, whatever else is in the archive or in the target directory; empty
    if it can.

    Listing, comparing and extracting use this function, so that they report the same members.
    """
    try:
        path = safe_member_path(member.name)
    except UnsafeMemberNameError as unsafe:
        return str(unsafe)
    if not path and member.kind != DIRECTORY:
        return "a member without a name"
    if len(path) > MAX_FILE_NAME_BYTES and max(map(len, path.split(b"/"))) > MAX_FILE_NAME_BYTES:
        return f"its name has a part of more than {MAX_FILE_NAME_BYTES} bytes"
    if member.kind == SYMLINK and not 0 < len(member.link) <= MAX_LINK_TARGET_BYTES:
        return (
            f"a symbolic link whose target has {len(member.link):,} bytes: 1 to {MAX_LINK_TARGET_BYTES:,} are allowed"
        )
    return _hard_link_refusal_reason(member.link) if member.kind == HARD_LINK_MEMBER else ""


def _hard_link_refusal_reason(link: bytes) -> str:
    """Return why a hard link to the member ``link`` can never be created; empty if it can."""
    try:
        return "" if safe_member_path(link) else "it is a link to an empty name"
    except UnsafeMemberNameError:
        return "it is a link to an item outside of the directory"


_EXTENTS_INDEX = ArchiveMember._fields.index("extents")


def path_order_key(path: bytes) -> bytes:
    """Return a key that sorts paths so that all paths below a directory come directly after that directory."""
    return path.replace(b"/", b"\0")


def name_in_archive(given: bytes, path: bytes) -> bytes:
    """Return the name of the member for ``path``, which is relative to the path ``given`` on the command line (empty
    for that path itself). As tar does, remove leading slashes and everything up to the last ``..``.
    """
    name = os.path.join(given, path) if path else given
    if name.startswith(b"/"):
        name = name.lstrip(b"/") or b"./"
    if b".." in name:
        parts = name.split(b"/")
        if b".." in parts:  # as tar does, the components up to the last .. are removed
            name = b"/".join(parts[len(parts) - parts[::-1].index(b"..") :]) or b"./"
    return name
