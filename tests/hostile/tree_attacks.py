"""Attacks on look-ups: directories and source files that are replaced between two calls."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from tests.hostile.attack import Attack, replaced
from tests.hostile.stage import Stage
from tests.hostile.window import Ended, Window
from tests.support.users import as_user

MIB = 1 << 20
FILLING = 300
"""Number of directories that displace all other ones from the cache of descriptors."""

PUBLIC = 5
OLD = 1_000_000_000
"""A time by which a finished directory is distinguished from an unfinished one."""


def _inner_in_both(stage: Stage) -> None:
    for tree in (stage.source, stage.target):
        stage.owned(tree / "inner")
    stage.owned(stage.source / "inner/victim", b"plain")


def _inner_in_source(stage: Stage) -> None:
    stage.owned(stage.source / "inner")
    stage.owned(stage.source / "inner/victim", b"plain")


def _source_becomes_link(stage: Stage, _name: str) -> None:
    (stage.source / "inner").rename(stage.lair / "inner")
    os.symlink(stage.far, stage.source / "inner")


def _target_becomes_link(stage: Stage, _name: str) -> None:
    (stage.target / "inner").rename(stage.target / "put away")  # it may belong to root: it stays in its directory
    os.symlink(stage.safe, stage.target / "inner")


def _private_and_public(stage: Stage) -> None:
    """Create directories in the source: most are private to root, a few are accessible to everybody."""
    for number in range(FILLING):
        private = stage.owned(stage.source / f"private{number}", mode=0o700, owner=0)
        stage.owned(private / "file", b"private", 0o644, 0)
        os.utime(private, (OLD, OLD))
    for number in range(PUBLIC):
        stage.owned(stage.source / f"public{number}", mode=0o777)


def _exchange_in_target(stage: Stage, name: str) -> None:
    """Exchange with a finished directory, whose metadata is not set again."""
    public, between = stage.target / name, stage.target / "between"
    private = next(path for path in sorted(stage.target.glob("private*")) if path.stat().st_mtime == OLD)
    public.rename(between)
    private.rename(public)
    between.rename(private)


def _private_is_open(stage: Stage, _ended: Ended) -> list[str]:
    return [f"{path} can be read" for path in stage.target.glob("public*/file") if _readable(str(path))]


def _readable(path: str) -> bool:
    """Return True if the attacker can read the file."""
    try:
        as_user(lambda: os.close(os.open(path, os.O_RDONLY)))
    except AssertionError:
        return False
    return True


def _victim(stage: Stage) -> None:
    stage.owned(stage.source / "victim", b"plain")


def _victim_or_device(size: int) -> Callable[[Stage], None]:
    """Return a function that creates a file of the attacker, and a device of root in the lair. The device may be opened
    but not read."""

    def prepare(stage: Stage) -> None:
        stage.owned(stage.source / "victim", bytes(size))
        os.mknod(stage.lair / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        stage.watch_reads(stage.lair / "device")

    return prepare


def _becomes_fifo(stage: Stage, _name: str) -> None:
    os.mkfifo(stage.lair / "fifo")
    replaced(stage.source / "victim", stage.lair / "fifo", stage.lair)


def _becomes_link(stage: Stage, _name: str) -> None:
    os.symlink(stage.far / "canary", stage.lair / "link")
    replaced(stage.source / "victim", stage.lair / "link", stage.lair)


def _becomes_device(stage: Stage, _name: str) -> None:
    replaced(stage.source / "victim", stage.lair / "device", stage.lair)


def _is_no_device(stage: Stage, ended: Ended) -> list[str]:
    """Check the copy; the item may have been found again and copied as a device."""
    wrong = ended.status == 0 and not stat.S_ISCHR((stage.target / "victim").lstat().st_mode)
    return ["a device was copied as a file"] if wrong else []


def _moved_out(stage: Stage, _name: str) -> None:
    (stage.target / "inner").rename(stage.lair / "inner")


def _did_not_stay(stage: Stage, _ended: Ended) -> list[str]:
    """Check that the moved directory is still used, and nothing is created elsewhere."""
    there = sorted(path.name for path in stage.lair.rglob("*"))
    left = [path.name for path in stage.target.rglob("*")]
    return [] if (there, left) == (["inner", "victim"], []) else [f"lair: {there}, target: {left}"]


def _source_moved_out(stage: Stage, _name: str) -> None:
    (stage.source / "inner").rename(stage.lair / "inner")


SOURCE, TARGET = "/source", "/target"

TREE_ATTACKS = (
    Attack(
        "a source directory becomes a link to a directory elsewhere",
        _inner_in_both,
        Window("open", "inner", SOURCE),
        _source_becomes_link,
    ),
    Attack(
        "a target directory becomes a link",
        _inner_in_both,
        Window("open", "inner", TARGET),
        _target_becomes_link,
    ),
    Attack(
        "a new target directory becomes a link",
        _inner_in_source,
        Window("mkdir", "inner", TARGET, when="after"),
        _target_becomes_link,
    ),
    Attack(
        "target directories change places before they are finished",
        _private_and_public,
        Window("open", "public*", TARGET, PUBLIC + 3),  # at the third one to be finished, some directories are finished
        _exchange_in_target,
        harm=_private_is_open,
        in_c=Window("open", "public*", TARGET, 2 * PUBLIC + 3),  # the C backend checks first whether they exist
    ),
    Attack("a source file becomes a FIFO", _victim, Window("open", "victim", SOURCE), _becomes_fifo),
    Attack("a source file becomes a link", _victim, Window("open", "victim", SOURCE), _becomes_link),
    Attack(
        "a source file becomes a device",
        _victim_or_device(5),
        Window("open", "victim", SOURCE),
        _becomes_device,
        harm=_is_no_device,
    ),
    Attack(
        "a large source file becomes a device",
        _victim_or_device(5 * MIB),
        Window("open", "victim", SOURCE),
        _becomes_device,
        harm=_is_no_device,
    ),
    Attack(
        "a source directory is moved out",
        _inner_in_both,
        Window("open", "victim", SOURCE),
        _source_moved_out,
    ),
    Attack(
        "a target directory is moved out",
        _inner_in_both,
        Window("create", "victim", TARGET),
        _moved_out,
        harm=_did_not_stay,
    ),
)
