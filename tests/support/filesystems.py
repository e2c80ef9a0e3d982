"""File systems to copy between: ext4, XFS and btrfs in images, and tmpfs with a size limit; all of them in memory.

Tests in memory are fast and do not write to the disk. Images are always unmounted and removed at the end. Every mount
has a unique name, so that parallel test workers do not conflict.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import loops
from tests.support.users import is_root

SIZE = 2 << 30
"""Apparent size of an image in bytes. It is sparse and allocates only written data."""

Place = Callable[[str], Path]
"""The type of the fixture ``on``: it returns a fresh directory on a file system of the requested kind."""

MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "ext4-128": ("mkfs.ext4", "-q", "-F", "-m", "0", "-I", "128"),  # its inodes have no space for a birth time
    "ext4-ea": ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "ea_inode"),  # with extended attributes of up to 64 KiB
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


def scratch_place() -> Path:
    """The directory of test trees: ``PCOPY_TEST_SCRATCH`` if set, else memory, else the usual temporary directory."""
    if chosen := os.environ.get("PCOPY_TEST_SCRATCH"):
        return Path(chosen)
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def scratch(prefix: str = "pcopy-test-") -> Iterator[Path]:
    """Create a directory that every user can search, and remove it at the end."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch_place()))
    path.chmod(0o755)
    try:
        yield path
    finally:
        remove(path)


def remove(path: Path) -> None:
    """Remove trees that ``shutil.rmtree`` cannot: deeper than the recursion limit, or with read-only directories."""
    with suppress(OSError, RecursionError):  # a small tree needs no child process
        shutil.rmtree(path)
        return
    if not is_root():
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", "--", path], check=False)


@contextmanager
def mounted(kind: str, place: Path, size: int = SIZE, options: str = "") -> Iterator[Path]:
    """Mount a fresh file system of ``kind`` with ``size`` bytes below ``place``; skip the test if it is not
    available.
    """
    if not is_root():
        pytest.skip(f"only root can mount {kind}")
    point = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=place))
    image = point.with_name(point.name + ".image")
    try:
        with ExitStack() as stack:
            if kind == "tmpfs":
                options = ",".join(filter(None, [f"size={size}", "mode=755", options]))
                device: str | Path = "pcopy-test"
            else:
                make_image(MAKE[kind], image, size)
                device = stack.enter_context(loops.attached(image))
            words = ["mount", "-t", kind.partition("-")[0], *(["-o", options] if options else []), device, point]
            tried = subprocess.run(words, check=False, capture_output=True, text=True)
            if tried.returncode:
                pytest.skip(f"{kind} can't be mounted here: {tried.stderr.strip()}")
        point.chmod(0o755)
        try:
            yield point
        finally:
            unmount(point)
    finally:
        image.unlink(missing_ok=True)
        point.rmdir()


def make_image(command: Sequence[str], image: Path, size: int) -> None:
    """Make a file system of ``size`` bytes in the new file ``image`` by ``command``; skip without that program."""
    if not shutil.which(command[0]):
        pytest.skip(f"there is no {command[0]} here")
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run([*command, image], check=True, capture_output=True)


def unmount(point: Path) -> None:
    """Unmount immediately if it is idle, else lazily, so that a process left by a failed test does not keep the
    image.
    """
    if subprocess.run(["umount", str(point)], check=False, capture_output=True).returncode:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


class FileSystems:
    """File systems by kind, each created at the first request and kept until the end of the session.

    Those used only through ``directory`` are unmounted earlier if loop devices are scarce.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._points: dict[str, Path] = {}
        self._stacks: dict[str, ExitStack] = {}
        self._users: Counter[str] = Counter()

    def point(self, kind: str) -> Path:
        """The root of the file system ``kind``, which stays until the end of the session."""
        self._users[kind] += 1
        return self._mount(kind)

    @contextmanager
    def directory(self, kind: str) -> Iterator[Path]:
        """A fresh directory on the file system ``kind``."""
        self._users[kind] += 1
        try:
            path = Path(tempfile.mkdtemp(prefix="test-", dir=self._mount(kind)))
            path.chmod(0o755)
            try:
                yield path
            finally:
                remove(path)
        finally:
            self._users[kind] -= 1
            self.release()

    def _mount(self, kind: str) -> Path:
        if kind not in self._points:
            self.release()
            stack = self._stacks[kind] = ExitStack()
            if kind == "tmpfs" and not is_root():
                self._points[kind] = _plain_memory(self._place)
            else:
                self._points[kind] = stack.enter_context(mounted(kind, self._place))
        return self._points[kind]

    def release(self) -> None:
        """Unmount what no test uses now if any process waits for a loop device."""
        if loops.is_awaited():
            for kind in [kind for kind in self._points if not self._users[kind]]:
                del self._points[kind]
                self._stacks.pop(kind).close()

    def close(self) -> None:
        with ExitStack() as all_of_them:
            for stack in self._stacks.values():
                all_of_them.push(stack)


def _plain_memory(place: Path) -> Path:
    """Without root: the scratch directory, if that is on tmpfs."""
    reported = subprocess.run(["stat", "-f", "-c", "%T", str(place)], check=False, capture_output=True, text=True)
    if reported.stdout.strip() != "tmpfs":
        pytest.skip(f"{place} is no tmpfs, and only root can mount one")
    return place
