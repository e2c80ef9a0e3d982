"""A rank that cannot compare a directory of the source stops the deletion (``--delete``) on the other ranks, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pcopy.engine.task import ANY_RANK, NewTask, Task
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, pack_numbers
from pcopy.tasks.remove.delete_extra import DeleteExtraItems, DeleteExtraNames
from pcopy.tasks.remove.remove_tree import RemoveNamedItems
from pcopy.tasks.remove.stop_deletion import StopDeletion
from pcopy.tasks.runner import TaskRunner
from tests.support.command import REPOSITORY, Argument, mpiexec, pcopy, show
from tests.support.files import write
from tests.tasks.one_rank import RecordingSink, outcome, root_of, surroundings

FAILED = 1
RANKS = 3
DIRECTORIES = 120


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    """Directories with one file each; the copy has another one in each."""
    for side in ("source", "copy"):
        for number in range(DIRECTORIES):
            write(area / side / f"{number:03}/file", b"content")
    for number in range(DIRECTORIES):
        write(area / "copy" / f"{number:03}/extra", b"content")
    return area / "source", area / "copy"


def extras(copy: Path) -> set[str]:
    return {path.parent.name for path in copy.glob("*/extra")}


@pytest.mark.parametrize("launcher", [None, "mpi"])
@pytest.mark.parametrize("words", [(), ("--max-delete", "1000")], ids=["mirror", "max-delete"])
def test_all_ranks_stop_deleting_when_one_misses_a_source_directory(
    area: Path, trees: tuple[Path, Path], words: tuple[str, ...], launcher: str | None
) -> None:
    """Rank 1 cannot find the directory while ranks 0 and 2 hold most of the other ones. Without a message they would
    delete from all."""
    source, copy = trees
    place = area / "place"
    place.mkdir()
    job: list[Argument] = ["--mirror", *words, f"{source}/", copy]
    script: list[Argument] = [sys.executable, REPOSITORY / "tests/support/loses_source.py", place]
    if launcher is None:
        done = pcopy(*job, ranks=RANKS, wrap=script)
    else:
        done = pcopy(*job, wrap=[mpiexec(), "-n", str(RANKS), *script])
    assert done.returncode == FAILED, show(done)
    (lost,) = {f"{number:03}" for number in range(DIRECTORIES)} - {path.name for path in source.iterdir()}
    assert b"%b/%b: " % (bytes(source), lost.encode()) in done.stderr, show(done)
    left = extras(copy)
    assert lost in left and len(left) > DIRECTORIES * 2 // 3, f"{len(left)} left: {show(done)}"


class Three:
    """The ranks of a job in this process: a test runs tasks on them one by one."""

    def __init__(self, ranks: list[tuple[Rank, RecordingSink]]) -> None:
        self.results = [result for _, result in ranks]
        self.ranks = [rank for rank, _ in ranks]
        self._runners = [TaskRunner(rank) for rank in self.ranks]

    def run(self, number: int, value: TaskKind, phase: int = Phase.DELETE) -> list[NewTask]:
        """Return what the task ``value`` spawns on a rank."""
        spawned: list[NewTask] = outcome(
            self._runners[number], Task((1, number, 1), phase, encode_task(value), 0)
        ).spawned
        return spawned

    def compared(self, number: int, name: str) -> RemoveNamedItems:
        """Return the task that deletes what is extra in the directory ``name``."""
        tasks = (decode_task(spawn.payload) for spawn in self.run(number, DeleteExtraItems(directory(name))))
        (removal,) = (task for task in tasks if isinstance(task, RemoveNamedItems))
        return removal

    def deliver(self, spawned: list[NewTask]) -> list[int]:
        """Run each task that is addressed to a rank there; return these ranks."""
        addressed = [spawn for spawn in spawned if spawn.owner != ANY_RANK]
        for spawn in addressed:
            self.run(spawn.owner, decode_task(spawn.payload), spawn.phase)
        return [spawn.owner for spawn in addressed]


@pytest.fixture
def three(trees: tuple[Path, Path]) -> Iterator[Three]:
    with ExitStack() as stack:
        options, program = Options(preserve=PreservedMetadataKinds(), sync=False), CopyOptions(delete=True)
        made = [
            stack.enter_context(surroundings([root_of(*trees)], options, RANKS, n, program=program))
            for n in range(RANKS)
        ]
        yield Three(made)


def directory(name: str) -> Place:
    return Place(0, name.encode(), NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)


def test_stop_message_ends_deletion_tasks_of_other_ranks(trees: tuple[Path, Path], three: Three) -> None:
    """Rank 1 notices the missing directory. Ranks 0 and 2 hold a directory to be compared, a part of a large one, and
    names that were compared already."""
    source, copy = trees
    names = [three.compared(0, "000"), three.compared(2, "001")]
    assert len(extras(copy)) == DIRECTORIES
    (source / "007").rename(source / "lost")
    assert sorted(three.deliver(three.run(1, DeleteExtraItems(directory("007"))))) == [
        0,
        0,
        2,
    ]  # one reports the failure
    assert [failure.path for failure in three.results[0].failed] == [bytes(source / "007")]
    part = DeleteExtraNames(directory("002"), b"extra/file", b"ff", pack_numbers([0, 0]))
    for number, own in ((0, names[0]), (2, names[1])):
        for value in (own, part, DeleteExtraItems(directory("003"))):
            assert three.run(number, value) == [], value
    assert extras(copy) == {f"{number:03}" for number in range(DIRECTORIES)}


def test_stop_message_of_an_earlier_run_has_no_effect(trees: tuple[Path, Path], three: Three) -> None:
    three.run(0, StopDeletion(of_run=0))
    three.run(0, three.compared(0, "000"))
    assert "000" not in extras(trees[1])
