"""Access to job directories: opens them only if no other user can change them, and replaces files in them durably.

The contents of a job directory decide which files are copied and which are assumed to be copied already. So the
directory and its files are used only if they belong to the caller and only the caller may write to them. A symbolic
link in place of the directory or a file is refused; a FIFO is refused without waiting for a writer. Symbolic links
further up in the path are followed only if root or the caller owns them (``pcopy.fsio.named_file``).

Files are opened relative to the descriptor of the directory that was checked. After a crash a file has either its old
or its new contents (``pcopy.fsio.durable``). Files that no other record relies on yet are written without fsync(2).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias

from pcopy.checkpoint.layout import JOB_FILE
from pcopy.errors import path_refused, unwritable_directory_code
from pcopy.fsio.close import closing_descriptor, names_in_directory
from pcopy.fsio.durable import Durability, replacing_file, sync_directory_at
from pcopy.fsio.retries import open_with_retries
from pcopy.text import printable_path

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""Path of a file or directory."""

CHECKPOINT_ADVICE = "choose another directory with --checkpoint DIR, or use --checkpoint none"
"""Advice in errors about a directory that cannot be used for the records of jobs."""
_NEW_JOBS_ADVICE = "choose another directory for new jobs with --checkpoint DIR, or use --checkpoint none"
_START_AGAIN_ADVICE = "remove the directory that contains it and start the job again"
_OPEN_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of open(2) for a directory to be read."""
_OPEN_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of open(2) for a directory that is only a component of a path."""
_OPEN_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags of open(2) for a file to be read."""
_OTHERS_WRITE_BITS = stat.S_IWGRP | stat.S_IWOTH
"""Bits of a mode that allow users other than the owner to write."""
INCOMPLETE_FILE_SUFFIX = b".new"
"""Suffix of the name of a file that is being written; the file is renamed once it is complete."""


@contextmanager
def _opened_parent(path: bytes) -> Iterator[tuple[int, bytes]]:
    """Context manager: open the parent directory of ``path``; yield its descriptor and the last component of ``path``.
    Raise ``OSError``.
    """
    above, name = os.path.split(path)
    with closing_descriptor(_open_directory_by_components(above)) as directory:
        yield directory, name or b"."


def _open_directory_by_components(path: bytes) -> int:
    """Return a descriptor (O_PATH) of the directory ``path``, for use as the start of relative paths. Raise
    ``OSError``.

    The path is opened component by component without following symbolic links. If a component is a symbolic link,
    ``pcopy.fsio.named_file`` opens the path instead, and follows only links that root or the caller owns.
    """
    directory = open_with_retries(b"/" if path.startswith(b"/") else b".", _OPEN_PATH_FLAGS)
    for part in filter(None, path.split(b"/")):
        with closing_descriptor(directory):
            try:
                directory = open_with_retries(part, _OPEN_PATH_FLAGS, dir_fd=directory)
            except NotADirectoryError:  # a symbolic link, or not a directory
                from pcopy.fsio.named_file import (
                    open_parent_directory,  # imported here because most jobs do not need it
                )

                return open_parent_directory(os.path.join(path, b"")).descriptor
    return directory


@contextmanager
def opened_trusted_directory(path: bytes) -> Iterator[int]:
    """Context manager: open the directory ``path`` and yield its descriptor.

    Raise ``RequestRefused`` unless the directory belongs to the caller and only the caller may write to it, so that its
    contents can be trusted.
    """
    path = os.path.abspath(path)  # also removes a trailing slash, with which open(2) would follow a symbolic link
    try:
        with _opened_parent(path) as (around, name):
            descriptor = open_with_retries(name, _OPEN_DIRECTORY_FLAGS, dir_fd=around)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.islink(path):
            raise path_refused(path, "is a symbolic link; name the job directory itself") from None
        advice = "; name a job directory, or one that does not exist yet" if error.errno == errno.ENOTDIR else ""
        raise path_refused(path, f"cannot be opened as a job directory: {error.strerror}{advice}") from None
    with closing_descriptor(descriptor):
        check_owner_and_mode(path, os.fstat(descriptor))
        yield descriptor


def check_trusted_directory(path: bytes) -> None:
    """Raise ``RequestRefused`` unless ``path`` is a directory of the caller to which no other user may write, so that
    its contents can be trusted.
    """
    with opened_trusted_directory(path):
        pass


def make_directories(path: bytes, *, durable: bool = True) -> list[bytes]:
    """Create the directory ``path`` and its missing parents with mode 0700. An existing directory is not changed.

    Return the paths of the directories that were created, the deepest first. If one cannot be created, remove those
    that were created before it, and raise ``RequestRefused``.

    ``durable``: on return the entries of the directories are on stable storage.
    """
    path = os.path.abspath(path)
    missing, made = [], list[bytes]()
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        try:
            with suppress(FileExistsError), _opened_parent(path) as (around, name):
                os.mkdir(name, 0o700, dir_fd=around)
                made.insert(0, path)
            if durable:
                sync_directory_at(os.path.dirname(path))
        except BaseException as error:
            remove_empty_directories(made)
            if not isinstance(error, OSError):
                raise
            raise path_refused(path, f"cannot create the directory: {error.strerror}; {CHECKPOINT_ADVICE}") from None
    return made


def remove_empty_directories(paths: Iterable[bytes]) -> None:
    """Remove those of the directories ``paths`` that are empty. They are ordered from the deepest up. Stop without an
    error at the first one that cannot be removed.
    """
    with suppress(OSError):
        for path in paths:
            with _opened_parent(path) as (around, name):
                os.rmdir(name, dir_fd=around)


def check_can_make_directory(path: bytes) -> None:
    """Raise ``RequestRefused`` if the directory ``path`` cannot be created, or, if it exists, cannot be used as a job
    directory. Change nothing.
    """
    path = os.path.abspath(path)
    if os.path.lexists(path):
        check_trusted_directory(path)
    nearest = path
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    try:
        with _opened_parent(os.path.join(nearest, b"")):
            pass
    except NotADirectoryError:
        pass
    except OSError as error:
        raise path_refused(path, f"cannot be created: {error.strerror}; {CHECKPOINT_ADVICE}") from None
    if not os.path.isdir(nearest):
        raise path_refused(
            nearest,
            f"not a directory, so {printable_path(path)} cannot be created in it; {CHECKPOINT_ADVICE}",
            code=errno.ENOTDIR,
        )
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        raise path_refused(
            path,
            f"cannot be created: no write permission in {printable_path(nearest)}; {CHECKPOINT_ADVICE}",
            code=unwritable_directory_code(nearest),
        )


def read_trusted_file(directory: int, name: bytes, *, where: bytes, most: int = -1) -> bytes:
    """Return the contents of the file ``name`` in the open directory ``directory``, but only its first ``most`` bytes
    (-1: all).

    ``where`` is the path of the directory, for errors. Raise ``RequestRefused`` unless the file is a regular file of
    the caller to which no other user may write, and ``OSError`` if it cannot be opened or read.
    """
    with _trusted_stream(
        open_with_retries(name, _OPEN_FILE_FLAGS, dir_fd=directory), os.path.join(where, name)
    ) as stream:
        return stream.read(most)


def replace_file(directory: int, name: bytes, data: bytes, *, durable: bool = True) -> None:
    """Replace the file ``name`` in the open directory ``directory`` by a new one with the contents ``data``. Raise
    ``OSError``; then the old file is unchanged.

    If ``durable`` is False, a loss of power may leave the file empty or missing.
    """
    temporary = name + INCOMPLETE_FILE_SUFFIX
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    with replacing_file(
        directory, name, temporary, durability=Durability.NAME if durable else Durability.NOTHING
    ) as stream:
        stream.write(data)


@contextmanager
def opened_trusted_file(path: bytes) -> Iterator[BinaryIO]:
    """Context manager: open the file ``path`` for reading and yield the stream.

    Raise ``RequestRefused`` unless it is a regular file of the caller to which no other user may write, so that its
    contents can be trusted.
    """
    try:
        with _opened_parent(path) as (around, name):
            descriptor = open_with_retries(name, _OPEN_FILE_FLAGS, dir_fd=around)
    except FileNotFoundError:
        raise path_refused(path, "is missing; without it the job cannot be resumed") from None
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise path_refused(path, reason) from None
    with _trusted_stream(descriptor, path) as stream:
        yield stream


@contextmanager
def _trusted_stream(descriptor: int, path: bytes) -> Iterator[BinaryIO]:
    """Context manager: yield a stream that reads from the open file ``descriptor``, and close the descriptor at the
    end.

    Raise ``RequestRefused`` unless it is a regular file of the caller to which no other user may write. ``path`` is its
    path, for the error.
    """
    with closing_descriptor(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise path_refused(path, "is not a regular file")
        check_owner_and_mode(path, status)
        yield os.fdopen(descriptor, "rb", closefd=False)


def create_file(path: bytes) -> BinaryIO:
    """Create the file ``path`` with mode 0600 and return an unbuffered stream that writes to it. Raise ``OSError``, for
    example ``FileExistsError`` if the path exists.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with _opened_parent(path) as (around, name):
        return os.fdopen(open_with_retries(name, flags, 0o600, dir_fd=around), "wb", buffering=0)


def create_run_directory(path: bytes) -> None:
    """Create the directory ``path`` of a run with mode 0700. Raise ``OSError``, also if it exists."""
    with _opened_parent(path) as (around, name):
        os.mkdir(name, 0o700, dir_fd=around)


def remove_run_directory(path: bytes) -> None:
    """Remove the directory ``path`` of a run with its files, if it exists. If ``path`` is a symbolic link or a file,
    remove that. Raise ``OSError``.
    """
    with suppress(FileNotFoundError), _opened_parent(path) as (around, name):
        try:
            run = open_with_retries(name, _OPEN_DIRECTORY_FLAGS, dir_fd=around)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            os.unlink(name, dir_fd=around)
            return
        with closing_descriptor(run):
            for inner in names_in_directory(run):
                os.unlink(inner, dir_fd=run)
        os.rmdir(name, dir_fd=around)


def check_owner_and_mode(path: bytes, status: os.stat_result) -> None:
    """Raise ``RequestRefused`` unless a file or directory belongs to the caller and no other user may write to it.
    ``status`` is its stat(2).

    ``path`` is its path, for the error. The advice in the error depends on what it is: the directory of a job, the
    directory in which new jobs are created, or a file (which is always part of a job).
    """
    if status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE_BITS:
        return
    is_job = stat.S_ISDIR(status.st_mode) and os.path.lexists(os.path.join(path, JOB_FILE))
    is_for_new_jobs = stat.S_ISDIR(status.st_mode) and not is_job
    if status.st_uid != os.geteuid():
        advice = (
            _NEW_JOBS_ADVICE
            if is_for_new_jobs
            else f"only user {status.st_uid} can resume it"
            if is_job
            else _START_AGAIN_ADVICE
        )
        raise path_refused(path, f"belongs to user {status.st_uid}, not to the user who runs pcopy; {advice}")
    again = "remove it and start the job again" if is_job else _START_AGAIN_ADVICE
    advice = (
        f"chmod go-w it, or {_NEW_JOBS_ADVICE}"
        if is_for_new_jobs
        else f"if they have changed nothing, chmod go-w it; otherwise {again}"
    )
    mode = stat.S_IMODE(status.st_mode)
    raise path_refused(path, f"others may write to it (mode {mode:04o}); {advice}")
