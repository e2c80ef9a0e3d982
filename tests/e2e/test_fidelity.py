"""Copies are faithful: everything that copiers are known to lose, on any number of ranks, between any file systems.

The cases cover every pair of file system, number of ranks and launcher at least once, not their product: that would
take many minutes and find nothing more.
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


def counts(tree: Path) -> dict[str, int]:
    """What a copy of ``tree`` should count; of a group of hard links all but one name are ``hardlinks``."""
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


def copied_faithfully(source: Path, copy: Path, ranks: int, launcher: str | None, user: int | None = None) -> None:
    before = snapshot(source)
    run = succeed("--json", source, copy, ranks=ranks, launcher=launcher, user=user)
    assert changes(before, snapshot(source)) == [], "the source was modified"
    reported = summary(run)
    expected = counts(source)
    assert {name: reported[name] for name in expected} == expected
    assert (reported["skipped"], reported["failed"], reported["excused"], reported["ranks"]) == (0, 0, 0, ranks)
    assert differences(source, copy, atimes=True) == []
    assert [name for name in temporaries(os.fsencode(copy)) if not name.endswith(b"-not-ours")] == []


@pytest.mark.in_turn(6)
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_hostile_tree(on: Place, case: Case) -> None:
    source, copy, ranks, launcher = case
    here, there = on(source), on(copy)
    hostile_tree(here / "source", privileged=is_root(), xattr_bytes=60_000 if source == copy == "xfs" else 2500)
    copied_faithfully(here / "source", there / "copy", ranks, launcher)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("case", list(enumerate(CASES)), ids=lambda case: f"seed{case[0]}-{case_name(case[1])}")
def test_random_tree(on: Place, case: tuple[int, Case]) -> None:
    seed, (source, copy, ranks, launcher) = case
    here, there = on(source), on(copy)
    random_tree(here / "source", seed, privileged=is_root())
    copied_faithfully(here / "source", there / "copy", ranks, launcher)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("make", [hostile_tree, lambda path: random_tree(path, 99)], ids=["hostile", "random"])
def test_an_ordinary_user_copies_its_own(filesystem: Path, make: object, ranks: int) -> None:
    """Modes that lock the owner out, default ACLs, set-id bits of its own: all possible without privileges."""
    assert callable(make)
    filesystem.chmod(0o777)
    as_user(lambda: make(filesystem / "source"))
    copied_faithfully(filesystem / "source", filesystem / "copy", ranks, None, user=NOBODY)


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_ordinary_user_copies_what_others_own(area: Path, ranks: int) -> None:
    """The owner can't be kept: that is excused and counted. Set-id bits must not become the user's."""
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


def test_the_group_alone_is_kept_where_it_can_be(area: Path) -> None:
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


def test_a_set_gid_bit_that_a_directory_loses_is_excused(area: Path) -> None:
    """Below a set-gid directory they get a group that their owner is not in, and chmod says nothing."""
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


def test_directory_below_a_set_gid_parent_has_none(area: Path) -> None:
    """The kernel hands the bit down; cp -a leaves it."""
    (area / "source/sub").mkdir(parents=True)
    (area / "into").mkdir()
    (area / "into").chmod(0o2775)
    succeed(area / "source", area / "into")
    assert differences(area / "source", area / "into/source") == []


def test_files_that_claim_to_be_empty(area: Path) -> None:
    """Files in /proc have size 0 and content."""
    succeed("/proc/version", area / "version")
    assert (area / "version").read_bytes() == Path("/proc/version").read_bytes() != b""


def test_xattr_that_does_not_fit_fails_its_file_alone(on: Place) -> None:
    """ext4 says ENOSPC: that is no full disk, and no reason to lose the attribute in silence."""
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


def test_one_flat_directory(area: Path) -> None:
    """20,000 names are read in batches by all ranks; none may be lost or done twice."""
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


def test_many_directories(area: Path) -> None:
    for number in range(3000):
        (area / f"source/{number % 7}/{number % 100}/{number}").mkdir(parents=True)
    succeed(area / "source", area / "copy", ranks=3)
    assert differences(area / "source", area / "copy") == []
