"""What every implementation of ``pcopy.fsio.kernel.Kernel`` does; a new one is added to ``KERNELS``."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcopy.fsio.kernel import CARE, SMALL_FILE, Kernel
from pcopy.fsio.preserve import ATTRIBUTES, Preserve, capable
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.python_kernel import PythonKernel
from tests.support.attributes import ACCESS_ACL, CAPABILITY, DEFAULT_ACL, NET_RAW, acl
from tests.support.filesystems import mounted
from tests.support.reference_signature import of_file
from tests.support.users import NOBODY, as_user, is_root

KERNELS: dict[str, Callable[..., Kernel]] = {"python": PythonKernel}
"""Each takes what to preserve and the umask, and by name ``follow`` and ``digest``."""

Told = int | Problem
"""A verdict, of which only the size is left if the file was copied: the rest has been looked at."""


class Bench:
    """Two directories and a kernel between them."""

    def __init__(self, kernel: Callable[..., Kernel], place: Path) -> None:
        self._kernel = kernel
        self.source, self.target = place / "source", place / "target"
        self.source.mkdir()
        self.target.mkdir()

    def add(self, name: str, content: bytes = b"content") -> Path:
        path = self.source / name
        path.write_bytes(content)
        return path

    def copy(
        self,
        *names: str,
        preserve: Preserve | None = None,
        inodes: Sequence[int] | None = None,
        device: int | None = None,
        inherits: bool = False,
        target_names: Sequence[bytes] | None = None,
        digest: Callable[[bytes], bytes] | None = None,
    ) -> list[Told]:
        """One for each of ``names``, with the file's status and digest as they should be."""
        kernel = self._kernel(preserve or Preserve(), 0o022, digest=digest)
        source, target = (os.open(path, os.O_RDONLY) for path in (self.source, self.target))
        found = [self.source.joinpath(name).lstat().st_ino for name in names] if inodes is None else inodes
        before = len(os.listdir("/proc/self/fd"))
        try:
            verdicts = list(
                kernel.copy_new_files(
                    source,
                    target,
                    [os.fsencode(name) for name in names],
                    found,
                    os.fstat(source).st_dev if device is None else device,
                    inherits=inherits,
                    target_names=target_names,
                )
            )
            assert len(verdicts) == len(names)
            assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        finally:
            os.close(source)
            os.close(target)
        self.applied = [applied for _, applied in kernel.drain()]
        assert kernel.drain() == [], "what was drained is told once"
        told: list[Told] = []
        for name, verdict in zip(names, verdicts, strict=True):
            if isinstance(verdict, tuple):
                status, size, found = verdict
                assert identity(status) == identity((self.source / name).lstat())
                assert found == (digest((self.source / name).read_bytes()) if digest else b"")
                told.append(size)
            else:
                told.append(verdict)
        return told

    def left(self) -> list[str]:
        return sorted(path.name for path in self.target.iterdir())


@pytest.fixture(params=KERNELS)
def bench(request: pytest.FixtureRequest, on: Any) -> Bench:
    return Bench(KERNELS[request.param], on("ext4"))


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells whether it is the same file, unchanged."""
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size,
        status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip


def problem(verdict: Told) -> Problem:
    assert isinstance(verdict, Problem), verdict
    return verdict


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 20, SMALL_FILE])
def test_contents(bench: Bench, size: int) -> None:
    path = bench.add("file", Random(size).randbytes(size))
    assert bench.copy("file") == [size]
    subprocess.run(["cmp", path, bench.target / "file"], check=True)


def reference(data: bytes) -> bytes:
    return of_file(data, 1 << 16)


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 16) + 1, SMALL_FILE])
def test_digests_are_of_what_was_copied(bench: Bench, size: int) -> None:
    bench.add("file", Random(size).randbytes(size))
    assert bench.copy("file", digest=reference) == [size]
    subprocess.run(["cmp", bench.source / "file", bench.target / "file"], check=True)


def test_each_file_has_its_own_digest(bench: Bench) -> None:
    names = [f"{number}" for number in range(5)]
    for number, name in enumerate(names):
        bench.add(name, b"x" * number)
    (bench.target / "2").touch()
    assert bench.copy(*names, target_names=[b"a", b"b", b"2", b"d", b"e"], digest=reference) == [0, 1, CARE, 3, 4]


@pytest.mark.parametrize("name", ["x" * 255, "a\nb", "\udcff\udcfe", "-rf", " ", "\\"])
def test_names(bench: Bench, name: str) -> None:
    bench.add(name)
    assert bench.copy(name) == [7]
    assert bench.left() == [name]


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


def test_acls(bench: Bench, umask: None) -> None:
    """The source's are kept, and those that the directory gives are not."""
    bench.add("with")
    bench.add("without").chmod(0o640)
    os.setxattr(bench.source / "with", ACCESS_ACL, acl(7, 5, 0, {4242: 7}))
    os.setxattr(bench.target, DEFAULT_ACL, acl(7, 7, 7, {4243: 7}))
    assert bench.copy("with", "without", inherits=True) == [7, 7]
    assert os.getxattr(bench.target / "with", ACCESS_ACL) == acl(7, 5, 0, {4242: 7})
    assert ACCESS_ACL not in os.listxattr(bench.target / "without")
    assert (bench.target / "without").stat().st_mode & 0o7777 == 0o640


def test_what_is_not_preserved(bench: Bench) -> None:
    path = bench.add("file")
    os.setxattr(path, "user.key", b"value")
    os.utime(path, (1, 1))
    path.chmod(0o6777)
    nothing = Preserve._make([*[False] * len(ATTRIBUTES), (-1, -1)])
    assert bench.copy("file", preserve=nothing) == [7]
    copied = (bench.target / "file").stat()
    assert copied.st_mode & 0o7777 == 0o755
    assert copied.st_mtime > 1
    assert os.listxattr(bench.target / "file") == []


@pytest.mark.parametrize("kind", ["file", "symlink", "dangling", "directory", "fifo"])
def test_a_name_that_is_taken_wants_care(bench: Bench, kind: str) -> None:
    bench.add("file")
    taken, outside = bench.target / "file", bench.target.parent / "outside"
    outside.write_bytes(b"outside")
    make: dict[str, Callable[[], object]] = {
        "file": lambda: taken.write_bytes(b"old"),
        "symlink": lambda: taken.symlink_to(outside),
        "dangling": lambda: taken.symlink_to("nowhere"),
        "directory": taken.mkdir,
        "fifo": lambda: os.mkfifo(taken),
    }
    make[kind]()
    before = taken.lstat()
    assert bench.copy("file") == [CARE]
    after = taken.lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert outside.read_bytes() == b"outside" and not (bench.target / "nowhere").exists()


def test_holes_and_large_files_want_care(bench: Bench) -> None:
    with open(bench.add("holes"), "wb") as file:
        file.truncate(1 << 20)
    bench.add("large", bytes(SMALL_FILE + 1))
    assert bench.copy("holes", "large") == [CARE, CARE]
    assert bench.left() == []
    assert bench.copy("holes", preserve=Preserve(sparse=False)) == [1 << 20]


@pytest.mark.parametrize("kind", ["gone", "symlink", "directory", "fifo", "another file"])
def test_another_item_under_the_name_has_changed(bench: Bench, kind: str) -> None:
    path = bench.add("file")
    inode = path.stat().st_ino
    (bench.source / "secret").write_bytes(b"secret")
    path.rename(bench.source / "aside")
    make: dict[str, Callable[[], object]] = {
        "gone": lambda: None,
        "symlink": lambda: path.symlink_to("secret"),
        "directory": path.mkdir,
        "fifo": lambda: os.mkfifo(path),  # must not wait for a writer
        "another file": lambda: path.write_bytes(b"another"),
    }
    make[kind]()
    told = problem(bench.copy("file", inodes=[inode])[0])
    assert told.changed and told.on_source
    assert (told.errno == errno.ENOENT) == (kind == "gone")
    assert bench.left() == []


def test_another_device_has_changed(bench: Bench) -> None:
    bench.add("file")
    assert problem(bench.copy("file", device=1)[0]).changed


def test_one_verdict_each_and_in_order(bench: Bench) -> None:
    names = [f"{number}" for number in range(20)]
    for number, name in enumerate(names):
        bench.add(name, bytes(number))
    inodes = [(bench.source / name).stat().st_ino for name in names]
    (bench.source / "7").unlink()
    (bench.target / "9").touch()
    verdicts = bench.copy(*names, inodes=inodes)
    assert problem(verdicts[7]).errno == errno.ENOENT
    assert [verdict for index, verdict in enumerate(verdicts) if index != 7] == [
        CARE if number == 9 else number for number in range(20) if number != 7
    ]
    assert bench.copy() == []


def test_other_names_in_the_target(bench: Bench) -> None:
    bench.add("file")
    assert bench.copy("file", target_names=[b"renamed"]) == [7]
    assert bench.left() == ["renamed"]


def test_metadata_that_is_refused_leaves_whole_contents(bench: Bench, session_scratch: Path) -> None:
    """XFS holds larger attributes than ext4: better a file without one of them, and told so, than none."""
    target = bench.target
    with mounted("xfs", session_scratch, size=512 << 20) as place:
        bench.source = place
        path = bench.add("file")
        os.setxattr(path, "user.large", bytes(60_000))
        path.chmod(0o640)
        told = problem(bench.copy("file")[0])
    assert isinstance(told, MetadataProblem)
    assert (told.operation, told.on_source) == ("setxattr user.large", False)
    assert (target / "file").read_bytes() == b"content"
    assert (target / "file").stat().st_mode & 0o7777 == 0o640


def test_an_unreadable_file(bench: Bench) -> None:
    bench.add("file").chmod(0)
    bench.add("other")
    bench.target.chmod(0o777)

    def try_it() -> None:
        capable.cache_clear()
        refused, copied = bench.copy("file", "other")
        assert (problem(refused).operation, problem(refused).errno) == ("open", errno.EACCES)
        assert problem(refused).on_source and not problem(refused).changed
        assert copied == 7
        if is_root():
            raise AssertionError("this is an ordinary user")
        assert bench.left() == ["other"]

    as_user(try_it)
    capable.cache_clear()


def test_contents_without_a_size(bench: Bench) -> None:
    """/proc tells 0 of everything; what doesn't fit into memory is left to those who copy in pieces."""
    proc = os.open("/proc", os.O_RDONLY)
    target = os.open(bench.target, os.O_RDONLY)
    status = os.stat("/proc/version")
    kernel = bench._kernel(Preserve(ownership=False), 0o022, digest=reference)
    verdict = next(kernel.copy_new_files(proc, target, [b"version"], [status.st_ino], status.st_dev, inherits=False))
    os.close(proc)
    os.close(target)
    if isinstance(verdict, MetadataProblem):
        pytest.skip("attributes of /proc can't be kept here")
    contents = Path("/proc/version").read_bytes()
    assert isinstance(verdict, tuple) and verdict[0].st_size == 0
    assert verdict[1:] == (len(contents), reference(contents))
    assert (bench.target / "version").read_bytes() == contents


def test_a_full_target_leaves_nothing(bench: Bench, area: Path) -> None:
    bench.add("file", Random(1).randbytes(3 << 20))
    with mounted("tmpfs", area, size=1 << 20) as full:
        bench.target = full
        told = problem(bench.copy("file")[0])
        assert (told.operation, told.errno, told.on_source) == ("write", errno.ENOSPC, False)
        assert bench.left() == []
