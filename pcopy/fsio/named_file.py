"""Opens the files and directories that the command line, the environment or a configuration file names.

A user with rights (root, most often) names files in directories that other users may write to, such as /tmp or a
project's directory. Three rules hold for every user:

- A symbolic link, in any component of the path, is followed only if root or the caller (the effective user) owns it.
  ``trust_all_links`` lifts this rule (``--insecure-links``).
- A regular file or a FIFO that is written to belongs to the caller or to root, and other users may not write to it.
- Opening does not block: a FIFO without a reader is refused after ``READER_PATIENCE`` seconds. Reading a FIFO waits
  until a writer has opened it, so that it is never taken for an empty file; a longer wait is announced.

Components are opened one by one, each relative to the descriptor of the directory before it, and links are resolved
here. So what was checked is what is opened, whatever other users rename meanwhile. ``/dev/stdin``, ``/dev/stdout``,
``/dev/stderr``, ``/dev/fd/N`` and ``/proc/self/fd/N`` are recognised by their text: the descriptor is duplicated, and
only its kind is checked, because the program that started this one has opened it.

What cannot be opened raises ``OSError``; its ``strerror`` is fit for the end of a line that names the path.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from pcopy.fsio.close import let_go
from pcopy.fsio.patience import LONG_WAIT, announce_wait, open_patiently, patiently
from pcopy.named import NamedTuple
from pcopy.text import shown

READER_PATIENCE = 5.0
"""Seconds in which a FIFO must be opened for reading: the reader may be started at the same time as the program."""
_READER_PAUSE = 0.05
"""Seconds between two attempts to open a FIFO for writing."""
_MOST_LINKS = 40
"""Links that are followed in one path; the kernel follows no more (path_resolution(7))."""
_MOST_ATTEMPTS = 100
"""Attempts to open a name whose item is replaced between the look and the call; each takes some microseconds."""

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_STANDARD = {b"/dev/stdin": 0, b"/dev/stdout": 1, b"/dev/stderr": 2}
_DESCRIPTOR = re.compile(rb"/+(?:dev|proc/+(?:self|thread-self))/+fd/+([0-9]{1,9})")
_REFUSED_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, os.strerror(errno.EISDIR)),
    (stat.S_ISSOCK, errno.ENXIO, "it is a socket; name a file"),
    (stat.S_ISBLK, errno.ENOTSUP, "it is a block device; name a file"),
)


class NotTrusted(OSError):
    """A rule of this module forbids to open the file; ``strerror`` says which, and what to do."""


class WrongKind(NotTrusted):
    """The item is of a kind that is not read or written, such as a directory."""


class _Trust:
    all_links = False


_starts: dict[tuple[int, int, int], int] = {}
"""Offsets of inherited regular files (descriptor, device, inode) when they were first opened for reading.

A list is read more than once (to be checked, and then to be used), and duplicates of a descriptor share one offset.
"""


def trust_all_links(trusted: bool) -> None:
    """Set whether links of other users are followed, for this process and those that it forks."""
    _Trust.all_links = trusted


class OpenedFile(NamedTuple):
    """An open file.

    ``path`` is its path from the root without symbolic links. ``inherited``: the descriptor is a duplicate of one that
    the program was started with. ``created``: nothing had that name before.
    """

    descriptor: int
    path: bytes
    inherited: bool = False
    created: bool = False


class LookedAt(NamedTuple):
    """An item that was looked at and not opened: its ``path`` as in ``OpenedFile``, and its status.

    ``status`` is None if nothing has that name.
    """

    path: bytes
    status: os.stat_result | None
    inherited: bool = False

    @property
    def is_stream(self) -> bool:
        """True if it is an inherited descriptor, a FIFO or a character device."""
        mode = self.status.st_mode if self.status else 0
        return self.inherited or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


class _Place(NamedTuple):
    """Where a path leads: the ``name`` in the open directory ``parent``, whose path is ``above``.

    ``item`` is an O_PATH descriptor, or -1 if nothing has that name. ``inherited``: the number of the descriptor that
    the path stands for; all else is unset then.
    """

    parent: int
    above: bytes
    name: bytes
    item: int
    inherited: int = -1

    @property
    def path(self) -> bytes:
        return self.above if self.name == b"." else os.path.join(self.above, self.name)


def inherited_descriptor(path: bytes) -> int:
    """Return the number of the descriptor that ``path`` stands for by its text, or -1."""
    if (number := _STANDARD.get(path)) is not None:
        return number
    found = _DESCRIPTOR.fullmatch(path)
    return int(found[1]) if found else -1


def look(path: bytes) -> LookedAt:
    """Return what ``path`` leads to, without opening it. Raises ``OSError``."""
    with _place(path) as place:
        if place.inherited >= 0:
            return LookedAt(_path_of(place.inherited, path), os.fstat(place.inherited), inherited=True)
        return LookedAt(place.path, None if place.item < 0 else os.fstat(place.item))


def look_at_directory_of(path: bytes) -> LookedAt:
    """Return what the directory of the file ``path`` is, as ``look``. Raises ``OSError``."""
    return look(os.path.join(os.path.dirname(path) or b".", b"."))


@contextmanager
def path_descriptor(path: bytes) -> Iterator[int]:
    """Open an item of any kind, only for ``os.fstat`` and ``handle_of``. Raises ``OSError``."""
    with _place(path) as place:
        if place.inherited < 0 and place.item < 0:
            raise _error(errno.ENOENT)
        yield place.inherited if place.inherited >= 0 else place.item


def open_to_read(
    path: bytes, *, regular: bool = False, trust_links: bool = False, keep_atime: bool = False
) -> OpenedFile:
    """Open ``path`` for reading. Raises ``OSError``.

    ``regular``: anything but a regular file is refused. ``trust_links``: the caller itself checks who owns the links.
    ``keep_atime``: reading does not change the access time, where the system allows that.
    """
    for _ in range(_MOST_ATTEMPTS):
        with _place(path, trust_links=trust_links) as place:
            if place.inherited >= 0:
                return _duplicated(place.inherited, path, os.O_WRONLY, regular=regular)
            if place.item < 0:
                raise _error(errno.ENOENT)
            _check_kind(os.fstat(place.item), regular=regular)
            try:
                descriptor = patiently(partial(_open_to_read, place, keep_atime))
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOENT):  # it was replaced since it was looked at
                    continue
                raise
            try:
                status = os.fstat(descriptor)
                _check_kind(status, regular=regular)
                if stat.S_ISFIFO(status.st_mode):
                    _wait_for_writer(descriptor, path)
                os.set_blocking(descriptor, True)
            except BaseException:
                let_go(descriptor)
                raise
            return OpenedFile(descriptor, place.path)
    raise _replaced()


def open_to_write(path: bytes) -> OpenedFile:
    """Open ``path`` for appending, and a regular file for reading, too; create it with mode 0666 less the umask.

    What it holds stays. Raises ``OSError``.
    """
    deadline = time.monotonic() + READER_PATIENCE
    attempts = 0
    while attempts < _MOST_ATTEMPTS:
        with _place(path) as place:
            if place.inherited >= 0:
                return _duplicated(place.inherited, path, os.O_RDONLY)
            try:
                return OpenedFile(_open_or_create(place), place.path, created=place.item < 0)
            except OSError as error:
                if error.errno == errno.ENOENT and place.item < 0:  # as below /proc, where nothing can be created
                    raise
                is_without_reader = error.errno == errno.ENXIO and _is_fifo(place.item)
                if not is_without_reader and error.errno not in (errno.ELOOP, errno.ENOENT, errno.EEXIST):
                    raise
        attempts += not is_without_reader
        if is_without_reader:
            if time.monotonic() > deadline:
                text = f"it is a FIFO that nobody has opened for reading in {READER_PATIENCE:.0f} seconds"
                raise NotTrusted(errno.ENXIO, f"{text}; start its reader first")
            time.sleep(_READER_PAUSE)
    raise _replaced()


class Directory(NamedTuple):
    """The open directory in which a file is, the file's ``name`` in it, and the file's path as in ``OpenedFile``.

    ``can_sync``: the descriptor serves for fsync. (A directory that may be searched and not read cannot be synced.)
    """

    descriptor: int
    name: bytes
    path: bytes
    can_sync: bool


def open_directory_of(path: bytes) -> Directory:
    """Open the directory of the file ``path``; a link of the file's own name is not followed. Raises ``OSError``."""
    directory, name = os.path.split(path)
    with _place(os.path.join(directory or b".", b".")) as place:
        if place.inherited >= 0:
            raise _error(errno.ENOTDIR)
        real = os.path.join(place.above, name)
        try:
            descriptor = open_patiently(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.parent)
        except PermissionError:
            return Directory(os.dup(place.parent), name, real, can_sync=False)
        return Directory(descriptor, name, real, can_sync=True)


@contextmanager
def held_directory(path: bytes) -> Iterator[bytes]:
    """Open the directory ``path``, and yield a path that leads to it whatever is renamed meanwhile.

    Where /proc is not mounted, that is its path from the root without symbolic links. Raises ``OSError``.
    """
    found = open_directory_of(os.path.join(path, b""))
    try:
        fixed = b"/proc/self/fd/%d" % found.descriptor
        yield fixed if os.path.exists(fixed) else found.path
    finally:
        let_go(found.descriptor)


def real_path(path: bytes) -> bytes:
    """Return ``path`` from the root without symbolic links; what is missing stays as it is. Raises ``OSError``."""
    try:
        return look(path).path
    except FileNotFoundError:
        directory, name = os.path.split(path.rstrip(b"/"))
        return os.path.normpath(os.path.join(real_path(directory or b"."), name))


def obstacle(path: bytes, mode: int, kind: str) -> str:
    """Return why a new file, such as "a signature" (``kind``), does not replace an item that is there, or nothing."""
    if inherited_descriptor(path) >= 0:
        return f"is no regular file, and cannot be replaced by {kind}; name a regular file"
    if stat.S_ISLNK(mode):
        return "is a symbolic link; name the file itself"
    if not stat.S_ISREG(mode):
        return f"is no regular file, and cannot be replaced by {kind}; name another file"
    return ""


def refuse_to_replace(directory: int, name: bytes) -> None:
    """Raise ``NotTrusted`` if ``name`` is there and is no regular file, which a new file would replace."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise NotTrusted(errno.ELOOP, "it is a symbolic link, which is not replaced")
    if not stat.S_ISREG(mode):
        raise NotTrusted(errno.EEXIST, "it is no regular file, and only a regular file can be replaced")


def _is_fifo(item: int) -> bool:
    return item >= 0 and stat.S_ISFIFO(os.fstat(item).st_mode)


def _open_to_read(place: _Place, keep_atime: bool) -> int:
    if keep_atime:
        with suppress(PermissionError):
            return open_patiently(place.name, os.O_RDONLY | os.O_NOATIME | _OPEN, dir_fd=place.parent)
    return open_patiently(place.name, os.O_RDONLY | _OPEN, dir_fd=place.parent)


def _open_or_create(place: _Place) -> int:
    """Raises ``OSError``: ENXIO for a FIFO without a reader; ELOOP, ENOENT, EEXIST if the item was replaced."""
    if place.item < 0:
        return open_patiently(place.name, _NEW, 0o666, dir_fd=place.parent)
    status = os.fstat(place.item)
    check_to_write(status)
    access = os.O_RDWR if stat.S_ISREG(status.st_mode) else os.O_WRONLY
    descriptor = patiently(partial(os.open, place.name, access | os.O_APPEND | _OPEN, dir_fd=place.parent))
    try:
        check_to_write(os.fstat(descriptor))
        os.set_blocking(descriptor, True)
    except BaseException:
        let_go(descriptor)
        raise
    return descriptor


def check_to_write(status: os.stat_result) -> None:
    """Raise ``NotTrusted`` if a file with this status must not be written to."""
    _check_kind(status)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
        return
    if status.st_uid not in (0, os.geteuid()):
        text = f"it belongs to user {status.st_uid}; name a file of your own, or one that is not there yet"
        raise NotTrusted(errno.EPERM, text)
    if status.st_mode & stat.S_IWOTH:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise NotTrusted(errno.EPERM, f"other users may write to it (mode {mode}): chmod o-w, or name another file")


def _check_kind(status: os.stat_result, *, regular: bool = False) -> None:
    """Raise ``WrongKind`` for what is neither a file nor a stream."""
    for is_kind, number, text in _REFUSED_KINDS:
        if is_kind(status.st_mode):
            raise WrongKind(number, text)
    if regular and not stat.S_ISREG(status.st_mode):
        raise WrongKind(errno.EINVAL, "it is no regular file")


def _duplicated(number: int, path: bytes, wrong: int, *, regular: bool = False) -> OpenedFile:
    """Return a duplicate of an inherited descriptor, unless that was opened with the access mode ``wrong``.

    A regular file is read from where it stood when it was first opened (``_starts``). Sockets and devices are accepted:
    services and some shells start programs with a socket as a standard stream.
    """
    import fcntl

    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == wrong:
        text = "not open for reading" if wrong == os.O_WRONLY else "not open for writing"
        raise NotTrusted(errno.EBADF, f"descriptor {number} is {text}")
    status = os.fstat(number)
    if regular or stat.S_ISDIR(status.st_mode):
        _check_kind(status, regular=regular)
    if wrong == os.O_WRONLY and stat.S_ISREG(status.st_mode):
        key = number, status.st_dev, status.st_ino
        os.lseek(number, _starts.setdefault(key, os.lseek(number, 0, os.SEEK_CUR)), os.SEEK_SET)
    return OpenedFile(os.dup(number), _path_of(number, path), inherited=True)


def _path_of(number: int, path: bytes) -> bytes:
    """The path of an open file, or the path that it was named by if it has none, as a pipe."""
    try:
        found = os.readlink(b"/proc/self/fd/%d" % number)
    except OSError:
        return path
    return found if found.startswith(b"/") else path


def _wait_for_writer(descriptor: int, path: bytes) -> None:
    """Return when a FIFO has data, or when a writer has opened it and closed it again."""
    import select

    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(round(1000 * LONG_WAIT)):
        announce_wait(f"waiting for a program to write to the FIFO {shown(path)} (Ctrl-C ends this)")
        waiting.poll()


@contextmanager
def _place(path: bytes, *, trust_links: bool = False) -> Iterator[_Place]:
    """Resolve ``path``, with all links followed; its place is open within the block. Raises ``OSError``."""
    walk = _Walk(path, trust_links=trust_links or _Trust.all_links)
    try:
        yield walk.resolved()
    finally:
        walk.close()


class _Walk:
    """The resolution of one path, component by component.

    State: ``_directory`` is the open directory that was reached, ``_above`` its path, ``_ahead`` the components that
    remain, the next one last.
    """

    def __init__(self, path: bytes, *, trust_links: bool) -> None:
        if not path:
            raise _error(errno.ENOENT)
        self._trust_links = trust_links
        self._ahead: list[bytes] = []
        self._links = 0
        self._item = -1
        self._inherited = inherited_descriptor(path)
        self._directory, self._above = -1, b""
        if self._inherited < 0:
            self._begin(path)

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in (self._directory, self._item):
            if descriptor >= 0:
                let_go(descriptor)
        self._directory = self._item = -1

    def resolved(self) -> _Place:
        while self._inherited < 0 and self._ahead:
            part, is_last = self._ahead.pop(), not self._ahead
            if part == b"..":
                self._enter(
                    open_patiently(part, _LOOK | os.O_DIRECTORY, dir_fd=self._directory), os.path.dirname(self._above)
                )
            elif part not in (b"", b"."):
                below = self._look(part, is_last=is_last)
                if below is None:
                    continue
                self._item = below
                if is_last:
                    return _Place(self._directory, self._above, part, below)
                self._item = -1
                self._enter(below, os.path.join(self._above, part))
        if self._inherited >= 0:
            return _Place(-1, b"", b"", -1, self._inherited)
        self._item = os.dup(self._directory)
        return _Place(self._directory, self._above, b".", self._item)

    def _begin(self, path: bytes) -> None:
        """Open the root or the working directory, in which ``path`` begins."""
        start, above = (b"/", b"/") if path.startswith(b"/") else (b".", os.getcwdb())
        self._enter(open_patiently(start, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), above)
        self._ahead = path.split(b"/")[::-1]

    def _enter(self, directory: int, path: bytes) -> None:
        if self._directory >= 0:
            let_go(self._directory)
        self._directory, self._above = directory, path

    def _look(self, part: bytes, *, is_last: bool) -> int | None:
        """Return an O_PATH descriptor of a component, or -1 if it is the last one and does not exist.

        Return None for a symbolic link; the components of its target come next.
        """
        if not is_last:  # O_DIRECTORY mounts what is mounted on demand
            try:
                return open_patiently(part, _LOOK | os.O_DIRECTORY, dir_fd=self._directory)
            except NotADirectoryError:
                pass
        try:
            item = open_patiently(part, _LOOK, dir_fd=self._directory)
        except FileNotFoundError:
            if is_last:
                return -1
            raise
        try:
            status = os.fstat(item)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                self._follow(part, status, os.readlink(b"", dir_fd=item))
            elif not is_last:
                raise _error(errno.ENOTDIR)
        except BaseException:
            let_go(item)
            raise
        if is_link:
            let_go(item)
            return None
        return item

    def _follow(self, part: bytes, status: os.stat_result, target: bytes) -> None:
        if status.st_uid not in (0, os.geteuid()) and not self._trust_links:
            link = shown(os.path.join(self._above, part))
            text = f"the symbolic link {link} to {shown(target)} belongs to user {status.st_uid} and is not followed"
            why = "only links of root and of the user who runs the program are followed"
            raise NotTrusted(errno.EPERM, f"{text}: {why}; name what it leads to, or write --insecure-links")
        self._links += 1
        if self._links > _MOST_LINKS:
            raise _error(errno.ELOOP)
        if not target.startswith(b"/"):
            self._ahead += target.split(b"/")[::-1]
            return
        path = b"/".join([target, *self._ahead[::-1]])
        self._inherited = inherited_descriptor(path)
        if self._inherited < 0:
            self._begin(path)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _replaced() -> OSError:
    return NotTrusted(errno.ESTALE, "it is replaced again and again while it is opened; name another file")
