"""The slow file system on which pcopy is measured: copies are correct, and its delays and counts are exact."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from bench.latency import SlowMount, can_mount, mounted_slow
from tests.support.filesystems import Place
from tests.support.oracle import differences
from tests.support.trees import random_tree
from tests.support.users import NOBODY, as_user

pytestmark = pytest.mark.skipif(not can_mount(), reason="it takes root and libfuse3-dev")

MILLISECOND = 0.001
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2


def copied(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_tree_copied_through_the_slow_file_system_is_unchanged(kind: str, on: Place) -> None:
    place = on(kind)
    backing = place / "backing"
    backing.mkdir()
    random_tree(backing / "source", seed=7, files=80, privileged=True)
    copied(backing / "source", place / "direct")
    with mounted_slow(backing) as mounted:
        copied(mounted.path / "source", mounted.path / "through")
        assert differences(mounted.path / "source", place / "direct") == []
        assert differences(place / "direct", mounted.path / "through") == []
    assert differences(place / "direct", backing / "through") == []


@pytest.fixture
def mounted(area: Path) -> Iterator[SlowMount]:
    (area / "backing").mkdir()
    with mounted_slow(area / "backing") as made:
        yield made


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs"])
def test_unlinked_file_stays_usable_through_its_descriptor(kind: str, on: Place) -> None:
    backing = on(kind) / "backing"
    backing.mkdir()
    with mounted_slow(backing) as mounted, open(mounted.path / "file", "wb+") as kept:
        (mounted.path / "file").unlink()
        kept.write(b"content")
        kept.flush()
        os.fchmod(kept.fileno(), 0o640)
        os.utime(kept.fileno(), ns=(5, 6))
        status = os.fstat(kept.fileno())
        assert (status.st_mode & 0o7777, status.st_mtime_ns, status.st_nlink, status.st_size) == (0o640, 6, 0, 7)


def test_links_renames_and_exclusive_creation(mounted: SlowMount) -> None:
    one, other = mounted.path / "one", mounted.path / "other"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    with pytest.raises(FileExistsError):
        os.open(one, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert renamed(one, other, RENAME_NOREPLACE) == errno.EEXIST
    assert renamed(one, other, RENAME_EXCHANGE) == 0
    assert (mounted.backing / "one").read_bytes() == b"2"
    os.link(one, mounted.path / "link")
    assert os.stat(mounted.backing / "link").st_nlink == 2
    assert os.stat(mounted.path / "link").st_ino == os.stat(one).st_ino == os.stat(mounted.backing / "one").st_ino


def renamed(one: Path, other: Path, flags: int) -> int:
    """Return the errno of renameat2."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), flags)
    return ctypes.get_errno() if done else 0


def test_holes_copy_ranges_and_statvfs(mounted: SlowMount) -> None:
    with open(mounted.path / "sparse", "wb+") as sparse, open(mounted.path / "copy", "wb+") as copy:
        sparse.truncate(1 << 20)
        os.pwrite(sparse.fileno(), b"here", 1 << 19)
        assert os.lseek(sparse.fileno(), 0, os.SEEK_DATA) == 1 << 19
        assert os.copy_file_range(sparse.fileno(), copy.fileno(), 4, 1 << 19, 0) == 4
        os.fsync(copy.fileno())
    assert (mounted.backing / "copy").read_bytes() == b"here"
    assert mounted.operation_counts()["copy_file_range"] == 1
    assert os.statvfs(mounted.path).f_blocks == os.statvfs(mounted.backing).f_blocks


def test_items_of_other_users_get_their_owner_and_permissions_are_checked(mounted: SlowMount) -> None:
    (mounted.path / "closed").mkdir(mode=0o755)
    shared = mounted.path / "shared"
    shared.mkdir()
    os.chown(shared, 0, 4711)
    shared.chmod(0o2777)
    words = "umask 027; echo 1 > shared/file; mkdir shared/below; ln -s x shared/link; echo 1 > closed/file"
    as_user(lambda: subprocess.run(["sh", "-c", words], check=False, cwd=mounted.path, stderr=subprocess.DEVNULL))
    assert os.listdir(mounted.path / "closed") == []
    reported = {name: os.lstat(mounted.backing / "shared" / name) for name in ("file", "below", "link")}
    assert {(status.st_uid, status.st_gid) for status in reported.values()} == {(NOBODY, 4711)}
    assert (reported["file"].st_mode & 0o7777, reported["below"].st_mode & 0o7777) == (0o640, 0o2750)


def test_an_inode_keeps_its_handle_when_the_kernel_forgets_it(mounted: SlowMount) -> None:
    for name in ("one", "other"):
        (mounted.path / name).touch()
    before = [handle(mounted.path / name) for name in ("one", "other")]
    Path("/proc/sys/vm/drop_caches").write_text("2")
    assert [handle(mounted.path / name) for name in ("one", "other")] == before
    assert before[0] != before[1]


def test_reused_inode_number_has_another_handle(on: Place) -> None:
    backing = on("ext4") / "backing"
    backing.mkdir()
    with mounted_slow(backing) as mounted:
        handles = set()
        for _ in range(3):
            (mounted.path / "file").touch()
            handles.add((os.stat(mounted.path / "file").st_ino, handle(mounted.path / "file")))
            (mounted.path / "file").unlink()
        assert len({number for number, _ in handles}) < 3
        assert len(handles) == 3


def handle(path: Path) -> bytes:
    """Return the result of name_to_handle_at."""
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer((128).to_bytes(4, "little"), 8 + 128)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), room, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return room.raw


def test_operation_counts_are_exact(mounted: SlowMount) -> None:
    before = mounted.operation_counts()
    for number in range(10):
        (mounted.path / f"file{number}").write_bytes(b"content")
    made = mounted.operation_counts() - before
    assert {kind: made[kind] for kind in ("create", "write", "flush", "unlink", "read")} == {
        "create": 10, "write": 10, "flush": 10, "unlink": 0, "read": 0
    }  # fmt: skip
    (mounted.backing / "file1").read_bytes()
    assert mounted.operation_counts()["read"] == 0


@pytest.mark.alone
def test_operations_are_concurrent_except_changes_of_one_directory(area: Path) -> None:
    most = 64
    (area / "backing").mkdir()
    for number in range(most):
        (area / "backing" / f"d{number}").mkdir()
    with mounted_slow(area / "backing", {"statfs": 20_000, "unlink": 20_000}) as mounted:
        assert concurrent_seconds(most, lambda number: os.statvfs(mounted.path)) < 10 * 20 * MILLISECOND
        assert most / 2 < mounted.max_concurrent_operations() <= most
        assert (
            concurrent_seconds(1, lambda number: [os.statvfs(mounted.path) for _ in range(10)]) >= 10 * 20 * MILLISECOND
        )
        for number in range(most):
            (mounted.path / f"d{number}" / "file").touch()
        assert (
            concurrent_seconds(most, lambda number: os.unlink(mounted.path / f"d{number}" / "file"))
            < 10 * 20 * MILLISECOND
        )
        for number in range(10):
            (mounted.path / f"file{number}").touch()
        assert concurrent_seconds(10, lambda number: os.unlink(mounted.path / f"file{number}")) >= 10 * 20 * MILLISECOND
        assert mounted.operation_counts()["unlink"] == most + 10
        mounted.set_delays(unlink=10)
        assert mounted.max_concurrent_operations() == 0


def concurrent_seconds(threads: int, call: Callable[[int], object]) -> float:
    """Return the seconds that concurrent calls take, one per thread."""
    ready = Barrier(threads + 1)

    def run(number: int) -> None:
        ready.wait()
        call(number)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run, number) for number in range(threads)]
        ready.wait()
        start = time.monotonic()
        for each in running:
            each.result()
        return time.monotonic() - start


def test_slow_mount_is_removed_at_the_end_of_its_context_even_if_in_use(area: Path) -> None:
    (area / "backing").mkdir()
    with pytest.raises(KeyError), mounted_slow(area / "backing") as mounted:
        held = os.open(mounted.path, os.O_RDONLY)
        raise KeyError
    os.close(held)
    assert not os.path.ismount(mounted.path)
    assert os.listdir(area) == ["backing"]


def test_invalid_delays_are_refused(mounted: SlowMount) -> None:
    for mistake in ({"nothing": 1}, {"lookup": -1}):
        with pytest.raises(OSError, match="Invalid argument"):
            mounted.set_delays(**mistake)
