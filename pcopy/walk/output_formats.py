"""Output formats of a walk: lines, JSON lines (docs/formats/listing.md) and CSV, written for whole batches of items."""

from __future__ import annotations

import json
import re
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from pcopy.fsio.backend.columns import (
    ATIME,
    BLOCKS,
    CTIME,
    DEVICE,
    GROUP,
    INODE,
    LINKS,
    MODE,
    MTIME,
    OWNER,
    SIZE,
    TIME_COLUMNS,
)
from pcopy.text import printable_path
from pcopy.walk.matching import Items

FIELD_COLUMNS = {
    "mode": (MODE, "mode"),
    "uid": (OWNER, "uid"),
    "gid": (GROUP, "gid"),
    "size": (SIZE, "size"),
    "allocated": (BLOCKS, "blocks"),
    "links": (LINKS, "links"),
    "inode": (INODE, "inode"),
    "device": (DEVICE, "device"),
    "atime_ns": (ATIME, "atime"),
    "mtime_ns": (MTIME, "mtime"),
    "ctime_ns": (CTIME, "ctime"),
}
"""The fields of an item besides its path and type, in the order in which they are written: bit and
name of the column.
"""

BLOCK_BYTES = 512
"""Bytes of a block of the column ``blocks``, from which ``allocated`` is computed."""

TYPES = {
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

Formatter = Callable[[Items], bytes]
"""A function that formats some items, all of which have the columns of its fields."""


def columns_mask(fields: Sequence[str]) -> int:
    """Return the mask of the columns that these fields need."""
    mask = 0
    for field in fields:
        mask |= FIELD_COLUMNS[field][0]
    return mask


def values_of(items: Items, fields: Sequence[str]) -> list[Sequence[int]]:
    """Return a column for each field: modes without the file type, allocated space in bytes, and exact times."""
    columns: list[Sequence[int]] = []
    for field in fields:
        name = FIELD_COLUMNS[field][1]
        column: Sequence[int] = (
            items.columns.exact_times(name) if name in TIME_COLUMNS else getattr(items.columns, name)
        )
        if field == "mode":
            column = [mode & 0o7777 for mode in column]
        elif field == "allocated":
            column = [blocks * BLOCK_BYTES for blocks in column]
        columns.append(column)
    return columns


PATH_TERMINATORS = {"lines": b"\n", "nul": b"\0", "list": b"\0"}
"""Terminator of each path in the forms that write paths only."""


def format_lines(items: Items) -> bytes:
    """Format items as ``find -print`` does."""
    return _joined_paths(items, PATH_TERMINATORS["lines"])


def format_nul_lines(items: Items) -> bytes:
    """Format items as ``find -print0`` does."""
    return _joined_paths(items, PATH_TERMINATORS["nul"])


def _joined_paths(items: Items, end: bytes) -> bytes:
    above = items.above
    return above + (end + above).join(items.names) + end


def format_escaped_lines(items: Items) -> bytes:
    """Format items for a terminal, with control characters escaped."""
    above = items.above
    return "".join(f"{printable_path(above + name)}\n" for name in items.names).encode()


LS_FIELDS = ("mode", "uid", "gid", "size", "allocated", "links", "inode", "mtime_ns")
"""The fields that ``format_ls`` needs."""

_RECENT_SECONDS, _FUTURE_SECONDS = 180 * 86400, 3600
"""Seconds of the past (half a year) and of the future (clock skew between hosts) for which a time is shown with its
hour; other times are shown with their year, as find does.
"""


def format_ls(items: Items) -> bytes:
    """Format items as ``find -ls`` does: inode, KiB allocated, mode, links, owner, group, size, mtime, and escaped
    path.

    Unlike find, it shows neither the targets of symbolic links nor device numbers.
    """
    rows, above, now = items.columns, items.above, time.time()
    formatted = []
    columns = rows.inode, rows.blocks, rows.mode, rows.links, rows.uid, rows.gid, rows.size, rows.exact_times("mtime")
    for name, inode, blocks, mode, links, uid, gid, size, changed in zip(items.names, *columns, strict=True):
        who = f"{_user_name(uid):<8} {_group_name(gid):<8}"
        numbers = f"{inode:>9} {-(-blocks * BLOCK_BYTES // 1024):>6} {stat.filemode(mode)} {links:>3} {who} {size:>8}"
        formatted.append(f"{numbers} {_formatted_time(changed // 10**9, now)} {printable_path(above + name)}\n")
    return "".join(formatted).encode()


def _formatted_time(seconds: int, now: float) -> str:
    """Return the time as text, in the local time zone of this host."""
    try:
        moment = time.localtime(seconds)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:>12}"
    is_recent = now - _RECENT_SECONDS <= seconds <= now + _FUTURE_SECONDS
    return time.strftime("%b %e %H:%M" if is_recent else "%b %e  %Y", moment)


@lru_cache(4096)
def _user_name(number: int) -> str:
    """Return the name of a user, or the number if there is none."""
    import pwd

    try:
        return printable_path(pwd.getpwuid(number).pw_name.encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)


@lru_cache(4096)
def _group_name(number: int) -> str:
    """Return the name of a group, or the number if there is none."""
    import grp

    try:
        return printable_path(grp.getgrgid(number).gr_name.encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)


def json_formatter(fields: Sequence[str]) -> Formatter:
    """Return a function that formats items as JSON lines with these fields."""
    parts = [f'"{name}": "%04o"' if name == "mode" else f'"{name}": %d' for name in fields]
    row = b'{%b, "type": "%b"' + "".join(f", {part}" for part in parts).encode() + b"}\n"
    words = {kind: word.encode() for kind, word in TYPES.items()}

    def form(items: Items) -> bytes:
        columns = values_of(items, fields) if fields else []
        kinds = map(words.__getitem__, items.kinds)
        return b"".join(map(row.__mod__, zip(_json_paths(items), kinds, *columns, strict=True)))

    return form


def _json_paths(items: Items) -> Iterator[bytes]:
    """Yield the JSON members for the path of each item."""
    above, is_safe = items.above, _JSON_SAFE.fullmatch
    is_simple = bool(is_safe(above))
    for name in items.names:
        if is_simple and is_safe(name):
            yield b'"path": "%b%b"' % (above, name)
        else:
            yield _json_path(above + name)


def _json_path(path: bytes) -> bytes:
    """Return the JSON members for a path: ``path``, and ``path_b64`` if the escaped path is not exact."""
    text = printable_path(path)
    member = b'"path": %b' % json.dumps(text).encode()
    return member if text.encode() == path else b'%b, "path_b64": "%b"' % (member, b64encode(path))


def listing_header(directory: bytes) -> bytes:
    """Return the first line of a saved listing; relative paths in it start in ``directory``."""
    return b'{"format": "pcopy listing", "version": 1, "directory_b64": "%b"}\n' % b64encode(directory)


def csv_header(fields: Sequence[str]) -> bytes:
    """Return the header line of CSV with these fields."""
    return ",".join(("path", "path_b64", "type", *fields)).encode() + b"\n"


def csv_formatter(fields: Sequence[str]) -> Formatter:
    """Return a function that formats items as CSV (RFC 4180, but with lines ended by LF only).

    ``path_b64`` is empty if ``path`` is exact.
    """
    row = "%s,%s" + "".join(",%04o" if name == "mode" else ",%s" for name in fields) + "\n"

    def form(items: Items) -> bytes:
        columns = values_of(items, fields) if fields else []
        kinds = map(TYPES.__getitem__, items.kinds)
        return "".join(map(row.__mod__, zip(_csv_paths(items), kinds, *columns, strict=True))).encode()

    return form


def _csv_paths(items: Items) -> Iterator[str]:
    for name in items.names:
        text, exact = path_and_base64(items.above + name)
        yield f"{_csv_field(text)},{exact}"


def path_and_base64(path: bytes) -> tuple[str, str]:
    """Return the path as it is shown, and its bytes in base64 if these differ from it, else an empty string."""
    text = printable_path(path)
    return text, "" if text.encode() == path else b64encode(path).decode()


def _csv_field(text: str) -> str:
    """Return a CSV field, in quotes if it needs them."""
    if _CSV_SAFE.fullmatch(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def formatter_named(name: str, fields: Sequence[str]) -> Formatter:
    """Return the format with this name: ``lines``, ``nul``, ``list``, ``shown``, ``ls``, ``jsonl`` or ``csv``."""
    without_fields: dict[str, Formatter] = {
        "lines": format_lines, "nul": format_nul_lines, "list": format_nul_lines, "shown": format_escaped_lines,
        "ls": format_ls
    }  # fmt: skip
    return without_fields.get(name) or (json_formatter(fields) if name == "jsonl" else csv_formatter(fields))
