"""Files of JSON lines that are written while a job runs: all failures (``--errors``), what becomes of each item
(``--log``)."""

from __future__ import annotations

import json
import os
import stat
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence

from pcopy.errors import Refused
from pcopy.fsio.named_file import open_to_write
from pcopy.signature.replacing import with_umask
from pcopy.tasks.base.itemized import Itemized, ItemLine
from pcopy.text import shown

BEGINNINGS = {"errors": b'{"path": "', "log": b'{"action": "'}
"""Of each line, by the option that names the file."""

CALLED = {"errors": "errors file", "log": "log"}
"""What people call the files."""


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


def refusal(option: str, status: os.stat_result, beginning: bytes) -> str:
    """Return why a regular file must not become that of ``option``, or nothing if it may.

    It is emptied and written through, so all its names would lose what they hold. Where the option's value was
    forgotten, the file is one that the shell has named.
    """
    if status.st_nlink > 1:
        return "has other names (hard links), which would be emptied too; name another file"
    if beginning and not beginning.startswith(BEGINNINGS[option]):
        return f"is there already, and is not what --{option} has written; name another file, or remove it"
    return ""


class LinesFile:
    """One JSON object a line, written through with each batch; ``what`` it is for people."""

    def __init__(self, path: bytes, what: str, umask: int | None = None) -> None:
        """Opens the file, made with mode 0666 without ``umask``; raises ``Refused`` if that is not possible."""
        self.path = path
        self.what = what
        try:
            with with_umask(umask):
                opened = open_to_write(path)
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot write the {what}: {error.strerror}") from None
        # Closed in ``close``. It is ASCII, but that codec might have to be loaded yet.
        self._file = open(opened.descriptor, "w", encoding="utf-8")  # noqa: SIM115
        status = os.fstat(opened.descriptor)
        self._is_emptied = stat.S_ISREG(status.st_mode) and not opened.inherited
        """Does it hold only what this program writes?"""
        if self._is_emptied:
            self._refuse_others(status)

    def _refuse_others(self, status: os.stat_result) -> None:
        """Raise ``Refused`` if something else has taken the name since ``check_outputs`` looked at it."""
        option = next(option for option, what in CALLED.items() if what == self.what)
        why = refusal(option, status, os.pread(self._file.fileno(), max(map(len, BEGINNINGS.values())), 0))
        if why:
            self._file.close()
            raise Refused(f"{shown(self.path)}: {why}")

    def begin(self) -> None:
        """Drops what an earlier job has left; what stands in a file that was inherited stays."""
        if self._is_emptied:
            self._file.truncate(0)

    def write(self, lines: Iterable[str]) -> None:
        """Raises ``OSError``; then only ``close`` may follow."""
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Raises ``OSError`` where what was written did not arrive."""
        self._file.close()
