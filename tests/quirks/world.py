"""A small tree with one item of each kind, and how an independent walk sees it through a quirk."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl
from tests.support.compared import ALL, Lines, Seen, seen
from tests.support.files import NOW, noise, write

MIB = 1 << 20
LARGE = 3 * MIB
SPLIT = ("--chunk-size", "1M", "--block-size", "1M")
"""Options with which ``large`` is split between ranks."""

Names = Callable[[bytes], bytes]
Shown = Callable[[Seen], None]


def make_tree(top: Path) -> None:
    """Create files (small, empty, sparse, large), hard links, symlinks, a FIFO, directories, attributes, ACLs, odd
    names."""
    for name in ("small", "dir/one", "dir/deep/two", "dir/deep/UPPER", ".dot", "odd\n$ '", "caf\u00e9"):
        write(top / name, name.encode() * 10)
    write(top / os.fsdecode(b"dir/byte\xff"), b"no UTF-8")
    write(top / "dir/empty", b"")
    write(top / "large", noise(LARGE))
    with open(top / "sparse", "xb") as file:
        file.truncate(MIB)
        os.pwrite(file.fileno(), b"data", MIB // 2)
    write(top / "linked", b"three names")
    os.link(top / "linked", top / "dir/linked too")
    os.link(top / "linked", top / "dir/deep/linked as well")
    (top / "dir/link").symlink_to("one")
    (top / "dangling").symlink_to("nowhere")
    os.mkfifo(top / "dir/fifo")
    (top / "dir/hollow").mkdir()
    for name, mode in (
        ("small", 0o640),
        ("dir/one", 0o444),
        ("dir/deep", 0o750),
        ("dir/fifo", 0o622),
        ("large", 0o600),
    ):
        (top / name).chmod(mode)
    os.chown(top / "small", 1000, 100)
    os.chown(top / "dir/deep", 1000, 1000)
    os.chown(top / "dir/link", 1000, 1000, follow_symlinks=False)
    for name in ("small", "large", "dir"):
        os.setxattr(top / name, "user.kept", b"value")
    os.setxattr(top / "dir/one", ACCESS_ACL, acl(6, 4, 0, {1000: 6}))
    os.setxattr(top / "dir", DEFAULT_ACL, acl(7, 5, 0, {1000: 5}))
    for path in [*sorted(top.rglob("*"), reverse=True), top]:
        os.utime(path, ns=(NOW, NOW + 123_456_789), follow_symlinks=False)


def clone(tree: Path, place: Path) -> None:
    """Copy with GNU cp."""
    subprocess.run(["cp", "-a", "--sparse=always", tree, place], check=True)


def make_older(tree: Path) -> None:
    """Turn a tree into an earlier copy: some items differ, some are missing, and some are extra."""
    write(tree / "small", b"older", NOW - 10**9)
    (tree / "dir/deep/two").unlink()
    write(tree / "dir/deep/extra", b"extra")
    write(tree / "extra", b"extra")
    (tree / "extra directory").mkdir()
    write(tree / "extra directory/extra", b"extra")
    (tree / "dangling").unlink()
    (tree / "dangling").symlink_to("elsewhere")
    (tree / "large").unlink()
    os.utime(tree, ns=(NOW, NOW))


def same(name: bytes) -> bytes:
    """Return the name unchanged."""
    return name


def unchanged(item: Seen) -> None:
    """Leave the item unchanged."""


def shown(top: Path, names: Names = same, change: Shown = unchanged) -> dict[bytes, Seen]:
    """Return the items of a tree by path, as another file system shows them."""
    items = {b"/".join(names(part) for part in path.split(b"/")): item for path, item in seen(top).items()}
    for item in items.values():
        change(item)
    return items


def compare(wanted: dict[bytes, Seen], found: dict[bytes, Seen]) -> Lines:
    """Return the differences, by path."""
    lines: Lines = {}
    for path in wanted.keys() | found.keys():
        if path not in found:
            lines[path] = "missing", ()
        elif path not in wanted:
            lines[path] = "extra", ()
        elif differs := wanted[path].differing(found[path], ALL):
            lines[path] = "differs", differs
    return lines


def link_groups(top: Path) -> set[frozenset[bytes]]:
    """Return the sets of paths of one inode each."""
    groups: dict[int, set[bytes]] = {}
    for directory, _, files in os.walk(os.fsencode(top)):
        for name in files:
            path = os.path.join(directory, name)
            if (status := os.lstat(path)).st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                groups.setdefault(status.st_ino, set()).add(os.path.relpath(path, os.fsencode(top)))
    return {frozenset(group) for group in groups.values()}
