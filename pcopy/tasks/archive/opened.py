"""The archive that is read, as each rank has it open."""

from __future__ import annotations

import os
from functools import lru_cache, partial

from pcopy.archive.acl_text import Lookup
from pcopy.archive.index import MOST_BYTES, SUFFIX, Index, unpacked
from pcopy.archive.member import Member
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import changed, failing
from pcopy.fsio.source import status_of
from pcopy.tasks.base.rank import Rank


class OpenArchive:
    """Of one rank; it is opened when it is first asked for, and has to be the one that rank 0 has seen."""

    def __init__(self, rank: Rank) -> None:
        self._path = rank.options.archive
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """Raises ``Problem``."""
        if self._descriptor < 0:
            self._descriptor = open_archive(self._path)
        return self._descriptor

    def read(self, offset: int, size: int) -> bytes:
        """As ``pcopy.archive.reader.Read``; raises ``Problem``."""
        with failing("read", on_source=True):
            return patiently(partial(os.pread, self.descriptor, size, offset))

    def read_all(self, offset: int, size: int) -> bytes:
        """So many bytes; raises ``Problem`` if there are fewer."""
        data = self.read(offset, size)
        while len(data) < size:
            more = self.read(offset + len(data), size - len(data))
            if not more:
                raise changed("read", "the archive ends here, in the middle")
            data += more
        return data

    def index(self) -> Index | None:
        """The one beside it, if there is one; raises ``ValueError`` if it does not fit, and ``Problem``."""
        status = status_of(self.descriptor, on_source=True)
        try:
            beside = os.open(self._path + SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with open(beside, "rb") as stream:
            try:
                text = stream.read(MOST_BYTES)
            except OSError as error:
                raise ValueError(error.strerror) from None
        return unpacked(text, status.st_size, status.st_mtime_ns)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_archive(path: bytes) -> int:
    """Raises ``Problem``."""
    with failing("open", on_source=True):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


class ReadAhead:
    """Reads what stands close together with few calls."""

    def __init__(self, archive: OpenArchive, size: int = 1 << 20) -> None:
        self._archive = archive
        self._size = size
        self._data = memoryview(b"")
        self._start = 0

    def bytes(self, offset: int, size: int) -> memoryview | bytes:
        """Raises ``Problem`` if there are fewer."""
        at = offset - self._start
        if at >= 0 and at + size <= len(self._data):
            return self._data[at : at + size]
        if size >= self._size:
            return self._archive.read_all(offset, size)
        self._data, self._start = memoryview(self._archive.read(offset, self._size)), offset
        if len(self._data) < size:
            return self._archive.read_all(offset, size)
        return self._data[:size]


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
