"""The class of temporary files for data that does not fit into memory. A module of its own, since importing
tempfile takes 10 ms.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from pcopy.errors import SpillFailed
from pcopy.fsio.named_file import stable_directory_path

IN_MEMORY = 1 << 20
"""Bytes of a spool that remain in memory; a longer one is written to a file."""


def _raising_spool_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method`` with every ``OSError`` turned into ``SpillFailed``."""

    def wrapped(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            raise SpillFailed(error.errno, error.strerror) from error

    return wrapped


class SpoolFile(SpooledTemporaryFile[bytes]):
    """A temporary file without a name, which is removed when it is closed; every error raises ``SpillFailed``."""

    def __init__(self, directory: bytes) -> None:
        """Create an empty file in memory.

        ``directory``: where it is written if it grows; empty: the system's directory for temporary files. Symbolic
        links in the path are followed by the rules of ``named_file``.
        """
        super().__init__(max_size=IN_MEMORY)
        self._directory = directory

    def rollover(self) -> None:
        """Write the contents to a file on disk, unless that is done already."""
        arguments = vars(self).get(
            "_TemporaryFileArgs"
        )  # Arguments of the future file; the attribute is removed when the file is created.
        if arguments is not None:
            with stable_directory_path(self._directory or temporary_directory()) as directory:
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

    Raise ``OSError`` if there is none, or its path contains a symbolic link that is not followed.
    """
    for name in (
        b"TMPDIR",
        b"TEMP",
        b"TMP",
    ):  # gettempdir creates a file in each of these as a test, so they are checked first
        if path := os.environb.get(name):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError), stable_directory_path(path):
                pass
    return os.fsencode(gettempdir())
