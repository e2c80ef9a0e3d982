"""The first name of an inode is given, and another linked to it; then the job is killed, and the user saves his own."""

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
    """Source and copy: two inodes with a second name each in another directory."""
    require_strace()
    source, copy = area / "source", area / "copy"
    (source / "inner").mkdir(parents=True)
    for name in "ab":
        (source / name).write_bytes(b"new")
        os.link(source / name, source / "inner" / name)
    return source, copy


def killed(source: Path, copy: Path, env: dict[str, str], policy: str) -> str:
    """The name that is given, in another directory than that of its link; that is not on record yet."""
    line = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=renameat2"]
    wrap = [*line, "-e", "inject=renameat2:signal=KILL:when=2"]
    run = pcopy("--existing", policy, "-T", source, copy, ranks=1, env=env, wrap=wrap)
    assert run.returncode not in (0, 1, 2, 70, 75), show(run)
    given = [name for name in "ab" if (copy / "inner" / name).exists()]
    assert len(given) == 1 and (copy / given[0]).samefile(copy / "inner" / given[0])
    return given[0]


def test_the_link_is_no_users_file(linked: tuple[Path, Path], env: dict[str, str]) -> None:
    source, copy = linked
    name = killed(source, copy, env, "fail")
    (copy / "saved").write_bytes(b"mine")
    os.rename(copy / "saved", copy / name)
    run = pcopy("--resume", "--json", ranks=2, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    assert (copy / name).read_bytes() == b"mine"
    (copy / name).unlink()
    check_whole(source, copy, succeed("--resume", "--json", ranks=2, env=env))


def test_an_older_file_gives_way_to_a_further_link(linked: tuple[Path, Path], env: dict[str, str]) -> None:
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
