"""Rows about existing targets of every type: what replaces what, and what happens to their metadata."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.fidelity.rows import MAKE, NO_DEVICES, Judge, Make, Row, like_made, make_device, make_fifo, make_socket
from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl

EXISTING = "Existing targets"

KEEP = b"this is not the copier's to write to"


def outside(path: Path) -> Path:
    """Return a path next to the target, to which a link leads; the item there must not change."""
    return path.with_name(path.name + ".outside")


def old_file(path: Path) -> None:
    path.write_bytes(b"old content, longer than the new")


def read_only_file(path: Path) -> None:
    old_file(path)
    path.chmod(0o400)


def hard_linked_file(path: Path) -> None:
    outside(path).write_bytes(KEEP)
    os.link(outside(path), path)


def link_to_file(path: Path) -> None:
    outside(path).write_bytes(KEEP)
    path.symlink_to(outside(path).name)


def link_to_directory(path: Path) -> None:
    outside(path).mkdir()
    path.symlink_to(outside(path).name)


def dangling_link(path: Path) -> None:
    path.symlink_to(outside(path).name)


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_bytes(KEEP)


TARGETS: dict[str, Make] = {
    "a file": old_file,
    "a read-only file": read_only_file,
    "a file with further names": hard_linked_file,
    "a symlink to a file": link_to_file,
    "a symlink to a directory": link_to_directory,
    "a dangling symlink": dangling_link,
    "an empty directory": Path.mkdir,
    "a FIFO": make_fifo,
    "a socket": make_socket,
    "a device": make_device,
}

IS_UNTOUCHED: dict[str, Judge] = {
    "a file with further names": lambda copy, _: outside(copy).read_bytes() == KEEP,
    "a symlink to a file": lambda copy, _: outside(copy).read_bytes() == KEEP,
    "a symlink to a directory": lambda copy, _: os.listdir(outside(copy)) == [],
    "a dangling symlink": lambda copy, _: not os.path.lexists(outside(copy)),
}

SINGULAR = {
    "files": "file",
    "directories": "directory",
    "symlinks": "symlink",
    "devices": "device",
    "FIFOs": "FIFO",
    "sockets": "socket",
}


def replaced() -> list[Row]:
    rows = []
    for kind in MAKE:
        for target, prepare in TARGETS.items():
            if kind == "directories" and target == "an empty directory":
                continue  # an existing directory is kept, and has its own rows

            def make(path: Path, kind: str) -> None:
                MAKE[kind](path)
                if kind == "directories":
                    (path / "inside").write_bytes(b"inside")

            def judge(copy: Path, source: Path, kind: str, target: str) -> bool:
                there = kind != "directories" or (copy / "inside").read_bytes() == b"inside"
                return (
                    there
                    and like_made(copy, kind)
                    and (target not in IS_UNTOUCHED or IS_UNTOUCHED[target](copy, source))
                )

            # cp opens a FIFO to write a file to it, and waits; one that is no file is replaced.
            run = "waiting" if (kind, target) == ("files", "a FIFO") else "existing"
            device = kind == "devices"
            rows.append(
                Row(EXISTING, f"a {SINGULAR[kind]} over", target, partial(make, kind=kind),
                    partial(judge, kind=kind, target=target), run, device, NO_DEVICES if device else "",
                    prepare, target == "a device")
            )  # fmt: skip
    return rows


def kept() -> list[Row]:
    def judge(copy: Path, _: Path) -> bool:
        return (copy / "precious").read_bytes() == KEEP

    return [
        Row(EXISTING, "a directory that is not empty is never replaced by", f"a {SINGULAR[kind]}", MAKE[kind], judge,
            "kept", prepare=full_directory)
        for kind in ("files", "symlinks", "FIFOs", "sockets")
    ]  # fmt: skip


def old_metadata(path: Path) -> None:
    """Set metadata that the source lacks and the copy must not keep."""
    os.setxattr(path, "user.old", b"old")
    os.setxattr(path, ACCESS_ACL, acl(7, 7, 0, {1000: 7}))
    if path.is_dir():
        os.setxattr(path, DEFAULT_ACL, acl(7, 7, 7, {1000: 7}))


def metadata() -> list[Row]:
    stamp = 1_222_333_444_555_666_777

    def make(path: Path, kind: str) -> None:
        MAKE[kind](path)
        os.setxattr(path, "user.new", b"new")
        path.chmod(0o750)
        os.utime(path, ns=(stamp, stamp))

    def prepare(path: Path, kind: str) -> None:
        if kind == "files":
            old_file(path)
        else:
            full_directory(path)
        old_metadata(path)

    def is_new(copy: Path, _: Path) -> bool:
        status = copy.stat()
        return (status.st_mode & 0o7777, status.st_mtime_ns) == (0o750, stamp) and os.getxattr(
            copy, "user.new"
        ) == b"new"

    def nothing_old(names: tuple[str, ...], copy: Path, _: Path) -> bool:
        return not set(names) & set(os.listxattr(copy))

    rows = []
    for kind in ("files", "directories"):
        both = partial(make, kind=kind), partial(prepare, kind=kind)
        tests: dict[str, Judge] = {
            "mode, times and attributes become the source's": is_new,
            "attributes that the source lacks are removed": partial(nothing_old, ("user.old",)),
            "ACLs that the source lacks are removed": partial(nothing_old, (ACCESS_ACL, DEFAULT_ACL)),
        }
        for name, judge in tests.items():
            rows.append(Row(EXISTING, name, kind, both[0], judge, "existing", prepare=both[1]))

    def add_other(path: Path) -> None:
        path.mkdir()
        (path / "new").write_bytes(b"new")

    rows.append(
        Row(EXISTING, "other items in an existing directory remain", "", add_other,
            lambda copy, _: (copy / "precious").read_bytes() == KEEP and (copy / "new").read_bytes() == b"new",
            "existing", prepare=full_directory)
    )  # fmt: skip
    return rows


def all_rows() -> list[Row]:
    return [*replaced(), *kept(), *metadata()]
