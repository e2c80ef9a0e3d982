"""The file that holds what does not fit into memory. A module of its own, since importing tempfile takes 10 ms."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from pcopy.errors import NotPutAside
from pcopy.fsio.named_file import held_directory

IN_MEMORY = 1 << 20
"""Bytes of a spool that stay in memory before it becomes a file."""


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    def told(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            raise NotPutAside(error.errno, error.strerror) from error

    return told


class SpoolFile(SpooledTemporaryFile[bytes]):
    """Has no name, and vanishes when it is closed; raises ``NotPutAside`` for whatever goes wrong with it."""

    def __init__(self, directory: bytes) -> None:
        """``directory`` is empty for that of the system; links to it are followed as ``named_file`` states it."""
        super().__init__(max_size=IN_MEMORY)
        self._directory = directory

    def rollover(self) -> None:
        """Become a file, unless it is one."""
        arguments = vars(self).get("_TemporaryFileArgs")  # those of its file, until there is one
        if arguments is not None:
            with held_directory(self._directory or temporary_directory()) as directory:
                arguments["dir"] = os.fsdecode(directory)
                super().rollover()

    read = _telling(SpooledTemporaryFile.read)
    write = _telling(SpooledTemporaryFile.write)
    seek = _telling(SpooledTemporaryFile.seek)
    truncate = _telling(SpooledTemporaryFile.truncate)
    flush = _telling(SpooledTemporaryFile.flush)
    fileno = _telling(SpooledTemporaryFile.fileno)  # which makes it a file

    def close(self) -> None:
        with suppress(OSError):  # what could not be written is given up with the rest
            super().close()


def temporary_directory() -> bytes:
    """Where the system has temporary files; raises ``OSError`` if there is no such place, or links forbid its use."""
    for name in (b"TMPDIR", b"TEMP", b"TMP"):  # in which gettempdir writes, to see whether that is possible
        if path := os.environb.get(name):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError), held_directory(path):
                pass
    return os.fsencode(gettempdir())
