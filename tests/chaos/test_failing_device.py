"""Storage of the destination or of the job directory that fails: pcopy does not claim to have stored what was lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.dataset import make_dataset
from tests.chaos.interrupted import TOTALS
from tests.chaos.unfinished import INCOMPLETE, STOPPED
from tests.support import loops
from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, SLOW, Fault, slowed
from tests.support.filesystems import make_image, mounted, scratch, unmount
from tests.support.oracle import differences
from tests.support.processes import wait_until
from tests.support.users import require_root
from tests.support.walk import temporaries

MIB = 1 << 20
BUSY = ("--checkpoint-interval", "0.1")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with scratch() as place:
        make_dataset(place / "source", 8, files=400, directories=60)
        yield place / "source"


@pytest.fixture(scope="module")
def totals(tree: Path) -> Iterator[dict[str, object]]:
    """The totals of a job without errors."""
    with scratch() as place:
        run = succeed("--json", "--checkpoint", "none", tree, place / "copy", ranks=2)
        yield {key: summary(run)[key] for key in TOTALS}


class Device:
    """An ext4 file system at ``point``, whose image lies on a tmpfs that is too small for it."""

    def __init__(self, place: Path, below: Path) -> None:
        self._below = below
        self._image = below / "image"
        self.point = place / "device"
        self.point.mkdir()
        make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
        make_image(make, self._image, 600 * MIB)
        self._mount()

    def _mount(self) -> None:
        with loops.attached(self._image) as disk:
            subprocess.run(["mount", disk, self.point], check=True)

    def enlarge(self) -> None:
        """Enlarge the tmpfs and mount the file system again, which clears its error state."""
        subprocess.run(["mount", "-o", "remount,size=1G", str(self._below)], check=True)
        unmount(self.point)
        # Another test's mount namespace may hold a copy of the mount: mounted now, it would be the same one again.
        assert wait_until(lambda: not self._is_attached(), seconds=60)
        subprocess.run(["fsck.ext4", "-f", "-y", str(self._image)], check=False, capture_output=True)  # -p may refuse
        self._mount()

    def _is_attached(self) -> bool:
        command = ["losetup", "--noheadings", "--associated", str(self._image)]
        return bool(subprocess.run(command, check=True, capture_output=True).stdout)

    def close(self) -> None:
        if self.point.is_mount():
            unmount(self.point)


@contextmanager
def device(area: Path, room: int) -> Iterator[Device]:
    require_root("mount images")
    with mounted("tmpfs", area, size=room) as below:
        made = Device(area, below)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("interval", ["0.1", "60"])
@pytest.mark.parametrize("room", [40 * MIB, 90 * MIB])
def test_copy_is_completed_after_the_device_lost_accepted_writes(
    tree: Path, totals: dict[str, object], area: Path, env: dict[str, str], room: int, interval: str
) -> None:
    """The file system accepts all writes, and fails to store them later."""
    with device(area, room) as destination:
        copy = destination.point / "copy"
        run = pcopy("--checkpoint-interval", interval, tree, copy, ranks=2, env=env)
        assert run.returncode in (INCOMPLETE, STOPPED), show(run)
        destination.enlarge()
        if b"to go on" in run.stderr:
            done = resume(env)
        else:  # nothing could be recorded: start from the beginning
            assert b"no checkpoint was stored: start it again" in run.stderr, show(run)
            done = succeed("--json", "-T", tree, copy, ranks=2, env=env)
        assert {key: summary(done)[key] for key in TOTALS} == totals, show(done)
        assert differences(tree, copy) == []
        assert temporaries(os.fsencode(copy)) == []


def resume(env: dict[str, str]) -> Completed:
    return succeed("--resume", "--json", ranks=3, env=env)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("when", ["1", "2", "3"])
def test_copy_is_completed_after_one_sync_failed(
    tree: Path, totals: dict[str, object], area: Path, env: dict[str, str], when: str
) -> None:
    """The kernel reports a lost write once. Items that this sync would have covered are not recorded, nor any later
    ones."""
    (area / "copy").mkdir()
    fault = Fault(area / "log", ["syncfs"], None, "EIO", when=when, slow=[ITEM_BY_ITEM])
    run = pcopy(*BUSY, "-T", tree, area / "copy", ranks=2, env=env, wrap=fault.wrap())
    fault.check()
    assert run.returncode in (INCOMPLETE, STOPPED), show(run)
    assert b"synced" in run.stderr or b"syncfs" in run.stderr, show(run)
    if when == "1":  # the initial record existed before, and lists no completed items
        assert b"to go on" in run.stderr, show(run)
    if b"to go on" in run.stderr:
        done = resume(env)
        assert {key: summary(done)[key] for key in TOTALS} == totals
        assert differences(tree, area / "copy") == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_no_space_for_the_job_directory_only_disables_checkpoints(tree: Path, area: Path, ranks: int) -> None:
    require_root("mount a tmpfs")
    with mounted("tmpfs", area, size=32 << 10) as small:
        slow = slowed(ITEM_BY_ITEM, SLOW)
        run = pcopy(*BUSY, "--checkpoint", small / "job", tree, area / "copy", ranks=ranks, wrap=slow)
        assert run.returncode == 0, show(run)
        assert run.stderr.count(b"no more checkpoints, the job goes on without and cannot be resumed: ") == 1, show(run)
        (line,) = (line for line in run.stderr.splitlines() if b"no more checkpoints" in line)
        assert os.fsencode(small / "job") in line and line.endswith(b": No space left on device"), show(run)
        assert b"Errno" not in run.stderr, show(run)
        assert differences(tree, area / "copy") == []
        assert not (small / "job").exists()
