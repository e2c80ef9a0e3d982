"""The path of a tool that only reads what it names, as the root of its job."""

from __future__ import annotations

import errno
import os
import stat

from pcopy.errors import Refused
from pcopy.jobs.meant import barrier, meant
from pcopy.tasks.base.job import Root
from pcopy.text import shown


def root_read(path: bytes, *, follow: bool) -> Root:
    """``path``, or what it leads to if it is a symbolic link that is to be followed; raises ``Refused``."""
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
        around = os.stat(directory)
    except OSError as error:
        if error.filename is None:  # there is no current directory to begin with
            raise
        raise unlookable(path, error) from None
    if stat.S_ISSOCK(status.st_mode):
        raise Refused(f"{shown(path)}: is a socket, which holds nothing to read")
    if not os.path.lexists(real):  # /dev/fd/63
        raise Refused(f"{shown(path)}: is a pipe, or a file without a name; put what it holds into a file")
    identity = around.st_dev, around.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)


def unlookable(path: bytes, error: OSError) -> Refused:
    otherwise = "check its mode, and those above it" if error.errno == errno.EACCES else "check the name"
    told = meant(path) if error.errno == errno.ENOENT else barrier(path, error).removeprefix("; ")
    return Refused(f"{shown(path)}: {os.strerror(error.errno or 0)}; {told or otherwise}")
