"""Backups of items of the target that are replaced or deleted (``--backup``), below another directory of the same file
system.

The item gets a hard link in the backup directory, at the same path as below DST. It loses its own name only when it is
replaced or removed, so it has a name at all times. If the file system refuses the hard link, the item is moved to the
backup directory before it is replaced. If that is refused, too, the item is copied there.

Rules:
- Nothing in the backup directory is ever replaced. If a name is taken, ``.~1~``, ``.~2~`` and so on are appended. If
  the name already leads to the same item, an earlier run that was killed has created that link, and nothing is done.
- No other user may create anything there: the directory must belong to the user of pcopy and be writable by that user
  only.
- Directories below it are entered without following symbolic links, and only if they belong to the user of pcopy and no
  other user may enter them, because items may come there that DST hides from other users. Any other directory counts as
  a name that is taken.
- The backup of a deleted directory gets the metadata of that directory, including its modification time after its
  contents were removed. From then on nothing is added to the backup.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from pcopy import libc
from pcopy.fsio.attributes import apply_item_metadata, read_item_metadata
from pcopy.fsio.close import close_ignoring_errors, closing_descriptor
from pcopy.fsio.problem import HARD_LINK_UNSUPPORTED_ERRNOS, Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place

_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_OPEN_DIRECTORIES = 16
"""Number of backup directories that are kept open. Items that are replaced one after the other usually have the same
directory.
"""
_MAX_NAME_NUMBER = 1 << 20
"""Largest number that is tried as a suffix of a name. If all are taken, the backup fails."""
_MAX_NAME_BYTES = 255
"""Largest length in bytes of a name with its number. It is NAME_MAX of limits.h, the limit of most file systems."""
_MAX_BACKUP_TRIES = 8
"""Number of attempts to give a backup a name that was free before. Between the examination and its use another rank may
take the name; or a network file system may repeat the request, so that the first one took it.
"""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Mode bits that permit the group or other users to write."""
_ACCESS_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""All mode bits of the group and of other users."""


class BackupDirectory:
    """One rank's access to the backup directory (``--backup``) and the directories below it. It backs up items of the
    target before they are replaced or deleted.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._opened: OrderedDict[bytes, int] = OrderedDict()
        self._modes_are_reliable = True
        """False if a directory that was created with mode 0700 shows permissions for other users nevertheless, as on
        FAT. Then permissions are not checked.
        """

    def back_up_item(self, place: Place, directory: int, name: bytes, status: os.stat_result) -> bool:
        """Back up the item ``name`` of the target directory of ``place``. Raise ``Problem`` if that fails.

        Args:
            directory: descriptor of the target directory.
            status: status of the item.

        Return True if the item was moved, so that its name is free now. Return False if it still has its name, because
        it got a hard link or was copied.
        """
        to, kept = self._open_directory(self._rank.path_below_target(place.root, place.path)), name

        def is_same(other: os.stat_result) -> bool:
            return (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino)

        for _ in range(_MAX_BACKUP_TRIES):
            try:
                os.link(name, kept, src_dir_fd=directory, dst_dir_fd=to, follow_symlinks=False)
                return False
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in HARD_LINK_UNSUPPORTED_ERRNOS:
                    raise Problem.from_error("link", error) from error
                is_moved = self._move_or_copy_to_backup(directory, name, to, kept, status)
                if is_moved is not None:
                    return is_moved
            existing = _item_status_or_none(to, kept)
            if existing is not None and is_same(existing):
                return False
            kept = _name_with_number(name, _unused_name_number(to, name, is_same))
        raise Problem("link", errno.EEXIST)

    def _move_or_copy_to_backup(
        self, directory: int, name: bytes, to: int, kept: bytes, status: os.stat_result
    ) -> bool | None:
        """Move the item ``name`` of the open ``directory`` to the name ``kept`` in the open backup directory ``to``. If
        that is refused with EXDEV, because the directories are in different projects, subvolumes or mounts, copy it.

        Return True if it was moved, False if it was copied, None if the name ``kept`` is taken. Raise ``Problem`` on
        failure.
        """
        try:
            libc.renameat2(directory, name, kept, libc.RENAME_NOREPLACE, to)
            return True
        except FileExistsError:
            return None
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise Problem.from_error("rename", error) from error
        from pcopy.tasks.files.second_copy import copy_target_item

        try:
            copy_target_item(self._rank, directory, name, status, to, kept)
        except Problem as problem:
            if problem.errno == errno.EEXIST:
                return None
            raise
        return False

    def set_directory_metadata(self, place: Place, directory: int) -> None:
        """Set the metadata of the backup of the target directory of ``place``, which is empty now and will be deleted.
        ``directory`` is its descriptor. Raise ``Problem`` on failure.
        """
        options, status = self._rank.options, status_of_open_item(directory)
        preserve = options.preserve._replace(chown=(-1, -1))  # --chown applies to copies, not to backups
        path = self._rank.path_below_target(place.root, place.path)
        if self._has_backup_of_directory_metadata(path, status):
            return
        self._open_directory(path)
        with closing_descriptor(self._opened.pop(path)) as kept:
            attributes = read_item_metadata(directory, status, preserve)
            # The owner keeps all permissions, because more items may be put into the backup.
            attributes = attributes._replace(mode=attributes.mode | stat.S_IRWXU)
            apply_item_metadata(kept, attributes, preserve, options.umask)

    def _has_backup_of_directory_metadata(self, path: bytes, status: os.stat_result) -> bool:
        """Return True if a run that was killed before it removed the directory ``path`` has already set the metadata of
        its backup: then both have the same modification time. ``status`` is that of the directory. Raise ``Problem`` on
        failure.
        """
        parent_path, _, name = path.rpartition(b"/")
        parent = self._open_directory(parent_path)
        number = _unused_name_number(parent, name, self._is_private_directory)
        if not number or _item_status_or_none(parent, _name_with_number(name, number)) is not None:
            return False
        last = _item_status_or_none(parent, _name_with_number(name, number - 1))
        return last is not None and stat.S_ISDIR(last.st_mode) and last.st_mtime_ns == status.st_mtime_ns

    def _open_directory(self, path: bytes) -> int:
        """Return a descriptor of the backup directory for items of the target directory ``path``; create it if it does
        not exist. Raise ``Problem`` on failure.
        """
        opened_path = path
        while opened_path and opened_path not in self._opened:
            opened_path = opened_path.rpartition(b"/")[0]
        descriptor = self._opened[opened_path] if opened_path in self._opened else self._open_backup_root()
        self._keep_directory_open(opened_path, descriptor)
        for name in filter(None, path[len(opened_path) :].split(b"/")):
            opened_path = opened_path + b"/" + name if opened_path else name
            descriptor = self._open_subdirectory(descriptor, name)
            self._keep_directory_open(opened_path, descriptor)
        return descriptor

    def _keep_directory_open(self, path: bytes, descriptor: int) -> None:
        """Keep ``descriptor``, the open backup directory of the target directory ``path``, for other items. If too many
        are open, close the one that was not used for the longest time.
        """
        self._opened[path] = descriptor
        self._opened.move_to_end(path)
        while len(self._opened) > _MAX_OPEN_DIRECTORIES:
            close_ignoring_errors(self._opened.popitem(last=False)[1])

    def _open_subdirectory(self, parent: int, name: bytes) -> int:
        """Return a descriptor of the directory ``name`` in the open directory ``parent``; create it if it does not
        exist. Raise ``Problem`` on failure.

        If the name is taken by an item that may not be used, because it is no directory or other users may enter it, a
        number is appended to the name.
        """
        for _ in range(_MAX_BACKUP_TRIES):
            numbered = _name_with_number(name, _unused_name_number(parent, name, self._is_private_directory))
            is_new = _make_directory(parent, numbered)
            with errors_as_problem("open"):
                descriptor = open_with_retries(numbered, _OPEN_FLAGS, dir_fd=parent)
            status = os.fstat(descriptor)
            if is_new and status.st_mode & _ACCESS_BY_OTHERS:
                self._modes_are_reliable = False
            if self._is_private_directory(status):
                return descriptor
            close_ignoring_errors(descriptor)
        raise Problem("mkdir", errno.EEXIST)

    def _is_private_directory(self, status: os.stat_result) -> bool:
        """Return True if ``status`` is that of a directory that belongs to the user of pcopy and that no other user may
        enter.
        """
        is_open = status.st_mode & _ACCESS_BY_OTHERS and self._modes_are_reliable
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not is_open

    def _open_backup_root(self) -> int:
        """Return a descriptor of the backup directory itself. Raise ``Problem`` on failure.

        It is opened from the root of the file system without following symbolic links; its path contained none when the
        job began.
        """
        with errors_as_problem("open"):
            parent = open_with_retries(b"/", _PATH_FLAGS)
        *parents, last = filter(None, self._rank.copy_options.backup.split(b"/"))
        try:
            for name in parents:
                inner = _open_or_make_directory(parent, name, _PATH_FLAGS)
                close_ignoring_errors(parent)
                parent = inner
            top = _open_or_make_directory(parent, last)
        finally:
            close_ignoring_errors(parent)
        if strangers := reason_others_may_write(status_of_open_item(top)):
            close_ignoring_errors(top)
            raise Problem("open", 0, text=f"the directory of --backup {strangers}")
        return top

    def close(self) -> None:
        """Close all directories that are kept open."""
        while self._opened:
            close_ignoring_errors(self._opened.popitem()[1])


def reason_others_may_write(status: os.stat_result) -> str:
    """Return, in words, why other users could change a directory with this ``status``; empty if they cannot."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to the one who runs pcopy"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _name_with_number(name: bytes, number: int) -> bytes:
    """Return ``name`` with a suffix such as ``.~1~``; unchanged if ``number`` is 0. A name that would be too long is
    shortened first; if it is UTF-8, no character is cut in two.
    """
    if not number:
        return name
    end = b".~%d~" % number
    if len(name) + len(end) <= _MAX_NAME_BYTES:
        return name + end
    stem = name[: _MAX_NAME_BYTES - len(end)]
    with suppress(UnicodeDecodeError):
        name.decode()
        stem = stem.decode(errors="ignore").encode()
    return stem + end


def _unused_name_number(parent: int, name: bytes, fits: Callable[[os.stat_result], bool]) -> int:
    """Return a number for the suffix of ``name`` (``_name_with_number``), so that the name with the suffix can be used
    in the open directory ``parent``: it is free, or taken by an item whose status ``fits`` accepts. Raise ``Problem``
    on failure.

    The number is found by a binary search, with few system calls. It need not be the smallest one. If the name is then
    taken by an item that ``fits`` accepts, a repeated call returns the same number.
    """

    def is_free(number: int) -> bool:
        existing = _item_status_or_none(parent, _name_with_number(name, number))
        return existing is None or fits(existing)

    if is_free(0):
        return 0
    taken, free = 0, 1
    while not is_free(free):
        taken, free = free, 2 * free
        if free > _MAX_NAME_NUMBER:
            raise Problem("link", errno.EEXIST)
    while free - taken > 1:
        middle = (taken + free) // 2
        if is_free(middle):
            free = middle
        else:
            taken = middle
    return free


def _item_status_or_none(parent: int, name: bytes) -> os.stat_result | None:
    """Return the status of the item ``name`` in the open directory ``parent``; None if the name is free. Raise
    ``Problem`` on failure.
    """
    with errors_as_problem("stat"), suppress(FileNotFoundError):
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    return None


def _make_directory(parent: int, name: bytes) -> bool:
    """Create the directory ``name`` with mode 0700 in the open directory ``parent``. Return False if the name is taken.
    Raise ``Problem`` on failure.
    """
    with errors_as_problem("mkdir"):
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            return False
    return True


def _open_or_make_directory(parent: int, name: bytes, flags: int = _OPEN_FLAGS) -> int:
    """Return a descriptor of the directory ``name`` in the open directory ``parent``; create it if it does not exist.
    Raise ``Problem`` on failure.
    """
    with errors_as_problem("open"):
        try:
            return open_with_retries(name, flags, dir_fd=parent)
        except FileNotFoundError:
            pass
    _make_directory(parent, name)
    with errors_as_problem("open"):
        return open_with_retries(name, flags, dir_fd=parent)
