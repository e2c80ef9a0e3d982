"""For programs that only read: conversion of the path argument to a root (a pair of source and target directory)."""

from __future__ import annotations

import errno
import os
import stat

from pcopy.errors import RequestRefused, path_refused
from pcopy.jobs.suggestions import suggestion_for_missing_path, unsearchable_directory_text
from pcopy.tasks.base.job import Root


def root_for_reading(path: bytes, *, follow: bool) -> Root:
    """Return the root of a job that reads ``path``; source and target of the root are the same directory.

    ``follow``: True to read the target if ``path`` is a symbolic link. Raise ``RequestRefused`` if ``path`` does not
    exist, cannot be examined, or is a socket or a file without a name.
    """
    try:
        status = os.stat(path) if follow else os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            parent, name = os.path.split(path)
            real = os.path.join(os.path.realpath(parent or b"."), name)
        else:
            real = os.path.realpath(path)
        if stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            return Root(real, real, b"", b"", path, path, identity, identity)
        directory, name = os.path.split(real)
        parent_status = os.stat(directory)
    except OSError as error:
        if error.filename is None:  # The working directory was removed: the caller reports that.
            raise
        raise cannot_examine_error(path, error) from None
    if stat.S_ISSOCK(status.st_mode):
        raise path_refused(path, "is a socket, which has no contents to read")
    if not os.path.lexists(real):  # for example /dev/fd/63 of a shell's process substitution
        raise path_refused(path, "is a pipe, or a file without a name; write its contents into a file first")
    identity = parent_status.st_dev, parent_status.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)


def cannot_examine_error(path: bytes, error: OSError) -> RequestRefused:
    """Return the exception for a ``path`` that cannot be examined: stat failed with ``error``. Its message also says
    what to do.
    """
    advice = "check its mode, and those above it" if error.errno == errno.EACCES else "check the name"
    suggestion = (
        suggestion_for_missing_path(path)
        if error.errno == errno.ENOENT
        else unsearchable_directory_text(path, error).removeprefix("; ")
    )
    return path_refused(path, f"{os.strerror(error.errno or 0)}; {suggestion or advice}")
