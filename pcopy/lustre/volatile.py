"""Files without a name on Lustre (volatile files), which a client creates by opening a name of a special form.

Such a file has no entry in the directory in which it is created, so that the directory's times do not change. Lustre
removes it when it is closed, however the process ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count

from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.problem import Problem

_VOLATILE_NAME_FORMAT = b".\x0c\x13\x14\x12:VOLATILE:%b:%08X:%08X"
"""Format of the special name: LUSTRE_VOLATILE_HDR of lustre_user.h, the index of a metadata target (MDT) or nothing,
and two arbitrary numbers.
"""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_name_numbers = count(1)
"""Counter from which each special name that this process uses gets a number of its own."""


def create_volatile_file(directory: int, flags: int = 0, *, server: int = -1) -> int:
    """Create an empty file without a name on Lustre; return its descriptor, open for reading and writing. Raise
    ``Problem``.

    Args:
        directory: descriptor of a directory on Lustre; the file inherits its layout from it.
        flags: further flags of open(2).
        server: index of the metadata target (MDT) that stores the file; -1: any MDT that stores the directory.
    """
    name = _VOLATILE_NAME_FORMAT % (b"%04X" % server if server >= 0 else b"", os.getpid(), next(_name_numbers))
    try:
        made = os.open(name, _FLAGS | flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise Problem.from_error("create", error) from error
    try:
        # A server that does not know such names creates an ordinary file, which is removed here.
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
    except OSError as error:
        close_ignoring_errors(made)
        raise Problem.from_error("unlink", error) from error
    return made
