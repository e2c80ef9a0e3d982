"""Times beyond the range of 64 bits of nanoseconds, or beyond the range of the destination file system."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pcopy.tasks.base.rank import CLOCK_GRACE
from tests.support.command import show, succeed, summary
from tests.support.filesystems import mounted, scratch
from tests.support.oracle import differences
from tests.support.users import require_root

FAR = 10**10 * 10**9
"""Nanoseconds: the year 2286, which a signed 64-bit number does not reach."""


def _make_tree(source: Path, moment: int) -> None:
    """Create a small file, a split one, links, a FIFO and a directory, all with the modification time ``moment``."""
    (source / "room").mkdir(parents=True)
    (source / "room/small").write_bytes(b"small")
    (source / "room/large").write_bytes(b"0123456789abcdef" * (5 << 16))
    os.link(source / "room/small", source / "room/other")
    os.symlink("nowhere", source / "room/link")
    os.mkfifo(source / "room/fifo")
    for name in ("small", "large", "link", "fifo", "."):
        os.utime(source / "room" / name, ns=(moment, moment), follow_symlinks=False)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("moment", [FAR, -FAR])
def test_time_beyond_64_bits_is_copied_and_signed(moment: int, ranks: int) -> None:
    with scratch() as place:
        _make_tree(place / "source", moment)
        if (place / "source/room/small").stat().st_mtime_ns != moment:
            pytest.skip("no such time fits here")
        signature = ("--verify", "--signature", place / "signature", "--chunk-size", "1M", "--block-size", "64K")
        run = succeed("--json", *signature, "-T", place / "source", place / "target", ranks=ranks)
        assert summary(run)["warnings"] == 0
        assert differences(place / "source", place / "target", atimes=True) == []


def test_different_times_beyond_64_bits_are_distinguished() -> None:
    """Both times exceed 64 bits, and one is a second earlier than the other."""
    policies = ("changed", "newer")
    with scratch() as place:
        source = place / "source"
        source.mkdir()
        (source / "file").write_bytes(b"content")
        os.utime(source / "file", ns=(FAR, FAR))
        if (source / "file").stat().st_mtime_ns != FAR:
            pytest.skip("no such time fits here")
        for policy in policies:
            succeed("-T", source, place / policy)
            os.utime(place / policy / "file", ns=(FAR, FAR - 10**9))
        time.sleep(CLOCK_GRACE / 10**9 + 0.5)  # recently changed files might be the job's own and would be read
        for policy, files in [*((policy, 1) for policy in policies), *((policy, 0) for policy in policies)]:
            reported = summary(succeed("--json", "--existing", policy, "-T", source, place / policy))
            # The directory, whose time is right, is always skipped.
            assert (reported["files"], reported["directories"], reported["skipped"]) == (files, 0, 2 - files), policy
            assert differences(source, place / policy) == []


def test_times_that_the_destination_cannot_hold_are_reported_for_each_item(tmp_path: Path) -> None:
    require_root("mount a file system")
    with scratch() as place, mounted("ext4", tmp_path) as ext4:
        _make_tree(place / "source", 2 * FAR)
        (place / "source/alone").write_bytes(b"alone")
        os.utime(place / "source/alone", ns=(2 * FAR, 2 * FAR))
        (place / "source/usual").write_bytes(b"usual")
        (place / "source/old").write_bytes(b"old")
        os.utime(place / "source/old", ns=(0, 0))
        run = succeed("--json", "-T", place / "source", ext4 / "target", ranks=1)
        reported = [line for line in run.stderr.decode().splitlines() if "cannot hold its mtime 2603" in line]
        for name in ("alone", "room/large", "room/link", "room/fifo", "room"):
            assert [line for line in reported if f"/{name}: " in line], show(run)
        assert len(reported) == 6, show(run)  # with one of the two names of an inode
        assert b"usual: " not in run.stderr and b"old: " not in run.stderr, show(run)
        assert summary(run)["warnings"] == 6
