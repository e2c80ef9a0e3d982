"""The walk that programs on trees share: which directories become rows of a call, which are entered by the slow path,
and which are left to new tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode
from pcopy.fsio.backend.walk_batches import RemainingItems, SubtreeFrontier, WalkResult
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.sibling_directories import DirectoriesPerCall, Siblings
from pcopy.tasks.base.tree_walk import TreeWalk
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place

PARENT = Place(0, b"top", ItemIdentity(3, 7), NO_DIRECTORY_IDENTITY, False, False)
CODES = {b"s": OutcomeCode.SLOW_PATH, b"c": OutcomeCode.CANCELLED}


class RecordingWalk(TreeWalk):
    """Records what is done. In the first call of the backend that has them, directories ``s…`` are left to the slow
    path, and directories ``c…`` are not begun. The first row of the first call has ``frontier`` below it.
    """

    def __init__(self, *, has_plenty: bool, frontier: Sequence[RemainingItems] = ()) -> None:
        per_call = DirectoriesPerCall()
        per_call.number = 64
        self.counted: Counter[int] = Counter()
        self.tasks: list[Siblings] = []
        rank: Any = SimpleNamespace(
            shared_instance=lambda kind: per_call,
            stop_reason=None,
            all_ranks_have_work=lambda: has_plenty,
            total_task_slots=lambda: 2,
            backend=SimpleNamespace(runs_in_poll=True),
        )
        result: Any = SimpleNamespace(
            count=lambda counter, number: self.counted.update({counter: number}),
            spawn_task=lambda task, cost, expands: self.tasks.append(task),
        )
        super().__init__(rank, result)
        self.calls: list[list[bytes]] = []
        self.entered: list[bytes] = []
        self.visited: list[list[bytes]] = []
        self.left: list[tuple[bytes, list[bytes], bytes]] = []
        self.frontier = frontier
        self.problem: Problem | None = None

    def may_be_rows(self, found: Siblings) -> bool:
        return True

    def open_parent(self, parent: Place) -> Sequence[int]:
        if self.problem:
            raise self.problem
        return (0,)

    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> Generator[None, None, WalkResult]:
        yield None
        verdicts = BatchOutcomeColumns(len(found.names))
        for row, name in enumerate(found.names):
            is_again = any(name in call for call in self.calls)
            verdicts.codes[row] = OutcomeCode.DONE if is_again else CODES.get(name[:1], OutcomeCode.DONE)
        self.calls.append([*found.names])
        frontiers = {0: SubtreeFrontier([b"d"], [8], [0], self.frontier)} if self.frontier else {}
        self.frontier = ()
        return WalkResult(verdicts, ItemCounts(), frontiers)

    def enter_directory(self, parent: Place, name: bytes, inode: int, other_inode: int) -> Generator[None, None, None]:
        yield None
        self.entered.append(name)

    def visit_directories(self, found: Siblings) -> Generator[None, None, None]:
        yield None
        self.visited.append([*found.names])

    def process_remaining_items(self, found: Siblings) -> Generator[None, None, None]:
        yield None
        self.left.append((found.parent.path, [*found.names], found.kinds))

    def new_task(self, found: Siblings) -> Any:
        return found

    def walk(self, *names: bytes, are_visited: bool = True) -> None:
        """Walk directories with these names, which were found by this task."""
        self.add(Siblings(PARENT, names, range(len(names)), are_visited=are_visited))
        for _ in self.enter_directories_while_others_work():
            pass


def test_task_enters_all_directories_while_all_ranks_have_work() -> None:
    walk = RecordingWalk(has_plenty=True)
    walk.walk(b"d0", b"s1", b"c2", b"s3", b"c4")
    assert walk.calls == [[b"d0", b"s1", b"c2", b"s3", b"c4"], [b"c2", b"c4"]]
    assert walk.entered == [b"s1", b"s3"]
    assert not walk.tasks
    assert walk.counted[counts.UNSCANNED] == 0


def test_other_ranks_get_what_remains_after_one_call_if_they_are_idle() -> None:
    """Those that the backend could not process are not tried as rows again."""
    walk = RecordingWalk(has_plenty=False)
    walk.walk(b"d0", b"s1", b"c2", b"s3", b"c4")
    assert (len(walk.calls), walk.entered) == (1, [b"s1"])
    assert sorted((*found.names, found.are_simple) for found in walk.tasks) == [
        (b"c2", True),
        (b"c4", True),
        (b"s3", False),
    ]
    assert walk.counted[counts.UNSCANNED] == 3


def test_directories_that_were_not_visited_are_visited_together() -> None:
    walk = RecordingWalk(has_plenty=True)
    walk.walk(b"s0", b"d1", b"s2", are_visited=False)
    assert (walk.visited, walk.entered, walk.tasks) == ([[b"s0", b"s2"]], [], [])
    assert walk.counted[counts.UNSCANNED] == 0


def test_slow_path_reports_why_the_parent_cannot_be_opened() -> None:
    walk = RecordingWalk(has_plenty=True)
    walk.problem = Problem("open", 13)
    walk.walk(b"d0", b"d1")
    assert (walk.calls, sorted(walk.entered)) == ([], [b"d0", b"d1"])


@pytest.mark.parametrize("visits_on_entry", [False, True])
def test_frontier_is_divided_into_directories_to_enter_and_other_items(
    monkeypatch: pytest.MonkeyPatch, visits_on_entry: bool
) -> None:
    monkeypatch.setattr(RecordingWalk, "visits_on_entry", visits_on_entry)
    walk = RecordingWalk(
        has_plenty=False, frontier=[RemainingItems(b"d/below", 9, [b"x", b"e", b"y"], [1, 2, 3], b"?d!")]
    )
    walk.walk(b"d0")
    assert walk.left == [(b"top/d/below", [b"x", b"y"], b"?!")]
    (task,) = walk.tasks
    assert (task.parent.path, task.parent.source_id, [*task.names]) == (b"top/d/below", ItemIdentity(3, 9), [b"e"])
    assert ([*task.inodes], task.are_visited, task.are_simple) == ([2], not visits_on_entry, True)
    assert walk.counted[counts.UNSCANNED] == 1
