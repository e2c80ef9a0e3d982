"""The archive that is read, as each rank has it open."""

from __future__ import annotations

import errno
import os
from functools import lru_cache

from pcopy.archive.acl_text import Lookup
from pcopy.archive.incomplete import Incomplete, incomplete_in
from pcopy.archive.member import Member
from pcopy.archive.reader import Read
from pcopy.errors import Refused
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.named_file import NotTrusted, open_to_read
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, changed, failing
from pcopy.fsio.source import status_of
from pcopy.tasks.archive.contents import ArchiveContents
from pcopy.tasks.base.rank import Rank

AHEAD = 1 << 20
"""Bytes that are read at once, at least, where what stands there is read piece by piece."""


class OpenArchive:
    """Of one rank; it is opened when it is first asked for."""

    def __init__(self, rank: Rank) -> None:
        self._archive, self._version = rank.options.archive_file, rank.options.archive_version
        self._path = rank.options.archive_contents or self._archive
        self._is = (-1, -1)
        self._contents: ArchiveContents | None = None
        self._incomplete: Incomplete | None = None

    @property
    def incomplete(self) -> Incomplete:
        """The files whose contents could not be read when the archive was made. Raises ``Problem``."""
        if self._incomplete is None:
            self._incomplete = listed_as_incomplete(self.read, self.contents.size)
        return self._incomplete

    @property
    def contents(self) -> ArchiveContents:
        """Raises ``Problem``."""
        if self._contents is None:
            is_named = self._path == self._archive  # otherwise a path below /proc of what rank 0 has opened
            descriptor = open_archive(self._path) if is_named else _open_contents(self._path)
            try:
                status = status_of(descriptor, on_source=True)
                if self._version not in ((), version_of(status)):
                    raise Problem("open", 0, on_source=True, text="the archive was replaced, or has changed meanwhile")
                if self._path != self._archive:
                    with failing("stat", on_source=True):
                        status = os.stat(self._archive)
                self._contents = ArchiveContents(descriptor, self._path)
            except Refused as refused:  # which rank 0 has found out before; it was replaced since
                os.close(descriptor)
                raise Problem("open", 0, on_source=True, text=str(refused)) from None
            except Problem:
                os.close(descriptor)
                raise
            self._is = status.st_dev, status.st_ino
        return self._contents

    def spare(self, present: os.stat_result | None) -> None:
        """Raises ``Problem`` if what is ``present``, and would be replaced, is the archive."""
        if present is not None and (present.st_dev, present.st_ino) == self._is:
            raise Problem("extract", 0, text="it would take the place of the archive that is unpacked")

    @property
    def plain_descriptor(self) -> int:
        """-1 if it is compressed. Raises ``Problem``."""
        return self.contents.descriptor if self.contents.is_plain else -1

    def read(self, offset: int, size: int) -> bytes:
        """As ``pcopy.archive.reader.Read``; raises ``Problem``."""
        return self.contents.read(offset, size)

    def read_all(self, offset: int, size: int) -> bytes:
        """So many bytes; raises ``Problem`` if there are fewer."""
        data = self.read(offset, size)
        while len(data) < size:
            more = self.read(offset + len(data), size - len(data))
            if not more:
                raise changed("read", "the archive ends here, in the middle")
            data += more
        return data

    def close(self) -> None:
        if self._contents is not None:
            os.close(self._contents.descriptor)
            self._contents = None


def listed_as_incomplete(read: Read, size: int) -> Incomplete:
    """Return what the trailer of an archive of ``size`` bytes lists. Raises ``Problem``."""
    try:
        return incomplete_in(read, size)
    except ValueError as error:
        raise Problem("read", errno.EBADMSG, on_source=True, text=str(error)) from None


def version_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_archive(path: bytes) -> int:
    """Raises ``Problem``."""
    try:
        return open_to_read(path, regular=True).descriptor
    except NotTrusted as error:
        raise Problem("open", 0, on_source=True, text=error.strerror or "") from error
    except OSError as error:
        raise Problem.of("open", error, on_source=True) from error


def _open_contents(path: bytes) -> int:
    with failing("open", on_source=True):
        return open_patiently(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


class Ahead:
    """Reads what stands close together with few calls."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._data, self._start = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """As ``pcopy.archive.reader.Read``."""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            self._data, self._start, at = self._read(offset, max(size, AHEAD)), offset, 0
        return self._data[at : at + size]


def lookup_of(*, numeric: bool) -> Lookup:
    """Numbers of owners by name; None for all if only numbers count."""
    return _no_number if numeric else number_of


def _no_number(what: str, name: str) -> int | None:
    return None


@lru_cache(4096)
def number_of(what: str, name: str) -> int | None:
    try:
        if what == "user":
            import pwd

            return pwd.getpwnam(name).pw_uid
        import grp

        return grp.getgrnam(name).gr_gid
    except (KeyError, OSError, ValueError):
        return None


def attributes_of(lookup: Lookup, member: Member) -> Attributes:
    uid = _owner(lookup, "user", member.user, member.uid)
    gid = _owner(lookup, "group", member.group, member.gid)
    return Attributes(member.st_mode, uid, gid, member.mtime, member.mtime, member.xattrs)


def _owner(lookup: Lookup, what: str, name: bytes, number: int) -> int:
    """By name, if that is known here, else by number."""
    if name:
        found = lookup(what, os.fsdecode(name))
        if found is not None:
            return found
    return number
