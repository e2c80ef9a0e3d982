"""Descriptions of the items that go into an archive. The scan of the tree describes each item that it finds.

An ``ItemToArchive`` becomes a record, a pair of key and value that can be sorted. The key consists of root, path of the
directory, and name; the name of a directory itself is empty. So a directory comes first, then the items in it, then
each subdirectory with everything below it. tar needs that order: everything below a directory must stand together.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from functools import lru_cache

from pcopy.archive.headers import fits_owner_fields, pax_records_size, size_in_archive
from pcopy.archive.member import (
    DIRECTORY,
    FILE,
    HARD_LINK_MEMBER,
    MAX_HEADER_BYTES,
    SYMLINK,
    ArchiveMember,
    Extents,
    member_type,
    name_in_archive,
    path_order_key,
)
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR
from pcopy.fsio.attributes import mode_without_acl, read_xattrs
from pcopy.fsio.close import close_after_read
from pcopy.fsio.contents import data_extents, may_have_holes, pieces_of_pseudo_file
from pcopy.fsio.problem import PackedProblem, Problem, source_changed_problem
from pcopy.fsio.source import FileContentVersion, open_source_file_to_read, source_item_status, status_of_open_item
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.readable import ReadPermissions
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.walk.visitor import FoundItems

MIN_SPARSE_SIZE = 64 << 10
"""Size in bytes from which on files are searched for holes. For smaller files the search would cost more than
it saves.
"""

RECORD_SIZE_BITS = 62
"""Number of bits of the size with which the value of a record begins. The two higher bits say what the record holds."""
SIMPLE_FILES_BIT, TREE_BIT = 1 << RECORD_SIZE_BITS, 2 << RECORD_SIZE_BITS
"""Bits of the first number (a size) in the value of a record: the record holds several files of one directory
(``SimpleFiles``), or directories with the files in them (``TreeMembers``). If none is set, it holds one item.
"""


_MAX_KNOWN_OWNERS = 256
"""Largest number of owners that the fast path knows: C compares them one by one."""


class ItemToArchive(NamedTuple):
    """An item of the tree, and the ``member`` of the archive that it becomes.

    Fields:
      root: the number of the PATH on the command line that contains the item.
      path: the path of its directory below that PATH.
      name: its name in the directory; empty if the item is the directory ``path`` itself.
      inode, ctime: together with size and mtime of the member they show whether a file has changed since the scan.
      names: directory and name of each of its other hard links; empty unless digests are computed.
      metadata_problem: why the member lacks some metadata, as a packed ``Problem``, else None; such an item is
          archived, and reported as failed.
    """

    root: int
    path: bytes
    name: bytes
    inode: int
    ctime: int
    member: ArchiveMember
    names: tuple[tuple[bytes, bytes], ...] = ()
    metadata_problem: PackedProblem | None = None

    @property
    def content_version(self) -> FileContentVersion:
        """The inode number, size, mtime and ctime that the file had when it was described. If they differ when it is
        read, it has changed.
        """
        return FileContentVersion(self.inode, self.member.size, self.member.mtime, self.ctime)

    @property
    def record_for_sorting(self) -> SortRecord:
        """The item as a record to be sorted: its key (root, directory, name), and its value. The value begins with the
        number of bytes that the member takes in the archive.

        Equal items give equal records.
        """
        size = size_in_archive(self.member)
        fields = (self.root, *self._packed_place, *self[3:5], self.member.marshallable_fields, *self[6:])
        value = marshal.dumps(fields, 2)  # format 2: from format 3 on, equal values may give other bytes
        return item_sort_key(self.root, self.path, self.name), size.to_bytes(8, "big") + value

    @property
    def _packed_place(self) -> tuple[bytes, bytes] | tuple[int, int]:
        """The fields ``path`` and ``name``, or the number of bytes of each if the name of the member ends with them."""
        path = self.path + b"/" + self.name if self.path and self.name else self.path or self.name
        if self.member.name.removesuffix(b"/").endswith(path):
            return len(self.path), len(self.name)
        return self.path, self.name


def item_sort_key(root: int, path: bytes, name: bytes) -> bytes:
    """Return the key by which the item ``name`` in the directory ``path`` is sorted; ``root`` is the number of the PATH
    on the command line that contains it.
    """
    return b"%08x\0%b\0\0%b" % (root, path_order_key(path), name)


def directory_part_of_key(key: bytes) -> bytes:
    """Return the part of a record's key that all items of one directory share. Its end is searched from the end of the
    key, since the path may be long.
    """
    return key[: key.rindex(b"\0\0")]


def size_of_record_in_archive(value: bytes) -> int:
    """Return how many bytes of the archive the members in this value of a record take, headers included."""
    return int.from_bytes(value[:8], "big") & (1 << RECORD_SIZE_BITS) - 1


def unpack_item_to_archive(value: bytes) -> ItemToArchive:
    """Return the ``ItemToArchive`` in the value of a record."""
    root, path, name, inode, ctime, fields, *others = marshal.loads(memoryview(value)[8:])
    member = ArchiveMember.from_marshallable_fields(fields)
    if isinstance(path, int):
        whole = member.name.removesuffix(b"/")
        start = len(whole) - name
        path, name = whole[start - path - bool(path and name) : start - bool(path and name)], whole[start:]
    return ItemToArchive(root, path, name, inode, ctime, member, *others)


class MemberDescriber:
    """Describes the items that one rank finds. It caches the names of owners and the rights of this process."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._preserve = rank.options.preserve
        self._readable = rank.shared_instance(ReadPermissions)
        self._root_paths = [root.source_shown.rstrip(b"/") or b"/" for root in rank.job.roots]
        self._root_prefixes = [name_in_archive(path, b"x")[:-1] for path in self._root_paths]
        """What stands before the path of an item below each PATH in its name in the archive."""
        numeric = rank.program_options(ArchiveOptions).numeric_owner
        self._user, self._group = (_empty_owner_name, _empty_owner_name) if numeric else (user_name, group_name)
        self.known_owners: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        """The names of users and groups, by pairs of uid and gid, that this rank has met and that fit into a header.
        The fast path describes items of these owners only.
        """

    def describe_item(self, place: Place, found: FoundItems, row: int) -> ItemToArchive | None:
        """Return the description of one item: that in row ``row`` of ``found``, the items that were found in the
        directory ``place``.

        Return None for a socket, which no archive can hold. Raise ``Problem`` if the item cannot be examined.
        """
        rows, name = found.rows, found.names[row]
        mode = rows.mode[row]
        kind = member_type(mode)
        if not kind:
            return None
        path = place.path
        below = (path + b"/" + name if path else name) if not self._rank.job.roots[place.root].item else b""
        if kind == DIRECTORY:
            return self._description_of_found_item(place.root, below, b"", found, row, below + b"/")
        return self._description_of_found_item(place.root, path, name, found, row, below)

    def _description_of_found_item(
        self, root: int, path: bytes, name: bytes, found: FoundItems, row: int, below: bytes
    ) -> ItemToArchive:
        """Return the description of one item: that in row ``row`` of ``found``.

        Raise ``Problem`` if the item cannot be examined, or if it is a file that cannot be opened.

        Args:
            root: the number of the PATH on the command line that contains it.
            path, name: its directory below that PATH, and its name there, for the description.
            below: its own path below that PATH, from which its name in the archive is made.
        """
        rows, directory, entry = found.rows, found.directory, found.names[row]
        mode, mtime = rows.mode[row], rows.exact_time_of_row("mtime", row)
        kind, link, device, size = member_type(mode), b"", 0, 0
        extents: Extents | None = None
        if kind == FILE and self._rank.mover.generated_file_systems.is_on_pseudo_file_system(
            directory, rows.device[row]
        ):
            size = _size_of_generated_file(directory, entry, rows.size[row])
        elif kind == FILE:
            size = rows.size[row]
            if size >= MIN_SPARSE_SIZE and self._preserve.sparse:
                extents = _data_extents_of_file(directory, entry, rows.content_version_of_row(row))
        elif kind == SYMLINK:
            link = _symlink_target(directory, entry)
        elif kind != DIRECTORY:
            device = source_item_status(directory, entry).st_rdev if not stat.S_ISFIFO(mode) else 0
        uid, gid = rows.uid[row], rows.gid[row]
        self.learn_owner(uid, gid)
        member = ArchiveMember(
            self._root_prefixes[root] + below if below else name_in_archive(self._root_paths[root], b""),
            kind, stat.S_IMODE(mode), uid, gid, mtime, size, link, device,
            (), extents, self._user(uid), self._group(gid),
        )  # fmt: skip
        member, shortcoming = self._member_with_xattrs(member, directory, entry)
        if kind == FILE and (shortcoming or self._readable.may_be_unreadable(found, row, member.xattrs)):
            close_after_read(open_source_file_to_read(directory, entry))  # raises Problem if the file is unreadable
        return ItemToArchive(
            root, path, name, rows.inode[row], rows.exact_time_of_row("ctime", row), member, (), shortcoming
        )

    def archive_name_prefix(self, place: Place) -> bytes:
        """Return what stands before the name of an item of the directory ``place`` in the archive: its path, ending
        with a slash.
        """
        prefix = self._root_prefixes[place.root]
        return b"%b%b/" % (prefix, place.path) if place.path else prefix

    def owner_names(self, found: FoundItems) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """Return the names of users and groups of all ``found`` items: a pair of names for each pair of uid and gid."""
        pairs = {*zip(found.rows.uid, found.rows.gid, strict=True)}
        for ids in pairs:
            self.learn_owner(*ids)
        return {(uid, gid): (self._user(uid), self._group(gid)) for uid, gid in pairs}

    def learn_owner(self, uid: int, gid: int) -> None:
        """Add an owner to those that the fast path knows, unless there are many, or its names do not fit into a
        header.
        """
        if (uid, gid) not in self.known_owners and len(self.known_owners) < _MAX_KNOWN_OWNERS:
            names = self._user(uid), self._group(gid)
            if fits_owner_fields(uid, gid, *names):
                self.known_owners[uid, gid] = names

    def describe_root_directory(self, root: int, directory: int, status: os.stat_result) -> ItemToArchive:
        """Return the description of a directory that the user has named as a PATH on the command line. ``root`` is the
        number of this PATH, ``directory`` the open directory, ``status`` its status.
        """
        member = ArchiveMember(
            name_in_archive(self._root_paths[root], b"").rstrip(b"/") + b"/", DIRECTORY, stat.S_IMODE(status.st_mode),
            status.st_uid, status.st_gid, status.st_mtime_ns,
            user=self._user(status.st_uid), group=self._group(status.st_gid),
        )  # fmt: skip
        member, shortcoming = self._member_with_xattrs(member, directory, b".")
        return ItemToArchive(root, b"", b"", status.st_ino, status.st_ctime_ns, member, (), shortcoming)

    def _member_with_xattrs(
        self, member: ArchiveMember, directory: int, name: bytes
    ) -> tuple[ArchiveMember, PackedProblem | None]:
        """Return ``member`` with the extended attributes and ACLs of the item ``name``, and a packed ``Problem`` if it
        lacks some of them, else None.

        If their headers would be too large for ``ptar -x``, the member gets none of them, and a mode that allows no
        more than the ACL. Raise ``Problem`` if the attributes cannot be listed.
        """
        preserve = self._preserve
        if member.kind == SYMLINK and not (preserve.xattr or preserve.acl):  # a symbolic link has no ACL
            return member, None
        path = b"/proc/self/fd/%d/%b" % (directory, name)
        xattrs = read_xattrs(path, preserve, follow=False)
        whole = member._replace(
            mode=xattrs.mode_without_excess_permissions(member.mode), xattrs=tuple(sorted(xattrs.found))
        )
        try:
            check_member_header_size(whole)
        except Problem as too_large:
            acls = dict(xattrs.found)
            rights = mode_without_acl(acls[ACCESS_ACL_XATTR]) if ACCESS_ACL_XATTR in acls else xattrs.max_permissions
            return member._replace(
                mode=xattrs._replace(max_permissions=rights).mode_without_excess_permissions(member.mode)
            ), too_large.problem_as_tuple
        problem = xattrs.problem
        return whole, None if problem is None else problem.problem_as_tuple


def check_member_header_size(member: ArchiveMember) -> None:
    """Raise ``Problem`` if the extended attributes and ACLs of a member take more bytes of headers than ``ptar -x``
    accepts.
    """
    if member.xattrs and (size := pax_records_size(member)) > MAX_HEADER_BYTES:
        text = (
            f"its attributes and ACLs take {size:,} bytes of headers; {MAX_HEADER_BYTES:,} are allowed: see --preserve"
        )
        raise Problem("archive", errno.E2BIG, on_source=True, text=text)


def _problem_of_failed_source_operation(operation: str, error: OSError) -> Problem:
    """Return the ``Problem`` of a failed ``operation`` on the source. ENOENT means that the source has changed since
    the scan.
    """
    number = error.errno or errno.EIO
    return Problem(operation, number, on_source=True, changed=number == errno.ENOENT)


def _symlink_target(directory: int, name: bytes) -> bytes:
    """Return the target of the symbolic link ``name``. Raise ``Problem`` if it cannot be read."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise source_changed_problem("readlink", "another item has taken its name") from error
        raise _problem_of_failed_source_operation("readlink", error) from error


def _size_of_generated_file(directory: int, name: bytes, size: int) -> int:
    """Return how many bytes can be read of a file whose contents the system generates on reading (as in /proc).

    ``size`` is what stat(2) reports; such files may have another one. Raise ``Problem`` if the file cannot be read.
    """
    reading = open_source_file_to_read(directory, name)
    try:
        return sum(len(data) for _, data in pieces_of_pseudo_file(reading, size))
    finally:
        close_after_read(reading)


def check_matches_description(rank: Rank, described: ItemToArchive, reading: int) -> bool:
    """Raise ``Problem`` if the file that is open as ``reading`` has changed since the scan described it as
    ``described``.

    Return True if the system generates its contents on reading (as in /proc), so that the size in its status means
    nothing.
    """
    status, version = status_of_open_item(reading, on_source=True), described.content_version
    is_generated = rank.mover.generated_file_systems.is_on_pseudo_file_system(reading, status.st_dev)
    if is_generated:
        version = version._replace(size=status.st_size)
    if FileContentVersion.from_status(status) != version:
        raise source_changed_problem("read", "the file changed while it was archived")
    return is_generated


def _data_extents_of_file(directory: int, name: bytes, version: FileContentVersion) -> Extents | None:
    """Return the ranges with data (offset and length) of the file ``name`` if it has holes; None if it has none, or if
    it no longer has the state ``version`` that the scan has found. Raise ``Problem`` if it cannot be read.
    """
    if not may_have_holes(source_item_status(directory, name)):
        return None
    reading = open_source_file_to_read(directory, name)
    try:
        if FileContentVersion.from_status(status_of_open_item(reading, on_source=True)) != version:
            return None  # the task that archives the file reports that it has changed
        extents = Extents.from_pairs((start, end - start) for start, end in data_extents(reading, 0, version.size))
    finally:
        close_after_read(reading)
    return extents if extents.data_size < version.size else None


def description_as_hard_link(described: ItemToArchive, first: ItemToArchive) -> ItemToArchive:
    """Return the description of an item as a hard link, instead of a file. ``first`` is another name of the same inode;
    the link refers to it.
    """
    member = described.member
    linked = member._replace(kind=HARD_LINK_MEMBER, size=0, link=first.member.name, xattrs=(), extents=None, device=0)
    return described._replace(member=linked, metadata_problem=None)


@lru_cache(4096)
def user_name(number: int) -> bytes:
    """Return the name of the user with the uid ``number``; empty if there is none."""
    import pwd

    try:
        return os.fsencode(pwd.getpwuid(number).pw_name)
    except (KeyError, OSError):
        return b""


@lru_cache(4096)
def group_name(number: int) -> bytes:
    """Return the name of the group with the gid ``number``; empty if there is none."""
    import grp

    try:
        return os.fsencode(grp.getgrgid(number).gr_name)
    except (KeyError, OSError):
        return b""


def _empty_owner_name(number: int) -> bytes:
    """Return an empty name for any id ``number``: the archive contains no names of users and groups
    (``--numeric-owner``).
    """
    return b""
