"""Attacks on symbolic links, FIFOs and devices between their creation and the setting of their metadata."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from tests.hostile.attack import Attack, replaced
from tests.hostile.stage import Stage
from tests.hostile.window import Ended, Window
from tests.support.users import NOBODY

TARGET = "/target"


def _pipe(stage: Stage) -> None:
    os.mkfifo(stage.source / "pipe")
    os.chown(stage.source / "pipe", NOBODY, NOBODY)
    (stage.source / "pipe").chmod(0o666)
    os.mkfifo(stage.safe / "linked", 0o600)
    os.link(stage.safe / "linked", stage.lair / "linked")
    stage.linked += (stage.safe / "linked",)
    os.mkfifo(stage.lair / "own", 0o600)
    os.chown(stage.lair / "own", 1234, 1234)
    stage.hold(stage.lair / "own")


def _pipe_twice(stage: Stage) -> None:
    _pipe(stage)
    os.mkfifo(stage.target / "pipe")


def _disk(stage: Stage) -> None:
    """Create a device that everybody may use, and one in the lair that only root may use; neither has a driver."""
    os.mknod(stage.source / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 70001))
    os.chown(stage.source / "disk", NOBODY, NOBODY)
    (stage.source / "disk").chmod(0o666)
    os.mknod(stage.lair / "private", stat.S_IFBLK | 0o600, os.makedev(259, 70000))
    os.mknod(stage.lair / "finished", stat.S_IFBLK | 0o600, os.makedev(259, 70001))
    (stage.lair / "finished").chmod(0o640)
    for name in ("private", "finished"):
        stage.hold(stage.lair / name)


def _symlink(stage: Stage) -> None:
    os.symlink("nowhere", stage.source / "link")
    os.chown(stage.source / "link", NOBODY, NOBODY, follow_symlinks=False)


def _becomes(what: str) -> Callable[[Stage, str], None]:
    def act(stage: Stage, name: str) -> None:
        replaced(stage.target / name, stage.lair / what, stage.lair)

    return act


def _becomes_link_to(what: str) -> Callable[[Stage, str], None]:
    def act(stage: Stage, name: str) -> None:
        (stage.target / name).rename(stage.lair / "put away")
        os.symlink(stage.safe / what, stage.target / name)

    return act


def _temporary_becomes_own(stage: Stage, _name: str) -> None:
    (temporary,) = stage.target.glob(".pcopy-*")
    replaced(temporary, stage.lair / "own", stage.lair)


def _own_is_in_place(stage: Stage, ended: Ended) -> list[str]:
    there = (stage.target / "pipe").lstat()
    forged = ended.status == 0 and there.st_ino == stage.inode_of("own")
    return ["the attacker's FIFO is in place, and no error was reported"] if forged else []


def _made(name: str) -> Window:
    return Window("mknod", name, TARGET, when="after")


NODE_ATTACKS = (
    Attack("a new FIFO becomes a link", _pipe, _made("pipe"), _becomes_link_to("pipe")),
    Attack("a new FIFO becomes a hard link to a canary", _pipe, _made("pipe"), _becomes("linked")),
    Attack("a new FIFO becomes somebody else's", _pipe, _made("pipe"), _becomes("own")),
    Attack("a new device becomes another device", _disk, _made("disk"), _becomes("private")),
    Attack("a new device becomes one that is finished", _disk, _made("disk"), _becomes("finished")),
    Attack(
        "a new symbolic link becomes one to a canary",
        _symlink,
        Window("symlink", "link", TARGET, when="after"),
        _becomes_link_to("canary"),
    ),
    Attack(
        "a FIFO under a temporary name is replaced once it has its metadata",
        _pipe_twice,
        Window("utime", ".pcopy-*", TARGET, when="after"),
        _temporary_becomes_own,
        harm=_own_is_in_place,
    ),
)
