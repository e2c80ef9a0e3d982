"""FinishRecoded: a large file whose parts are all written gets its seek table, its metadata and its name."""

from __future__ import annotations

import time
from array import array
from collections.abc import Generator

from pcopy.fsio.attributes import read_attributes
from pcopy.fsio.data import set_size
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.passage import write_all
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import Frame, seek_table
from pcopy.fsio.source import check_unchanged
from pcopy.fsio.temporary import made_by
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import How
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.storing import stored
from pcopy.tasks.base.values import Known, OpenFile, Place
from pcopy.tasks.files.finish_file import Opened, discard
from pcopy.tasks.files.layouts import layout_at, tell_layout
from pcopy.tasks.recode.goal import checked, commit, goal_of


class OfRecoded(Kind):
    """It is about a large file that is recoded in parts; the temporary one has ``room`` bytes until it is finished."""

    file: OpenFile
    room: int

    def about(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    @property
    def attempt(self) -> int:
        return self.file.item.attempt

    def is_of(self, rank: Rank) -> bool:
        """Has this run made it, or an earlier one?"""
        return made_by(self.file.temporary)[0] == rank.job.run


class FinishRecoded(OfRecoded, code=176, doing="finishing", is_note=True):
    """``frames``: packed, the bytes of each in the file and in the source, where that is compressed; the ``digest`` is
    the source's."""

    frames: bytes
    digest: bytes

    may_be_dropped = True

    def discard(self, rank: Rank, since: int) -> None:
        if made_by(self.file.temporary)[0] >= since:
            discard(rank, self.file)

    def run(self, rank: Rank, result: Result) -> Steps:
        """In one slice but for the wait for storage; the source must still be of the version that its parts were read
        from."""
        file, (place, name) = self.file, self.file.item.names[0]
        now = time.monotonic_ns()
        took = now - rank.own(Opened).pop(file.temporary, now)
        try:
            there = yield from _finish(self, rank, result)
        except Problem as problem:
            recoding_failed(rank, result, file, problem)
            return
        known = Known(FILE, file.version.size, self.digest, file.version)
        result.copied(place, name, known, how=How.over(there, took))


def recoding_failed(rank: Rank, result: Result, file: OpenFile, problem: Problem) -> None:
    """What an earlier run began, and left in another state than was on record, was no attempt of this one's."""
    item = file.item
    attempt = 0 if made_by(file.temporary)[0] < rank.job.run else item.attempt
    failed_or_retried(result, item.place, item.name, problem, attempt, item.size)


def _finish(task: FinishRecoded, rank: Rank, result: Result) -> Generator[None, None, object]:
    """Returns what has been replaced, or None; raises ``Problem``."""
    file, item = task.file, task.file.item
    with (
        checked(rank, item) as (reading, status),
        NewFile.again(rank.open_target(item.place), file.temporary, file.made) as new,
    ):
        check_unchanged(reading, file.version)
        goal = goal_of(rank, item)
        if goal.present is not None:
            goal.present.refuse_anothers()
        new.reopen(task.room, file.shown)
        if rank.options.compress:
            numbers = array("Q", task.frames)
            end, table = sum(numbers[::2]), seek_table([*map(Frame, numbers[::2], numbers[1::2])])
            write_all(new.descriptor, table, end)
            set_size(new.descriptor, end + len(table))
        recipe = goal.recipe(reading, status)
        layout = layout_at(rank, item.place).text_of_file(new.descriptor, recipe, goal.target)
        attributes = read_attributes(reading, status, rank.options.preserve)
        if not rank.syncs_items(item.place):
            yield from stored(rank, new)
        commit(result, goal, item, new, status, attributes)
    if layout:
        tell_layout(rank, result, layout)
    return goal.present
