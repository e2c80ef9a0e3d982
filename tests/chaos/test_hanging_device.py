"""A device that accepts no more writes: a sync hangs in the kernel, where no signal reaches it, and the job still ends
in time.

The destination is in an image that lies on another file system, and that file system is frozen: reads are served from
the page cache and writes wait, as with storage that is temporarily unreachable.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.dataset import make_dataset
from tests.chaos.unfinished import GRACE, INCOMPLETE, STOPPED
from tests.support.command import pcopy, show, succeed
from tests.support.filesystems import mounted, remove, scratch
from tests.support.oracle import differences
from tests.support.processes import Run, background, wait_until
from tests.support.users import require_root

INNER, OUTER = 400 << 20, 700 << 20

HANGS_FOR = 0.3
"""Seconds in the kernel after which a call is considered to hang."""


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with scratch() as place:
        make_dataset(place / "source", 8, files=200, directories=30)
        yield place / "source"


class Device:
    """The file system at ``point``, whose image lies on the file system ``below``."""

    def __init__(self, below: Path, point: Path) -> None:
        self._below = below
        self.point = point

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the file system below; it is unfrozen at the latest when this process ends. Until then every sync(2)
        on the machine hangs, too."""
        line = 'fsfreeze --freeze "$1" && echo frozen && cat; fsfreeze --unfreeze "$1"'
        command = ["sh", "-c", line, "sh", str(self._below)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holding:
            assert holding.stdout is not None
            assert holding.stdout.readline() == b"frozen\n"
            try:
                yield
            finally:
                holding.communicate()


@pytest.fixture
def device(area: Path) -> Iterator[Device]:
    require_root("freeze a file system")
    if not shutil.which("fsfreeze"):
        pytest.skip("there is no fsfreeze here")
    # the inner file system is XFS: writes to it stay in memory while its log waits, and do not wait
    with mounted("ext4", area, size=OUTER) as below, mounted("xfs", below, size=INNER) as point:
        yield Device(below, point)


def hanging(run: Run) -> set[Path]:
    """Return the threads of a run that no signal can end, as paths in /proc: they stay in state D.

    Any thread is in that state for short times.
    """
    threads = {thread for pid in run.processes() for thread in Path(f"/proc/{pid}/task").glob("*")}
    if waiting := waiting_of(threads):
        time.sleep(HANGS_FOR)
    return waiting_of(waiting)


def waiting_of(threads: Iterable[Path]) -> set[Path]:
    """Return those in state D. The first thread of a process may have ended."""
    return {thread for thread in threads if _state_of(thread) == "D"}


def _state_of(thread: Path) -> str:
    with suppress(OSError):
        return (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
    return ""


@pytest.mark.in_turn(1)
@pytest.mark.alone
@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_sync_that_hangs_in_the_kernel_does_not_delay_a_stop(
    tree: Path, area: Path, env: dict[str, str], device: Device, launcher: str | None
) -> None:
    """Each phase of a resumed job waits for its sync, so that the sync is certainly running."""
    copy = device.point / "copy"
    for name in ("sparse", "small"):
        (copy / name / "in the way").mkdir(parents=True)
    first = pcopy("-T", tree, copy, ranks=2, env=env)
    assert first.returncode == INCOMPLETE, show(first)
    for name in ("sparse", "small"):
        remove(copy / name)
    with ExitStack() as frozen:
        frozen.enter_context(device.frozen())
        with background("--resume", ranks=2, launcher=launcher, env=env) as run, frozen:
            assert wait_until(lambda: run.process.poll() is not None or hanging(run))
            assert run.process.poll() is None, run.process.communicate()
            time.sleep(0.5)
            threads = hanging(run)
            run.send_signal(signal.SIGTERM)
            _, err = run.process.communicate(timeout=GRACE)
            assert run.process.returncode == STOPPED, err
            assert b"pcopy: to go on: pcopy --resume" in err
            assert waiting_of(threads), "no sync was hanging"
            frozen.close()
            assert run.survivors() == []
            assert wait_until(lambda: not waiting_of(threads))
    succeed("--resume", ranks=3, env=env)
    assert differences(tree, copy) == []
    assert os.listdir(area / "state" / "pcopy") == []
