"""Names of one inode that failed become hard links when a resumed job can create them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, check_equal
from tests.support.attributes import has_xattrs
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import remove


def test_failed_names_of_one_inode_become_hard_links_after_resume(area: Path, env: dict[str, str]) -> None:
    """Directories exist under these names, and are removed before the job is resumed."""
    (area / "source").mkdir()
    for number in range(30):
        (area / "source" / f"{number}-0").write_bytes(b"%d" % number)
        for other in range(1, 4):
            os.link(area / "source" / f"{number}-0", area / "source" / f"{number}-{other}")
    for path in (area / "source").iterdir():
        (area / "copy" / path.name / "full").mkdir(parents=True)
    run = pcopy("-T", "--json", area / "source", area / "copy", ranks=3, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    assert summary(run)["failed"] == 120
    for path in (area / "copy").iterdir():
        remove(path)
    done = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert (done["files"], done["hardlinks"], done["failed"]) == (30, 90, 0)
    check_equal(area / "source", area / "copy")


@pytest.mark.parametrize("size", [10, 6 << 20], ids=["small", "split"])
@pytest.mark.parametrize("free", ["a", "b", "c"])
def test_failed_names_become_hard_links_to_the_copied_name(
    area: Path, env: dict[str, str], free: str, size: int
) -> None:
    """Whichever name was copied first, the result is one inode."""
    (area / "source").mkdir()
    (area / "source/a").write_bytes(os.urandom(size))
    for name in "bc":
        os.link(area / "source/a", area / "source" / name)
    for name in {*"abc"} - {free}:
        (area / "copy" / name / "full").mkdir(parents=True)
    small_chunks = ("--chunk-size", "1M", "--block-size", "64K")
    run = pcopy("-T", "--json", *small_chunks, area / "source", area / "copy", ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    reported = summary(run)
    assert (reported["found"], reported["failed"]) == (4, 2), reported
    for name in {*"abc"} - {free}:
        remove(area / "copy" / name)
    done = summary(succeed("--resume", "--json", ranks=3, env=env))
    assert (done["found"], done["files"], done["hardlinks"], done["failed"]) == (4, 1, 2, 0)
    check_equal(area / "source", area / "copy")


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("size", [10, 6 << 20], ids=["small", "split"])
@pytest.mark.parametrize("blocked", ["", "a", "c"])
@pytest.mark.parametrize("options", [(), ("--verify",), ("--signature", "sig")], ids=["plain", "verify", "signature"])
def test_inode_without_metadata_is_completed_by_resume(
    area: Path, env: dict[str, str], size: int, blocked: str, options: tuple[str, ...]
) -> None:
    """An attribute cannot be set, and a directory may exist under another name of the inode, before or after the first
    in order."""
    if not has_xattrs(bytes(area)):
        pytest.skip("no extended attributes here")
    (area / "source").mkdir()
    (area / "source/a").write_bytes(os.urandom(size))
    os.setxattr(area / "source/a", "user.name", b"value")
    for name in "bcd":
        os.link(area / "source/a", area / "source" / name)
    if blocked:
        (area / "copy" / blocked / "full").mkdir(parents=True)
    fault = Fault(area / "trace", ["fsetxattr"], None, "EIO").wrap()
    words = ("-T", "--json", "--chunk-size", "1M", "--block-size", "64K", *options)
    run = pcopy(*words, area / "source", area / "copy", ranks=2, env=env, wrap=fault, cwd=area)
    assert run.returncode == INCOMPLETE, show(run)
    reported = summary(run)
    assert (reported["found"], reported["failed"], reported["hardlinks"]) == (5, 2, 2) if blocked else (5, 1, 3), (
        reported
    )
    linked = [name for name in "abcd" if name != blocked]
    assert len({(area / "copy" / name).stat().st_ino for name in linked}) == 1
    if blocked:
        remove(area / "copy" / blocked)
    done = summary(succeed("--resume", "--json", ranks=3, env=env))
    assert (done["found"], done["files"], done["hardlinks"], done["failed"]) == (5, 1, 3, 0)
    assert os.getxattr(area / "copy/d", "user.name") == b"value"
    check_equal(area / "source", area / "copy")
