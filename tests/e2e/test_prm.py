"""``prm`` removes what ``rm -rf --one-file-system`` removes, and nothing else."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import RUN, Argument, Completed, pcopy, show
from tests.support.faults import slowed
from tests.support.filesystems import Place, mounted
from tests.support.oracle import snapshot
from tests.support.processes import HANGS, background, wait_until
from tests.support.users import NOBODY, require_root

GRACE = HANGS
MANY = 100_000
MIB = 1 << 20


def prm(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="prm")


def build(tree: Path, outside: Path) -> None:
    """All kinds of items, many and few in a directory, with links that lead outside."""
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


def number_of(tree: Path, *tests: str) -> int:
    """What find(1) finds. (Its status says that something has gone meanwhile, where it is being removed.)"""
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
def test_removes_what_rm_removes(on: Place, kind: str, ranks: int) -> None:
    around = on(kind)
    outside = around / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(b"canary")
    tree = around / "tree"
    build(tree, outside)
    (around / "beside").touch()
    items, kept = number_of(tree), (outside / "kept link").stat().st_nlink
    files, directories = number_of(tree, "-type", "f"), number_of(tree, "-type", "d")
    links = number_of(tree, "-type", "l")
    wanted = {"files": files, "directories": directories, "symlinks": links, "special": 2}

    run = prm("--dry-run", "--json", tree, ranks=ranks)
    assert run.returncode == 0, show(run)
    reported = json.loads(run.stdout)
    assert {key: reported[key] for key in wanted} == wanted
    assert (reported["found"], reported["removed"], reported["dry_run"]) == (items, items, True)
    assert number_of(tree) == items

    run = prm("--yes", "--json", tree, ranks=ranks)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    reported = json.loads(run.stdout)
    assert {key: reported[key] for key in wanted} == wanted
    assert (reported["found"], reported["removed"], reported["failed"], reported["not_empty"]) == (items, items, 0, 0)
    assert sorted(os.listdir(around)) == ["beside", "outside"]
    assert sorted(os.listdir(outside)) == ["canary", "kept link"]
    assert (outside / "kept link").stat().st_nlink == kept - 1


@pytest.mark.parametrize("launcher", ["mpi"])
def test_under_a_launcher(area: Path, outside: Path, launcher: str) -> None:
    build(area / "tree", outside)
    names = list(snapshot(outside))
    run = prm("--yes", area / "tree", ranks=3, launcher=launcher)
    assert run.returncode == 0, show(run)
    assert os.listdir(area) == ["outside"]
    assert list(snapshot(outside)) == names


def test_several_paths_of_all_kinds(area: Path, outside: Path) -> None:
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
    """A tree with another file system, and a directory of its own file system, mounted in it."""
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
def test_what_is_mounted_below_stays(area: Path, with_mounts: Path, outside: Path, ranks: int) -> None:
    run = prm("--yes", "--errors", area / "errors", "--json", with_mounts, ranks=ranks)
    assert run.returncode == 1, show(run)
    reported = json.loads(run.stdout)
    assert (reported["failed"], reported["not_empty"]) == (2, 3)  # 0, 1 and the tree
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
def test_what_is_mounted_meanwhile_stays(area: Path, outside: Path, session_scratch: Path, ranks: int) -> None:
    """Neither the directory that was found nor its mount is there any more; each would be enough to tell."""
    require_root("mount file systems")
    tree = area / "tree"
    for number in range(40 * 20):
        (tree / f"{number % 40}").mkdir(parents=True, exist_ok=True)
        (tree / f"{number % 40}/{number}").touch()
    items, used = number_of(tree), []
    with mounted("tmpfs", session_scratch, size=8 * MIB) as other:
        (other / "canary").touch()
        try:
            with background("--yes", tree, program="prm", ranks=ranks, wrap=slowed("unlink,unlinkat", 5)) as run:
                wait_until(lambda: number_of(tree) < items - 20, GRACE)
                with run.paused():
                    whole = [path for path in tree.iterdir() if number_of(path) == 21]
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


def test_a_mount_point_is_refused(with_mounts: Path) -> None:
    run = prm("--yes", with_mounts / "0/other")
    assert run.returncode == 2
    assert b"another file system is mounted there" in run.stderr
    run = prm("--yes", with_mounts / "1/same")
    assert run.returncode == 1
    assert (with_mounts / "1/same/inner/canary").exists()


def test_what_cannot_be_removed_is_told_and_the_rest_goes(on: Place) -> None:
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


def test_without_permission(area: Path) -> None:
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
def test_interrupted_the_same_command_goes_on(area: Path, outside: Path, number: signal.Signals, ranks: int) -> None:
    tree = area / "tree"
    build(tree, outside)
    items = number_of(tree)
    with background("--yes", tree, program="prm", ranks=ranks, wrap=slowed("unlink,unlinkat", 2)) as run:
        wait_until(lambda: number_of(tree) < items - 20, GRACE)
        run.send_signal(number)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 75, err
        assert not run.survivors()
    assert b"not reached" in out
    assert b"repeat the command to continue" in out
    assert 0 < number_of(tree) < items
    assert prm("--yes", tree, ranks=ranks).returncode == 0
    assert os.listdir(area) == ["outside"]
    assert sorted(os.listdir(outside)) == ["inner", "kept link"]


def test_what_others_remove_meanwhile_is_no_failure(area: Path, outside: Path) -> None:
    """Three of them at once, one of which is told a part of the tree by itself."""
    tree = area / "tree"
    build(tree, outside)
    items = number_of(tree)
    with (
        background("--yes", "--json", tree, program="prm", ranks=2, wrap=slowed("unlink,unlinkat", 1)) as one,
        background("--yes", "--json", tree, program="prm", ranks=2, wrap=slowed("unlink,unlinkat", 1)) as other,
    ):
        wait_until(lambda: number_of(tree) < items, GRACE)
        nested = prm("-f", "--json", tree / "many", tree)
        runs = [(run.process.communicate(timeout=GRACE), run.process.returncode) for run in (one, other)]
    assert [status for _, status in runs] == [0, 0], runs
    reported = [json.loads(out) for out in (nested.stdout, *(out for (out, _), _ in runs))]
    assert nested.returncode == 0, show(nested)
    assert [each["found"] - each["removed"] for each in reported] == [0, 0, 0]
    assert sum(each["removed"] for each in reported) == items
    assert os.listdir(area) == ["outside"]


def test_progress_and_phases(area: Path, outside: Path) -> None:
    build(area / "tree", outside)
    words = ("-v", "--progress", "json", "--progress-interval", "0.05", area / "tree")
    run = prm("--yes", *words, wrap=slowed("unlink,unlinkat", 1), ranks=2)
    backend, first, *lines = run.stderr.decode().splitlines()
    assert re.fullmatch("prm: backend (c|python)", backend)
    assert re.fullmatch(r"prm: remove: \d+ of \d+ items? done so far", first)
    assert lines
    assert {json.loads(line)["phase"] for line in lines} == {"remove"}


def largest(*words: Argument) -> int:
    """The memory that a run on one rank has held at most, in bytes."""
    command = [sys.executable, *RUN["prm"], "-q", "--yes", "-n", "1", *words]
    child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    assert isinstance(used, resource.struct_rusage)
    return used.ru_maxrss << 10


def test_very_many_names_in_bounded_memory(area: Path) -> None:
    for name in ("empty", "many"):
        (area / name).mkdir()
    for number in range(MANY):
        os.mknod(area / f"many/{number:0100}")
    least = largest(area / "empty")
    assert largest(area / "many") < least + 64 * MIB  # the names are 10 MB; an object for each item would be far more
    assert os.listdir(area) == []


def test_names_that_are_listed_in_short_parts(area: Path) -> None:
    """As where a file server's names are longer than 255 bytes: a part of the listing holds fewer names than usual."""
    pytest.importorskip("pcopy.fsio.backend._native")
    (area / "many").mkdir()
    for number in range(700):
        (area / f"many/{number:040}").touch()
    (area / "many/inner").mkdir()
    code = (
        "import pcopy.fsio.backend.native as native; native._LONGEST_NAME = 4; from pcopy.cli.script import prm; prm()"
    )
    command = [sys.executable, "-c", code, "--yes", "-n", "2", "--json", str(area / "many")]
    ran = subprocess.run(
        command, env={**os.environ, "PCOPY_BACKEND": "c"}, capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["removed"] == 702
    assert not (area / "many").exists()
