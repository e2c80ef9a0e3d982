"""``prm`` removes exactly the items that ``rm -rf --one-file-system`` removes."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.faults import slowed
from tests.support.filesystems import Place, mounted
from tests.support.oracle import snapshot
from tests.support.processes import HANGS, background, peak_memory, wait_until
from tests.support.users import NOBODY, require_root

GRACE = HANGS
MANY = 100_000
MIB = 1 << 20


def prm(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="prm")


def build(tree: Path, outside: Path) -> None:
    """Create a tree with items of all types, small and large directories, and links that lead outside."""
    for number in range(30):
        inner = tree / f"{number % 3}/{number % 7}/{number}"
        inner.mkdir(parents=True)
        for file in range(number * 3):
            (inner / f"file {file}").write_bytes(b"x" * file)
        (inner / "to-outside").symlink_to(outside)
        (inner / "nowhere").symlink_to("nowhere")
    deep = tree / "deep"
    deep.mkdir()
    for number in range(300):
        deep /= f"{number}"
        deep.mkdir()
    (tree / "many").mkdir()
    for number in range(5000):
        (tree / f"many/{number}").touch()
        if number % 500 == 0:
            (tree / f"many/dir-{number}/inner").mkdir(parents=True)
    os.link(tree / "many/1", tree / "link")
    os.link(tree / "many/2", outside / "kept link")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tree / "socket"))
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b" ", b"x" * 255):
        os.mkdir(bytes(tree) + b"/" + name)


def count_items(tree: Path, *tests: str) -> int:
    """Count items with find(1). Its status is ignored: it fails if items are being removed."""
    found = subprocess.run(["find", tree, *tests, "-printf", "."], check=False, capture_output=True)
    return len(found.stdout)


@pytest.fixture
def outside(area: Path) -> Path:
    (area / "outside/inner").mkdir(parents=True)
    (area / "outside/inner/canary").write_bytes(b"canary")
    return area / "outside"


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["btrfs", "ext4", "tmpfs", "xfs"])
def test_same_items_are_removed_as_by_rm(on: Place, kind: str, ranks: int) -> None:
    around = on(kind)
    outside = around / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(b"canary")
    tree = around / "tree"
    build(tree, outside)
    (around / "beside").touch()
    items, kept = count_items(tree), (outside / "kept link").stat().st_nlink
    files, directories = count_items(tree, "-type", "f"), count_items(tree, "-type", "d")
    links = count_items(tree, "-type", "l")
    wanted = {"files": files, "directories": directories, "symlinks": links, "special": 2}

    run = prm("--dry-run", "--json", tree, ranks=ranks)
    assert run.returncode == 0, show(run)
    reported = json.loads(run.stdout)
    assert {key: reported[key] for key in wanted} == wanted
    assert (reported["found"], reported["removed"], reported["dry_run"]) == (items, items, True)
    assert count_items(tree) == items

    run = prm("--yes", "--json", tree, ranks=ranks)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    reported = json.loads(run.stdout)
    assert {key: reported[key] for key in wanted} == wanted
    assert (reported["found"], reported["removed"], reported["failed"], reported["not_empty"]) == (items, items, 0, 0)
    assert sorted(os.listdir(around)) == ["beside", "outside"]
    assert sorted(os.listdir(outside)) == ["canary", "kept link"]
    assert (outside / "kept link").stat().st_nlink == kept - 1


@pytest.mark.parametrize("launcher", ["mpi"])
def test_run_under_a_launcher_succeeds(area: Path, outside: Path, launcher: str) -> None:
    build(area / "tree", outside)
    names = list(snapshot(outside))
    run = prm("--yes", area / "tree", ranks=3, launcher=launcher)
    assert run.returncode == 0, show(run)
    assert os.listdir(area) == ["outside"]
    assert list(snapshot(outside)) == names


def test_paths_of_all_types_are_removed(area: Path, outside: Path) -> None:
    (area / "file").touch()
    (area / "directory/inner").mkdir(parents=True)
    (area / "link").symlink_to(outside)
    (area / "dangling").symlink_to("nowhere")
    run = prm("--yes", "file", "directory/", "link", "./dangling", "../" + area.name + "/file", cwd=area, ranks=2)
    assert run.returncode == 0, show(run)
    assert os.listdir(area) == ["outside"]
    assert (outside / "inner/canary").exists()


@pytest.fixture
def with_mounts(area: Path, outside: Path, session_scratch: Path) -> Iterator[Path]:
    """Yield a tree in which another file system and a directory of its own file system are mounted."""
    require_root("mount file systems")
    tree = area / "tree"
    build(tree, outside)
    (tree / "0/other").mkdir()
    (tree / "1/same").mkdir()
    with mounted("tmpfs", session_scratch, size=8 * MIB) as other:
        (other / "inner").mkdir()
        (other / "inner/file").touch()
        points = {tree / "0/other": other, tree / "1/same": outside}
        for point, what in points.items():
            subprocess.run(["mount", "--bind", what, point], check=True)
        try:
            yield tree
        finally:
            for point in points:
                subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("ranks", [1, 3])
def test_mounted_directories_are_kept_and_fail(area: Path, with_mounts: Path, outside: Path, ranks: int) -> None:
    run = prm("--yes", "--errors", area / "errors", "--json", with_mounts, ranks=ranks)
    assert run.returncode == 1, show(run)
    reported = json.loads(run.stdout)
    assert (reported["failed"], reported["not_empty"]) == (2, 3)  # directories 0 and 1, and the tree
    failed = {json.loads(line)["path"] for line in (area / "errors").read_text().splitlines()}
    assert failed == {f"{with_mounts}/0/other", f"{with_mounts}/1/same"}
    assert b"a file system is mounted here: not removed" in run.stderr
    assert (with_mounts / "0/other/inner/file").exists()
    assert (outside / "inner/canary").exists()
    left = subprocess.run(["find", with_mounts, "-xdev", "-printf", "%P\n"], check=True, capture_output=True)
    assert {"", "0", "0/other", "1", "1/same"} <= {*left.stdout.decode().split("\n")}
    assert sorted(os.listdir(with_mounts)) == ["0", "1"]
    assert os.listdir(with_mounts / "0") == ["other"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_directories_mounted_during_the_run_are_kept(
    area: Path, outside: Path, session_scratch: Path, ranks: int
) -> None:
    """Both the inode and the mount of the scanned directory have changed."""
    require_root("mount file systems")
    tree = area / "tree"
    for number in range(40 * 20):
        (tree / f"{number % 40}").mkdir(parents=True, exist_ok=True)
        (tree / f"{number % 40}/{number}").touch()
    items, used = count_items(tree), []
    with mounted("tmpfs", session_scratch, size=8 * MIB) as other:
        (other / "canary").touch()
        try:
            with background("--yes", tree, program="prm", ranks=ranks, wrap=slowed("unlink,unlinkat", 5)) as run:
                wait_until(lambda: count_items(tree) < items - 20, GRACE)
                with run.paused():
                    whole = [path for path in tree.iterdir() if count_items(path) == 21]
                    for path, what in zip((whole[0], whole[-1]), (other, outside), strict=True):
                        subprocess.run(["mount", "--bind", what, path], check=True)
                        used.append(path)
                _, err = run.process.communicate(timeout=GRACE)
                assert run.process.returncode == 1, err
            assert (used[0] / "canary").exists()
            assert (used[1] / "inner/canary").exists()
            assert sorted(tree.iterdir()) == sorted(used)
        finally:
            for path in used:
                subprocess.run(["umount", path], check=True)


def test_removal_of_a_mount_point_is_refused(with_mounts: Path) -> None:
    run = prm("--yes", with_mounts / "0/other")
    assert run.returncode == 2
    assert b"is a mount point or a subvolume; unmount the file system or delete the subvolume" in run.stderr
    run = prm("--yes", with_mounts / "1/same")
    assert run.returncode == 1
    assert (with_mounts / "1/same/inner/canary").exists()


def test_item_that_cannot_be_removed_is_reported_and_the_rest_is_removed(on: Place) -> None:
    require_root("make files immutable")
    around = on("ext4")
    tree, outside = around / "tree", around / "outside"
    outside.mkdir()
    build(tree, outside)
    kept = tree / "0/0/21/file 7"
    subprocess.run(["chattr", "+i", kept], check=True)
    try:
        run = prm("--yes", tree, ranks=3)
        assert run.returncode == 1, show(run)
        assert f"prm: {kept}: unlink: Operation not permitted (EPERM)\n" in run.stderr.decode()
        assert b"+ 4 not empty + 1 failed" in run.stdout
        left = subprocess.run(["find", tree, "-printf", "%P\n"], check=True, capture_output=True)
        assert left.stdout == b"\n0\n0/0\n0/0/21\n0/0/21/file 7\n"
    finally:
        subprocess.run(["chattr", "-i", kept], check=True)
    assert prm("--yes", tree).returncode == 0
    assert not tree.exists()


def test_operations_without_permission_fail(area: Path) -> None:
    require_root("become an ordinary user")
    tree = area / "tree"
    for name in ("mine/inner", "roots/inner", "closed", "shut/inner"):
        (tree / name).mkdir(parents=True)
    for path in (tree, tree / "mine", tree / "mine/inner", tree / "closed", tree / "shut", tree / "shut/inner"):
        os.chown(path, NOBODY, NOBODY)
    (tree / "closed").chmod(0)
    (tree / "shut").chmod(0)
    os.chown(area, NOBODY, NOBODY)
    run = prm("--yes", tree, user=NOBODY, ranks=2)
    assert run.returncode == 1, show(run)
    lines = run.stderr.decode()
    assert f"prm: {tree}/roots/inner: rmdir: Permission denied (EACCES)\n" in lines
    assert f"prm: {tree}/shut: open: Permission denied (EACCES)\n" in lines
    assert sorted(os.listdir(tree)) == ["roots", "shut"]  # the closed one was empty


def test_names_with_control_characters_are_escaped(area: Path) -> None:
    require_root("mount file systems")
    name = b"two\nlines \x1b[2J \xff"
    point = os.fsencode(area) + b"/tree/" + name
    os.makedirs(point)
    subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True)
    try:
        run = prm("--yes", "--errors", area / "errors", area / "tree")
    finally:
        subprocess.run(["umount", point], check=True)
    assert run.returncode == 1
    assert b"\x1b" not in run.stderr
    assert b"two\\nlines" in run.stderr
    (line,) = (area / "errors").read_text().splitlines()
    assert base64.b64decode(json.loads(line)["path_b64"]) == point


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_same_command_completes_an_interrupted_run(
    area: Path, outside: Path, number: signal.Signals, ranks: int
) -> None:
    tree = area / "tree"
    build(tree, outside)
    items = count_items(tree)
    with background("--yes", tree, program="prm", ranks=ranks, wrap=slowed("unlink,unlinkat", 2)) as run:
        wait_until(lambda: count_items(tree) < items - 20, GRACE)
        run.send_signal(number)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 75, err
        assert not run.survivors()
    assert b"not reached" in out
    assert b"repeat the command to continue" in out
    assert 0 < count_items(tree) < items
    assert prm("--yes", tree, ranks=ranks).returncode == 0
    assert os.listdir(area) == ["outside"]
    assert sorted(os.listdir(outside)) == ["inner", "kept link"]


def test_items_removed_by_another_process_are_no_failures(area: Path, outside: Path) -> None:
    """Three processes remove the tree at the same time; one is also given a part of it as a separate path."""
    tree = area / "tree"
    build(tree, outside)
    items = count_items(tree)
    with (
        background("--yes", "--json", tree, program="prm", ranks=2, wrap=slowed("unlink,unlinkat", 1)) as one,
        background("--yes", "--json", tree, program="prm", ranks=2, wrap=slowed("unlink,unlinkat", 1)) as other,
    ):
        wait_until(lambda: count_items(tree) < items, GRACE)
        nested = prm("-f", "--json", tree / "many", tree)
        runs = [(run.process.communicate(timeout=GRACE), run.process.returncode) for run in (one, other)]
    assert [status for _, status in runs] == [0, 0], runs
    reported = [json.loads(out) for out in (nested.stdout, *(out for (out, _), _ in runs))]
    assert nested.returncode == 0, show(nested)
    assert [each["found"] - each["removed"] for each in reported] == [0, 0, 0]
    assert sum(each["removed"] for each in reported) == items
    assert os.listdir(area) == ["outside"]


def test_progress_lines_name_the_remove_phase(area: Path, outside: Path) -> None:
    build(area / "tree", outside)
    number = 1 + sum(1 for _ in (area / "tree").rglob("*"))
    words = ("-v", "--progress", "json", "--progress-interval", "0.05", area / "tree")
    run = prm("--yes", *words, wrap=slowed("unlink,unlinkat", 1), ranks=2)
    backend, *lines = run.stderr.decode().splitlines()
    assert re.fullmatch("prm: backend (c|python)", backend)
    removed = [line for line in lines if line.startswith(f"delete {area}/tree")]
    assert len(removed) == number
    # Items may be removed before rank 0 reports that the phase has begun.
    first, *progress = [line for line in lines if line not in removed]
    assert re.fullmatch(r"prm: phase remove: \d+ of \d+ items? done so far", first)
    assert progress
    assert {json.loads(line)["phase"] for line in progress} == {"remove"}


def test_memory_is_bounded_for_very_many_names(area: Path) -> None:
    for name in ("empty", "many"):
        (area / name).mkdir()
    for number in range(MANY):
        os.mknod(area / f"many/{number:0100}")
    least = peak_memory("prm", "--yes", area / "empty", ranks=1)
    assert (
        peak_memory("prm", "--yes", area / "many", ranks=1) < least + 64 * MIB
    )  # the names are 10 MB; an object for each item would be far more
    assert os.listdir(area) == []


def test_listing_in_short_buffers_removes_all_names(area: Path) -> None:
    """As with a file server whose names exceed 255 bytes: a buffer holds fewer names than usual."""
    pytest.importorskip("pcopy.fsio.backend._native")
    (area / "many").mkdir()
    for number in range(700):
        (area / f"many/{number:040}").touch()
    (area / "many/inner").mkdir()
    override = "import pcopy.fsio.backend.native as native; native._MAX_NAME_BYTES = 4"
    code = f"{override}\nfrom pcopy.cli.script import prm; prm()"
    command = [sys.executable, "-c", code, "--yes", "-n", "2", "--json", str(area / "many")]
    ran = subprocess.run(
        command, env={**os.environ, "PCOPY_BACKEND": "c"}, capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["removed"] == 702
    assert not (area / "many").exists()
