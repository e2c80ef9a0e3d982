"""Sources that change while they are copied, at known moments.

A changed item is retried once, after all other items. Then the copy has the current state, or the item has failed; the
copy is never a mixture.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.stops import Stops
from tests.faults.worlds import CHUNKS, LARGE
from tests.support.command import show, summary
from tests.support.files import replace_by_fifo
from tests.support.oracle import differences
from tests.support.walk import temporaries

VICTIM = "victim"
Change = Callable[[Path], None]


def _vanish(path: Path) -> None:
    path.unlink()


def _shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more" * 1000)


def _rewrite(path: Path) -> None:
    """Rewrite in place, with the same size."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(b"other"[:size] * (size // 5))


def _rewrite_in_secret(path: Path) -> None:
    """Rewrite and restore size and modification time; only the ctime shows the change."""
    status = path.stat()
    _rewrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _new_file(path: Path) -> None:
    """Replace by a new file, as editors do."""
    new = path.with_name("new")
    new.write_bytes(b"another file")
    new.replace(path)


def _symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _directory(path: Path) -> None:
    path.unlink()
    _directory_at(path)


def _directory_at(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"inside")


CHANGES: dict[str, Change] = {
    "vanishes": _vanish,
    "shrinks": _shrink,
    "is emptied": _empty,
    "grows": _grow,
    "is rewritten": _rewrite,
    "is rewritten in secret": _rewrite_in_secret,
    "is a new file": _new_file,
    "becomes a FIFO": replace_by_fifo,
    "becomes a symlink": _symlink,
    "becomes a directory": _directory,
}

OTHER_ITEM = [name for name in CHANGES if name.startswith(("vanishes", "becomes", "is a new"))]

STAT = "newfstatat statx lstat stat"
COPY = "copy_file_range pread64 preadv preadv2"
MOMENTS: dict[str, tuple[int, int, str, str]] = {
    "small, when found": (6000, 1, STAT, "name"),
    "small, when open": (6000, 1, "openat", "name"),
    "small, when read": (6000, 1, "read", "descriptor"),
    "whole, when read": (LARGE, 1, COPY, "descriptor"),
    "split, when open": (LARGE, 2, "openat", "name"),
    "split, when read": (LARGE, 2, COPY, "descriptor"),
}
"""Size, ranks, and the call after which the file changes."""


@pytest.fixture
def source(area: Path) -> Path:
    """A directory with a few files around the name of the victim."""
    place = area / "source"
    place.mkdir()
    for name in ("before", "last"):
        (place / name).write_bytes(name.encode())
    return place


def stops(area: Path, calls: str, kind: str, when: str) -> Stops:
    path = str(area / "source" / VICTIM) if kind == "descriptor" else VICTIM
    return Stops(area / "log", calls, [path], when)


def unlike(source: Path, copy: Path) -> list[str]:
    """Return how the copy differs from the current source; the times of its directory are those from before."""
    return [line for line in differences(source, copy) if not line.endswith((": b''", " ./"))]


def check(source: Path, copy: Path, reported: dict[str, Any]) -> None:
    """Check what holds for every change: all other items are copied, and no temporary files are left."""
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"]
    assert temporaries(os.fsencode(copy)) == []
    for name in ("before", "last"):
        assert (copy / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_file_that_changes_once_is_copied_in_its_new_state(area: Path, source: Path, moment: str, change: str) -> None:
    size, ranks, calls, kind = MOMENTS[moment]
    (source / VICTIM).write_bytes(b"victim" * (size // 6))
    acted: list[int] = []

    def act(stop: int) -> None:
        if not acted:
            CHANGES[change](source / VICTIM)
        acted.append(stop)

    run, _ = stops(area, calls, kind, "1").run(act, "--json", *CHUNKS, "-T", source, area / "copy", ranks=ranks)
    assert acted, "the moment never came"
    reported = summary(run)
    check(source, area / "copy", reported)
    assert unlike(source, area / "copy") == []
    if change == "vanishes":
        assert (run.returncode, reported["failed"], reported["vanished"]) == (1, 1, 1), show(run)
    else:
        assert (run.returncode, reported["failed"], reported["changed"]) == (0, 0, 0), show(run)


@pytest.mark.parametrize("size", [6000, LARGE])
@pytest.mark.parametrize("change", ["grows", "is rewritten in secret"])
def test_file_that_changes_at_every_attempt_fails(area: Path, source: Path, size: int, change: str) -> None:
    """The file changes at each attempt, after it was read: it fails, and no part of it is in the target."""
    (source / VICTIM).write_bytes(b"victim" * (size // 6))
    run, count = stops(area, "flistxattr", "descriptor", "1+").run(
        lambda _: CHANGES[change](source / VICTIM), "--json", "-T", source, area / "copy"
    )
    reported = summary(run)
    assert count >= 2
    assert (run.returncode, reported["failed"], reported["changed"]) == (1, 1, 1), show(run)
    check(source, area / "copy", reported)
    assert not (area / "copy" / VICTIM).exists()
    assert VICTIM.encode() in run.stderr


@pytest.mark.parametrize("change", CHANGES)
def test_hard_linked_file_that_changes_is_copied_in_one_state(area: Path, source: Path, change: str) -> None:
    """One name changes while the contents of both are read."""
    size = 6000
    (source / VICTIM).write_bytes(b"victim" * (size // 6))
    names = [str(source / VICTIM), str(source / "other name")]
    os.link(*names)
    acted: list[int] = []

    def act(stop: int) -> None:
        if not acted:
            CHANGES[change](source / VICTIM)
        acted.append(stop)

    run, _ = Stops(area / "log", COPY, names, "1").run(act, "--json", "-T", source, area / "copy")
    assert acted, "the moment never came"
    reported = summary(run)
    check(source, area / "copy", reported)
    if change in OTHER_ITEM and (area / "copy" / VICTIM).is_file() and (area / "copy/other name").is_file():
        old = b"victim" * (size // 6)
        if (area / "copy" / VICTIM).read_bytes() == old:  # the inode that both names had when they were found
            assert (run.returncode, (area / "copy/other name").read_bytes()) == (0, old), show(run)
            return
    assert unlike(source, area / "copy") == []
    lost = int(change == "vanishes")
    assert (run.returncode, reported["failed"], reported["vanished"]) == (lost, lost, lost), show(run)


@pytest.mark.parametrize("calls", ["openat", "mkdirat", "getdents64"])
@pytest.mark.parametrize("change", ["vanishes", "becomes a symlink", "becomes a file", "is a new directory"])
def test_directory_that_changes_is_never_followed_out_of_the_source(
    area: Path, source: Path, calls: str, change: str
) -> None:
    """The directory changes after it was opened, listed, or created in the target: nothing outside is read in any
    case."""
    outside = area / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (source / VICTIM).mkdir()
    (source / VICTIM / "inside").write_bytes(b"inside")

    def act(stop: int) -> None:
        if stop:
            return
        shutil.rmtree(source / VICTIM)
        if change == "becomes a symlink":
            (source / VICTIM).symlink_to(outside)
        elif change == "becomes a file":
            (source / VICTIM).write_bytes(b"file")
        elif change == "is a new directory":
            (source / VICTIM).mkdir()
            (source / VICTIM / "new").write_bytes(b"new")

    kind = "descriptor" if calls == "getdents64" else "name"
    run, count = stops(area, calls, kind, "1").run(act, "--json", "-T", source, area / "copy")
    assert count, "the moment never came"
    reported = summary(run)
    check(source, area / "copy", reported)
    assert not (area / "copy" / VICTIM / "secret").exists()
    assert (run.returncode, reported["failed"]) == (
        (1, 1) if change == "vanishes" else (run.returncode, reported["failed"])
    )
    assert (run.returncode, unlike(source, area / "copy")) == (0, []) or reported["failed"], show(run)
    assert run.returncode == int(bool(reported["failed"])), show(run)


@pytest.mark.parametrize("change", ["vanishes", "becomes a directory", "becomes a file", "is a new FIFO"])
@pytest.mark.parametrize(
    "options", [(), ("--hash", "xxh3-128", "--verify"), ("--existing", "skip", "--signature", "sig")]
)
def test_fifo_that_changes_after_it_was_found_is_copied_or_reported(
    area: Path, source: Path, options: tuple[str, ...], change: str
) -> None:
    """The target has a FIFO of the same name, which may be kept."""
    os.mkfifo(source / VICTIM)
    (area / "copy").mkdir()
    os.mkfifo(area / "copy" / VICTIM)

    def act(stop: int) -> None:
        if stop:
            return
        (source / VICTIM).unlink()
        if change == "becomes a directory":
            _directory_at(source / VICTIM)
        elif change == "becomes a file":
            (source / VICTIM).write_bytes(b"file")
        elif change == "is a new FIFO":
            os.mkfifo(source / VICTIM)

    words = [str(area / word) if word == "sig" else word for word in options]
    run, count = stops(area, STAT, "name", "1").run(act, "--json", *words, "-T", source, area / "copy")
    assert count, "the moment never came"
    reported = summary(run)
    check(source, area / "copy", reported)
    assert run.returncode == int(bool(reported["failed"])), show(run)
    if change == "vanishes":
        assert (reported["failed"], reported["vanished"]) == (1, 1), show(run)
    elif "skip" not in options and not reported["failed"]:
        assert unlike(source, area / "copy") == []
