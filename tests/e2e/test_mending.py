"""``--existing changed`` updates different metadata without copying data, and does not write to an unchanged tree."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.attributes import acl, has_acls, has_xattrs
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import require_strace
from tests.support.files import NOW, age_directories, mode_of, write
from tests.support.oracle import differences
from tests.support.trees import random_tree
from tests.support.users import NOBODY, require_root

MIB = 1 << 20
SECOND = 10**9
CHANGED: list[Argument] = ["--json", "--checkpoint", "none", "--chunk-size", "1M", "--existing", "changed"]

WRITES = (
    "creat mkdir mkdirat mknod mknodat symlink symlinkat link linkat unlink unlinkat rmdir rename renameat renameat2 "
    "truncate ftruncate chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utimensat utimes futimesat utime "
    "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr write pwrite64 pwritev pwritev2 writev "
    "copy_file_range sendfile fallocate ioctl"
)
"""All system calls that could change something below the destination."""


def copy_changed(area: Path, *options: Argument, **more: Any) -> dict[str, Any]:
    return summary(succeed(*CHANGED, *options, f"{area}/source/", area / "copy", **more))


def modifying_calls(area: Path, *words: Argument) -> list[str]:
    """Return the system calls of a run that modify the destination or an item in it."""
    require_strace()
    log = area / "trace"
    log.mkdir()
    calls = ",".join("?" + call for call in [*WRITES.split(), "open", "openat", "openat2"])
    run = ["strace", "-ff", "-qq", "-y", "-s", "4096", "-o", log / "log", "-e", f"trace={calls}"]
    succeed(*words, ranks=2, wrap=[str(word) for word in run])
    found = []
    for line in (line for file in log.iterdir() for line in file.read_text(errors="replace").splitlines()):
        name = line.partition("(")[0]
        if str(area / "copy") not in line or re.match(r"writev?\(\d+<(pipe|socket):", line):
            continue
        if name.startswith("open") and not re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC|TMPFILE)", line):
            continue
        found.append(line)
    return found


CHANGES: dict[str, Callable[[Path], object]] = {
    "mode": lambda path: path.chmod(0o640),
    "owner": lambda path: os.chown(path, 1234, 5678),
    "group": lambda path: os.chown(path, -1, 5678),
    "time": lambda path: os.utime(path, ns=(NOW, NOW + 77 * SECOND)),
    "less than a second": lambda path: os.utime(path, ns=(NOW, NOW - 987_654_321)),
    "attribute": lambda path: os.setxattr(path, "user.new", b"value"),
    "attribute's value": lambda path: os.setxattr(path, "user.old", b"other"),
    "attribute gone": lambda path: os.removexattr(path, "user.old"),
    "acl": lambda path: os.setxattr(path, "system.posix_acl_access", acl(6, 4, 0, {1234: 7})),
    "acl gone": lambda path: os.removexattr(path, "system.posix_acl_access"),
}


@pytest.mark.parametrize("names", [1, 100], ids=["few", "many"])
def test_each_metadata_difference_is_updated_without_copying(area: Path, names: int) -> None:
    """Small files, large files and directories are changed. With many names another code path reads their status."""
    require_root("give files away")
    if not (has_xattrs(os.fsencode(area)) and has_acls(os.fsencode(area))):
        pytest.skip("the file system has no attributes or ACLs")
    source = area / "source"
    paths = {}
    for what in CHANGES:
        paths[what] = [source / what / f"small{number}" for number in range(names)]
        for path in paths[what]:
            write(path, b"some content")
        paths[what].append(source / what / "large")
        write(paths[what][-1], b"x" * (5 * MIB))
        for path in paths[what]:
            os.setxattr(path, "user.old", b"value")
            os.setxattr(path, "system.posix_acl_access", acl(6, 4, 0, {1000: 4}))
    succeed(f"{source}/", area / "copy")
    assert copy_changed(area)["mended"] == 0
    inodes = {path: path.stat().st_ino for path in (area / "copy").rglob("*")}
    for what, change in CHANGES.items():
        for path in paths[what]:
            change(path)
        if what != "acl gone" and not what.startswith("attribute"):  # the directories have no ACLs and no attributes
            change(source / what)
    reported = copy_changed(area, ranks=2)
    files = len(CHANGES) * (names + 1)
    unchanged = 1 + sum(what == "acl gone" or what.startswith("attribute") for what in CHANGES)
    assert (reported["mended"], reported["skipped"]) == (files, files + unchanged)
    assert (reported["directories"], reported["files"], reported["bytes"]) == (len(CHANGES) + 1 - unchanged, 0, 0)
    assert differences(source, area / "copy") == []
    assert {path: path.stat().st_ino for path in (area / "copy").rglob("*")} == inodes
    assert copy_changed(area)["mended"] == 0


@pytest.mark.parametrize("size", [4, 7 * MIB], ids=["small", "split"])
def test_different_content_is_copied_whatever_the_time(area: Path, size: int) -> None:
    for name, there in {"same": b"d" * size, "other": b"D" + b"d" * (size - 1)}.items():
        write(area / "source" / name, b"d" * size)
        write(area / "copy" / name, there, NOW + 5 * SECOND)
    reported = copy_changed(area)
    assert (reported["files"], reported["skipped"], reported["mended"]) == (1, 1, 1)
    assert differences(area / "source", area / "copy") == []


def test_metadata_of_symlinks_is_updated_and_a_device_is_recreated(area: Path) -> None:
    require_root("make devices")
    for side in ("source", "copy"):
        (area / side).mkdir()
        for name in ("owner", "time", "as it was"):
            (area / side / f"link, {name}").symlink_to("target")
            os.mknod(area / side / f"device, {name}", 0o20600, os.makedev(1, 7))
        for path in (area / side).iterdir():
            os.utime(path, ns=(NOW, NOW), follow_symlinks=False)
    inodes = {path: path.lstat().st_ino for path in (area / "copy").glob("link*")}
    for path in (area / "source").iterdir():
        if "owner" in path.name:
            os.chown(path, 1234, 5678, follow_symlinks=False)
        if "time" in path.name:
            os.utime(path, ns=(NOW, NOW + 3 * SECOND), follow_symlinks=False)
    reported = copy_changed(area)
    assert (reported["mended"], reported["special"], reported["symlinks"]) == (3, 1, 0), (
        "a device with a different time is created again"
    )
    assert differences(area / "source", area / "copy") == []
    assert {path: path.lstat().st_ino for path in (area / "copy").glob("link*")} == inodes


@pytest.mark.c_backend
@pytest.mark.parametrize("options", [[], ["-X", "--no-preserve", "xattr,acl"]], ids=["all", "no attributes"])
def test_an_unchanged_tree_is_not_written_to(area: Path, options: list[Argument]) -> None:
    random_tree(area / "source", 11, files=60, directories=8, largest=2 * MIB)
    write(area / "source/large", b"l" * (7 * MIB))
    for number in range(200):
        write(area / f"source/flat/{number}", b"x" * number)
    (area / "source/flat").chmod(0o2750)
    succeed("-T", area / "source", area / "copy", *options)
    assert modifying_calls(area, *CHANGED, "--no-sync", "-T", area / "source", area / "copy", *options) == []


def test_target_file_with_several_hard_links_is_replaced(area: Path) -> None:
    """Otherwise a user who may create links in the target could have a file of another user changed."""
    require_root("give files away")
    write(area / "source/file", b"content")
    os.chown(area / "source/file", NOBODY, NOBODY)
    write(area / "elsewhere", b"CONTENT")
    (area / "elsewhere").chmod(0o600)
    (area / "copy").mkdir()
    os.link(area / "elsewhere", area / "copy/file")
    before = (area / "elsewhere").stat()
    reported = copy_changed(area)
    after = (area / "elsewhere").stat()
    assert (after.st_uid, after.st_mode, after.st_nlink) == (0, before.st_mode, 1)
    assert (reported["files"], reported["mended"]) == (1, 0)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("size", [4, 7 * MIB], ids=["small", "split"])
@pytest.mark.parametrize("change", ["mode", "owner", "capability"])
def test_file_with_unread_content_never_gets_privileges(area: Path, change: str, size: int) -> None:
    """Another user may have faked size and time: such a file must not become set-uid root."""
    require_root("give files away")
    write(area / "source/program", b"good" * (size // 4))
    (area / "source/program").chmod(0o755 if change == "capability" else 0o4755)
    write(area / "copy/program", b"EVIL" * (size // 4))
    (area / "copy/program").chmod(0o4755 if change == "owner" else 0o755)
    if change == "owner":
        os.chown(area / "copy/program", NOBODY, NOBODY)
        (area / "copy/program").chmod(0o4755)
    if change == "capability":
        capability = bytes.fromhex("0100000200200000000000000000000000000000")
        os.setxattr(area / "source/program", "security.capability", capability)
        os.utime(area / "source/program", ns=(NOW, NOW))
    reported = copy_changed(area)
    assert (area / "copy/program").read_bytes() == b"good" * (size // 4)
    assert (reported["files"], reported["mended"]) == (1, 0)
    assert differences(area / "source", area / "copy") == []


def test_set_id_bits_are_removed_without_copying(area: Path) -> None:
    write(area / "source/program", b"good")
    write(area / "copy/program", b"good")
    (area / "source/program").chmod(0o755)
    (area / "copy/program").chmod(0o4755)
    assert copy_changed(area)["mended"] == 1
    assert mode_of(area / "copy/program") == 0o755


def test_hard_links_stay_linked_after_a_metadata_change(area: Path) -> None:
    """After the change the file is copied again with all of its names."""
    write(area / "source/a", b"content")
    os.link(area / "source/a", area / "source/b")
    succeed(f"{area}/source/", area / "copy")
    reported = copy_changed(area)
    assert (reported["skipped"], reported["mended"], reported["files"]) == (3, 0, 0)
    (area / "source/a").chmod(0o600)
    copy_changed(area)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("kind", ["file", "link", "large"])
def test_file_of_another_user_with_a_new_hard_link_is_copied_again(area: Path, kind: str) -> None:
    """The other user may have the file open for writing, so that no link to it is created."""
    require_root("give files away")
    for side in ("source", "copy"):
        (area / side).mkdir()
        if kind == "link":
            (area / side / "a").symlink_to("target")
        else:
            write(area / side / "a", b"x" * (5 * MIB if kind == "large" else 9))
        os.utime(area / side / "a", ns=(NOW, NOW), follow_symlinks=False)
    os.chown(area / "copy/a", NOBODY, NOBODY, follow_symlinks=False)
    os.link(area / "source/a", area / "source/b", follow_symlinks=False)
    copy_changed(area)
    assert differences(area / "source", area / "copy") == []


def test_owner_that_an_ordinary_user_cannot_set_is_not_a_difference(area: Path) -> None:
    require_root("become somebody else")
    write(area / "source/file", b"content")
    os.chown(area / "source/file", 1234, 5678)
    (area / "source").chmod(0o755)
    for path in (area / "copy", area):
        path.mkdir(exist_ok=True)
    os.chown(area / "copy", NOBODY, NOBODY)
    (area / "copy").chmod(0o700)
    (area / "source").chmod(0o755)
    first = summary(succeed(*CHANGED, f"{area}/source/", area / "copy", user=NOBODY))
    second = summary(succeed(*CHANGED, f"{area}/source/", area / "copy", user=NOBODY))
    assert (first["files"], second["files"], second["skipped"], second["mended"]) == (1, 0, 2, 0)
    (area / "source/file").chmod(0o604)
    third = summary(succeed(*CHANGED, f"{area}/source/", area / "copy", user=NOBODY))
    assert (third["mended"], mode_of(area / "copy/file")) == (1, 0o604)


@pytest.mark.parametrize(
    ("option", "left"),
    [
        ("mode", lambda path: mode_of(path) == 0o644),
        ("timestamps", lambda path: path.stat().st_mtime_ns == NOW),
        ("xattr", lambda path: "user.new" not in os.listxattr(path)),
    ],
)
def test_unpreserved_metadata_is_not_updated(area: Path, option: str, left: Callable[[Path], bool]) -> None:
    for side in ("source", "copy"):
        write(area / side / "file", b"content")
        (area / side / "file").chmod(0o644)
    if option == "xattr" and not has_xattrs(os.fsencode(area)):
        pytest.skip("the file system has no attributes")
    if option == "mode":
        (area / "source/file").chmod(0o600)
    elif option == "timestamps":
        os.utime(area / "source/file", ns=(NOW, NOW + 3 * SECOND))
    else:
        os.setxattr(area / "source/file", "user.new", b"")
    age_directories(area / "copy")
    reported = copy_changed(area, "--no-preserve", option)
    skipped = 2 if option == "timestamps" else 1  # then the old time of the directory is not another than it shall have
    assert (reported["mended"], reported["skipped"]) == (0, skipped) and left(area / "copy/file")
    assert (copy_changed(area)["mended"], left(area / "copy/file")) == (1, False)


def test_file_whose_metadata_cannot_be_updated_fails(area: Path) -> None:
    require_root("become somebody else")
    for side in ("source", "copy"):
        write(area / side / "file", b"content")
    (area / "source").chmod(0o755)
    (area / "source/file").chmod(0o604)
    (area / "copy/file").chmod(0o644)
    os.chown(area / "copy", NOBODY, NOBODY)
    run = pcopy(*CHANGED, f"{area}/source/", area / "copy", user=NOBODY)
    assert (run.returncode, summary(run)["failed"]) == (1, 1), show(run)
    assert f"{area}/copy/file: chmod: ".encode() in run.stderr, show(run)
    assert stat.S_IMODE((area / "copy/file").stat().st_mode) == 0o644
