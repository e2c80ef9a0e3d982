"""Rows about the items themselves: contents and holes, types, hard links, names, depth, inaccessible directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.fidelity.rows import (
    KINDS,
    MAKE,
    NO_DEVICES,
    Row,
    is_kind,
    like_made,
    make_block_device,
)
from tests.support.hostile import deep
from tests.support.walk import walk

KIB, MIB = 1 << 10, 1 << 20
PATTERN = bytes(range(256)) * 16

CONTENTS = "Contents and kinds"
NAMES = "Hard links, names, depth"
CLOSED = "Directories and files without permissions"

HOLES: dict[str, tuple[int, Sequence[int]]] = {
    "in front": (8 * MIB, [7 * MIB]),
    "in the middle": (8 * MIB, [0, 7 * MIB]),
    "at the end": (8 * MIB, [0]),
    "all over": (8 * MIB, range(0, 8 * MIB, 512 * KIB)),
    "and no data at all": (8 * MIB, []),
}
"""Size, and offsets of blocks of data."""


def write_sparse(path: Path, size: int, islands: Sequence[int]) -> None:
    with open(path, "wb") as file:
        file.truncate(size)
        for offset in islands:
            file.seek(offset)
            file.write(PATTERN)


def same_bytes(copy: Path, source: Path) -> bool:
    return is_kind(copy, "files") and copy.read_bytes() == source.read_bytes()


def same_holes(copy: Path, source: Path) -> bool:
    """Return True if the copy has the same bytes and few blocks: a file system may allocate some more blocks around
    data."""
    few = source.stat().st_blocks * 512 + 2 * MIB
    return same_bytes(copy, source) and copy.stat().st_blocks * 512 <= few


def write(size: int, path: Path) -> None:
    path.write_bytes((PATTERN * (size // len(PATTERN) + 1))[:size])


def contents() -> list[Row]:
    sizes = {"empty": 0, "some bytes": 17, "5 MiB": 5 * MIB + 1, "26 MiB (in parts, by several ranks)": 26 * MIB + 3}
    rows = [Row(CONTENTS, "contents", name, partial(write, size), same_bytes) for name, size in sizes.items()]
    for name, (size, islands) in HOLES.items():
        rows.append(Row(CONTENTS, "holes", name, partial(write_sparse, size=size, islands=islands), same_holes))
    size, islands = HOLES["in the middle"]
    for system in ("XFS", "tmpfs"):
        make = partial(write_sparse, size=size, islands=islands)
        rows.append(Row(CONTENTS, "holes", f"on {system}", make, same_holes, run=system.lower()))
    rows.append(Row(CONTENTS, "files in /proc, which report a size of 0", "", lambda _: None, same_bytes, run="proc"))
    for kind in KINDS:
        root_only = kind == "devices"
        run = "closed" if root_only else "main"
        judge = partial(lambda copy, _, kind: like_made(copy, kind), kind=kind)
        rows.append(Row(CONTENTS, "the item itself", kind, MAKE[kind], judge, run, root_only))
    rows.append(
        Row(
            CONTENTS,
            "the item itself",
            "block devices",
            make_block_device,
            lambda copy, _: copy.is_block_device() and copy.lstat().st_rdev == os.makedev(259, 70000),
            "closed",
            True,
        )
    )
    targets = {"dangling": "nowhere", "to itself": "key", "out of the tree": "/etc/passwd", "long": "x/" * 500}
    for name, target in targets.items():
        judge = partial(lambda copy, _, target: os.readlink(copy) == target, target=target)
        rows.append(Row(CONTENTS, "symlinks", name, partial(lambda path, to: path.symlink_to(to), to=target), judge))
    return rows


def links() -> list[Row]:
    def make(path: Path, kind: str) -> None:
        path.mkdir()
        (path / "sub").mkdir()
        MAKE[kind](path / "one")
        for name in ("two", "sub/three"):
            os.link(path / "one", path / name, follow_symlinks=False)

    def judge(copy: Path, _: Path, kind: str) -> bool:
        found = [(copy / name).lstat() for name in ("one", "two", "sub/three")]
        return like_made(copy / "one", kind) and len({(status.st_ino, status.st_nlink) for status in found}) == 1

    return [
        Row(NAMES, "hard links", f"of {kind}", partial(make, kind=kind), partial(judge, kind=kind),
            by_root=kind == "devices", root_only=NO_DEVICES if kind == "devices" else "")
        for kind in KINDS if kind != "directories"
    ]  # fmt: skip


ODD_NAMES: dict[str, list[bytes]] = {
    "that are not UTF-8": [b"\xff\xfe", b"caf\xe9", b"\xc3\x28"],
    "with line breaks and control characters": [b"line\nbreak", b"\r\n", b"\x01\x1b[2J\x7f", b"tab\t"],
    "of 255 bytes": [b"a" * 255, b"\xff" * 255],
    "like options, patterns and paths": [b"-rf", b"--delete", b"*", b"[a]", b"a:b", b"\\", b"~", b" ", b"...", b"%s"],
    "like those of temporary files": [b".pcopy-0-0-0", b".file.XXXXXX", b".~tmp~"],
}


def names() -> list[Row]:
    def make(path: Path, wanted: list[bytes]) -> None:
        path.mkdir()
        for name in wanted:
            with open(os.path.join(os.fsencode(path), name), "wb") as file:
                file.write(name)

    def judge(copy: Path, _: Path, wanted: list[bytes]) -> bool:
        there = os.fsencode(copy)
        return sorted(os.listdir(there)) == sorted(wanted) and all(
            Path(os.fsdecode(os.path.join(there, name))).read_bytes() == name for name in wanted
        )

    rows = [
        Row(NAMES, "names", kind, partial(make, wanted=wanted), partial(judge, wanted=wanted))
        for kind, wanted in ODD_NAMES.items()
    ]

    def make_deep(path: Path) -> None:
        path.mkdir()
        deep(path)

    def judge_deep(copy: Path, source: Path) -> bool:
        found = ([(entry.path, entry.type) for entry in walk(os.fsencode(path))] for path in (copy, source))
        return next(found) == next(found)

    rows.append(Row(NAMES, "trees deeper than PATH_MAX (6,000 bytes)", "", make_deep, judge_deep, run="deep"))
    return rows


def closed() -> list[Row]:
    """Return rows about modes that deny access to the owner. An ordinary user cannot read items of mode 0."""

    def make(path: Path, mode: int) -> None:
        path.mkdir()
        make_inside(path)
        path.chmod(mode)

    def make_inside(path: Path) -> None:
        (path / "sub").mkdir()
        (path / "sub/file").write_bytes(b"inside")
        (path / "file").write_bytes(b"inside")

    def judge(copy: Path, _: Path, mode: int) -> bool:
        return copy.stat().st_mode & 0o7777 == mode and (copy / "sub/file").read_bytes() == b"inside"

    def make_file(path: Path, mode: int) -> None:
        path.write_bytes(b"closed")
        path.chmod(mode)

    def judge_file(copy: Path, _: Path, mode: int) -> bool:
        return copy.stat().st_mode & 0o7777 == mode and copy.read_bytes() == b"closed"

    rows = []
    for mode, run in ((0o555, "main"), (0o000, "closed")):
        rows.append(
            Row(CLOSED, f"directories of mode {mode:04o} with content", "", partial(make, mode=mode),
                partial(judge, mode=mode), run)
        )  # fmt: skip
    for mode, run in ((0o400, "main"), (0o000, "closed")):
        rows.append(
            Row(CLOSED, f"files of mode {mode:04o}", "", partial(make_file, mode=mode),
                partial(judge_file, mode=mode), run)
        )  # fmt: skip
    return rows


def all_rows() -> list[Row]:
    return [*contents(), *links(), *names(), *closed()]
