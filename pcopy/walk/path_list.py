"""The only reader of lists of paths (``--from FILE``, ``-0``): plain lists (one path per line, or each terminated by a
NUL), and saved listings (JSON lines, as ``pwalk`` writes them).

Rules for all programs:

- Nothing in a list is guessed. A line of a saved listing that describes no item is refused, and so is a saved listing
  that ends in the middle of a line. The message contains the name of the list, the line number, and what to do.
- With ``-0``, the first path may be any name, also one with which files of other formats begin.
- Empty lines are skipped.
- A relative path starts in the *base directory*, the directory that the user gave for the list, or else in the working
  directory. A path in a saved listing starts in the directory of its walk.
- With a base directory, all paths must be in it, by the base directory's own path or the one without symbolic links.
- ``..`` components at the beginning of a relative path lead upwards. A ``..`` after a name is refused, since the name
  may be a symbolic link.

The reader never looks through a symbolic link below the base directory, because it examines no listed item.
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
from functools import cached_property
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
_MAX_PATH_BYTES = 4096
"""Maximum length of a path in bytes, with the NUL (PATH_MAX)."""
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


def check_list_not_cut_off(file: bytes, *, nul: bool, advice_for: Callable[[bytes], str]) -> None:
    """Raise ``RequestRefused`` if the list of paths ``file`` cannot be opened, or is a saved listing that ends in the
    middle of a line.

    A list that can be read only once, such as a pipe, is not checked, but stays open for the next ``PathListReader`` of
    that name.

    Args:
        file: path of the list; ``-`` for standard input.
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
    with PathListReader(file, nul=nul, advice_for=advice_for) as listing:
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
    """Return ``path``, which is absolute or relative to ``directory``, as an absolute path without ``.`` and needless
    slashes, without asking the file system.

    ``..`` components at the beginning of a relative path are removed with the last components of ``directory``, which
    must contain no symbolic links. A ``..`` after other components is kept, since these may be symbolic links.
    """
    return b"/" + b"/".join(_names_from_root(_names_in_path(directory), path))


def _names_from_root(start: list[bytes], path: bytes) -> list[bytes]:
    """Return the components of ``path`` from the root directory on. ``start`` are those of the directory to which a
    relative path is relative; a ``..`` at the beginning of the path removes the last of them.
    """
    names = _names_in_path(path)
    if path.startswith(b"/"):
        return names
    up = next((number for number, name in enumerate(names) if name != b".."), len(names))
    return [*start[: max(0, len(start) - up)], *names[up:]]


def _names_in_path(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]


class BaseDirectory(NamedTuple):
    """The directory in which all paths of a list must be: its path as the user wrote it, and without symbolic links."""

    shown: bytes
    real: bytes


class PathListReader:
    """Context manager and iterator: reads a list of paths (a saved listing or a plain list) once.

    ``is_saved`` is True for a saved listing (JSON lines of ``pwalk``), False for a plain list. ``directory`` is the
    directory to which the paths in a saved listing are relative, and None for a plain list. ``top`` is the absolute
    path of the directory below which ``names_below_top`` finds the items: the base directory, or ``/`` without one. All
    methods raise ``RequestRefused`` if the list cannot be read, or is no list.
    """

    def __init__(
        self,
        file: bytes,
        *,
        nul: bool = False,
        base: BaseDirectory | None = None,
        modifies: bool = False,
        advice_for: Callable[[bytes], str] = lambda file: "",
    ) -> None:
        """Open the list and read its beginning.

        Args:
            file: path of the list; ``-`` for standard input.
            nul: True if the paths in a plain list end with a NUL byte instead of a newline.
            base: the base directory; None: paths of a plain list are relative to the working directory.
            modifies: True if the program changes or removes the listed items, so that less is accepted.
            advice_for: gets the path of a list that does not exist, and returns advice for the message, or "".
        """
        self._advice_for = advice_for
        self.name = f"--from {'standard input' if file == STANDARD_INPUT else printable_path(file)}"
        self._nul = nul
        self._base = base
        self._base_name = "/" if base is None else printable_path(base.shown.rstrip(b"/") or b"/")
        self._modifies = modifies
        self._source = self._open_list_file(file)
        self.directory: bytes | None = None
        try:
            self._beginning = self._read(self._source, len(LISTING_MAGIC))
            self.is_saved = self._beginning == LISTING_MAGIC and not (nul and self._is_first_path_a_name())
            self._lines = self._numbered_lines(b"\n" if self.is_saved or not nul else b"\0")
            if self.is_saved:
                self.directory = self._read_header()
            for beginning, kind in _MISTAKEN_FORMATS.items():
                if not nul and self._beginning.startswith(beginning):
                    raise RequestRefused(f"{self.name}: {kind}; write a list with pwalk --output LIST.jsonl")
        except BaseException:
            self._source.close()
            raise
        self.top = b"/" if base is None else base.real

    def _is_first_path_a_name(self) -> bool:
        """Return True if a list that begins as a saved listing does is a plain one: a NUL ends a path of the length
        that a path may have. A saved listing has no NUL.
        """
        self._beginning += self._read(self._source, _MAX_PATH_BYTES)
        return b"\0" in self._beginning

    @cached_property
    def _start(self) -> bytes:
        """The directory in which relative paths start. The working directory is used only if it is needed, since it may
        have been removed.
        """
        if self.directory or self._base:
            return self.directory or self.top
        try:
            return os.getcwdb()
        except FileNotFoundError:
            raise RequestRefused(
                f"{self.name}: the current directory does not exist any longer; change to another one, or list "
                "absolute paths"
            ) from None

    @cached_property
    def _names_of_tops(self) -> list[list[bytes]]:
        """The components of ``top``, and of the base directory as the user wrote it."""
        shown = self.top if self._base is None else self._base.shown
        return [
            _names_in_path(self.top),
            _names_in_path(shown if shown.startswith(b"/") else absolute_path(os.getcwdb(), shown)),
        ]

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

    def existing_items(self) -> Iterator[ListedItem]:
        """Yield the items of a list that names items of the file system, in its order.

        A carriage return at the end of a line, which editors on Windows write, is removed, unless an item with this
        name exists. If the program modifies the items, such a line is refused instead: it may mean an item with a
        carriage return in its name that was removed since the list was written.
        """
        keeps_carriage_returns, is_first = self._nul or self.is_saved, not self.is_saved
        for line in self:
            is_exact = keeps_carriage_returns or not line.path.endswith(b"\r")
            item = line if is_exact else self._without_carriage_return(line)
            if not item.path:
                continue
            if is_first:
                self._refuse_wrong_base_directory(item)
                is_first = False
            yield item

    def names_below_top(self, item: ListedItem) -> list[bytes]:
        """Return the components of the path of ``item`` below ``top``.

        Raise ``RequestRefused`` if the path may not be listed. If the program modifies items, ``top`` itself may not.
        """
        names = _names_in_path(item.path)
        if not item.path.startswith(b"/"):
            if names and self._start == self.top and b".." not in names:
                return names  # The usual case needs no more time than this.
            names = _names_from_root(_names_in_path(self._start), item.path)
        if b".." in names:
            raise self.error_about_path(item, "leads upwards; write the path without .. after a name")
        top = next((top for top in self._names_of_tops if names[: len(top)] == top), None)
        if top is None:
            raise self.error_about_path(item, f"does not lie in {self._base_name}; list paths below it")
        names = names[len(top) :]
        if self._modifies and not names:
            where = f"{self._base_name} itself" if self._base else "the root directory"
            raise self.error_about_path(item, f"is {where}; list what is in it")
        return names

    def error_about_path(self, item: ListedItem, why: str) -> RequestRefused:
        """Return the error that refuses the list because of the path of ``item``; ``why`` is what is wrong with it."""
        return self.error_at_line(item.number, f"{printable_path(item.path)} {why}")

    def empty_list_error(self) -> RequestRefused:
        """Return the error that refuses the list because it is empty."""
        return RequestRefused(f"{self.name}: lists nothing, so there is nothing to do")

    def _without_carriage_return(self, item: ListedItem) -> ListedItem:
        """Return ``item``, whose line ends with a carriage return, without it, unless an item with this name exists.

        Raise ``RequestRefused`` if the program modifies items, and an item exists only under the shorter name.
        """
        shorter = item.path[:-1]
        if os.path.lexists(os.path.join(self._start, item.path)):
            return item
        if shorter and self._modifies:
            if not os.path.lexists(os.path.join(self._start, shorter)):
                return item
            advice = "if lines end as those of Windows do, remove the carriage returns: tr -d '\\r'; else list with -0"
            raise self.error_about_path(item, f"does not exist, {printable_path(shorter)} exists: {advice}")
        return item._replace(path=shorter)

    def _refuse_wrong_base_directory(self, item: ListedItem) -> None:
        """Raise ``RequestRefused`` if the user has listed paths relative to the working directory, although they must
        be relative to the base directory.

        That is so if the path of ``item`` does not exist relative to the base directory, but exists relative to the
        working directory and leads into the base directory.
        """
        path = item.path
        if self._base is None or path.startswith(b"/") or not os.path.lexists(path):
            return
        if os.path.lexists(os.path.join(self._base.real, path)):
            return
        real = os.path.join(os.path.realpath(os.path.dirname(path) or b"."), os.path.basename(path))
        if not (real + b"/").startswith(self._base.real.rstrip(b"/") + b"/"):
            return
        below = os.path.relpath(real, self._base.real)
        raise self.error_about_path(
            item,
            f"is not in {self._base_name}, but starts in the working directory: write "
            f"{printable_path(below)}, or a saved listing (pwalk --output LIST.jsonl), which records where its paths "
            "start",
        )

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
            raise RequestRefused(
                f"{self.name}: does not exist; {self._advice_for(file) or 'check the name'}", path=file
            ) from None
        except OSError as error:
            if error.errno == errno.EISDIR:
                text = "is a directory; name a file that lists paths, or - to read them"
                raise RequestRefused(f"{self.name}: {text}", path=file) from None
            raise RequestRefused(f"{self.name}: cannot be opened: {error.strerror}", path=file) from None

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
        if end == b"\0" and rest.endswith(b"\n"):
            raise self.error_at_line(
                number + 1, "ends with a newline, not with a NUL; leave out -0 if each line is a path"
            )
        if rest:
            yield number + 1, rest

    def _line_too_long_error(self, number: int) -> RequestRefused:
        advice = "leave out -0 if each line is a path" if self._nul else "write -0 if paths end with a NUL"
        return self.error_at_line(number, f"is longer than any path{'' if self.is_saved else '; ' + advice}")

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
