"""``--delete`` and ``--mirror``: DST becomes equal to SRC, and nothing else is deleted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.extent import seed
from tests.support.faults import READS, Fault
from tests.support.files import NOW, age_directories, write
from tests.support.filesystems import Place
from tests.support.mirrored import make_trees, mirror
from tests.support.oracle import changes, differences, snapshot
from tests.support.trees import random_tree
from tests.support.users import NOBODY, as_user, require_root

MIB = 1 << 20


@pytest.fixture
def trees(area: Path) -> Path:
    make_trees(area)
    age_directories(area / "copy")
    return area


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("options", [[], ["--checkpoint", "none"], ["--checksum"]], ids=["", "none", "checksum"])
def test_extra_items_are_deleted(trees: Path, ranks: int, options: list[Argument]) -> None:
    outside = snapshot(trees / "outside")
    reported = mirror(trees, *options, ranks=ranks)
    assert (reported["deleted"], reported["skipped"], reported["failed"], reported["found"]) == (7, 10, 0, 21)
    assert (reported["copied"], reported["directories"]) == (11, 11)
    assert differences(trees / "source", trees / "copy") == []
    assert changes(outside, snapshot(trees / "outside")) == []
    again = mirror(trees, *options, ranks=ranks)
    assert (again["deleted"], again["copied"], again["skipped"], again["found"]) == (0, 0, 21, 21)


@pytest.mark.parametrize("ranks", [1, 4])
def test_random_trees_become_equal(area: Path, ranks: int) -> None:
    """Each tree has items that the other one lacks, and some names have different types on both sides."""
    random_tree(area / "source", 21, files=120, directories=25, largest=MIB)
    random_tree(area / "copy", 22, files=120, directories=25, largest=MIB)
    for name in ("a", "b", "c"):
        write(area / "source" / name, b"file")
        (area / "copy" / name).mkdir()
        write(area / "source/d" / name, b"file")
        (area / "copy" / name).chmod(0o700)
    (area / "copy/d").symlink_to("nowhere")
    mirror(area, ranks=ranks)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("names", [300, 5000])
def test_extra_items_of_a_large_directory_are_deleted(area: Path, names: int) -> None:
    """There are more names than are held in memory on either side."""
    for number in range(names):
        write(area / f"source/{number}", b"")
    succeed("-T", area / "source", area / "copy")
    for number in range(0, names, 2):
        (area / f"source/{number}").unlink()
        write(area / f"copy/extra {number}", b"")
    reported = mirror(area, ranks=3)
    assert reported["deleted"] == names // 2 * 2
    assert differences(area / "source", area / "copy") == []


def test_delete_works_with_existing_skip(trees: Path) -> None:
    write(trees / "copy/1/file", b"changed there", NOW + 10**12)
    reported = summary(succeed("--json", "--delete", "--existing", "skip", "-T", trees / "source", trees / "copy"))
    assert (reported["deleted"], reported["skipped"]) == (7, 10)
    assert (trees / "copy/1/file").read_bytes() == b"changed there"


def test_nothing_is_deleted_without_the_option(trees: Path) -> None:
    reported = summary(succeed("--json", "--existing", "changed", "-T", trees / "source", trees / "copy"))
    assert reported["deleted"] == 0 and (trees / "copy/extra/deep/file").exists()


# Nothing is deleted after an error.


def assert_nothing_deleted(trees: Path, *options: Argument, **more: Any) -> dict[str, Any]:
    run = pcopy("--json", "--mirror", *options, f"{trees}/source/", trees / "copy", **more)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert reported["deleted"] == 0 and b"nothing was deleted" in run.stderr, show(run)
    for name in ("link", "2/inner/extra", "extra/deep/file", "extra/fifo", "extra/link"):
        assert os.path.lexists(trees / "copy" / name), name
    return reported


def test_nothing_is_deleted_after_a_file_failed(trees: Path) -> None:
    write(trees / "source/3/new", b"content")
    fault = Fault(trees / "trace", READS, trees / "source/3/new", "EIO")
    reported = assert_nothing_deleted(trees, wrap=fault.wrap())
    fault.check()
    assert reported["failed"] == 1


def test_nothing_is_deleted_if_reading_a_directory_fails(trees: Path) -> None:
    fault = Fault(trees / "trace", ("getdents64",), trees / "source/3/inner", "EIO")
    reported = assert_nothing_deleted(trees, wrap=fault.wrap())
    fault.check()
    assert reported["failed"] == 1


def test_nothing_is_deleted_if_a_directory_is_not_readable(trees: Path) -> None:
    require_root("become somebody else")
    for path in [trees / "copy", *(trees / "copy").rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    (trees / "source/3/inner").chmod(0o700)
    reported = assert_nothing_deleted(trees, user=NOBODY)
    assert reported["failed"] == 1


def test_unreadable_target_directory_is_reported_with_its_target_path(area: Path) -> None:
    require_root("become somebody else")
    write(area / "source/dark/file", b"content")
    succeed(f"{area}/source/", area / "copy")
    os.chown(area / "copy", NOBODY, NOBODY)
    (area / "copy/dark").chmod(0o711)
    run = pcopy("--mirror", f"{area}/source/", area / "copy", user=NOBODY)
    reported = os.fsencode(area / "copy/dark") + b": open: Permission denied (EACCES)"
    assert run.returncode == 1 and reported in run.stderr, show(run)


def test_nothing_is_deleted_if_the_source_is_empty(trees: Path) -> None:
    shutil.rmtree(trees / "source")
    (trees / "source").mkdir()
    before = snapshot(trees / "copy")
    run = pcopy("--mirror", f"{trees}/source/", trees / "copy")
    assert run.returncode == 2 and b"is empty" in run.stderr and b"--delete-all" in run.stderr, show(run)
    assert changes(before, snapshot(trees / "copy")) == []
    assert mirror(trees, "--delete-all")["deleted"] == 27
    assert os.listdir(trees / "copy") == []


@pytest.mark.parametrize(("most", "deleted"), [(0, 0), (6, 0), (7, 7), (8, 7)])
def test_nothing_is_deleted_beyond_max_delete(trees: Path, most: int, deleted: int) -> None:
    if deleted:
        assert mirror(trees, "--max-delete", str(most))["deleted"] == deleted
        assert differences(trees / "source", trees / "copy") == []
        again = succeed("--json", "--mirror", "--max-delete", "0", f"{trees}/source/", trees / "copy")
        assert summary(again)["deleted"] == 0 and b"nothing was deleted" not in again.stderr, show(again)
        return
    env = {"XDG_STATE_HOME": str(trees / "state")}
    run = pcopy("--json", "--mirror", "--max-delete", str(most), f"{trees}/source/", trees / "copy", env=env)
    assert run.returncode == 1, show(run)
    assert (
        f"nothing was deleted: the source lacks 7 items, which is more than --max-delete {most}".encode() in run.stderr
    )
    assert summary(run)["deleted"] == 0 and summary(run)["job"] is None
    assert b"--resume" not in run.stderr
    (trees / "copy/link").unlink()
    (trees / "copy/extra/fifo").unlink()
    assert differences(trees / "source", trees / "copy") != []
    listed = pcopy("--jobs", env=env)
    assert b"no unfinished jobs" in listed.stdout + listed.stderr, show(listed)


def test_item_that_cannot_be_deleted_fails_and_others_are_deleted(trees: Path) -> None:
    require_root("become somebody else")
    for path in [trees / "copy", *(trees / "copy").rglob("*")]:
        if path.name != "extra" or not path.is_dir():
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    errors = trees / "outside/errors"
    errors.touch()
    os.chown(errors, NOBODY, NOBODY)
    words: list[Argument] = [
        "--json",
        "--mirror",
        "--checkpoint",
        "none",
        "--errors",
        errors,
        f"{trees}/source/",
        trees / "copy",
    ]
    run = pcopy(*words, user=NOBODY)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["deleted"], reported["failed"], reported["found"]) == (3, 3, 24)
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"]
    lines = [json.loads(line) for line in errors.read_text().splitlines()]
    assert {(line["path"], line["errno"]) for line in lines} == {
        (f"{trees}/copy/extra/{name}", errno.EACCES) for name in ("fifo", "link", "deep")
    }
    assert sorted(os.listdir(trees / "copy/extra")) == ["deep", "fifo", "link"]


@pytest.mark.parametrize("repaired", [True, False])
def test_resumed_job_retries_failed_deletions(trees: Path, repaired: bool) -> None:
    """The items were already counted against ``--max-delete``."""
    require_root("become somebody else")
    for path in [trees / "copy", trees / "outside", *(trees / "copy").rglob("*")]:
        if path.name != "extra" or not path.is_dir():
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    job = trees / "outside/job"
    words: list[Argument] = ["--json", "--mirror", "--max-delete", "7", "--checkpoint", job]
    run = pcopy(*words, f"{trees}/source/", trees / "copy", user=NOBODY)
    first = summary(run)
    assert (run.returncode, first["deleted"], first["failed"]) == (1, 3, 3), show(run)
    if repaired:
        os.chown(trees / "copy/extra", NOBODY, NOBODY)
    run = pcopy("--json", "--resume", job, user=NOBODY)
    reported = summary(run)
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"]
    if repaired:
        assert (run.returncode, reported["failed"], reported["found"]) == (0, 0, first["found"] - 3), show(run)
        assert not (trees / "copy/extra").exists()
    else:
        assert (run.returncode, reported["failed"], reported["found"]) == (1, 3, first["found"]), show(run)
        assert run.stderr.count(b"copy/extra/") == 3, show(run)


def test_copied_files_are_synced_before_anything_is_deleted(area: Path) -> None:
    """Thus a file that was renamed in the source is not lost in a power failure."""
    write(area / "source/new name", b"content")
    write(area / "copy/old name", b"content")
    trace = area / "trace"
    wrap = ["strace", "-f", "-qq", "-o", trace, "-e", "trace=syncfs,unlinkat"]
    for options, first in ([], "syncfs"), (["--no-sync"], "unlinkat"):
        write(area / "copy/old name", b"content")
        succeed("--mirror", "--checkpoint=none", *options, f"{area}/source/", area / "copy", ranks=1, wrap=wrap)
        calls = [line for line in trace.read_text().splitlines() if "syncfs(" in line or '"old name"' in line]
        assert first in calls[0] and any('"old name"' in line for line in calls)


REFUSALS: dict[str, tuple[Callable[[Path], list[Argument]], bytes]] = {
    "no slash": (lambda area: ["--mirror", area / "source", area / "copy"], b"SRC needs a trailing slash"),
    "no slash, absent": (lambda area: ["--delete", area / "source", area / "new"], b"SRC needs a trailing slash"),
    "several": (lambda area: ["--delete", f"{area}/source/", f"{area}/outside/", area / "copy"], b"one SRC"),
    "in DST": (lambda area: ["--mirror", f"{area}/copy/2/", area / "copy"], b"lies in"),
    "a list": (
        lambda area: ["--mirror", "--files-from", area / "outside/precious", f"{area}/source/", area / "copy"],
        b"--mirror cannot be given with --from, which does not show what SRC lacks: leave one out",
    ),
    "alone": (lambda area: ["--max-delete", "3", f"{area}/source/", area / "copy"], b"--max-delete is for"),
    "alone, too": (lambda area: ["--delete-all", f"{area}/source/", area / "copy"], b"--delete-all is for"),
    "another policy": (lambda area: ["--mirror", "-u", f"{area}/source/", area / "copy"], b"--existing newer"),
    "a number": (lambda area: ["--mirror", "--max-delete", "-1", f"{area}/source/", area / "copy"], b"--max-delete"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_command_changes_nothing_and_names_the_cause(trees: Path, case: str) -> None:
    words, why = REFUSALS[case]
    before = snapshot(trees)
    run = pcopy(*words(trees))
    assert run.returncode == 2 and why in run.stderr, show(run)
    assert len(run.stderr.splitlines()) == 1, show(run)
    assert changes(before, snapshot(trees)) == []


def test_a_source_below_dst_by_a_bind_mount_is_refused(on: Place) -> None:
    require_root("mount")
    area = on("ext4")
    write(area / "copy/inner/file", b"content")
    (area / "source").mkdir()
    subprocess.run(["mount", "--bind", area / "copy", area / "source"], check=True)
    try:
        run = pcopy("--mirror", f"{area}/source/inner/", area / "copy")
        assert run.returncode == 2 and b"lies in" in run.stderr, show(run)
    finally:
        subprocess.run(["umount", area / "source"], check=True)
    assert (area / "copy/inner/file").exists()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("names", [3, 400], ids=["few", "many"])
def test_full_directories_at_the_names_of_files_are_deleted(area: Path, ranks: int, names: int) -> None:
    write(area / "source/large", b"x" * (6 * MIB))
    write(area / "source/inner/small", b"small")
    (area / "source/inner/link").symlink_to("nowhere")
    os.mkfifo(area / "source/inner/fifo")
    write(area / "source/inner/one", b"linked")
    os.link(area / "source/inner/one", area / "source/two")
    for number in range(names):
        write(area / f"source/inner/other {number}", b"")
    for name in ("large", "inner/small", "inner/link", "inner/fifo", "inner/one"):
        write(area / "copy" / name / "full/of", b"extras")
    before = snapshot(area / "copy")
    words: list[Argument] = ["--chunk-size", "1M", f"{area}/source/", area / "copy"]
    run = pcopy("--json", "--mirror", "--max-delete", "14", *words, ranks=ranks)
    assert run.returncode == 1 and b"lacks 15 items, which is more than --max-delete 14" in run.stderr, show(run)
    reported = summary(run)
    assert (reported["failed"], reported["deleted"]) == (5, 0)
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"]
    for path, entry in before.items():
        if b"/full" in path:
            assert snapshot(area / "copy")[path].content == entry.content
    reported = mirror(area, "--max-delete", "15", ranks=ranks)
    assert (reported["failed"], reported["deleted"]) == (0, 15)
    assert reported["found"] == reported["copied"] + reported["skipped"]
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("size", [9, 6 * MIB], ids=["small", "split"])
@pytest.mark.parametrize("full", [["a/one"], ["b/two", "c/three"], ["a/one", "b/two", "c/three"]], ids=str)
def test_hard_links_stay_linked_where_they_replace_directories(area: Path, size: int, full: list[str]) -> None:
    """Names that replace directories are created later, and are linked to the existing copy or to each other."""
    write(area / "source/a/one", b"x" * size)
    for name in ("b/two", "c/three"):
        (area / "source" / name).parent.mkdir()
        os.link(area / "source/a/one", area / "source" / name)
    for name in full:
        write(area / "copy" / name / "full/of", b"extras")
    reported = mirror(area, "--chunk-size", "1M", ranks=3)
    assert (reported["files"], reported["hardlinks"], reported["failed"]) == (1, 2, 0)
    assert differences(area / "source", area / "copy") == []


def test_dry_run_lists_items_that_would_be_deleted(trees: Path) -> None:
    """With too many of them it reports the limit."""
    before = snapshot(trees / "copy")
    for most, status in (("7", 0), ("6", 1)):
        run = pcopy("--mirror", "--dry-run", "--max-delete", most, f"{trees}/source/", trees / "copy")
        assert run.returncode == status, show(run)
        lines = {line for line in run.stdout.decode().splitlines() if line.startswith("delete ")}
        names = ("link", "2/inner/extra", "extra", "extra/deep", "extra/deep/file", "extra/fifo", "extra/link")
        assert lines == ({f"delete {trees}/copy/{name}" for name in names} if status == 0 else set())
    assert changes(before, snapshot(trees / "copy")) == []


def test_ordinary_user_mirrors_own_trees(area: Path) -> None:
    """Items are also deleted from own directories without write permission, as by rsync."""
    require_root("be an ordinary user")
    source, copy, env = area / "source", area / "copy", {"XDG_STATE_HOME": str(area / "state")}
    area.chmod(0o777)
    for tree, number in ((source, seed()), (copy, seed() + 1)):
        as_user(partial(random_tree, tree, number, files=120, largest=MIB))
    reported = summary(succeed("--json", "--mirror", f"{source}/", copy, user=NOBODY, ranks=2, env=env))
    assert reported["deleted"] > 100
    assert differences(source, copy) == []
    again = summary(succeed("--json", "--mirror", f"{source}/", copy, user=NOBODY, ranks=2, env=env))
    assert (again["files"], again["deleted"], again["mended"]) == (0, 0, 0)
