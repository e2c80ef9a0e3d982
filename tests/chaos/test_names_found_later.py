"""Names of one inode in a directory that only a resumed job can read: they become hard links to the names found
before."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.unfinished import BUSY, INCOMPLETE, STOPPED, check_equal
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import require_strace, slowed
from tests.support.filesystems import remove
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, is_root

INODES = 3


@pytest.fixture
def source(area: Path) -> Path:
    """An empty source; ``fill`` creates inodes with readable names and one unreadable name each."""
    for directory in ("open", "closed"):
        (area / "source" / directory).mkdir(parents=True)
    (area / "copy").mkdir()
    (area / "state").mkdir()
    return area / "source"


@pytest.fixture
def as_user(area: Path, env: dict[str, str]) -> Mapping[str, Any]:
    """Options that run pcopy as an ordinary user, so that permissions apply."""
    return {"env": env, "user": NOBODY}


def fill(source: Path, size: int, further: int = 1) -> None:
    """Create inodes with ``further`` additional readable names each."""
    for number in range(INODES):
        (source / f"open/{number}").write_bytes(os.urandom(size))
        for name in range(further):
            os.link(source / f"open/{number}", source / f"open/{number}-too{'-' * name}")
        os.link(source / f"open/{number}", source / f"closed/{number}")
    if is_root():
        for path in (source, *source.rglob("*"), source.parent / "copy", source.parent / "state"):
            os.chown(path, NOBODY, NOBODY)
    (source / "closed").chmod(0)


def check_end(source: Path, user: Mapping[str, Any], further: int = 1) -> None:
    (source / "closed").chmod(0o755)
    reported = summary(succeed("--resume", "--json", ranks=2, **user))
    links = (further + 1) * INODES
    assert (reported["found"], reported["files"], reported["hardlinks"]) == (3 + INODES + links, INODES, links), (
        reported
    )
    assert reported["bytes"] == sum((source / f"open/{number}").stat().st_size for number in range(INODES))
    check_equal(source, source.parent / "copy")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("size", [5, 6 << 20], ids=["small", "large"])
@pytest.mark.parametrize("policy", ["skip", "newer", "fail"])
def test_names_found_by_resume_are_links_to_a_copy_that_had_no_name_yet(
    source: Path, as_user: Mapping[str, Any], policy: str, size: int
) -> None:
    """No item has its final name when the first run ends."""
    require_strace()
    fill(source, size)
    wrap = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=renameat2"]
    wrap += ["-e", "inject=renameat2:signal=KILL:when=1"]
    words = (*BUSY, "--existing", policy, "-T", source, source.parent / "copy")
    run = pcopy(*words, ranks=1, wrap=wrap, **as_user)
    assert run.returncode not in (0, 1, 2, 70, STOPPED), show(run)
    check_end(source, as_user)


@pytest.mark.parametrize("names", [2, 3, 6])
def test_names_found_by_resume_are_links_if_only_some_links_existed(
    source: Path, as_user: Mapping[str, Any], names: int
) -> None:
    """The copy is recorded, and some of its links may be."""
    fill(source, 5, further=3)
    copy = source.parent / "copy"
    with background(*BUSY, "-T", source, copy, ranks=1, wrap=slowed("linkat", 200), **as_user) as run:
        assert wait_until(lambda: run.process.poll() is not None or len([*copy.glob("open/*")]) >= names)
        run.kill_all()
        run.process.communicate()
    assert len([*copy.glob("open/*")]) < 4 * INODES
    check_end(source, as_user, further=3)


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_names_found_by_resume_are_links_to_a_partly_copied_large_file(
    source: Path, as_user: Mapping[str, Any], policy: str
) -> None:
    """The large copies are recorded when the run is killed."""
    fill(source, 20 << 20)
    copy, state = source.parent / "copy", source.parent / "state"
    words = (*BUSY, "--existing", policy, "-T", source, copy)
    slow = slowed("write,pwrite64,copy_file_range,utimensat", 60)
    with background(*words, ranks=2, wrap=slow, **as_user) as run:
        assert wait_until(lambda: run.process.poll() is not None or [*copy.glob("open/.pcopy-*")])
        begun = time.time()
        facts = [*state.glob("pcopy/*/run-1/facts-*")]
        assert wait_until(lambda: all(path.stat().st_mtime > begun + 0.3 for path in facts))
        run.kill_all()
        run.process.communicate()
    assert not (copy / "open/2-too").exists()
    check_end(source, as_user)


def test_names_found_by_resume_are_links_if_the_other_names_had_failed(
    source: Path, as_user: Mapping[str, Any]
) -> None:
    """Directories exist under the other names."""
    fill(source, 5)
    copy = source.parent / "copy"
    for path in source.glob("open/*"):
        (copy / "open" / path.name / "full").mkdir(parents=True)
    if is_root():
        for path in copy.rglob("*"):
            os.chown(path, NOBODY, NOBODY)
    run = pcopy("-T", source, copy, ranks=2, **as_user)
    assert run.returncode == INCOMPLETE, show(run)
    for path in copy.glob("open/*"):
        remove(path)
    check_end(source, as_user)
