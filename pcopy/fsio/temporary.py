"""Files under temporary names, beside the target and renamed to it when they are whole.

When one is opened again by its name, it must be the very file that was made: a regular file of ours, with one link,
that nobody else can write. In a directory of a hostile owner the name may lead to something else by then.

Some servers show another mode or owner than were asked for (CIFS, root_squash on NFS, mount options of FUSE). Where the
status of a new file says so (``shown_by_server``), a file that is opened again must show the same mode and owner as
then. Its identity, type and number of links are checked in either case.

During an exchange with an existing item it has another name (``exchange_name``), which tells its inode. So afterwards
nobody takes the old item under this name for one of these files.

Its identity (``pcopy.fsio.identity``) has the mount code of its directory, not one of its own device: an item has a
name in the directory of another device only by a mount, and on an overlay files may have other device numbers than
their directory.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from contextlib import suppress
from itertools import count

from pcopy.fsio.close import abandon, names_in
from pcopy.fsio.identity import Identity, Likeness, identity_of
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import REPLACED, Problem, failing
from pcopy.fsio.source import status_of

PREFIX = b".pcopy-"
_EXCHANGED = rb"exchanged-(\d+)-[0-9a-f]{8}"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryNames:
    """Names that nobody else uses: they carry the job, its run and the rank.

    Unless they are ``hidden`` they have no leading dot, which some file systems refuse.
    """

    def __init__(self, job: str, run: int, rank: int, *, hidden: bool = True) -> None:
        self._stem = b"%s%s-%d-%d." % (PREFIX if hidden else PREFIX[1:], job.encode(), run, rank)
        self._numbers = count(1)

    def next(self) -> bytes:
        return self._stem + b"%d" % next(self._numbers)


def made_by(name: bytes) -> tuple[int, int]:
    """The run and the rank that ``name``, one of ``TemporaryNames``, belongs to."""
    run, rank = name.rpartition(b".")[0].split(b"-")[-2:]
    return int(run), int(rank)


def is_undressed(status: os.stat_result) -> bool:
    """Is it a file of ours that nobody else may read or write, as each is while it is being written?"""
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == os.geteuid()


def shown_by_server(new: os.stat_result) -> tuple[int, ...]:
    """Return mode (with the type) and owner of a ``new`` file by its status; empty if they are as ``create`` asks."""
    return () if is_undressed(new) else (new.st_mode, new.st_uid)


def exchange_name(job: str, inode: int, name: bytes) -> bytes:
    """Under which ``inode``, which ``job`` has made, is exchanged for what is called ``name``."""
    return b"%s%s-exchanged-%d-%08x" % (PREFIX, job.encode(), inode, zlib.crc32(name))


def create(directory: int, name: bytes, flags: int = 0) -> int:
    """A new file, readable and writable by its owner only; returns a descriptor for writing. Raises ``Problem``.

    ``flags`` are added to those of open(2).
    """
    try:
        return open_patiently(name, flags | NEW, 0o600, dir_fd=directory)
    except OSError as error:
        raise Problem.of("create", error) from error


def reopen(directory: int, name: bytes, made: Identity, size: int, shown: tuple[int, ...] = ()) -> int:
    """The temporary file ``name`` that was ``made`` again, of ``size`` bytes, for writing.

    ``shown``: what ``shown_by_server`` returned when it was made.
    Raises ``Problem``, with ESTALE if it is no longer that file; one that is gone or was replaced may be made again. So
    may one that nobody may write to: an earlier run has given it the source's mode, and was ended before that was on
    record.
    """
    try:
        descriptor = open_patiently(
            name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=directory
        )
    except OSError as error:
        again = error.errno == errno.ENOENT or (error.errno == errno.EACCES and _is_write_protected(directory, name))
        raise Problem("open", error.errno or errno.EIO, again=again) from error
    try:
        status = status_of(descriptor)
    except Problem:
        abandon(descriptor)
        raise
    ours = (
        made.compare(identity_of(descriptor, status, made.mount, made=True)) is not Likeness.OTHER
        and status.st_size == size
        and status.st_nlink == 1
        and shown_by_server(status) == shown
    )
    if not ours:
        abandon(descriptor)
        raise Problem("open", errno.ESTALE, text="the temporary file was replaced meanwhile", again=True)
    return descriptor


def _is_write_protected(directory: int, name: bytes) -> bool:
    """Is it a file that its owner may not write to?"""
    try:
        return not os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & 0o200
    except OSError:
        return False


def remove(directory: int, name: bytes) -> None:
    """Removes ``name`` if it is there; raises ``Problem`` for anything but its absence."""
    with failing("unlink"), suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def remove_leftovers(directory: int, job: str, run: int | None = None) -> list[bytes]:
    """Removes from an open directory what runs of ``job`` before ``run`` (None: all) left there; raises ``Problem``.

    Returns the names of what came out of an exchange and was not looked at any more: it may be worth keeping.
    """
    stem = b"%s%s-" % (PREFIX, job.encode())
    with failing("readdir"):
        names = [name for name in names_in(directory) if name.startswith((stem, stem[1:]))]
    others = []
    for name in names:
        rest = name.removeprefix(b".")[len(stem) - 1 :]
        kind = rest.partition(b"-")[0]
        if kind.isdigit() and (run is None or int(kind) < run):
            remove(directory, name)
        elif exchanged := re.fullmatch(_EXCHANGED, rest):
            with failing("stat"):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if status.st_ino == int(exchanged[1]):
                remove(directory, name)
            else:
                others.append(name)
    return others


def had_a_name(others: list[bytes]) -> str:
    """What to tell of the names that ``remove_leftovers`` returns."""
    them = ", ".join(map(os.fsdecode, others))
    return f"what was replaced is left as {them}: it may be newer than its copy; move it back, or remove it"


def put_in_place(directory: int, temporary: bytes, name: bytes, inode: int) -> None:
    """Gives ``temporary``, which is ``inode``, its final ``name``, replacing what has it; raises ``Problem``.

    Where nobody holds it, its number may be another's by now. That is as if the directory's owner had replaced it
    later, which he may.
    """
    try:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise Problem.of("rename", error) from error
    verify_name(directory, name, inode)


def verify_name(directory: int, name: bytes, inode: int) -> None:
    """Raises ``Problem`` unless ``name`` is the item with that inode."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        raise Problem.of("stat", error) from error
    if status.st_ino != inode:
        raise Problem("rename", errno.ESTALE, text=REPLACED)
