"""Items created in a directory that is finished already do not inherit from its default ACL."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl, has_acls
from tests.support.command import pcopy, show, succeed, summary
from tests.support.damages import flip
from tests.support.filesystems import remove
from tests.support.oracle import differences

INCOMPLETE = 1
OPTIONS = ("--json", "--chunk-size", "4M")
NAMES = ("small", "large", "linked", "fifo")


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    """A source with a default ACL, and a copy without it."""
    if not has_acls(os.fsencode(area)):
        pytest.skip("no ACLs here")
    source, copy = area / "source", area / "copy"
    (source / "directory").mkdir(parents=True)
    for name, size in {"small": 100, "large": 13 << 20, "linked": 1000}.items():
        (source / "directory" / name).write_bytes(os.urandom(size))
    os.link(source / "directory/linked", source / "directory/other name")
    os.mkfifo(source / "directory/fifo")
    subprocess.run(["cp", "-a", source, copy], check=True)
    os.setxattr(source / "directory", DEFAULT_ACL, acl(7, 7, 7, {1: 7}))
    return source, copy


def check(source: Path, copy: Path) -> None:
    assert differences(source, copy) == []
    assert not any(ACCESS_ACL in os.listxattr(copy / "directory" / name) for name in NAMES)


@pytest.mark.parametrize("ranks", [1, 3])
def test_repaired_items_inherit_no_default_acl(trees: tuple[Path, Path], ranks: int) -> None:
    source, copy = trees
    for name in NAMES[:-1]:
        flip(copy / "directory" / name, 3)
    reported = summary(succeed("--repair", *OPTIONS, "--existing", "changed", f"{source}/", copy, ranks=ranks))
    assert reported["warnings"] == 4
    check(source, copy)


def _put_in_the_way(path: Path) -> None:
    path.unlink()
    (path / "full").mkdir(parents=True)


@pytest.mark.parametrize("ranks", [1, 3])
def test_retried_items_inherit_no_default_acl(trees: tuple[Path, Path], ranks: int) -> None:
    source, copy = trees
    env = {"XDG_STATE_HOME": str(source.parent / "state")}
    _each(copy, _put_in_the_way)
    run = pcopy(*OPTIONS, f"{source}/", copy, ranks=ranks, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 5), show(run)
    _each(copy, remove)
    reported = summary(succeed("--resume", "--json", ranks=ranks, env=env))
    assert (reported["found"], reported["failed"]) == (7, 0)
    check(source, copy)


def _each(copy: Path, do: Callable[[Path], object]) -> None:
    for name in (*NAMES, "other name"):
        do(copy / "directory" / name)
