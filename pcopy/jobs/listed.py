"""The list of ``--from``: read once, and sorted into the order of a walk, for tools that change existing items.

All paths lie below one directory: the deepest one that contains all of them. Its own path contains no symbolic link.
Each path is stored once and terminated by a NUL. If the list has data about items, a record of fixed size
(``pcopy.tasks.listed.hand_out.LISTED``) follows each path; it combines the data of all lines about that item.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import closing
from itertools import chain, takewhile
from typing import BinaryIO

from pcopy.errors import HINDRANCES, NotPutAside, Refused, hindrance
from pcopy.fsio.close import let_go
from pcopy.jobs.files_from import is_real_directory
from pcopy.jobs.meant import meant, starts_elsewhere
from pcopy.named import NamedTuple
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.job import Root
from pcopy.tasks.listed.hand_out import DEVICE, DISAGREES, INODE, LISTED, MTIME, SIZE, SLASH
from pcopy.text import shown
from pcopy.walk.saved_listing import Recorded, SavedListing, from_root, without_return

_BUDGET = 64 << 20
"""Bytes of memory in which a list is sorted; a longer one is sorted with temporary files."""
_END = b"\0"
_FARTHEST = 2**63 - 1
"""Limit in seconds to which recorded times are clipped, so that they can be packed; no file has such a time."""
_NOTHING = LISTED.pack(0, 0, 0, 0, 0, 0, 0)


class PathList(NamedTuple):
    """A sorted list.

    Fields:
    - ``root``: the root that contains all paths.
    - ``file``: the list, an open file without a name.
    - ``told``: number of bytes of the record after each path; 0 if there are none.
    - ``number``: number of items.
    """

    root: Root
    file: BinaryIO
    told: int
    number: int


def read_list(
    file: bytes,
    open_spool: Callable[[], BinaryIO],
    *,
    nul: bool,
    within: bytes | None,
    check: Callable[[bytes], str],
    whole: bool = False,
) -> PathList | None:
    """Return the user's list, sorted; None if it is empty.

    Args:
        file: path of the list: a saved listing (JSON lines), or plain paths.
        open_spool: opens a temporary file.
        nul: plain paths end with a NUL instead of a newline.
        within: the directory in which all paths must lie, and to which plain paths are relative. None: plain paths are
            relative to the working directory.
        check: returns why an absolute path may not be listed, or an empty text.
        whole: directories are processed with their contents, so entries below a listed directory are left out.

    Raise ``Refused`` with file and line if the list is invalid, and ``NotPutAside`` if a temporary file cannot be
    written.
    """
    sorter = ExternalSorter(open_spool, _BUDGET)
    with closing(sorter), SavedListing(file, "--from", nul=nul, meant=meant) as listing:
        start = listing.directory or (os.getcwdb() if within is None else within)
        common: bytes | None = None
        is_absolute, has_records = False, listing.is_saved
        try:
            for number, listed_path, recorded in listing:
                line = (
                    listed_path if recorded is not None or nul else _as_it_stands(listed_path, start, listing, number)
                )
                if not line:
                    continue
                is_absolute = is_absolute or line.startswith(b"/")
                path = from_root(start, line)
                if common is None and recorded is None and within and (reason := starts_elsewhere(line, within)):
                    raise listing.refused(number, reason)
                parts = [part for part in path.split(b"/") if part not in (b"", b".")]
                reason = _why_not(parts, within) or check(b"/" + b"/".join(parts))
                if reason:
                    raise listing.refused(number, f"{shown(line)} {reason}")
                above = b"".join(part + _END for part in parts[:-1])
                common = above if common is None else _common(common, above)
                has_slash = line.endswith((b"/", b"/."))
                record = _told(recorded, has_slash=has_slash) if has_slash or recorded is not None else b""
                has_records = has_records or bool(record)
                sorter.add(_END.join(parts), record)
            if common is None:
                return None
            identity, base = _directory(b"/" + common[:-1].replace(_END, b"/"), listing.name)
            written = open_spool()
            skipped = len(base.strip(b"/") + b"/") if base != b"/" else 0
            listed = _written(sorter, written, skipped, tells=has_records, whole=whole)
        except NotPutAside:
            raise
        except HINDRANCES as error:
            raise Refused(f"{listing.name}: {hindrance(error)}") from None
        called = _called(base, is_absolute)
        root = Root(base, base, b"", b"", called, called, identity, identity)
        return PathList(root, written, LISTED.size if has_records else 0, listed)


def _as_it_stands(line: bytes, start: bytes, listing: SavedListing, number: int) -> bytes:
    """Return a line of a plain list; empty if it holds nothing but a carriage return.

    Raise ``Refused`` if the line ends with a carriage return and only the item without it exists. Either can be meant:
    the item with the carriage return in its name may have been removed since the list was written.
    """
    shorter = without_return(line, start)
    if shorter and shorter != line and os.path.lexists(os.path.join(start, shorter)):
        advice = "if lines end as those of Windows do, remove the carriage returns: tr -d '\\r'; else list with -0"
        raise listing.refused(number, f"{shown(line)} does not exist, {shown(shorter)} does: {advice}")
    return line if shorter else shorter


def _why_not(parts: list[bytes], within: bytes | None) -> str:
    """Return why a path may not be listed; empty if it may."""
    if not parts:
        return "is the root directory; list what is in it"
    if b".." in parts:
        return "leads upwards; list paths without .."
    if within is not None and not (b"/" + b"/".join(parts)).startswith(within.rstrip(b"/") + b"/"):
        return f"does not lie in {shown(within)}"
    return ""


def _common(one: bytes, other: bytes) -> bytes:
    """Return the common beginning of two sequences of names, each name terminated by a NUL."""
    if other.startswith(one):
        return one
    names = zip(one.split(_END), other.split(_END), strict=False)
    return b"".join(name + _END for name, _ in takewhile(lambda both: both[0] == both[1] != b"", names))


def _told(recorded: Recorded | None, *, has_slash: bool) -> bytes:
    """Return the packed record of one line; unknown fields are 0, and a bit says which fields are known."""
    bits = SLASH if has_slash else 0
    if recorded is None:
        return LISTED.pack(bits, 0, 0, 0, 0, 0, 0)
    size, mtime = (None, None) if recorded.type == stat.S_IFDIR else (recorded.size, recorded.mtime_ns)
    fields = (recorded.inode, INODE), (recorded.device, DEVICE), (size, SIZE), (mtime, MTIME)
    bits += sum(bit for value, bit in fields if value is not None)
    seconds, nanoseconds = divmod(mtime or 0, 10**9)
    seconds = min(max(seconds, -_FARTHEST), _FARTHEST)
    return LISTED.pack(bits, recorded.type, recorded.inode or 0, recorded.device or 0, size or 0, seconds, nanoseconds)


def _both(one: bytes, other: bytes) -> bytes:
    """Return the record that combines those of two lines about one item; a bit says if they disagree."""
    if one == other:
        return one
    (bits, *first), (further, *second) = LISTED.unpack(one or _NOTHING), LISTED.unpack(other or _NOTHING)
    known_twice = bits & further
    bits |= further
    for bit, mine, theirs in zip((0, INODE, DEVICE, SIZE, MTIME, MTIME), first, second, strict=True):
        if mine != theirs and (known_twice & bit if bit else mine and theirs):
            bits |= DISAGREES
    return LISTED.pack(bits, *(mine or theirs for mine, theirs in zip(first, second, strict=True)))


def _written(sorter: ExternalSorter, written: BinaryIO, skipped: int, *, tells: bool, whole: bool) -> int:
    """Write each path once, with its record; return the number of paths.

    Args:
        sorter: the paths and records.
        written: the file to write to.
        skipped: bytes to remove from the beginning of each path.
        tells: write the records.
        whole: leave out paths below a listed directory, which come right after it.
    """
    last, last_record, number = b"", b"", 0  # An empty ``last`` means that there is none: no path is empty.
    is_directory: bool | None = None
    for key, record in chain(sorter.sorted(), ((b"", b""),)):
        if key == last:
            last_record = _both(last_record, record)
            continue
        if whole and last and key.startswith(last + _END):
            if is_directory is None:
                is_directory = is_real_directory(b"/" + last.replace(_END, b"/"))
            if is_directory:
                continue
        is_directory = None
        if last:
            written.write(last[skipped:].replace(_END, b"/") + _END + ((last_record or _NOTHING) if tells else b""))
            number += 1
        last, last_record = key, record
    written.flush()
    written.fileno()  # moves the contents from memory to a file, which other processes can open
    return number


def _directory(path: bytes, name: str) -> tuple[tuple[int, int], bytes]:
    """Return (device, inode) and path of the deepest existing directory on the way to ``path``.

    ``name`` names the list in messages. Raise ``Refused`` if the way leads through a symbolic link or cannot be opened.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor, reached = os.open(b"/", flags | os.O_DIRECTORY), b""
    try:
        for part in filter(None, path.split(b"/")):
            try:
                below = os.open(part, flags, dir_fd=descriptor)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    break
                raise Refused(f"{name}: {shown(reached + b'/' + part)}: {error.strerror}") from None
            mode = os.fstat(below).st_mode
            if not stat.S_ISDIR(mode):
                let_go(below)
                if stat.S_ISLNK(mode):
                    link = shown(reached + b"/" + part)
                    raise Refused(f"{name}: all paths lead through {link}, a symbolic link; list what it leads to")
                break
            let_go(descriptor)
            descriptor, reached = below, reached + b"/" + part
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino), reached or b"/"
    finally:
        let_go(descriptor)


def _called(base: bytes, is_absolute: bool) -> bytes:
    """Return the path of the root for users: relative to the working directory if all listed paths are relative
    to it.
    """
    here = os.getcwdb()
    if is_absolute or not (base + b"/").startswith(here.rstrip(b"/") + b"/"):
        return base
    return base[len(here) :].lstrip(b"/") or b"."
