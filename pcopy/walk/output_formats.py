"""Output formats of a walk: lines, JSON lines (docs/formats/listing.md) and CSV, written for whole batches of items."""

from __future__ import annotations

import json
import re
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from pcopy.fsio.backend.columns import (
    ATIME_COLUMN,
    BLOCKS_COLUMN,
    CTIME_COLUMN,
    DEVICE_COLUMN,
    GROUP_COLUMN,
    INODE_COLUMN,
    LINKS_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    SIZE_COLUMN,
    TIME_COLUMNS,
)
from pcopy.text import printable_path
from pcopy.walk.matching import DirectoryItems

FIELD_COLUMNS = {
    "mode": (MODE_COLUMN, "mode"),
    "uid": (OWNER_COLUMN, "uid"),
    "gid": (GROUP_COLUMN, "gid"),
    "size": (SIZE_COLUMN, "size"),
    "allocated": (BLOCKS_COLUMN, "blocks"),
    "links": (LINKS_COLUMN, "links"),
    "inode": (INODE_COLUMN, "inode"),
    "device": (DEVICE_COLUMN, "device"),
    "atime_ns": (ATIME_COLUMN, "atime"),
    "mtime_ns": (MTIME_COLUMN, "mtime"),
    "ctime_ns": (CTIME_COLUMN, "ctime"),
}
"""The fields that an output format can have for each item besides path and type, in the order in which they are
written. The value is the bit and the name of the column of the status that contains the field.
"""

BLOCK_BYTES = 512
"""Number of bytes that ``st_blocks`` (stat(2)) counts as one block."""

TYPE_WORDS = {
    ord("f"): "file",
    ord("d"): "directory",
    ord("l"): "symlink",
    ord("p"): "fifo",
    ord("c"): "character",
    ord("b"): "block",
    ord("s"): "socket",
    ord("?"): "unknown",
}

_JSON_SAFE = re.compile(rb"[ !#-\[\]-~]*")
"""Matches paths that need no escapes in JSON."""
_CSV_SAFE = re.compile(r'[^",\r\n]*')

ItemFormatter = Callable[[DirectoryItems], bytes]
"""A function that returns the text of some items in an output format. The items must have the fields of the status that
the format needs.
"""


def columns_of_fields(fields: Sequence[str]) -> int:
    """Return which columns of the status (stat(2)) contain these fields of an output format, as bits."""
    mask = 0
    for field in fields:
        mask |= FIELD_COLUMNS[field][0]
    return mask


def field_values(items: DirectoryItems, fields: Sequence[str]) -> list[Sequence[int]]:
    """Return the values to be written for each of ``fields``: a sequence with one value per item. Modes are without the
    file type, sizes in bytes, and times in nanoseconds since 1970.
    """
    columns: list[Sequence[int]] = []
    for field in fields:
        name = FIELD_COLUMNS[field][1]
        column: Sequence[int] = (
            items.columns.exact_times_in_column(name) if name in TIME_COLUMNS else getattr(items.columns, name)
        )
        if field == "mode":
            column = [mode & 0o7777 for mode in column]
        elif field == "allocated":
            column = [blocks * BLOCK_BYTES for blocks in column]
        columns.append(column)
    return columns


PATH_TERMINATORS = {"lines": b"\n", "nul": b"\0", "list": b"\0"}
"""The byte that ends each path, for the output formats that consist of paths only, by the name of the format."""


def format_path_lines(items: DirectoryItems) -> bytes:
    """Return the paths of the items as text, one per line, as ``find -print`` writes them."""
    return _joined_paths(items, PATH_TERMINATORS["lines"])


def format_nul_lines(items: DirectoryItems) -> bytes:
    """Return the paths of the items, each ended by a NUL byte, as ``find -print0`` writes them."""
    return _joined_paths(items, PATH_TERMINATORS["nul"])


def _joined_paths(items: DirectoryItems, end: bytes) -> bytes:
    above = items.above
    return above + (end + above).join(items.names) + end


def format_escaped_path_lines(items: DirectoryItems) -> bytes:
    """Return the paths of the items as text for a terminal, one per line, with control characters escaped."""
    above = items.above
    return "".join(f"{printable_path(above + name)}\n" for name in items.names).encode()


LS_FIELDS = ("mode", "uid", "gid", "size", "allocated", "links", "inode", "mtime_ns")
"""The fields of the status that the output of ``-ls`` shows."""

_RECENT_SECONDS, _FUTURE_SECONDS = 180 * 86400, 3600
"""``-ls`` shows a time with its hour if it is less than ``_RECENT_SECONDS`` ago (half a year), or less than
``_FUTURE_SECONDS`` in the future (for clocks of hosts that differ). Other times are shown with their year, as find
does.
"""


def format_find_ls_lines(items: DirectoryItems) -> bytes:
    """Return lines for the items as ``find -ls`` writes them: inode, KiB allocated, mode, links, owner, group, size,
    mtime, and escaped path.

    Unlike find, it shows neither the targets of symbolic links nor device numbers.
    """
    rows = items.columns
    seconds = [changed // 10**9 for changed in rows.exact_times_in_column("mtime")]
    kibibytes = [-(-blocks * BLOCK_BYTES // 1024) for blocks in rows.blocks]
    modes, times = _ModesAndOwners(), _Times(time.time())
    columns = (
        rows.inode,
        kibibytes,
        map(modes.__getitem__, zip(rows.mode, rows.links, rows.uid, rows.gid, strict=True)),
        rows.size,
        map(times.__getitem__, seconds),
        _printable_paths(items),
    )
    return "".join(map("%9d %6d %s %8d %s %s\n".__mod__, zip(*columns, strict=True))).encode()


class _ModesAndOwners(dict[tuple[int, int, int, int], str]):
    """Texts of ``-ls`` for mode, links, owner and group. Most items have the same ones as others."""

    def __missing__(self, values: tuple[int, int, int, int]) -> str:
        mode, links, uid, gid = values
        text = self[values] = f"{stat.filemode(mode)} {links:>3} {_user_name(uid):<8} {_group_name(gid):<8}"
        return text


class _Times(dict[int, str]):
    """Texts of ``-ls`` for times, in seconds since 1970. Many items have the same ones as others."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now

    def __missing__(self, seconds: int) -> str:
        text = self[seconds] = _formatted_time(seconds, self._now)
        return text


def _printable_paths(items: DirectoryItems) -> Iterable[str]:
    """Return the paths of the items as texts, as ``printable_path`` does. If no name needs an escape, they are decoded
    together.
    """
    above = items.above
    joined = b"/".join(items.names)
    if joined.isascii() and above.isascii() and b"\\" not in joined and joined.decode().isprintable():
        return map(printable_path(above).__add__, b"\0".join(items.names).decode().split("\0"))
    return map(printable_path, map(above.__add__, items.names))


def _formatted_time(seconds: int, now: float) -> str:
    """Return a time, in seconds since 1970, as text in the local time zone of this host. If it has no such form, return
    the seconds.
    """
    try:
        moment = time.localtime(seconds)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:>12}"
    is_recent = now - _RECENT_SECONDS <= seconds <= now + _FUTURE_SECONDS
    return time.strftime("%b %e %H:%M" if is_recent else "%b %e  %Y", moment)


@lru_cache(4096)
def _user_name(number: int) -> str:
    """Return the name of the user with this id; the id itself if it has no name."""
    import pwd

    try:
        return printable_path(pwd.getpwuid(number).pw_name.encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)


@lru_cache(4096)
def _group_name(number: int) -> str:
    """Return the name of the group with this id; the id itself if it has no name."""
    import grp

    try:
        return printable_path(grp.getgrgid(number).gr_name.encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)


def json_formatter(fields: Sequence[str]) -> ItemFormatter:
    """Return a function that returns items as JSON, one object per line, with the given fields besides path and
    type.
    """
    parts = [f'"{name}": "%04o"' if name == "mode" else f'"{name}": %d' for name in fields]
    row = b'{%b, "type": "%b"' + "".join(f", {part}" for part in parts).encode() + b"}\n"
    words = {kind: word.encode() for kind, word in TYPE_WORDS.items()}

    def form(items: DirectoryItems) -> bytes:
        columns = field_values(items, fields) if fields else []
        kinds = map(words.__getitem__, items.kinds)
        return b"".join(map(row.__mod__, zip(_json_object_beginnings(items), kinds, *columns, strict=True)))

    return form


def _json_object_beginnings(items: DirectoryItems) -> Iterator[bytes]:
    """Yield for each item the beginning of its JSON object: the key ``path`` and, if need be, ``path_b64``."""
    above, is_safe = items.above, _JSON_SAFE.fullmatch
    is_simple = bool(is_safe(above))
    for name in items.names:
        if is_simple and is_safe(name):
            yield b'"path": "%b%b"' % (above, name)
        else:
            yield _json_path_fields(above + name)


def _json_path_fields(path: bytes) -> bytes:
    """Return the keys and values for a path in a JSON object: ``path`` and, if that text does not have exactly the
    bytes of the path, ``path_b64``.
    """
    text = printable_path(path)
    member = b'"path": %b' % json.dumps(text).encode()
    return member if text.encode() == path else b'%b, "path_b64": "%b"' % (member, b64encode(path))


def listing_header(directory: bytes) -> bytes:
    """Return the first line of a saved listing (JSON lines). Relative paths in it are relative to ``directory``."""
    return b'{"format": "pcopy listing", "version": 1, "directory_b64": "%b"}\n' % b64encode(directory)


def csv_header(fields: Sequence[str]) -> bytes:
    """Return the first line of CSV, which names the fields: path and type, and the given ones."""
    return ",".join(("path", "path_b64", "type", *fields)).encode() + b"\n"


def csv_formatter(fields: Sequence[str]) -> ItemFormatter:
    """Return a function that returns items as CSV (RFC 4180, but with lines ended by LF only), with the given fields
    besides path and type.

    ``path_b64`` is empty if the text in ``path`` has exactly the bytes of the path.
    """
    row = "%s,%s" + "".join(",%04o" if name == "mode" else ",%s" for name in fields) + "\n"

    def form(items: DirectoryItems) -> bytes:
        columns = field_values(items, fields) if fields else []
        kinds = map(TYPE_WORDS.__getitem__, items.kinds)
        return "".join(map(row.__mod__, zip(_csv_paths(items), kinds, *columns, strict=True))).encode()

    return form


def _csv_paths(items: DirectoryItems) -> Iterator[str]:
    for name in items.names:
        text, exact = path_and_base64(items.above + name)
        yield f"{_csv_field(text)},{exact}"


def path_and_base64(path: bytes) -> tuple[str, str]:
    """Return ``path`` as text with escapes, and in base64. The second value is "" if the text has exactly the bytes of
    the path.
    """
    text = printable_path(path)
    return text, "" if text.encode() == path else b64encode(path).decode()


def _csv_field(text: str) -> str:
    """Return ``text`` as a CSV field: in quotes if it contains a comma, a quote or a line break."""
    if _CSV_SAFE.fullmatch(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def item_formatter_named(name: str, fields: Sequence[str]) -> ItemFormatter:
    """Return the function that writes items in the output format ``name``: ``lines``, ``nul``, ``list``, ``shown``,
    ``ls``, ``jsonl`` or ``csv``. The last two write the given fields.
    """
    without_fields: dict[str, ItemFormatter] = {
        "lines": format_path_lines, "nul": format_nul_lines, "list": format_nul_lines,
        "shown": format_escaped_path_lines,
        "ls": format_find_ls_lines
    }  # fmt: skip
    return without_fields.get(name) or (json_formatter(fields) if name == "jsonl" else csv_formatter(fields))
