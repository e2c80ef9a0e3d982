"""A FUSE file system, whose syncfs does not reach its server: files and directories are synced individually."""

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
from tests.support.traces import whole_lines
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
    """An empty directory that a FUSE server shows; ``behind`` is the real directory, with its hard links."""
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
    """The system calls of one rank, in order."""

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
        return [
            call for call in inside if "-examination" not in call.line
        ]  # made before the job; nothing depends on it


def copied(calls: Calls, tree: Path, target: Path, *options: Argument, env: dict[str, str]) -> Completed:
    return pcopy(*options, *SPLIT, "-T", tree, target, ranks=1, env=env, wrap=calls.wrap())


def names_made_in(call: Call) -> list[str]:
    """Return the directories in which a call creates a name."""
    if call.name == "openat":  # the last path is that of the new descriptor
        return [call.paths[-2]] if "O_CREAT" in call.line else []
    return [call.paths[-1]] if call.name in NAMING else []


@pytest.mark.parametrize("in_flight", ["1", "4"])
def test_each_file_is_synced_when_created_and_each_directory_afterwards(
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
            if directory in begun:  # created by an earlier task, whose names are synced at its end
                assert synced.get(os.path.dirname(directory), 0) > begun[directory], call.line
            if call.name.startswith("mkdir"):
                begun[f"{directory}/{call.names[-1]}"] = number
            made[directory] = number
            made[f"{directory}/{call.names[-1]}"] = number
            if call.name == "openat" and not call.names[-1].endswith("-clock"):
                files.add(f"{directory}/{call.names[-1]}")
    assert len(files) == sum(1 for path in tree.rglob("file-*")) + 2
    for path in files:  # small files under their final names, large ones under temporary names
        assert synced[path] > made[path], path
    directories = {str(fuse), *(str(fuse / "copy" / path.relative_to(tree)) for path in (tree, *tree.rglob("*/")))}
    for directory in directories & made.keys():
        assert synced[directory] > made[directory], directory
    assert all(str(fuse / "copy" / path.relative_to(tree)) in made for path in tree.rglob("below"))


def test_each_chunk_is_synced_by_the_rank_that_wrote_it(
    tree: Path, area: Path, fuse: Path, env: dict[str, str]
) -> None:
    calls = Calls(area / "log")
    succeed(*SPLIT, "-T", tree / "split", fuse / "copy", ranks=2, env=env, wrap=calls.wrap())
    syncs = re.findall(rf" fsync\(\d+<{fuse}/\.pcopy-", (area / "log").read_text(errors="replace"))
    assert len(syncs) == 1 + 9 + 1  # after its creation, after each chunk, and before the rename
    subprocess.run(["cmp", tree / "split", fuse / "copy"], check=True)


def test_job_without_checkpoint_syncs_no_single_files(tree: Path, area: Path, fuse: Path, env: dict[str, str]) -> None:
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
def test_failed_sync_of_one_file_or_directory_is_reported_and_resumed(
    tree: Path, area: Path, fuse: Path, env: dict[str, str], pattern: str, status: int, reported: bytes
) -> None:
    """A failed sync of a file fails that file; after a failed sync of a directory nothing more is recorded."""
    failing = preloaded(FAILING) | {"PCOPY_TEST_FAILS": pattern}
    run = pcopy(*SPLIT, "-T", tree, fuse / "copy", ranks=1, env=env | failing)
    assert run.returncode == status, show(run)
    assert len(re.findall(reported, run.stderr)) == 1, show(run)
    assert b"pcopy: to go on: pcopy --resume" in run.stderr, show(run)
    succeed("--resume", ranks=2, env=env)
    assert differences(tree, area / "behind/copy") == []
