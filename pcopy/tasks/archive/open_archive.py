"""The archive that ``ptar`` extracts or verifies. Each rank has it open."""

from __future__ import annotations

import errno
import os
from functools import lru_cache

from pcopy.archive.acl_text import OwnerIdLookup
from pcopy.archive.incomplete import NamesOfIncompleteFiles, read_archive_trailer
from pcopy.archive.member import ArchiveMember
from pcopy.archive.reader import ReadFunction
from pcopy.errors import RequestRefused
from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.named_file import UntrustedFileError, open_named_file_to_read
from pcopy.fsio.problem import Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.archive.contents import ArchiveContents
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank

READ_AHEAD_SIZE = 1 << 20
"""Smallest number of bytes that ``ReadAheadBuffer`` reads with one call."""


class OpenedArchive:
    """The archive of a job, as one rank reads it. It is opened at its first use."""

    def __init__(self, rank: Rank) -> None:
        self._archive, self._version = (
            rank.program_options(ArchiveOptions).archive_file,
            rank.program_options(ArchiveOptions).archive_version,
        )
        self._path = rank.program_options(ArchiveOptions).archive_contents or self._archive
        self._device_and_inode = (-1, -1)
        self._contents: ArchiveContents | None = None
        self._incomplete: NamesOfIncompleteFiles | None = None

    @property
    def incomplete_file_names(self) -> NamesOfIncompleteFiles:
        """The files whose contents could not be read when the archive was created. Raise ``Problem`` if the list in the
        archive is damaged.
        """
        if self._incomplete is None:
            self._incomplete = read_incomplete_names(self.read, self.contents_of_archive.size)
        return self._incomplete

    @property
    def contents_of_archive(self) -> ArchiveContents:
        """The contents of the archive. Raise ``Problem`` if it cannot be opened, or has changed since the job
        started.
        """
        if self._contents is None:
            is_named = (
                self._path == self._archive
            )  # else: a path in /proc to the decompressed file that rank 0 has open
            descriptor = open_archive(self._path) if is_named else _open_decompressed_contents(self._path)
            try:
                status = status_of_open_item(descriptor, on_source=True)
                if self._version not in ((), archive_content_version(status)):
                    raise Problem(
                        "open",
                        0,
                        on_source=True,
                        text="the archive was replaced, or has changed, since the job started",
                    )
                if self._path != self._archive:
                    with errors_as_problem("stat", on_source=True):
                        status = os.stat(self._archive)
                self._contents = ArchiveContents(descriptor, self._path)
            except RequestRefused as refused:  # rank 0 has accepted the archive, so it was replaced since
                os.close(descriptor)
                raise Problem("open", 0, on_source=True, text=str(refused)) from None
            except Problem:
                os.close(descriptor)
                raise
            self._device_and_inode = status.st_dev, status.st_ino
        return self._contents

    def refuse_replacing_archive(self, present: os.stat_result | None) -> None:
        """Raise ``Problem`` if an item to be replaced is the archive itself. ``present`` is the status of that item, or
        None.
        """
        if present is not None and (present.st_dev, present.st_ino) == self._device_and_inode:
            raise Problem("extract", 0, text="it would replace the archive that is being extracted")

    @property
    def uncompressed_archive_descriptor(self) -> int:
        """The descriptor of the archive if it is not compressed, so that its contents can be copied from this file; -1
        if it is compressed. Raise ``Problem`` if it cannot be opened.
        """
        return self.contents_of_archive.descriptor if self.contents_of_archive.is_uncompressed else -1

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the contents from ``offset`` on; fewer at the end
        (``pcopy.archive.reader.ReadFunction``). Raise ``Problem`` if they cannot be read.
        """
        return self.contents_of_archive.read(offset, size)

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes of the contents from ``offset`` on. Raise ``Problem`` if the archive ends
        before.
        """
        data = self.read(offset, size)
        while len(data) < size:
            more = self.read(offset + len(data), size - len(data))
            if not more:
                raise source_changed_problem("read", "the archive ends here, within a member")
            data += more
        return data

    def close(self) -> None:
        """Close the archive. It is opened again at its next use."""
        if self._contents is not None:
            os.close(self._contents.descriptor)
            self._contents = None


def read_incomplete_names(read: ReadFunction, size: int) -> NamesOfIncompleteFiles:
    """Return the names of incomplete files that the trailer of an archive of ``size`` bytes lists. Raise ``Problem`` if
    it is damaged.
    """
    try:
        return read_archive_trailer(read, size)
    except ValueError as error:
        raise Problem("read", errno.EBADMSG, on_source=True, text=str(error)) from None


def archive_content_version(status: os.stat_result) -> tuple[int, ...]:
    """Return the values that show whether an archive was changed or replaced: inode number, size and mtime."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_archive(path: bytes) -> int:
    """Return a descriptor of the archive ``path``. Raise ``Problem`` if it cannot be opened or is not trusted."""
    try:
        return open_named_file_to_read(path, regular=True).descriptor
    except UntrustedFileError as error:
        raise Problem("open", 0, on_source=True, text=error.strerror or "") from error
    except OSError as error:
        raise Problem.from_error("open", error, on_source=True) from error


def _open_decompressed_contents(path: bytes) -> int:
    """Return a descriptor of the decompressed contents, opened by a path in /proc. Raise ``Problem`` if that fails."""
    with errors_as_problem("open", on_source=True):
        return open_with_retries(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


class ReadAheadBuffer:
    """Reads adjacent data with few calls of ``read``, by reading more than is wanted."""

    def __init__(self, read: ReadFunction) -> None:
        self._read = read
        self._data, self._start = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on; fewer at the end (``pcopy.archive.reader.ReadFunction``)."""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            self._data, self._start, at = self._read(offset, max(size, READ_AHEAD_SIZE)), offset, 0
        return self._data[at : at + size]


def owner_id_lookup(*, numeric: bool) -> OwnerIdLookup:
    """Return a function that maps the name of a user or group to its id on this host. If ``numeric`` is true, the
    function returns None for every name.
    """
    return _null_owner_id_lookup if numeric else owner_id


def _null_owner_id_lookup(kind: str, name: str) -> int | None:
    """Return None, whatever the name is (``--numeric-owner``)."""
    return None


@lru_cache(4096)
def owner_id(kind: str, name: str) -> int | None:
    """Return the id of a user or group by its name, None if there is none. ``kind`` is "user" or "group"."""
    try:
        if kind == "user":
            import pwd

            return pwd.getpwnam(name).pw_uid
        import grp

        return grp.getgrnam(name).gr_gid
    except (KeyError, OSError, ValueError):
        return None


def extracted_member_metadata(lookup: OwnerIdLookup, member: ArchiveMember) -> ItemMetadata:
    """Return the metadata that ``member`` gets when it is extracted. Its owner is the user on this host who has the
    name in the archive; if there is none, the number in the archive. The same holds for its group.

    ``lookup`` returns the id of a user or group by its name.
    """
    uid = _member_owner_id(lookup, "user", member.user, member.uid)
    gid = _member_owner_id(lookup, "group", member.group, member.gid)
    return ItemMetadata(member.st_mode, uid, gid, member.mtime, member.mtime, member.xattrs)


def _member_owner_id(lookup: OwnerIdLookup, kind: str, name: bytes, number: int) -> int:
    """Return the id, on this host, of the user or group called ``name``; if there is none, ``number``, which is the id
    in the archive. ``lookup`` returns ids by ``kind`` ("user" or "group") and name.
    """
    if name:
        found = lookup(kind, os.fsdecode(name))
        if found is not None:
            return found
    return number
