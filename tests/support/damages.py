"""Changes to a tree, each with the expected report."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from tests.support.files import noise

MIB = 1 << 20
HOLE = 7 * MIB
"""An offset in the middle of a hole of the file ``sparse``."""


def make_tree(path: Path) -> None:
    """Create a tree for all ``DAMAGES``."""
    path.mkdir()
    (path / "small").write_bytes(b"0123456789" * 100)
    (path / "other").write_bytes(b"9876543210" * 100)
    (path / "empty").touch()
    (path / "large").write_bytes(noise(9 * MIB + 1))
    with open(path / "sparse", "wb") as file:
        file.write(b"begin")
        file.truncate(12 * MIB)
    (path / "directory/inner").mkdir(parents=True)
    (path / "directory/inner/leaf").write_bytes(b"leaf")
    (path / "hollow").mkdir()
    (path / "link").symlink_to("small")
    os.mkfifo(path / "pipe")
    (path / "linked").write_bytes(b"two names")
    os.link(path / "linked", path / "directory/linked")


def flip(path: Path, at: int) -> None:
    """Change one byte (from the end if ``at`` is negative), and restore the times of the file."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


class Damage(NamedTuple):
    """A change; ``reported`` are the lines of pverify, in tree order."""

    do: Callable[[Path], object]
    reported: tuple[str, ...]


def _retarget(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("smalL")


def _becomes_directory(tree: Path) -> None:
    (tree / "small").unlink()
    (tree / "small").mkdir()
    (tree / "small/new").touch()


def _becomes_file(tree: Path) -> None:
    (tree / "directory/inner/leaf").unlink()
    (tree / "directory/inner").rmdir()
    (tree / "directory/inner").touch()


def _becomes_link(tree: Path) -> None:
    (tree / "pipe").unlink()
    (tree / "pipe").symlink_to("pipe")


def _becomes_empty_file(tree: Path) -> None:
    (tree / "pipe").unlink()
    (tree / "pipe").touch()


DAMAGES = {
    "first-byte": Damage(lambda tree: flip(tree / "small", 0), ("changed small",)),
    "last-byte": Damage(lambda tree: flip(tree / "small", -1), ("changed small",)),
    "byte-of-a-large-file": Damage(lambda tree: flip(tree / "large", 5 * MIB), ("changed large",)),
    "last-byte-of-a-large-file": Damage(lambda tree: flip(tree / "large", -1), ("changed large",)),
    "byte-in-a-hole": Damage(lambda tree: flip(tree / "sparse", HOLE), ("changed sparse",)),
    "deep": Damage(lambda tree: flip(tree / "directory/inner/leaf", 1), ("changed directory/inner/leaf",)),
    "both-names": Damage(lambda tree: flip(tree / "linked", 1), ("changed directory/linked", "changed linked")),
    "shorter": Damage(lambda tree: os.truncate(tree / "small", 999), ("changed small",)),
    "longer": Damage(lambda tree: os.truncate(tree / "small", 1001), ("changed small",)),
    "longer-hole": Damage(lambda tree: os.truncate(tree / "sparse", 12 * MIB + 1), ("changed sparse",)),
    "emptied": Damage(lambda tree: os.truncate(tree / "small", 0), ("changed small",)),
    "a-zero-byte": Damage(lambda tree: os.truncate(tree / "empty", 1), ("changed empty",)),
    "link-target": Damage(_retarget, ("changed link",)),
    "name": Damage(lambda tree: (tree / "small").rename(tree / "smalL"), ("extra smalL", "missing small")),
    "name-of-a-directory": Damage(
        lambda tree: (tree / "directory").rename(tree / "directorx"),
        (
            "extra directorx", "extra directorx/inner", "extra directorx/inner/leaf", "extra directorx/linked",
            "missing directory", "missing directory/inner", "missing directory/inner/leaf", "missing directory/linked",
        ),
    ),
    "contents-swapped": Damage(lambda tree: swap(tree / "small", tree / "other"), ("changed other", "changed small")),
    "names-swapped": Damage(
        lambda tree: swap(tree / "hollow", tree / "directory/inner"),
        ("missing directory/inner/leaf", "extra hollow/leaf"),
    ),
    "file-to-directory": Damage(_becomes_directory, ("changed small", "extra small/new")),
    "directory-to-file": Damage(_becomes_file, ("changed directory/inner", "missing directory/inner/leaf")),
    "pipe-to-link": Damage(_becomes_link, ("changed pipe",)),
    "pipe-to-file": Damage(_becomes_empty_file, ("changed pipe",)),
    "file-gone": Damage(lambda tree: (tree / "empty").unlink(), ("missing empty",)),
    "directory-gone": Damage(lambda tree: (tree / "hollow").rmdir(), ("missing hollow",)),
    "new-directory": Damage(lambda tree: (tree / "hollow/new").mkdir(), ("extra hollow/new",)),
    "new-file": Damage(lambda tree: (tree / "\n").touch(), ("extra \\n",)),
}  # fmt: skip


def make_trees(top: Path) -> None:
    """Create a tree for each damage, in a directory of its name."""
    top.mkdir()
    first, *others = DAMAGES
    make_tree(top / first)
    for name in others:
        subprocess.run(["cp", "-a", top / first, top / name], check=True)


def damage_all(top: Path, but: Collection[str] = ()) -> None:
    """Damage each tree of ``make_trees``."""
    for name, damage in DAMAGES.items():
        if name not in but:
            damage.do(top / name)
