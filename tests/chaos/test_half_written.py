"""``--inplace``: a file is marked as incomplete from before its truncation until its new contents are on stable
storage."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, pcopy, pverify, show, succeed, summary
from tests.support.faults import Fault, require_strace
from tests.support.files import NOW, write
from tests.support.held import held
from tests.support.oracle import differences
from tests.support.processes import wait_until
from tests.support.users import NOBODY, is_root, require_root
from tests.support.walk import temporaries

MIB = 1 << 20
SIZES = {"small": 1000, "whole": 5 * MIB + 17, "split": 13 * MIB + 3}
MARK = "trusted.pcopy.incomplete" if is_root() else "user.pcopy.incomplete"
THEN = NOW - 1000 * 10**9


def is_marked(path: Path) -> bool:
    return MARK in os.listxattr(path)


def prepare(area: Path, size: int, mode: int = 0o644) -> Path:
    """Create a newer source file and the file to be overwritten; return the latter."""
    write(area / "source/file", os.urandom(size))
    (area / "source/file").chmod(0o640)
    write(area / "copy/file", b"old", THEN)
    (area / "copy/file").chmod(mode)
    return area / "copy/file"


def killed_at(area: Path, call: str, *words: Argument, path: Path, **options: Any) -> None:
    """Kill a run as soon as it has made that call on the file."""
    number = len([*area.glob("trace-*")])
    with held(area / f"trace-{number}", *words, calls=(call,), path=path, **options) as run:
        run.run.kill_all()
        assert wait_until(lambda: not run.run.processes())


@pytest.mark.parametrize("policy", ["replace", "changed", "newer"])
@pytest.mark.parametrize("size", SIZES)
def test_mode_owner_and_set_id_bits_survive_a_kill(area: Path, size: str, policy: str) -> None:
    require_root("give files away")
    target = prepare(area, SIZES[size])
    os.chown(target, NOBODY, 1)
    target.chmod(0o4751)
    inode = target.stat().st_ino
    words: list[Argument] = ["--json", "--inplace", "--existing", policy, "--no-preserve", "mode,ownership"]
    words += ["--chunk-size", "4M", "--checkpoint", area / "job", f"{area}/source/", area / "copy"]
    for _ in range(2):
        killed_at(area, "ftruncate", *words, path=target, ranks=2)
        status = target.stat()
        assert is_marked(target)
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, 0o600)
    reported = summary(succeed(*words, ranks=3))
    status = target.stat()
    assert target.read_bytes() == (area / "source/file").read_bytes()
    assert (status.st_ino, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (inode, NOBODY, 1, 0o4751)
    assert os.listxattr(target) == []
    assert (reported["files"], reported["skipped"], reported["failed"]) == (1, 0, 0)


@pytest.mark.parametrize("size", ["small", "split"])
@pytest.mark.parametrize("policy", ["newer", "skip", "changed", "fail"])
def test_another_job_does_not_keep_a_half_written_file(area: Path, size: str, policy: str) -> None:
    """The half-written file is newer than the source."""
    target = prepare(area, SIZES[size])
    begin: list[Argument] = [
        "--inplace",
        "--checkpoint",
        "none",
        "--chunk-size",
        "4M",
        f"{area}/source/",
        target.parent,
    ]
    killed_at(area, "ftruncate", *begin, path=target, ranks=2)
    assert is_marked(target)
    run = pcopy("--json", "--existing", policy, f"{area}/source/", target.parent, ranks=2)
    if policy == "fail":
        assert (run.returncode, summary(run)["failed"]) == (1, 1), show(run)
        return
    assert (run.returncode, summary(run)["files"]) == (0, 1), show(run)
    assert differences(area / "source", target.parent) == []


@pytest.mark.parametrize("size", ["small", "split"])
def test_complete_file_keeps_its_incomplete_mark_until_it_is_on_storage(area: Path, size: str) -> None:
    """If the job is killed before, the file counts as copied in the end, not as skipped, although it is as new as the
    source."""
    target = prepare(area, SIZES[size])
    words: list[Argument] = ["--json", "--inplace", "--existing", "newer", "--chunk-size", "4M"]
    words += ["--checkpoint", area / "job", f"{area}/source/", area / "copy"]
    killed_at(area, "fsync", *words, path=target, ranks=2)
    assert target.read_bytes() == (area / "source/file").read_bytes()
    assert is_marked(target)
    reported = summary(succeed(*words, ranks=2))
    assert (reported["files"], reported["skipped"]) == (1, 0)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_mark_is_set_before_truncation_and_removed_after_the_sync(area: Path, size: str, sync: bool) -> None:
    require_strace()
    target = prepare(area, SIZES[size])
    calls = ("fsetxattr", "fchmod", "ftruncate", "pwrite64", "write", "copy_file_range", "fsync", "fremovexattr")
    wrap = ["strace", "-f", "-qq", "-o", str(area / "trace"), "-P", str(target), "-e", f"trace={','.join(calls)}"]
    option = [] if sync else ["--no-sync"]
    words: list[Argument] = ["--inplace", "--chunk-size", "4M", *option, f"{area}/source/", area / "copy"]
    succeed(*words, ranks=2, wrap=wrap)
    lines = [line.split(None, 1)[1] for line in (area / "trace").read_text().splitlines() if "(" in line]
    seen = [line.split("(")[0] for line in lines if not line.startswith("???(")]  # of a process that is ending
    assert seen.index("fsetxattr") < seen.index("fchmod") < seen.index("ftruncate")
    assert seen.index("fsetxattr") == 0
    assert seen[-1] == "fremovexattr"
    assert (seen[-2] == "fsync") == sync
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("size", ["small", "split"])
def test_file_whose_sync_fails_is_counted_as_failed(area: Path, size: str) -> None:
    target = prepare(area, SIZES[size])
    words: list[Argument] = ["--json", "--inplace", "--chunk-size", "4M", f"{area}/source/", area / "copy"]
    fault = Fault(area / "trace", ["fsync"], target, "EIO")
    env = {"XDG_STATE_HOME": str(area / "state")}
    run = pcopy(*words, ranks=2, wrap=fault.wrap(), env=env)
    fault.check()
    reported = summary(run)
    assert (run.returncode, reported["failed"], reported["files"], reported["bytes"]) == (1, 1, 0, 0), show(run)
    assert is_marked(target)
    reported = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert (reported["failed"], reported["files"], reported["bytes"]) == (0, 1, SIZES[size])
    assert differences(area / "source", area / "copy") == []


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("policy", "call"),
    [("replace", "fsync"), ("replace", "fremovexattr"), ("changed", "fremovexattr"), ("newer", "fsync")],
)
@pytest.mark.parametrize("size", ["small", "split"])
def test_hard_links_to_a_file_whose_sync_failed_are_recreated_by_resume(
    area: Path, size: str, policy: str, call: str
) -> None:
    """The other names lead to the same contents, which may not be on storage, and have the same mark."""
    target = prepare(area, SIZES[size])
    for name in ("other", "sub/third"):
        (area / "source" / name).parent.mkdir(exist_ok=True)
        os.link(area / "source/file", area / "source" / name)
    options: list[Argument] = ["--json", "--inplace", "--verify", "--existing", policy, "--chunk-size", "4M"]
    options += ["--no-preserve", "acl"]  # otherwise other attributes would be removed as well
    fault = Fault(area / "trace", [call], target, "EIO")
    env = {"XDG_STATE_HOME": str(area / "state")}
    run = pcopy(*options, f"{area}/source/", area / "copy", ranks=2, wrap=fault.wrap(), env=env)
    fault.check()
    reported = summary(run)
    assert (run.returncode, reported["failed"], reported["files"], reported["hardlinks"]) == (1, 1, 0, 2), show(run)
    before = target.stat().st_ino
    assert is_marked(target)
    reported = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert (reported["failed"], reported["files"], reported["bytes"], reported["hardlinks"]) == (0, 1, SIZES[size], 2)
    assert differences(area / "source", area / "copy") == []
    assert not is_marked(target) and target.stat().st_ino != before
    assert temporaries(os.fsencode(area / "copy")) == []


@pytest.mark.parametrize("size", ["small", "split"])
def test_file_without_metadata_and_with_its_mark_counts_as_one_failure(area: Path, size: str) -> None:
    target = prepare(area, SIZES[size])
    words: list[Argument] = ["--json", "--inplace", "--chunk-size", "4M", f"{area}/source/", area / "copy"]
    fault = Fault(area / "trace", ["fremovexattr"], target, "EIO")  # removal of an ACL and of the mark
    env = {"XDG_STATE_HOME": str(area / "state")}
    run = pcopy(*words, ranks=2, wrap=fault.wrap(), env=env)
    fault.check()
    reported = summary(run)
    assert (run.returncode, reported["failed"], reported["files"], reported["bytes"]) == (1, 1, 0, 0), show(run)
    assert "the mark that the file is incomplete cannot be removed: removexattr" in run.stderr.decode(), show(run)
    assert is_marked(target)
    reported = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert (reported["failed"], reported["files"], reported["bytes"]) == (0, 1, SIZES[size])
    assert differences(area / "source", area / "copy") == []
    assert not is_marked(target)


@pytest.mark.parametrize("options", [(), ("--no-preserve", "xattr,acl"), ("--hash", "xxh3-128")])
@pytest.mark.parametrize("size", ["small", "split"])
def test_source_file_marked_as_incomplete_fails(area: Path, size: str, options: tuple[str, ...]) -> None:
    target = prepare(area, SIZES[size])
    write(area / "copy/other", b"other")
    words: list[Argument] = [
        "--inplace",
        "--checkpoint",
        "none",
        "--chunk-size",
        "4M",
        f"{area}/source/",
        target.parent,
    ]
    killed_at(area, "ftruncate", *words, path=target, ranks=2)
    os.truncate(target, SIZES[size])
    write(area / "copy/users", b"x" * 10)
    os.setxattr(area / "copy/users", "user.pcopy.incomplete", b"whatever")
    run = pcopy("--json", *options, "--chunk-size", "4M", target.parent, area / "further", ranks=2)
    reported = summary(run)
    assert (run.returncode, reported["failed"], reported["files"]) == (1, 2, 1), show(run)
    assert run.stderr.count(b"the file is incomplete") == 2, show(run)
    assert sorted(os.listdir(area / "further")) == ["other"]
    assert os.listxattr(area / "further/other") == []
    run = pverify("--create", area / "sig", area / "copy", ranks=2)
    assert (run.returncode, run.stderr.count(b"the file is incomplete")) == (2, 2), show(run)
    assert not (area / "sig").exists()


@pytest.mark.parametrize("size", ["small", "split"])
def test_ordinary_user_removes_the_mark_from_an_own_read_only_file(area: Path, size: str) -> None:
    require_root("become somebody else")
    target = prepare(area, SIZES[size])
    (area / "source/file").chmod(0o444)
    for path in (area / "copy", target):
        os.chown(path, NOBODY, NOBODY)
    inode = target.stat().st_ino
    succeed("--inplace", "--chunk-size", "4M", f"{area}/source/", area / "copy", ranks=2, user=NOBODY)
    assert (target.stat().st_ino, stat.S_IMODE(target.stat().st_mode)) == (inode, 0o444)
    assert os.listxattr(target) == []
    assert target.read_bytes() == (area / "source/file").read_bytes()


@pytest.mark.parametrize("size", ["small", "split"])
def test_group_that_the_user_could_not_restore_is_not_changed(area: Path, size: str) -> None:
    require_root("become somebody else")
    target = prepare(area, SIZES[size], mode=0o640)
    os.chown(area / "copy", NOBODY, NOBODY)
    os.chown(target, NOBODY, 1)
    (area / "source/file").chmod(0o644)
    words: list[Argument] = ["--inplace", "--no-preserve", "mode,ownership", "--chunk-size", "4M"]
    succeed(*words, f"{area}/source/", area / "copy", ranks=2, user=NOBODY)
    status = target.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (NOBODY, 1, 0o640)


def test_forged_mark_does_not_set_set_id_bits(area: Path) -> None:
    """The owner of a file in the destination can set the attribute, so that it looks as a job of root would leave
    it."""
    require_root("give files away")
    target = prepare(area, 1000, mode=0o600)
    for name in ("user.pcopy.incomplete", MARK):
        if name.startswith("trusted"):
            os.removexattr(target, "user.pcopy.incomplete")
            os.chown(target, NOBODY, NOBODY)  # an attribute that root set, but the owner of the file was changed
        os.setxattr(target, name, b"job 104755 0 0\n")
        succeed("--inplace", "--no-preserve", "mode,ownership", f"{area}/source/", area / "copy")
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
