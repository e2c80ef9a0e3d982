"""Reads lists of paths: saved listings (docs/formats/listing.md), and plain ones.

Rule: nothing of a list is guessed. A line that is no item, and an end in the middle of one, are refused with the name
of the list and the number of the line.
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

from pcopy.errors import HINDRANCES, Refused, hindrance
from pcopy.named import NamedTuple
from pcopy.text import shown

STANDARD_INPUT = b"-"
BEGINNING = b'{"format": "pcopy listing"'
"""With which a saved listing begins."""
VERSION = 1
"""Of the format: another one is refused."""
TYPES = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "character": stat.S_IFCHR,
    "block": stat.S_IFBLK,
    "socket": stat.S_IFSOCK,
}
"""What ``type`` may be, and what it is in ``st_mode``."""

_NO_LISTS = {
    b"path,path_b64,type": "is CSV, which no list is",
    b'{"path": ': "is JSON without the first line of a saved listing",
    b"PAR1": "is Parquet, which no list is",
}
"""How files begin that are like lists, and what they are."""

_BLOCK = 1 << 20
"""Bytes that are read at once."""
LONGEST_LINE = 1 << 20
"""Bytes of a line at most, without its end: a longer one is none of a list of paths."""
_SIZES = {"uid": 32, "gid": 32, "size": 64, "allocated": 64, "links": 32, "inode": 64, "device": 64}
"""And the bits that hold them."""
TIMES = ("atime_ns", "mtime_ns", "ctime_ns")
_END_OF_TIME = 2**63 * 10**9
"""The first time that 64 bits of seconds do not hold, in nanoseconds."""
_NUMBERS = (*_SIZES, *TIMES)
_ABSENT = type(None)
_INTEGERS = {int, _ABSENT}


class Recorded(NamedTuple):
    """What a saved listing tells of an item; None: nothing. Times are nanoseconds since 1970."""

    type: int
    """As in ``st_mode``, with ``mode`` beside it, which are the permission bits."""
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


_READ_ONCE: dict[bytes, int] = {}
"""Descriptors of lists that are open already, by what the user calls them: what a pipe holds can be read once."""


def check_whole(file: bytes, option: str, *, nul: bool, meant: Callable[[bytes], str]) -> None:
    """Raise ``Refused`` if a list cannot be opened, or is a saved listing that was cut off.

    A list that can be read only once, such as a pipe, stays open for the next ``SavedListing`` of that name.
    """
    from pcopy.fsio.named_file import look, open_to_read

    try:
        if look(file).is_stream:
            _READ_ONCE[file] = open_to_read(file).descriptor
            return
    except OSError:  # the same is said below
        pass
    with SavedListing(file, option, nul=nul, meant=meant) as listing:
        listing.check_end()


_CUT_OFF = "has no end: the listing was cut off; write it anew"


class Line(NamedTuple):
    """An item that is listed in line ``number``, counted from 1; ``known`` is None in a plain list."""

    number: int
    path: bytes
    known: Recorded | None


def from_root(directory: bytes, path: bytes) -> bytes:
    """``path`` from the root, if it starts in ``directory``; what leads upwards at its beginning is resolved.

    (``directory`` is without symbolic links, as a working directory is. Further names may be such links: ``..`` stays
    behind them.)
    """
    if path.startswith(b"/"):
        return path
    parts = directory.rstrip(b"/").split(b"/")
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    up = next((number for number, name in enumerate(names) if name != b".."), len(names))
    return b"/".join([*parts[: max(1, len(parts) - up)], *names[up:]]) or b"/"


def without_return(line: bytes, directory: bytes) -> bytes:
    """A line of a plain list, whose paths start in ``directory``: what editors of Windows put at its end belongs to a
    name only if there is one that ends so."""
    if not line.endswith(b"\r") or os.path.lexists(os.path.join(directory, line)):
        return line
    return line[:-1]


class SavedListing:
    """A list of paths, open; it can be gone through once, and closes at the end of a ``with``.

    ``directory`` is where relative paths of a saved listing start; None if the list is plain, not ``is_saved``.
    Whatever it does raises ``Refused`` where the list cannot be read, or is none.
    """

    def __init__(
        self, file: bytes, option: str, *, nul: bool = False, meant: Callable[[bytes], str] = lambda file: ""
    ) -> None:
        """``file`` is ``-`` for standard input. Errors name the ``option`` that it was given with, and what may be
        ``meant`` by a file that is not there. Paths of a plain list end with a newline, or with a NUL if ``nul``."""
        self._meant = meant
        self.name = f"{option} {'standard input' if file == STANDARD_INPUT else shown(file)}"
        self._nul = nul
        self._source = self._opened(file)
        self.directory: bytes | None = None
        try:
            self._begun = self._read(self._source, len(BEGINNING))
            self.is_saved = self._begun == BEGINNING
            self._lines = self._split(b"\n" if self.is_saved or not nul else b"\0")
            if self.is_saved:
                self.directory = self._header()
            for beginning, what in _NO_LISTS.items():
                if self._begun.startswith(beginning):
                    raise Refused(f"{self.name}: {what}; write one that pwalk reads again: --output LIST.jsonl")
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> SavedListing:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def __iter__(self) -> Iterator[Line]:
        """What is listed; empty lines of a plain list are none."""
        if self.is_saved:
            for number, line in self._lines:
                yield self._item(number, line)
            return
        for number, path in self._lines:
            if not self._nul and b"\0" in path:
                begins = shown(path[:80].rstrip(b"\0") + b"\0")
                raise self.refused(number, f"{begins} holds a NUL; write -0 if paths end with one")
            if path:
                yield Line(number, path, None)

    def check_end(self) -> None:
        """Raises ``Refused`` if a saved listing was cut off; where that takes one look, and not from a pipe."""
        descriptor = self._source.fileno()
        try:
            status = os.fstat(descriptor)
            if not self.is_saved or not stat.S_ISREG(status.st_mode) or not status.st_size:
                return
            if os.pread(descriptor, 1, status.st_size - 1) == b"\n":
                return
            starts = range(0, status.st_size, _BLOCK)
            ends = sum(os.pread(descriptor, _BLOCK, start).count(b"\n") for start in starts)
        except HINDRANCES as error:
            raise Refused(f"{self.name}: {hindrance(error)}") from None
        raise self.refused(ends + 1, _CUT_OFF)

    def refused(self, number: int, why: str) -> Refused:
        """The error that names the list and the line."""
        return Refused(f"{self.name}: line {number}: {why}")

    def _opened(self, file: bytes) -> BinaryIO:
        if file in _READ_ONCE:
            return open(_READ_ONCE.pop(file), "rb", buffering=0)
        from pcopy.fsio.named_file import open_to_read

        try:
            path = b"/dev/stdin" if file == STANDARD_INPUT else file
            return open(open_to_read(path).descriptor, "rb", buffering=0)
        except FileNotFoundError:
            raise Refused(f"{self.name}: does not exist; {self._meant(file) or 'check the name'}") from None
        except OSError as error:
            if error.errno == errno.EISDIR:
                text = "is a directory; name a file that lists paths, or - to read them"
                raise Refused(f"{self.name}: {text}") from None
            raise Refused(f"{self.name}: cannot be opened: {error.strerror}") from None

    def _read(self, source: BinaryIO, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        parts: list[bytes] = []
        try:
            while size > 0 and (part := source.read(size)):
                parts.append(part)
                size -= len(part)
        except HINDRANCES as error:
            raise Refused(f"{self.name}: {hindrance(error)}") from None
        return b"".join(parts)

    def _split(self, end: bytes) -> Iterator[tuple[int, bytes]]:
        """Lines, numbered from 1."""
        number, rest, block = 0, b"", self._begun
        while block:
            *whole, rest = (rest + block).split(end)
            for line in whole:
                number += 1
                if len(line) > LONGEST_LINE:
                    raise self._too_long(number)
                yield number, line
            if len(rest) > LONGEST_LINE:
                raise self._too_long(number + 1)
            block = self._read(self._source, _BLOCK)
        if rest and self.is_saved:
            raise self.refused(number + 1, _CUT_OFF)
        if rest:
            yield number + 1, rest

    def _too_long(self, number: int) -> Refused:
        advice = "" if self._nul or self.is_saved else "; -0 says that paths end with a NUL"
        return self.refused(number, f"is longer than any path{advice}")

    def _header(self) -> bytes:
        for number, line in self._lines:
            header = self._object(number, line)
            if header.get("version") != VERSION or isinstance(header["version"], bool):
                why = f"is of version {header.get('version')!r:.20}, and this program reads {VERSION}"
                raise self.refused(number, why)
            directory = self._exact(number, header, "directory_b64")
            if directory is None or not directory.startswith(b"/"):
                raise self.refused(number, "has no directory_b64 from the root, where relative paths start")
            return directory
        raise AssertionError  # it has begun

    def _object(self, number: int, line: bytes) -> dict[str, Any]:
        found = None
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
        if not isinstance(found, dict):
            raise self.refused(number, f"is no JSON object: {shown(line[:80])}")
        return found

    def _exact(self, number: int, item: dict[str, Any], key: str) -> bytes | None:
        text = item.get(key)
        if text is None:
            return None
        try:
            path = a2b_base64(text, strict_mode=True)
        except (TypeError, ValueError, NoBase64):
            raise self.refused(number, f"{key} is no base64") from None
        if not path or b"\0" in path:
            raise self.refused(number, f"{key} is no path")
        return path

    def _item(self, number: int, line: bytes) -> Line:
        item = self._object(number, line)
        path = self._exact(number, item, "path_b64")
        if path is None:
            path = self._path(number, item)
        kind = TYPES.get(item["type"]) if isinstance(item.get("type"), str) else None
        if kind is None:
            raise self.refused(number, f"type is none of {', '.join(TYPES)}")
        numbers = [*map(item.get, _NUMBERS)]
        if not {*map(type, numbers)} <= _INTEGERS:
            raise self.refused(number, f"{self._wrong(item, _NUMBERS, 0)} is no integer")
        for value, (key, bits) in zip(numbers, _SIZES.items(), strict=False):
            if value is not None and (value < 0 or value >> bits):
                raise self.refused(number, f"{key} is out of range")
        for key, time in zip(TIMES, numbers[len(_SIZES) :], strict=True):
            if time is not None and not -_END_OF_TIME <= time < _END_OF_TIME:
                raise self.refused(number, f"{key} is out of range")
        return Line(number, path, Recorded(kind, self._mode(number, item), *numbers))

    def _wrong(self, item: dict[str, Any], keys: tuple[str, ...], default: int) -> str:
        return next(key for key in keys if type(item.get(key, default)) not in _INTEGERS)

    def _path(self, number: int, item: dict[str, Any]) -> bytes:
        text = item.get("path")
        if not isinstance(text, str):
            raise self.refused(number, "has no path")
        try:
            path = text.encode()
        except UnicodeEncodeError:
            path = b""
        if not path or b"\0" in path:
            raise self.refused(number, "path is no path")
        return path

    def _mode(self, number: int, item: dict[str, Any]) -> int | None:
        text = item.get("mode")
        if text is None:
            return None
        if isinstance(text, str) and len(text) == 4 and text.isascii() and not text.strip("01234567"):
            return int(text, 8)
        raise self.refused(number, "mode is not four octal digits")
