"""Safe opening of files and directories that the command line, the environment or a configuration file names.

A privileged user (root, most often) names files in directories that other users may write to, such as /tmp or a
project's directory. Three rules hold for every user:

- A symbolic link, in any component of the path, is followed only if root or the caller (the effective user) owns it.
  ``set_symbolic_link_trust`` lifts this rule (``--insecure-links``).
- A regular file or a FIFO that is written to must belong to the caller or to root, and other users must not have write
  permission for it.
- Opening does not block. A FIFO without a reader is refused after ``FIFO_READER_TIMEOUT`` seconds. Reading a FIFO waits
  until a writer has opened it, so that it is never mistaken for an empty file; a longer wait is announced.

The components are opened one by one, each relative to the descriptor of the directory before it, and symbolic links are
resolved here. Therefore the item that was checked is the item that is opened, whatever other users rename in the
meantime.

``/dev/stdin``, ``/dev/stdout``, ``/dev/stderr``, ``/dev/fd/N`` and ``/proc/self/fd/N`` are recognised by their text:
the inherited descriptor is duplicated. Only its file type is checked, because the program that started this one has
opened it.

Functions raise ``OSError`` for an item that cannot be opened. The error's ``strerror`` can be appended to a message
that begins with the path.
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

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.retries import WAIT_ANNOUNCEMENT_DELAY, announce_wait, call_with_retries, open_with_retries
from pcopy.text import printable_path

FIFO_READER_TIMEOUT = 5.0
"""Seconds to wait until another program opens a FIFO for reading; it may be started at the same time as this
program.
"""
_FIFO_RETRY_PAUSE = 0.05
"""Seconds between two attempts to open a FIFO for writing."""
_MAX_LINKS_IN_PATH = 40
"""Maximum number of symbolic links followed in one path, as in Linux (path_resolution(7)); a path with more fails with
ELOOP.
"""
_MAX_OPEN_ATTEMPTS = 100
"""Maximum number of attempts to open a name whose item is replaced between its check and its opening.

One attempt takes some microseconds.
"""

_O_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_STANDARD_STREAMS = {b"/dev/stdin": 0, b"/dev/stdout": 1, b"/dev/stderr": 2}
_DESCRIPTOR_PATH = re.compile(rb"/+(?:dev|proc/+(?:self|thread-self))/+fd/+([0-9]{1,9})")
_REFUSED_FILE_TYPES = (
    (stat.S_ISDIR, errno.EISDIR, os.strerror(errno.EISDIR)),
    (stat.S_ISSOCK, errno.ENXIO, "it is a socket; name a file"),
    (stat.S_ISBLK, errno.ENOTSUP, "it is a block device; name a file"),
)


class UntrustedFileError(OSError):
    """Error for a file that a rule for named files (owner of symbolic links, owner and mode of the file, file type)
    forbids to open. ``strerror`` says which rule, and what the user can do.
    """


class WrongFileTypeError(UntrustedFileError):
    """Error for an item that cannot be opened as a named file because of its file type, such as a directory, a socket
    or a block device.
    """


class _SymbolicLinkTrustSetting:
    """Holds a setting of this process: whether symbolic links of any owner are followed (the option
    ``--insecure-links``).
    """

    trusts_all_links = False


_initial_offsets: dict[tuple[int, int, int], int] = {}
"""Offset of each inherited regular file when it was first opened for reading, by (descriptor, device, inode).

A list is read more than once (first to check it, later to use it), and duplicates of a descriptor share one offset.
"""


def set_symbolic_link_trust(trusted: bool) -> None:
    """Set, for this process and those that it forks, whether symbolic links of any owner are followed (``trusted`` is
    True), or only those of root and the caller.
    """
    _SymbolicLinkTrustSetting.trusts_all_links = trusted


class OpenedFile(NamedTuple):
    """An open file.

    Fields:
        descriptor: the open descriptor.
        path: its absolute path without symbolic links.
        is_inherited: True if the descriptor is a duplicate of one that this program was started with, such as standard
            output.
        is_new: True if the file was created by this call.
    """

    descriptor: int
    path: bytes
    is_inherited: bool = False
    is_new: bool = False


class ExaminedItem(NamedTuple):
    """Path and status of an item that was examined without being opened.

    ``path`` is its absolute path without symbolic links. ``status`` is None if no item has that name. ``is_inherited``
    is True if the path names a descriptor that this program was started with.
    """

    path: bytes
    status: os.stat_result | None
    is_inherited: bool = False

    @property
    def is_stream(self) -> bool:
        """True if the item is an inherited descriptor, a FIFO or a character device."""
        mode = self.status.st_mode if self.status else 0
        return self.is_inherited or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


class _ResolvedPath(NamedTuple):
    """Where a path leads after all symbolic links were followed: to the entry ``name`` of the open directory
    ``parent``.

    Fields:
        parent: descriptor of the directory.
        parent_path: absolute path of that directory.
        name: last component of the path.
        item: O_PATH descriptor of the entry, or -1 if the directory has no such entry.
        inherited_number: number of the inherited descriptor that the path stands for (such as 0 for ``/dev/stdin``), or
            -1. If it is not -1, the other fields have no meaning.
    """

    parent: int
    parent_path: bytes
    name: bytes
    item: int
    inherited_number: int = -1

    @property
    def path(self) -> bytes:
        """Absolute path of the entry, without symbolic links."""
        return self.parent_path if self.name == b"." else os.path.join(self.parent_path, self.name)


def inherited_descriptor(path: bytes) -> int:
    """Return the number of the descriptor that ``path`` stands for by its text (such as ``/dev/fd/3``), or -1 if it
    names none.
    """
    if (number := _STANDARD_STREAMS.get(path)) is not None:
        return number
    found = _DESCRIPTOR_PATH.fullmatch(path)
    return int(found[1]) if found else -1


def examine_path(path: bytes) -> ExaminedItem:
    """Return the absolute path and the status of the item that ``path`` leads to, without opening it. The status is
    None if there is no such item. Raise ``OSError``.
    """
    with _resolved_path(path) as place:
        if place.inherited_number >= 0:
            return ExaminedItem(
                _path_of_descriptor(place.inherited_number, path), os.fstat(place.inherited_number), is_inherited=True
            )
        return ExaminedItem(place.path, None if place.item < 0 else os.fstat(place.item))


def examine_parent_directory(path: bytes) -> ExaminedItem:
    """Return absolute path and status of the directory that contains the file ``path``.

    Raise ``OSError``.
    """
    return examine_path(os.path.join(os.path.dirname(path) or b".", b"."))


@contextmanager
def item_opened_for_status(path: bytes) -> Iterator[int]:
    """Context manager: yield an O_PATH descriptor of the item ``path``, of any type. It can only be used for
    ``os.fstat`` and ``proc_path_of_descriptor``. Raise ``OSError``.
    """
    with _resolved_path(path) as place:
        if place.inherited_number < 0 and place.item < 0:
            raise _os_error_for_errno(errno.ENOENT)
        yield place.inherited_number if place.inherited_number >= 0 else place.item


def open_named_file_to_read(
    path: bytes, *, regular: bool = False, trust_links: bool = False, keep_atime: bool = False
) -> OpenedFile:
    """Open ``path`` for reading. Raise ``OSError``.

    Args:
        regular: refuse every item that is not a regular file.
        trust_links: follow all symbolic links; the caller itself checks who owns them.
        keep_atime: leave the access time unchanged (O_NOATIME), where the system allows that.
    """
    for _ in range(_MAX_OPEN_ATTEMPTS):
        with _resolved_path(path, trust_links=trust_links) as place:
            if place.inherited_number >= 0:
                return _duplicate_inherited_descriptor(place.inherited_number, path, os.O_WRONLY, regular=regular)
            if place.item < 0:
                raise _os_error_for_errno(errno.ENOENT)
            _check_file_type(os.fstat(place.item), regular=regular)
            try:
                descriptor = call_with_retries(partial(_open_file_to_read, place, keep_atime))
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOENT):  # the item was replaced after it was examined
                    continue
                raise
            try:
                status = os.fstat(descriptor)
                _check_file_type(status, regular=regular)
                if stat.S_ISFIFO(status.st_mode):
                    _wait_for_fifo_writer(descriptor, path)
                os.set_blocking(descriptor, True)
            except BaseException:
                close_ignoring_errors(descriptor)
                raise
            return OpenedFile(descriptor, place.path)
    raise _item_repeatedly_replaced_error()


def open_named_file_to_write(path: bytes) -> OpenedFile:
    """Open ``path`` for appending; create it if it does not exist, with mode 0666 less the umask. Raise ``OSError``.

    A regular file can also be read through the descriptor. Its contents remain unchanged.
    """
    deadline = time.monotonic() + FIFO_READER_TIMEOUT
    attempts = 0
    while attempts < _MAX_OPEN_ATTEMPTS:
        with _resolved_path(path) as place:
            if place.inherited_number >= 0:
                return _duplicate_inherited_descriptor(place.inherited_number, path, os.O_RDONLY)
            try:
                return OpenedFile(_open_or_create_file(place), place.path, is_new=place.item < 0)
            except OSError as error:
                if error.errno == errno.ENOENT and place.item < 0:  # in /proc, for example, no file can be created
                    raise
                is_without_reader = error.errno == errno.ENXIO and _is_fifo(place.item)
                if not is_without_reader and error.errno not in (errno.ELOOP, errno.ENOENT, errno.EEXIST):
                    raise
        attempts += not is_without_reader
        if is_without_reader:
            if time.monotonic() > deadline:
                text = f"no program has opened this FIFO for reading in {FIFO_READER_TIMEOUT:.0f} seconds"
                raise UntrustedFileError(errno.ENXIO, f"{text}; start its reader first")
            time.sleep(_FIFO_RETRY_PAUSE)
    raise _item_repeatedly_replaced_error()


class ParentDirectory(NamedTuple):
    """The open directory that contains a file.

    Fields:
        descriptor: descriptor of the directory.
        name: name of the file in it.
        path: absolute path of the file, without symbolic links in its directory.
        can_sync: True if fsync(2) accepts the descriptor. It does not if the directory may be searched but not read,
            because then the descriptor is an O_PATH one.
    """

    descriptor: int
    name: bytes
    path: bytes
    can_sync: bool


def open_parent_directory(path: bytes) -> ParentDirectory:
    """Open the directory that contains the file ``path``. If the file itself is a symbolic link, it is not followed.

    Raise ``OSError``.
    """
    directory, name = os.path.split(path)
    with _resolved_path(os.path.join(directory or b".", b".")) as place:
        if place.inherited_number >= 0:
            raise _os_error_for_errno(errno.ENOTDIR)
        real = os.path.join(place.parent_path, name)
        try:
            descriptor = open_with_retries(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.parent)
        except PermissionError:
            return ParentDirectory(os.dup(place.parent), name, real, can_sync=False)
        return ParentDirectory(descriptor, name, real, can_sync=True)


@contextmanager
def rename_proof_directory_path(path: bytes) -> Iterator[bytes]:
    """Context manager: open the directory ``path``, and yield a path that leads to it even if it is renamed during the
    block.

    Where /proc is not mounted, the yielded path is its absolute path without symbolic links. Raise ``OSError``.
    """
    found = open_parent_directory(os.path.join(path, b""))
    try:
        fixed = b"/proc/self/fd/%d" % found.descriptor
        yield fixed if os.path.exists(fixed) else found.path
    finally:
        close_ignoring_errors(found.descriptor)


def real_path(path: bytes) -> bytes:
    """Return ``path`` as an absolute path without symbolic links. Missing components are kept as they are.

    Raise ``OSError``.
    """
    try:
        return examine_path(path).path
    except FileNotFoundError:
        directory, name = os.path.split(path.rstrip(b"/"))
        return os.path.normpath(os.path.join(real_path(directory or b"."), name))


def reason_path_cannot_be_replaced(path: bytes, mode: int, kind: str) -> str:
    """Return the reason why a new file cannot replace the existing item ``path``, or an empty text if it can.

    Args:
        mode: ``st_mode`` of the existing item.
        kind: name of the new file's type for the message, such as "a signature".
    """
    if inherited_descriptor(path) >= 0:
        return f"is not a regular file, and cannot be replaced by {kind}; name a regular file"
    if stat.S_ISLNK(mode):
        return "is a symbolic link; name the file itself"
    if not stat.S_ISREG(mode):
        return f"is not a regular file, and cannot be replaced by {kind}; name another file"
    return ""


def check_is_replaceable_file(directory: int, name: bytes) -> None:
    """Raise ``UntrustedFileError`` if the item ``name`` in the open ``directory`` exists and is not a regular file:
    pcopy replaces only regular files by its output.
    """
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise UntrustedFileError(errno.ELOOP, "it is a symbolic link, which is not replaced")
    if not stat.S_ISREG(mode):
        raise UntrustedFileError(errno.EEXIST, "it is not a regular file, and only a regular file can be replaced")


def _is_fifo(item: int) -> bool:
    """Return True if the O_PATH descriptor ``item`` is that of a FIFO; False for -1."""
    return item >= 0 and stat.S_ISFIFO(os.fstat(item).st_mode)


def _open_file_to_read(place: _ResolvedPath, keep_atime: bool) -> int:
    """Open the entry ``place`` of a directory for reading, and return its descriptor. If ``keep_atime`` is True,
    O_NOATIME is used where the system permits it. Raise ``OSError``.
    """
    if keep_atime:
        with suppress(PermissionError):
            return open_with_retries(place.name, os.O_RDONLY | os.O_NOATIME | _OPEN_FLAGS, dir_fd=place.parent)
    return open_with_retries(place.name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=place.parent)


def _open_or_create_file(place: _ResolvedPath) -> int:
    """Open the entry ``place`` of a directory for writing, or create it as a file; return its descriptor. Raise
    ``OSError``.

    The errors are ENXIO for a FIFO without a reader, and ELOOP, ENOENT or EEXIST if the item was replaced since it was
    examined.
    """
    if place.item < 0:
        return open_with_retries(place.name, _CREATE_FLAGS, 0o666, dir_fd=place.parent)
    status = os.fstat(place.item)
    check_file_is_writable(status)
    access = os.O_RDWR if stat.S_ISREG(status.st_mode) else os.O_WRONLY
    descriptor = call_with_retries(
        partial(os.open, place.name, access | os.O_APPEND | _OPEN_FLAGS, dir_fd=place.parent)
    )
    try:
        check_file_is_writable(os.fstat(descriptor))
        os.set_blocking(descriptor, True)
    except BaseException:
        close_ignoring_errors(descriptor)
        raise
    return descriptor


def check_file_is_writable(status: os.stat_result) -> None:
    """Raise ``UntrustedFileError`` if the type, owner or mode in ``status`` forbids to write to the file."""
    _check_file_type(status)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
        return
    if status.st_uid not in (0, os.geteuid()):
        text = f"it belongs to user {status.st_uid}; name a file of your own, or one that is not there yet"
        raise UntrustedFileError(errno.EPERM, text)
    if status.st_mode & stat.S_IWOTH:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise UntrustedFileError(
            errno.EPERM, f"other users may write to it (mode {mode}): chmod o-w, or name another file"
        )


def _check_file_type(status: os.stat_result, *, regular: bool = False) -> None:
    """Raise ``WrongFileTypeError`` if ``status`` is that of a directory, a socket or a block device; with ``regular``
    also if it is not that of a regular file.
    """
    for is_kind, number, text in _REFUSED_FILE_TYPES:
        if is_kind(status.st_mode):
            raise WrongFileTypeError(number, text)
    if regular and not stat.S_ISREG(status.st_mode):
        raise WrongFileTypeError(errno.EINVAL, "it is not a regular file")


def _duplicate_inherited_descriptor(number: int, path: bytes, wrong: int, *, regular: bool = False) -> OpenedFile:
    """Return a duplicate of the descriptor ``number``, with which this program was started. Raise
    ``UntrustedFileError`` if the descriptor is open only for the wrong direction.

    A regular file is read from the offset that it had when it was first opened (``_initial_offsets``). Sockets and
    devices are accepted, because services and some shells start programs with a socket as a standard stream.

    Args:
        number: number of the inherited descriptor.
        path: path by which the user named the descriptor.
        wrong: the access mode that is not suitable: O_WRONLY for reading, O_RDONLY for writing.
        regular: refuse everything that is not a regular file.
    """
    import fcntl

    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == wrong:
        text = "not open for reading" if wrong == os.O_WRONLY else "not open for writing"
        raise UntrustedFileError(errno.EBADF, f"descriptor {number} is {text}")
    status = os.fstat(number)
    if regular or stat.S_ISDIR(status.st_mode):
        _check_file_type(status, regular=regular)
    if wrong == os.O_WRONLY and stat.S_ISREG(status.st_mode):
        key = number, status.st_dev, status.st_ino
        os.lseek(number, _initial_offsets.setdefault(key, os.lseek(number, 0, os.SEEK_CUR)), os.SEEK_SET)
    return OpenedFile(os.dup(number), _path_of_descriptor(number, path), is_inherited=True)


def _path_of_descriptor(number: int, path: bytes) -> bytes:
    """Return the path of the open descriptor ``number``; ``path``, the text by which the user named it, if it has none
    (a pipe).
    """
    try:
        found = os.readlink(b"/proc/self/fd/%d" % number)
    except OSError:
        return path
    return found if found.startswith(b"/") else path


def _wait_for_fifo_writer(descriptor: int, path: bytes) -> None:
    """Wait until the FIFO ``descriptor`` has data, or until a writer has opened it and closed it again. If that takes
    more than ``WAIT_ANNOUNCEMENT_DELAY`` seconds, announce to the user that the FIFO ``path`` has no writer.
    """
    import select

    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(round(1000 * WAIT_ANNOUNCEMENT_DELAY)):
        announce_wait(f"waiting for a program to write to the FIFO {printable_path(path)} (Ctrl-C ends this)")
        waiting.poll()


@contextmanager
def _resolved_path(path: bytes, *, trust_links: bool = False) -> Iterator[_ResolvedPath]:
    """Context manager: resolve ``path``, following all symbolic links, and yield the entry to which it leads. The
    descriptors of the entry are open within the block. With ``trust_links`` it does not matter who owns the links.
    Raise ``OSError``.
    """
    walk = _PathResolver(path, trust_links=trust_links or _SymbolicLinkTrustSetting.trusts_all_links)
    try:
        yield walk.resolve_path()
    finally:
        walk.close()


class _PathResolver:
    """Resolves one path, component by component.

    State: ``_directory`` is the open directory that was reached, ``_directory_path`` its path, ``_remaining`` the
    remaining components in reverse order, so that the next one is last.
    """

    def __init__(self, path: bytes, *, trust_links: bool) -> None:
        if not path:
            raise _os_error_for_errno(errno.ENOENT)
        self._trust_links = trust_links
        self._remaining: list[bytes] = []
        self._link_count = 0
        self._item = -1
        self._inherited_number = inherited_descriptor(path)
        self._directory, self._directory_path = -1, b""
        if self._inherited_number < 0:
            self._open_start_directory(path)

    def close(self) -> None:
        """Close the descriptors of the directory that was reached and of the last component."""
        for descriptor in (self._directory, self._item):
            if descriptor >= 0:
                close_ignoring_errors(descriptor)
        self._directory = self._item = -1

    def resolve_path(self) -> _ResolvedPath:
        """Resolve the path to its end, and return the entry to which it leads. Raise ``OSError``."""
        while self._inherited_number < 0 and self._remaining:
            part, is_last = self._remaining.pop(), not self._remaining
            if part == b"..":
                self._enter_directory(
                    open_with_retries(part, _O_PATH_FLAGS | os.O_DIRECTORY, dir_fd=self._directory),
                    os.path.dirname(self._directory_path),
                )
            elif part not in (b"", b"."):
                below = self._open_path_component(part, is_last=is_last)
                if below is None:
                    continue
                self._item = below
                if is_last:
                    return _ResolvedPath(self._directory, self._directory_path, part, below)
                self._item = -1
                self._enter_directory(below, os.path.join(self._directory_path, part))
        if self._inherited_number >= 0:
            return _ResolvedPath(-1, b"", b"", -1, self._inherited_number)
        self._item = os.dup(self._directory)
        return _ResolvedPath(self._directory, self._directory_path, b".", self._item)

    def _open_start_directory(self, path: bytes) -> None:
        """Open the directory in which the resolution of ``path`` begins: the root directory, or the working directory
        for a relative path.
        """
        start, above = (b"/", b"/") if path.startswith(b"/") else (b".", os.getcwdb())
        self._enter_directory(open_with_retries(start, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), above)
        self._remaining = path.split(b"/")[::-1]

    def _enter_directory(self, directory: int, path: bytes) -> None:
        """Continue the resolution in the open ``directory``, whose path is ``path``, and close the directory that was
        current before.
        """
        if self._directory >= 0:
            close_ignoring_errors(self._directory)
        self._directory, self._directory_path = directory, path

    def _open_path_component(self, part: bytes, *, is_last: bool) -> int | None:
        """Return an O_PATH descriptor of the item ``part`` in the current directory; -1 if ``part`` is the last
        component (``is_last``) and does not exist.

        Return None for a symbolic link; the components of its target are resolved next. Raise ``OSError``.
        """
        if not is_last:  # O_DIRECTORY triggers automounts, which O_PATH alone does not
            try:
                return open_with_retries(part, _O_PATH_FLAGS | os.O_DIRECTORY, dir_fd=self._directory)
            except NotADirectoryError:
                pass
        try:
            item = open_with_retries(part, _O_PATH_FLAGS, dir_fd=self._directory)
        except FileNotFoundError:
            if is_last:
                return -1
            raise
        try:
            status = os.fstat(item)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                self._follow_link(part, status, os.readlink(b"", dir_fd=item))
            elif not is_last:
                raise _os_error_for_errno(errno.ENOTDIR)
        except BaseException:
            close_ignoring_errors(item)
            raise
        if is_link:
            close_ignoring_errors(item)
            return None
        return item

    def _follow_link(self, part: bytes, status: os.stat_result, target: bytes) -> None:
        """Replace the symbolic link ``part`` by the components of its text ``target``, which are resolved next. Raise
        ``OSError``.

        Raise ``UntrustedFileError`` if neither root nor the effective user owns the link, unless all links are trusted.
        ``status`` is the status of the link.
        """
        if status.st_uid not in (0, os.geteuid()) and not self._trust_links:
            link = printable_path(os.path.join(self._directory_path, part))
            text = (
                f"the symbolic link {link} to {printable_path(target)} belongs to user {status.st_uid} and is not "
                "followed"
            )
            why = "only links of root and of the user who runs the program are followed"
            raise UntrustedFileError(errno.EPERM, f"{text}: {why}; name what it leads to, or write --insecure-links")
        self._link_count += 1
        if self._link_count > _MAX_LINKS_IN_PATH:
            raise _os_error_for_errno(errno.ELOOP)
        if not target.startswith(b"/"):
            self._remaining += target.split(b"/")[::-1]
            return
        path = b"/".join([target, *self._remaining[::-1]])
        self._inherited_number = inherited_descriptor(path)
        if self._inherited_number < 0:
            self._open_start_directory(path)


def _os_error_for_errno(number: int) -> OSError:
    """Return the ``OSError`` of the errno ``number``, with the system's text."""
    return OSError(number, os.strerror(number))


def _item_repeatedly_replaced_error() -> OSError:
    """Return the error for an item that another program replaced at each of ``_MAX_OPEN_ATTEMPTS`` attempts."""
    return UntrustedFileError(errno.ESTALE, "another program replaces it each time it is opened; name another file")
