"""``--chown`` sets the owners of copies; chown(1) provides the expected result."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed, summary
from tests.support.files import write
from tests.support.oracle import differences
from tests.support.users import NOBODY, require_root
from tests.support.walk import walk

MIB = 1 << 20
USER, GROUP = 3001, 3002


def owners(tree: Path) -> set[tuple[int, int]]:
    return {(entry.status.st_uid, entry.status.st_gid) for entry in walk(bytes(tree))}


@pytest.fixture
def tree(area: Path) -> Path:
    """A source with items of every type, files of every copy method, and several owners; no set-id bits."""
    source = area / "source"
    for name, size in {"empty": 0, "small": 100, "whole": 6 * MIB, "split": 13 * MIB}.items():
        write(source / "files" / name, os.urandom(size))
    with open(source / "sparse", "wb") as file:
        file.truncate(MIB)
    os.link(source / "files/small", source / "linked")
    (source / "link").symlink_to("files/small")
    os.mkfifo(source / "fifo")
    if os.geteuid() == 0:
        os.mknod(source / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.chown(source / "files/whole", 1, 2)
        os.chown(source / "link", 5, 6, follow_symlinks=False)
        os.chown(source / "files", USER, 0)
    return source


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("asked", [f"{USER}:{GROUP}", f"{USER}", f":{GROUP}", "nobody:daemon", f"+{USER}:+0"])
def test_owners_equal_those_set_by_the_chown_command(area: Path, tree: Path, asked: str, ranks: int) -> None:
    require_root("give files away")
    subprocess.run(["cp", "-a", tree, area / "judge"], check=True)
    subprocess.run(["chown", "-hR", asked, area / "judge"], check=True)
    succeed("--chown", asked, "--chunk-size", "4M", tree, area / "copy", ranks=ranks)
    assert differences(area / "judge", area / "copy") == []


def test_trailing_colon_selects_the_login_group(area: Path, tree: Path) -> None:
    require_root("give files away")
    user = next((user for user in pwd.getpwall() if user.pw_uid and user.pw_gid), None)
    if user is None:
        pytest.skip("there is no ordinary user here")
    succeed("--chown", f"{user.pw_name}:", tree, area / "copy", ranks=2)
    assert owners(area / "copy") == {(user.pw_uid, user.pw_gid)}


def test_chown_applies_to_entered_directories_but_not_to_skipped_files(area: Path, tree: Path) -> None:
    """Entered directories and the target itself change their owner; skipped files do not."""
    require_root("give files away")
    for name in ("files/small", "files/old"):
        write(area / "copy" / name, b"old")
    os.chown(area / "copy/files", 7, 8)
    succeed("--chown", f"{USER}:{GROUP}", "--existing", "skip", f"{tree}/", area / "copy", ranks=2)
    stayed = {area / "copy/files/small", area / "copy/files/old"}
    for path in (area / "copy", *(area / "copy").rglob("*")):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == ((0, 0) if path in stayed else (USER, GROUP)), path
    succeed("--chown", f"{USER}:{GROUP}", f"{tree}/", area / "copy", ranks=2)
    (area / "copy/files/old").unlink()
    assert owners(area / "copy") == {(USER, GROUP)}


@pytest.mark.parametrize("inplace", [[], ["--inplace"]], ids=["replaced", "inplace"])
def test_chown_overrides_no_preserve_ownership(area: Path, inplace: list[str]) -> None:
    require_root("give files away")
    for name in ("new", "old"):
        write(area / "source" / name, b"content")
        os.chown(area / "source" / name, 11, 12)
    write(area / "copy/old", b"old")
    os.chown(area / "copy/old", 13, 14)
    succeed("--chown", f":{GROUP}", "--no-preserve", "ownership", *inplace, f"{area}/source/", area / "copy")
    reported = {
        name: ((area / "copy" / name).stat().st_uid, (area / "copy" / name).stat().st_gid) for name in ("new", "old")
    }
    assert reported == {"new": (0, GROUP), "old": (13, GROUP)}


SET_ID = {
    # Argument of --chown: resulting mode of a file of 11:12 whose mode is 06755.
    "11:12": 0o6755,
    "11": 0o6755,
    ":12": 0o6755,
    "11:9": 0o755,
    ":9": 0o755,
    "9": 0o755,
}


@pytest.mark.parametrize(("asked", "size"), [*((asked, 10) for asked in SET_ID), ("11:12", 13 * MIB), (":9", 13 * MIB)])
def test_set_id_bits_are_copied_only_with_their_owner_and_group(area: Path, asked: str, size: int) -> None:
    require_root("give files away")
    write(area / "source/file", bytes(size))
    for path in (area / "source/file", area / "source"):
        os.chown(path, 11, 12)
        path.chmod(0o6755)
    succeed("--chown", asked, "--chunk-size", "4M", area / "source", area / "copy", ranks=2)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (area / "copy/file", area / "copy")]
    assert modes == [SET_ID[asked]] * 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("no-such-user", "there is no user no-such-user"),
        (":no-such-group", "there is no group no-such-group"),
        (":", "no user and no group is named"),
        ("", "no user and no group is named"),
        ("4294967295", "there is no user 4294967295"),
        ("-1:0", "--chown"),
        ("3999999999:", "no login group"),
        ("0:0:0", "there is no group 0:0"),
    ],
)
def test_refused_command_changes_nothing_and_names_the_cause(area: Path, tree: Path, asked: str, words: str) -> None:
    run = pcopy(f"--chown={asked}", tree, area / "copy")
    assert run.returncode == 2, show(run)
    assert words.encode() in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert not (area / "copy").exists()


@pytest.mark.parametrize("asked", ["0", "0:", f"{NOBODY}:0", ":0"])
def test_ordinary_user_may_not_give_files_away(area: Path, asked: str) -> None:
    require_root("become somebody else")
    write(area / "source/file", b"content")
    (area / "copy").mkdir()
    os.chown(area / "copy", NOBODY, NOBODY)
    run = pcopy("--chown", asked, f"{area}/source/", area / "copy", user=NOBODY)
    assert run.returncode == 2, show(run)
    assert b"only root" in run.stderr, show(run)
    assert os.listdir(area / "copy") == []


def test_ordinary_user_may_chown_to_own_user_and_groups(area: Path) -> None:
    """An owner that cannot be set and was not requested is excused, as without the option."""
    require_root("become somebody else")
    write(area / "source/file", b"content")
    (area / "copy").mkdir()
    os.chown(area / "copy", NOBODY, NOBODY)
    run = succeed("--json", "--chown", f"{NOBODY}:{GROUP}", area / "source", area / "copy", user=NOBODY, groups=[GROUP])
    assert owners(area / "copy/source") == {(NOBODY, GROUP)}
    assert summary(run)["excused"] == 0
    run = succeed("--json", "--chown", f":{GROUP}", f"{area}/source/", area / "copy", user=NOBODY, groups=[GROUP])
    assert owners(area / "copy") == {(NOBODY, GROUP)}
    assert summary(run)["excused"] == 2


def test_user_and_group_may_be_given_by_name(area: Path, tree: Path) -> None:
    require_root("give files away")
    daemon = pwd.getpwnam("daemon"), grp.getgrnam("daemon")
    succeed("--chown", "daemon:daemon", tree / "files/small", area / "copy")
    assert owners(area / "copy") == {(daemon[0].pw_uid, daemon[1].gr_gid)}
