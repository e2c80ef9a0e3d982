"""The class of temporary files (spools) for data that does not fit into memory.

It has a module of its own because importing tempfile takes 10 ms, and few jobs need a spool.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from pcopy.errors import TemporaryFileFailed
from pcopy.fsio.named_file import rename_proof_directory_path

MAX_SPOOL_IN_MEMORY = 1 << 20
"""Largest size in bytes of a spool that is kept in memory; a larger one is written to a file."""


def _raising_spool_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that behaves as ``method`` does, but raises ``TemporaryFileFailed`` instead of ``OSError``."""

    def wrapped(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            raise TemporaryFileFailed(error.errno, error.strerror) from error

    return wrapped


class SpoolFile(SpooledTemporaryFile[bytes]):
    """An unnamed temporary file, which is removed when it is closed. Every error raises ``TemporaryFileFailed``."""

    def __init__(self, directory: bytes) -> None:
        """Create an empty file in memory.

        When it grows beyond ``MAX_SPOOL_IN_MEMORY``, it is written to a file in ``directory`` (empty: the system's
        directory for temporary files). A symbolic link in that path is followed only if it belongs to this user or to
        root.
        """
        super().__init__(max_size=MAX_SPOOL_IN_MEMORY)
        self._directory = directory

    def rollover(self) -> None:
        """Move the contents from memory to a file on disk, unless that is done already."""
        arguments = vars(self).get(
            "_TemporaryFileArgs"
        )  # The base class creates the file with these arguments, and then removes the attribute.
        if arguments is not None:
            with rename_proof_directory_path(self._directory or temporary_directory()) as directory:
                arguments["dir"] = os.fsdecode(directory)
                super().rollover()

    read = _raising_spool_errors(SpooledTemporaryFile.read)
    write = _raising_spool_errors(SpooledTemporaryFile.write)
    seek = _raising_spool_errors(SpooledTemporaryFile.seek)
    truncate = _raising_spool_errors(SpooledTemporaryFile.truncate)
    flush = _raising_spool_errors(SpooledTemporaryFile.flush)
    fileno = _raising_spool_errors(SpooledTemporaryFile.fileno)  # creates the file on disk

    def close(self) -> None:
        """Close and remove the file."""
        with suppress(OSError):  # The contents are not needed any longer.
            super().close()


def temporary_directory() -> bytes:
    """Return the system's directory for temporary files.

    It is the first usable one of TMPDIR, TEMP, TMP and Python's list of directories. Raise ``OSError`` if there is
    none, or if the path in a variable contains a symbolic link of another user, which is not followed.
    """
    for name in (
        b"TMPDIR",
        b"TEMP",
        b"TMP",
    ):  # gettempdir creates a file in each of these as a test, so check the links in their paths before
        if path := os.environb.get(name):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError), rename_proof_directory_path(path):
                pass
    return os.fsencode(gettempdir())
