"""Reader of lists of paths: saved listings (JSON lines, as ``pwalk`` writes them), and plain lists (one path per line).

Rule: nothing in a list is guessed. A line of a saved listing that describes no item is refused, and so is a saved
listing that ends in the middle of a line. The message contains the name of the list and the line number.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from binascii import Error as NoBase64
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from pcopy.errors import RESOURCE_EXCEPTIONS, RequestRefused, resource_error_text
from pcopy.fast_named_tuple import NamedTuple
from pcopy.text import printable_path

STANDARD_INPUT = b"-"
LISTING_MAGIC = b'{"format": "pcopy listing"'
"""The first bytes of a saved listing."""
LISTING_VERSION = 1
"""Version of the format of saved listings. A listing with another version is refused."""
MODE_TYPES_BY_WORD = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "character": stat.S_IFCHR,
    "block": stat.S_IFBLK,
    "socket": stat.S_IFSOCK,
}
"""Words for the type of an item in a saved listing (key ``type``), and the corresponding file type of ``st_mode``."""

_MISTAKEN_FORMATS = {
    b"path,path_b64,type": "is CSV, not a list of paths",
    b'{"path": ': "is JSON without the first line of a saved listing",
    b"PAR1": "is Parquet, not a list of paths",
}
"""First bytes of other files that users mistake for lists, and what the message says about such a file."""

_READ_BYTES = 1 << 20
"""Number of bytes of a list that are read in one call."""
MAX_LINE_BYTES = 1 << 20
"""Maximum length in bytes of a line in a list of paths, without its terminator; a longer one cannot be a path."""
_INTEGER_BITS = {"uid": 32, "gid": 32, "size": 64, "allocated": 64, "links": 32, "inode": 64, "device": 64}
"""Keys of an item in a saved listing whose values are unsigned integers, and their maximum number of bits. A larger
value is refused.
"""
TIME_KEYS = ("atime_ns", "mtime_ns", "ctime_ns")
_END_OF_TIME = 2**63 * 10**9
"""First time, in nanoseconds since 1970, that is refused in a saved listing: its seconds do not fit into 64 signed
bits.
"""
_NUMBER_KEYS = (*_INTEGER_BITS, *TIME_KEYS)
_ABSENT = type(None)
_INTEGERS = {int, _ABSENT}


class RecordedStatus(NamedTuple):
    """The status of an item as a saved listing describes it. Values that the listing lacks are None. Times are in
    nanoseconds since 1970, sizes in bytes.
    """

    type: int
    """The file type, as in ``st_mode``. ``mode`` holds the permission bits."""
    mode: int | None
    uid: int | None
    gid: int | None
    size: int | None
    allocated: int | None
    links: int | None
    inode: int | None
    device: int | None
    atime_ns: int | None
    mtime_ns: int | None
    ctime_ns: int | None


_OPEN_STREAMS: dict[bytes, int] = {}
"""Descriptors of lists that are open already, by the name that the user gave: the contents of a pipe can be read only
once.
"""


def check_list_not_cut_off(file: bytes, option: str, *, nul: bool, advice_for: Callable[[bytes], str]) -> None:
    """Raise ``RequestRefused`` if the list of paths ``file`` cannot be opened, or is a saved listing that ends in the
    middle of a line.

    A list that can be read only once, such as a pipe, is not checked, but stays open for the next ``PathListReader`` of
    that name.

    Args:
        file: path of the list; ``-`` for standard input.
        option: the option with which the list was given, for error messages.
        nul: True if the paths in a plain list end with a NUL byte instead of a newline.
        advice_for: gets the path of a list that does not exist, and returns advice for the message, or "".
    """
    from pcopy.fsio.named_file import examine_path, open_named_file_to_read

    try:
        if examine_path(file).is_stream:
            _OPEN_STREAMS[file] = open_named_file_to_read(file).descriptor
            return
    except OSError:  # The error is reported when the list is opened below.
        pass
    with PathListReader(file, option, nul=nul, advice_for=advice_for) as listing:
        listing.check_listing_is_complete()


_CUT_OFF_TEXT = "has no end: the listing was cut off; write it anew"


class ListedItem(NamedTuple):
    """An item in a list of paths: the number of its line (from 1), its path, and its status as the list describes it
    (``recorded``; None in a list of paths only).
    """

    number: int
    path: bytes
    recorded: RecordedStatus | None


def absolute_path(directory: bytes, path: bytes) -> bytes:
    """Return ``path``, which is absolute or relative to ``directory``, as an absolute path, without asking the file
    system.

    ``..`` components at the beginning of a relative path are removed with the last components of ``directory``, which
    must contain no symbolic links. A ``..`` after other components is kept, since these may be symbolic links.
    """
    if path.startswith(b"/"):
        return path
    parts = directory.rstrip(b"/").split(b"/")
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    up = next((number for number, name in enumerate(names) if name != b".."), len(names))
    return b"/".join([*parts[: max(1, len(parts) - up)], *names[up:]]) or b"/"


def strip_carriage_return(line: bytes, directory: bytes) -> bytes:
    """Return ``line``, a path in a list with one path per line, without the CR at its end, which editors on Windows
    write. The CR is kept if an item with this name exists.

    Args:
        directory: the directory to which the paths in the list are relative.
    """
    if not line.endswith(b"\r") or os.path.lexists(os.path.join(directory, line)):
        return line
    return line[:-1]


class PathListReader:
    """Context manager and iterator: reads a list of paths (a saved listing or a plain list) once.

    ``is_saved`` is True for a saved listing (JSON lines of ``pwalk``), False for a plain list. ``directory`` is the
    directory to which the paths in a saved listing are relative, and None for a plain list. All methods raise
    ``RequestRefused`` if the list cannot be read, or is no list.
    """

    def __init__(
        self, file: bytes, option: str, *, nul: bool = False, advice_for: Callable[[bytes], str] = lambda file: ""
    ) -> None:
        """Open the list and read its beginning.

        Args:
            file: path of the list; ``-`` for standard input.
            option: the option with which the list was given, for error messages.
            nul: True if the paths in a plain list end with a NUL byte instead of a newline.
            advice_for: gets the path of a list that does not exist, and returns advice for the message, or "".
        """
        self._advice_for = advice_for
        self.name = f"{option} {'standard input' if file == STANDARD_INPUT else printable_path(file)}"
        self._nul = nul
        self._source = self._open_list_file(file)
        self.directory: bytes | None = None
        try:
            self._beginning = self._read(self._source, len(LISTING_MAGIC))
            self.is_saved = self._beginning == LISTING_MAGIC
            self._lines = self._numbered_lines(b"\n" if self.is_saved or not nul else b"\0")
            if self.is_saved:
                self.directory = self._read_header()
            for beginning, kind in _MISTAKEN_FORMATS.items():
                if self._beginning.startswith(beginning):
                    raise RequestRefused(f"{self.name}: {kind}; write a list with pwalk --output LIST.jsonl")
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> PathListReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def __iter__(self) -> Iterator[ListedItem]:
        """Yield the items in the order of the list. Empty lines of a plain list are skipped."""
        if self.is_saved:
            for number, line in self._lines:
                yield self._parse_listing_line(number, line)
            return
        for number, path in self._lines:
            if not self._nul and b"\0" in path:
                begins = printable_path(path[:80].rstrip(b"\0") + b"\0")
                raise self.error_at_line(number, f"{begins} holds a NUL; write -0 if paths end with one")
            if path:
                yield ListedItem(number, path, None)

    def check_listing_is_complete(self) -> None:
        """Raise ``RequestRefused`` if this is a saved listing that ends in the middle of a line, so that it was cut
        off. Only a regular file is checked: the end of a pipe cannot be read in advance.
        """
        descriptor = self._source.fileno()
        try:
            status = os.fstat(descriptor)
            if not self.is_saved or not stat.S_ISREG(status.st_mode) or not status.st_size:
                return
            if os.pread(descriptor, 1, status.st_size - 1) == b"\n":
                return
            starts = range(0, status.st_size, _READ_BYTES)
            ends = sum(os.pread(descriptor, _READ_BYTES, start).count(b"\n") for start in starts)
        except RESOURCE_EXCEPTIONS as error:
            raise RequestRefused(f"{self.name}: {resource_error_text(error)}") from None
        raise self.error_at_line(ends + 1, _CUT_OFF_TEXT)

    def error_at_line(self, number: int, why: str) -> RequestRefused:
        """Return the error that refuses the list because of the line with this number; ``why`` is what is wrong with
        it.
        """
        return RequestRefused(f"{self.name}: line {number}: {why}")

    def _open_list_file(self, file: bytes) -> BinaryIO:
        """Open the list ``file`` and return it unbuffered; raise ``RequestRefused`` with advice if that fails."""
        if file in _OPEN_STREAMS:
            return open(_OPEN_STREAMS.pop(file), "rb", buffering=0)
        from pcopy.fsio.named_file import open_named_file_to_read

        try:
            path = b"/dev/stdin" if file == STANDARD_INPUT else file
            return open(open_named_file_to_read(path).descriptor, "rb", buffering=0)
        except FileNotFoundError:
            raise RequestRefused(f"{self.name}: does not exist; {self._advice_for(file) or 'check the name'}") from None
        except OSError as error:
            if error.errno == errno.EISDIR:
                text = "is a directory; name a file that lists paths, or - to read them"
                raise RequestRefused(f"{self.name}: {text}") from None
            raise RequestRefused(f"{self.name}: cannot be opened: {error.strerror}") from None

    def _read(self, source: BinaryIO, size: int) -> bytes:
        """Return the next ``size`` bytes of the list, or fewer at its end; raise ``RequestRefused`` if they cannot be
        read.
        """
        parts: list[bytes] = []
        try:
            while size > 0 and (part := source.read(size)):
                parts.append(part)
                size -= len(part)
        except RESOURCE_EXCEPTIONS as error:
            raise RequestRefused(f"{self.name}: {resource_error_text(error)}") from None
        return b"".join(parts)

    def _numbered_lines(self, end: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of the list, numbered from 1, without ``end``, the byte that ends each. Raise
        ``RequestRefused`` if a line is too long, or if a saved listing ends in the middle of a line.
        """
        number, rest, block = 0, b"", self._beginning
        while block:
            *whole, rest = (rest + block).split(end)
            for line in whole:
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise self._line_too_long_error(number)
                yield number, line
            if len(rest) > MAX_LINE_BYTES:
                raise self._line_too_long_error(number + 1)
            block = self._read(self._source, _READ_BYTES)
        if rest and self.is_saved:
            raise self.error_at_line(number + 1, _CUT_OFF_TEXT)
        if rest:
            yield number + 1, rest

    def _line_too_long_error(self, number: int) -> RequestRefused:
        advice = "" if self._nul or self.is_saved else "; if each path ends with a NUL, write -0"
        return self.error_at_line(number, f"is longer than any path{advice}")

    def _read_header(self) -> bytes:
        """Check the first line of a saved listing. Return the directory to which the paths in it are relative."""
        for number, line in self._lines:
            header = self._parse_json_object(number, line)
            if header.get("version") != LISTING_VERSION or isinstance(header["version"], bool):
                why = f"is of version {header.get('version')!r:.20}, and this program reads {LISTING_VERSION}"
                raise self.error_at_line(number, why)
            directory = self._path_from_base64(number, header, "directory_b64")
            if directory is None or not directory.startswith(b"/"):
                raise self.error_at_line(
                    number, "directory_b64, where relative paths start, is missing or not absolute"
                )
            return directory
        raise AssertionError  # Unreachable: the file begins with ``LISTING_MAGIC``, so it has a line.

    def _parse_json_object(self, number: int, line: bytes) -> dict[str, Any]:
        found = None
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
        if not isinstance(found, dict):
            raise self.error_at_line(number, f"is not a JSON object: {printable_path(line[:80])}")
        return found

    def _path_from_base64(self, number: int, item: dict[str, Any], key: str) -> bytes | None:
        """Return the path that ``item``, the JSON object in line ``number``, has in base64 under ``key``; None if the
        object has no such key. Raise ``RequestRefused`` if the value is not valid.
        """
        text = item.get(key)
        if text is None:
            return None
        try:
            path = a2b_base64(text, strict_mode=True)
        except (TypeError, ValueError, NoBase64):
            raise self.error_at_line(number, f"{key} is not base64") from None
        if not path or b"\0" in path:
            raise self.error_at_line(number, f"{key} is not a valid path: it is empty or has a NUL")
        return path

    def _parse_listing_line(self, number: int, line: bytes) -> ListedItem:
        """Return the item that a line of a saved listing describes; raise ``RequestRefused`` if the line is not
        valid.
        """
        item = self._parse_json_object(number, line)
        path = self._path_from_base64(number, item, "path_b64")
        if path is None:
            path = self._parse_path(number, item)
        kind = MODE_TYPES_BY_WORD.get(item["type"]) if isinstance(item.get("type"), str) else None
        if kind is None:
            raise self.error_at_line(number, f"type is none of {', '.join(MODE_TYPES_BY_WORD)}")
        numbers = [*map(item.get, _NUMBER_KEYS)]
        if not {*map(type, numbers)} <= _INTEGERS:
            raise self.error_at_line(number, f"{self._first_non_integer(item, _NUMBER_KEYS, 0)} is not an integer")
        for value, (key, bits) in zip(numbers, _INTEGER_BITS.items(), strict=False):
            if value is not None and (value < 0 or value >> bits):
                raise self.error_at_line(number, f"{key} is out of range: it is negative or too large")
        for key, time in zip(TIME_KEYS, numbers[len(_INTEGER_BITS) :], strict=True):
            if time is not None and not -_END_OF_TIME <= time < _END_OF_TIME:
                raise self.error_at_line(number, f"{key} is out of range: its seconds exceed 64 bits")
        return ListedItem(number, path, RecordedStatus(kind, self._parse_mode(number, item), *numbers))

    def _first_non_integer(self, item: dict[str, Any], keys: tuple[str, ...], default: int) -> str:
        """Return the first of ``keys`` whose value in the JSON object ``item`` is no integer. A missing key has the
        value ``default``.
        """
        return next(key for key in keys if type(item.get(key, default)) not in _INTEGERS)

    def _parse_path(self, number: int, item: dict[str, Any]) -> bytes:
        """Return the value of the key ``path`` of the JSON object ``item`` in line ``number``; raise ``RequestRefused``
        if it is missing or not a valid path.
        """
        text = item.get("path")
        if not isinstance(text, str):
            raise self.error_at_line(number, "has no path")
        try:
            path = text.encode()
        except UnicodeEncodeError:
            path = b""
        if not path or b"\0" in path:
            raise self.error_at_line(number, "path is not a valid path: it is empty, has a NUL or is not valid Unicode")
        return path

    def _parse_mode(self, number: int, item: dict[str, Any]) -> int | None:
        text = item.get("mode")
        if text is None:
            return None
        if isinstance(text, str) and len(text) == 4 and text.isascii() and not text.strip("01234567"):
            return int(text, 8)
        raise self.error_at_line(number, "mode is not four octal digits")
