"""Destinations with several quirks combined, as mounts of object stores and CIFS have them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from bench.latency import can_mount
from pcopy.fsio.sequential import examine_supported_operations
from tests.support import native
from tests.support.command import Argument, pcopy, show, summary
from tests.support.oracle import differences
from tests.support.quirks import quirky

pytestmark = pytest.mark.skipif(not can_mount(), reason="it takes root and libfuse3-dev")

OBJECTS = ("sequential", "no_dot_names", "fixed_mode=0755", "close_time", "fsync=EINVAL", "link=EPERM")
MADE_UP = ("rename=ENOSYS", "no_dot_names", "fixed_owner=65534", "close_time", "no_blocks")
OWN = "pcopy-examination"
CHANGES = "files", "symlinks", "special", "hardlinks", "bytes", "failed"


@pytest.fixture
def source(area: Path) -> Path:
    """Files of all kinds; ``within`` is processed in bulk."""
    source = area / "source"
    (source / "within").mkdir(parents=True)
    for number in range(4):
        (source / f"within/small{number}").write_bytes(b"%d" % number * 5000)
    (source / "within/small2").chmod(0o4755)
    (source / "large").write_bytes(os.urandom(3 << 20))
    os.link(source / "large", source / "within/name")
    os.link(source / "within/small1", source / "again")
    (source / "within/link").symlink_to("small0")
    os.mkfifo(source / "within/fifo")
    for path in (*source.rglob("*"), source):
        os.utime(path, ns=(10**18, 10**18 + 5), follow_symlinks=False)
    return source


def unlike(source: Path, copy: Path) -> list[str]:
    """Return the differences, except links, modes, owners and access times, which these file systems lack."""
    found = []
    for one in (source, *source.rglob("*")):
        other = copy / one.relative_to(source)
        if not os.path.lexists(other):
            found.append(f"missing {other}")
            continue
        left, right = one.lstat(), other.lstat()
        if stat.S_IFMT(left.st_mode) != stat.S_IFMT(right.st_mode) or left.st_mtime_ns != right.st_mtime_ns:
            found.append(f"kind or time {other}")
        elif stat.S_ISREG(left.st_mode) and one.read_bytes() != other.read_bytes():
            found.append(f"contents {other}")
        elif stat.S_ISLNK(left.st_mode) and one.readlink() != other.readlink():
            found.append(f"text {other}")
    return found


def ctimes(tree: Path) -> dict[Path, int]:
    return {path: path.lstat().st_ctime_ns for path in (tree, *tree.rglob("*")) if path.is_dir() or path.is_file()}


@pytest.mark.parametrize("words", [[], ["--inplace"], ["--inplace=sequential"]], ids=["", "inplace", "sequential"])
@pytest.mark.parametrize(("quirks", "backend", "ranks"), [(OBJECTS, "c", 2), (OBJECTS, "python", 1), (MADE_UP, "c", 4)])
def test_copies_are_correct_and_a_second_run_copies_nothing(
    area: Path, source: Path, quirks: tuple[str, ...], backend: str, ranks: int, words: list[Argument]
) -> None:
    if backend == "c":
        native.require()
    backing, env = area / "backing", {"PCOPY_BACKEND": backend}
    backing.mkdir()
    shutil.copytree(source / "within", backing / "copy/within", ignore=shutil.ignore_patterns("fifo"))
    (backing / "copy" / OWN).write_text("the user's own")
    with quirky(backing, *quirks) as mounted:
        done = pcopy(*words, f"{source}/", mounted / "copy", ranks=ranks, env=env)
        assert done.returncode == 0, show(done)
        assert unlike(source, backing / "copy") == []
        assert (backing / "copy" / OWN).read_text() == "the user's own"
        again = pcopy("--json", f"{source}/", mounted / "copy", program="psync", ranks=ranks, env=env)
        assert again.returncode == 0, show(again)
        totals = summary(again)
    assert {counter: totals[counter] for counter in CHANGES if totals[counter]} == {}
    assert list(backing.rglob("*pcopy-*")) == []


@pytest.mark.parametrize("quirk", ["sequential", "close_time", "rename=ENOSYS"])
@pytest.mark.parametrize("backend", ["c", "python"])
def test_second_run_does_not_change_directories(area: Path, source: Path, quirk: str, backend: str) -> None:
    if backend == "c":
        native.require()
    backing, env = area / "backing", {"PCOPY_BACKEND": backend}
    backing.mkdir()
    found = []
    with quirky(backing, quirk) as mounted:
        for _ in range(2):
            done = pcopy(f"{source}/", mounted / "copy", program="psync", ranks=2, env=env)
            assert done.returncode == 0, show(done)
            assert differences(source, backing / "copy") == []
            found.append(ctimes(backing / "copy"))
    assert found[0] == found[1]


def test_concurrent_jobs_can_examine_one_directory(area: Path) -> None:
    backing = area / "backing"
    (backing / "copy").mkdir(parents=True)
    found: list[str] = []
    with quirky(backing, "rename=ENOSYS") as mounted:
        path = os.fsencode(mounted / "copy")
        examinations = [
            threading.Thread(
                target=lambda: found.extend(examine_supported_operations(path).unsupported for _ in range(15))
            )
            for _ in range(4)
        ]
        for examination in examinations:
            examination.start()
        for examination in examinations:
            examination.join()
    assert len(found) == 60
    assert all("cannot rename files" in each for each in found), found
    assert list(backing.rglob("*pcopy-*")) == []


REPLACING: dict[str, tuple[str, ...]] = {
    "pcopy": ("{source}/", "{copy}"),
    "psync": ("{source}/", "{copy}"),
    "pcopy --compress": ("--compress", "zstd", "{source}/", "{copy}"),
    "ptar": ("-x", "-f", "{source}.tar", "-C", "{copy}"),
}


@pytest.mark.parametrize("command", REPLACING)
def test_failure_states_that_the_existing_file_was_removed(area: Path, command: str) -> None:
    source, backing = area / "source", area / "backing"
    name = "file.zst" if "--compress" in command else "file"
    source.mkdir()
    (source / "file").write_bytes(os.urandom(100_000))
    subprocess.run(["tar", "-C", source, "-cf", f"{source}.tar", "file"], check=True)
    (backing / "copy").mkdir(parents=True)
    (backing / "copy" / name).write_bytes(b"the old contents")
    with quirky(backing, "sequential", "write=ENOSPC") as mounted:
        words = [word.format(source=source, copy=mounted / "copy") for word in REPLACING[command]]
        done = pcopy(*words, program=command.split(maxsplit=1)[0], ranks=1)
    assert done.returncode in (1, 75), show(done)
    assert b" 1 failed" in done.stdout, show(done)
    assert b"the existing file has been removed already" in done.stderr, show(done)
    assert not list((backing / "copy").iterdir())
