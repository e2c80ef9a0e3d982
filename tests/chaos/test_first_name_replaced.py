"""The job creates the first name of an inode and a hard link to it, and is killed; then the user replaces the first
name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE
from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.faults import require_strace
from tests.support.oracle import differences


@pytest.fixture
def linked(area: Path) -> tuple[Path, Path]:
    """Source and copy; the source has two inodes, each with a second name in another directory."""
    require_strace()
    source, copy = area / "source", area / "copy"
    (source / "inner").mkdir(parents=True)
    for name in "ab":
        (source / name).write_bytes(b"new")
        os.link(source / name, source / "inner" / name)
    return source, copy


def killed(source: Path, copy: Path, env: dict[str, str], policy: str) -> str:
    """Kill the job and return the name that it created first; that is not recorded yet."""
    line = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=renameat2"]
    wrap = [*line, "-e", "inject=renameat2:signal=KILL:when=2"]
    run = pcopy("--existing", policy, "-T", source, copy, ranks=1, env=env, wrap=wrap)
    assert run.returncode not in (0, 1, 2, 70, 75), show(run)
    created = [name for name in "ab" if (copy / "inner" / name).exists()]
    assert len(created) == 1 and (copy / created[0]).samefile(copy / "inner" / created[0])
    return created[0]


def test_hard_link_made_before_a_kill_is_not_treated_as_a_users_file(
    linked: tuple[Path, Path], env: dict[str, str]
) -> None:
    source, copy = linked
    name = killed(source, copy, env, "fail")
    (copy / "saved").write_bytes(b"mine")
    os.rename(copy / "saved", copy / name)
    run = pcopy("--resume", "--json", ranks=2, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    assert (copy / name).read_bytes() == b"mine"
    (copy / name).unlink()
    check_whole(source, copy, succeed("--resume", "--json", ranks=2, env=env))


def test_older_file_at_the_first_name_is_replaced_by_a_hard_link(
    linked: tuple[Path, Path], env: dict[str, str]
) -> None:
    source, copy = linked
    name = killed(source, copy, env, "newer")
    (copy / "saved").write_bytes(b"mine")
    os.utime(copy / "saved", (10**9, 10**9))
    os.rename(copy / "saved", copy / name)
    check_whole(source, copy, succeed("--resume", "--json", ranks=2, env=env))


def check_whole(source: Path, copy: Path, run: Completed) -> None:
    reported = summary(run)
    assert [reported[what] for what in ("files", "hardlinks", "skipped", "failed")] == [2, 2, 0, 0]
    assert differences(source, copy) == []
