"""How items are written that a walk has found: as lines, JSON lines (docs/formats/listing.md) or CSV, whole batches at
once."""

from __future__ import annotations

import json
import re
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from pcopy.fsio.kernel.columns import (
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
    TIMES,
)
from pcopy.text import shown
from pcopy.walk.matching import Items

FIELDS = {
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
"""What is told of an item beside its path and type, in this order: the column's bit, and its name."""

BLOCK = 512
"""Bytes of the blocks in which ``allocated`` is counted."""

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

_UNQUOTED = re.compile(rb"[ !#-\[\]-~]*")
"""What stands in JSON as it is."""
_CSV_PLAIN = re.compile(r'[^",\r\n]*')

Form = Callable[[Items], bytes]
"""Writes some items, all of which have the columns of its fields."""


def mask_of(fields: Sequence[str]) -> int:
    mask = 0
    for field in fields:
        mask |= FIELDS[field][0]
    return mask


def values_of(items: Items, fields: Sequence[str]) -> list[Sequence[int]]:
    """Return a column for each field: modes without the type, allocated space in bytes, and exact times."""
    columns: list[Sequence[int]] = []
    for field in fields:
        name = FIELDS[field][1]
        column: Sequence[int] = items.seen.times(name) if name in TIMES else getattr(items.seen, name)
        if field == "mode":
            column = [mode & 0o7777 for mode in column]
        elif field == "allocated":
            column = [blocks * BLOCK for blocks in column]
        columns.append(column)
    return columns


ENDS = {"lines": b"\n", "nul": b"\0", "list": b"\0"}
"""What stands behind each path where nothing else is told."""


def lines(items: Items) -> bytes:
    """As ``find -print``."""
    return _joined(items, ENDS["lines"])


def nul_lines(items: Items) -> bytes:
    """As ``find -print0``."""
    return _joined(items, ENDS["nul"])


def _joined(items: Items, end: bytes) -> bytes:
    above = items.above
    return above + (end + above).join(items.names) + end


def shown_lines(items: Items) -> bytes:
    """For a terminal: nothing that it would act on."""
    above = items.above
    return "".join(f"{shown(above + name)}\n" for name in items.names).encode()


LS_FIELDS = ("mode", "uid", "gid", "size", "allocated", "links", "inode", "mtime_ns")
"""What ``ls_lines`` tells."""

_RECENT, _SOON = 180 * 86400, 3600
"""Seconds of the past (half a year), and of the future (another host's clock), for which a time is told with its hour,
as find does; else with its year."""


def ls_lines(items: Items) -> bytes:
    """As ``find -ls``: inode, KiB on storage, mode, names, owner, group, bytes, time of change, and path, escaped.

    (What find tells besides: where a symbolic link leads, and the numbers of devices.)
    """
    rows, above, now = items.seen, items.above, time.time()
    told = []
    columns = rows.inode, rows.blocks, rows.mode, rows.links, rows.uid, rows.gid, rows.size, rows.times("mtime")
    for name, inode, blocks, mode, links, uid, gid, size, changed in zip(items.names, *columns, strict=True):
        who = f"{_user(uid):<8} {_group(gid):<8}"
        numbers = f"{inode:>9} {-(-blocks * BLOCK // 1024):>6} {stat.filemode(mode)} {links:>3} {who} {size:>8}"
        told.append(f"{numbers} {_moment(changed // 10**9, now)} {shown(above + name)}\n")
    return "".join(told).encode()


def _moment(seconds: int, now: float) -> str:
    """On this host's clock."""
    try:
        moment = time.localtime(seconds)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:>12}"
    is_recent = now - _RECENT <= seconds <= now + _SOON
    return time.strftime("%b %e %H:%M" if is_recent else "%b %e  %Y", moment)


@lru_cache(4096)
def _user(number: int) -> str:
    import pwd

    try:
        return shown(pwd.getpwuid(number).pw_name.encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)


@lru_cache(4096)
def _group(number: int) -> str:
    import grp

    try:
        return shown(grp.getgrgid(number).gr_name.encode(errors="surrogateescape"))
    except (KeyError, OverflowError):
        return str(number)


def json_lines(fields: Sequence[str]) -> Form:
    parts = [f'"{name}": "%04o"' if name == "mode" else f'"{name}": %d' for name in fields]
    row = b'{%b, "type": "%b"' + "".join(f", {part}" for part in parts).encode() + b"}\n"
    words = {kind: word.encode() for kind, word in TYPES.items()}

    def form(items: Items) -> bytes:
        columns = values_of(items, fields) if fields else []
        kinds = map(words.__getitem__, items.kinds)
        return b"".join(map(row.__mod__, zip(_json_paths(items), kinds, *columns, strict=True)))

    return form


def _json_paths(items: Items) -> Iterator[bytes]:
    above, plain = items.above, _UNQUOTED.fullmatch
    is_plain = bool(plain(above))
    for name in items.names:
        if is_plain and plain(name):
            yield b'"path": "%b%b"' % (above, name)
        else:
            yield _json_path(above + name)


def _json_path(path: bytes) -> bytes:
    text = shown(path)
    told = b'"path": %b' % json.dumps(text).encode()
    return told if text.encode() == path else b'%b, "path_b64": "%b"' % (told, b64encode(path))


def first_line(directory: bytes) -> bytes:
    """Of a saved listing. ``directory``: from where paths that do not begin with a slash start."""
    return b'{"format": "pcopy listing", "version": 1, "directory_b64": "%b"}\n' % b64encode(directory)


def csv_head(fields: Sequence[str]) -> bytes:
    return ",".join(("path", "path_b64", "type", *fields)).encode() + b"\n"


def csv_lines(fields: Sequence[str]) -> Form:
    """RFC 4180, but with lines that end in a newline alone. ``path_b64`` is empty where ``path`` is exact."""
    row = "%s,%s" + "".join(",%04o" if name == "mode" else ",%s" for name in fields) + "\n"

    def form(items: Items) -> bytes:
        columns = values_of(items, fields) if fields else []
        kinds = map(TYPES.__getitem__, items.kinds)
        return "".join(map(row.__mod__, zip(_csv_paths(items), kinds, *columns, strict=True))).encode()

    return form


def _csv_paths(items: Items) -> Iterator[str]:
    for name in items.names:
        text, exact = told_path(items.above + name)
        yield f"{_quoted(text)},{exact}"


def told_path(path: bytes) -> tuple[str, str]:
    """As it is shown, and its bytes in base64 if that is something else."""
    text = shown(path)
    return text, "" if text.encode() == path else b64encode(path).decode()


def _quoted(text: str) -> str:
    if _CSV_PLAIN.fullmatch(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def form_of(name: str, fields: Sequence[str]) -> Form:
    """By the name that travels: ``lines``, ``nul``, ``list``, ``shown``, ``ls``, ``jsonl``, ``csv``."""
    plain: dict[str, Form] = {
        "lines": lines, "nul": nul_lines, "list": nul_lines, "shown": shown_lines, "ls": ls_lines
    }  # fmt: skip
    return plain.get(name) or (json_lines(fields) if name == "jsonl" else csv_lines(fields))
