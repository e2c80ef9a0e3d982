"""The mark that shows that a file is being overwritten by ``--inplace``, or that this did not finish.

A marked file has neither its old contents nor all of the new ones. A file is marked before it is truncated, and the
mark is removed only when the new contents are on stable storage. So a resumed job, or a copy that reads the file as its
source, knows from the mark that the file is incomplete; its times do not show that. The mark also records the mode and
the owner that the file had before. Rules:

- The mark is an extended attribute. Root uses ``trusted.*``, because the owner of a file could set a ``user.*``
  attribute and claim in it that the file had been a set-user-ID program of root's. So the mark of an ordinary
  user only shows that the file is incomplete. The mode and owner in it are used only by the same job, and only if the
  file is still as that job left it: owned by the user, with mode 0600.
- On a file system that does not support such attributes, the mark is a small synced file in the same directory, a
  *sidecar*. Its name is derived from the name of the marked file, and it contains that file's identity. If only the
  inode number of the identity can be compared, the mark is not ``is_certain``: the number may belong to another file by
  now, and FUSE assigns new numbers at each mount.
- The mark is no metadata of the file: it is never copied, and only ``remove_incomplete_file_mark`` removes it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import cache

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor, names_in_directory
from pcopy.fsio.durable import replacing_file
from pcopy.fsio.identity import (
    FUSE_TYPE,
    IdentityComparison,
    ItemIdentity,
    identity_of_open_item,
    may_be_on_file_system_type,
)
from pcopy.fsio.preserve import CAP_SYS_ADMIN, are_all_user_ids_mapped, has_capability
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import READ_FLAGS, status_of_open_item
from pcopy.fsio.temporary import TEMPORARY_NAME_PREFIX, is_private_file, remove_item_if_present

INCOMPLETE_MARK_XATTRS = ("trusted.pcopy.incomplete", "user.pcopy.incomplete")
"""Names of the extended attribute that is the mark: that of root, and that of other users."""
SIDECAR_NAME_PREFIX = TEMPORARY_NAME_PREFIX + b"incomplete-"
"""Prefix of the names of sidecars; a digest of the marked file's name follows."""

_XATTR_UNSUPPORTED_ERRNOS = (errno.ENOTSUP, errno.ENOSYS)
"""Errors of a file system that does not support extended attributes; there the mark is a file (a sidecar)."""
_NO_INCOMPLETE_MARK_ERRNOS = (errno.ENODATA, errno.ENOENT, errno.EACCES, errno.EPERM)
"""Errors of getxattr(2) which mean that the file has no mark, or none that this process may read."""
_MAX_INCOMPLETE_MARK_BYTES = 4096
"""Maximum bytes that are read of the mark of an incomplete file; a mark has about a hundred."""


class IncompleteFileMark(NamedTuple):
    """Contents of the mark of a file that ``--inplace`` overwrites: name of the job that does so, and the file's former
    st_mode, owner and group.

    ``is_certain`` is False if the mark may belong to another file, which got the name since the mark was set.
    """

    job: str
    mode: int
    uid: int
    gid: int
    is_certain: bool = True

    @property
    def original_mode_and_owner(self) -> tuple[int, int, int]:
        """(st_mode, uid, gid) that the file had before it was overwritten."""
        return self.mode, self.uid, self.gid

    def to_bytes(self) -> bytes:
        """Return the mark as the bytes that are stored in the extended attribute or the sidecar."""
        return b"%s %o %d %d\n" % (self.job.encode(), self.mode, self.uid, self.gid)

    @classmethod
    def from_bytes(cls, text: bytes) -> IncompleteFileMark:
        """Return the mark that is stored as the bytes ``text``.

        If ``text`` is malformed, the result has an empty job name, which matches no job. It then shows only that the
        file is incomplete; mode and owner in it are those of a new file.
        """
        words = text.split()
        with suppress(ValueError, UnicodeDecodeError, OverflowError):
            job, mode, uid, gid = words
            mark = cls(job.decode("ascii"), int(mode, 8), int(uid), int(gid))
            if (
                stat.S_ISREG(mark.mode)
                and min(mark.original_mode_and_owner) >= 0
                and max(mark.original_mode_and_owner) < 1 << 32
            ):
                return mark
        return cls("", stat.S_IFREG | 0o600, os.geteuid(), os.getegid())


@cache
def _can_use_trusted_xattrs() -> bool:
    """Return True if this process may set and read extended attributes of the namespace ``trusted.*``.

    Root in a user namespace of its own may not.
    """
    return has_capability(CAP_SYS_ADMIN) and are_all_user_ids_mapped()


def _incomplete_file_mark_xattr_name() -> str:
    """Return the name of the extended attribute in which this process stores the mark of an incomplete file."""
    return INCOMPLETE_MARK_XATTRS[0] if _can_use_trusted_xattrs() else INCOMPLETE_MARK_XATTRS[1]


def find_incomplete_file_mark(
    directory: int, name: bytes, status: os.stat_result, descriptor: int | None = None
) -> IncompleteFileMark | None:
    """Return the mark by which ``--inplace`` shows that it has not completed a file, or None if the file has none;
    raise ``Problem``.

    Args:
        directory: the open directory that contains the file.
        name: name of the file.
        status: status of the file.
        descriptor: the file if it is open, else None.
    """
    is_open = descriptor is not None
    path = b"/proc/self/fd/%d/%s" % (directory, name) if descriptor is None else descriptor
    try:
        return IncompleteFileMark.from_bytes(
            os.getxattr(path, _incomplete_file_mark_xattr_name(), follow_symlinks=is_open)
        )
    except OSError as error:
        if error.errno in _XATTR_UNSUPPORTED_ERRNOS:
            return _incomplete_file_mark_in_sidecar(directory, name, status)
        if error.errno in _NO_INCOMPLETE_MARK_ERRNOS:
            return None
        raise Problem.from_error(f"getxattr {_incomplete_file_mark_xattr_name()}", error) from error


def incomplete_file_mark_to_set(
    directory: int, name: bytes, descriptor: int, status: os.stat_result, job: str
) -> IncompleteFileMark:
    """Return the mark that ``job`` has to set on an open file before it overwrites the file; raise ``Problem``.

    The file may have an older mark, because it was overwritten before without success. If that can be trusted, mode and
    owner in the new mark are those in the older one; else those of ``status``. The older mark is read through the
    descriptor: if it were read by name, the directory's owner could substitute the mark of another file.
    """
    older = find_incomplete_file_mark(directory, name, status, descriptor) if is_private_file(status) else None
    if older is not None and older.is_certain and older.job and (_can_use_trusted_xattrs() or older.job == job):
        return older._replace(job=job)
    return IncompleteFileMark(job, status.st_mode, status.st_uid, status.st_gid)


def set_incomplete_file_mark(
    directory: int, name: bytes, descriptor: int, status: os.stat_result, mark: IncompleteFileMark, temporary: bytes
) -> None:
    """Mark the open file ``name`` in ``directory`` as incomplete, before ``--inplace`` overwrites it; raise
    ``Problem``.

    Args:
        directory: the open directory that contains the file.
        name: name of the file.
        descriptor: the open file.
        status: its status.
        mark: the contents of the mark.
        temporary: a free name, used if the mark is a sidecar (a file, because the file system has no extended
            attributes).
    """
    try:
        os.setxattr(descriptor, _incomplete_file_mark_xattr_name(), mark.to_bytes())
    except OSError as error:
        if error.errno not in _XATTR_UNSUPPORTED_ERRNOS:
            raise Problem.from_error(f"setxattr {_incomplete_file_mark_xattr_name()}", error) from error
        identity = identity_of_open_item(descriptor, status, 0, created_by_job=False)
        with errors_as_problem("open"):
            reopened = open_with_retries(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        with closing_descriptor(reopened), replacing_file(reopened, sidecar_name(name), temporary) as stream:
            target = identity.inode, identity.mark.hex().encode() or b"-", name
            stream.write(mark.to_bytes() + b"%d %b\n%b" % target)


def remove_incomplete_file_mark(directory: int, name: bytes, descriptor: int) -> None:
    """Remove the mark of an incomplete file, an extended attribute or a sidecar, from the open file ``name`` in
    ``directory``, if it has one; raise ``Problem``.
    """
    try:
        os.removexattr(descriptor, _incomplete_file_mark_xattr_name())
    except OSError as error:
        if error.errno in _XATTR_UNSUPPORTED_ERRNOS:
            remove_item_if_present(directory, sidecar_name(name))
        elif error.errno != errno.ENODATA:
            raise Problem.from_error("removexattr", error) from error


def remove_stale_sidecar(directory: int, sidecar: bytes, job: str, *, is_complete: bool) -> None:
    """Remove a sidecar (a file that marks another file as incomplete) of ``job`` if the marked file has been removed or
    replaced; raise ``Problem``.

    On FUSE, a file with another inode number may still be the marked one. Then the sidecar is removed only if
    ``is_complete`` is True (the new contents are complete). Otherwise the sidecar remains, so that an incomplete file
    does not pass for a complete one.
    """
    found = _read_sidecar(directory, sidecar)
    if found is None or sidecar_name(found.name) != sidecar or found.mark.job != job:
        return
    try:
        present = os.stat(found.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        remove_item_if_present(directory, sidecar)
    except OSError as error:
        raise Problem.from_error("stat", error) from error
    else:
        if present.st_ino != found.identity.inode and (
            is_complete or not may_be_on_file_system_type(FUSE_TYPE, directory)
        ):
            remove_item_if_present(directory, sidecar)


def remove_stale_sidecars(directory: int, job: str) -> None:
    """Remove each sidecar (a file that marks another file as incomplete) of ``job`` in an open directory if the marked
    file has been removed or replaced; raise ``Problem``.

    On FUSE, a sidecar remains if the marked file was replaced and not removed, since the new item may be the marked
    file under another inode number.
    """
    with errors_as_problem("readdir"):
        names = [name for name in names_in_directory(directory) if name.startswith(SIDECAR_NAME_PREFIX)]
    for name in names:
        remove_stale_sidecar(directory, name, job, is_complete=False)


def raise_if_incomplete_file_mark_listed(names: list[str]) -> None:
    """Raise ``Problem`` if ``names``, the names of a source file's extended attributes, contain the mark of an
    incomplete file.
    """
    if any(mark in names for mark in INCOMPLETE_MARK_XATTRS):
        text = "a copy with --inplace did not finish it, or could not confirm that its contents are on storage"
        raise Problem("read", 0, on_source=True, text=f"the file is incomplete: {text}")


def sidecar_name(name: bytes) -> bytes:
    """Return the name of the sidecar (the mark file) of the file ``name``, which is in the same directory."""
    from hashlib import blake2b  # imported here, since few copies need it

    return SIDECAR_NAME_PREFIX + blake2b(name, digest_size=8).hexdigest().encode()


def sidecar_problem() -> Problem:
    """Return the error for a file in the source that cannot be copied because it is a sidecar, which marks another file
    as incomplete.
    """
    return Problem("read", 0, on_source=True, text="it marks another file in this directory as incomplete")


def uncertain_file_mark_problem(name: bytes) -> Problem:
    """Return the error for the existing file ``name`` of the target, whose mark may belong to another file (not
    ``is_certain``). pcopy neither keeps nor replaces such a file, since it may be incomplete or a new file of the user.
    """
    text = (
        "it may be incomplete after a copy with --inplace, or have been saved since: remove it unless it is complete, "
        f"and then remove {os.fsdecode(sidecar_name(name))}"
    )
    return Problem("create", errno.EEXIST, text=text)


def raise_if_file_marked_incomplete(descriptor: int) -> None:
    """Raise ``Problem`` if an open source file has the mark of an incomplete file. For use if its extended attributes
    have not been listed.
    """
    raise_if_incomplete_file_mark_listed([name for name in INCOMPLETE_MARK_XATTRS if _has_xattr(descriptor, name)])


def is_file_marked_incomplete(descriptor: int) -> bool:
    """Return True if an open file has the extended attribute by which root or another user marks a file as incomplete
    (``--inplace``).
    """
    return any(_has_xattr(descriptor, mark) for mark in INCOMPLETE_MARK_XATTRS)


def _has_xattr(descriptor: int, name: str) -> bool:
    """Return True if an open file has the extended attribute ``name`` and it can be read."""
    with suppress(OSError):
        os.getxattr(descriptor, name)
        return True
    return False


class _IncompleteFileSidecar(NamedTuple):
    """Contents of a sidecar (a mark file): the mark, and identity and name of the file that is marked."""

    mark: IncompleteFileMark
    identity: ItemIdentity
    name: bytes


def _incomplete_file_mark_in_sidecar(directory: int, name: bytes, status: os.stat_result) -> IncompleteFileMark | None:
    """Return the mark in the sidecar of the file ``name``; None if there is no sidecar, or if it belongs to another
    file than the one with this ``status``.

    Only a sidecar that no other user can have written is used.
    """
    found = _read_sidecar(directory, sidecar_name(name))
    if found is None or found.name != name:
        return None
    with errors_as_problem("open"):
        path_only = open_with_retries(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with closing_descriptor(path_only):
        likeness = found.identity.compare_with_identity(
            identity_of_open_item(path_only, status, 0, created_by_job=False)
        )
        if likeness is IdentityComparison.OTHER and not may_be_on_file_system_type(FUSE_TYPE, path_only):
            return None
    is_sure = likeness is IdentityComparison.SAME or (
        likeness is IdentityComparison.UNKNOWN and is_private_file(status)
    )
    return found.mark._replace(is_certain=is_sure)


def _read_sidecar(directory: int, name: bytes) -> _IncompleteFileSidecar | None:
    """Return the contents of the sidecar (the mark file) ``name``; None if it does not exist, is malformed, or may have
    been written by another user.
    """
    try:
        sidecar = open_with_retries(name, READ_FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENXIO):
            return None
        raise Problem.from_error("open", error) from error
    # Only a file of this user with mode 0600 and one link is trusted: no other user can have written or planted it.
    with closing_descriptor(sidecar), errors_as_problem("read"):
        status = status_of_open_item(sidecar)
        text = os.read(sidecar, _MAX_INCOMPLETE_MARK_BYTES) if is_private_file(status) and status.st_nlink == 1 else b""
    with suppress(ValueError):
        line, words, of_name = text.split(b"\n", 2)
        inode, mark = words.split(b" ")
        identity = ItemIdentity(0, int(inode), b"" if mark == b"-" else bytes.fromhex(mark.decode()))
        return _IncompleteFileSidecar(IncompleteFileMark.from_bytes(line), identity, of_name)
    return None
