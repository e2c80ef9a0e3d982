"""Temporary files next to the target, which are renamed to it when they are complete.

When a temporary file is opened again by its name, the opened file must be the one that was created: a regular file of
this user, with one link, that no other user can write. In a directory of another user, the name may lead to another
item by then.

Some servers show another mode or owner than were requested (CIFS, root_squash on NFS, mount options of FUSE). Where the
status of a new file shows that (``unusual_status_of_new_file``), a file that is opened again must show the same mode
and owner as before. Its identity, type and number of links are checked in any case.

While a file is exchanged with an existing item, it has another name (``name_during_exchange``), which contains its
inode number. So after the exchange the old item under this name is never mistaken for a temporary file.

The identity (``pcopy.fsio.identity``) of a temporary file has the mount code of its directory, not one of its own
device. An item can have a name in a directory of another device only by a mount, and on an overlay file system files
may have other device numbers than their directory.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from contextlib import suppress
from itertools import count

from pcopy.fsio.close import close_after_failure, names_in_directory
from pcopy.fsio.identity import IdentityComparison, ItemIdentity, identity_of_open_item
from pcopy.fsio.problem import REPLACED_TEXT, Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import status_of_open_item

TEMPORARY_NAME_PREFIX = b".pcopy-"
"""Prefix of the names of temporary files."""
_EXCHANGE_NAME_PATTERN = rb"exchanged-(\d+)-[0-9a-f]{8}"
"""Pattern of the last part of a name that ``name_during_exchange`` returns; the group is the inode number."""
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of open(2) that create a new file for writing."""


class TemporaryNameGenerator:
    """Generates names for temporary files that no other process uses: they contain the name of the job, the run and the
    rank.

    With ``hidden`` the names begin with a dot; some file systems refuse such names.
    """

    def __init__(self, job: str, run: int, rank: int, *, hidden: bool = True) -> None:
        """Create the generator of one rank in one run of a job.

        Args:
            job: name of the job.
            run: number of the run of the job, from 1 (each resume is a new run).
            rank: number of the rank.
            hidden: begin names with a dot.
        """
        self._stem = b"%s%s-%d-%d." % (
            TEMPORARY_NAME_PREFIX if hidden else TEMPORARY_NAME_PREFIX[1:],
            job.encode(),
            run,
            rank,
        )
        self._numbers = count(1)

    def next_name(self) -> bytes:
        """Return the next unused name."""
        return self._stem + b"%d" % next(self._numbers)


def run_and_rank_in_temporary_name(name: bytes) -> tuple[int, int]:
    """Return the numbers of the run of the job and of the rank in ``name``, a name of a temporary file that
    ``TemporaryNameGenerator`` has generated.
    """
    run, rank = name.rpartition(b".")[0].split(b"-")[-2:]
    return int(run), int(rank)


def is_private_file(status: os.stat_result) -> bool:
    """Return True if ``status`` is that of a regular file of this user with mode 0600, as files have while pcopy writes
    them.
    """
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == os.geteuid()


def unusual_status_of_new_file(new: os.stat_result) -> tuple[int, ...]:
    """Return the (st_mode, st_uid) that the server shows for a new file, whose status is ``new``.

    Return an empty tuple if they are the ones that ``create_private_file`` requests: mode 0600, and the effective user.
    """
    return () if is_private_file(new) else (new.st_mode, new.st_uid)


def name_during_exchange(job: str, inode: int, name: bytes) -> bytes:
    """Return the name that a new item of ``job``, with the inode number ``inode``, has while it is exchanged with the
    existing item ``name`` by renameat2(2) with RENAME_EXCHANGE.
    """
    return b"%s%s-exchanged-%d-%08x" % (TEMPORARY_NAME_PREFIX, job.encode(), inode, zlib.crc32(name))


def create_private_file(directory: int, name: bytes, flags: int = 0) -> int:
    """Create the file ``name`` in an open directory with mode 0600, and return a descriptor for writing. Raise
    ``Problem``.

    ``flags`` are further flags of open(2).
    """
    try:
        return open_with_retries(name, flags | CREATE_FLAGS, 0o600, dir_fd=directory)
    except OSError as error:
        raise Problem.from_error("create", error) from error


def reopen_temporary_file(
    directory: int, name: bytes, made: ItemIdentity, size: int, shown: tuple[int, ...] = ()
) -> int:
    """Open the temporary file ``name`` for writing, after checks that it is the file that was created.

    Raise ``Problem``. The problem has ESTALE if the name leads to another file. The problem allows a retry
    (``may_retry``), which creates the file anew, if the file:

    - no longer exists, or was replaced;
    - is write-protected: an earlier run gave it the mode of the source, and was ended before that was recorded.

    Args:
        directory: the open directory that contains it.
        made: identity of the file that was created.
        size: its size in bytes.
        shown: mode and owner that the server showed for the new file, as ``unusual_status_of_new_file`` returned them;
            empty if they are the usual ones.
    """
    try:
        descriptor = open_with_retries(
            name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=directory
        )
    except OSError as error:
        again = error.errno == errno.ENOENT or (error.errno == errno.EACCES and _is_write_protected(directory, name))
        raise Problem("open", error.errno or errno.EIO, may_retry=again) from error
    try:
        status = status_of_open_item(descriptor)
    except Problem:
        close_after_failure(descriptor)
        raise
    ours = (
        made.compare_with_identity(identity_of_open_item(descriptor, status, made.mount_code, created_by_job=True))
        is not IdentityComparison.OTHER
        and status.st_size == size
        and status.st_nlink == 1
        and unusual_status_of_new_file(status) == shown
    )
    if not ours:
        close_after_failure(descriptor)
        raise Problem("open", errno.ESTALE, text="the temporary file was replaced meanwhile", may_retry=True)
    return descriptor


def _is_write_protected(directory: int, name: bytes) -> bool:
    """Return True if ``name`` in an open directory is an item that its owner has no permission to write."""
    try:
        return not os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & 0o200
    except OSError:
        return False


def remove_item_if_present(directory: int, name: bytes) -> None:
    """Remove the item ``name`` from an open directory if it exists. Raise ``Problem``."""
    with errors_as_problem("unlink"), suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def remove_leftover_temporary_files(directory: int, job: str, run: int | None = None) -> list[bytes]:
    """Remove the temporary files of runs of ``job`` before ``run`` (None: of all runs) from an open directory.

    Raise ``Problem``. Return the names of existing items of the user that remain after an interrupted exchange with
    their copies. These items are not removed, because they may be newer than the copies.
    """
    stem = b"%s%s-" % (TEMPORARY_NAME_PREFIX, job.encode())
    with errors_as_problem("readdir"):
        names = [name for name in names_in_directory(directory) if name.startswith((stem, stem[1:]))]
    replaced_items = []
    for name in names:
        rest = name.removeprefix(b".")[len(stem) - 1 :]
        kind = rest.partition(b"-")[0]
        if kind.isdigit() and (run is None or int(kind) < run):
            remove_item_if_present(directory, name)
        elif exchanged := re.fullmatch(_EXCHANGE_NAME_PATTERN, rest):
            with errors_as_problem("stat"):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if status.st_ino == int(exchanged[1]):
                remove_item_if_present(directory, name)
            else:
                replaced_items.append(name)
    return replaced_items


def leftover_notice(replaced_items: list[bytes]) -> str:
    """Return the notice for the user about ``replaced_items``: names of existing items that remain after an interrupted
    exchange with their copies.
    """
    names = ", ".join(map(os.fsdecode, replaced_items))
    return f"the replaced item remains as {names}: it may be newer than its copy; move it back, or remove it"


def rename_and_verify(directory: int, temporary: bytes, name: bytes, inode: int) -> None:
    """Rename ``temporary`` to its final ``name``, replacing an existing item, and check that ``name`` leads to the item
    with this ``inode`` number.

    Raise ``Problem``. If the file is not open, another user may have removed it, so that another file has its inode
    number by now; this is not noticed. It does no more harm than a replacement of the file after the rename, which the
    owner of the directory may do anyway.
    """
    try:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise Problem.from_error("rename", error) from error
    verify_name_has_inode(directory, name, inode)


def verify_name_has_inode(directory: int, name: bytes, inode: int) -> None:
    """Raise ``Problem`` if ``name`` does not lead to the item with this ``inode`` number: another program has replaced
    it.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        raise Problem.from_error("stat", error) from error
    if status.st_ino != inode:
        raise Problem("rename", errno.ESTALE, text=REPLACED_TEXT)
