"""Directories that hold a job: opened only if nobody else can change them, and files in them replaced durably.

Rules: a directory decides what is copied and what is taken as done, so it and its files are used only if they are ours
and only we may write to them. A symbolic link in their place is refused, a FIFO is not waited for; links above are
followed as ``pcopy.fsio.named_file`` states it. Files and directories are named relative to the directory that was
opened so. A crash leaves the old one or the new one (``pcopy.fsio.durable``); what nobody relies on yet goes without
the two fsyncs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias

from pcopy.checkpoint.layout import JOB
from pcopy.errors import Refused
from pcopy.fsio.close import held_open, names_in
from pcopy.fsio.durable import Synced, replacing, sync_directory_at
from pcopy.fsio.patience import open_patiently
from pcopy.text import shown

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

ADVICE = "name another place with --checkpoint DIR, or go without: --checkpoint none"
_ELSEWHERE = "keep new jobs elsewhere: --checkpoint DIR, or none"
_ANEW = "remove the directory that it is in and start the job anew"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITERS = stat.S_IWGRP | stat.S_IWOTH
NEW = b".new"
"""What the name of a file ends with until it is whole."""


@contextmanager
def _around(path: bytes) -> Iterator[tuple[int, bytes]]:
    """The open directory that holds ``path``, and the name of that in it; raises ``OSError``."""
    above, name = os.path.split(path)
    with held_open(_opened_above(above)) as directory:
        yield directory, name or b"."


def _opened_above(path: bytes) -> int:
    """The directory ``path``, open (O_PATH); raises ``OSError``."""
    directory = open_patiently(b"/" if path.startswith(b"/") else b".", _LOOK)
    for part in filter(None, path.split(b"/")):
        with held_open(directory):
            try:
                directory = open_patiently(part, _LOOK, dir_fd=directory)
            except NotADirectoryError:  # a link, or there is none
                from pcopy.fsio.named_file import open_directory_of  # most jobs need not load it

                return open_directory_of(os.path.join(path, b"")).descriptor
    return directory


@contextmanager
def opened(path: bytes) -> Iterator[int]:
    """A descriptor of the directory ``path``; raises ``Refused`` if it is not safely ours."""
    path = os.path.abspath(path)  # also without a trailing slash, which would follow a link
    try:
        with _around(path) as (around, name):
            descriptor = open_patiently(name, _DIRECTORY, dir_fd=around)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.islink(path):
            raise Refused(f"{shown(path)}: a symbolic link; name the job directory itself") from None
        advice = "; name a job's directory, or one to be made" if error.errno == errno.ENOTDIR else ""
        raise Refused(f"{shown(path)}: cannot be opened as a job directory: {error.strerror}{advice}") from None
    with held_open(descriptor):
        refuse_strange(path, os.fstat(descriptor))
        yield descriptor


def check_directory(path: bytes) -> None:
    """Raises ``Refused`` unless ``path`` is a directory of the caller's that nobody else may write."""
    with opened(path):
        pass


def make(path: bytes, *, durable: bool = True) -> list[bytes]:
    """Makes the directory ``path`` and those above it that are missing, for the owner only; one that exists is left.

    Returns what it has made, the deepest first; raises ``Refused`` with what to do instead, and then nothing is left.
    ``durable``: their names are on stable storage on return.
    """
    path = os.path.abspath(path)
    missing, made = [], list[bytes]()
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        try:
            with suppress(FileExistsError), _around(path) as (around, name):
                os.mkdir(name, 0o700, dir_fd=around)
                made.insert(0, path)
            if durable:
                sync_directory_at(os.path.dirname(path))
        except BaseException as error:
            remove_empty(made)
            if not isinstance(error, OSError):
                raise
            raise Refused(f"{shown(path)}: no directory can be made there: {error.strerror}; {ADVICE}") from None
    return made


def remove_empty(paths: Iterable[bytes]) -> None:
    """Removes these directories, the deepest first, up to one that holds something or cannot be removed."""
    with suppress(OSError):
        for path in paths:
            with _around(path) as (around, name):
                os.rmdir(name, dir_fd=around)


def check_makeable(path: bytes) -> None:
    """Raises ``Refused`` if ``make`` would fail or its directory would not be used; touches nothing."""
    path = os.path.abspath(path)
    if os.path.lexists(path):
        check_directory(path)
    nearest = path
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    try:
        with _around(os.path.join(nearest, b"")):
            pass
    except NotADirectoryError:
        pass
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be made: {error.strerror}; {ADVICE}") from None
    if not os.path.isdir(nearest):
        raise Refused(f"{shown(nearest)}: not a directory, so that {shown(path)} can't be made; {ADVICE}")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        raise Refused(f"{shown(path)}: cannot be made, since {shown(nearest)} may not be written; {ADVICE}")


def read(directory: int, name: bytes, *, where: bytes, most: int = -1) -> bytes:
    """What the file ``name`` holds, at ``most`` so many bytes, in the open directory whose path is ``where``.

    Raises ``Refused`` if it is no regular file that only we may write, ``OSError`` for what the system refuses.
    """
    with _trusted(open_patiently(name, _READ, dir_fd=directory), os.path.join(where, name)) as stream:
        return stream.read(most)


def replace(directory: int, name: bytes, data: bytes, *, durable: bool = True) -> None:
    """Gives the file ``name`` the contents ``data``; raises ``OSError``, and then the old one stays.

    Unless that is to be ``durable`` a power cut may leave the file empty, or none.
    """
    temporary = name + NEW
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    with replacing(directory, name, temporary, synced=Synced.NAME if durable else Synced.NOTHING) as stream:
        stream.write(data)


@contextmanager
def opened_file(path: bytes) -> Iterator[BinaryIO]:
    """``path`` for reading; raises ``Refused`` unless it is a regular file of the caller's that only he may write."""
    try:
        with _around(path) as (around, name):
            descriptor = open_patiently(name, _READ, dir_fd=around)
    except FileNotFoundError:
        raise Refused(f"{shown(path)}: is missing; without it the job cannot be resumed") from None
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise Refused(f"{shown(path)}: {reason}") from None
    with _trusted(descriptor, path) as stream:
        yield stream


@contextmanager
def _trusted(descriptor: int, path: bytes) -> Iterator[BinaryIO]:
    with held_open(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{shown(path)}: is no regular file")
        refuse_strange(path, status)
        yield os.fdopen(descriptor, "rb", closefd=False)


def create(path: bytes) -> BinaryIO:
    """A new file of mode 0600, unbuffered; raises ``OSError`` (``FileExistsError`` for whatever has the name)."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with _around(path) as (around, name):
        return os.fdopen(open_patiently(name, flags, 0o600, dir_fd=around), "wb", buffering=0)


def create_run(path: bytes) -> None:
    """Makes the directory of a run; raises ``OSError``."""
    with _around(path) as (around, name):
        os.mkdir(name, 0o700, dir_fd=around)


def remove_run(path: bytes) -> None:
    """Removes a run's directory with its files, if there is one; raises ``OSError``."""
    with suppress(FileNotFoundError), _around(path) as (around, name):
        try:
            run = open_patiently(name, _DIRECTORY, dir_fd=around)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            os.unlink(name, dir_fd=around)
            return
        with held_open(run):
            for inner in names_in(run):
                os.unlink(inner, dir_fd=run)
        os.rmdir(name, dir_fd=around)


def refuse_strange(path: bytes, status: os.stat_result) -> None:
    """Raises ``Refused`` unless what has this ``status`` is ours, and only ours to write.

    A directory may be that of a job or the place for a new one; a file is always part of a job that there is.
    """
    if status.st_uid == os.geteuid() and not status.st_mode & _WRITERS:
        return
    is_job = stat.S_ISDIR(status.st_mode) and os.path.lexists(os.path.join(path, JOB))
    is_place = stat.S_ISDIR(status.st_mode) and not is_job
    if status.st_uid != os.geteuid():
        advice = _ELSEWHERE if is_place else f"only user {status.st_uid} can go on with it" if is_job else _ANEW
        raise Refused(f"{shown(path)}: belongs to user {status.st_uid}, not to the one who runs pcopy; {advice}")
    anew = "remove it and start the job anew" if is_job else _ANEW
    advice = f"chmod go-w it, or {_ELSEWHERE}" if is_place else f"if they have not, chmod go-w it; else {anew}"
    mode = stat.S_IMODE(status.st_mode)
    raise Refused(f"{shown(path)}: others may write to it (mode {mode:04o}); {advice}")
