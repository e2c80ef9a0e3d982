"""Existing properties of the destination that do not come from the source are unchanged after a kill and a resume."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from pcopy.fsio.identity import birth_time
from tests.chaos.unfinished import INCOMPLETE, kill
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import READS, slowed
from tests.support.files import mode_of
from tests.support.filesystems import remove
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root

GRACE = 5.5
"""Seconds; longer than the time for which an item of the destination counts as created by the job."""

SIZE = 24 << 20


def test_existing_private_directory_keeps_its_mode_after_kill_and_resume(area: Path, env: dict[str, str]) -> None:
    """Only the start of the job is recorded; one directory existed before, and the job created the other one."""
    source, copy = area / "source", area / "copy"
    for directory in (source / "old", source / "new", copy / "old"):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(os.fsencode(directory.name))
    (copy / "old").chmod(0o700)
    (source / "failing").touch()
    (copy / "failing" / "full").mkdir(parents=True)
    time.sleep(GRACE)
    arguments: list[Argument] = ["--json", "--no-preserve", "mode", "-T", source, copy]
    run = pcopy(*arguments, ranks=2, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    assert (mode_of(copy / "old"), mode_of(copy / "new")) == (0o700, 0o755)
    (copy / "new").chmod(0o700)  # the mode of an unfinished directory
    for facts in area.glob("state/pcopy/*/run-1/facts-*"):
        facts.unlink()
    remove(copy / "failing")
    succeed("--resume", ranks=2, env=env)
    born = birth_of_path(copy / "new")
    assert (mode_of(copy / "old"), mode_of(copy / "new")) == (0o700, 0o755 if born else 0o700)


def test_finished_directory_is_not_treated_as_newly_created(area: Path, env: dict[str, str]) -> None:
    """Only the start of the job is recorded; directories were finished, and one of them now looks like a new one."""
    source, copy = area / "source", area / "copy"
    for tree in (source, copy):
        (tree / "directory" / "inner").mkdir(parents=True)
        (tree / "directory" / "file").write_bytes(os.fsencode(tree.name))
        (tree / "directory" / "inner" / "file").write_bytes(os.fsencode(tree.name))
    (source / "directory").chmod(0o700)
    (source / "failing").touch()
    os.utime(source / "failing", (2**31, 2**31))
    (copy / "failing" / "full").mkdir(parents=True)
    time.sleep(GRACE)
    options: list[Argument] = ["--json", "--existing", "newer", "-T"]
    run = pcopy(*options, source, copy, ranks=2, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    for facts in area.glob("state/pcopy/*/run-1/facts-*"):
        facts.unlink()
    remove(copy / "failing")
    done = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert (done["skipped"], done["failed"]) == (2, 0)
    assert (copy / "directory" / "file").read_bytes() == b"copy"


def birth_of_path(path: Path) -> int:
    descriptor = os.open(path, os.O_PATH)
    try:
        return birth_time(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("option", ["mode", "ownership", "mode,ownership"])
def test_resumed_overwrite_restores_owner_and_mode_that_are_not_preserved(
    area: Path, env: dict[str, str], option: str, ranks: int
) -> None:
    """With two ranks the file is split, and its earlier owner and mode are recorded."""
    require_root("give files away")
    source, copy = area / "source/file", area / "copy/file"
    for path, content in ((source, os.urandom(SIZE)), (copy, b"old")):
        path.parent.mkdir()
        path.write_bytes(content)
    source.chmod(0o604)
    os.chown(copy, NOBODY, 1)
    copy.chmod(0o4640)
    words: list[Argument] = ["--inplace", "--no-preserve", option, "--hash", "xxh3-128", "--signature", area / "sig"]
    words += ["--chunk-size", "4M", "--checkpoint-interval", "0.05", f"{source.parent}/", copy.parent]
    wrap = slowed(",".join(READS), 100, "-P", str(source))
    with background(*words, ranks=ranks, env=env, wrap=wrap) as run:
        assert wait_until(lambda: [*area.glob("state/pcopy/*/run-1/facts-0")] and copy.stat().st_size > len(b"old"))
        kill(run)
    kept = copy.stat()
    owner = (NOBODY, 1) if "ownership" in option else (0, 0)
    mode = {"mode": 0o640, "ownership": 0o604, "mode,ownership": 0o4640}[
        option
    ]  # set-id bits are valid for the old owner only
    assert (kept.st_uid, kept.st_gid, stat.S_IMODE(kept.st_mode)) == (0, 0, 0o600)
    succeed("--resume", ranks=ranks, env=env)
    now = copy.stat()
    assert copy.read_bytes() == source.read_bytes()
    assert (now.st_ino, now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (kept.st_ino, *owner, mode)
