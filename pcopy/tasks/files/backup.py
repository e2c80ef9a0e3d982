"""What is replaced or deleted is kept below another directory of the same file system (``--backup``).

It gets a further name there, at the same path below DST, and loses its own when it is replaced or removed: at no moment
has it none. Where a file system refuses the hard link it is moved there before; where it refuses that, it is copied.
Rules:
- Nothing in that directory is ever replaced: if a name is taken, ``.~1~`` and so on follow it. A killed run may have
  given the name to this very item: then that is it.
- Nobody else may put anything there: the directory itself is ours, and only we may write to it.
- Directories below it are entered without following links, and only if they are ours and nobody else may enter them:
  what DST keeps from others may come into them. Any other is a name that is taken. One that is deleted has its metadata
  there, but for the times: what has gone from it has changed these. From then on nothing more is put into it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from pcopy import libc
from pcopy.fsio.attributes import apply_attributes, read_attributes
from pcopy.fsio.close import held_open, let_go
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import LINK_REFUSALS, Problem, failing
from pcopy.fsio.source import status_of
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENED = 16
"""Directories that are kept open: what is replaced in one comes together, as a rule."""
_MOST = 1 << 20
"""The greatest number that is tried for one name: then it fails."""
_LONGEST = 255
"""Bytes of a name (NAME_MAX, limits.h): with a number, too."""
_TRIES = 8
"""How often a name that was free is taken by another rank, or by a file system's second thoughts, before it fails."""
_WRITERS = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Backup:
    """A rank's way into the directory that the user has named."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._opened: OrderedDict[bytes, int] = OrderedDict()
        self._has_modes = True
        """False: what we have made for us alone lets others in all the same, as FAT does."""

    def keep(self, place: Place, directory: int, name: bytes, status: os.stat_result) -> bool:
        """Keeps the item ``name`` of the open target ``directory`` of ``place``. Has it been moved, so that its name is
        free? Raises ``Problem``."""
        to, kept = self._directory(self._rank.below_target(place.root, place.path)), name

        def is_it(there: os.stat_result) -> bool:
            return (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino)

        for _ in range(_TRIES):
            try:
                os.link(name, kept, src_dir_fd=directory, dst_dir_fd=to, follow_symlinks=False)
                return False
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in LINK_REFUSALS:
                    raise Problem.of("link", error) from error
                is_moved = self._move(directory, name, to, kept, status)
                if is_moved is not None:
                    return is_moved
            there = _look(to, kept)
            if there is not None and is_it(there):
                return False
            kept = _with_number(name, _free_number(to, name, is_it))
        raise Problem("link", errno.EEXIST)

    def _move(self, directory: int, name: bytes, to: int, kept: bytes, status: os.stat_result) -> bool | None:
        """Move the item, or copy it where that is refused, too (EXDEV: another project, subvolume or mount).

        Return True if it was moved, False if it was copied, None if the name ``kept`` is taken. Raises ``Problem``.
        """
        try:
            libc.renameat2(directory, name, kept, libc.RENAME_NOREPLACE, to)
            return True
        except FileExistsError:
            return None
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise Problem.of("rename", error) from error
        from pcopy.tasks.files.second_copy import copy_item

        try:
            copy_item(self._rank, directory, name, status, to, kept)
        except Problem as problem:
            if problem.errno == errno.EEXIST:
                return None
            raise
        return False

    def keep_directory(self, place: Place, directory: int) -> None:
        """A directory that is deleted, and is empty by now: the one with what was in it gets its metadata. Raises
        ``Problem``."""
        options, status = self._rank.options, status_of(directory)
        preserve = options.preserve._replace(chown=(-1, -1))  # which is for copies
        path = self._rank.below_target(place.root, place.path)
        if self._has_kept(path, status):
            return
        self._directory(path)
        with held_open(self._opened.pop(path)) as kept:
            attributes = read_attributes(directory, status, preserve)
            attributes = attributes._replace(mode=attributes.mode | stat.S_IRWXU)  # more may come into it
            apply_attributes(kept, attributes, preserve, options.umask)

    def _has_kept(self, path: bytes, status: os.stat_result) -> bool:
        """Has a run done so that was killed before it removed the directory ``path``? Nothing has come into it since
        then; raises ``Problem``."""
        above, _, name = path.rpartition(b"/")
        around = self._directory(above)
        number = _free_number(around, name, self._is_private)
        if not number or _look(around, _with_number(name, number)) is not None:
            return False
        last = _look(around, _with_number(name, number - 1))
        return last is not None and stat.S_ISDIR(last.st_mode) and last.st_mtime_ns == status.st_mtime_ns

    def _directory(self, path: bytes) -> int:
        """The directory for ``path``, open, and made if it is not there; raises ``Problem``."""
        known = path
        while known and known not in self._opened:
            known = known.rpartition(b"/")[0]
        descriptor = self._opened[known] if known in self._opened else self._top()
        self._keep_open(known, descriptor)
        for name in filter(None, path[len(known) :].split(b"/")):
            known = known + b"/" + name if known else name
            descriptor = self._inner(descriptor, name)
            self._keep_open(known, descriptor)
        return descriptor

    def _keep_open(self, path: bytes, descriptor: int) -> None:
        self._opened[path] = descriptor
        self._opened.move_to_end(path)
        while len(self._opened) > _OPENED:
            let_go(self._opened.popitem(last=False)[1])

    def _inner(self, around: int, name: bytes) -> int:
        """The directory of that name, or with a number if the name is taken; raises ``Problem``."""
        for _ in range(_TRIES):
            numbered = _with_number(name, _free_number(around, name, self._is_private))
            is_new = _make(around, numbered)
            with failing("open"):
                descriptor = open_patiently(numbered, _FLAGS, dir_fd=around)
            status = os.fstat(descriptor)
            if is_new and status.st_mode & _OTHERS:
                self._has_modes = False
            if self._is_private(status):
                return descriptor
            let_go(descriptor)
        raise Problem("mkdir", errno.EEXIST)

    def _is_private(self, there: os.stat_result) -> bool:
        """Is it a directory of ours into which nobody else comes?"""
        is_open = there.st_mode & _OTHERS and self._has_modes
        return stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid() and not is_open

    def _top(self) -> int:
        """From the root on, without following links: the path had none when the job began. Raises ``Problem``."""
        with failing("open"):
            around = open_patiently(b"/", _ON_THE_WAY)
        *above, last = filter(None, self._rank.options.backup.split(b"/"))
        try:
            for name in above:
                inner = _made(around, name, _ON_THE_WAY)
                let_go(around)
                around = inner
            top = _made(around, last)
        finally:
            let_go(around)
        if strangers := strangers_of(status_of(top)):
            let_go(top)
            raise Problem("open", 0, text=f"the directory of --backup {strangers}")
        return top

    def close(self) -> None:
        while self._opened:
            let_go(self._opened.popitem()[1])


def strangers_of(status: os.stat_result) -> str:
    """Who else could change what is in the directory of that ``status``, in words; empty if nobody."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to the one who runs pcopy"
    if status.st_mode & _WRITERS:
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _with_number(name: bytes, number: int) -> bytes:
    """A name that is too long then is cut, behind a whole character if it is in UTF-8."""
    if not number:
        return name
    end = b".~%d~" % number
    if len(name) + len(end) <= _LONGEST:
        return name + end
    stem = name[: _LONGEST - len(end)]
    with suppress(UnicodeDecodeError):
        name.decode()
        stem = stem.decode(errors="ignore").encode()
    return stem + end


def _free_number(around: int, name: bytes, fits: Callable[[os.stat_result], bool]) -> int:
    """A number with which the ``name`` is free in the open directory, or taken by what ``fits``; raises ``Problem``.

    It is found with few questions, even if there are many. If some are missing in between it may be one of those. Who
    asks again when it has been taken by what ``fits`` gets the same answer.
    """

    def is_free(number: int) -> bool:
        there = _look(around, _with_number(name, number))
        return there is None or fits(there)

    if is_free(0):
        return 0
    taken, free = 0, 1
    while not is_free(free):
        taken, free = free, 2 * free
        if free > _MOST:
            raise Problem("link", errno.EEXIST)
    while free - taken > 1:
        middle = (taken + free) // 2
        if is_free(middle):
            free = middle
        else:
            taken = middle
    return free


def _look(around: int, name: bytes) -> os.stat_result | None:
    """What has the name; None if it is free. Raises ``Problem``."""
    with failing("stat"), suppress(FileNotFoundError):
        return os.stat(name, dir_fd=around, follow_symlinks=False)
    return None


def _make(around: int, name: bytes) -> bool:
    """Makes a directory for us alone in an open one; False if the name is taken. Raises ``Problem``."""
    with failing("mkdir"):
        try:
            os.mkdir(name, 0o700, dir_fd=around)
        except FileExistsError:
            return False
    return True


def _made(around: int, name: bytes, flags: int = _FLAGS) -> int:
    """A directory of an open one, open; it is made if it is not there. Raises ``Problem``."""
    with failing("open"):
        try:
            return open_patiently(name, flags, dir_fd=around)
        except FileNotFoundError:
            pass
    _make(around, name)
    with failing("open"):
        return open_patiently(name, flags, dir_fd=around)
