"""Files that a job writes while it runs, with one JSON object per line: failures (``--errors``) and the outcome of each
item (``--log``).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence

from pcopy.errors import path_refused
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.named_file import open_named_file_to_write, open_parent_directory
from pcopy.signature.replacing import temporary_umask
from pcopy.tasks.base.item_outcomes import ItemOutcome, PackedItemOutcomes
from pcopy.text import printable_path

LINE_BEGINNING_BY_OPTION = {"errors": b'{"path": "', "log": b'{"action": "'}
"""First bytes of each line in such a file, by the option that names it: an existing file that begins otherwise is not
overwritten.
"""

FILE_NOUN_BY_OPTION = {"errors": "errors file", "log": "log"}
"""What messages call such a file, by the option that names it."""


def path_as_json_values(path: bytes) -> dict[str, str]:
    """Return the two JSON values by which outputs show a path: ``path``, for people, with escapes; ``path_b64``, its
    exact bytes in Base64.
    """
    return {"path": printable_path(path), "path_b64": b2a_base64(path, newline=False).decode("ascii")}


def item_outcome_json(item: ItemOutcome) -> str:
    """Return the outcome of an item as a JSON object on one line (docs/formats/log.md)."""
    values: dict[str, object] = {
        "action": item.action,
        **path_as_json_values(item.path),
        "type": item.type or None,
        "bytes": item.bytes,
        "seconds": round(item.seconds, 6),
    }
    if item.change:
        values["change"] = item.change
    return json.dumps(values)


def item_log_lines(items: Sequence[PackedItemOutcomes]) -> Iterator[str]:
    """Yield one line of the log (``--log``), without a newline, for each item of ``items``: its outcome as a JSON
    object.
    """
    return (item_outcome_json(item) for each in items for item in each.unpacked_outcomes())


def reason_not_to_overwrite(option: str, status: os.stat_result, beginning: bytes) -> str:
    """Return why an existing regular file must not be overwritten by the file of ``option``; empty if it may be.

    The file would be truncated, under all of its names. It may be one that the user did not mean: if the value of the
    option was forgotten, the next word of the command line is taken, perhaps a name that the shell inserted for ``*``.

    Args:
        option: the option that names the file, without dashes.
        status: status of the existing file.
        beginning: the first bytes of the existing file.
    """
    if status.st_nlink > 1:
        return "has other names (hard links), which would be emptied too; name another file"
    if beginning and not beginning.startswith(LINE_BEGINNING_BY_OPTION[option]):
        return f"is there already, and is not what --{option} has written; name another file, or remove it"
    return ""


class JsonLinesFile:
    """A file of JSON lines, open for writing; each ``write`` flushes it.

    ``path`` is its path, and ``name`` what messages call it.
    """

    def __init__(self, path: bytes, option: str, umask: int | None = None) -> None:
        """Open the file ``path``, or create it with mode 0666 less ``umask`` (None: the process's umask).

        ``option``: the option that names the file, without dashes. Raise ``RequestRefused`` if the file cannot be
        opened, or is an existing one that must not be overwritten.
        """
        self.path = path
        self.name = FILE_NOUN_BY_OPTION[option]
        try:
            with temporary_umask(umask):
                opened = open_named_file_to_write(path)
        except OSError as error:
            raise path_refused(path, f"cannot write the {self.name}: {error.strerror}") from None
        # ``close`` closes the file. UTF-8, although the contents are ASCII: Python may not have loaded its ASCII codec.
        self._file = open(opened.descriptor, "w", encoding="utf-8")  # noqa: SIM115
        self._created = opened.path if opened.is_new else b""
        status = os.fstat(opened.descriptor)
        self._is_truncated = stat.S_ISREG(status.st_mode) and not opened.is_inherited
        """True if ``truncate_file`` truncates the file: a regular file, and not a descriptor inherited from the shell.
        """
        if self._is_truncated:
            self._check_file_may_be_overwritten(option, status)

    def _check_file_may_be_overwritten(self, option: str, status: os.stat_result) -> None:
        """Raise ``RequestRefused`` if the opened file must not be overwritten.

        The path was checked before it was opened, but another file may have taken the name since.

        Args:
            option: the option that names the file, without dashes.
            status: status of the opened file.
        """
        try:
            beginning = os.pread(self._file.fileno(), max(map(len, LINE_BEGINNING_BY_OPTION.values())), 0)
            reason = reason_not_to_overwrite(option, status, beginning)
        except OSError as error:
            reason = f"is there already, and cannot be read: {error.strerror}"
        if reason:
            self._file.close()
            raise path_refused(self.path, reason)

    def truncate_file(self) -> None:
        """Truncate the file. To be called when it is certain that the job will run; raise ``OSError``.

        An inherited descriptor is not truncated, and a file with the attribute ``chattr +a``, to which data can only be
        appended, keeps its contents.
        """
        if self._is_truncated:
            try:
                self._file.truncate(0)
            except PermissionError as error:
                if error.errno != errno.EPERM:
                    raise

    def close_and_remove_if_unused(self) -> None:
        """Close the file, and remove it if this object created it and it is empty.

        If another file has taken its name, that file is not removed. Raise ``OSError``.
        """
        status = os.fstat(self._file.fileno())
        self._file.close()
        if not self._created or status.st_size:
            return
        directory = open_parent_directory(self._created)
        try:
            present = os.stat(directory.name, dir_fd=directory.descriptor, follow_symlinks=False)
            if (present.st_dev, present.st_ino) == (status.st_dev, status.st_ino):
                os.unlink(directory.name, dir_fd=directory.descriptor)
        except FileNotFoundError:  # Another process has removed it.
            return
        finally:
            close_ignoring_errors(directory.descriptor)

    def write(self, lines: Iterable[str]) -> None:
        """Write ``lines``, which have no newlines, and flush the file.

        Raise ``OSError`` if that fails; then only ``close`` may be called.
        """
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        """Close the file; raise ``OSError`` if contents could not be written."""
        self._file.close()
