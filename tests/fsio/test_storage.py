"""Directories and files that are synced one by one, on file systems where syncfs(2) is not sufficient."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from pcopy.fsio import storage as module
from pcopy.fsio.identity import FUSE_TYPE
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import UnsyncedDirectories, WrittenFileSystems
from pcopy.fsio.syncer import SyncHelperProcess

PLAIN = 0xEF53
MANY = 100


class Syncs:
    """Replaces ``os.fsync``: records which directories were synced; those in ``failing`` fail."""

    def __init__(self) -> None:
        self.inodes: list[int] = []
        self.failing: dict[int, int] = {}

    def __call__(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        self.inodes.append(inode)
        if inode in self.failing:
            raise OSError(self.failing[inode], "failing")


@pytest.fixture
def syncs() -> Iterator[Syncs]:
    made = Syncs()
    with mock.patch("os.fsync", made):
        yield made


def make(kind: int) -> WrittenFileSystems:
    return WrittenFileSystems(lambda descriptor: kind, SyncHelperProcess())


def open_all(area: Path, number: int) -> Iterator[int]:
    """Yield directories; each is closed when the next one is requested."""
    for index in range(number):
        (area / f"{index}").mkdir()
        descriptor = os.open(area / f"{index}", os.O_RDONLY | os.O_DIRECTORY)
        yield descriptor
        os.close(descriptor)


def add(storage: WrittenFileSystems, directory: int, changed: UnsyncedDirectories) -> None:
    status = os.fstat(directory)
    storage.register_file_system(directory, status.st_dev, status.st_ino, changed)


@pytest.mark.parametrize(
    ("kind", "release_name", "one_by_one"),
    [
        (PLAIN, "6.1.0-13-amd64", False),
        (PLAIN, "5.8.0", False),
        (PLAIN, "5.7.19", True),
        (PLAIN, "4.18.0-553.el8_10.x86_64", True),
        (FUSE_TYPE, "6.1.0", True),
        (FUSE_TYPE, "4.18.0", True),
    ],
)
def test_file_systems_where_syncfs_is_not_sufficient(
    area: Path, kind: int, release_name: str, one_by_one: bool
) -> None:
    changed = UnsyncedDirectories()
    storage, device = make(kind), area.stat().st_dev
    release = os.uname_result(("Linux", "host", release_name, "", ""))
    with mock.patch("os.uname", lambda: release):
        for descriptor in open_all(area, 1):
            add(storage, descriptor, changed)
    assert storage.per_file_devices == ({device} if one_by_one else set())
    storage.close()


def test_other_file_systems_sync_no_directory(area: Path, syncs: Syncs) -> None:
    changed = UnsyncedDirectories()
    storage = make(PLAIN)
    for descriptor in open_all(area, 3):
        add(storage, descriptor, changed)
    storage.sync_directories(changed)
    storage.close()
    assert syncs.inodes == []


def test_each_directory_is_synced_once_even_if_it_was_closed(area: Path, syncs: Syncs) -> None:
    changed = UnsyncedDirectories()
    storage, before = make(FUSE_TYPE), len(os.listdir("/proc/self/fd"))
    for descriptor in open_all(area, MANY):
        add(storage, descriptor, changed)
        add(storage, descriptor, changed)
        assert len(os.listdir("/proc/self/fd")) < before + MANY / 2
    storage.sync_directories(changed)
    assert sorted(syncs.inodes) == sorted((area / f"{index}").stat().st_ino for index in range(MANY))
    storage.sync_directories(changed)
    assert len(syncs.inodes) == MANY
    storage.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_directories_in_use_are_synced_last(area: Path, syncs: Syncs) -> None:
    """With links to one file in very many directories, the first one is opened again for each of them."""
    changed = UnsyncedDirectories()
    storage = make(FUSE_TYPE)
    (area / "first").mkdir()
    first = os.open(area / "first", os.O_RDONLY | os.O_DIRECTORY)
    for descriptor in open_all(area, MANY):
        add(storage, descriptor, changed)
        add(storage, first, changed)
        assert os.fstat(descriptor).st_ino not in syncs.inodes
        assert os.fstat(first).st_ino not in syncs.inodes
    os.close(first)
    storage.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_sync_fails_after_a_failed_directory_sync(area: Path, syncs: Syncs, number: int) -> None:
    changed = UnsyncedDirectories()
    storage = make(FUSE_TYPE)
    for descriptor in open_all(area, 2):
        add(storage, descriptor, changed)
    storage.sync()
    syncs.failing[(area / "0").stat().st_ino] = number
    for _ in range(2):
        with pytest.raises(Problem) as caught:
            storage.sync_directories(changed)
        assert (caught.value.operation, caught.value.errno) == ("fsync", number)
        with pytest.raises(Problem) as caught:
            storage.sync()
        assert (caught.value.operation, caught.value.errno) == ("fsync", number)
    assert len(syncs.inodes) == 2
    storage.close()


def test_file_system_without_directory_sync_is_accepted(area: Path, syncs: Syncs) -> None:
    changed = UnsyncedDirectories()
    storage = make(FUSE_TYPE)
    for descriptor in open_all(area, 1):
        syncs.failing[os.fstat(descriptor).st_ino] = errno.EINVAL
        add(storage, descriptor, changed)
    storage.sync_directories(changed)
    storage.sync()
    storage.close()


def test_kernel_version_of_this_machine_is_parsed() -> None:
    assert module.linux_version() > (2, 6)
