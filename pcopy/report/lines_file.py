"""Files of JSON lines that are written while a job runs: all failures (``--errors``), what becomes of each item
(``--log``)."""

from __future__ import annotations

import errno
import json
import os
import stat
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence

from pcopy.errors import Refused
from pcopy.fsio.close import let_go
from pcopy.fsio.named_file import open_directory_of, open_to_write
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
    """One JSON object a line, written through with each batch.

    ``option`` is the one that names the file, and ``what`` is what people call it.
    """

    def __init__(self, path: bytes, option: str, umask: int | None = None) -> None:
        """Opens the file, made with mode 0666 without ``umask``; raises ``Refused`` if that is not possible."""
        self.path = path
        self.what = CALLED[option]
        try:
            with with_umask(umask):
                opened = open_to_write(path)
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot write the {self.what}: {error.strerror}") from None
        # Closed in ``close``. It is ASCII, but that codec might have to be loaded yet.
        self._file = open(opened.descriptor, "w", encoding="utf-8")  # noqa: SIM115
        self._created = opened.path if opened.created else b""
        status = os.fstat(opened.descriptor)
        self._is_emptied = stat.S_ISREG(status.st_mode) and not opened.inherited
        """Does it hold only what this program writes?"""
        if self._is_emptied:
            self._refuse_others(option, status)

    def _refuse_others(self, option: str, status: os.stat_result) -> None:
        """Raise ``Refused`` if something else has taken the name since ``check_outputs`` looked at it."""
        try:
            beginning = os.pread(self._file.fileno(), max(map(len, BEGINNINGS.values())), 0)
            why = refusal(option, status, beginning)
        except OSError as error:
            why = f"is there already, and cannot be read: {error.strerror}"
        if why:
            self._file.close()
            raise Refused(f"{shown(self.path)}: {why}")

    def begin(self) -> None:
        """Drops what an earlier job has left; what stands in a file that was inherited stays.

        So does what stands in a file with the attribute ``chattr +a``, to which the system lets nobody do more than
        append. Raises ``OSError``.
        """
        if self._is_emptied:
            try:
                self._file.truncate(0)
            except PermissionError as error:
                if error.errno != errno.EPERM:
                    raise

    def withdraw(self) -> None:
        """Close the file, and remove it if it was created for this job and is empty. Raises ``OSError``.

        If another file has taken its name, that one stays.
        """
        status = os.fstat(self._file.fileno())
        self._file.close()
        if not self._created or status.st_size:
            return
        directory = open_directory_of(self._created)
        try:
            present = os.stat(directory.name, dir_fd=directory.descriptor, follow_symlinks=False)
            if (present.st_dev, present.st_ino) == (status.st_dev, status.st_ino):
                os.unlink(directory.name, dir_fd=directory.descriptor)
        except FileNotFoundError:  # somebody else has removed it
            return
        finally:
            let_go(directory.descriptor)

    def write(self, lines: Iterable[str]) -> None:
        """Raises ``OSError``; then only ``close`` may follow."""
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Raises ``OSError`` where what was written did not arrive."""
        self._file.close()
