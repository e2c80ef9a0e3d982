"""The rows of the fidelity matrix: each describes one small item, how to create it, and how to judge its copy.

Rows share runs: one source tree contains all items of a run, each under the key of its row. Rows that would disturb
others (existing targets, items that cannot be copied, other file systems) have their own runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

Make = Callable[[Path], object]
Judge = Callable[[Path, Path], bool]
"""A function of copy and source, called as root after the run. It returns True if the copy has the property."""

GROUP = 4321
"""A supplementary group of the ordinary user."""

OTHER = 4242
"""A user and a group that are not those of the ordinary user."""

UMASK = 0o077


class Row(NamedTuple):
    """One row.

    ``by_root``: root creates the item, also in the source of an ordinary user. ``root_only``: why the column of an
    ordinary user does not apply. ``prepare`` creates the target that exists before the copy.
    """

    section: str
    attribute: str
    kind: str
    make: Make
    judge: Judge
    run: str = "main"
    by_root: bool = False
    root_only: str = ""
    prepare: Make | None = None
    prepare_by_root: bool = False

    @property
    def key(self) -> str:
        """The name of the item, by which messages of a tool about it are found."""
        words = f"{self.section} {self.attribute} {self.kind}".lower()
        return "".join(letter if letter.isalnum() else "-" for letter in words)


NO_DEVICES = "an ordinary user can't create devices"
NO_TRUSTED = "the kernel hides `trusted.*` attributes from ordinary users"


def make_file(path: Path) -> None:
    path.write_bytes(b"content of a file")


def make_symlink(path: Path) -> None:
    path.symlink_to("the target/of a symlink")


def make_device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


def make_block_device(path: Path) -> None:
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(259, 70000))


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


MAKE: dict[str, Make] = {
    "files": make_file,
    "directories": Path.mkdir,
    "symlinks": make_symlink,
    "devices": make_device,
    "FIFOs": make_fifo,
    "sockets": make_socket,
}
KINDS = tuple(MAKE)
NOT_SYMLINKS = tuple(kind for kind in KINDS if kind != "symlinks")

TYPES = {
    "files": stat.S_IFREG,
    "directories": stat.S_IFDIR,
    "symlinks": stat.S_IFLNK,
    "devices": stat.S_IFCHR,
    "FIFOs": stat.S_IFIFO,
    "sockets": stat.S_IFSOCK,
}


def is_kind(path: Path, kind: str) -> bool:
    return stat.S_IFMT(path.lstat().st_mode) == TYPES[kind]


def like_made(path: Path, kind: str) -> bool:
    """Return True if the item is what ``MAKE[kind]`` creates, apart from metadata."""
    if not is_kind(path, kind):
        return False
    if kind == "files":
        return path.read_bytes() == b"content of a file"
    if kind == "symlinks":
        return os.readlink(path) == "the target/of a symlink"
    return kind != "devices" or path.lstat().st_rdev == os.makedev(1, 3)


def on_kinds(
    section: str,
    attribute: str,
    kinds: Iterable[str],
    change: Make,
    judge: Callable[[Path], bool],
    *,
    run: str = "main",
    by_root: bool = False,
    root_only: str = "",
) -> list[Row]:
    """Return one row for each of ``kinds``; ``change`` gives its item the attribute that ``judge`` checks."""

    def row(kind: str) -> Row:
        def make(path: Path) -> None:
            MAKE[kind](path)
            change(path)

        why = root_only or (NO_DEVICES if kind == "devices" else "")
        return Row(
            section,
            attribute,
            kind,
            make,
            lambda copy, _: is_kind(copy, kind) and judge(copy),
            run,
            by_root or bool(why),
            why,
        )

    return [row(kind) for kind in kinds]
