"""A new item has its contents, its metadata and its name, or nothing is left of it, whatever fails on the way."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy.fsio import incomplete_mark
from pcopy.fsio.identity import Identity
from pcopy.fsio.layout import Recipe
from pcopy.fsio.new_file import NewFile, NewNode
from pcopy.fsio.nodes import Node
from pcopy.fsio.problem import Problem
from tests.faults.tracing import trace
from tests.fsio.lives import ATTRIBUTES, CONTENTS, LAYOUT, LIVES, MODE, NAME, OLD, PRESERVE, TEMPORARY, TIME, outcome_of
from tests.support.faults import require_strace
from tests.support.filesystems import Place

BEFORE = {"at": "nothing", "beside": "file", "synced": "nothing", "again": "directory", "over": "file", "node": "file"}
"""What has the name before each life."""

CALLS = """openat close newfstatat fstat pwrite64 ftruncate fsync fchown chown fchmod chmod fchmodat utimensat mknodat
    unlinkat rmdir renameat fsetxattr setxattr fremovexattr removexattr"""


def prepare(place: Path, life: str) -> None:
    name = place / os.fsdecode(NAME)
    if BEFORE[life] == "directory":
        name.mkdir()
    elif BEFORE[life] == "file":
        name.write_bytes(OLD)
        name.chmod(0o604)


def is_as_before(place: Path, life: str) -> bool:
    name = place / os.fsdecode(NAME)
    if BEFORE[life] == "nothing":
        return not os.path.lexists(name)
    if BEFORE[life] == "directory":
        return name.is_dir() or not os.path.lexists(name)  # removed, to make room for what failed then
    status = name.lstat()
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o604 and name.read_bytes() == OLD


def is_whole(place: Path, life: str, *, dressed: bool = True) -> bool:
    name = place / os.fsdecode(NAME)
    if not os.path.lexists(name):
        return False
    status = name.lstat()
    is_dressed = stat.S_IMODE(status.st_mode) == MODE and status.st_mtime_ns == TIME
    if life == "node":
        return stat.S_ISFIFO(status.st_mode) and (is_dressed or not dressed)
    if not stat.S_ISREG(status.st_mode) or name.read_bytes() != CONTENTS:
        return False
    return not dressed or (is_dressed and os.getxattr(name, "user.test") == b"value")


def is_marked(place: Path) -> bool:
    directory = os.open(place, os.O_RDONLY)
    try:
        return incomplete_mark.find_mark(directory, NAME, os.stat(NAME, dir_fd=directory)) is not None
    finally:
        os.close(directory)


def lived(life: str, place: Path, log: Path, *options: str) -> tuple[str, list[str]]:
    """What one life comes to in a process of its own, and its ``CALLS``; strace has ``options``."""
    require_strace()
    directory = os.open(place, os.O_RDONLY)
    begin, reported = os.pipe(), os.pipe()
    process = os.fork()
    if not process:
        try:
            os.read(begin[0], 1)
            os.write(reported[1], outcome_of(life, directory).encode())
        finally:
            os._exit(0)
    calls = ",".join(f"?{call}" for call in CALLS.split())
    tracer = trace(process, log, ["-e", f"trace={calls}", *options])
    os.write(begin[1], b"1")
    os.close(reported[1])
    with open(reported[0]) as text:
        outcome = text.read()
    os.waitpid(process, 0)
    tracer.communicate()
    for descriptor in (directory, *begin):
        os.close(descriptor)
    return outcome, re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)


def each_call(calls: list[str]) -> Iterator[tuple[str, int]]:
    """Each of ``calls``, and how many of its name there were by then."""
    for index, call in enumerate(calls):
        yield call, calls[: index + 1].count(call)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs"])
@pytest.mark.parametrize("life", LIVES)
def test_a_life(on: Place, kind: str, life: str) -> None:
    place = on(kind)
    prepare(place, life)
    directory = os.open(place, os.O_RDONLY)
    try:
        new = LIVES[life](directory)
    finally:
        os.close(directory)
    assert new.metadata_problem is None
    assert is_whole(place, life)
    assert os.listdir(place) == [os.fsdecode(NAME)]
    if life == "synced":
        assert os.getxattr(place / os.fsdecode(NAME), "user.layout") == b"striped"


def test_a_life_makes_no_call_twice(on: Place, tmp_path: Path) -> None:
    place = on("ext4")
    reported, calls = lived("beside", place, tmp_path / "log")
    assert reported == "done"
    metadata = ["fchown", "fsetxattr", "fchmod", "utimensat"]
    named = ["newfstatat", "close", "renameat", "newfstatat"]  # which inode it is, and whether that has the name
    assert calls == ["newfstatat", "openat", "pwrite64", *metadata, *named]


@pytest.mark.parametrize("life", LIVES)
def test_whatever_call_fails_the_item_is_whole_or_nothing_is_left(on: Place, tmp_path: Path, life: str) -> None:
    log = tmp_path / "log"
    place = on("ext4")
    prepare(place, life)
    calls = lived(life, place, log)[1]
    assert len(calls) > 5
    reported = set()
    for call, number in each_call(calls):
        place = on("ext4")
        prepare(place, life)
        fault = f"inject={call}:error=EIO:when={number}"
        outcome, _ = lived(life, place, log, "-e", fault)
        assert "INJECTED" in log.read_text(), fault
        reported.add(outcome)
        if outcome.startswith(("done", "not all metadata")):
            assert is_whole(place, life, dressed=outcome == "done"), fault
        else:
            assert re.search("Input/output error|is incomplete", outcome), (fault, outcome)
            if life == "over":
                assert is_as_before(place, life) or is_marked(place), (fault, outcome)
                assert call != "pwrite64" or "is incomplete" in outcome
            else:
                assert is_as_before(place, life) or (life != "at" and is_whole(place, life)), (fault, outcome)
        assert os.fsdecode(TEMPORARY) not in os.listdir(place), (fault, outcome)
    assert any(outcome.startswith("not all metadata") for outcome in reported)
    assert any("Input/output error" in outcome for outcome in reported)


@pytest.mark.parametrize("life", ["beside", "synced", "again", "node"])
def test_whenever_it_is_killed_the_name_is_that_of_something_whole(on: Place, tmp_path: Path, life: str) -> None:
    log = tmp_path / "log"
    place = on("ext4")
    prepare(place, life)
    calls = lived(life, place, log)[1]
    for call, number in each_call(calls):
        place = on("ext4")
        prepare(place, life)
        lived(life, place, log, "-e", f"inject={call}:signal=KILL:when={number}")
        assert is_as_before(place, life) or is_whole(place, life), (call, number)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, Problem("read", errno.EIO)])
def test_whoever_leaves_early_leaves_nothing(area: Path, directory: int, error: BaseException | None) -> None:
    (area / "name").write_bytes(OLD)

    def leave() -> None:
        with NewFile.create_temporary(directory, TEMPORARY) as new:
            os.write(new.descriptor, b"half")
            if error is not None:
                raise error

    before = os.listdir("/proc/self/fd")
    if error is None:
        leave()
    else:
        with pytest.raises((KeyboardInterrupt, Problem)):
            leave()
    assert os.listdir("/proc/self/fd") == before
    assert os.listdir(area) == ["name"]
    assert (area / "name").read_bytes() == OLD


@pytest.mark.parametrize("error", [RuntimeError("of pcopy"), Problem("read", errno.EIO)])
def test_what_other_tasks_rely_on_goes_only_with_a_problem_of_its_own(
    area: Path, directory: int, error: Exception
) -> None:
    """A later run goes on with it."""
    with NewFile.create_temporary(directory, TEMPORARY) as begun:
        made = begun.identity(0)
        begun.close_and_keep()
    with pytest.raises(type(error)), NewFile.continue_kept(directory, TEMPORARY, made) as new:
        new.reopen(0)
        raise error
    assert (os.listdir(area) == []) == isinstance(error, Problem)


def test_what_is_not_what_was_made_is_not_opened_again(area: Path, directory: int) -> None:
    with NewFile.create_temporary(directory, TEMPORARY) as begun:
        made = begun.identity(0)
        begun.close_and_keep()
    other = made._replace(inode=made.inode + 1)
    with pytest.raises(Problem) as raised, NewFile.continue_kept(directory, TEMPORARY, Identity(*other)) as new:
        new.reopen(0)
    assert raised.value.errno == errno.ESTALE


def test_a_name_that_is_taken_is_not_touched(area: Path, directory: int) -> None:
    (area / "name").write_bytes(OLD)
    with pytest.raises(Problem) as raised:
        NewFile.create(directory, NAME)
    assert raised.value.errno == errno.EEXIST
    assert (area / "name").read_bytes() == OLD


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (Recipe(os.O_SYNC, ("lustre.lov", b"")), "not supported"),
        (Recipe(os.O_SYNC, ("user.layout", b"striped"), lambda back: f"it is {back.decode()}"), "it is striped"),
        (Recipe(fallback_reason="there is no such pool"), "no such pool"),
    ],
)
def test_a_file_is_made_without_a_layout_that_it_does_not_get(
    area: Path, directory: int, recipe: Recipe, why: str
) -> None:
    with NewFile.create(directory, NAME, recipe) as new:
        assert why in new.layout_reason
        assert new.apply_metadata(ATTRIBUTES, PRESERVE, 0o022).layout_reason == new.layout_reason
        assert not fcntl.fcntl(new.descriptor, fcntl.F_GETFL) & os.O_SYNC
        new.close_and_keep()
    assert os.listdir(area) == ["name"]
    assert "user.layout" not in os.listxattr(area / "name")


def test_a_layout_comes_before_the_first_byte(area: Path, directory: int) -> None:
    with NewFile.create(directory, NAME, LAYOUT) as new:
        assert os.getxattr(new.descriptor, "user.layout") == b"striped"
        assert new.status.st_size == 0
        new.close_and_keep()


def test_a_node_under_its_own_name_is_left_to_whoever_finds_it(area: Path, directory: int) -> None:
    """Nobody can tell by then whether it is what was made."""
    status = os.stat_result((stat.S_IFIFO | MODE, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    source = Node(status, ATTRIBUTES, b"")
    with pytest.raises(RuntimeError), NewNode.create_node(directory, NAME, source, is_temporary=False) as new:
        new.apply_metadata(ATTRIBUTES._replace(mode=stat.S_IFIFO | MODE, xattrs=()), PRESERVE, 0o022)
        raise RuntimeError
    assert os.listdir(area) == ["name"]


def test_what_is_written_over_stays_when_another_task_gives_up(area: Path, directory: int) -> None:
    (area / "name").touch(0o600)
    status = (area / "name").stat()
    made, before = Identity(0, status.st_ino), (status.st_mode, status.st_uid, status.st_gid)
    with pytest.raises(Problem, match="is incomplete"), NewFile.continue_kept(directory, NAME, made, before) as new:
        new.reopen(0)
        raise Problem("read", errno.EIO, on_source=True)
    assert os.listdir(area) == ["name"]


@pytest.mark.parametrize("marked", [False, True])
def test_a_file_that_tells_of_what_is_replaced_goes_with_it(area: Path, directory: int, marked: bool) -> None:
    sidecar = os.fsdecode(incomplete_mark.sidecar_name(NAME))
    (area / sidecar).write_bytes(b"a mark")
    (area / "name").write_bytes(OLD)
    with NewFile.create_temporary(directory, TEMPORARY) as new:
        new.commit(NAME, (area / "name").stat(), marked=marked)
    assert (sidecar in os.listdir(area)) != marked


def test_file_that_cannot_be_removed_does_not_hide_the_first_error(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(directory: int, name: bytes) -> None:
        raise Problem("unlink", errno.EPERM)

    monkeypatch.setattr("pcopy.fsio.new_file.remove_if_present", refused)
    directory = os.open(area, os.O_RDONLY)
    try:
        with pytest.raises(Problem) as raised, NewFile.create(directory, b"incomplete"):
            raise Problem("write", errno.ENOSPC)
    finally:
        os.close(directory)
    problem = raised.value
    assert (problem.operation, problem.errno) == ("write", errno.ENOSPC)
    assert "incomplete is left, since it cannot be removed (Operation not permitted)" in str(problem.strerror)
