"""Rows about metadata: owners, modes, times, extended attributes, ACLs, and inheritance from the destination
directory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from tests.fidelity.rows import (
    GROUP,
    KINDS,
    MAKE,
    NO_DEVICES,
    NO_TRUSTED,
    NOT_SYMLINKS,
    OTHER,
    Row,
    is_kind,
    on_kinds,
)
from tests.support.attributes import ACCESS_ACL, CAPABILITY, DEFAULT_ACL, NET_RAW, acl
from tests.support.files import mode_of

OWNER = "Owner and mode"
TIMES = "Times"
XATTRS = "Extended attributes and ACLs"
INHERITED = "Inheritance from the destination directory"

SET_ID = 0o6000
SECOND = 10**9
NAMED_USERS = acl(7, 4, 0, {1: 4, 1000: 6}, {5: 1})
BINARY = b"\x00binary\xff\n" * 40


def chown(path: Path, uid: int, gid: int) -> None:
    os.chown(path, uid, gid, follow_symlinks=False)


def owners() -> list[Row]:
    def owned(path: Path) -> bool:
        return (path.lstat().st_uid, path.lstat().st_gid) == (OTHER, OTHER + 1)

    rows = on_kinds(
        OWNER,
        "owner and group of others",
        KINDS,
        lambda path: chown(path, OTHER, OTHER + 1),
        owned,
        run="others",
        by_root=True,
    )
    rows += on_kinds(
        OWNER,
        "a group that the copier is a member of",
        KINDS,
        lambda path: chown(path, -1, GROUP),
        lambda path: path.lstat().st_gid == GROUP,
    )
    for name, mode in {
        "permission bits, whatever the umask": 0o757,
        "set-id bits": 0o6751,
        "sticky bit": 0o1767,
    }.items():
        rows += on_kinds(
            OWNER,
            name,
            NOT_SYMLINKS,
            partial(lambda path, mode: path.chmod(mode), mode=mode),
            partial(lambda path, mode: mode_of(path) == mode, mode=mode),
        )

    def somebody_elses(path: Path) -> None:
        chown(path, OTHER, OTHER)
        path.chmod(0o6755)

    def harmless(path: Path) -> bool:
        kept = (path.lstat().st_uid, path.lstat().st_gid) == (OTHER, OTHER)
        return mode_of(path) == (0o6755 if kept else 0o755)

    rows += on_kinds(
        OWNER,
        "set-id bits of others, only together with their owner",
        ("files", "directories"),
        somebody_elses,
        harmless,
        by_root=True,
    )
    return rows


def times() -> list[Row]:
    def at(path: Path, atime: int, mtime: int) -> None:
        os.utime(path, ns=(atime, mtime), follow_symlinks=False)

    moments = {
        "modification time, in nanoseconds": 1_234_567_890_123_456_789,
        "modification time before 1970": -SECOND * 86400 * 365 * 30 + 123_456_789,
        "modification time after 2038": SECOND * (2**32 + 5) + 987_654_321,
    }
    rows = []
    for name, moment in moments.items():
        rows += on_kinds(
            TIMES,
            name,
            KINDS,
            partial(at, atime=1_600_000_000 * SECOND, mtime=moment),
            partial(lambda path, moment: path.lstat().st_mtime_ns == moment, moment=moment),
        )
    accessed = 1_111_111_111_222_222_222
    rows += on_kinds(
        TIMES,
        "access time, in nanoseconds",
        KINDS,
        partial(at, atime=accessed, mtime=SECOND * 1_600_000_000),
        lambda path: path.lstat().st_atime_ns == accessed,
    )
    for name, moment in {"in the year 1800": -5_364_662_400, "in the year 5000": 95_617_584_000}.items():
        rows += on_kinds(
            TIMES,
            f"modification time {name} (tmpfs)",
            ("files", "directories", "symlinks"),
            partial(at, atime=0, mtime=moment * SECOND + 5),
            partial(lambda path, moment: path.lstat().st_mtime_ns == moment * SECOND + 5, moment=moment),
            run="tmpfs",
        )

    def make_unread(path: Path, kind: str) -> None:
        if kind == "directories":
            path.mkdir()
            (path / "inside").touch()
        else:
            path.write_bytes(b"x" * (26 << 20 if kind == "large files" else 9))
        at(path, accessed, SECOND * 1_600_000_000)

    rows += [
        Row(
            TIMES,
            "access times of the source do not change",
            kind,
            partial(make_unread, kind=kind),
            lambda _, source: source.lstat().st_atime_ns == accessed,
        )
        for kind in ("files", "large files", "directories")
    ]
    return rows


def set_value(path: Path, name: str, value: bytes) -> None:
    os.setxattr(path, name, value, follow_symlinks=False)


def has_value(path: Path, name: str, value: bytes) -> bool:
    return os.getxattr(path, name, follow_symlinks=False) == value


def xattrs() -> list[Row]:
    rows = []
    both = ("files", "directories")

    def set_values(path: Path, values: dict[str, bytes]) -> None:
        for name, value in values.items():
            set_value(path, name, value)

    def judge(path: Path, values: dict[str, bytes]) -> bool:
        return all(has_value(path, name, value) for name, value in values.items())

    def add(title: str, kinds: tuple[str, ...], values: dict[str, bytes], **more: Any) -> None:
        rows.extend(
            on_kinds(XATTRS, title, kinds, partial(set_values, values=values), partial(judge, values=values), **more)
        )

    def capable_and_anothers(path: Path) -> None:
        chown(path, OTHER, OTHER)
        set_value(path, CAPABILITY, NET_RAW)

    add("`user.*`", both, {"user.binary": BINARY, "user.empty": b"", "user." + "n" * 200: b"long name"})
    add("`user.*` of 60,000 bytes (XFS)", both, {"user.big": b"x" * 60_000}, run="xfs")
    add("an attribute too large for the destination (from XFS to ext4)", both, {"user.big": b"x" * 6000}, run="narrow")
    add("`trusted.*`", KINDS, {"trusted.thing": BINARY}, by_root=True, root_only=NO_TRUSTED)
    add("`security.capability`", ("files",), {CAPABILITY: NET_RAW}, run="others", by_root=True)
    rows += on_kinds(
        XATTRS,
        "`security.capability` of files of others",
        ("files",),
        capable_and_anothers,
        lambda path: has_value(path, CAPABILITY, NET_RAW),
        run="others",
        by_root=True,
    )
    add("access ACLs", NOT_SYMLINKS, {ACCESS_ACL: NAMED_USERS})
    add("default ACLs", ("directories",), {DEFAULT_ACL: acl(7, 5, 0, {1000: 7})})

    def make_both(path: Path) -> None:
        path.mkdir()
        set_value(path, ACCESS_ACL, NAMED_USERS)
        set_value(path, DEFAULT_ACL, acl(7, 0, 0, {5: 5}))

    rows.append(
        Row(
            XATTRS,
            "access and default ACL",
            "of one directory",
            make_both,
            lambda copy, _: (
                has_value(copy, ACCESS_ACL, NAMED_USERS) and has_value(copy, DEFAULT_ACL, acl(7, 0, 0, {5: 5}))
            ),
        )
    )

    def make_read_only(path: Path) -> None:
        path.write_bytes(b"x")
        set_value(path, "user.x", b"1")
        set_value(path, ACCESS_ACL, acl(4, 4, 0, {1: 4}))

    rows.append(
        Row(
            XATTRS,
            "attributes and ACLs of read-only files",
            "",
            make_read_only,
            lambda copy, _: has_value(copy, "user.x", b"1") and has_value(copy, ACCESS_ACL, acl(4, 4, 0, {1: 4})),
        )
    )
    return rows


def has_no_acl(path: Path) -> bool:
    """Return True if the item has no ACL. (``MAKE`` and the umask give no permissions to others.)"""
    names = os.listxattr(path, follow_symlinks=False)
    return ACCESS_ACL not in names and DEFAULT_ACL not in names


def make_inheritable(path: Path) -> None:
    """Let a directory pass on its group, its set-gid bit and an ACL to new items."""
    os.chown(path, -1, GROUP)
    os.setxattr(path, DEFAULT_ACL, acl(7, 7, 7, {1000: 7}))
    path.chmod(path.stat().st_mode & 0o777 | 0o2000)


def inherited() -> list[Row]:
    def plain(path: Path) -> None:
        if not path.is_symlink():
            path.chmod(0o750)

    rows = on_kinds(
        INHERITED,
        "no group from a set-gid directory",
        KINDS,
        plain,
        lambda path: path.lstat().st_gid != GROUP,
        run="into",
    )
    rows += on_kinds(
        INHERITED,
        "no set-gid bit from a set-gid directory",
        ("directories",),
        plain,
        lambda path: not mode_of(path) & SET_ID,
        run="into",
    )
    rows += on_kinds(
        INHERITED,
        "no ACL from a default ACL",
        NOT_SYMLINKS,
        plain,
        lambda path: has_no_acl(path) and mode_of(path) & 0o777 == 0o750,
        run="into",
    )

    def inside(kind: str) -> Row:
        """Return a row about an item that inherits nothing, although its source directory passes on group and ACL."""

        def make(path: Path) -> None:
            path.mkdir(mode=0o700)
            MAKE[kind](path / "item")
            plain(path / "item")
            make_inheritable(path)

        def judge(copy: Path, source: Path) -> bool:
            item, like = copy / "item", (source / "item").lstat()
            ours = item.lstat()
            return (
                is_kind(item, kind)
                and has_no_acl(item)
                and (ours.st_mode, ours.st_gid) == (like.st_mode, like.st_gid)
                and mode_of(copy) & 0o2000 != 0
                and DEFAULT_ACL in os.listxattr(copy)
            )

        root_only = NO_DEVICES if kind == "devices" else ""
        title = "items without an ACL in source directories with a default ACL and a set-gid bit"
        return Row(INHERITED, title, kind, make, judge, by_root=bool(root_only), root_only=root_only)

    rows += [inside(kind) for kind in NOT_SYMLINKS]

    def make_unwritable(path: Path) -> None:
        (path / "sub/sub").mkdir(parents=True)
        (path / "sub/sub/file").write_bytes(b"x")
        for directory in (path / "sub/sub", path / "sub", path):
            set_value(directory, DEFAULT_ACL, acl(0, 0, 0, {}))

    rows.append(
        Row(
            INHERITED,
            "content below a default ACL that permits no user to write",
            "",
            make_unwritable,
            lambda copy, _: (
                (copy / "sub/sub/file").read_bytes() == b"x"
                and has_value(copy / "sub/sub", DEFAULT_ACL, acl(0, 0, 0, {}))
            ),
            run="unwritable",
        )
    )
    return rows


def all_rows() -> list[Row]:
    return [*owners(), *times(), *xattrs(), *inherited()]
