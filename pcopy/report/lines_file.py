"""Files of JSON lines that are written while a job runs: all failures (``--errors``), what becomes of each item
(``--log``)."""

from __future__ import annotations

import json
import os
import stat
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pcopy.errors import Refused
from pcopy.signature.replacing import with_umask
from pcopy.tasks.base.itemized import Itemized, ItemLine
from pcopy.text import shown

BEGINNINGS = {"errors": b'{"path": "', "log": b'{"action": "'}
"""Of each line, by the option that names the file."""


def path_values(path: bytes) -> dict[str, str]:
    """``path`` as it is shown, and its exact bytes."""
    return {"path": shown(path), "path_b64": b2a_base64(path, newline=False).decode("ascii")}


def item_json(item: ItemLine) -> str:
    """One JSON object on one line (docs/formats/log.md)."""
    values: dict[str, object] = {
        "action": item.action,
        **path_values(item.path),
        "type": item.type or None,
        "bytes": item.bytes,
        "seconds": round(item.seconds, 6),
    }
    if item.change:
        values["change"] = item.change
    return json.dumps(values)


def items_json(items: Sequence[Itemized]) -> Iterator[str]:
    return (item_json(item) for each in items for item in each.each())


def _opened(path: str, flags: int) -> int:
    """Somebody may have put a link there since it was looked at."""
    return os.open(path, flags if is_stream(os.fsencode(path)) else flags | os.O_NOFOLLOW, 0o666)


def is_stream(path: bytes) -> bool:
    """Is it, or leads it to, a FIFO or a character device? /dev/stderr, for instance."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # a link to nothing
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


class LinesFile:
    """One JSON object a line, written through with each batch; ``what`` it is for people."""

    def __init__(self, path: bytes, what: str, umask: int | None = None) -> None:
        """Opens the file, made with mode 0666 without ``umask``; raises ``Refused`` if that is not possible."""
        self.path = path
        self.what = what
        try:
            with with_umask(umask):
                # Closed in ``close``. It is ASCII, but that codec might have to be loaded yet.
                self._file = open(os.fsdecode(path), "a", encoding="utf-8", opener=_opened)  # noqa: SIM115
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot write the {what}: {error.strerror}") from None

    def begin(self) -> None:
        """Drops what an earlier job has left."""
        with suppress(OSError):  # a pipe or a device holds nothing
            self._file.truncate(0)

    def write(self, lines: Iterable[str]) -> None:
        """Raises ``OSError``; then only ``close`` may follow."""
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Raises ``OSError`` where what was written did not arrive."""
        self._file.close()
