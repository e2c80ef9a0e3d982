"""The simulated system calls do what the kernel's do: the same calls, drawn from a seed, on both."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.recovery.calls import Calls
from tests.recovery.disk import Disk, Names
from tests.recovery.world import Chance, World
from tests.support.users import as_user

NAMES = (b"a", b"b", b"c", b"d", b"d/a", b"d/b", b"d/c", b"l", b"d/l", b"a/b", b"d/e/f", b"d/e")
NEIGHBOURS = {b"a": b"b", b"d/a": b"d/b", b"l": b"a"}
"""Exchanged are two in one directory."""
MODES = (0o600, 0o644, 0o400, 0o200, 0o000, 0o700, 0o500, 0o755)
FLAGS = (
    os.O_RDONLY,
    os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW,
    os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW,
    os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
    os.O_PATH | os.O_NOFOLLOW,
    os.O_WRONLY | os.O_NOFOLLOW,
)
LONG_AGO = 10**18
RENAMEAT2 = ctypes.CDLL(None, use_errno=True).renameat2
CALLS = 80
NOTHING = 1 << 27
"""No file is open under this number."""


def drawn(random: Random) -> Callable[[Any, int, list[int]], Any]:
    """A call, of the functions of ``os`` or of ``Calls``, below a directory, with the files that are open by then."""
    one, other = random.choice(NAMES), random.choice(NAMES)
    mode, flags = random.choice(MODES), random.choice(FLAGS)
    which, at, data = random.randrange(8), random.randrange(20), random.randbytes(random.randrange(1, 20))

    def of(opened: list[int]) -> int:
        return opened[which % len(opened)] if opened else NOTHING

    def open_one(calls: Any, base: int, opened: list[int]) -> str:
        opened.append(calls.open(one, flags, mode, dir_fd=base))
        return "open"

    def close_one(calls: Any, base: int, opened: list[int]) -> None:
        descriptor = of(opened)
        if descriptor != NOTHING:
            opened.remove(descriptor)
        calls.close(descriptor)

    kinds: tuple[Callable[[Any, int, list[int]], Any], ...] = (
        open_one,
        open_one,
        open_one,
        close_one,
        lambda calls, base, opened: calls.mkdir(one, mode | 0o300, dir_fd=base),
        lambda calls, base, opened: calls.mkdir(one, 0o755, dir_fd=base),
        lambda calls, base, opened: calls.rmdir(one, dir_fd=base),
        lambda calls, base, opened: calls.unlink(one, dir_fd=base),
        lambda calls, base, opened: calls.symlink(random_target(mode), one, dir_fd=base),
        lambda calls, base, opened: calls.link(one, other, src_dir_fd=base, dst_dir_fd=base, follow_symlinks=False),
        lambda calls, base, opened: calls.rename(one, other, src_dir_fd=base, dst_dir_fd=base),
        lambda calls, base, opened: calls.give_name(1, base, one, other),
        lambda calls, base, opened: calls.give_name(2, base, one, NEIGHBOURS.get(one, b"gone")),
        lambda calls, base, opened: calls.pwrite(of(opened), data, at),
        lambda calls, base, opened: calls.pwrite(of(opened), data, at),
        lambda calls, base, opened: calls.pread(of(opened), 30, at),
        lambda calls, base, opened: calls.ftruncate(of(opened), at),
        lambda calls, base, opened: calls.chmod(of(opened), mode),
        lambda calls, base, opened: calls.chmod(b"/proc/self/fd/%d" % of(opened), mode),
        lambda calls, base, opened: calls.utime(of(opened), ns=(LONG_AGO, LONG_AGO + at)),
        lambda calls, base, opened: calls.getxattr(of(opened), "user.x"),
        lambda calls, base, opened: seen(calls.fstat(of(opened))),
        lambda calls, base, opened: seen(calls.stat(one, dir_fd=base, follow_symlinks=False)),
        lambda calls, base, opened: seen(calls.stat(one, dir_fd=base)),
        lambda calls, base, opened: calls.readlink(one, dir_fd=base),
        lambda calls, base, opened: sorted(calls.listdir(of(opened))),
        lambda calls, base, opened: calls.access(one, mode >> 6, dir_fd=base),
    )
    return random.choice(kinds)


def random_target(mode: int) -> bytes:
    return {0o600: b"a", 0o644: b"d", 0o400: b"d/a", 0o200: b"l"}.get(mode, b"gone")


def seen(status: os.stat_result) -> tuple[int, ...]:
    is_directory = stat.S_ISDIR(status.st_mode)
    size = 0 if is_directory else status.st_size
    mtime = status.st_mtime_ns if status.st_mtime_ns < LONG_AGO + 100 else 0
    return status.st_mode, 0 if is_directory else status.st_nlink, size, mtime


class Backend:
    """The real calls."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def give_name(self, flag: int, directory: int, temporary: bytes, name: bytes) -> bool:
        if RENAMEAT2(directory, temporary, directory, name, flag):
            raise OSError(ctypes.get_errno(), "")
        return True


def played(seed: int, calls: Any, base: int) -> list[Any]:
    """What each call gave: a value, or an errno."""
    random = Random(seed)
    opened: list[int] = []
    results: list[Any] = []
    for _ in range(CALLS):
        call = drawn(random)
        try:
            results.append(call(calls, base, opened))
        except OSError as error:
            results.append(os.strerror(error.errno or 0))
    for descriptor in opened:
        calls.close(descriptor)
    return results


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_simulated_calls_behave_like_the_kernel(first: int, area: Path) -> None:
    area.chmod(0o777)

    def compare() -> None:
        os.umask(0)
        for seed in range(first, first + 100):
            path = area / str(seed)
            path.mkdir(0o755)
            base = os.open(path, os.O_RDONLY)
            real = played(seed, Backend(), base)
            os.close(base)
            simulated = simulation(seed)
            for number, (one, other) in enumerate(zip(real, simulated, strict=True)):
                assert one == other, f"seed {seed}, call {number}"

    as_user(compare)


def simulation(seed: int) -> list[Any]:
    results: list[Any] = []
    world = World(Chance(f"seed {seed}"), 2 * LONG_AGO / 1e9, grain=1, cost=1e-5)
    calls = Calls(Disk(Names.ANY), world, lambda: 0.001)

    def play() -> None:
        calls.mkdir(b"/base", 0o755)
        results.extend(played(seed, calls, calls.open(b"/base", os.O_RDONLY)))

    world.spawn("the only one", 0, play)
    trouble = world.play()
    assert not trouble, trouble
    return results
