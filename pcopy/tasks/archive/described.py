"""What is written of each item is found out while the tree is scanned: a ``Described`` each, as a record that sorts.

Key: root, path of the directory, name. So a directory comes first, then what is in it, then each directory in it with
all that is below; tar wants what is below a directory to stand together. The name of a directory itself is empty.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from functools import lru_cache

from pcopy.archive.headers import records_size, whole_size
from pcopy.archive.member import (
    DIRECTORY,
    FILE,
    LINK,
    MOST_HEADERS,
    SYMLINK,
    Extents,
    Member,
    kind_of,
    name_in_archive,
    order_key,
)
from pcopy.fsio.attribute_names import ACCESS_ACL
from pcopy.fsio.attributes import read_xattrs, rights_without
from pcopy.fsio.close import close_read
from pcopy.fsio.contents import data_extents, generated_pieces, has_holes
from pcopy.fsio.problem import Plain, Problem, changed
from pcopy.fsio.source import Version, open_source, source_status, status_of
from pcopy.named import NamedTuple
from pcopy.signature.sorting import KeyValue
from pcopy.tasks.archive.readable import Readable
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.walk.visitor import Found

LEAST_SPARSE = 64 << 10
"""Bytes of a file from which on its holes are looked for: smaller ones are not worth it."""

SIZE_BITS = 63
"""Of the size with which a value begins; the highest bit tells what it is of."""


class Described(NamedTuple):
    """An item and the ``member`` that it becomes. ``inode`` and ``ctime`` tell with the member's size and time whether
    it is still the same. ``names`` are directory and name of its further names, if digests are wanted. ``shortcoming``:
    why the member lacks some metadata, for which the item has failed (``Problem.plain``)."""

    root: int
    path: bytes
    name: bytes
    inode: int
    ctime: int
    member: Member
    names: tuple[tuple[bytes, bytes], ...] = ()
    shortcoming: Plain | None = None

    @property
    def version(self) -> Version:
        return Version(self.inode, self.member.size, self.member.mtime, self.ctime)

    @property
    def record(self) -> KeyValue:
        """To be sorted; the value begins with the size of the member in the archive. Equal items have equal ones."""
        size = whole_size(self.member)
        fields = (*self[:5], self.member.primitives, self.names, self.shortcoming)
        value = marshal.dumps(fields, 2)  # later versions depend on references
        return key_of(self.root, self.path, self.name), size.to_bytes(8, "big") + value


def key_of(root: int, path: bytes, name: bytes) -> bytes:
    return b"%08x\0%b\0\0%b" % (root, order_key(path), name)


def directory_in(key: bytes) -> bytes:
    """The part of a key that all items of one directory share."""
    return key.partition(b"\0\0")[0]


def size_in(value: bytes) -> int:
    """The size in the archive."""
    return int.from_bytes(value[:8], "big") & (1 << SIZE_BITS) - 1


def described_in(value: bytes) -> Described:
    root, path, name, inode, ctime, member, *others = marshal.loads(memoryview(value)[8:])
    return Described(root, path, name, inode, ctime, Member.from_primitives(member), *others)


class Describing:
    """Of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._preserve = rank.options.preserve
        self._readable = rank.own(Readable)
        self._given = [root.source_shown.rstrip(b"/") or b"/" for root in rank.job.roots]
        numeric = rank.options.numeric_owner
        self._user, self._group = (_nobody, _nobody) if numeric else (user_name, group_name)

    def item(self, place: Place, found: Found, row: int) -> Described | None:
        """An item of the open directory ``place``; None for a socket. Raises ``Problem``."""
        rows, name = found.rows, found.names[row]
        mode = rows.mode[row]
        kind = kind_of(mode)
        if not kind:
            return None
        path = place.path
        below = (path + b"/" + name if path else name) if not self._rank.job.roots[place.root].item else b""
        if kind == DIRECTORY:
            return self._described(place.root, below, b"", found, row, below + b"/")
        return self._described(place.root, path, name, found, row, below)

    def _described(self, root: int, path: bytes, name: bytes, found: Found, row: int, below: bytes) -> Described:
        rows, directory, entry = found.rows, found.directory, found.names[row]
        mode, mtime = rows.mode[row], rows.time("mtime", row)
        kind, link, device, size = kind_of(mode), b"", 0, 0
        extents: Extents | None = None
        if kind == FILE and self._rank.mover.generated.is_on(directory, rows.device[row]):
            size = _generated_size(directory, entry, rows.size[row])
        elif kind == FILE:
            size = rows.size[row]
            if size >= LEAST_SPARSE and self._preserve.sparse:
                extents = _extents_of(directory, entry, rows.version(row))
        elif kind == SYMLINK:
            link = _link(directory, entry)
        elif kind != DIRECTORY:
            device = source_status(directory, entry).st_rdev if not stat.S_ISFIFO(mode) else 0
        uid, gid = rows.uid[row], rows.gid[row]
        member = Member(
            name_in_archive(self._given[root], below), kind, stat.S_IMODE(mode), uid, gid, mtime, size, link, device,
            (), extents, self._user(uid), self._group(gid),
        )  # fmt: skip
        member, shortcoming = self._with_xattrs(member, directory, entry)
        if kind == FILE and (shortcoming or self._readable.may_refuse(found, row, member.xattrs)):
            close_read(open_source(directory, entry))
        return Described(root, path, name, rows.inode[row], rows.time("ctime", row), member, (), shortcoming)

    def prefix(self, place: Place) -> bytes:
        """What stands before the names of the items of a directory."""
        below = place.path + b"/x" if place.path else b"x"
        return name_in_archive(self._given[place.root], below)[:-1]

    def owners(self, found: Found) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """The names of all owners and groups, by their numbers."""
        pairs = {*zip(found.rows.uid, found.rows.gid, strict=True)}
        return {(uid, gid): (self._user(uid), self._group(gid)) for uid, gid in pairs}

    def top(self, root: int, directory: int, status: os.stat_result) -> Described:
        """The directory that a root is."""
        member = Member(
            name_in_archive(self._given[root], b"").rstrip(b"/") + b"/", DIRECTORY, stat.S_IMODE(status.st_mode),
            status.st_uid, status.st_gid, status.st_mtime_ns,
            user=self._user(status.st_uid), group=self._group(status.st_gid),
        )  # fmt: skip
        member, shortcoming = self._with_xattrs(member, directory, b".")
        return Described(root, b"", b"", status.st_ino, status.st_ctime_ns, member, (), shortcoming)

    def _with_xattrs(self, member: Member, directory: int, name: bytes) -> tuple[Member, Plain | None]:
        """Return the member with the extended attributes and ACLs of the item, and why it lacks some of them.

        Raises ``Problem``.
        """
        preserve = self._preserve
        if member.kind == SYMLINK and not (preserve.xattr or preserve.acl):  # it has no ACL
            return member, None
        path = b"/proc/self/fd/%d/%b" % (directory, name)
        xattrs = read_xattrs(path, preserve, follow=False)
        whole = member._replace(mode=xattrs.mode(member.mode), xattrs=tuple(sorted(xattrs.found)))
        try:
            check_headers(whole)
        except Problem as too_large:
            acls = dict(xattrs.found)
            rights = rights_without(acls[ACCESS_ACL]) if ACCESS_ACL in acls else xattrs.rights
            return member._replace(mode=xattrs._replace(rights=rights).mode(member.mode)), too_large.plain
        problem = xattrs.problem
        return whole, None if problem is None else problem.plain


def check_headers(member: Member) -> None:
    """Raise ``Problem`` if the attributes and ACLs of a member take more bytes than ``ptar -x`` reads."""
    if member.xattrs and (size := records_size(member)) > MOST_HEADERS:
        text = f"its attributes and ACLs take {size:,} bytes of headers; {MOST_HEADERS:,} are possible: see --preserve"
        raise Problem("archive", errno.E2BIG, on_source=True, text=text)


def _gone_or(operation: str, error: OSError) -> Problem:
    number = error.errno or errno.EIO
    return Problem(operation, number, on_source=True, changed=number == errno.ENOENT)


def _link(directory: int, name: bytes) -> bytes:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise changed("readlink", "another item has taken its name") from error
        raise _gone_or("readlink", error) from error


def _generated_size(directory: int, name: bytes, size: int) -> int:
    """Return how many bytes can be read of a file that is generated as it is read; raises ``Problem``."""
    reading = open_source(directory, name)
    try:
        return sum(len(data) for _, data in generated_pieces(reading, size))
    finally:
        close_read(reading)


def check_described(rank: Rank, described: Described, reading: int) -> bool:
    """Raise ``Problem`` unless the open file is still what was described; return True if it is generated as it is read,
    so that its size says nothing."""
    status, version = status_of(reading, on_source=True), described.version
    is_generated = rank.mover.generated.is_on(reading, status.st_dev)
    if is_generated:
        version = version._replace(size=status.st_size)
    if Version.of(status) != version:
        raise changed("read", "the file changed while it was archived")
    return is_generated


def _extents_of(directory: int, name: bytes, version: Version) -> Extents | None:
    """Where the data of a file with holes lie; None if there are none. Raises ``Problem``."""
    if not has_holes(source_status(directory, name)):
        return None
    reading = open_source(directory, name)
    try:
        if Version.of(status_of(reading, on_source=True)) != version:
            return None  # whoever writes it tells of it
        extents = Extents.of((start, end - start) for start, end in data_extents(reading, 0, version.size))
    finally:
        close_read(reading)
    return extents if extents.stored < version.size else None


def as_link(described: Described, first: Described) -> Described:
    """The item as a further name of the ``first``."""
    member = described.member
    linked = member._replace(kind=LINK, size=0, link=first.member.name, xattrs=(), extents=None, device=0)
    return described._replace(member=linked, shortcoming=None)


@lru_cache(4096)
def user_name(number: int) -> bytes:
    import pwd

    try:
        return os.fsencode(pwd.getpwuid(number).pw_name)
    except (KeyError, OSError):
        return b""


@lru_cache(4096)
def group_name(number: int) -> bytes:
    import grp

    try:
        return os.fsencode(grp.getgrgid(number).gr_name)
    except (KeyError, OSError):
        return b""


def _nobody(number: int) -> bytes:
    return b""
