"""``--inplace`` overwrites existing files, but never through a link, and never where other users could read them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.attributes import ACCESS_ACL, acl, has_acls, has_xattrs
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import WRITES, Fault
from tests.support.files import NOW, age_directories, noise, write
from tests.support.filesystems import Place, mounted
from tests.support.held import held
from tests.support.oracle import changes, differences, snapshot
from tests.support.users import NOBODY, require_root
from tests.support.walk import temporaries

MIB = 1 << 20
THEN = 1_600_000_000 * 10**9
SIZES = {"empty": 0, "small": 1000, "whole": 5 * MIB + 17, "split": 13 * MIB + 3}
INPLACE = ("--json", "--inplace", "--chunk-size", "4M")


@pytest.mark.parametrize("there", [0, 100, 17 * MIB])
@pytest.mark.parametrize("size", SIZES)
def test_existing_file_is_overwritten_in_place(area: Path, size: str, there: int) -> None:
    write(area / "source/file", os.urandom(SIZES[size]))
    write(area / "copy/file", b"o" * there, THEN)
    (area / "copy/file").chmod(0o444)
    inode = (area / "copy/file").stat().st_ino
    reported = summary(succeed(*INPLACE, f"{area}/source/", area / "copy", ranks=3))
    assert differences(area / "source", area / "copy") == []
    assert (area / "copy/file").stat().st_ino == inode
    assert (reported["files"], reported["bytes"]) == (1, SIZES[size])
    assert temporaries(os.fsencode(area)) == []


@pytest.mark.parametrize("size", ["small", "split"])
def test_old_metadata_of_an_overwritten_file_is_removed(on: Place, size: str) -> None:
    place = on("ext4")
    if not (has_xattrs(bytes(place)) and has_acls(bytes(place))):
        pytest.skip("no extended attributes here")
    write(place / "source/file", os.urandom(SIZES[size]))
    os.setxattr(place / "source/file", "user.new", b"new")
    (place / "source/file").chmod(0o640)
    write(place / "copy/file", b"old")
    (place / "copy/file").chmod(0o666)
    os.setxattr(place / "copy/file", "user.old", b"old")
    os.setxattr(place / "copy/file", ACCESS_ACL, acl(6, 6, 6, {NOBODY: 6}))
    inode = (place / "copy/file").stat().st_ino
    succeed(*INPLACE, f"{place}/source/", place / "copy", ranks=3)
    assert differences(place / "source", place / "copy") == []
    assert (place / "copy/file").stat().st_ino == inode


@pytest.mark.parametrize("size", ["small", "split"])
def test_old_acl_of_an_overwritten_file_is_removed(on: Place, size: str) -> None:
    """This holds also without copying ACLs: a file that replaces the old one would have none."""
    place = on("ext4")
    if not has_acls(bytes(place)):
        pytest.skip("no ACLs here")
    write(place / "source/file", os.urandom(SIZES[size]))
    (place / "source/file").chmod(0o640)
    write(place / "copy/file", b"old")
    os.setxattr(place / "copy/file", ACCESS_ACL, acl(6, 6, 6, {NOBODY: 6}))
    succeed(*INPLACE, "--no-preserve", "acl", f"{place}/source/", place / "copy", ranks=3)
    assert ACCESS_ACL not in os.listxattr(place / "copy/file")


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("size", ["small", "split"])
@pytest.mark.parametrize("option", ["mode", "ownership", "mode,ownership"])
def test_unpreserved_mode_and_owner_of_an_overwritten_file_are_unchanged(
    area: Path, size: str, option: str, attempts: int
) -> None:
    """If the source changes during the copy, a second attempt finds the file with the metadata of the first attempt."""
    require_root("give files away")
    write(area / "source/file", os.urandom(SIZES[size]))
    (area / "source/file").chmod(0o604)
    write(area / "copy/file", b"old")
    os.chown(area / "copy/file", NOBODY, 1)
    (area / "copy/file").chmod(0o4751)
    inode = (area / "copy/file").stat().st_ino
    words = (*INPLACE, "--no-preserve", option, f"{area}/source/", area / "copy")
    with held(area / "trace", *words, calls=("ftruncate",), path=area / "copy/file", ranks=2) as run:
        if attempts > 1:
            write(area / "source/file", os.urandom(SIZES[size]), NOW + 10**9)
        ended = run.go_on()
    assert ended.returncode == 0, show(ended)
    status = (area / "copy/file").stat()
    assert (area / "copy/file").read_bytes() == (area / "source/file").read_bytes()
    assert status.st_ino == inode
    set_id = stat.S_ISUID if option == "mode,ownership" else 0
    assert stat.S_IMODE(status.st_mode) == (0o751 | set_id if "mode" in option else 0o604)
    assert (status.st_uid, status.st_gid) == ((NOBODY, 1) if "ownership" in option else (0, 0))


@pytest.mark.parametrize("size", ["small", "split"])
def test_links_and_fifos_are_replaced_and_not_written_through(area: Path, size: str) -> None:
    outside = area / "outside"
    for name in ("linked", "pointed"):
        write(outside / name, b"precious", THEN)
    for name in ("linked", "pointed", "fifo"):
        write(area / "source" / name, os.urandom(SIZES[size]))
    (area / "copy").mkdir()
    os.link(outside / "linked", area / "copy/linked")
    (area / "copy/pointed").symlink_to(outside / "pointed")
    os.mkfifo(area / "copy/fifo")
    before = snapshot(outside / "linked")[b""], snapshot(outside / "pointed")[b""]
    reported = summary(succeed(*INPLACE, f"{area}/source/", area / "copy", ranks=3, timeout=60))
    assert differences(area / "source", area / "copy") == []
    after = snapshot(outside / "linked")[b""], snapshot(outside / "pointed")[b""]
    assert [record.content for record in after] == [record.content for record in before]
    assert [(record.mode, record.mtime) for record in after] == [(record.mode, record.mtime) for record in before]
    assert reported["files"] == 3


@pytest.mark.parametrize("size", ["small", "split"])
def test_hard_links_of_the_source_overwrite_one_existing_file(area: Path, size: str) -> None:
    write(area / "source/a", os.urandom(SIZES[size]))
    os.link(area / "source/a", area / "source/b")
    for name in ("a", "b"):
        write(area / "copy" / name, b"old " + name.encode())
    inodes = {(area / "copy" / name).stat().st_ino for name in ("a", "b")}
    succeed(*INPLACE, f"{area}/source/", area / "copy", ranks=3)
    assert differences(area / "source", area / "copy") == []
    assert (area / "copy/a").stat().st_ino in inodes


@pytest.mark.parametrize("ranks", [1, 3])
def test_holes_are_restored_in_an_overwritten_file(area: Path, ranks: int) -> None:
    """The old file has data where the new one has holes."""
    for name, size in {"small": 1 * MIB, "large": 17 * MIB}.items():
        (area / "source").mkdir(exist_ok=True)
        with open(area / "source" / name, "wb") as file:
            file.truncate(size)
            file.seek(size // 2)
            file.write(b"island")
        write(area / "copy" / name, b"x" * size)
    inodes = [(area / "copy" / name).stat().st_ino for name in ("small", "large")]
    succeed(*INPLACE, f"{area}/source/", area / "copy", ranks=ranks)
    assert differences(area / "source", area / "copy") == []
    assert [(area / "copy" / name).stat().st_ino for name in ("small", "large")] == inodes


def test_overwriting_needs_no_space_for_a_second_copy(session_scratch: Path, area: Path) -> None:
    write(area / "source/file", noise(20 * MIB))
    with mounted("tmpfs", session_scratch, size=30 * MIB) as place:
        write(place / "copy/file", b"o" * (20 * MIB))
        assert pcopy(f"{area}/source/", place / "copy").returncode != 0
        assert (place / "copy/file").read_bytes() == b"o" * (20 * MIB)
        succeed(*INPLACE, f"{area}/source/", place / "copy", ranks=2)
        assert differences(area / "source", place / "copy") == []


@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o444), (0, 0o666)], ids=["read-only", "somebody else's"])
def test_ordinary_user_replaces_files_that_must_not_be_overwritten(area: Path, owner: int, mode: int) -> None:
    """The owner of the existing file could open it while it is overwritten, whatever the mode of the source."""
    require_root("become somebody else")
    write(area / "source/file", b"new")
    write(area / "copy/file", b"old")
    (area / "copy/file").chmod(mode)
    inode = (area / "copy/file").stat().st_ino
    os.chown(area / "copy", NOBODY, NOBODY)
    os.chown(area / "copy/file", owner, owner)
    reported = summary(succeed(*INPLACE, f"{area}/source/", area / "copy", user=NOBODY))
    assert (area / "copy/file").read_bytes() == b"new"
    assert (area / "copy/file").stat().st_ino != inode
    assert reported["files"] == 1


def test_a_running_program_is_replaced(area: Path) -> None:
    """The program cannot be opened for writing (ETXTBSY), and must continue to run."""
    write(area / "source/sleep", b"new")
    (area / "copy").mkdir()
    shutil.copy(shutil.which("sleep") or "/bin/sleep", area / "copy/sleep")
    with subprocess.Popen([area / "copy/sleep", "60"]) as process:
        try:
            succeed(*INPLACE, f"{area}/source/", area / "copy")
            assert process.poll() is None
        finally:
            process.kill()
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("size", ["small", "split"])
def test_failed_overwrite_leaves_a_private_file_that_the_next_run_copies(area: Path, size: str) -> None:
    write(area / "source/file", os.urandom(SIZES[size]))
    write(area / "copy/file", b"old", THEN)
    write(area / "source/other", b"other")
    inode = (area / "copy/file").stat().st_ino
    fault = Fault(area / "trace", WRITES, area / "copy/file", "EIO")
    run = pcopy(*INPLACE, f"{area}/source/", area / "copy", ranks=3, wrap=fault.wrap())
    fault.check()
    assert run.returncode == 1, show(run)
    assert b"the file in the destination is incomplete" in run.stderr, show(run)
    reported = summary(run)
    assert (reported["failed"], reported["files"]) == (1, 1)
    status = (area / "copy/file").stat()
    assert (status.st_ino, stat.S_IMODE(status.st_mode)) == (inode, 0o600)
    assert status.st_mtime_ns > NOW
    assert temporaries(os.fsencode(area)) == []
    reported = summary(succeed(*INPLACE, "--existing", "changed", f"{area}/source/", area / "copy", ranks=3))
    assert differences(area / "source", area / "copy") == []
    assert (reported["files"], reported["skipped"]) == (1, 2)


@pytest.mark.parametrize("policy", ["skip", "newer", "fail", "changed"])
@pytest.mark.parametrize("size", ["small", "split"])
def test_file_that_the_policy_skips_is_not_overwritten(area: Path, size: str, policy: str) -> None:
    data = os.urandom(SIZES[size])
    write(area / "source/file", data)
    write(area / "copy/file", data[::-1])
    before = snapshot(area / "copy/file")
    run = pcopy(*INPLACE, "--existing", policy, f"{area}/source/", area / "copy", ranks=3)
    assert run.returncode == (1 if policy == "fail" else 0), show(run)
    assert changes(before, snapshot(area / "copy/file")) == []


@pytest.mark.parametrize("size", ["small", "split"])
def test_checksum_overwrites_only_different_files(area: Path, size: str) -> None:
    data = os.urandom(SIZES[size])
    for name, there in {"same": data, "other": data[:-1] + bytes([data[-1] ^ 1])}.items():
        write(area / "source" / name, data)
        write(area / "copy" / name, there)
    age_directories(area / "copy")
    inodes = [(area / "copy" / name).stat().st_ino for name in ("same", "other")]
    reported = summary(succeed(*INPLACE, "--checksum", f"{area}/source/", area / "copy", ranks=3))
    assert (reported["files"], reported["skipped"]) == (1, 1)
    assert differences(area / "source", area / "copy") == []
    assert [(area / "copy" / name).stat().st_ino for name in ("same", "other")] == inodes


@pytest.mark.parametrize("size", ["small", "split"])
def test_source_symlink_to_the_target_does_not_truncate_it(area: Path, size: str) -> None:
    """With ``-L`` source and target are the same file: truncating the target would truncate the source."""
    data = os.urandom(SIZES[size])
    write(area / "copy/file", data)
    (area / "source").mkdir()
    (area / "source/file").symlink_to(area / "copy/file")
    pcopy(*INPLACE, "-L", f"{area}/source/", area / "copy", ranks=3)
    assert (area / "copy/file").read_bytes() == data


def test_equal_names_in_several_directories_are_not_confused(area: Path) -> None:
    """Files of the same name that are split at the same time are distinguished."""
    for number in range(3):
        write(area / f"source/{number}/file", bytes([number]) * SIZES["split"])
        write(area / f"copy/{number}/file", b"old")
    succeed(*INPLACE, f"{area}/source/", area / "copy", ranks=3)
    assert differences(area / "source", area / "copy") == []
