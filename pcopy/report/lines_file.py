"""Files of JSON lines that are written while a job runs: all failures (``--errors``), and the outcome of each
item (``--log``).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence

from pcopy.errors import RequestRefused
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.named_file import open_directory_of, open_to_write
from pcopy.signature.replacing import temporary_umask
from pcopy.tasks.base.item_outcomes import ItemOutcome, ItemOutcomes
from pcopy.text import printable_path

LINE_BEGINNINGS = {"errors": b'{"path": "', "log": b'{"action": "'}
"""Beginning of each line of a file, by the option that names the file."""

FILE_NAMES = {"errors": "errors file", "log": "log"}
"""Names of the files in messages, by option."""


def path_json_values(path: bytes) -> dict[str, str]:
    """Return a path as it is shown to users, and its exact bytes in Base64."""
    return {"path": printable_path(path), "path_b64": b2a_base64(path, newline=False).decode("ascii")}


def item_json(item: ItemOutcome) -> str:
    """Return the outcome of an item as a JSON object on one line (docs/formats/log.md)."""
    values: dict[str, object] = {
        "action": item.action,
        **path_json_values(item.path),
        "type": item.type or None,
        "bytes": item.bytes,
        "seconds": round(item.seconds, 6),
    }
    if item.change:
        values["change"] = item.change
    return json.dumps(values)


def item_lines(items: Sequence[ItemOutcomes]) -> Iterator[str]:
    """Yield the lines of all items."""
    return (item_json(item) for each in items for item in each.outcomes())


def reason_not_to_overwrite(option: str, status: os.stat_result, beginning: bytes) -> str:
    """Return why the file of ``option`` must not be an existing regular file; empty if it may.

    The file is truncated and overwritten, so it would be lost under all of its names. If the value of the option was
    omitted, the file is the next word of the command line, perhaps one that the shell inserted.

    Args:
        option: the option that names the file.
        status: status of the existing file.
        beginning: its first bytes.
    """
    if status.st_nlink > 1:
        return "has other names (hard links), which would be emptied too; name another file"
    if beginning and not beginning.startswith(LINE_BEGINNINGS[option]):
        return f"is there already, and is not what --{option} has written; name another file, or remove it"
    return ""


class LinesFile:
    """A file of JSON lines, flushed after each batch.

    ``what`` is the name of the file in messages.
    """

    def __init__(self, path: bytes, option: str, umask: int | None = None) -> None:
        """Open the file of ``option``, or create it with mode 0666 and ``umask``; raise ``RequestRefused`` if that
        fails.
        """
        self.path = path
        self.name = FILE_NAMES[option]
        try:
            with temporary_umask(umask):
                opened = open_to_write(path)
        except OSError as error:
            raise RequestRefused(f"{printable_path(path)}: cannot write the {self.name}: {error.strerror}") from None
        # Closed in ``close``. The contents are ASCII, but the ASCII codec might not be loaded yet.
        self._file = open(opened.descriptor, "w", encoding="utf-8")  # noqa: SIM115
        self._created = opened.path if opened.is_new else b""
        status = os.fstat(opened.descriptor)
        self._is_truncated = stat.S_ISREG(status.st_mode) and not opened.is_inherited
        """True if ``begin`` truncates the file: a regular file that this process opened itself."""
        if self._is_truncated:
            self._refuse_replaced(option, status)

    def _refuse_replaced(self, option: str, status: os.stat_result) -> None:
        """Raise ``RequestRefused`` if another file has taken the name since ``check_outputs`` examined it."""
        try:
            beginning = os.pread(self._file.fileno(), max(map(len, LINE_BEGINNINGS.values())), 0)
            reason = reason_not_to_overwrite(option, status, beginning)
        except OSError as error:
            reason = f"is there already, and cannot be read: {error.strerror}"
        if reason:
            self._file.close()
            raise RequestRefused(f"{printable_path(self.path)}: {reason}")

    def make_empty(self) -> None:
        """Truncate the file, once the job will not be refused any more; raise ``OSError``.

        An inherited file keeps its contents. So does a file with the attribute ``chattr +a``, which permits appending
        only.
        """
        if self._is_truncated:
            try:
                self._file.truncate(0)
            except PermissionError as error:
                if error.errno != errno.EPERM:
                    raise

    def remove_if_new(self) -> None:
        """Close the file, and remove it if it was created for this job and is empty. Raise ``OSError``.

        If another file has taken its name, that one is not removed.
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
        except FileNotFoundError:  # Another process has removed it.
            return
        finally:
            close_ignoring_errors(directory.descriptor)

    def write(self, lines: Iterable[str]) -> None:
        """Write lines and flush them; raise ``OSError``, after which only ``close`` may be called."""
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Close the file; raise ``OSError`` if contents could not be written."""
        self._file.close()
