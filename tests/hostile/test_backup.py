"""Root backs up the items that a mirror replaces and deletes (``--backup``), in a directory that others have used
before, or modify."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.unfinished import stopped_while_saving
from tests.support.command import Argument, pcopy, show, succeed
from tests.support.files import mode_of, write
from tests.support.oracle import changes, snapshot
from tests.support.users import NOBODY, as_user, require_root

OTHER = 12345
"""The owner of the private directory."""


@pytest.fixture
def trees(area: Path) -> Path:
    """A file that all may read, in a directory that only its owner may enter."""
    require_root("keep what others have")
    write(area / "source/private/secret", b"new")
    write(area / "copy/private/secret", b"older")
    for tree in ("source", "copy"):
        (area / tree / "private").chmod(0o700)
        os.chown(area / tree / "private", OTHER, OTHER)
    return area


def words(area: Path) -> list[Argument]:
    return ["--mirror", "--backup", ".old", "--exclude", "/.old", f"{area}/source/", area / "copy"]


def readable_by_user(top: Path) -> set[bytes]:
    """Return the contents that an ordinary user can read below ``top``; this user may add permissions to own items."""
    reading, writing = os.pipe()

    def look() -> None:
        for at, directories, files in os.walk(top):
            for name in directories:
                if (Path(at) / name).lstat().st_uid == NOBODY:
                    (Path(at) / name).chmod(0o777)
            for name in files:
                if os.access(Path(at) / name, os.R_OK):
                    os.write(writing, (Path(at) / name).read_bytes() + b"\n")

    as_user(look)
    os.close(writing)
    with open(reading, "rb") as stream:
        return set(stream.read().splitlines())


@pytest.mark.parametrize("user", [0, NOBODY])
def test_backup_directory_that_others_own_or_may_write_to_is_refused(trees: Path, user: int) -> None:
    kept = trees / "copy/.old"
    (kept / "private").mkdir(parents=True)
    os.chown(kept, user, user)
    kept.chmod(0o755 if user else 0o777)
    os.chown(kept / "private", NOBODY, NOBODY)
    before = snapshot(trees)
    run = pcopy(*words(trees))
    assert run.returncode == 2 and b"--backup .old: " in run.stderr, show(run)
    assert (b"belongs to user 65534" if user else b"may be written by others (mode 0777)") in run.stderr, show(run)
    assert changes(before, snapshot(trees)) == []


@pytest.mark.parametrize(("user", "mode"), [(NOBODY, 0o777), (NOBODY, 0o700), (0, 0o755), (0, 0o711), (0, 0o770)])
def test_existing_backup_subdirectories_accessible_to_others_are_not_used(trees: Path, user: int, mode: int) -> None:
    """The subdirectory may have belonged to another user before."""
    kept = trees / "copy/.old"
    (kept / "private").mkdir(parents=True)
    os.chown(kept / "private", user, user)
    (kept / "private").chmod(mode)
    succeed(*words(trees))
    assert (kept / "private.~1~/secret").read_bytes() == b"older" and mode_of(kept / "private.~1~") == 0o700
    assert os.listdir(kept / "private") == [] and mode_of(kept / "private") == mode
    assert readable_by_user(trees) == set()
    write(trees / "source/private/secret", b"newest")
    succeed(*words(trees))
    assert (kept / "private.~1~/secret.~1~").read_bytes() == b"new"


def test_later_backups_are_not_put_into_an_accessible_earlier_backup(trees: Path) -> None:
    """A backed-up directory keeps owner and mode. Later, a private directory of the same name is deleted as well."""
    copy = trees / "copy"
    (trees / "copy/.old").mkdir()
    for number, mode in enumerate((0o777, 0o700, 0o777)):
        write(copy / "gone/inner/file", b"night %d" % number)
        for path in (copy / "gone", copy / "gone/inner"):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(mode)
        if mode == 0o700:
            os.chown(copy / "gone", OTHER, OTHER)
        succeed(*words(trees))
    kept = copy / ".old"
    assert [(kept / f"gone{end}").lstat().st_uid for end in ("", ".~1~", ".~2~")] == [NOBODY, OTHER, NOBODY]
    assert (kept / "gone/inner/file").read_bytes() == b"night 0" and mode_of(kept / "gone/inner") == 0o777
    assert (kept / "gone.~1~/inner/file").read_bytes() == b"night 1" and mode_of(kept / "gone.~1~") == 0o700
    assert readable_by_user(trees) == {b"night 0", b"night 2"}


def test_chown_option_does_not_apply_to_backups(trees: Path) -> None:
    """``--chown`` applies to copies only."""
    write(trees / "copy/gone/file", b"older")
    (trees / "copy/gone").chmod(0o750)
    succeed("--chown", f"{NOBODY}:{NOBODY}", *words(trees))
    kept = (trees / "copy/.old/gone").stat()
    assert (kept.st_uid, kept.st_gid, kept.st_mode & 0o777) == (0, 0, 0o750)
    assert readable_by_user(trees / "copy/.old") == set()


def test_backup_directory_replaced_by_another_user_is_not_used(area: Path) -> None:
    """DST belongs to others. All items fail and nothing is removed; with the right directory the job can be resumed."""
    require_root("copy for others")
    env = {"XDG_STATE_HOME": str(area / "state")}
    copy, kept = area / "copy", area / "copy/.old"
    write(copy / "extra", b"older")
    (area / "source").mkdir()
    os.chown(copy, NOBODY, NOBODY)
    os.chown(area / "source", NOBODY, NOBODY)
    name = stopped_while_saving(area, kept, env, *words(area))
    done = {path.name for path in kept.iterdir()}

    def exchange() -> None:
        kept.rename(copy / "aside")
        kept.mkdir()

    as_user(exchange)
    run = pcopy("--resume", name, env=env)
    assert run.returncode == 1 and b"belongs to user 65534" in run.stderr, show(run)
    assert os.listdir(kept) == [] and (copy / "extra").exists()
    assert all((copy / f"{number}").read_bytes() == b"older" for number in range(60) if f"{number}" not in done)
    kept.rmdir()
    (copy / "aside").rename(kept)
    succeed("--resume", name, env=env)
    assert len(os.listdir(kept)) == 61 and all(path.read_bytes() == b"older" for path in kept.iterdir())
    assert all((copy / f"{number}").read_bytes() == b"new" for number in range(60)) and not (copy / "extra").exists()
