"""Unchanged items are kept, but the text of a symbolic link is always compared.

Every program and policy that keeps unchanged items runs with both backends in every situation. rsync gives the
expected result.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import command, native
from tests.support.command import Argument, pverify, show, succeed, summary
from tests.support.files import NOW
from tests.support.oracle import differences
from tests.support.users import is_root

SECOND = 10**9


def link(path: Path, text: str, time: int = NOW) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(text)
    os.utime(path, ns=(time, time), follow_symlinks=False)


def hard_link(path: Path, first: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(first, path, follow_symlinks=False)


def node(path: Path, minor: int) -> None:
    if not is_root():
        pytest.skip("devices are for root")
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, minor))
    os.utime(path, ns=(NOW, NOW))


def other_text(source: Path, copy: Path) -> None:
    link(source / "a/cur", "run8")
    link(copy / "a/cur", "run7")


def other_time(source: Path, copy: Path) -> None:
    link(source / "a/cur", "run8")
    link(copy / "a/cur", "run8", NOW - 60 * SECOND)


def less_than_a_second(source: Path, copy: Path) -> None:
    link(source / "a/cur", "run8", NOW + 5)
    link(copy / "a/cur", "run7", NOW + 3)


def names_apart(source: Path, copy: Path) -> None:
    """Both texts are right, but DST has two inodes where SRC has one."""
    link(source / "a/one", "run8")
    hard_link(source / "b/two", source / "a/one")
    link(copy / "a/one", "run8")
    link(copy / "b/two", "run8")


def names_apart_other_time(source: Path, copy: Path) -> None:
    link(source / "a/one", "run8")
    hard_link(source / "b/two", source / "a/one")
    link(copy / "a/one", "run8", NOW - 60 * SECOND)
    link(copy / "b/two", "run8", NOW - 61 * SECOND)


def names_apart_first_stale(source: Path, copy: Path) -> None:
    link(source / "a/one", "run8")
    hard_link(source / "b/two", source / "a/one")
    link(copy / "a/one", "run7")
    link(copy / "b/two", "run8")


def names_apart_second_stale(source: Path, copy: Path) -> None:
    link(source / "a/one", "run8")
    hard_link(source / "b/two", source / "a/one")
    link(copy / "a/one", "run8")
    link(copy / "b/two", "run7")


def names_stale(source: Path, copy: Path) -> None:
    """One inode on each side, with different texts; DST lacks one link."""
    link(source / "a/one", "run8")
    link(copy / "a/one", "run7")
    for name in ("a/two", "b/three"):
        hard_link(source / name, source / "a/one")
        hard_link(copy / name, copy / "a/one")
    hard_link(source / "b/new", source / "a/one")


def joined_in_copy(source: Path, copy: Path) -> None:
    """DST has one inode where SRC has two with different texts."""
    link(source / "a/one", "run7")
    link(source / "b/two", "run8")
    link(copy / "a/one", "run7")
    hard_link(copy / "b/two", copy / "a/one")


def other_device(source: Path, copy: Path) -> None:
    node(source / "a/node", 5)
    node(copy / "a/node", 3)


SITUATIONS: tuple[Callable[[Path, Path], None], ...] = (
    other_text,
    other_time,
    less_than_a_second,
    names_apart,
    names_apart_other_time,
    names_apart_first_stale,
    names_apart_second_stale,
    names_stale,
    joined_in_copy,
    other_device,
)


class Way(NamedTuple):
    """A program with options that keep unchanged items; ``is_exact`` is true if the copy gets all metadata."""

    program: str
    options: tuple[Argument, ...] = ()
    is_exact: bool = True


WAYS = {
    "psync": Way("psync", ("--delete",)),
    "mirror": Way("pcopy", ("--mirror",)),
    "changed": Way("pcopy", ("--existing", "changed")),
    "window": Way("pcopy", ("--existing", "changed", "--modify-window", "1"), is_exact=False),
    "checksum": Way("pcopy", ("--mirror", "--checksum")),
    "inplace": Way("pcopy", ("--mirror", "--inplace")),
    "backup": Way("pcopy", ("--mirror", "--backup", "BACKUP")),
    "newer": Way("pcopy", ("--existing", "newer"), is_exact=False),
}


@pytest.fixture(params=["c", "python"])
def backend_of_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "c":
        native.require()
    monkeypatch.setattr(command, "backend", request.param)


def make(area: Path, situation: Callable[[Path, Path], None]) -> tuple[Path, Path]:
    source, copy = area / "source", area / "copy"
    situation(source, copy)
    (source / "b").mkdir(exist_ok=True)
    return source, copy


def words(area: Path, way: Way) -> list[Argument]:
    options = [area / "backup" if word == "BACKUP" else word for word in way.options]
    return ["--json", "--checkpoint", "none", *options, f"{area}/source/", area / "copy"]


def texts(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): os.readlink(path) for path in tree.rglob("*") if path.is_symlink()}


def state(tree: Path) -> dict[Path, tuple[int, ...]]:
    """Return the status that a dry run must not change; reading a symbolic link changes its access time."""
    found = {path: path.lstat() for path in tree.rglob("*")}
    return {path: (each.st_ino, each.st_nlink, each.st_mtime_ns, each.st_ctime_ns) for path, each in found.items()}


@pytest.mark.usefixtures("backend_of_run")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_updated_copy_is_equal_as_with_rsync(area: Path, way: str, situation: Callable[[Path, Path], None]) -> None:
    if (way, situation) == ("newer", other_device):
        pytest.skip("which device --existing newer keeps is tested with the types of items")
    source, copy = make(area, situation)
    chosen = WAYS[way]
    before = state(copy)
    foreseen = summary(succeed("--dry-run", *words(area, chosen), program=chosen.program, ranks=2))
    assert state(copy) == before
    done = summary(succeed(*words(area, chosen), program=chosen.program, ranks=2))
    for counter in ("symlinks", "hardlinks", "special", "skipped", "mended"):
        assert foreseen.get(counter) == done.get(counter), (counter, foreseen, done)
    assert texts(copy) == texts(source)
    if chosen.is_exact:
        assert differences(source, copy) == []
    again = summary(succeed(*words(area, chosen), program=chosen.program, ranks=2))
    assert (again["symlinks"], again["hardlinks"], again["special"]) == (0, 0, 0)


@pytest.mark.usefixtures("backend_of_run")
@pytest.mark.parametrize("policy", ["skip", "newer"])
def test_link_protected_by_the_policy_is_kept(area: Path, policy: str) -> None:
    link(area / "source/cur", "run8")
    link(area / "copy/cur", "run7", NOW + 60 * SECOND)
    reported = summary(succeed("--json", "--existing", policy, f"{area}/source/", area / "copy"))
    assert (reported["symlinks"], texts(area / "copy")) == (0, {"cur": "run7"})


COMPARISONS: dict[str, tuple[Argument, ...]] = {
    "digests": (),
    "all": ("--compare", "all"),
    "content": ("--compare", "content"),
}


@pytest.mark.usefixtures("backend_of_run")
@pytest.mark.parametrize("ways", COMPARISONS)
@pytest.mark.parametrize("number", [1, 3], ids=["one directory", "several"])
def test_pverify_reports_links_with_another_text(area: Path, ways: str, number: int) -> None:
    for each in range(number):
        link(area / f"source/{each}/same", "run8")
        link(area / f"copy/{each}/same", "run8")
        link(area / f"source/{each}/cur", "run8")
        link(area / f"copy/{each}/cur", "run7")
        for side in ("source", "copy"):
            os.utime(area / side / str(each), ns=(NOW, NOW))
    for side in ("source", "copy"):
        os.utime(area / side, ns=(NOW, NOW))
    run = pverify(*COMPARISONS[ways], area / "source", area / "copy")
    assert run.returncode == 1, show(run)
    listed = run.stdout + run.stderr
    assert listed.count(b"/cur") == number and b"/same" not in listed, show(run)


def test_table_covers_all_policies() -> None:
    """A policy that is added needs a row above."""
    from pcopy.tasks.base.job import EXISTING_CHOICES

    assert set(EXISTING_CHOICES) == {"replace", "changed", "newer", "skip", "fail"}
