"""``prm``: refused paths, confirmation, and missing paths."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pcopy.tasks.base.job import Options, Root
from pcopy.tools.remove import removal_extent_text
from pcopy.walk import preliminary_walk
from pcopy.walk.preliminary_walk import PreliminaryWalk
from tests.e2e.test_prm import prm
from tests.support.command import RUN, show
from tests.support.faults import Fault
from tests.support.files import write
from tests.support.filesystems import Place

REFUSED = {
    "/": "is the root directory, which is never removed",
    "//": "is the root directory, which is never removed",
    "/.": ". is never removed",
    ".": ". is never removed",
    "./": ". is never removed",
    "..": ".. is never removed",
    "../here/../here": "is the working directory, which is never removed",
    "../../around": "is a directory above the working directory, which is never removed",
    "inner/..": ".. is never removed",
    "link/": "is a symbolic link; to remove the link, leave out the slash",
    "file/": "is not a directory; to remove it, leave out the slash",
    "": "a path is the empty string",
}


@pytest.mark.parametrize("path", REFUSED)
def test_protected_paths_are_never_removed(area: Path, path: str) -> None:
    here = area / "around/here"
    (here / "inner").mkdir(parents=True)
    (here / "file").touch()
    (here / "link").symlink_to("inner")
    (area / "around/fine").touch()
    run = prm("-f", "../fine", path, cwd=here)
    assert run.returncode == 2, show(run)
    assert REFUSED[path] in run.stderr.decode()
    assert sorted(os.listdir(here)) == ["file", "inner", "link"]
    assert (area / "around/fine").exists()


def test_tree_that_holds_the_errors_file_is_refused(area: Path) -> None:
    (area / "tree/inner").mkdir(parents=True)
    (area / "link").symlink_to("tree")
    for errors in (area / "tree/inner/errors", area / "link/errors"):
        run = prm("--yes", "--errors", errors, area / "tree")
        assert run.returncode == 2, show(run)
        assert b"which is removed; name another" in run.stderr
    assert prm("--yes", "--errors", area / "tree-errors", area / "tree").returncode == 0


def test_missing_path_fails_without_force(area: Path) -> None:
    (area / "there").touch()
    run = prm("--yes", "there", "gone", "gone/below", cwd=area)
    assert run.returncode == 1, show(run)
    assert run.stderr.decode().splitlines() == [
        f"prm: {path}: stat: No such file or directory (ENOENT)" for path in ("gone", "gone/below")
    ]
    assert b"3 found = 1 removed + 0 not empty + 2 failed" in run.stdout
    assert os.listdir(area) == []
    assert prm("--yes", "gone", cwd=area).returncode == 1
    run = prm("-rf", "gone", cwd=area)
    assert (run.returncode, run.stderr) == (0, b"")


def run_with_answer(answer: bytes, *words: str, cwd: Path) -> tuple[int, bytes]:
    """Run prm on a terminal and give ``answer``. Return the status and the output."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        os.environ["TERM"] = "dumb"
        os.execv(sys.executable, [sys.executable, *RUN["prm"], *words])
    shown = b""
    while b"[y/N] " not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, answer)
    try:
        while data := os.read(terminal, 1024):
            shown += data
    except OSError:  # EIO marks the end of the output of a terminal
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown


def test_confirmation_is_requested_on_a_terminal(area: Path) -> None:
    (area / "tree\n\x1b[2J").mkdir()
    status, reported = run_with_answer(b"n\n", "tree\n\x1b[2J", cwd=area)
    assert (status, len(os.listdir(area))) == (2, 1)
    assert b"nothing was removed" in reported
    assert b"\x1b" not in reported
    reported = run_with_answer(b"n\n", "--exclude", "*.o", "tree\n\x1b[2J", cwd=area)[1]
    assert rb"remove what the filters select in tree\n\x1b[2J (0 items of 0 B)? [y/N]" in reported
    assert run_with_answer(b"\x04", "tree\n\x1b[2J", cwd=area)[0] == 2
    status, reported = run_with_answer(b"y\n", "tree\n\x1b[2J", cwd=area)
    assert (status, os.listdir(area)) == (0, []), reported


def test_question_states_how_much_would_be_removed(area: Path) -> None:
    for number in range(40):
        write(area / f"tree/{number % 7}/{number}.{'ab'[number % 2]}", bytes(number << 10))
    (area / "tree/link").symlink_to("1")
    write(area / "file", b"12345")
    found = subprocess.run(["find", "tree", "-printf", "%y\n"], check=True, capture_output=True, cwd=area).stdout
    items, size = len(found.splitlines()), sum(range(40)) << 10
    asked = run_with_answer(b"n\n", "tree", cwd=area)[1]
    assert f"remove tree, and all that is in it ({items} items of {size >> 10} KiB)? [y/N]".encode() in asked
    asked = run_with_answer(b"n\n", "tree", "file", cwd=area)[1]
    assert f" in them ({items + 1} items of {size >> 10} KiB)? [y/N]".encode() in asked
    half = sum(number for number in range(40) if number % 2)
    asked = run_with_answer(b"n\n", "--exclude", "*.a", "--exclude", "link", "tree", cwd=area)[1]
    assert f"select in tree (20 items of {half} KiB)? [y/N]".encode() in asked
    assert (area / "tree/0/0.a").exists()


def test_question_does_not_wait_for_a_large_tree(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        write(area / f"tree/{number}", b"1")
    monkeypatch.setattr(preliminary_walk, "PreliminaryWalk", partial(PreliminaryWalk, entries=5))
    root = Root(os.fsencode(area), os.fsencode(area), b"tree", b"tree", b"tree", b"tree", (1, 1), (1, 1))
    assert removal_extent_text([root], Options().select) == " (at least 6 items of 5 B)"


def test_option_yes_is_required_without_a_terminal(area: Path) -> None:
    (area / "tree").mkdir()
    run = prm(area / "tree")
    assert run.returncode == 2
    assert b"use --yes to remove without confirmation" in run.stderr
    assert os.listdir(area) == ["tree"]


def test_path_below_a_file_is_missing(area: Path) -> None:
    (area / "file").touch()
    run = prm("--yes", "file/below", cwd=area)
    assert (run.returncode, run.stderr) == (1, b"prm: file/below: stat: Not a directory (ENOTDIR)\n"), show(run)
    run = prm("-f", "file/below", cwd=area)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    assert (area / "file").exists()


def test_refusal_of_a_subvolume_says_that_it_may_be_one(on: Place) -> None:
    around = on("btrfs")
    (around / "tree").mkdir()
    for path in (around / "other", around / "tree/inner"):
        subprocess.run(["btrfs", "-q", "subvolume", "create", path], check=True)
    run = prm("--yes", around / "other")
    assert (
        run.returncode == 2
        and b"is a mount point or a subvolume; unmount the file system or delete the subvolume, or name" in run.stderr
    ), show(run)
    run = prm("--yes", around / "tree")
    assert (
        run.returncode == 1
        and b"/inner: stat: another file system is mounted here, or it is a subvolume: not removed" in run.stderr
    ), show(run)


@pytest.mark.parametrize("error", ["EINTR", "EAGAIN"])
@pytest.mark.parametrize("path", ["tree", "tree/inner"])
def test_interrupted_removal_is_retried(area: Path, path: str, error: str) -> None:
    """The interrupted calls remove names in a directory or the directory itself."""
    (area / "tree/inner").mkdir(parents=True)
    for number in range(4):
        (area / path / f"{number}").touch()
    fault = Fault(area / "log", ["unlinkat"], area / path, error, when="2..3")
    run = prm("--yes", area / "tree", ranks=1, wrap=fault.wrap())
    fault.check()
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    assert not (area / "tree").exists()


@pytest.mark.parametrize("error", ["EBUSY", "ENOMEM", "EMFILE", "ENOSPC", "EROFS"])
def test_directory_without_a_status_fails_and_the_run_ends(area: Path, error: str) -> None:
    """Each status call fails in turn; none stops the run."""
    for number in range(1, 8):
        (area / "tree/inner").mkdir(parents=True, exist_ok=True)
        (area / "tree/inner/file").touch()
        fault = Fault(area / "log", ["newfstatat", "fstat", "statx"], area / "tree", error, when=str(number))
        run = prm("--yes", "tree", cwd=area, ranks=1, wrap=fault.wrap())
        assert run.returncode in (0, 1), show(run)
        assert (run.returncode == 1) == (b"prm: tree" in run.stderr), show(run)
        assert run.returncode == 0 or error.encode() in run.stderr, show(run)
