"""Faithful copies: all properties that other programs are known to lose, on several file systems and numbers of ranks.

The cases cover each pair of file system, number of ranks and launcher at least once. Their full product would take many
minutes and find nothing more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed, summary
from tests.support.files import noise
from tests.support.filesystems import Place
from tests.support.hostile import hostile_tree
from tests.support.oracle import changes, differences, snapshot
from tests.support.trees import random_tree
from tests.support.users import NOBODY, as_user, is_root, require_root
from tests.support.walk import temporaries, walk

Case = tuple[str, str, int, str | None]
CASES: list[Case] = [
    ("ext4", "ext4", 1, None),
    ("xfs", "xfs", 2, None),
    ("tmpfs", "tmpfs", 3, None),
    ("ext4", "ext4", 8, None),
    ("xfs", "xfs", 3, "mpi"),
    ("tmpfs", "tmpfs", 8, "mpi"),
    ("ext4", "ext4", 2, "mpi"),
    ("xfs", "xfs", 1, "mpi"),
    ("tmpfs", "ext4", 2, None),
    ("ext4", "xfs", 8, None),
    ("xfs", "tmpfs", 1, None),
    ("btrfs", "btrfs", 2, None),
]
"""Source, destination, ranks, launcher."""


def case_name(case: Case) -> str:
    source, copy, ranks, launcher = case
    return f"{source}-to-{copy}-{ranks}-{launcher or 'local'}"


def expected_counts(tree: Path) -> dict[str, int]:
    """Return the expected counters of a copy of ``tree``; all but one name of a hard link group are ``hardlinks``."""
    found = {"files": 0, "directories": 0, "symlinks": 0, "special": 0, "hardlinks": 0}
    seen = set()
    for entry in walk(os.fsencode(tree)):
        kind = {0o100000: "files", 0o040000: "directories", 0o120000: "symlinks"}.get(entry.type, "special")
        inode = entry.status.st_ino
        if kind != "directories" and inode in seen:
            kind = "hardlinks"
        seen.add(inode)
        found[kind] += 1
    return found


def assert_copied_faithfully(
    source: Path, copy: Path, ranks: int, launcher: str | None, user: int | None = None
) -> None:
    before = snapshot(source)
    run = succeed("--json", source, copy, ranks=ranks, launcher=launcher, user=user)
    assert changes(before, snapshot(source)) == [], "the source was modified"
    reported = summary(run)
    expected = expected_counts(source)
    assert {name: reported[name] for name in expected} == expected
    assert (reported["skipped"], reported["failed"], reported["excused"], reported["ranks"]) == (0, 0, 0, ranks)
    assert differences(source, copy, atimes=True) == []
    assert [name for name in temporaries(os.fsencode(copy)) if not name.endswith(b"-not-ours")] == []


@pytest.mark.in_turn(6)
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_hostile_tree_is_copied_faithfully(on: Place, case: Case) -> None:
    source, copy, ranks, launcher = case
    here, there = on(source), on(copy)
    hostile_tree(here / "source", privileged=is_root(), xattr_bytes=60_000 if source == copy == "xfs" else 2500)
    assert_copied_faithfully(here / "source", there / "copy", ranks, launcher)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("case", list(enumerate(CASES)), ids=lambda case: f"seed{case[0]}-{case_name(case[1])}")
def test_random_tree_is_copied_faithfully(on: Place, case: tuple[int, Case]) -> None:
    seed, (source, copy, ranks, launcher) = case
    here, there = on(source), on(copy)
    random_tree(here / "source", seed, privileged=is_root())
    assert_copied_faithfully(here / "source", there / "copy", ranks, launcher)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("make", [hostile_tree, lambda path: random_tree(path, 99)], ids=["hostile", "random"])
def test_ordinary_user_copies_own_files_faithfully(filesystem: Path, make: object, ranks: int) -> None:
    """The tree has modes without access for the owner, default ACLs and own set-id bits: all need no privileges."""
    assert callable(make)
    filesystem.chmod(0o777)
    as_user(lambda: make(filesystem / "source"))
    assert_copied_faithfully(filesystem / "source", filesystem / "copy", ranks, None, user=NOBODY)


@pytest.mark.parametrize("ranks", [1, 3])
def test_ordinary_user_copies_files_of_other_users_without_ownership(area: Path, ranks: int) -> None:
    """The owner cannot be set, which is excused and counted. Set-id bits must not be copied to files of the user."""
    require_root("make another user's files")
    source, into = area / "source", area / "into"
    (source / "sub").mkdir(parents=True)
    for mode in (0o644, 0o4755, 0o2755, 0o6755):
        (source / f"sub/{mode:o}").write_bytes(b"x")
        (source / f"sub/{mode:o}").chmod(mode)
    (source / "link").symlink_to("nowhere")
    (source / "large").write_bytes(noise(6 << 20))
    (source / "set-gid").mkdir()
    (source / "set-gid").chmod(0o2755)
    into.mkdir()
    into.chmod(0o777)
    run = succeed("--json", source, into / "copy", ranks=ranks, user=NOBODY)
    reported = summary(run)
    assert reported["excused"] == reported["found"] == 9, reported
    assert differences(source, into / "copy", ownership=False) == []
    assert (into / "copy/sub/6755").stat().st_uid == NOBODY


def test_group_is_preserved_where_only_the_group_can_be_set(area: Path) -> None:
    require_root("make another user's files")
    (area / "into").mkdir()
    (area / "into").chmod(0o777)
    (area / "file").write_bytes(b"x")
    os.chown(area / "file", 0, 4321)
    (area / "file").chmod(0o2755)
    reported = summary(succeed("--json", area / "file", area / "into/file", user=NOBODY, groups=[4321]))
    status = (area / "into/file").stat()
    assert (status.st_uid, status.st_gid) == (NOBODY, 4321)
    assert status.st_mode & 0o7777 == 0o755
    assert reported["excused"] == 1


def test_lost_set_gid_bit_of_a_directory_is_excused(area: Path) -> None:
    """Below a set-gid directory they get a group without their owner, and chmod drops the bit without an error."""
    require_root("make directories of another group")
    (area / "source/one/two").mkdir(parents=True)
    (area / "into").mkdir()
    os.chown(area / "into", -1, 4321)
    (area / "into").chmod(0o2777)
    for directory in (area / "source/one", area / "source/one/two"):
        os.chown(directory, NOBODY, 4321)
        directory.chmod(0o2755)
    os.chown(area / "source", NOBODY, 4321)
    reported = summary(succeed("--json", area / "source", area / "into/copy", user=NOBODY))
    assert (area / "into/copy/one/two").stat().st_mode & 0o7777 == 0o755
    assert reported["excused"] == 2


def test_directory_below_a_set_gid_parent_does_not_inherit_the_bit(area: Path) -> None:
    """The kernel sets the bit on new directories; the copy removes it."""
    (area / "source/sub").mkdir(parents=True)
    (area / "into").mkdir()
    (area / "into").chmod(0o2775)
    succeed(area / "source", area / "into")
    assert differences(area / "source", area / "into/source") == []


def test_proc_file_of_size_zero_is_copied(area: Path) -> None:
    succeed("/proc/version", area / "version")
    assert (area / "version").read_bytes() == Path("/proc/version").read_bytes() != b""


def test_xattr_too_large_for_the_target_fails_only_its_file(on: Place) -> None:
    """ext4 returns ENOSPC, which neither means a full disk nor allows to drop the attribute silently."""
    here, there = on("xfs"), on("ext4")
    source = here / "source"
    source.mkdir()
    for number in range(10):
        (source / f"file-{number}").write_bytes(b"x")
    os.setxattr(source / "file-5", "user.big", b"x" * 20_000)
    run = pcopy("--json", source, there / "copy", ranks=2)
    assert run.returncode == 1, show(run)
    assert b"file-5" in run.stderr, show(run)
    reported = summary(run)
    assert (reported["failed"], reported["files"]) == (1, 9)


def test_flat_directory_of_20000_files_is_copied(area: Path) -> None:
    """All ranks read the names in batches; none may be lost or processed twice."""
    source = area / "source"
    source.mkdir()
    for number in range(20_000):
        descriptor = os.open(source / f"{number}", os.O_CREAT | os.O_WRONLY, 0o640)
        os.write(descriptor, b"%d" % number)
        os.close(descriptor)
    reported = summary(succeed("--json", source, area / "copy", ranks=2))
    assert (reported["files"], reported["directories"], reported["found"]) == (20_000, 1, 20_001)
    assert reported["bytes"] == sum(len(str(number)) for number in range(20_000))
    assert differences(source, area / "copy") == []


def test_many_directories_are_copied(area: Path) -> None:
    for number in range(3000):
        (area / f"source/{number % 7}/{number % 100}/{number}").mkdir(parents=True)
    succeed(area / "source", area / "copy", ranks=3)
    assert differences(area / "source", area / "copy") == []
