"""Overwriting of existing files (``--inplace``), instead of replacing them by new ones.

Only a regular file with a single link is overwritten, and only if it still is the one that was examined. Before the
file is truncated, it is marked as incomplete (``pcopy.fsio.incomplete_mark``), given to the user of this process, and
closed to other users, as a new file is: they may read the new contents only when these are complete. The mark records
the file's former owner, group and mode. The file gets them back if those of the source are not preserved.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio import incomplete_mark
from pcopy.fsio.attributes import ItemMetadata, remove_extra_xattrs
from pcopy.fsio.close import close_after_failure, closing_descriptor
from pcopy.fsio.data import set_file_size
from pcopy.fsio.nodes import open_o_path_descriptor, proc_path_of_descriptor
from pcopy.fsio.preserve import CAP_CHOWN, PreservedMetadataKinds, has_capability
from pcopy.fsio.problem import MetadataProblem, Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.syncer import sync_file_if_supported

_OPEN_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_WRITABLE_ERRNOS = (
    errno.EACCES,
    errno.EPERM,
    errno.ETXTBSY,
    errno.EAGAIN,
)  # EAGAIN: another process has a lease (fcntl(2))
"""Errors of open(2) for a file that may not be opened for writing: it is replaced by a new file instead."""
_ITEM_REPLACED_ERRNOS = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""Errors of open(2) if the file was removed or another item has taken its name: a new file is created instead."""


class OverwrittenFile(NamedTuple):
    """An existing file that was truncated and is open for writing (``--inplace``). ``original_mode_and_owner``:
    st_mode, uid and gid that it had before.
    """

    descriptor: int
    original_mode_and_owner: tuple[int, int, int]


def open_file_for_overwrite(
    directory: int,
    name: bytes,
    present: os.stat_result,
    source: os.stat_result,
    preserve: PreservedMetadataKinds,
    job: str,
    temporary: bytes,
) -> OverwrittenFile | None:
    """Open an existing file to overwrite it (``--inplace``): mark it as incomplete, and truncate it.

    Return None if the file must be replaced by a new one instead, because it:
    - is not a regular file, or has other links;
    - is the source itself, reached through a symbolic link;
    - may not be written;
    - is no longer the file that was examined.

    Raise ``Problem`` for other errors.

    Args:
        directory: the open directory that contains the file.
        name: name of the file.
        present: status of the file when it was examined.
        source: status of the source.
        preserve: which metadata the file gets from its source.
        job: name of the job, which is recorded in the mark.
        temporary: a free name in ``directory``, used if the mark has to be a file (a sidecar).
    """
    if not stat.S_ISREG(present.st_mode) or present.st_nlink != 1:
        return None
    identity = present.st_dev, present.st_ino
    if identity == (source.st_dev, source.st_ino):
        return None
    try:
        descriptor = open_with_retries(name, _OPEN_FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_WRITABLE_ERRNOS or error.errno in _ITEM_REPLACED_ERRNOS:
            return None
        raise Problem.from_error("open", error) from error
    try:
        status = status_of_open_item(descriptor)
        # Another item may have taken the name, or the file may have got another link, since it was examined.
        is_same = (status.st_dev, status.st_ino) == identity and stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not is_same or (status.st_uid != os.geteuid() and not has_capability(CAP_CHOWN)):
            close_after_failure(descriptor)
            return None
        # Set the mark before truncating: after a crash, a truncated file without a mark would look complete.
        mark = incomplete_mark.incomplete_file_mark_to_set(directory, name, descriptor, status, job)
        incomplete_mark.set_incomplete_file_mark(directory, name, descriptor, status, mark, temporary)
        if not _take_ownership(descriptor, status, preserve):
            incomplete_mark.remove_incomplete_file_mark(directory, name, descriptor)
            close_after_failure(descriptor)
            return None
        set_file_size(descriptor, 0)
    except Problem:
        close_after_failure(descriptor)
        raise
    return OverwrittenFile(descriptor, mark.original_mode_and_owner)


def _take_ownership(descriptor: int, status: os.stat_result, preserve: PreservedMetadataKinds) -> bool:
    """Make this process's user the owner of the open file that will be overwritten, with mode 0600, so that no other
    user can read it meanwhile. Return False if that is not permitted. Raise ``Problem``.

    The group is not changed if the file keeps its group in the end and this process could not restore it: with mode
    0600 the group has no access meanwhile. ``status`` is the status of the file before.
    """
    keeps_group = not (preserve.ownership or preserve.chown[1] >= 0 or has_capability(CAP_CHOWN))
    wanted = os.geteuid(), status.st_gid if keeps_group else os.getegid()
    try:
        if (status.st_uid, status.st_gid) != wanted:
            os.fchown(descriptor, *wanted)
        os.fchmod(descriptor, 0o600)  # always: if this fails, the file cannot be finished either
    except OSError as error:
        if error.errno == errno.EPERM:
            return False
        raise Problem.from_error("chown", error) from error
    return True


def mark_file_complete(directory: int, name: bytes, inode: int, job: str, *, sync: bool) -> None:
    """Remove the mark of an incomplete file (``--inplace``) from the file ``name`` in an open directory, whose new
    contents are complete; raise ``Problem``.

    If ``name`` leads to another item by now, only the sidecar of the overwritten file (a mark file next to it) is
    removed.

    Args:
        inode: inode number of the file that was written.
        job: the job that has set the mark.
        sync: True if the contents must be brought to stable storage first.
    """
    try:
        path_only = open_o_path_descriptor(directory, name, on_source=False)
    except Problem as problem:
        if problem.errno == errno.ENOENT:
            incomplete_mark.remove_stale_sidecar(directory, incomplete_mark.sidecar_name(name), job, is_complete=True)
            return
        raise
    with closing_descriptor(path_only), errors_as_problem("chmod"):
        status = status_of_open_item(path_only)
        if status.st_ino != inode or not stat.S_ISREG(status.st_mode):
            incomplete_mark.remove_stale_sidecar(directory, incomplete_mark.sidecar_name(name), job, is_complete=True)
            return
        try:
            _sync_and_remove_incomplete_file_mark(directory, name, path_only, sync)
        except Problem as problem:
            if problem.errno != errno.EACCES or status.st_uid != os.geteuid():
                raise
            handle, mode = proc_path_of_descriptor(path_only), stat.S_IMODE(status.st_mode)
            os.chmod(handle, mode | 0o600)  # an ordinary user needs write permission to remove the attribute
            try:
                _sync_and_remove_incomplete_file_mark(directory, name, path_only, sync)
            finally:
                os.chmod(handle, mode)


def _sync_and_remove_incomplete_file_mark(directory: int, name: bytes, path_only: int, sync: bool) -> None:
    """Remove the mark of an overwritten file, given by its directory, its name and an O_PATH descriptor
    (``path_only``). If ``sync`` is True, bring its contents to stable storage first. Raise ``Problem``.
    """
    with errors_as_problem("open"):
        descriptor = open_with_retries(
            proc_path_of_descriptor(path_only), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    with closing_descriptor(descriptor):
        if sync:
            with errors_as_problem("fsync"):
                sync_file_if_supported(descriptor)
        incomplete_mark.remove_incomplete_file_mark(directory, name, descriptor)


def status_before_overwrite(over: tuple[int, ...]) -> os.stat_result:
    """Return a status with the mode, owner and group of a file before it was overwritten (``over``), for
    ``apply_metadata``. The other fields have no meaning.
    """
    mode, uid, gid = over
    return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


def remove_xattrs_of_overwritten_file(
    descriptor: int, attributes: ItemMetadata, preserve: PreservedMetadataKinds
) -> None:
    """Remove the extended attributes that the overwritten file had and its source lacks; ``attributes`` are the
    metadata of the source.

    Raise ``MetadataProblem`` if that fails, since the contents are complete.
    """
    try:
        remove_extra_xattrs(descriptor, attributes, preserve)
    except Problem as problem:
        raise MetadataProblem(problem.operation, problem.errno or errno.EIO) from problem


def incomplete_file_problem(problem: Problem) -> Problem:
    """Return ``problem``, an error that occurred while an existing file was overwritten, with the addition that the
    file in the destination is incomplete. A ``MetadataProblem`` is returned unchanged: its file has all contents.
    """
    if isinstance(problem, MetadataProblem):
        return problem
    text = "the file in the destination is incomplete"
    if problem.strerror != os.strerror(problem.errno or 0):
        text = f"{problem.strerror}; {text}"
    fields = problem.problem_as_tuple
    return Problem.from_packed_tuple((*fields[:2], text, *fields[3:]))
