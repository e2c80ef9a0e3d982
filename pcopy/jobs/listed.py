"""The list of ``--from``: read once, and brought into the order of a walk, for tools that change what is there.

All paths lie below one directory, which no symbolic link leads to: the last one that leads to all of them. Each is
there once, and ended by a NUL; what all lines tell of the item follows (``pcopy.tasks.listed.hand_out.LISTED``), if any
does.
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
"""Bytes of memory in which a list is sorted; a longer one goes through temporary files."""
_END = b"\0"
_FARTHEST = 2**63 - 1
"""Seconds that no file's time has."""
_NOTHING = LISTED.pack(0, 0, 0, 0, 0, 0, 0)


class PathList(NamedTuple):
    """The ``root`` below which all lies, the ``file`` (without a name), so many bytes ``told`` of each item, and how
    many items there are."""

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
    """What the user's ``file`` lists; None if that is nothing. Raises ``Refused``, naming file and line.

    Raises ``NotPutAside`` for spools.

    ``within``: the directory in which all have to lie, and in which paths of a plain list start; None: these start in
    the working directory. ``check`` says why a path from the root may not be listed, or nothing. ``whole``: directories
    are taken with all that is in them, and what is listed below one is left out.
    """
    sorter = ExternalSorter(open_spool, _BUDGET)
    with closing(sorter), SavedListing(file, "--from", nul=nul, meant=meant) as listing:
        start = listing.directory or (os.getcwdb() if within is None else within)
        common: bytes | None = None
        is_absolute, tells = False, listing.is_saved
        try:
            for number, listed_path, known in listing:
                line = listed_path if known is not None or nul else _as_it_stands(listed_path, start, listing, number)
                if not line:
                    continue
                is_absolute = is_absolute or line.startswith(b"/")
                path = from_root(start, line)
                if common is None and known is None and within and (why := starts_elsewhere(line, within)):
                    raise listing.refused(number, why)
                parts = [part for part in path.split(b"/") if part not in (b"", b".")]
                why = _why_not(parts, within) or check(b"/" + b"/".join(parts))
                if why:
                    raise listing.refused(number, f"{shown(line)} {why}")
                above = b"".join(part + _END for part in parts[:-1])
                common = above if common is None else _common(common, above)
                has_slash = line.endswith((b"/", b"/."))
                told = _told(known, has_slash=has_slash) if has_slash or known is not None else b""
                tells = tells or bool(told)
                sorter.add(_END.join(parts), told)
            if common is None:
                return None
            identity, base = _directory(b"/" + common[:-1].replace(_END, b"/"), listing.name)
            written = open_spool()
            skipped = len(base.strip(b"/") + b"/") if base != b"/" else 0
            listed = _written(sorter, written, skipped, tells=tells, whole=whole)
        except NotPutAside:
            raise
        except HINDRANCES as error:
            raise Refused(f"{listing.name}: {hindrance(error)}") from None
        called = _called(base, is_absolute)
        root = Root(base, base, b"", b"", called, called, identity, identity)
        return PathList(root, written, LISTED.size if tells else 0, listed)


def _as_it_stands(line: bytes, start: bytes, listing: SavedListing, number: int) -> bytes:
    """A line of a plain list, empty where Windows has an empty one. Raises ``Refused`` where the item without the
    carriage return at its end may be meant: it may as well be the neighbour of one that has been removed since."""
    shorter = without_return(line, start)
    if shorter and shorter != line and os.path.lexists(os.path.join(start, shorter)):
        advice = "if lines end as those of Windows do, give it the list without that: tr -d '\\r'; else list with -0"
        raise listing.refused(number, f"{shown(line)} is not there, {shown(shorter)} is: {advice}")
    return line if shorter else shorter


def _why_not(parts: list[bytes], within: bytes | None) -> str:
    if not parts:
        return "is the root directory; list what is in it"
    if b".." in parts:
        return "leads upwards; list paths without .."
    if within is not None and not (b"/" + b"/".join(parts)).startswith(within.rstrip(b"/") + b"/"):
        return f"does not lie in {shown(within)}"
    return ""


def _common(one: bytes, other: bytes) -> bytes:
    """Of two sequences of names, each ended by a NUL, the beginning that both have."""
    if other.startswith(one):
        return one
    names = zip(one.split(_END), other.split(_END), strict=False)
    return b"".join(name + _END for name, _ in takewhile(lambda both: both[0] == both[1] != b"", names))


def _told(known: Recorded | None, *, has_slash: bool) -> bytes:
    """A ``LISTED`` of one line; fields that are not told are 0."""
    bits = SLASH if has_slash else 0
    if known is None:
        return LISTED.pack(bits, 0, 0, 0, 0, 0, 0)
    size, mtime = (None, None) if known.type == stat.S_IFDIR else (known.size, known.mtime_ns)
    fields = (known.inode, INODE), (known.device, DEVICE), (size, SIZE), (mtime, MTIME)
    bits += sum(bit for value, bit in fields if value is not None)
    seconds, nanoseconds = divmod(mtime or 0, 10**9)
    seconds = min(max(seconds, -_FARTHEST), _FARTHEST)
    return LISTED.pack(bits, known.type, known.inode or 0, known.device or 0, size or 0, seconds, nanoseconds)


def _both(one: bytes, other: bytes) -> bytes:
    """What two lines tell of one item."""
    if one == other:
        return one
    (bits, *first), (further, *second) = LISTED.unpack(one or _NOTHING), LISTED.unpack(other or _NOTHING)
    told_twice = bits & further
    bits |= further
    for bit, mine, theirs in zip((0, INODE, DEVICE, SIZE, MTIME, MTIME), first, second, strict=True):
        if mine != theirs and (told_twice & bit if bit else mine and theirs):
            bits |= DISAGREES
    return LISTED.pack(bits, *(mine or theirs for mine, theirs in zip(first, second, strict=True)))


def _written(sorter: ExternalSorter, written: BinaryIO, skipped: int, *, tells: bool, whole: bool) -> int:
    """Each path once, without so many bytes at its beginning, and with what a list ``tells``; returns their number.
    ``whole``: without what lies below a directory that is listed, too; it comes right after that."""
    last, held, number = b"", b"", 0  # no path is empty
    is_directory: bool | None = None
    for key, told in chain(sorter.sorted(), ((b"", b""),)):
        if key == last:
            held = _both(held, told)
            continue
        if whole and last and key.startswith(last + _END):
            if is_directory is None:
                is_directory = is_real_directory(b"/" + last.replace(_END, b"/"))
            if is_directory:
                continue
        is_directory = None
        if last:
            written.write(last[skipped:].replace(_END, b"/") + _END + ((held or _NOTHING) if tells else b""))
            number += 1
        last, held = key, told
    written.flush()
    written.fileno()  # it becomes a file
    return number


def _directory(path: bytes, name: str) -> tuple[tuple[int, int], bytes]:
    """The identity of a directory that no symbolic link leads to, and its path: of what is not there, that of the one
    above. Raises ``Refused``."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    at, reached = os.open(b"/", flags | os.O_DIRECTORY), b""
    try:
        for part in filter(None, path.split(b"/")):
            try:
                below = os.open(part, flags, dir_fd=at)
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
            let_go(at)
            at, reached = below, reached + b"/" + part
        status = os.fstat(at)
        return (status.st_dev, status.st_ino), reached or b"/"
    finally:
        let_go(at)


def _called(base: bytes, is_absolute: bool) -> bytes:
    """What users are shown."""
    here = os.getcwdb()
    if is_absolute or not (base + b"/").startswith(here.rstrip(b"/") + b"/"):
        return base
    return base[len(here) :].lstrip(b"/") or b"."
