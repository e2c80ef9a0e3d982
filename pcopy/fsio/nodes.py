"""Creation of symbolic links, FIFOs, sockets and devices, with their metadata set through an O_PATH descriptor.

Such items cannot be opened, or must not be: opening a FIFO waits, and opening a device can act on it. So their metadata
is set through ``/proc/self/fd/N`` for an O_PATH descriptor N. This path always leads to the item that was opened, even
if the item's name leads to another item by now.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import ItemHandle, ItemMetadata, read_item_metadata
from pcopy.fsio.close import close_ignoring_errors, closing_descriptor
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import REPLACED_TEXT, MetadataProblem, Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.retries import (
    TOO_MANY_OPEN_FILES_ERRNOS,
    TRANSIENT_ERRNOS,
    TRANSIENT_OPEN_ERRNOS,
    call_with_retries,
    open_with_retries,
)
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import TEMPORARY_NAME_PREFIX

CallResult = TypeVar("CallResult")


class LinkOrSpecialFile(NamedTuple):
    """A symbolic link, FIFO, socket or device of a source. ``link_target`` is the text of a symbolic link, else
    empty.
    """

    status: os.stat_result
    attributes: ItemMetadata
    link_target: bytes


def proc_path_of_descriptor(descriptor: int) -> bytes:
    """Return the path /proc/self/fd/N for the descriptor N. System calls that take no O_PATH descriptor accept this
    path.
    """
    return b"/proc/self/fd/%d" % descriptor


def call_with_descriptor_or_path(directory: int, call: Callable[[ItemHandle], CallResult]) -> CallResult:
    """Return ``call(directory)``, the result of a function that reads or sets metadata of an open directory. Raise
    ``Problem``.

    Such system calls refuse an O_PATH descriptor with EBADF. In that case ``call`` is called again with the path
    ``/proc/self/fd/N`` of the directory.
    """
    try:
        return call(directory)
    except Problem as problem:
        if problem.errno != errno.EBADF:
            raise
        return call(proc_path_of_descriptor(directory))


def open_o_path_descriptor(directory: int, name: bytes, *, on_source: bool, follow: bool = False) -> int:
    """Return an O_PATH descriptor of the item ``name`` in an open directory. If the item is a symbolic link, the link
    itself is opened; with ``follow`` it is followed.

    Raise ``Problem``. ``on_source``: True if the directory is in the source; a missing item then counts as changed
    during the copy.
    """
    try:
        flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        return open_with_retries(
            name, flags, dir_fd=directory, transient=TRANSIENT_ERRNOS if on_source else TRANSIENT_OPEN_ERRNOS
        )
    except OSError as error:
        is_missing = on_source and error.errno in (errno.ENOENT, errno.ESTALE)
        raise Problem("open", error.errno or errno.EIO, on_source=on_source, changed=is_missing) from error


def read_link_or_special_file(
    directory: int, name: bytes, inode: int, preserve: PreservedMetadataKinds, *, follow: bool = False
) -> LinkOrSpecialFile:
    """Return the symbolic link, FIFO, socket or device ``name`` in an open directory of the source. ``preserve`` says
    which metadata are read; with ``follow`` a symbolic link is followed. Raise ``Problem``, also if the name leads to
    an item with another inode number than ``inode`` by now.
    """
    link = b""
    with closing_descriptor(open_o_path_descriptor(directory, name, on_source=True, follow=follow)) as descriptor:
        status = status_of_open_item(descriptor, on_source=True)
        if status.st_ino != inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            raise source_changed_problem("open", "another item has taken its name")
        attributes = read_item_metadata(proc_path_of_descriptor(descriptor), status, preserve)
        if stat.S_ISLNK(status.st_mode):
            with errors_as_problem("readlink", on_source=True):
                link = call_with_retries(lambda: os.readlink(b"", dir_fd=descriptor))
    return LinkOrSpecialFile(status, attributes, link)


def create_link_or_special_file(directory: int, name: bytes, node: LinkOrSpecialFile) -> tuple[int, os.stat_result]:
    """Create the item ``name`` in an open directory, with the type of ``node`` and mode 0600; return an O_PATH
    descriptor of the new item, and its status.

    Raise ``Problem`` with EEXIST if the name is taken, ``MetadataProblem`` if the item was created but cannot be opened
    because no descriptors are left, and ``Problem`` for all other errors.
    """
    mode = node.status.st_mode
    operation = "symlink" if stat.S_ISLNK(mode) else "mknod"
    with errors_as_problem(operation):
        if stat.S_ISLNK(mode):
            os.symlink(node.link_target, name, dir_fd=directory)
        else:
            device = node.status.st_rdev if stat.S_ISBLK(mode) or stat.S_ISCHR(mode) else 0
            os.mknod(name, stat.S_IFMT(mode) | 0o600, device, dir_fd=directory)
    try:
        made = open_o_path_descriptor(directory, name, on_source=False)
    except Problem as problem:
        if problem.errno in TOO_MANY_OPEN_FILES_ERRNOS:  # a second attempt would find the name taken by this node
            raise MetadataProblem(problem.operation, problem.errno) from problem
        raise
    try:
        new = status_of_open_item(made)
        if not _is_own_just_created_item(new, node.status, directory):
            raise Problem("open", errno.ESTALE, text=REPLACED_TEXT)
    except BaseException:
        close_ignoring_errors(made)
        raise
    return made, new


def _is_own_just_created_item(made: os.stat_result, source: os.stat_result, directory: int) -> bool:
    """Return True if ``made`` is the status of the item that this process has just created in the open ``directory``.
    ``source`` is the status of the link, FIFO or device that is copied.

    The owner of the directory could have put another item there. That item, for example a finished copy, would then get
    the owner and mode of this one.

    Some servers show other owners and modes than were set (CIFS, NFS with root_squash). There the item must show the
    same owner and mode as a new file does.
    """
    if stat.S_IFMT(made.st_mode) != stat.S_IFMT(source.st_mode) or made.st_nlink != 1:
        return False
    if stat.S_ISLNK(made.st_mode):
        return True  # the owner of a symbolic link gives no rights, and a server may show another one
    is_device = stat.S_ISBLK(made.st_mode) or stat.S_ISCHR(made.st_mode)
    if is_device and made.st_rdev != source.st_rdev:
        return False
    if made.st_uid == os.geteuid() and not stat.S_IMODE(made.st_mode) & ~0o600:
        return True
    from pcopy.fsio.server import new_file_status  # imported late: few servers need it

    shown = new_file_status(directory, b"%b%d-%d" % (TEMPORARY_NAME_PREFIX, os.getpid(), time.monotonic_ns()))
    return made.st_uid == shown.uid and not stat.S_IMODE(made.st_mode) & ~shown.mode


def restore_access_time(descriptor: int, before: os.stat_result) -> None:
    """Set the access time of the open symbolic link ``descriptor``, an item of the target, back to that in ``before``,
    its status before its text was read: readlink(2) has no O_NOATIME. Errors are ignored.
    """
    with suppress(OSError):  # another user owns it, or the file system is mounted read-only
        if os.fstat(descriptor).st_atime_ns != before.st_atime_ns:
            os.utime(proc_path_of_descriptor(descriptor), ns=(before.st_atime_ns, before.st_mtime_ns))
