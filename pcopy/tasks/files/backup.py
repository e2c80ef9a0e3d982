"""What is replaced or deleted is kept below another directory of the same file system (``--backup``).

It gets a further name there, at the same path below DST, and loses its own when it is replaced or removed: at no moment
has it none. Where a file system has no hard links it is moved there before. Rules:
- Nothing in that directory is ever replaced: if a name is taken, ``.~1~`` and so on follow it. A killed run may have
  given the name to this very item: then that is it.
- Directories there are entered without following links, and are nobody else's (0700) unless they are made for one that
  is deleted, which has its metadata there, but for the times: what has gone from it has changed these.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from contextlib import suppress

from pcopy import libc
from pcopy.fsio.attributes import apply_attributes, read_attributes
from pcopy.fsio.close import let_go
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENED = 16
"""Directories that are kept open: what is replaced in one comes together, as a rule."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NUMBERS = 100_000
"""After so many copies of one name it fails."""


class Backup:
    """A rank's way into the directory that the user has named."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._opened: OrderedDict[bytes, int] = OrderedDict()

    def keep(self, place: Place, directory: int, name: bytes, status: os.stat_result) -> bool:
        """Keeps the item ``name`` of the open target ``directory`` of ``place``. Has it been moved, so that its name is
        free? Raises ``Problem``."""
        to = self.directory(self._rank.below_target(place.root, place.path))
        for number in range(_NUMBERS):
            kept = _with_number(name, number)
            try:
                os.link(name, kept, src_dir_fd=directory, dst_dir_fd=to, follow_symlinks=False)
                return False
            except FileExistsError:
                with failing("stat"):
                    there = os.stat(kept, dir_fd=to, follow_symlinks=False)
                if (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino):
                    return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise Problem.of("link", error) from error
                if self._move(directory, name, to, kept):
                    return True
        raise Problem("link", errno.EEXIST)

    def _move(self, directory: int, name: bytes, to: int, kept: bytes) -> bool:
        """False if the name is taken; raises ``Problem``."""
        try:
            libc.renameat2(directory, name, kept, libc.RENAME_NOREPLACE, to)
        except FileExistsError:
            return False
        except OSError as error:
            raise Problem.of("rename", error) from error
        return True

    def keep_directory(self, place: Place, directory: int) -> None:
        """A directory that is deleted, and is empty by now: the one with what was in it gets its metadata. Raises
        ``Problem``."""
        options = self._rank.options
        kept = self.directory(self._rank.below_target(place.root, place.path))
        status = status_of(directory)
        attributes = read_attributes(directory, status, options.preserve)
        attributes = attributes._replace(mode=attributes.mode | stat.S_IRWXU)  # more may come into it
        apply_attributes(kept, attributes, options.preserve, options.umask)

    def directory(self, path: bytes) -> int:
        """The directory ``path``, open, and made if it is not there; raises ``Problem``."""
        if path in self._opened:
            self._opened.move_to_end(path)
            return self._opened[path]
        if not path:
            descriptor = self._top()
        else:
            above, _, name = path.rpartition(b"/")
            descriptor = self._numbered(self.directory(above), name)
        self._opened[path] = descriptor
        while len(self._opened) > _OPENED:
            let_go(self._opened.popitem(last=False)[1])
        return descriptor

    def _numbered(self, around: int, name: bytes) -> int:
        """The directory of that name, or with the first number whose name no other item has; raises ``Problem``."""
        for number in range(_NUMBERS):
            try:
                return _made(around, _with_number(name, number))
            except Problem as problem:
                if problem.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
        raise Problem("mkdir", errno.EEXIST)

    def _top(self) -> int:
        """From the root on, without following links: the path had none when the job began. Raises ``Problem``."""
        with failing("open"):
            around = os.open(b"/", _ON_THE_WAY)
        *above, last = filter(None, self._rank.options.backup.split(b"/"))
        try:
            for name in above:
                inner = _made(around, name, _ON_THE_WAY)
                let_go(around)
                around = inner
            return _made(around, last)
        finally:
            let_go(around)

    def close(self) -> None:
        while self._opened:
            let_go(self._opened.popitem()[1])


def _with_number(name: bytes, number: int) -> bytes:
    return name + b".~%d~" % number if number else name


def _made(around: int, name: bytes, flags: int = _FLAGS) -> int:
    """A directory of an open one, open; it is made if it is not there. Raises ``Problem``."""
    with failing("open"):
        try:
            return os.open(name, flags, dir_fd=around)
        except FileNotFoundError:
            pass
    with failing("mkdir"), suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=around)
    with failing("open"):
        return os.open(name, flags, dir_fd=around)
