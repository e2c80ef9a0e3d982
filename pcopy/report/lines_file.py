"""Files of JSON lines that are written while a job runs: all failures (``--errors``), what becomes of each item
(``--log``)."""

from __future__ import annotations

import json
import os
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pcopy.errors import Refused
from pcopy.signature.replacing import with_umask
from pcopy.tasks.base.itemized import Itemized, ItemLine
from pcopy.text import shown


def path_values(path: bytes) -> dict[str, object]:
    """``path`` as it is shown, and its exact bytes."""
    return {"path": shown(path), "path_b64": b2a_base64(path, newline=False).decode("ascii")}


def item_json(item: ItemLine) -> str:
    """One JSON object on one line (docs/formats/log.md)."""
    values = {
        "action": item.action,
        **path_values(item.path),
        "type": item.type or None,
        "bytes": item.bytes,
        "seconds": round(item.seconds, 6),
    }
    return json.dumps(values)


def items_json(items: Sequence[Itemized]) -> Iterator[str]:
    return (item_json(item) for each in items for item in each.each())


class LinesFile:
    """One JSON object a line, written through with each batch; ``what`` it is for people."""

    def __init__(self, path: bytes, what: str, umask: int | None = None) -> None:
        """Opens the file, made with mode 0666 without ``umask``; raises ``Refused`` if that is not possible."""
        self.path = path
        self.what = what
        try:
            with with_umask(umask):
                # Closed in ``close``. It is ASCII, but that codec might have to be loaded yet.
                self._file = open(os.fsdecode(path), "a", encoding="utf-8")  # noqa: SIM115
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
