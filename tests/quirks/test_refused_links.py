"""File systems that refuse link(2): additional names become copies, with one warning.

Oracles: rsync (without -H), cmp by ``filecmp``, stat.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Completed, pcopy, show, summary
from tests.support.filesystems import mounted, scratch
from tests.support.native import ROOT
from tests.support.quirks import quirky
from tests.support.users import require_root

BACKENDS = ("c", "python")
REFUSALS = ("EXDEV", "EPERM", "ENOSYS", "EOPNOTSUPP")
COPYING = (("psync",), ("pcopy", "-T", "--existing", "newer", "--verify"))
LARGE = 9 << 20


@pytest.fixture
def source() -> Iterator[Path]:
    """A tree with hard links of a small and a large file, a symbolic link and a FIFO; each has two names."""
    with scratch() as area:
        tree = area / "source"
        for name in ("a", "b"):
            (tree / name).mkdir(parents=True)
        (tree / "a/small").write_bytes(b"small")
        (tree / "a/large").write_bytes(b"large")
        os.truncate(tree / "a/large", LARGE)
        (tree / "a/symlink").symlink_to("small")
        os.mkfifo(tree / "a/fifo")
        for name in os.listdir(tree / "a"):
            os.link(tree / "a" / name, tree / "b" / name, follow_symlinks=False)
        yield tree


def run(backend: str, program: str, *words: str | Path) -> Completed:
    return pcopy(*words, program=program, ranks=2, env={"PCOPY_BACKEND": backend})


def unlike(source: Path, copy: Path) -> bytes:
    """Return what rsync would change, except hard links."""
    words = ["rsync", "-naAX", "--delete", "--checksum", "--itemize-changes", f"{source}/", str(copy)]
    return subprocess.run(words, check=True, capture_output=True).stdout


def leftovers(top: Path) -> list[str]:
    return [name for _, directories, files in os.walk(top) for name in (*directories, *files) if ".pcopy" in name]


@pytest.mark.parametrize("words", COPYING, ids=" ".join)
@pytest.mark.parametrize("backend", BACKENDS)
def test_refused_hard_links_become_copies(source: Path, backend: str, words: tuple[str, ...]) -> None:
    backing = source.parent / "backing"
    program, *options = words
    refused = REFUSALS[2 * COPYING.index(words) + BACKENDS.index(backend)]
    backing.mkdir()
    with quirky(backing, f"link={refused}") as tree:
        (tree / "copy").mkdir()
        if program == "psync":
            (tree / "copy/extra").touch()
        done = run(backend, program, *options, "--json", f"{source}/", tree / "copy")
        totals = summary(done)
        assert (done.returncode, totals["failed"], totals["warnings"]) == (0, 0, 4), show(done)
        assert (totals["files"], totals["symlinks"], totals["special"], totals["hardlinks"]) == (4, 2, 2, 0)
        assert done.stderr.count(b"--no-preserve links") == 1
        assert (unlike(source, tree / "copy"), leftovers(tree)) == (b"", [])
        again = summary(run(backend, program, *options, "--json", f"{source}/", tree / "copy"))
        # eight names of items and three directories
        assert (again["skipped"], again["directories"], again["failed"]) == (11, 0, 0), again


def test_hard_links_across_two_projects_are_copied_once_per_project() -> None:
    """XFS refuses links between directories of two projects (EXDEV), and permits them within each."""
    require_root("mount file systems")
    with scratch() as area, mounted("xfs", area, size=320 << 20) as point:
        for number, name in enumerate(("a", "b", "c"), 1):
            (area / "source" / name).mkdir(parents=True)
            (point / "copy" / name).mkdir(parents=True)
            words = ["chattr", "-p", str(1000 + number // 3), "+P", str(point / "copy" / name)]
            if subprocess.run(words, check=False).returncode:
                pytest.skip("chattr: no projects here")
        first = area / "source/a/1"
        first.write_bytes(b"content")
        for name in ("a/2", "b/1", "c/1", "c/2"):
            os.link(first, area / "source" / name)
        done = run("c", "psync", "--json", f"{area}/source/", point / "copy")
        totals = summary(done)
        assert (done.returncode, totals["files"], totals["hardlinks"], totals["warnings"]) == (0, 2, 3, 2), show(done)
        assert unlike(area / "source", point / "copy") == b""
        inodes = [os.stat(point / "copy" / name).st_ino for name in ("a/1", "a/2", "b/1", "c/1", "c/2")]
        assert inodes == [inodes[0]] * 3 + [inodes[3]] * 2 and inodes[0] != inodes[3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_refused_hard_links_of_an_archive_become_copies(source: Path, backend: str) -> None:
    area, backing = source.parent, source.parent / "backing"
    backing.mkdir()
    subprocess.run(["tar", "-cf", area / "archive.tar", "-C", source, "."], check=True)
    with quirky(backing, "link=EPERM") as tree:
        (tree / "copy/b").mkdir(parents=True)
        (tree / "copy/b/small").write_bytes(b"old")
        done = run(backend, "ptar", "--json", "-xf", area / "archive.tar", "-C", tree / "copy")
        totals = json.loads(done.stdout)  # tar stores no link of a FIFO
        assert (done.returncode, totals["warnings"], done.stderr.count(b"refuses")) == (0, 3, 1), show(done)
        assert (totals["files"], totals["hardlinks"]) == (4, 0)
        assert (unlike(source, tree / "copy"), leftovers(tree)) == (b"", [])


def check_backup(source: Path, copy: Path, old: Path) -> None:
    (copy / "extra").write_bytes(b"extra")
    (copy / "link").symlink_to("extra")
    done = run("c", "psync", "--json", "--backup", old, f"{source}/", copy, "--exclude", "large")
    assert (done.returncode, summary(done)["deleted"]) == (0, 2), show(done)
    assert (old / "extra").read_bytes() == b"extra"
    assert os.readlink(old / "link") == "extra"
    assert filecmp.cmp(source / "a/small", copy / "a/small", shallow=False)


def test_backups_are_renamed_where_hard_links_are_refused(source: Path) -> None:
    backing = source.parent / "backing"
    backing.mkdir()
    shutil.rmtree(source / "b")
    with quirky(backing, "link=EPERM") as tree:
        for path in (tree / "copy", tree / "old"):
            path.mkdir(mode=0o700)
        check_backup(source, tree / "copy", tree / "old")


def test_backups_in_another_project_are_copied(source: Path) -> None:
    """There link(2) and rename(2) fail with EXDEV."""
    require_root("mount file systems")
    shutil.rmtree(source / "b")
    with mounted("xfs", source.parent, size=320 << 20) as point:
        for path in (point / "copy", point / "old"):
            path.mkdir(mode=0o700)
        if subprocess.run(["chattr", "-p", "1001", "+P", point / "old"], check=False).returncode:
            pytest.skip("chattr: no projects here")
        check_backup(source, point / "copy", point / "old")


BOTH_REFUSALS = """
import errno, os, sys
from pcopy.cli.pcopy import main
link, numbers = os.link, [errno.EXDEV, errno.EMLINK]
def refusing(*words, **named):
    if numbers:
        raise OSError(numbers.pop(0), "refused")
    return link(*words, **named)
os.link = refusing
status = main(sys.argv[1:])
assert not numbers
sys.exit(status)
"""


def test_no_name_is_lost_if_emlink_follows_another_refusal() -> None:
    with scratch() as area:
        names = [f"name{number}" for number in range(6)]
        (area / "source").mkdir()
        (area / "source/name0").write_bytes(b"content")
        for name in names[1:]:
            os.link(area / "source/name0", area / "source" / name)
        words: list[str | Path] = ["--checkpoint", "none", "--json", "-n", "1", area / "source", area / "copy"]
        command = [sys.executable, "-c", BOTH_REFUSALS, *words]
        run = subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
        assert run.returncode == 0, run.stderr
        assert filecmp.cmpfiles(area / "source", area / "copy", names, shallow=False)[0] == names
        totals = json.loads(run.stdout.splitlines()[-1])
        assert (totals["files"], totals["hardlinks"], totals["failed"]) == (2, 4, 0), totals
