"""Copying, by each plan, in every implementation of ``pcopy.fsio.backend.interface.FileOperationBackend``."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan
from pcopy.fsio.backend.columns import DEVICE_COLUMN, VERSION_COLUMNS, OutcomeCode
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.preserve import PRESERVABLE_METADATA, PreservedMetadataKinds, has_capability
from pcopy.fsio.problem import MetadataProblem, Problem
from tests.fsio.backend_bench import BACKENDS, Bench, Outcome, found
from tests.support.attributes import ACCESS_ACL, CAPABILITY, DEFAULT_ACL, NET_RAW, acl
from tests.support.filesystems import mounted
from tests.support.reference_signature import of_file
from tests.support.users import NOBODY, as_user, is_root

PLANS = [plan | sync for plan in (CopyPlan.NEW, CopyPlan.REPLACE, CopyPlan.TEMPORARY) for sync in (0, SYNC_FILE_FLAG)]


@pytest.fixture(
    params=PLANS,
    ids=lambda plan: f"{CopyPlan(plan & ~SYNC_FILE_FLAG).name.lower()}{'-synced' if plan & SYNC_FILE_FLAG else ''}",
)
def plan(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=BACKENDS)
def bench(request: pytest.FixtureRequest, plan: int, on: Any) -> Bench:
    return Bench(BACKENDS[request.param], plan, on("ext4"))


@pytest.fixture(params=BACKENDS)
def new(request: pytest.FixtureRequest, on: Any) -> Bench:
    """A bench whose plan creates files under their final names."""
    return Bench(BACKENDS[request.param], CopyPlan.NEW, on("ext4"))


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def problem(verdict: Outcome) -> Problem:
    assert isinstance(verdict, Problem), verdict
    return verdict


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 20, MAX_SMALL_FILE_BYTES])
def test_contents(bench: Bench, size: int) -> None:
    path = bench.add("file", Random(size).randbytes(size))
    assert bench.copy("file") == [size]
    subprocess.run(["cmp", path, bench.target / "file"], check=True)


def reference(data: bytes) -> bytes:
    return of_file(data, 1 << 16)


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 16) + 1, MAX_SMALL_FILE_BYTES])
def test_digests_match_copied_contents(bench: Bench, size: int) -> None:
    bench.add("file", Random(size).randbytes(size))
    assert bench.copy("file", digest=reference) == [size]
    subprocess.run(["cmp", bench.source / "file", bench.target / "file"], check=True)


def test_created_files_are_identified_on_request(new: Bench) -> None:
    for name in ("one", "two"):
        new.add(name)
    assert new.copy("one", "two", identified=True) == [7, 7]
    for row, name in enumerate(("one", "two")):
        new.identify(row, new.target / name)
    new.add("three")
    assert new.copy("three") == [7]
    assert (new.result.created_inodes[0], new.result.marks[0]) == (0, b"")


@pytest.mark.parametrize("name", ["x" * 255, "a\nb", "\udcff\udcfe", "-rf", " ", "\\"])
def test_names(bench: Bench, name: str) -> None:
    bench.add(name)
    assert bench.copy(name) == [7]
    assert bench.target_names() == [name]


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o000, 0o755, 0o6755, 0o1777])
def test_metadata(bench: Bench, mode: int, umask: None) -> None:
    path = bench.add("file")
    os.setxattr(path, "user.key", b"value")
    if is_root():
        os.chown(path, NOBODY, 4242)
        os.setxattr(path, CAPABILITY, NET_RAW)
    path.chmod(mode)
    os.utime(path, ns=(1_234_567_890, -5_000_000_001))
    before = path.lstat()
    assert bench.copy("file") == [7]
    after, copied = path.lstat(), (bench.target / "file").lstat()
    for field in ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_atime_ns"):
        assert getattr(copied, field) == getattr(before, field), field
    assert (after.st_atime_ns, after.st_ctime_ns) == (before.st_atime_ns, before.st_ctime_ns), "the source is untouched"
    assert sorted(os.listxattr(bench.target / "file")) == sorted(os.listxattr(path))
    for name in os.listxattr(path):
        assert os.getxattr(bench.target / "file", name) == os.getxattr(path, name)


@pytest.mark.skipif(not is_root(), reason="an ordinary user owns all files here")
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_copy_of_foreign_file_gets_atime_from_before_the_read(bench: Bench, size: int) -> None:
    """Only the owner may use O_NOATIME: reading the file of another user changes its atime."""
    path = bench.add("file", bytes(size))
    bench.target.chmod(0o777)
    os.utime(path, (10**9, 11 * 10**8))

    def copy_it() -> None:
        has_capability.cache_clear()
        assert bench.copy("file", preserve=PreservedMetadataKinds(ownership=False)) == [size]

    as_user(copy_it)
    has_capability.cache_clear()
    assert path.stat().st_atime > 10**9, "the file was read"
    assert (bench.target / "file").stat().st_atime == 10**9


def test_acls(bench: Bench, umask: None) -> None:
    """ACLs of the source are copied; those inherited from the target directory are removed."""
    bench.add("with")
    bench.add("without").chmod(0o640)
    os.setxattr(bench.source / "with", ACCESS_ACL, acl(7, 5, 0, {4242: 7}))
    os.setxattr(bench.target, DEFAULT_ACL, acl(7, 7, 7, {4243: 7}))
    assert bench.copy("with", "without", inherits=True) == [7, 7]
    assert os.getxattr(bench.target / "with", ACCESS_ACL) == acl(7, 5, 0, {4242: 7})
    assert ACCESS_ACL not in os.listxattr(bench.target / "without")
    assert (bench.target / "without").stat().st_mode & 0o7777 == 0o640


def test_metadata_that_is_not_preserved_gets_defaults(bench: Bench) -> None:
    path = bench.add("file")
    os.setxattr(path, "user.key", b"value")
    os.utime(path, (1, 1))
    path.chmod(0o6777)
    nothing = PreservedMetadataKinds._make([*[False] * len(PRESERVABLE_METADATA), (-1, -1)])
    assert bench.copy("file", preserve=nothing) == [7]
    copied = (bench.target / "file").stat()
    assert copied.st_mode & 0o7777 == 0o755
    assert copied.st_mtime > 1
    assert os.listxattr(bench.target / "file") == []


def take(name: Path, kind: str) -> None:
    """Create an item of this kind. A symbolic link leads to ``outside``, a file next to the directory."""
    outside = name.parent.parent / "outside"
    outside.write_bytes(b"outside")
    make: dict[str, Callable[[], object]] = {
        "file": lambda: name.write_bytes(b"old"),
        "hard link": lambda: name.hardlink_to(outside),
        "symlink": lambda: name.symlink_to(outside),
        "dangling": lambda: name.symlink_to("nowhere"),
        "directory": name.mkdir,
        "fifo": lambda: os.mkfifo(name),
    }
    make[kind]()


TAKEN = ["file", "hard link", "symlink", "dangling", "fifo"]


@pytest.mark.parametrize("kind", [*TAKEN, "directory"])
def test_existing_target_name_is_returned_for_a_new_decision(new: Bench, kind: str) -> None:
    new.add("file")
    taken, outside = new.target / "file", new.target.parent / "outside"
    take(taken, kind)
    before = taken.lstat()
    assert new.copy("file") == [OutcomeCode.DECIDE_AGAIN]
    assert new.result.verdicts.problem(0).errno == errno.EEXIST
    after = taken.lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert outside.read_bytes() == b"outside" and not (new.target / "nowhere").exists()


@pytest.mark.parametrize("kind", TAKEN)
def test_existing_item_is_replaced_and_never_written_through(new: Bench, kind: str) -> None:
    new.add("file")
    taken, outside = new.target / "file", new.target.parent / "outside"
    take(taken, kind)
    assert new.copy("file", plans=[CopyPlan.REPLACE]) == [7]
    assert new.target_names() == ["file"] and taken.read_bytes() == b"content" and not taken.is_symlink()
    assert outside.read_bytes() == b"outside" and not (new.target / "nowhere").exists()
    assert taken.lstat().st_ino == new.result.created_inodes[0]


def test_a_directory_is_not_replaced(new: Bench) -> None:
    new.add("file")
    (new.target / "file").mkdir()
    reported = problem(new.copy("file", plans=[CopyPlan.REPLACE])[0])
    assert (reported.operation, reported.errno, reported.on_source) == ("rename", errno.EISDIR, False)
    assert new.target_names() == ["file"]


@pytest.mark.parametrize("plan", [CopyPlan.REPLACE, CopyPlan.TEMPORARY])
def test_existing_temporary_name_is_an_error(new: Bench, plan: CopyPlan) -> None:
    """Only an attacker can have created it: nothing is written through it, and it is not removed."""
    new.add("file")
    new.add("other")
    canary = new.target.parent / "canary"
    canary.write_bytes(b"canary")
    (new.target / ".temporary-0").hardlink_to(canary)
    reported = problem(new.copy("file", "other", plans=[plan, CopyPlan.NEW])[0])
    assert (reported.operation, reported.errno) == ("create", errno.EEXIST)
    assert canary.read_bytes() == b"canary" and new.target_names() == [".temporary-0", "other"]


def test_plans_that_do_not_copy_create_nothing(new: Bench) -> None:
    names = ["skipped", "careful", "refused", "copied"]
    for name in names:
        new.add(name)
    reported = new.copy(
        *names, plans=[CopyPlan.SKIP, CopyPlan.SLOW_PATH, CopyPlan.REFUSE | SYNC_FILE_FLAG, CopyPlan.NEW]
    )
    assert [reported[0], reported[1], reported[3]] == [OutcomeCode.SKIPPED, OutcomeCode.SLOW_PATH, 7]
    assert (problem(reported[2]).operation, problem(reported[2]).errno) == ("create", errno.EEXIST)
    assert new.target_names() == ["copied"]


@pytest.mark.parametrize("change", ["longer", "as long", "touched", "chmod"])
def test_file_changed_since_the_scan_is_returned_for_a_new_decision(bench: Bench, change: str) -> None:
    """The size, the mtime or the ctime differs. It is noticed before anything is written."""
    path = bench.add("file")
    bench.add("other")
    os.utime(path, ns=(1, 2))
    rows = found(bench.source, ["file", "other"])
    changes: dict[str, Callable[[], object]] = {
        "longer": lambda: path.write_bytes(b"longer content"),
        "as long": lambda: path.write_bytes(b"CONTENT"),
        "touched": lambda: os.utime(path, ns=(1, 3)),
        "chmod": lambda: path.chmod(0o700),
    }
    changes[change]()
    assert bench.copy("file", "other", rows=rows) == [OutcomeCode.DECIDE_AGAIN, 7]
    assert bench.target_names() == ["other"]


def test_times_beyond_64_bits_of_nanoseconds_are_copied(bench: Bench, on: Any) -> None:
    """tmpfs holds times of any year."""
    place = on("tmpfs") / "far"
    place.mkdir()
    bench.source, bench.target = place / "source", place / "target"
    bench.source.mkdir()
    bench.target.mkdir()
    path = bench.add("file")
    os.utime(path, ns=(-(10**18), 20_000_000_000 * 10**9 + 5))
    assert path.stat().st_mtime_ns == 20_000_000_000 * 10**9 + 5
    assert bench.copy("file") == [7]
    assert (bench.target / "file").stat().st_mtime_ns == 20_000_000_000 * 10**9 + 5
    (bench.target / "file").unlink()
    os.utime(path, ns=(20_000_000_000 * 10**9 + 5, 5))
    assert bench.copy("file") == [7]
    assert (bench.target / "file").stat().st_atime_ns == 20_000_000_000 * 10**9 + 5


def test_sparse_and_large_files_take_the_slow_path(bench: Bench) -> None:
    with open(bench.add("holes"), "wb") as file:
        file.truncate(1 << 20)
    bench.add("large", bytes(MAX_SMALL_FILE_BYTES + 1))
    assert bench.copy("holes", "large") == [OutcomeCode.SLOW_PATH, OutcomeCode.SLOW_PATH]
    assert bench.target_names() == []
    assert bench.copy("holes", preserve=PreservedMetadataKinds(sparse=False)) == [1 << 20]


@pytest.mark.parametrize("kind", ["gone", "symlink", "directory", "fifo", "another file"])
def test_source_replaced_by_another_item_is_reported_as_changed(bench: Bench, kind: str) -> None:
    path = bench.add("file")
    rows = found(bench.source, ["file"], VERSION_COLUMNS | DEVICE_COLUMN)
    (bench.source / "secret").write_bytes(b"secret")
    path.rename(bench.source / "aside")
    make: dict[str, Callable[[], object]] = {
        "gone": lambda: None,
        "symlink": lambda: path.symlink_to("secret"),
        "directory": path.mkdir,
        "fifo": lambda: os.mkfifo(path),  # opening it must not wait for a writer
        "another file": lambda: path.write_bytes(b"another"),
    }
    make[kind]()
    reported = problem(bench.copy("file", rows=rows)[0])
    assert reported.changed and reported.on_source
    assert (reported.errno == errno.ENOENT) == (kind == "gone")
    assert bench.target_names() == []


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_nothing_is_read_from_a_fifo_of_another_user(new: Bench, owner: int) -> None:
    """A user who may write to the source directory can rename a FIFO of another user to the name of a file."""
    path = new.add("file")
    rows = found(new.source, ["file"], VERSION_COLUMNS | DEVICE_COLUMN)
    path.unlink()
    os.mkfifo(path)
    if owner and is_root():
        os.chown(new.source, owner, owner)
    else:
        new.source.chmod(0o770)
    fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(fifo, b"private")
        assert problem(new.copy("file", rows=rows)[0]).changed
        assert os.read(fifo, 100) == b"private"
    finally:
        os.close(fifo)
    assert new.target_names() == []


def test_source_on_another_device_is_reported_as_changed(bench: Bench) -> None:
    bench.add("file")
    rows = found(bench.source, ["file"])
    rows.device[0] += 1
    assert problem(bench.copy("file", rows=rows)[0]).changed


def test_each_row_gets_one_result_in_order(new: Bench) -> None:
    names = [f"{number}" for number in range(20)]
    for number, name in enumerate(names):
        new.add(name, bytes(number))
    rows = found(new.source, names)
    (new.source / "7").unlink()
    (new.target / "9").touch()
    reported = new.copy(*names, rows=rows)
    assert problem(reported[7]).errno == errno.ENOENT
    assert [verdict for index, verdict in enumerate(reported) if index != 7] == [
        OutcomeCode.DECIDE_AGAIN if number == 9 else number for number in range(20) if number != 7
    ]
    assert new.copy() == []


def test_target_may_have_another_name(bench: Bench) -> None:
    bench.add("file")
    assert bench.copy("file", new_names=[b"renamed"]) == [7]
    assert bench.target_names() == ["renamed"]


def test_file_whose_metadata_is_refused_has_complete_contents(bench: Bench, session_scratch: Path) -> None:
    """XFS stores larger attributes than ext4. A file that lacks one of them, with a report, is better than no file."""
    target = bench.target
    with mounted("xfs", session_scratch, size=512 << 20) as place:
        bench.source = place
        path = bench.add("file")
        os.setxattr(path, "user.large", bytes(60_000))
        path.chmod(0o640)
        reported = problem(bench.copy("file")[0])
    assert isinstance(reported, MetadataProblem)
    assert (reported.operation, reported.on_source) == ("setxattr user.large", False)
    assert (target / "file").read_bytes() == b"content"
    assert (target / "file").stat().st_mode & 0o7777 == 0o640


def test_unreadable_file_fails_alone(bench: Bench) -> None:
    bench.add("file").chmod(0)
    bench.add("other")
    bench.target.chmod(0o777)

    def try_it() -> None:
        has_capability.cache_clear()
        refused, copied = bench.copy("file", "other")
        assert (problem(refused).operation, problem(refused).errno) == ("open", errno.EACCES)
        assert problem(refused).on_source and not problem(refused).changed
        assert copied == 7
        if is_root():
            raise AssertionError("this is an ordinary user")
        assert bench.target_names() == ["other"]

    as_user(try_it)
    has_capability.cache_clear()


def test_file_that_reports_size_zero_is_read_to_its_end(bench: Bench) -> None:
    """/proc reports size 0 for everything. Contents that do not fit into memory are left to the slow path."""
    bench.source = Path("/proc")
    contents = Path("/proc/version").read_bytes()
    rows = found(bench.source, ["version"], VERSION_COLUMNS | DEVICE_COLUMN)
    reported = bench.copy("version", rows=rows, preserve=PreservedMetadataKinds(ownership=False), digest=reference)
    if isinstance(reported[0], MetadataProblem):
        pytest.skip("attributes of /proc can't be kept here")
    assert reported == [len(contents)]
    assert (bench.target / "version").read_bytes() == contents


def test_a_full_target_leaves_nothing(bench: Bench, area: Path) -> None:
    bench.add("file", Random(1).randbytes(3 << 20))
    with mounted("tmpfs", area, size=1 << 20) as full:
        bench.target = full
        reported = problem(bench.copy("file")[0])
        assert (reported.operation, reported.errno, reported.on_source) == ("write", errno.ENOSPC, False)
        assert bench.target_names() == []
