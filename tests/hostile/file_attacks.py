"""Attacks on written files: temporary files, planted links, first names of hard links."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.hostile.attack import Attack, replaced
from tests.hostile.stage import Stage
from tests.hostile.window import Ended, Window
from tests.support.users import NOBODY

MIB = 1 << 20
LARGE = 48 * MIB
SPLIT = ("-n", "2", "--chunk-size", "16M")
CONTENT = b"what the source holds"
FORGED = b"the attacker's"
TARGET = "/target"


def _large(stage: Stage) -> None:
    """Create a set-id program of root that the attacker may read; three chunks, mostly holes."""
    path = stage.owned(stage.source / "large", b"", 0o755, 0)
    with open(path, "r+b") as file:
        for start in range(0, LARGE, 16 * MIB):
            file.seek(start)
            file.write(CONTENT)
        file.truncate(LARGE)
    path.chmod(0o4755)
    other = stage.owned(stage.lair / "root's", b"", 0o600, 0)
    os.truncate(other, LARGE)  # a replacement of a temporary file has the same size
    stage.hold(other)
    stage.hold(stage.owned(stage.lair / "forged", FORGED, 0o600))
    stage.link_to_canary()
    os.mkfifo(stage.lair / "fifo")
    os.mknod(stage.lair / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    stage.watch_reads(stage.lair / "device")


def _source_becomes(what: str) -> Callable[[Stage, str], None]:
    return lambda stage, name: replaced(stage.source / name, stage.lair / what, stage.lair)


def _was_given_away(stage: Stage, _ended: Ended) -> list[str]:
    """Check that a file of root in the source does not belong to the attacker in the target."""
    path = stage.target / "large"
    if not path.exists() or path.stat().st_uid != NOBODY:
        return []
    with open(path, "rb") as file:
        return ["root's program belongs to the attacker"] if file.read(len(CONTENT)) == CONTENT else []


def _temporary(stage: Stage) -> Path:
    (path,) = stage.target.glob(".pcopy-*")
    return path


def _temporary_becomes(what: str) -> Callable[[Stage, str], None]:
    return lambda stage, _name: replaced(_temporary(stage), stage.lair / what, stage.lair)


def _temporary_becomes_link(stage: Stage, _name: str) -> None:
    os.symlink(stage.safe / "canary", stage.lair / "link")
    replaced(_temporary(stage), stage.lair / "link", stage.lair)


def with_its_number(stage: Stage, path: Path) -> None:
    """Replace a file by one with the same inode number: the file system reuses the number of a removed file."""
    number = path.stat().st_ino
    path.unlink()
    for attempt in range(100):
        file = stage.lair / f"try-{attempt}"
        file.write_bytes(FORGED)
        if file.stat().st_ino == number:
            break
    else:
        raise AssertionError("the inode's number was never used again")
    file.rename(path)


def _same_inode(stage: Stage, _name: str) -> None:
    """Replace the temporary file by the attacker's file with the same inode number, which another process keeps
    open."""
    temporary = _temporary(stage)
    with_its_number(stage, temporary)
    os.truncate(temporary, LARGE)
    temporary.chmod(0o600)
    with open(temporary, "rb") as kept:
        holder = subprocess.Popen(["sleep", "60"], stdin=kept, start_new_session=True)
    (stage.lair / "holder").write_text(str(holder.pid))


def _attackers_file_got_metadata(stage: Stage, _ended: Ended) -> list[str]:
    pid = int((stage.lair / "holder").read_text())
    status = os.stat(f"/proc/{pid}/fd/0")
    os.kill(pid, 9)
    return [] if (status.st_uid, status.st_mode & 0o7777) == (NOBODY, 0o600) else [f"it is {status}"]


def _forged(name: str) -> Callable[[Stage, Ended], list[str]]:
    """Return a check for a successful run with a name that is not like the source."""

    def harm(stage: Stage, ended: Ended) -> list[str]:
        if ended.status != 0:
            return []
        with open(stage.target / name, "rb") as file:
            return [] if file.read(len(CONTENT)) == CONTENT else [f"{name} is not the copy, and no error was reported"]

    return harm


def _existing(stage: Stage) -> None:
    stage.owned(stage.source / "victim", CONTENT)
    stage.owned(stage.target / "victim", b"old")
    stage.link_to_canary()


def _name_is_taken(stage: Stage, name: str) -> None:
    """The attacker knows the name of a temporary file before it is created."""
    (stage.lair / "linked").rename(stage.target / name)


def _new_file(stage: Stage) -> None:
    stage.owned(stage.source / "victim", CONTENT)
    stage.link_to_canary()
    os.symlink(stage.safe / "canary", stage.lair / "link")


def _name_becomes(what: str) -> Callable[[Stage, str], None]:
    """The attacker takes the name of a new file after it was found to be unused."""
    return lambda stage, name: os.rename(stage.lair / what, stage.target / name)


def _planted_hard_link(stage: Stage) -> None:
    stage.owned(stage.source / "victim", CONTENT)
    stage.link_to_canary().rename(stage.target / "victim")


def _planted_symlinks(stage: Stage) -> None:
    for name, to in (("one", stage.safe / "canary"), ("two", stage.safe / "new")):
        stage.owned(stage.source / name, CONTENT)
        os.symlink(to, stage.target / name)


def _pair(stage: Stage) -> None:
    stage.owned(stage.source / "one", CONTENT)
    os.link(stage.source / "one", stage.source / "two")
    stage.owned(stage.lair / "forged", FORGED)


def _other(name: str) -> str:
    return {"one": "two", "two": "one"}[name]


def _copy_is_forged(stage: Stage, name: str) -> None:
    replaced(stage.target / name, stage.lair / "forged", stage.lair)


def _both_are_forged(stage: Stage, name: str) -> None:
    _copy_is_forged(stage, name)
    os.link(stage.target / name, stage.target / _other(name))


def _copy_is_remade(stage: Stage, name: str) -> None:
    with_its_number(stage, stage.target / name)


def _the_other_is_forged(stage: Stage, name: str) -> None:
    _copy_is_forged(stage, _other(name))


def _a_link_is_forged(stage: Stage, ended: Ended) -> list[str]:
    names = [path for path in (stage.target / "one", stage.target / "two") if path.exists()]
    wrong = [path.name for path in names if path.read_bytes() != CONTENT]
    return [f"{wrong} are forged, and no error was reported"] if wrong and ended.status == 0 else []


def _a_name_was_given(stage: Stage, _ended: Ended) -> list[str]:
    """Check ``two``, the name that pcopy created; ``one`` was created by the attacker."""
    path = stage.target / "two"
    return ["the attacker's file got another name"] if path.exists() and path.read_bytes() == FORGED else []


def _target_becomes(what: str) -> Callable[[Stage, str], None]:
    return lambda stage, name: replaced(stage.target / name, stage.lair / what, stage.lair)


def _existing_and_more(stage: Stage) -> None:
    _existing(stage)
    os.symlink(stage.safe / "canary", stage.lair / "link")
    os.mkfifo(stage.lair / "fifo")


INPLACE = ("-n", "1", "--inplace")
BEFORE_OVERWRITE = Window("open", "victim", TARGET)
BEFORE_CREATE = Window("create", "victim", TARGET)
BEFORE_REOPEN = Window("open", ".pcopy-*", TARGET, 2)
BEFORE_FINISH = Window("open", ".pcopy-*", TARGET, 4)  # after three chunks
BEFORE_RENAME = Window("rename", ".pcopy-*", TARGET)
BEFORE_LINK = Window("open", "one", TARGET)

FILE_ATTACKS = (
    Attack(
        "a split source file becomes a device between chunks",
        _large,
        Window("open", "large", "/source", 3),
        _source_becomes("device"),
        SPLIT,
    ),
    Attack(
        "a split source file becomes the attacker's before its copy is finished",
        _large,
        Window("open", "large", "/source", 5),
        _source_becomes("forged"),
        SPLIT,
        _was_given_away,
    ),
    Attack(
        "a temporary file becomes a hard link to a canary between chunks",
        _large,
        BEFORE_REOPEN,
        _temporary_becomes("linked"),
        SPLIT,
    ),
    Attack("a temporary file becomes a link between chunks", _large, BEFORE_REOPEN, _temporary_becomes_link, SPLIT),
    Attack("a temporary file becomes a FIFO between chunks", _large, BEFORE_REOPEN, _temporary_becomes("fifo"), SPLIT),
    Attack(
        "a temporary file becomes another file of root's between chunks",
        _large,
        BEFORE_REOPEN,
        _temporary_becomes("root's"),
        SPLIT,
    ),
    Attack(
        "a temporary file becomes a hard link before it is finished",
        _large,
        BEFORE_FINISH,
        _temporary_becomes("linked"),
        SPLIT,
    ),
    Attack(
        "a temporary file becomes the attacker's before it is finished",
        _large,
        BEFORE_FINISH,
        _temporary_becomes("forged"),
        SPLIT,
    ),
    Attack(
        "a temporary file becomes another one with its inode's number",
        _large,
        BEFORE_FINISH,
        _same_inode,
        SPLIT,
        _attackers_file_got_metadata,
    ),
    Attack(
        "a temporary file becomes the attacker's before it is renamed",
        _large,
        BEFORE_RENAME,
        _temporary_becomes("forged"),
        SPLIT,
        _forged("large"),
    ),
    Attack(
        "a temporary file's name is taken by a hard link to a canary",
        _existing,
        Window("create", ".pcopy-*", TARGET),
        _name_is_taken,
    ),
    Attack("a new file's name is taken by a hard link to a canary", _new_file, BEFORE_CREATE, _name_becomes("linked")),
    Attack("a new file's name is taken by a link", _new_file, BEFORE_CREATE, _name_becomes("link")),
    Attack("a hard link to a canary is planted", _planted_hard_link),
    Attack("symbolic links are planted", _planted_symlinks),
    Attack(
        "the first of linked names is replaced before the next is made",
        _pair,
        BEFORE_LINK,
        _copy_is_forged,
        harm=_a_name_was_given,
    ),
    Attack(
        "the first of linked names becomes another file with its inode's number",
        _pair,
        BEFORE_LINK,
        _copy_is_remade,
        harm=_a_name_was_given,
    ),
    Attack(
        "the first of linked names is replaced as the next is made",
        _pair,
        Window("link", "two", TARGET),
        _the_other_is_forged,
        harm=_a_name_was_given,
    ),
    Attack("both linked names are replaced", _pair, BEFORE_LINK, _both_are_forged, harm=_a_link_is_forged),
    Attack("a hard link to a canary is planted where files are written over", _planted_hard_link, arguments=INPLACE),
    Attack(
        "a file that is to be written over becomes a hard link to a canary",
        _existing_and_more,
        BEFORE_OVERWRITE,
        _target_becomes("linked"),
        INPLACE,
    ),
    Attack(
        "a file that is to be written over becomes a link",
        _existing_and_more,
        BEFORE_OVERWRITE,
        _target_becomes("link"),
        INPLACE,
    ),
    Attack(
        "a file that is to be written over becomes a FIFO",
        _existing_and_more,
        BEFORE_OVERWRITE,
        _target_becomes("fifo"),
        INPLACE,
    ),
)
