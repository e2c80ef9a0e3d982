"""Is a copy faithful? Asked of rsync and of a walk of our own; neither calls the program under test.

Both are needed: rsync compares what people compare, the walk sees what rsync is blind to (allocated blocks, raw
extended attributes, access times, paths beyond PATH_MAX, which names share an inode).
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
"""rsync gives up on joined paths near PATH_MAX (4096 bytes); longer ones are judged by the walk alone."""

SLACK = 64 << 10
"""Bytes that a sparse copy may allocate more than its source for each extent: XFS preallocates while a file grows."""

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
    """What distinguishes ``copy`` from ``source`` (two directories, or two other items); empty if nothing does.

    Without ``ownership`` owners may differ, and then set-id bits must be gone from every item whose owner or group was
    not kept. rsync reads directories in a way that sets access times, so compare those (``atimes``) first.
    """
    one, other = os.fsencode(source), os.fsencode(copy)
    return [*_compare(one, other, ownership, atimes), *_ask_rsync(one, other, ownership)]


def _ask_rsync(source: bytes, copy: bytes, ownership: bool) -> list[str]:
    if not os.path.lexists(copy) or os.path.islink(source):
        return []  # of one symlink rsync says nothing: it takes a symlink as a target for what that points to
    command: list[bytes | str] = ["rsync", "-aHAXn", "--checksum", "--modify-window=-1", "--itemize-changes"]
    command += ["--open-noatime", "--filter=-xr trusted.SGI_ACL_*"]
    # ACLs are compared as such; as an ordinary user rsync takes them for attributes that one side lacks.
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
    """rsync patterns for the top-level entries that hold paths which rsync can't handle."""
    tops = {
        entry.path.split(b"/", 1)[0]
        for root in roots
        for entry in walk(root)
        if len(root) + len(entry.path) > PATH_LIMIT
    }
    return [b"/" + _escaped(top) for top in sorted(tops)]


def _escaped(name: bytes) -> bytes:
    """rsync takes backslashes literally unless the pattern has a wildcard."""
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
    """Walks both trees in step: both walks yield in the same order, so a lesser path is one that the other lacks."""
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
    # Reading a symlink's target sets its access time and can't be told not to.
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
    """The bytes that a copy of this sparse file may allocate: some more than it, but never all that it could."""
    allocated, extents, end = status.st_blocks * 512, 0, 0
    with suppress(OSError):  # ENXIO: no data behind this
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
        return  # as an ordinary user: what may not be read can't be judged either
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
    """Everything that ``lstat``, ``readlink``, ``read`` and ``getxattr`` tell of an item."""

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
    """Everything about ``tree``, to see later whether anything touched it. A symlink's access time is left out."""
    return {entry.path: _record(entry) for entry in walk(os.fsencode(tree))}


def changes(before: dict[bytes, Record], after: dict[bytes, Record]) -> list[str]:
    """What two snapshots disagree about, in words."""
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
