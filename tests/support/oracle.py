"""Checks that a copy is faithful, by rsync and by an independent walk. Neither uses the program under test.

Both are needed: rsync compares what people compare; the walk also compares what rsync ignores (allocated blocks, raw
extended attributes, access times, paths beyond PATH_MAX, and which names share an inode).
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from tests.support.walk import Entry, walk

PATH_LIMIT = 3500
"""rsync fails on joined paths near PATH_MAX (4096 bytes); only the walk compares longer ones."""

SLACK = 64 << 10
"""Bytes that a sparse copy may allocate in addition for each extent: XFS preallocates while a file grows."""

BLOCK = 4096

SET_ID = stat.S_ISUID | stat.S_ISGID
PIECE = 1 << 20


def differences(
    source: str | bytes | os.PathLike[str],
    copy: str | bytes | os.PathLike[str],
    *,
    ownership: bool = True,
    atimes: bool = False,
) -> list[str]:
    """Return the differences between ``copy`` and ``source`` (two directories, or two other items).

    Without ``ownership`` owners may differ, but then set-id bits must be cleared on every item whose owner or group was
    not preserved. rsync's reading of directories changes access times, so compare those (``atimes``) first.
    """
    one, other = os.fsencode(source), os.fsencode(copy)
    return [*_compare(one, other, ownership, atimes), *_ask_rsync(one, other, ownership)]


def _ask_rsync(source: bytes, copy: bytes, ownership: bool) -> list[str]:
    if not os.path.lexists(copy) or os.path.islink(source):
        return []  # rsync cannot compare a single symbolic link: it follows a link that is its destination
    command: list[bytes | str] = ["rsync", "-aHAXn", "--checksum", "--modify-window=-1", "--itemize-changes"]
    command += ["--open-noatime", "--filter=-xr trusted.SGI_ACL_*"]
    # ACLs are compared separately; for an ordinary user rsync reports them as attributes missing on one side.
    command += ["--filter=-xr system.*"]
    if not ownership:
        command += ["--no-owner", "--no-group", "--no-acls", "--no-perms"]
    if os.path.isdir(source) and not os.path.islink(source):
        command += ["--delete", *(b"--exclude=" + pattern for pattern in _too_deep(source, copy)), "--"]
        command += [source + b"/", copy + b"/"]
    else:
        command += ["--", source, copy]
    asked = subprocess.run(command, check=False, capture_output=True, timeout=300)
    reported = (asked.stdout + asked.stderr).decode(errors="backslashreplace").splitlines()
    if asked.returncode:
        reported.append(f"exit status {asked.returncode}")
    return [f"rsync: {line}" for line in reported]


def _too_deep(*roots: bytes) -> list[bytes]:
    """Return rsync patterns for the top-level entries with paths that rsync cannot handle."""
    tops = {
        entry.path.split(b"/", 1)[0]
        for root in roots
        for entry in walk(root)
        if len(root) + len(entry.path) > PATH_LIMIT
    }
    return [b"/" + _escaped(top) for top in sorted(tops)]


def _escaped(name: bytes) -> bytes:
    """Escape a name for a pattern: rsync treats backslashes literally unless the pattern has a wildcard."""
    if not any(wildcard in name for wildcard in (b"*", b"?", b"[")):
        return name
    for special in (b"\\", b"*", b"?", b"["):
        name = name.replace(special, b"\\" + special)
    return name


def _compare(source: bytes, copy: bytes, ownership: bool, atimes: bool) -> Iterator[str]:
    if not os.path.lexists(copy):
        yield "the copy does not exist"
        return
    groups: tuple[_Groups, _Groups] = (defaultdict(set), defaultdict(set))
    yield from _merge(walk(source), walk(copy), ownership, atimes, groups)
    wanted, found = ({frozenset(names) for names in group.values() if len(names) > 1} for group in groups)
    for names in wanted ^ found:
        where = "only in the source" if names in wanted else "only in the copy"
        yield f"link group {where}: {sorted(names)}"


_Groups = defaultdict[tuple[int, int], set[bytes]]


def _merge(
    source: Iterator[Entry],
    copy: Iterator[Entry],
    ownership: bool,
    atimes: bool,
    groups: tuple[_Groups, _Groups],
) -> Iterator[str]:
    """Walk both trees in parallel, in the same order: the lesser path of two is missing in the other tree."""
    one, other = next(source, None), next(copy, None)
    while one or other:
        if other is None or (one and _order(one) < _order(other)):
            assert one
            yield f"missing: {one.path!r}"
            _group(one, groups[0])
            one = next(source, None)
        elif one is None or _order(other) < _order(one):
            yield f"not in the source: {other.path!r}"
            _group(other, groups[1])
            other = next(copy, None)
        else:
            _group(one, groups[0])
            _group(other, groups[1])
            yield from (f"{trouble}: {one.path!r}" for trouble in _unlike(one, other, ownership, atimes))
            one, other = next(source, None), next(copy, None)


def _order(entry: Entry) -> list[bytes]:
    return entry.path.split(b"/") if entry.path else []


def _group(entry: Entry, groups: _Groups) -> None:
    if entry.status.st_nlink > 1 and not stat.S_ISDIR(entry.status.st_mode):
        groups[entry.status.st_dev, entry.status.st_ino].add(entry.path)


def _unlike(one: Entry, other: Entry, ownership: bool, atimes: bool) -> Iterator[str]:
    a, b = one.status, other.status
    if one.type != other.type:
        yield f"type {one.type:o} became {other.type:o}"
        return
    same_owner = (a.st_uid, a.st_gid) == (b.st_uid, b.st_gid)
    if ownership and not same_owner:
        yield f"owner {a.st_uid}:{a.st_gid} became {b.st_uid}:{b.st_gid}"
    if not stat.S_ISLNK(a.st_mode):
        wanted = stat.S_IMODE(a.st_mode)
        if not ownership and not same_owner:
            wanted &= ~SET_ID
        if wanted != stat.S_IMODE(b.st_mode):
            yield f"mode {wanted:o} became {stat.S_IMODE(b.st_mode):o}"
    if a.st_mtime_ns != b.st_mtime_ns:
        yield f"mtime {a.st_mtime_ns} became {b.st_mtime_ns}"
    # Reading the target of a symbolic link sets its access time, which cannot be avoided.
    if atimes and not stat.S_ISLNK(a.st_mode) and a.st_atime_ns != b.st_atime_ns:
        yield f"atime {a.st_atime_ns} became {b.st_atime_ns}"
    if a.st_rdev != b.st_rdev:
        yield f"device {a.st_rdev:#x} became {b.st_rdev:#x}"
    yield from _unlike_xattrs(one.xattrs(), other.xattrs())
    if stat.S_ISLNK(a.st_mode) and one.link_target() != other.link_target():
        yield f"target {one.link_target()!r} became {other.link_target()!r}"
    if stat.S_ISREG(a.st_mode):
        yield from _unlike_data(one, other)


def _unlike_xattrs(one: dict[bytes, bytes], other: dict[bytes, bytes]) -> Iterator[str]:
    for name in sorted(one.keys() | other.keys()):
        if name not in other:
            yield f"xattr {name!r} lost"
        elif name not in one:
            yield f"xattr {name!r} appeared"
        elif one[name] != other[name]:
            yield f"xattr {name!r} differs"


def _allowed(source: int, status: os.stat_result) -> int:
    """Return the bytes that a copy of this sparse file may allocate: some more than the file, but never its full
    size.
    """
    allocated, extents, end = status.st_blocks * 512, 0, 0
    with suppress(OSError):  # ENXIO: no data after this
        while True:
            end = os.lseek(source, os.lseek(source, end, os.SEEK_DATA), os.SEEK_HOLE)
            extents += 1
    os.lseek(source, 0, os.SEEK_SET)
    full = (status.st_size + BLOCK - 1) // BLOCK * BLOCK
    return max(allocated, min(allocated + SLACK * (1 + extents), full - BLOCK))


def _unlike_data(one: Entry, other: Entry) -> Iterator[str]:
    a, b = one.status, other.status
    if a.st_size != b.st_size:
        yield f"size {a.st_size} became {b.st_size}"
        return
    try:
        left, right = one.open(), other.open()
    except PermissionError:
        return  # an ordinary user cannot compare unreadable files
    allocated = a.st_blocks * 512
    if allocated < a.st_size and b.st_blocks * 512 > _allowed(left, a):
        yield f"allocated bytes {allocated} became {b.st_blocks * 512}"
    with open(left, "rb", buffering=0) as wanted, open(right, "rb", buffering=0) as found:
        for index, (x, y) in enumerate(
            zip_longest(iter(lambda: wanted.read(PIECE), b""), iter(lambda: found.read(PIECE), b""))
        ):
            if x != y:
                yield f"data differ in mebibyte {index}"
                return


class Record(NamedTuple):
    """Everything that ``lstat``, ``readlink``, ``read`` and ``getxattr`` return for an item."""

    mode: int
    uid: int
    gid: int
    rdev: int
    size: int
    links: int
    inode: int
    mtime: int
    ctime: int
    atime: int
    xattrs: tuple[tuple[bytes, bytes], ...]
    content: bytes


def snapshot(tree: str | bytes | os.PathLike[str]) -> dict[bytes, Record]:
    """Record everything about ``tree``, to detect later changes. The access time of a symbolic link is left out."""
    return {entry.path: _record(entry) for entry in walk(os.fsencode(tree))}


def changes(before: dict[bytes, Record], after: dict[bytes, Record]) -> list[str]:
    """Return the differences between two snapshots in words."""
    reported = [f"gone: {path!r}" for path in before.keys() - after.keys()]
    reported += [f"new: {path!r}" for path in after.keys() - before.keys()]
    for path in before.keys() & after.keys():
        for field, old, new in zip(Record._fields, before[path], after[path], strict=True):
            if old != new:
                reported.append(f"{field} of {path!r}: {old!r} became {new!r}")
    return sorted(reported)


def _record(entry: Entry) -> Record:
    status, content = entry.status, b""
    if stat.S_ISLNK(status.st_mode):
        content = entry.link_target()
    elif stat.S_ISREG(status.st_mode):
        try:
            with open(entry.open(), "rb", buffering=0) as file:
                content = hashlib.file_digest(file, "sha1").digest()
        except PermissionError:
            content = b"unreadable"
    atime = 0 if stat.S_ISLNK(status.st_mode) else status.st_atime_ns
    return Record(
        status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_size, status.st_nlink, status.st_ino,
        status.st_mtime_ns, status.st_ctime_ns, atime, tuple(sorted(entry.xattrs().items())), content,
    )  # fmt: skip
