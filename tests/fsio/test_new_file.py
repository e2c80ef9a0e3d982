"""A new item is complete, with contents, metadata and name, or does not exist, whichever step fails."""

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
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.layout import LayoutRecipe
from pcopy.fsio.new_file import NewFile, NewLinkOrSpecialFile
from pcopy.fsio.nodes import LinkOrSpecialFile
from pcopy.fsio.problem import Problem
from tests.faults.tracing import trace
from tests.fsio.lives import ATTRIBUTES, CONTENTS, LAYOUT, LIVES, MODE, NAME, OLD, PRESERVE, TEMPORARY, TIME, outcome_of
from tests.support.faults import require_strace
from tests.support.filesystems import Place

BEFORE = {"at": "nothing", "beside": "file", "synced": "nothing", "again": "directory", "over": "file", "node": "file"}
"""The item that has the name before each life cycle."""

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
        return name.is_dir() or not os.path.lexists(name)  # removed to make room for the item whose creation failed
    status = name.lstat()
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o604 and name.read_bytes() == OLD


def is_whole(place: Path, life: str, *, with_metadata: bool = True) -> bool:
    name = place / os.fsdecode(NAME)
    if not os.path.lexists(name):
        return False
    status = name.lstat()
    has_metadata = stat.S_IMODE(status.st_mode) == MODE and status.st_mtime_ns == TIME
    if life == "node":
        return stat.S_ISFIFO(status.st_mode) and (has_metadata or not with_metadata)
    if not stat.S_ISREG(status.st_mode) or name.read_bytes() != CONTENTS:
        return False
    return not with_metadata or (has_metadata and os.getxattr(name, "user.test") == b"value")


def is_marked(place: Path) -> bool:
    directory = os.open(place, os.O_RDONLY)
    try:
        return incomplete_mark.find_incomplete_file_mark(directory, NAME, os.stat(NAME, dir_fd=directory)) is not None
    finally:
        os.close(directory)


def run_life(life: str, place: Path, log: Path, *options: str) -> tuple[str, list[str]]:
    """Run one life cycle in its own process under strace with ``options``. Return its outcome and its ``CALLS``."""
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
    """Yield each of ``calls`` with the number of calls of that name so far."""
    for index, call in enumerate(calls):
        yield call, calls[: index + 1].count(call)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs"])
@pytest.mark.parametrize("life", LIVES)
def test_life_cycle_creates_the_item(on: Place, kind: str, life: str) -> None:
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


def test_life_cycle_makes_no_system_call_twice(on: Place, tmp_path: Path) -> None:
    place = on("ext4")
    reported, calls = run_life("beside", place, tmp_path / "log")
    assert reported == "done"
    metadata = ["fchown", "fsetxattr", "fchmod", "utimensat"]
    named = ["newfstatat", "close", "renameat", "newfstatat"]  # get its inode, and check that the name refers to it
    assert calls == ["newfstatat", "openat", "pwrite64", *metadata, *named]


@pytest.mark.parametrize("life", LIVES)
def test_failure_of_any_call_leaves_a_complete_item_or_nothing(on: Place, tmp_path: Path, life: str) -> None:
    log = tmp_path / "log"
    place = on("ext4")
    prepare(place, life)
    calls = run_life(life, place, log)[1]
    assert len(calls) > 5
    reported = set()
    for call, number in each_call(calls):
        place = on("ext4")
        prepare(place, life)
        fault = f"inject={call}:error=EIO:when={number}"
        outcome, _ = run_life(life, place, log, "-e", fault)
        assert "INJECTED" in log.read_text(), fault
        reported.add(outcome)
        if outcome.startswith(("done", "not all metadata")):
            assert is_whole(place, life, with_metadata=outcome == "done"), fault
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
def test_kill_at_any_call_leaves_a_complete_item_under_the_name(on: Place, tmp_path: Path, life: str) -> None:
    log = tmp_path / "log"
    place = on("ext4")
    prepare(place, life)
    calls = run_life(life, place, log)[1]
    for call, number in each_call(calls):
        place = on("ext4")
        prepare(place, life)
        run_life(life, place, log, "-e", f"inject={call}:signal=KILL:when={number}")
        assert is_as_before(place, life) or is_whole(place, life), (call, number)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, Problem("read", errno.EIO)])
def test_leaving_the_context_early_removes_the_temporary_file(
    area: Path, directory: int, error: BaseException | None
) -> None:
    (area / "name").write_bytes(OLD)

    def leave() -> None:
        with NewFile.create_temporary_file(directory, TEMPORARY) as new:
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
def test_kept_file_is_removed_only_after_a_problem(area: Path, directory: int, error: Exception) -> None:
    """A later run continues with the file."""
    with NewFile.create_temporary_file(directory, TEMPORARY) as begun:
        made = begun.file_identity(0)
        begun.close_without_removing()
    with pytest.raises(type(error)), NewFile.from_file_of_other_task(directory, TEMPORARY, made) as new:
        new.reopen(0)
        raise error
    assert (os.listdir(area) == []) == isinstance(error, Problem)


def test_file_other_than_the_created_one_is_not_reopened(area: Path, directory: int) -> None:
    with NewFile.create_temporary_file(directory, TEMPORARY) as begun:
        made = begun.file_identity(0)
        begun.close_without_removing()
    other = made._replace(inode=made.inode + 1)
    with (
        pytest.raises(Problem) as raised,
        NewFile.from_file_of_other_task(directory, TEMPORARY, ItemIdentity(*other)) as new,
    ):
        new.reopen(0)
    assert raised.value.errno == errno.ESTALE


def test_existing_name_is_not_touched(area: Path, directory: int) -> None:
    (area / "name").write_bytes(OLD)
    with pytest.raises(Problem) as raised:
        NewFile.create(directory, NAME)
    assert raised.value.errno == errno.EEXIST
    assert (area / "name").read_bytes() == OLD


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (LayoutRecipe(os.O_SYNC, ("lustre.lov", b"")), "not supported"),
        (LayoutRecipe(os.O_SYNC, ("user.layout", b"striped"), lambda back: f"it is {back.decode()}"), "it is striped"),
        (LayoutRecipe(fallback_reason="there is no such pool"), "no such pool"),
    ],
)
def test_file_is_created_without_an_unavailable_layout(
    area: Path, directory: int, recipe: LayoutRecipe, why: str
) -> None:
    with NewFile.create(directory, NAME, recipe) as new:
        assert why in new.layout_reason
        assert new.apply_metadata(ATTRIBUTES, PRESERVE, 0o022).layout_reason == new.layout_reason
        assert not fcntl.fcntl(new.descriptor, fcntl.F_GETFL) & os.O_SYNC
        new.close_without_removing()
    assert os.listdir(area) == ["name"]
    assert "user.layout" not in os.listxattr(area / "name")


def test_layout_is_set_before_the_first_write(area: Path, directory: int) -> None:
    with NewFile.create(directory, NAME, LAYOUT) as new:
        assert os.getxattr(new.descriptor, "user.layout") == b"striped"
        assert new.status.st_size == 0
        new.close_without_removing()


def test_failed_node_under_its_final_name_is_not_removed(area: Path, directory: int) -> None:
    """By then it is unknown whether the node is the created one."""
    status = os.stat_result((stat.S_IFIFO | MODE, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    source = LinkOrSpecialFile(status, ATTRIBUTES, b"")
    with (
        pytest.raises(RuntimeError),
        NewLinkOrSpecialFile.create_link_or_special_file(directory, NAME, source, is_temporary=False) as new,
    ):
        new.apply_metadata(ATTRIBUTES._replace(mode=stat.S_IFIFO | MODE, xattrs=()), PRESERVE, 0o022)
        raise RuntimeError
    assert os.listdir(area) == ["name"]


def test_file_written_in_place_stays_after_a_failed_task(area: Path, directory: int) -> None:
    (area / "name").touch(0o600)
    status = (area / "name").stat()
    made, before = ItemIdentity(0, status.st_ino), (status.st_mode, status.st_uid, status.st_gid)
    with (
        pytest.raises(Problem, match="is incomplete"),
        NewFile.from_file_of_other_task(directory, NAME, made, before) as new,
    ):
        new.reopen(0)
        raise Problem("read", errno.EIO, on_source=True)
    assert os.listdir(area) == ["name"]


@pytest.mark.parametrize("marked", [False, True])
def test_sidecar_of_a_replaced_file_is_removed(area: Path, directory: int, marked: bool) -> None:
    sidecar = os.fsdecode(incomplete_mark.sidecar_name(NAME))
    (area / sidecar).write_bytes(b"a mark")
    (area / "name").write_bytes(OLD)
    with NewFile.create_temporary_file(directory, TEMPORARY) as new:
        new.commit(NAME, (area / "name").stat(), has_sidecar=marked)
    assert (sidecar in os.listdir(area)) != marked


def test_failed_removal_does_not_hide_the_first_error(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(directory: int, name: bytes) -> None:
        raise Problem("unlink", errno.EPERM)

    monkeypatch.setattr("pcopy.fsio.new_file.remove_item_if_present", refused)
    directory = os.open(area, os.O_RDONLY)
    try:
        with pytest.raises(Problem) as raised, NewFile.create(directory, b"incomplete"):
            raise Problem("write", errno.ENOSPC)
    finally:
        os.close(directory)
    problem = raised.value
    assert (problem.operation, problem.errno) == ("write", errno.ENOSPC)
    assert "incomplete is left, since it cannot be removed (Operation not permitted)" in str(problem.strerror)
