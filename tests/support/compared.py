"""The expected output of ``pverify --compare`` for two trees, from an independent walk; and trees with differing
items.
"""

from __future__ import annotations

import base64
import json
import os
import random
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl
from tests.support.command import Completed
from tests.support.walk import Entry, walk

ALL = ("type", "size", "mtime", "mode", "owner", "acl", "xattr", "content")
ACLS = {os.fsencode(name) for name in (ACCESS_ACL, DEFAULT_ACL)}
Lines = dict[bytes, tuple[str, tuple[str, ...]]]
"""By path: the word, and the properties."""


class Seen:
    """An item as the reference sees it."""

    def __init__(self, entry: Entry) -> None:
        status, xattrs = entry.status, entry.xattrs()
        kind = stat.S_IFMT(status.st_mode)
        has_size = kind in (stat.S_IFREG, stat.S_IFLNK)
        contents = b""
        if kind == stat.S_IFLNK:
            contents = entry.link_target()
        elif kind == stat.S_IFREG:
            with open(entry.open(), "rb") as file:
                contents = file.read()
        self.values: dict[str, object] = {
            "type": (kind, status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0),
            "size": status.st_size if has_size else 0,
            "mtime": status.st_mtime_ns,
            "mode": stat.S_IMODE(status.st_mode),
            "owner": (status.st_uid, status.st_gid),
            "acl": {name: value for name, value in xattrs.items() if name in ACLS},
            "xattr": {name: value for name, value in xattrs.items() if name not in ACLS},
            "content": contents,
        }

    def differing(self, other: Seen, properties: Iterable[str]) -> tuple[str, ...]:
        if self.values["type"] != other.values["type"]:
            return ("type",)
        return tuple(name for name in properties if self.values[name] != other.values[name])


def seen(top: Path) -> dict[bytes, Seen]:
    return {entry.path: Seen(entry) for entry in walk(os.fsencode(top))}


def expected(a: Path, b: Path, properties: Iterable[str] = ALL) -> Lines:
    """Return the expected differences of two trees. Below an item that exists on one side only, nothing is reported."""
    ours, theirs = seen(a), seen(b)
    found: Lines = {}
    for path in {**ours, **theirs}:
        above = os.path.dirname(path)
        entered = [each[above].values["type"] == (stat.S_IFDIR, 0) for each in (ours, theirs) if above in each]
        if path and entered != [True, True]:
            continue
        name = path or b"."
        if path not in theirs:
            found[name] = "only A", ()
        elif path not in ours:
            found[name] = "only B", ()
        elif differs := ours[path].differing(theirs[path], properties):
            found[name] = "differ", differs
    return found


def reported(run: Completed) -> Lines:
    """Return the differences in the lines of ``--json``."""
    lines = [json.loads(line) for line in run.stdout.decode().splitlines()]
    return {
        base64.b64decode(line["path_b64"]): (line["difference"], tuple(line.get("in", ())))
        for line in lines
        if "difference" in line
    }


def summary(run: Completed) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(run.stdout.decode().splitlines()[-1])
    return values


def paths(file: Path, end: bytes = b"\n") -> list[bytes]:
    return file.read_bytes().split(end)[:-1]


def change(top: Path, seed: int) -> None:
    """Change one property of each of many items, add some items and remove some."""
    chance = random.Random(seed)
    entries = [(os.path.join(os.fsencode(top), entry.path), entry.status.st_mode) for entry in walk(os.fsencode(top))]
    changes = [_mtime, _append, _flip, _mode, _owner, _xattr, _acl, _retype, _remove]
    for path, mode in entries[1:]:
        if chance.random() < 0.4 and os.path.lexists(path):
            chance.choice(changes)(path, mode, chance)


def _mtime(path: bytes, mode: int, chance: random.Random) -> None:
    status = os.lstat(path)
    later = status.st_mtime_ns + chance.choice((1, 10**9))
    os.utime(path, ns=(status.st_atime_ns, later), follow_symlinks=False)


def _append(path: bytes, mode: int, chance: random.Random) -> None:
    if stat.S_ISREG(mode):
        with open(path, "ab") as file:
            file.write(b"x")


def _flip(path: bytes, mode: int, chance: random.Random) -> None:
    status = os.lstat(path)
    if stat.S_ISREG(mode) and status.st_size:
        at = chance.randrange(status.st_size)
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes((byte[0] ^ 1,)))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif stat.S_ISLNK(mode):
        text = os.readlink(path)
        os.unlink(path)
        os.symlink(bytes((text[0] ^ 1,)) + text[1:] if text[0] != ord(".") else b"z" + text[1:], path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _mode(path: bytes, mode: int, chance: random.Random) -> None:
    if not stat.S_ISLNK(mode):
        os.chmod(path, stat.S_IMODE(mode) ^ 0o001)


def _owner(path: bytes, mode: int, chance: random.Random) -> None:
    uid, gid = chance.choice(((-1, 4711), (4712, -1)))
    os.chown(path, uid, gid, follow_symlinks=False)
    if not stat.S_ISLNK(mode):
        os.chmod(path, stat.S_IMODE(mode))


def _xattr(path: bytes, mode: int, chance: random.Random) -> None:
    os.setxattr(path, "trusted.compared", b"%d" % chance.getrandbits(20), follow_symlinks=False)


def _acl(path: bytes, mode: int, chance: random.Random) -> None:
    if stat.S_ISDIR(mode):
        os.setxattr(path, DEFAULT_ACL, acl(7, 5, 5, {chance.randrange(1, 99): 5}))


def _retype(path: bytes, mode: int, chance: random.Random) -> None:
    if not stat.S_ISDIR(mode):
        os.unlink(path)
        chance.choice((lambda: os.mkdir(path), lambda: os.mkfifo(path), lambda: os.symlink("elsewhere", path)))()


def _remove(path: bytes, mode: int, chance: random.Random) -> None:
    if stat.S_ISDIR(mode):
        os.rename(path, os.path.dirname(path) + b"/renamed%d" % chance.getrandbits(30))
    else:
        os.unlink(path)
