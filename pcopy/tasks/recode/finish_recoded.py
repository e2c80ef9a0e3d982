"""Completion of a large file that was recoded in parts: after the last part it gets its seek table, metadata and name.

To recode a file is to compress or to decompress it while it is copied.
"""

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
    """Base of the tasks about a large ``file`` that is recoded in parts.

    Until the file is finished, its temporary file has ``room`` bytes.
    """

    file: OpenFile
    room: int

    def about(self) -> tuple[Place, bytes]:
        """Return the directory and the name of the file."""
        return self.file.item.names[0]

    @property
    def attempt(self) -> int:
        """The number of the attempt to copy the file, counted from 0."""
        return self.file.item.attempt

    def is_of(self, rank: Rank) -> bool:
        """Return True if this run has created the temporary file, and not an earlier one."""
        return made_by(self.file.temporary)[0] == rank.job.run


class FinishRecoded(OfRecoded, code=176, doing="finishing", is_note=True):
    """Task that finishes a large file whose parts are all written.

    Fields:
      frames: for compression, packed: the bytes of each frame in the file, and in the source.
      digest: the digest of the source; empty if digests are not computed.
    """

    frames: bytes
    digest: bytes

    may_be_dropped = True

    def discard(self, rank: Rank, since: int) -> None:
        """Remove the temporary file, if the run ``since`` or a later one has created it."""
        if made_by(self.file.temporary)[0] >= since:
            discard(rank, self.file)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Finish the file, in one slice except for the wait for stable storage, and count it.

        It fails if the source has changed since its parts were read.
        """
        file, (place, name) = self.file, self.file.item.names[0]
        now = time.monotonic_ns()
        took = now - rank.own(Opened).pop(file.temporary, now)
        try:
            replaced = yield from _finish(self, rank, result)
        except Problem as problem:
            recoding_failed(rank, result, file, problem)
            return
        known = Known(FILE, file.version.size, self.digest, file.version)
        result.copied(place, name, known, how=How.over(replaced, took))


def recoding_failed(rank: Rank, result: Result, file: OpenFile, problem: Problem) -> None:
    """Report that a file could not be recoded, or try again.

    If an earlier run has created its temporary file, this failure does not count as an attempt of this run: the state
    of that file may differ from the records.
    """
    item = file.item
    attempt = 0 if made_by(file.temporary)[0] < rank.job.run else item.attempt
    failed_or_retried(result, item.place, item.name, problem, attempt, item.size)


def _finish(task: FinishRecoded, rank: Rank, result: Result) -> Generator[None, None, object]:
    """Write the seek table, apply the metadata and rename the file; return the item that it has replaced, or None.

    Raise ``Problem`` if that fails.
    """
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
