"""A mount below the source that changes on one of two hosts only, while a job that deletes is running.

The second host is rank 1 with a name and mounts of its own, as in ``test_mounts``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.launch.launchers import Launchers, ranks_of
from tests.launch.test_hosts import elsewhere
from tests.support.command import Argument, Completed, show
from tests.support.files import NOW, write
from tests.support.filesystems import mounted, unmount
from tests.support.held import held
from tests.support.users import require_root

RANKS = 3
FAILED = 1
NAMES = ("a", "mount", "mount/inner", "z")
LATE = Path("late")
"""A file that DST lacks. It is opened when its directory has been scanned, and before anything is deleted."""

CHANGES: dict[str, tuple[bool, str]] = {
    "vanishes": (True, "umount --lazy {point}"),
    "another one": (True, "umount --lazy {point}; mount --bind {other} {point}"),
    "appears": (False, "mount --bind {other} {point}"),
    "appears from the same file system": (False, "mount --bind {hidden} {point}"),
}
"""Whether something is mounted on both hosts when the job begins, and what the second host does then."""


class Trees:
    def __init__(self, area: Path, disk: Path) -> None:
        self.source, self.copy = area / "source", area / "copy"
        self.point, self.other, self.hidden = self.source / "mount", disk / "other", area / "hidden"
        self.disk = disk / "disk"

    def fill(self, *, is_mounted: bool) -> set[str]:
        """Return the files of the copy, which has one more in each directory."""
        for path in (self.point, self.other, self.hidden, self.disk):
            path.mkdir(parents=True)
        write(self.other / "strange", b"")
        if is_mounted:
            subprocess.run(["mount", "--bind", self.disk, self.point], check=True)
        for name in NAMES:
            write(self.source / name / "file", b"content")
            write(self.copy / name / "file", b"content")
            write(self.copy / name / "extra", b"")
        for tree in (self.source, self.copy):
            for path in (*tree.rglob("*"), tree):
                os.utime(path, ns=(NOW, NOW))
        return self.copied()

    def copied(self) -> set[str]:
        return {str(path.relative_to(self.copy)) for path in self.copy.rglob("*") if path.is_file()}


@pytest.fixture
def trees(area: Path, session_scratch: Path) -> Iterator[Trees]:
    require_root("mount file systems")
    with mounted("tmpfs", session_scratch, size=8 << 20) as disk:
        made = Trees(area, disk)
        try:
            yield made
        finally:
            if os.path.ismount(made.point):
                unmount(made.point)


def mirrored(
    launchers: Launchers, area: Path, trees: Trees, name: str, calls: Sequence[str], path: Path, *words: Argument
) -> Completed:
    """A run that has stopped at one of ``calls`` on ``path``, and continues after the change ``name`` on its second
    host."""
    behind: list[Argument] = [*launchers.line("hydra", RANKS), *elsewhere()]
    job: list[Argument] = ["--mirror", "--checkpoint", "none", *words, f"{trees.source}/", trees.copy]
    change = CHANGES[name][1].format(**vars(trees))
    env = {"CHANGE": "true"}
    with held(area / "log", *job, calls=calls, path=path, behind=behind, env=env) as run:
        second = ranks_of(run.run)[1]
        subprocess.run(["nsenter", "-t", str(second), "--mount", "sh", "-ec", change], check=True)
        return run.go_on()


@pytest.mark.parametrize("words", [(), ("--max-delete", "50")], ids=["mirror", "max-delete"])
@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_deleted_if_mounts_of_one_host_change_before_deletion(
    launchers: Launchers, area: Path, trees: Trees, name: str, words: Sequence[Argument]
) -> None:
    before = trees.fill(is_mounted=CHANGES[name][0])
    write(trees.source / LATE, b"late")
    done = mirrored(launchers, area, trees, name, ("openat",), LATE, *words)
    assert done.returncode == FAILED, show(done)
    assert b"%b: open: " % bytes(trees.point) in done.stderr and b": on other: " in done.stderr, show(done)
    assert b"pcopy: nothing was deleted: " in done.stderr, show(done)
    assert before <= trees.copied() <= {*before, str(LATE)}, show(done)


@pytest.mark.parametrize("name", CHANGES)
def test_only_extra_items_are_deleted_if_mounts_of_one_host_change_during_deletion(
    launchers: Launchers, area: Path, trees: Trees, name: str
) -> None:
    """A directory that the second host compares by then has failed."""
    before = trees.fill(is_mounted=CHANGES[name][0])
    done = mirrored(launchers, area, trees, name, ("getdents64",), trees.copy)
    left = trees.copied()
    assert {path for path in before if not path.endswith("extra")} <= left <= before, show(done)
    if done.returncode == 0:
        assert not any(path.endswith("extra") for path in left), show(done)
    else:
        assert done.returncode == FAILED, show(done)
        assert b"%b" % bytes(trees.point) in done.stderr, show(done)
