"""Items are distinguished from later ones with the same inode number, on real file systems, by root and by users."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pcopy.fsio.identity import IdentityComparison, ItemIdentity, identity_of_open_item
from tests.support.filesystems import mounted, scratch
from tests.support.users import as_user, require_root

REMADE = 50


@contextmanager
def held(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def identify(path: Path, *, made: bool = True) -> ItemIdentity:
    with held(path) as descriptor:
        return identity_of_open_item(descriptor, os.fstat(descriptor), 0, created_by_job=made)


@pytest.fixture
def area() -> Iterator[Path]:
    with scratch() as place:
        yield place


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_recreated_item_has_another_identity(area: Path, kind: str) -> None:
    with mounted(kind, area) as point:
        again = 0
        for make, remove in ((Path.touch, Path.unlink), (Path.mkdir, Path.rmdir)):
            path = point / "item"
            for _ in range(REMADE):
                make(path)
                before = identify(path)
                assert identify(path).compare_with_identity(before) is IdentityComparison.SAME
                remove(path)
                make(path)
                after = identify(path)
                again += before.inode == after.inode
                assert before.compare_with_identity(after) is IdentityComparison.OTHER
                remove(path)
        assert again > REMADE or kind != "ext4"  # ext4 reuses an inode number immediately


def test_item_keeps_its_identity(area: Path) -> None:
    """After any change to it, for any user, through any descriptor, and after a remount."""
    with mounted("ext4", area) as point:
        point.chmod(0o777)
        path = point / "file"
        path.write_bytes(b"before")
        known = identify(path)
        path.chmod(0o4755)
        os.chown(path, 1234, 1234)
        os.link(path, point / "link")
        path.rename(point / "moved")
        (point / "link").write_bytes(b"after that")
        assert identify(point / "link").compare_with_identity(known) is IdentityComparison.SAME
        with open(point / "moved", "rb") as file:
            reading = identity_of_open_item(file.fileno(), os.fstat(file.fileno()), 0, created_by_job=True)
            assert reading.compare_with_identity(known) is IdentityComparison.SAME

        def ask() -> None:
            assert identify(point / "moved").compare_with_identity(known) is IdentityComparison.SAME

        as_user(ask)
        subprocess.run(["mount", "-o", "remount", str(point)], check=True)
        assert identify(point / "moved").compare_with_identity(known) is IdentityComparison.SAME


def test_symbolic_links_and_fifos_have_an_identity(area: Path) -> None:
    (area / "symlink").symlink_to("nowhere")
    os.mkfifo(area / "pipe")
    for name in ("symlink", "pipe"):
        known = identify(area / name)
        assert known.mark and identify(area / name).compare_with_identity(known) is IdentityComparison.SAME


def test_birth_time_identifies_items_without_file_handles(area: Path) -> None:
    """The kernel or a container refuses name_to_handle_at(2)."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace here")
    program = (
        "import os, sys; from pcopy.fsio.identity import identity_of_open_item as of\n"
        "for path in sys.argv[1:]:\n"
        "    at = os.open(path, os.O_PATH)\n"
        "    print(of(at, os.fstat(at), 0, created_by_job=True).mark.hex())"
    )
    (area / "one").touch()
    (area / "other").mkdir()
    paths = [str(area / "one"), str(area / "other")]
    inject = "inject=name_to_handle_at:error=EOPNOTSUPP"
    command = [strace, "-qq", "-o", "/dev/null", "-e", inject, sys.executable, "-c", program, *paths]
    reported = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for path, mark in zip(paths, map(bytes.fromhex, reported), strict=True):
        known = identify(Path(path))
        there = known._replace(mark=mark)
        assert mark[:1] == b"B" and int(mark[1:]) > 10**18
        assert there.compare_with_identity(there) is IdentityComparison.SAME
        assert there.compare_with_identity(known) is known.compare_with_identity(there) is IdentityComparison.UNKNOWN


def test_identities_without_marks_cannot_be_distinguished() -> None:
    one = ItemIdentity(0, 7, b"H\1\0\0\0abcd")
    assert one.compare_with_identity(ItemIdentity(0, 7, b"H\1\0\0\0abcd")) is IdentityComparison.SAME
    assert one.compare_with_identity(ItemIdentity(0, 7, b"H\1\0\0\0abce")) is IdentityComparison.OTHER
    assert one.compare_with_identity(ItemIdentity(0, 8, b"H\1\0\0\0abcd")) is IdentityComparison.OTHER
    assert one.compare_with_identity(ItemIdentity(1, 7, b"H\1\0\0\0abcd")) is IdentityComparison.OTHER
    for mark in (b"", b"B17", b"H\2\0\0\0abcd", b"H\1\0\0\0abcde"):
        assert (
            one.compare_with_identity(ItemIdentity(0, 7, mark))
            is ItemIdentity(0, 7, mark).compare_with_identity(one)
            is IdentityComparison.UNKNOWN
        )
    assert ItemIdentity(0, 7).compare_with_identity(ItemIdentity(0, 7)) is IdentityComparison.UNKNOWN
    assert ItemIdentity(0, 7, b"B17").compare_with_identity(ItemIdentity(0, 7, b"B170")) is IdentityComparison.OTHER


def test_file_handles_of_fuse_are_not_used(area: Path) -> None:
    """Handles of FUSE contain numbers that change once the kernel has dropped the item from its cache."""
    if not shutil.which("bindfs") or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("there is no bindfs here, or no FUSE")
    behind, point = area / "behind", area / "point"
    for path in (behind / "directory", point):
        path.mkdir(parents=True)
    tried = subprocess.run(["bindfs", behind, point], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"bindfs can't mount here: {tried.stderr.strip()}")
    try:
        assert identify(point / "directory").mark[:1] != b"H"
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_on_overlay_only_items_created_by_the_job_are_marked(area: Path) -> None:
    """An item of a lower layer becomes another item with the first write to it."""
    require_root("only root can mount an overlay")
    with mounted("ext4", area) as upper:
        lower, overlay = area / "lower", area / "overlay"
        for path in (lower / "directory", overlay, upper / "upper", upper / "work"):
            path.mkdir(parents=True)
        layers = f"lowerdir={lower},upperdir={upper / 'upper'},workdir={upper / 'work'}"
        done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(overlay)], check=False)
        if done.returncode:
            pytest.skip("this kernel can't mount an overlay")
        try:
            old = identify(overlay / "directory", made=False)
            (overlay / "directory" / "new").mkdir()
            assert old.mark == identify(overlay / "directory", made=False).mark == b""
            new = identify(overlay / "directory" / "new")
            (overlay / "directory" / "new" / "file").touch()
            assert (
                new.mark
                and new.compare_with_identity(identify(overlay / "directory" / "new")) is IdentityComparison.SAME
            )
        finally:
            subprocess.run(["umount", str(overlay)], check=True)
