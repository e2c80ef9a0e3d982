"""A FUSE file system, whose sync does not reach its server: files and directories are synced one by one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.unfinished import INCOMPLETE, STOPPED
from tests.support.command import Argument, Completed, pcopy, show, succeed
from tests.support.faults import require_strace
from tests.support.files import noise
from tests.support.filesystems import scratch, unmount
from tests.support.oracle import differences
from tests.support.preload import preloaded
from tests.support.processes import wait_until
from tests.support.users import require_root

MIB = 1 << 20
FAILING = Path(__file__).with_name("failing.c")
SPLIT = ("--chunk-size", "1M", "--block-size", "64K")
NAMING = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "symlinkat", "mknodat", "openat")
CALLS = (*NAMING, "fsync", "fdatasync", "syncfs")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with scratch() as place:
        source = place / "source"
        for number in range(4):
            directory = source / f"directory-{number}" / "below"
            directory.mkdir(parents=True)
            for index in range(5):
                (directory / f"file-{index}").write_bytes(os.urandom(1000 * index))
            (directory / "link").symlink_to("file-1")
            os.mkfifo(directory / "fifo")
            os.link(directory / "file-1", source / f"directory-{number}" / "hard link")
        (source / "middling").write_bytes(noise(5 * MIB))
        (source / "split").write_bytes(noise(9 * MIB))
        yield source


@pytest.fixture
def fuse(area: Path) -> Iterator[Path]:
    """An empty directory, as a FUSE server shows it; what it is really, with its hard links, is in ``behind``."""
    require_root("mount with FUSE")
    if not shutil.which("bindfs") or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("there is no bindfs here, or no FUSE")
    behind, point = area / "behind", area / "point"
    behind.mkdir()
    point.mkdir()
    tried = subprocess.run(["bindfs", behind, point], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"bindfs can't mount here: {tried.stderr.strip()}")
    try:
        assert wait_until(point.is_mount)
        yield point
    finally:
        unmount(point)


class Call(NamedTuple):
    """A system call: its name, the paths of its descriptors, the names in it, and the line that strace wrote."""

    name: str
    paths: Sequence[str]
    names: Sequence[str]
    line: str


class Calls:
    """What one rank calls, in its order."""

    def __init__(self, log: Path) -> None:
        require_strace()
        self._log = log

    def wrap(self) -> list[Argument]:
        names = ",".join("?" + name for name in CALLS)
        return ["strace", "-f", "-qq", "-y", "-s", "256", "-o", self._log, "-e", f"trace={names}"]

    def below(self, place: Path) -> list[Call]:
        found = []
        for line in whole_lines(self._log):
            match = re.match(r"\d+ +(\w+)\(", line)
            if match and " = -1 " not in line:
                found.append(Call(match[1], re.findall(r"<([^<>]*)>", line), re.findall(r'"([^"]*)"', line), line))
        inside = [call for call in found if any(path.startswith(str(place)) for path in call.paths)]
        return [call for call in inside if "-examination" not in call.line]  # before the job; nothing relies on it


def whole_lines(log: Path) -> Iterator[str]:
    """strace cuts a line in two if another thread calls something meanwhile; it counts when the call is over."""
    begun: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        thread = line.split(maxsplit=1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
        else:
            yield re.sub(r"^\d+ +<\.\.\. \w+ resumed>", lambda match: begun.pop(thread), line)  # noqa: B023


def copied(calls: Calls, tree: Path, target: Path, *options: Argument, env: dict[str, str]) -> Completed:
    return pcopy(*options, *SPLIT, "-T", tree, target, ranks=1, env=env, wrap=calls.wrap())


def names_made_in(call: Call) -> list[str]:
    """The directories in which it makes a name."""
    if call.name == "openat":  # the last path is that of the new descriptor
        return [call.paths[-2]] if "O_CREAT" in call.line else []
    return [call.paths[-1]] if call.name in NAMING else []


@pytest.mark.parametrize("in_flight", ["1", "4"])
def test_each_file_when_it_is_made_and_each_directory_after_it(
    tree: Path, area: Path, fuse: Path, env: dict[str, str], in_flight: str
) -> None:
    calls = Calls(area / "log")
    run = copied(calls, tree, fuse / "copy", "--in-flight", in_flight, env=env)
    assert run.returncode == 0, show(run)
    assert differences(tree, area / "behind/copy") == []
    made: dict[str, int] = {}
    begun: dict[str, int] = {}
    synced: dict[str, int] = {}
    files: set[str] = set()
    for number, call in enumerate(calls.below(fuse)):
        if call.name == "fsync":
            synced[call.paths[0]] = number
        if call.name.startswith("rename"):
            temporary = f"{call.paths[0]}/{call.names[0]}"
            assert synced[temporary] > made[temporary], call.line
        for directory in names_made_in(call):
            if directory in begun:  # by an earlier task, whose names are synced when it is over
                assert synced.get(os.path.dirname(directory), 0) > begun[directory], call.line
            if call.name.startswith("mkdir"):
                begun[f"{directory}/{call.names[-1]}"] = number
            made[directory] = number
            made[f"{directory}/{call.names[-1]}"] = number
            if call.name == "openat" and not call.names[-1].endswith("-clock"):
                files.add(f"{directory}/{call.names[-1]}")
    assert len(files) == sum(1 for path in tree.rglob("file-*")) + 2
    for path in files:  # small ones under their names, large ones under temporary ones
        assert synced[path] > made[path], path
    directories = {str(fuse), *(str(fuse / "copy" / path.relative_to(tree)) for path in (tree, *tree.rglob("*/")))}
    for directory in directories & made.keys():
        assert synced[directory] > made[directory], directory
    assert all(str(fuse / "copy" / path.relative_to(tree)) in made for path in tree.rglob("below"))


def test_each_chunk_is_synced_by_who_has_written_it(tree: Path, area: Path, fuse: Path, env: dict[str, str]) -> None:
    calls = Calls(area / "log")
    succeed(*SPLIT, "-T", tree / "split", fuse / "copy", ranks=2, env=env, wrap=calls.wrap())
    syncs = re.findall(rf" fsync\(\d+<{fuse}/\.pcopy-", (area / "log").read_text(errors="replace"))
    assert len(syncs) == 1 + 9 + 1  # when it was made, the chunks, and before it was renamed
    subprocess.run(["cmp", tree / "split", fuse / "copy"], check=True)


def test_a_job_that_is_not_kept_syncs_nothing_one_by_one(
    tree: Path, area: Path, fuse: Path, env: dict[str, str]
) -> None:
    calls = Calls(area / "log")
    run = copied(calls, tree, fuse / "copy", "--checkpoint", "none", env=env)
    assert run.returncode == 0, show(run)
    assert {call.name for call in calls.below(fuse)} >= {"syncfs", "mknodat"}
    assert not [call.line for call in calls.below(fuse) if call.name == "fsync"]


@pytest.mark.parametrize(
    ("pattern", "status", "reported"),
    [
        ("*/below/file-?", INCOMPLETE, rb"file-\d: fsync: Input/output error"),
        ("*/copy/.pcopy-*", INCOMPLETE, rb"(middling|split): fsync: Input/output error"),
        ("*/below", STOPPED, rb"the destination could not be synced: Input/output error"),
    ],
    ids=["small file", "large file", "directory"],
)
def test_a_sync_of_one_that_fails(
    tree: Path, area: Path, fuse: Path, env: dict[str, str], pattern: str, status: int, reported: bytes
) -> None:
    """A file fails then; after a directory nothing is recorded any more."""
    failing = preloaded(FAILING) | {"PCOPY_TEST_FAILS": pattern}
    run = pcopy(*SPLIT, "-T", tree, fuse / "copy", ranks=1, env=env | failing)
    assert run.returncode == status, show(run)
    assert len(re.findall(reported, run.stderr)) == 1, show(run)
    assert b"pcopy: to go on: pcopy --resume" in run.stderr, show(run)
    succeed("--resume", ranks=2, env=env)
    assert differences(tree, area / "behind/copy") == []
