"""``FinishDirs`` gives several directories below one directory their final metadata in one task, if possible by one
call of the backend (the code in C or Python that makes system calls for many items). ``FinishDir`` does so for one
directory.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from operator import and_

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.attributes import ItemMetadata, are_times_portable
from pcopy.fsio.backend.columns import INODE_COLUMN, ItemStatusColumns, OutcomeCode
from pcopy.fsio.backend.directory_batches import (
    DIRECTORY_METADATA_COLUMNS,
    HAS_COMPLETE,
    IS_COMPLETE,
    IS_NEW,
    IS_OWNED_BY_OTHER_USER,
    IS_TOUCHED,
    CopiedDirectories,
    DirectoryBatchSettings,
    FinishDirectoriesBatch,
)
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import SiblingDirectoriesTask
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.simple_directories import is_from_earlier_run, open_target_for_batch

DIRECTORIES_PER_ROW = 64
"""Number of directories that the backend finishes before the rank may handle messages. With threads, each is a row."""

_ACTION_BITS = 3
"""Number of bits of ``FinishDirs.states`` that an action has. A packed action with more bits, which also says what
differs, gets a task of its own.
"""

_ACTION_SHIFT = 3
"""Number of the bit in ``FinishDirs.states`` at which the number of the ``ItemAction`` begins. The bits below and above
it are flags.
"""

_COMPLETE, _HAS_COMPLETE = 64, 128
"""Flags in ``FinishDirs.states``: nothing had to be done in the directory and below; the same is true of directories
below it that are not in the task.
"""

_IS_DONE = bytes(code == OutcomeCode.DONE for code in range(256))
"""Table for ``bytes.translate``: 1 for the ``OutcomeCode`` of a directory that is done, 0 for others."""
_IS_NEW, _IS_UNCHANGED, _IS_CHANGED = (
    bytes(state & 1 for state in range(256)),
    bytes(bool(state & 4) for state in range(256)),
    bytes(not state & 4 for state in range(256)),
)
"""Tables for ``bytes.translate``, from states (``finish_state``) to 1 or 0."""


class FinishDirs(SiblingDirectoriesTask, code=9, doing="finishing directories in", is_note=False):
    """Task that gives directories below ``place`` their final metadata (owner, mode, ACLs, times), after everything in
    them was copied, and counts them as copied or skipped. If that fails for a directory, ``FinishDir`` handles it and
    reports the error.

    Fields (columns have one value for each directory):
        place: the directory that contains all of them.
        names: their paths relative to ``place``, joined by zero bytes. A directory precedes those below it.
        sources, targets: inode numbers of the source and of the target directories, packed.
        marks: file handle or time of birth that identifies each target directory together with its inode number
            (``pcopy.fsio.identity``), each preceded by its length in one byte.
        states: one byte each (``finish_state``).
        attributes: the metadata to set, packed columns (``DIRECTORY_METADATA_COLUMNS``: mode, owner, group, times).
    """

    sources: bytes
    targets: bytes
    marks: bytes
    states: bytes
    attributes: bytes

    @property
    def paths(self) -> list[bytes]:
        """Paths of the directories, relative to ``place``."""
        return self.names.split(b"\0")

    @property
    def item_count(self) -> int:
        return len(self.states)

    def task_for_some_directories(self, rows: Sequence[int]) -> FinishDirs:
        """Return a task for those directories only whose indices are ``rows``."""
        paths, marks, number = self.paths, unpack_marks(self.marks), self.item_count
        sources, targets = unpack_numbers(self.sources), unpack_numbers(self.targets)
        return FinishDirs(
            self.place,
            b"\0".join(paths[row] for row in rows),
            pack_numbers([sources[row] for row in rows]),
            pack_numbers([targets[row] for row in rows]),
            _pack_marks(marks[row] for row in rows),
            bytes(self.states[row] for row in rows),
            ItemStatusColumns.status_columns_from_bytes(self.attributes, number, DIRECTORY_METADATA_COLUMNS)
            .columns_of_selected_rows(rows)
            .status_columns_as_bytes(),
        )

    def single_directory_tasks(self) -> list[FinishDir]:
        """Return one ``FinishDir`` for each directory; together they do the same as this task."""
        columns = self.paths, unpack_numbers(self.sources), unpack_numbers(self.targets), unpack_marks(self.marks)
        rows = ItemStatusColumns.status_columns_from_bytes(self.attributes, self.item_count, DIRECTORY_METADATA_COLUMNS)
        attributes_of_rows = zip(rows.mode, rows.uid, rows.gid, rows.atime, rows.mtime, strict=True)
        parent, source_mount, target_mount = (
            self.place,
            self.place.source_id.mount_code,
            self.place.target_id.mount_code,
        )
        finishes = []
        for name, source, target, mark, state, fields in zip(*columns, self.states, attributes_of_rows, strict=True):
            place = Place(
                parent.root,
                os.path.join(parent.path, name),
                ItemIdentity(source_mount, source),
                ItemIdentity(target_mount, target, mark),
                bool(state & 1),
                bool(state & 2),
                parent.first_run,
                bool(state & 4),
            )
            finishes.append(
                FinishDir(
                    place, ItemMetadata(*fields), True, -1,
                    action=_action_of_state(state), checks_below=bool(state & _HAS_COMPLETE),
                )
            )  # fmt: skip
        return finishes

    def has_all_targets(self, top: int, path: bytes) -> bool:
        """Return True if all target directories exist with the recorded inode numbers. ``path`` is the path of
        ``place`` below the open directory ``top``.
        """
        with suppress(OSError):
            device = os.stat(path or b".", dir_fd=top, follow_symlinks=False).st_dev
            found = (os.stat(os.path.join(path, name), dir_fd=top, follow_symlinks=False) for name in self.paths)
            return all(
                (status.st_dev, status.st_ino) == (device, inode)
                for status, inode in zip(found, unpack_numbers(self.targets), strict=True)
            )
        return False

    def carried_tasks(self) -> Iterator[FinishDir]:
        return iter(self.single_directory_tasks())

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Give the directories their metadata by one batch of the backend. Those for which the backend cannot do so are
        handled one by one.
        """
        codes = yield from self._finish_subdirectories(rank)
        is_done = codes.translate(_IS_DONE)
        if len(self.states) != len(is_done):
            raise ValueError(f"there are {len(is_done)} codes for {len(self.states)} directories")
        changed, unchanged = self.states.translate(_IS_CHANGED), self.states.translate(_IS_UNCHANGED)
        if 0 in is_done:
            changed, unchanged = (bytes(map(and_, is_done, column)) for column in (changed, unchanged))
        columns: dict[int, Sequence[int]] = {counts.DIRECTORIES: changed, counts.SKIPPED: unchanged}
        result.count_in_directories(self.place, self.names, columns)
        if result.item_recorder.is_recording:
            self._record_outcomes(result, is_done)
        if 0 not in is_done:
            return
        for finish, done in zip(self.single_directory_tasks(), is_done, strict=True):
            if not done:
                result.set_counted_directory(finish.place.key)
                yield from finish.run(rank, result)
                yield None
        result.reset_counted_directory()

    def _record_outcomes(self, result: TaskResult, is_done: bytes) -> None:
        """Record the outcome of those directories that have a 1 in ``is_done``, those below a directory before it."""
        place = self.place
        for path, state in reversed([*compress(zip(self.paths, self.states, strict=True), is_done)]):
            above, _, name = path.rpartition(b"/")
            parent = place._replace(path=place.path_of(above)) if above else place
            result.item_recorder.record_item_outcome(ItemAction(_action_of_state(state)), parent, name, DIRECTORY)

    def _finish_subdirectories(self, rank: Rank) -> TicketGenerator[bytes]:
        """Give as many directories as possible their metadata by one batch. Return the ``OutcomeCode`` of each
        directory, which says what was done.

        Directories in and below which nothing had to be done are omitted in the run that has scanned them. In a later
        run, the slow path examines all directories that the job has not created.
        """
        is_resumed = is_from_earlier_run(rank, self.place)
        rows = [row for row, state in enumerate(self.states) if (state & 1 if is_resumed else not state & _COMPLETE)]
        if len(rows) == self.item_count:
            return (yield from self._finish_subdirectories_in_batch(rank, is_resumed=is_resumed))
        codes = bytearray((0 if is_resumed else OutcomeCode.DONE,)) * self.item_count
        if rows:
            task = self.task_for_some_directories(rows)
            found = yield from task._finish_subdirectories_in_batch(rank, is_resumed=is_resumed)
            for row, code in zip(rows, found, strict=True):
                codes[row] = code
        return bytes(codes)

    def _finish_subdirectories_in_batch(self, rank: Rank, *, is_resumed: bool) -> TicketGenerator[bytes]:
        """Give as many directories as possible their metadata by one batch. Return the ``OutcomeCode`` of each
        directory, which says what was done; all are 0 if the batch cannot be used.

        Args:
            is_resumed: True if an earlier run may have created items in the directories: then they are compared with
                their sources.
        """
        place, number = self.place, self.item_count
        target = open_target_for_batch(rank, place, self.paths)
        if target is None:
            return bytes(number)
        try:
            source = rank.open_source_directory(place) if is_resumed else target
        except Problem:  # the slow path decides for each directory whether that matters
            return bytes(number)
        rows = ItemStatusColumns.status_columns_from_bytes(self.attributes, number, DIRECTORY_METADATA_COLUMNS)
        rows.mask |= INODE_COLUMN
        rows.inode = unpack_numbers(self.targets)
        fresh, sources = self.states.translate(_IS_NEW), unpack_numbers(self.sources)
        common = DirectoryBatchSettings(*rank.source_and_target_device(place), is_resumed=is_resumed)
        at_once = DIRECTORIES_PER_ROW if rank.backend.runs_in_poll else 1
        batch = FinishDirectoriesBatch(source, target, sources, self.names, rows, self.marks, fresh, common, at_once)
        finished = yield from rank.execute_batch(batch)
        return finished.codes


def finish_state(*, is_new: bool, inherits_acl: bool, is_unchanged: bool, action: int = 0) -> int:
    """Return what a ``FinishDirs`` task has to know of a directory besides its metadata, as a byte.

    Bit 0 is 1 if this job created the directory, bit 1 if items that are created in it inherit ACLs, bit 2 if its
    metadata were right before the job (``Place.is_unchanged``). The next bits have the number of the ``ItemAction``
    that is reported. The bits above these are ``_COMPLETE`` and ``_HAS_COMPLETE``.
    """
    return is_new + 2 * inherits_acl + 4 * is_unchanged + (action << _ACTION_SHIFT)


_STATE_OF_FLAGS = [
    finish_state(is_new=bool(flags & IS_NEW), inherits_acl=bool(flags & IS_OWNED_BY_OTHER_USER), is_unchanged=False)
    + (_COMPLETE if flags & IS_COMPLETE else 0)
    + (_HAS_COMPLETE if flags & HAS_COMPLETE else 0)
    for flags in range(256)
]
"""State of a directory that the backend has entered, by its flags."""


def _action_of_state(state: int) -> int:
    """Return the number of the ``ItemAction`` in a byte that ``finish_state`` has made."""
    return state >> _ACTION_SHIFT & (1 << _ACTION_BITS) - 1


def _pack_marks(marks: Iterable[bytes]) -> bytes:
    """Return identity marks as one string: each is preceded by its length in one byte."""
    return b"".join(bytes((len(mark),)) + mark for mark in marks)


def unpack_marks(packed: bytes) -> list[bytes]:
    """Return the marks that ``_pack_marks`` has packed."""
    marks, at = [], 0
    while at < len(packed):
        end = at + 1 + packed[at]
        marks.append(packed[at + 1 : end])
        at = end
    return marks


class SubdirectoryFinishCollector:
    """Collects directories below one directory that shall get their final metadata, and spawns one ``FinishDirs`` task
    for all of them. In a resumed job there are two: directories in which earlier runs have certainly created nothing
    need not be examined when they are finished in the same run.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._touched = _FinishColumns()
        self._untouched = _FinishColumns()

    def add(self, result: TaskResult, finish: FinishDir) -> None:
        """Add the directory of the task ``finish`` to the task for all directories. If its values do not fit into the
        columns of that task, spawn ``finish`` itself.
        """
        parent, place, attributes = self._place, finish.place, finish.attributes
        above, _, name = place.path.rpartition(b"/")
        mounts = place.source_id.mount_code, place.target_id.mount_code
        if (
            attributes is None
            or attributes.xattrs
            or attributes.unread
            or not are_times_portable(attributes.atime, attributes.mtime)
            or finish.action >> _ACTION_BITS
            or (finish.counts_as_copied, finish.source_entries, finish.is_again) != (True, -1, False)
            or (above, *mounts) != (parent.path, parent.source_id.mount_code, parent.target_id.mount_code)
            or place.first_run != parent.first_run
        ):
            result.spawn_task(finish, phase=Phase.FINISH)
            return
        state = finish_state(
            is_new=place.is_new,
            inherits_acl=place.inherits_acl,
            is_unchanged=place.is_unchanged,
            action=finish.action,
        )
        self._touched.add_subdirectory(name, place, attributes, state + finish.checks_below * _HAS_COMPLETE)

    def add_entered_directories(
        self, rank: Rank, entered: CopiedDirectories, unchanged: Collection[int], actions: Mapping[int, int]
    ) -> list[int]:
        """Add directories that the backend has entered, all of which are simple. Return the numbers of those that need
        tasks of their own, because their actions do not fit into the columns.

        Args:
            unchanged: numbers of those whose metadata were right before the job.
            actions: packed actions that are reported for them, by number; COPY for others.
        """
        states = bytearray(map(_STATE_OF_FLAGS.__getitem__, entered.flags))
        for number in unchanged:
            states[number] |= finish_state(is_new=False, inherits_acl=False, is_unchanged=True)
        alone = [number for number, action in actions.items() if action >> _ACTION_BITS]
        for number, action in actions.items():
            states[number] |= 0 if action >> _ACTION_BITS else action << _ACTION_SHIFT
        is_resumed = is_from_earlier_run(rank, self._place)
        if not (is_resumed or alone):
            self._touched.add_all(entered, states)
            return []
        marks, rows = unpack_marks(entered.marks), sorted({*range(len(states))}.difference(alone))
        touched = [row for row in rows if not is_resumed or entered.flags[row] & IS_TOUCHED]
        self._touched.add_some(entered, states, marks, touched)
        self._untouched.add_some(entered, states, marks, sorted({*rows}.difference(touched)))
        return alone

    def spawn_finish_tasks(self, rank: Rank, result: TaskResult) -> None:
        """Spawn tasks in the phase FINISH for all directories that were added; none if there are none."""
        self._touched.spawn_finish_task(result, self._place)
        self._untouched.spawn_finish_task(result, self._place._replace(first_run=(rank.job.run, rank.job.resumed)))


class _FinishColumns:
    """The columns of a ``FinishDirs`` task."""

    def __init__(self) -> None:
        self._paths: list[bytes] = []
        self._sources, self._targets = array("Q"), array("Q")
        self._marks: list[bytes] = []
        self._states = bytearray()
        self._rows = ItemStatusColumns(0, DIRECTORY_METADATA_COLUMNS)

    def add_subdirectory(self, name: bytes, place: Place, attributes: ItemMetadata, state: int) -> None:
        """Add a subdirectory.

        Args:
            name: name of the subdirectory.
            place: the subdirectory.
            attributes: the metadata to set. The times must be such that every file system can store them.
            state: a byte (``finish_state``).
        """
        self._paths.append(name)
        self._sources.append(place.source_id.inode)
        self._targets.append(place.target_id.inode)
        self._marks.append(_pack_marks([place.target_id.mark]))
        self._states.append(state)
        rows = self._rows
        rows.mode.append(attributes.mode)
        rows.uid.append(attributes.uid)
        rows.gid.append(attributes.gid)
        rows.atime.append(attributes.atime)
        rows.mtime.append(attributes.mtime)
        rows.row_count += 1

    def add_all(self, entered: CopiedDirectories, states: bytearray) -> None:
        """Add all directories that the backend has entered. ``states`` has a byte for each (``finish_state``)."""
        self._paths.append(entered.packed_paths[:-1])
        self._sources += entered.sources
        self._targets += entered.targets
        self._marks.append(entered.marks)
        self._states += states
        self._add_rows(entered.metadata)

    def add_some(
        self, entered: CopiedDirectories, states: bytearray, marks: Sequence[bytes], numbers: Sequence[int]
    ) -> None:
        """Add those directories that have these ``numbers``. ``marks`` are the identity marks of all."""
        paths = entered.packed_paths.split(b"\0")
        self._paths += [paths[number] for number in numbers]
        self._sources.extend(entered.sources[number] for number in numbers)
        self._targets.extend(entered.targets[number] for number in numbers)
        self._marks.append(_pack_marks(marks[number] for number in numbers))
        self._states += bytes(states[number] for number in numbers)
        self._add_rows(entered.metadata.columns_of_selected_rows(numbers))

    def _add_rows(self, metadata: ItemStatusColumns) -> None:
        """Add rows of metadata to the columns."""
        rows = self._rows
        rows.mode += metadata.mode
        rows.uid += metadata.uid
        rows.gid += metadata.gid
        rows.atime += metadata.atime
        rows.mtime += metadata.mtime
        rows.row_count += len(metadata)

    def spawn_finish_task(self, result: TaskResult, place: Place) -> None:
        """Spawn one task in the phase FINISH for all directories that were added; none if there are none. ``place`` is
        the directory that contains all of them.
        """
        if not self._paths:
            return
        sources, targets = self._sources.tobytes(), self._targets.tobytes()
        columns = sources, targets, b"".join(self._marks), bytes(self._states), self._rows.status_columns_as_bytes()
        result.spawn_task(FinishDirs(place, b"\0".join(self._paths), *columns), phase=Phase.FINISH)
