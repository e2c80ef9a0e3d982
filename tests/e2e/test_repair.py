"""``--repair``: items that fail verification are copied, linked and finished again, and must then verify."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from pcopy.tasks.base.rank import CLOCK_GRACE
from tests.e2e.test_verify import OPTIONS, damaged, failed_paths, failing_paths
from tests.support.command import pcopy, show, succeed, summary
from tests.support.damages import DAMAGES, damage_all, flip, make_tree, make_trees
from tests.support.faults import Fault
from tests.support.files import noise
from tests.support.held import held
from tests.support.oracle import differences
from tests.support.signatures import expected, signed
from tests.support.walk import temporaries

MIB = 1 << 20
LOST = {"name-of-a-directory", "names-swapped", "directory-to-file", "directory-gone"}
"""Damages that remove a directory; it is not created again."""


def remove_extra_items(top: Path) -> None:
    """Remove items that the copy did not create: a repair keeps them."""
    (top / "name/smalL").unlink()
    (top / "new-directory/hollow/new").rmdir()
    (top / "new-file/\n").unlink()


def restore_times(source: Path, copy: Path) -> None:
    """Restore the times of the directories from which ``remove_extra_items`` removed items."""
    for name in ("name", "new-directory/hollow", "new-file"):
        status = (source / name).stat()
        os.utime(copy / name, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_damage_is_repaired(area: Path, ranks: int) -> None:
    """The damage concerns contents, links, types and metadata. Directories get the times of the source."""
    make_trees(area / "source")
    (area / "source/file-to-directory/small").chmod(0o640)
    empty_again = area / "copy/file-to-directory/small/new"

    def damage(copy: Path) -> None:
        damage_all(copy, but=LOST)
        empty_again.unlink()  # only an empty directory is replaced

    ended, reported = damaged(area, damage, "--repair", "--signature", area / "sig", ranks=ranks)
    assert ended.returncode == 0, show(ended)
    remove_extra_items(area / "copy")
    restore_times(area / "source", area / "copy")
    assert differences(area / "source", area / "copy") == []
    assert temporaries(os.fsencode(area)) == []
    assert reported["signature"] == signed(area / "sig") == expected(area / "source")
    paths = list((area / "source").rglob("*"))
    files = {path.stat().st_ino: path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()}
    assert reported["copied"] == reported["found"] == len(paths) + 1
    assert reported["directories"] == 1 + sum(path.is_dir() for path in paths)
    assert (reported["files"], reported["bytes"]) == (len(files), sum(files.values()))
    repaired = sum(len(failing_paths(name)) for name in DAMAGES if name not in LOST)
    assert reported["warnings"] == repaired - 1  # both names of an inode are reported once
    assert ended.stderr.count(b"; it is copied again\n") == reported["warnings"], show(ended)


@pytest.mark.parametrize("name", sorted(LOST))
def test_lost_directory_is_reported(area: Path, name: str) -> None:
    make_tree(area / "source")
    ended, reported = damaged(area, DAMAGES[name].do, "--repair")
    assert ended.returncode == 1, show(ended)
    failed = failed_paths(area / "errors", area / "copy")
    assert len(failed) == len(set(failed)) == reported["failed"]
    assert set(failed) <= failing_paths(name)


@pytest.mark.parametrize("policy", [["--existing", "changed"], ["--checksum"]], ids=lambda words: words[0])
def test_damaged_older_copy_is_repaired(area: Path, policy: list[str]) -> None:
    """Files that seem unchanged are read; only those that differ are replaced."""
    make_tree(area / "source")
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    flip(area / "copy/large", 8 * MIB)
    flip(area / "copy/small", 3)
    kept = (area / "copy/other").stat()
    reported = summary(succeed("--repair", *OPTIONS, *policy, f"{area}/source/", area / "copy", ranks=2))
    assert differences(area / "source", area / "copy") == []
    assert (reported["files"], reported["warnings"]) == (2, 2 if policy[0] == "--existing" else 0)
    assert (area / "copy/other").stat() == kept


@pytest.mark.parametrize("when", ["1", "2", "1+", "2+"])
def test_directory_counts_as_failed_once(area: Path, when: str) -> None:
    """It fails when it is finished first, when it is finished again after repairs, or both times."""
    (area / "source/directory").mkdir(parents=True)
    for name, size in {"small": 1000, "large": 5 * MIB, "other": 6 * MIB}.items():
        (area / "source/directory" / name).write_bytes(os.urandom(size))
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    for name in ("small", "large", "other"):
        flip(area / "copy/directory" / name, 3)
    os.utime(area / "copy/directory", (1, 1))  # the copy sets the times of the source when it finishes the directory
    fault = Fault(area / "trace", ["utimensat"], area / "copy/directory", "EIO", when)
    words = ("--repair", *OPTIONS, "--existing", "changed", f"{area}/source/", area / "copy")
    env = {"XDG_STATE_HOME": str(area / "state")}
    run = pcopy(*words, ranks=1, env=env, wrap=fault.wrap())
    fault.check()
    assert run.returncode == 1, show(run)
    reported = summary(run)
    numbers = ("found", "files", "directories", "skipped", "failed")
    assert [reported[each] for each in numbers] == [5, 3, 0, 1, 1]
    reported = summary(succeed("--resume", "--json", env=env))
    assert [reported[each] for each in numbers] == [5, 3, 1, 1, 0]
    assert differences(area / "source", area / "copy") == []


def test_resumed_job_replaces_skipped_files_that_failed_verification(area: Path) -> None:
    """By size and time they seem unchanged, but verification found different contents."""
    (area / "source/directory").mkdir(parents=True)
    for name, size in {"small": 1000, "directory/large": 13 * MIB, "directory/linked": 100, "other": 10}.items():
        (area / "source" / name).write_bytes(os.urandom(size))
    os.link(area / "source/directory/linked", area / "source/link")
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    for name in ("small", "directory/large", "directory/linked"):
        flip(area / "copy" / name, 3)
    kept = (area / "copy/other").stat()
    time.sleep(CLOCK_GRACE / 1e9 + 0.1)  # younger files might be the job's own and would be replaced anyway
    env = {"XDG_STATE_HOME": str(area / "state")}
    run = pcopy(*OPTIONS, "--existing", "changed", f"{area}/source/", area / "copy", ranks=3, env=env)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["found"], reported["skipped"], reported["failed"]) == (7, 3, 4)
    reported = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert differences(area / "source", area / "copy") == []
    assert (reported["found"], reported["files"], reported["hardlinks"], reported["skipped"], reported["failed"]) == (
        7,
        3,
        1,
        3,
        0,
    )
    assert (area / "copy/other").stat() == kept


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("second", ["linked", "missing"])
def test_hard_links_of_a_damaged_older_copy_are_repaired_together(area: Path, second: str, ranks: int) -> None:
    """In one case the job creates a link to the file before it finds the damage."""
    for name in ("one", "two"):
        (area / "source" / name).mkdir(parents=True)
    (area / "source/one/file").write_bytes(bytes(100_000))
    os.link(area / "source/one/file", area / "source/two/file")
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    flip(area / "copy/one/file", 3)
    if second == "missing":
        (area / "copy/two/file").unlink()
    reported = summary(
        succeed("--repair", *OPTIONS, "--existing", "changed", f"{area}/source/", area / "copy", ranks=ranks)
    )
    assert differences(area / "source", area / "copy") == []
    assert (area / "copy/one/file").samefile(area / "copy/two/file")
    assert reported["found"] == reported["copied"] + reported["skipped"] == 5
    assert (reported["files"], reported["hardlinks"], reported["warnings"]) == (1, 1, 2)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("how", ["contents", "one-name"])
@pytest.mark.parametrize("size", [100, 13 * MIB], ids=["small", "split"])
def test_many_hard_links_are_repaired_to_one_inode(area: Path, size: int, how: str) -> None:
    names = [f"{number % 2}/{number}" for number in range(5000)]
    for directory in "01":
        (area / "source" / directory).mkdir(parents=True)
    (area / "source" / names[0]).write_bytes(os.urandom(size))
    for name in names[1:]:
        os.link(area / "source" / names[0], area / "source" / name)

    def damage(copy: Path) -> None:
        if how == "contents":
            flip(copy / names[0], size // 2)
        else:
            shutil.copy2(copy / names[-1], copy / "other")
            os.replace(copy / "other", copy / names[-1])

    ended, reported = damaged(area, damage, "--repair", ranks=3)
    assert ended.returncode == 0, show(ended)
    assert len({(area / "copy" / name).stat().st_ino for name in names}) == 1
    assert (area / "copy" / names[0]).read_bytes() == (area / "source" / names[0]).read_bytes()
    assert (area / "copy" / names[0]).stat().st_nlink == len(names)
    assert (reported["files"], reported["hardlinks"], reported["directories"]) == (1, len(names) - 1, 3)


@pytest.mark.parametrize("kind", ["small", "large", "split"])
def test_flipped_bit_of_a_single_file_is_repaired(area: Path, kind: str) -> None:
    size = {"small": 100, "large": 5 * MIB, "split": 40 * MIB}[kind]
    (area / "source").write_bytes(os.urandom(size))
    (area / "source").chmod(0o640)
    ended, reported = damaged(area, lambda copy: flip(copy, size // 3), "--repair", ranks=3)
    assert ended.returncode == 0, show(ended)
    assert (reported["files"], reported["bytes"], reported["warnings"]) == (1, size, 1)
    assert differences(area / "source", area / "copy") == []


def test_repair_copies_a_changed_source_as_it_is_now(area: Path) -> None:
    make_tree(area / "source")

    def change(_: Path) -> None:
        (area / "source/small").write_bytes(b"of another size")
        flip(area / "source/linked", 0)
        (area / "source/large").write_bytes(noise(10 * MIB))

    ended, reported = damaged(area, change, "--repair", "--signature", area / "sig", ranks=3)
    assert ended.returncode == 0, show(ended)
    assert differences(area / "source", area / "copy") == []
    assert reported["signature"] == expected(area / "source")
    assert reported["changed"] == 0
    paths = list((area / "source").rglob("*"))
    files = {path.stat().st_ino: path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()}
    assert reported["bytes"] == sum(files.values())


def test_repair_fails_for_a_vanished_source(area: Path) -> None:
    make_tree(area / "source")
    ended, reported = damaged(area, lambda _: (area / "source/small").unlink(), "--repair", "--signature", area / "sig")
    assert ended.returncode == 1, show(ended)
    assert (reported["failed"], reported["vanished"], reported["signature"]) == (1, 1, None)
    assert not (area / "sig").exists()


def test_file_damaged_again_after_its_repair_fails(area: Path) -> None:
    """Each item is repaired only once: storage that loses data twice is not trustworthy."""
    make_tree(area / "source")
    arguments = ("--repair", *OPTIONS, "--errors", area / "errors", area / "source", area / "copy")
    with held(area / "log", *arguments, ranks=1, when="1+") as run:
        flip(area / "copy/small", 5)
        flip(area / "copy/large", 5)
        run.next_stop()
        flip(area / "copy/small", 5)
        ended = run.go_on()
    assert ended.returncode == 1, show(ended)
    assert failed_paths(area / "errors", area / "copy") == ["small"]
    reported = summary(ended)
    assert (reported["failed"], reported["warnings"]) == (1, 2)


def test_files_in_read_only_directories_are_repaired(area: Path) -> None:
    """The directories became read-only when they were finished."""
    make_tree(area / "source")
    (area / "source/directory/inner").chmod(0o555)
    (area / "source/directory").chmod(0o555)
    ended, _ = damaged(area, lambda copy: flip(copy / "directory/inner/leaf", 0), "--repair")
    assert ended.returncode == 0, show(ended)
    assert differences(area / "source", area / "copy") == []
