"""Times that few clocks show: beyond what 64 bits of nanoseconds hold, and beyond what a destination holds."""

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


def _tree(source: Path, moment: int) -> None:
    """A small file, a split one, links, a FIFO and a directory, all of that time."""
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
def test_a_time_beyond_292_years_is_digested_and_copied(moment: int, ranks: int) -> None:
    with scratch() as place:
        _tree(place / "source", moment)
        if (place / "source/room/small").stat().st_mtime_ns != moment:
            pytest.skip("no such time fits here")
        signature = ("--verify", "--signature", place / "signature", "--chunk-size", "1M", "--block-size", "64K")
        run = succeed("--json", *signature, "-T", place / "source", place / "target", ranks=ranks)
        assert summary(run)["warnings"] == 0
        assert differences(place / "source", place / "target", atimes=True) == []


def test_times_beyond_292_years_are_told_apart() -> None:
    """Each of both is more than 64 bits hold, and one is a second earlier."""
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
        time.sleep(CLOCK_GRACE / 10**9 + 0.5)  # what has changed after that might be the job's own: all is looked at
        for policy, files in [*((policy, 1) for policy in policies), *((policy, 0) for policy in policies)]:
            reported = summary(succeed("--json", "--existing", policy, "-T", source, place / policy))
            assert (reported["files"], reported["skipped"]) == (files, 1 - files), policy
            assert differences(source, place / policy) == []


def test_times_that_the_destination_bends_are_told_by_their_names(tmp_path: Path) -> None:
    require_root("mount a file system")
    with scratch() as place, mounted("ext4", tmp_path) as ext4:
        _tree(place / "source", 2 * FAR)
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
