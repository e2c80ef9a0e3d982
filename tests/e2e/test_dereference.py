"""``-L`` copies the targets of symbolic links; ``rsync -L`` provides the expected result."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.files import noise, write
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.users import NOBODY, is_root

MIB = 1 << 20


def failures(run: Completed, errors: Path) -> dict[str, dict[str, Any]]:
    """Return the reported failures by path; assert status 1 and a complete report."""
    assert run.returncode == 1, show(run)
    reported = [json.loads(line) for line in errors.read_text().splitlines()]
    assert len(reported) == summary(run)["failed"]
    return {failure["path"]: failure for failure in reported}


@pytest.fixture
def tree(area: Path) -> Path:
    """A source with symbolic links of many kinds, to items inside and outside; none leads back to a parent."""
    source, outside = area / "source", area / "outside"
    write(source / "file", b"content")
    write(source / "a/b/inner", b"inner")
    write(outside / "large", noise(13 * MIB))
    write(outside / "directory/deep/file", b"deep")
    write(outside / "directory/second", b"second")
    (outside / "directory/up").symlink_to("../large")
    (outside / "directory").chmod(0o2750)
    os.utime(outside / "directory", ns=(1, 1_234_567_890_123_456_789))
    os.mkfifo(outside / "fifo")
    links: dict[str, str | Path] = {
        "to-file": "file",
        "again": "to-file",
        "to-directory": "a",
        "a/to-outside": outside / "directory",
        "a/b/large": outside / "large",
        "fifo": "../outside/fifo",
        "through": "to-directory/b/inner",
    }
    for name, target in links.items():
        (source / name).symlink_to(target)
    return source


@pytest.mark.parametrize(("ranks", "launcher"), [(1, None), (3, None), (2, "mpi")])
def test_copy_with_followed_links_equals_that_of_rsync(
    area: Path, tree: Path, ranks: int, launcher: str | None
) -> None:
    subprocess.run(["rsync", "-aHAXSL", "--modify-window=-1", f"{tree}/", area / "followed"], check=True)
    reported = summary(
        succeed("--json", "-L", "--chunk-size", "4M", tree, area / "copy", ranks=ranks, launcher=launcher)
    )
    assert differences(area / "followed", area / "copy") == []
    assert reported["symlinks"] == 0


def test_copy_with_followed_links_equals_that_of_cp(area: Path, tree: Path) -> None:
    """The tree has no hard links: cp would create some for every two symbolic links to one file."""
    subprocess.run(["cp", "-RLp", tree, area / "followed"], check=True)
    succeed("-L", tree, area / "copy", ranks=2)
    assert differences(area / "followed", area / "copy") == []


def test_symlinks_are_copied_as_symlinks_without_the_option(area: Path, tree: Path) -> None:
    succeed(tree, area / "copy", ranks=2)
    assert differences(tree, area / "copy") == []


def test_hard_links_stay_linked_but_symlinks_to_one_file_become_copies(area: Path) -> None:
    source, outside = area / "source", area / "outside"
    write(source / "one", b"linked")
    os.link(source / "one", source / "two")
    (source / "three").symlink_to("one")
    write(outside / "x", b"linked outside")
    os.link(outside / "x", outside / "y")
    for name in ("p", "q"):
        (source / name).symlink_to(outside)
    (source / "r").symlink_to("../outside/y")
    write(outside / "alone", b"alone")
    for number in range(3):
        (source / f"alone{number}").symlink_to(outside / "alone")
    subprocess.run(["rsync", "-aHAXL", "--modify-window=-1", f"{source}/", area / "followed"], check=True)
    succeed("-L", source, area / "copy", ranks=3)
    assert differences(area / "followed", area / "copy") == []
    groups = [("one", "two", "three"), ("p/x", "p/y", "q/x", "q/y", "r"), *((f"alone{number}",) for number in range(3))]
    inodes = [{(area / "copy" / name).stat().st_ino for name in group} for group in groups]
    assert [len(group) for group in inodes] == [1, 1, 1, 1, 1]
    assert len(set.union(*inodes)) == 5


def test_hard_links_on_other_file_systems_stay_linked(area: Path, session_scratch: Path) -> None:
    with mounted("tmpfs", session_scratch, size=64 * MIB) as other:
        for name in ("p", "q"):
            (other / name).mkdir()
        write(other / "p/x", b"linked")
        os.link(other / "p/x", other / "q/y")
        write(area / "source/here", b"linked here")
        os.link(area / "source/here", area / "hidden")
        (other / "p/back").symlink_to(area / "hidden")
        for name, target in {"p": other / "p", "q": other / "q", "z": other / "p/x"}.items():
            (area / "source" / name).symlink_to(target)
        subprocess.run(["rsync", "-aHAXL", "--modify-window=-1", f"{area}/source/", area / "followed"], check=True)
        succeed("-L", area / "source", area / "copy", ranks=3)
        assert differences(area / "followed", area / "copy") == []
        assert (area / "copy/z").stat().st_nlink == 3
        assert (area / "copy/here").stat().st_nlink == 2


def test_files_of_all_sizes_on_another_file_system_are_copied(area: Path, session_scratch: Path) -> None:
    """Their device differs from that of their directory, so another code path copies them."""
    with mounted("ext4", session_scratch, size=256 * MIB) as other:
        for name, size in {"empty": 0, "small": 100, "whole": 6 * MIB, "split": 13 * MIB}.items():
            write(other / name, os.urandom(size))
            (area / "source").mkdir(exist_ok=True)
            (area / "source" / name).symlink_to(other / name)
        (area / "source/directory").symlink_to(other)
        succeed("-L", "--chunk-size", "4M", area / "source", area / "copy", ranks=3)
        assert differences(other, area / "copy/directory") == []
        for name in ("empty", "small", "whole", "split"):
            assert differences(other / name, area / "copy" / name) == []


def test_dangling_symlink_fails_and_other_items_are_copied(area: Path, tree: Path) -> None:
    (tree / "a/dangling").symlink_to("nowhere")
    (tree / "circle").symlink_to("circle")
    run = pcopy("--json", "-L", "--errors", area / "errors", tree, area / "copy", ranks=3)
    reported = failures(run, area / "errors")
    assert {path: (failure["operation"], failure["errno"]) for path, failure in reported.items()} == {
        f"{tree}/a/dangling": ("stat", 2),
        f"{tree}/to-directory/dangling": ("stat", 2),
        f"{tree}/circle": ("stat", 40),
    }
    assert summary(run)["vanished"] == summary(run)["changed"] == 0
    (tree / "a/dangling").unlink()
    (tree / "circle").unlink()
    subprocess.run(["rsync", "-aHAXL", "--modify-window=-1", f"{tree}/", area / "followed"], check=True)
    for path in ("a", "to-directory", "."):  # removing the links has changed their times
        os.utime(area / "followed" / path, ns=(0, (area / "copy" / path).stat().st_mtime_ns))
    assert differences(area / "followed", area / "copy") == []


@pytest.mark.parametrize("target", [".", "..", "self"])
def test_symlink_loop_fails_and_other_items_are_copied(area: Path, target: str) -> None:
    """A link to its own directory, to the parent of that, and to a link to its own directory."""
    source = area / "source"
    write(source / "a/b/file", b"content")
    (source / "a/b/self").symlink_to(".")
    (source / "a/b/loop").symlink_to(target)
    run = pcopy("--json", "-L", "--errors", area / "errors", source, area / "copy", ranks=2, timeout=60)
    reported = failures(run, area / "errors")
    assert set(reported) == {f"{source}/a/b/self", f"{source}/a/b/loop"}
    for failure in reported.values():
        assert failure["errno"] == 40
        assert "a symbolic link leads back to" in failure["message"]
    back = {".": "a/b", "..": "a", "self": "a/b"}[target]
    assert f"leads back to {source}/{back}," in reported[f"{source}/a/b/loop"]["message"]
    assert (area / "copy/a/b/file").read_bytes() == b"content"
    assert sorted(os.listdir(area / "copy/a/b")) == ["file"]


def test_loop_of_two_directories_fails_where_it_closes(area: Path) -> None:
    """Each directory links to the other, which is no loop until the first one is reached again."""
    source = area / "source"
    for one, other in (("x", "y"), ("y", "x")):
        write(source / one / f"in-{one}", one.encode())
        (source / one / other).symlink_to(f"../{other}")
    run = pcopy("--json", "-L", "--errors", area / "errors", source, area / "copy", ranks=2, timeout=60)
    assert set(failures(run, area / "errors")) == {f"{source}/x/y/x", f"{source}/y/x/y"}
    found = {str(path.relative_to(area / "copy")) for path in (area / "copy").rglob("*")}
    assert found == {"x", "x/in-x", "x/y", "x/y/in-y", "y", "y/in-y", "y/x", "y/x/in-x"}


@pytest.mark.parametrize("ranks", [1, 3])
def test_loop_through_other_file_systems_fails(area: Path, session_scratch: Path, ranks: int) -> None:
    """Without the identity of the file systems each entry would look like a new mount point."""
    with mounted("tmpfs", session_scratch, size=16 * MIB) as one, mounted("tmpfs", session_scratch, size=MIB) as two:
        (one / "to-two").symlink_to(two)
        (two / "to-one").symlink_to(one)
        write(two / "file", b"content")
        (one / "home").symlink_to(area / "source")
        (area / "source").mkdir()
        (area / "source/to-one").symlink_to(one)
        run = pcopy(
            *("--json", "-L", "--errors", area / "errors", area / "source", area / "copy"), ranks=ranks, timeout=60
        )
        above = f"{area}/source/to-one"
        assert set(failures(run, area / "errors")) == {f"{above}/home", f"{above}/to-two/to-one"}
        assert (area / "copy/to-one/to-two/file").read_bytes() == b"content"


def test_loop_through_different_directories_of_a_file_system_fails(area: Path, session_scratch: Path) -> None:
    """The links lead to another file system, back to a second directory, and from there to the other one again."""
    with mounted("tmpfs", session_scratch, size=MIB) as one, mounted("tmpfs", session_scratch, size=MIB) as two:
        for name in ("first", "second"):
            (one / name).mkdir()
            (one / name / "over").symlink_to(two)
        (two / "back").symlink_to(one / "second")
        (area / "source").mkdir()
        (area / "source/in").symlink_to(one / "first")
        run = pcopy("--json", "-L", "--errors", area / "errors", area / "source", area / "copy", ranks=2, timeout=60)
        assert set(failures(run, area / "errors")) == {f"{area}/source/in/over/back/over"}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("link", ["copy", ".", "copy/sub/deep"])
def test_symlinks_into_the_target_fail(area: Path, link: str, ranks: int) -> None:
    """The link leads to the target, to its parent, or to a directory in it."""
    write(area / "source/sub/file", b"content")
    (area / "source/link").symlink_to(area / link)
    (area / "copy/sub/deep").mkdir(parents=True)
    run = pcopy(
        *("--json", "-L", "--errors", area / "errors", f"{area}/source/", area / "copy"), ranks=ranks, timeout=60
    )
    reported = failures(run, area / "errors")
    wanted = {f"{area}/source/link/copy", f"{area}/source/link/source"} if link == "." else {f"{area}/source/link"}
    assert set(reported) == wanted
    assert (area / "copy/sub/file").read_bytes() == b"content"


def test_symlinks_into_targets_of_other_sources_fail(area: Path) -> None:
    """Both sources link to the parent of both targets: the copies would grow without end."""
    into = area / "into"
    for name in ("a", "b"):
        (into / name).mkdir(parents=True)
        write(area / name / "file", name.encode())
        (area / name / "all").symlink_to(into)
    run = pcopy("--json", "-L", "--errors", area / "errors", area / "a", area / "b", into, ranks=3, timeout=60)
    assert set(failures(run, area / "errors")) == {f"{area}/{one}/all/{other}" for one in "ab" for other in "ab"}
    assert {path.name for path in into.rglob("*")} == {"a", "b", "file", "all"}


def test_symlink_given_as_source_is_followed(area: Path, tree: Path) -> None:
    for name, target in {"directory-link": tree, "file-link": tree / "file", "large-link": tree / "a/b/large"}.items():
        (area / name).symlink_to(target)
        succeed("-L", area / name, area / f"{name}-copy", ranks=2)
    subprocess.run(["rsync", "-aHAXSL", "--modify-window=-1", f"{tree}/", area / "followed"], check=True)
    assert differences(area / "followed", area / "directory-link-copy") == []
    assert differences(tree / "file", area / "file-link-copy") == []
    assert differences(area / "outside/large", area / "large-link-copy") == []
    (area / "into").mkdir()
    succeed("-L", area / "directory-link", area / "file-link", area / "into", ranks=2)
    assert differences(area / "followed", area / "into/directory-link") == []
    assert differences(tree / "file", area / "into/file-link") == []


def test_invalid_symlink_given_as_source_is_refused(area: Path, tree: Path) -> None:
    (area / "dangling").symlink_to("nowhere")
    (area / "to-file").symlink_to(tree / "file")
    (area / "around").symlink_to(area)
    before = sorted(os.listdir(area))
    for source, target, words in (
        (area / "dangling", area / "copy", b"a symbolic link that leads nowhere"),
        (area / "to-file", tree / "file", b"the same file"),
        (area / "around", area / "source/x", b"is inside"),
    ):
        run = pcopy("-L", source, target)
        assert run.returncode == 2, show(run)
        assert words in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert sorted(os.listdir(area)) == before


def test_symlinks_in_the_target_are_never_followed(area: Path, tree: Path) -> None:
    elsewhere = area / "elsewhere"
    write(elsewhere / "file", b"precious")
    (area / "copy").mkdir()
    for name in ("a", "file", "to-directory"):
        (area / "copy" / name).symlink_to(elsewhere / "file" if name == "file" else elsewhere)
    succeed("-L", f"{tree}/", area / "copy", ranks=3)
    assert sorted(os.listdir(elsewhere)) == ["file"]
    assert (elsewhere / "file").read_bytes() == b"precious"
    subprocess.run(["rsync", "-aHAXSL", "--modify-window=-1", f"{tree}/", area / "followed"], check=True)
    assert differences(area / "followed", area / "copy") == []


def test_second_run_with_followed_links_copies_nothing(area: Path, tree: Path) -> None:
    for option in ("changed", "newer", "skip"):
        succeed("-L", "--existing", option, f"{tree}/", area / "copy", ranks=3)
        reported = summary(succeed("--json", "-L", "--existing", option, f"{tree}/", area / "copy", ranks=3))
        assert reported["files"] == reported["special"] == 0
    reported = summary(succeed("--json", "-L", "--checksum", f"{tree}/", area / "copy", ranks=3))
    assert reported["files"] == reported["special"] == 0


def test_large_directory_of_symlinks_is_copied(area: Path) -> None:
    """The names are distributed over all ranks."""
    write(area / "file", b"content")
    (area / "source").mkdir()
    for number in range(3000):
        (area / f"source/{number}").symlink_to("../file" if number % 2 else "../nowhere")
    run = pcopy("--json", "-L", area / "source", area / "copy", ranks=3)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["files"], reported["failed"], reported["symlinks"]) == (1500, 1500, 0)


def test_symlinks_to_unreadable_items_fail_and_other_items_are_copied(area: Path) -> None:
    if not is_root():
        pytest.skip("only root can make what others may not read")
    write(area / "secret/file", b"secret")
    (area / "secret").chmod(0o700)
    write(area / "source/file", b"content")
    (area / "source/link").symlink_to(area / "secret/file")
    (area / "source/directory").symlink_to(area / "secret")
    (area / "copy").mkdir()
    os.chown(area / "copy", NOBODY, NOBODY)
    run = pcopy("--json", "-L", "--errors", area / "copy/errors", area / "source", area / "copy", user=NOBODY)
    reported = failures(run, area / "copy/errors")
    assert {path: failure["errno"] for path, failure in reported.items()} == {
        f"{area}/source/link": 13,
        f"{area}/source/directory": 13,
    }
    assert sorted(os.listdir(area / "copy/source")) == ["file"]
