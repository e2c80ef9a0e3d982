"""Files without a name: Lustre makes one where a file is created under a name of a certain form.

It takes no entry in the directory, whose times stay, and it is gone when it is closed, whatever ends the process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count

from pcopy.fsio.close import let_go
from pcopy.fsio.problem import Problem

_NAME = b".\x0c\x13\x14\x12:VOLATILE:%b:%08X:%08X"
"""LUSTRE_VOLATILE_HDR in lustre_user.h, an MDT's index or nothing, any two numbers."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_numbers = count(1)


def create_volatile(directory: int, flags: int = 0, *, server: int = -1) -> int:
    """An empty file, for reading and writing, that inherits its layout from an open directory. Raises ``Problem``.

    ``flags`` are added to those of open(2). The MDT ``server`` keeps it, or (-1) any that keeps the directory.
    """
    name = _NAME % (b"%04X" % server if server >= 0 else b"", os.getpid(), next(_numbers))
    try:
        made = os.open(name, _FLAGS | flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise Problem.of("create", error) from error
    try:
        with suppress(FileNotFoundError):  # a server that does not know such names
            os.unlink(name, dir_fd=directory)
    except OSError as error:
        let_go(made)
        raise Problem.of("unlink", error) from error
    return made
