"""The file that holds what does not fit into memory. A module of its own, since importing tempfile takes 10 ms."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import Any

from pcopy.errors import NotPutAside

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

    def __init__(self, directory: str | None) -> None:
        super().__init__(max_size=IN_MEMORY, dir=directory)

    read = _telling(SpooledTemporaryFile.read)
    write = _telling(SpooledTemporaryFile.write)
    seek = _telling(SpooledTemporaryFile.seek)
    truncate = _telling(SpooledTemporaryFile.truncate)
    flush = _telling(SpooledTemporaryFile.flush)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written is given up with the rest
            super().close()
