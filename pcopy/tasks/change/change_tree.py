"""ChangeMetadataOfItems and ChangeMetadataInDirectories: change modes, owners or ACLs of everything in a tree (pchmod).

A directory is changed before it is entered, since it may gain the permissions that entering needs. A directory to which
the change may deny this process access is changed after everything below it (``pcopy.tasks.listed.deepest_first``).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ALL_LEVELS, ItemCounts, ListNamesResult
from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    OWNER_COLUMN,
    BatchOutcomeColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.walk_batches import ChangeTreesBatch, ChangeTreesResult, RemainingItems
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import EXCHANGED_TEXT, Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    call_deadline,
    directory_slices_per_task,
    enters_several_per_call,
    problem_of_replaced_directory,
)
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, pack_numbers, unpack_numbers
from pcopy.tasks.change.intended_metadata import WantedMetadata
from pcopy.tasks.listed.deepest_first import open_checked_directory
from pcopy.walk.listing import (
    NAMES_PER_BATCH,
    DirectoryListing,
    NameBatchQueue,
    list_directory,
    queue_names_of_directory,
    unpack_name_batch,
)
from pcopy.walk.visitor import DirectoryVisitor, stat_and_visit_names

MOUNT_POINT = 0
"""Value in place of a directory's inode number: a file system is mounted on the directory. It is entered
nevertheless.
"""
MAX_NAMES_IN_SUBTREE = 1000
"""Maximum number of entries of a directory that one call of the backend changes as part of a subtree. A larger one is
divided into tasks.
"""
_REPLACED_LETTER, _WAITING_LETTER, _UNKNOWN_LETTER, _DIRECTORY_LETTER = b"!x?d"
"""Letters of items that the backend has not changed (``ChangeTreesBatch``)."""


class ChangeMetadataOfItems(DivisibleTask, code=115, doing="changing", is_note=False):
    """Task that changes the items ``names`` (joined by slashes) of a directory, and everything below those that are
    directories.

    ``kinds`` (type letters) and ``inodes`` (8 bytes each) come from the listing of the directory; both are empty if
    they are unknown.
    """

    kinds: bytes = b""
    inodes: bytes = b""
    columns = ("kinds", "inodes")
    min_items_per_portion = 16
    is_respawned_on_resume = True
    is_counted_if_unfinished = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Change the items, then the contents of the directories among them."""
        try:
            directory = open_checked_directory(rank, self.place)
        except Problem as problem:
            for name in unpack_names(self.names):
                result.count_item_as_failed(self.place, name, problem, retry=RetryMode.BY_REPEATED_PHASE)
            return
        listed = ListNamesResult(BatchOutcomeColumns(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        tree = _TreeChanger(rank, result)
        if self.kinds and tree.can_change_subtrees(self.place):
            yield from tree.change_items_with_contents(self.place, listed)
        else:
            yield from tree.change_listed_items(self.place, directory, listed)
        yield from tree.enter_directories_while_others_work()


class ChangeMetadataInDirectories(DivisibleTask, code=116, doing="changing", is_note=False):
    """Task that changes the contents of the directories ``names`` (joined by slashes) of ``place``. ``inodes`` are
    their inode numbers (8 bytes each) or ``MOUNT_POINT``.

    If ``is_changed`` is true, the directories themselves have been counted already, and changed if that was possible. A
    directory that cannot be read counts a second time, as failed, for its unseen contents. If it is false, the task
    changes the directories, too.
    """

    inodes: bytes
    is_changed: bool = True

    columns = ("inodes",)
    min_items_per_portion = 2
    is_respawned_on_resume = True
    is_counted_if_unfinished = True
    estimated_operations = 0

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        tree = _TreeChanger(rank, result)
        tree.add(self.place, unpack_names(self.names), unpack_numbers(self.inodes), is_changed=self.is_changed)
        yield from tree.enter_directories_while_others_work()


class _Directories(NamedTuple):
    """Directories with the same parent whose contents have not been processed yet.

    Fields:
        parent: the parent.
        names: their names.
        inodes: their inode numbers, or ``MOUNT_POINT``.
        is_changed: True if they have been counted, and changed if that was possible. False if they must be changed,
            too.
        is_simple: False if the backend could not process them as rows of a batch.
    """

    parent: Place
    names: Sequence[bytes]
    inodes: Sequence[int]
    is_changed: bool
    is_simple: bool


class _TreeChanger:
    """Changes the items of one task and of the directories below them, while all other ranks have work, too. For the
    remaining directories it spawns tasks.
    """

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._remaining: list[_Directories] = []
        self._deadline = time.monotonic() + MAX_TASK_SECONDS
        self._has_begun = False
        """True if the task has changed something. Before that it continues even if other ranks are idle."""

    def add(self, parent: Place, names: Sequence[bytes], inodes: Sequence[int], *, is_changed: bool = True) -> None:
        """Add directories whose contents must be processed (``_Directories``)."""
        if names:
            self._remaining.append(_Directories(parent, names, inodes, is_changed, True))

    def enter_directories_while_others_work(self) -> TaskSteps:
        """Process the contents of directories while all other ranks have work. Then spawn tasks for the remaining
        directories.
        """
        remaining = self._remaining
        while remaining and (not self._has_begun or self._should_enter_more_directories()):
            self._has_begun = True
            group = remaining.pop()
            parent, names, inodes, is_changed, is_simple = group
            if is_simple and self.can_change_subtrees(parent):
                yield from self._change_subtrees(parent, names, inodes, is_changed=is_changed)
                continue
            if len(names) > 1:
                remaining.append(group._replace(names=names[1:], inodes=inodes[1:]))
            if is_changed:
                yield from self._enter_directory(parent, names[0], inodes[0])
            else:
                yield from self._change_directories(parent, names[:1], inodes[:1])
        for group in remaining:
            self._spawn_directory_tasks(group)

    def _should_enter_more_directories(self) -> bool:
        """Return True if the task should enter another directory itself: its time is not over, the job is not being
        stopped, and all other ranks have work.
        """
        rank = self._rank
        return time.monotonic() < self._deadline and rank.stop_reason is None and rank.all_ranks_have_work()

    def _spawn_directory_tasks(self, group: _Directories) -> None:
        """Spawn tasks that process the contents of directories."""
        for share in directory_slices_per_task(self._rank, len(group.names)):
            task = ChangeMetadataInDirectories(
                group.parent, pack_names(group.names[share]), pack_numbers([*group.inodes[share]]), group.is_changed
            )
            self._result.spawn_task(task, task.item_count * SCAN_COST, expands=True)

    def can_change_subtrees(self, parent: Place) -> bool:
        """Return True if the backend may change items of ``parent``, with everything below them, in one call. That is
        so if items need no look in Python (no filter, report or ACL), and if no file system is known to be mounted at
        ``parent`` or below.
        """
        if not enters_several_per_call(self._rank) or self._rank.sources[
            parent.root
        ].expected_mounts.has_expected_mount_at_or_below(parent.path):
            return False
        return self._new_visitor(parent).can_change_without_stat

    def _change_subtrees(
        self, parent: Place, names: Sequence[bytes], inodes: Sequence[int], *, is_changed: bool
    ) -> TaskSteps:
        """Process the contents of sub-directories of ``parent``, and everything below, by one call of the backend."""
        kinds = b"" if is_changed else bytes((_DIRECTORY_LETTER,)) * len(names)
        done = yield from self._change_in_batch(parent, pack_names(names), array("Q", inodes), kinds)
        slow, not_begun = self._rows_left(done)
        self._result.count(counts.UNSCANNED, len(slow) + len(not_begun) - len(names))
        self._add_rows(_Directories(parent, names, inodes, is_changed, True), not_begun)
        yield from self._process_remaining_items(parent, names, inodes, done)
        if slow and is_changed:  # a new task would try the first one in vain, too
            self._add_rows(_Directories(parent, names, inodes, is_changed, False), slow[1:])
            yield from self._enter_directory(parent, names[slow[0]], inodes[slow[0]])
        else:
            yield from self._change_directories(parent, [names[row] for row in slow], [inodes[row] for row in slow])

    def _add_rows(self, group: _Directories, rows: Sequence[int]) -> None:
        """Add those directories of a group whose indices are ``rows`` to those whose contents must be processed."""
        if rows:
            names, inodes = [group.names[row] for row in rows], [group.inodes[row] for row in rows]
            self._remaining.append(group._replace(names=names, inodes=inodes))

    def change_items_with_contents(self, place: Place, listed: ListNamesResult) -> TaskSteps:
        """Change the listed items of directory ``place``, and everything below those that are directories."""
        self._has_begun = True
        names, inodes, kinds = unpack_names(listed.names), listed.inodes, listed.kinds
        done = yield from self._change_in_batch(place, listed.names, inodes, kinds)
        slow, not_begun = self._rows_left(done)
        directories = [row for row in not_begun if kinds[row] == _DIRECTORY_LETTER]
        self._result.count(counts.UNSCANNED, len(directories))
        self.add(place, [names[row] for row in directories], [inodes[row] for row in directories], is_changed=False)
        yield from self._process_remaining_items(place, names, inodes, done)
        others = [*slow, *(row for row in not_begun if kinds[row] != _DIRECTORY_LETTER)]
        yield from self._change_names(place, [names[row] for row in others])

    def _change_in_batch(
        self, parent: Place, names: bytes, inodes: array[int], kinds: bytes
    ) -> TicketGenerator[ChangeTreesResult]:
        """Change items of ``parent``, and everything below, in one call of the backend. If ``parent`` cannot be opened,
        return a result in which all rows are left to the slow path, which reports the error.
        """
        rank, intent = self._rank, self._rank.shared_instance(WantedMetadata)
        try:
            directory = open_checked_directory(rank, parent)
        except Problem:
            number = names.count(b"/") + 1
            result = ChangeTreesResult(BatchOutcomeColumns(number), ItemCounts(), {})
            result.verdicts.codes[:] = bytes((OutcomeCode.SLOW_PATH,)) * number
            return result
        batch = ChangeTreesBatch(
            directory,
            names,
            inodes,
            rank.source_device(parent) or 0,
            MAX_NAMES_IN_SUBTREE,
            ALL_LEVELS,
            call_deadline(rank),
            kinds,
            intent.modes,
            intent.directory_modes,
            intent.uid,
            intent.gid,
        )
        return (yield from rank.execute_batch_counting_changes(batch, partial(_count_changed_items, self._result)))

    def _rows_left(self, done: ChangeTreesResult) -> tuple[Sequence[int], Sequence[int]]:
        """Return the rows that the backend has left to the slow path, and those that it has not begun."""
        codes = done.verdicts.codes
        if codes.count(OutcomeCode.DONE) == len(codes):
            return (), ()
        not_begun = [row for row, code in enumerate(codes) if code == OutcomeCode.CANCELLED]
        return [
            row for row, code in enumerate(codes) if code not in (OutcomeCode.DONE, OutcomeCode.CANCELLED)
        ], not_begun

    def _process_remaining_items(
        self, parent: Place, names: Sequence[bytes], inodes: Sequence[int], done: ChangeTreesResult
    ) -> TaskSteps:
        """Process what remains in the rows that the backend has processed: items of ``parent`` with these names."""
        if any(done.letters):
            rows = [row for row, letter in enumerate(done.letters) if letter]
            yield from self._change_remaining_items(
                parent,
                RemainingItems(
                    b"",
                    0,
                    [names[row] for row in rows],
                    [inodes[row] for row in rows],
                    bytes(done.letters[row] for row in rows),
                ),
            )
        for items in done.remaining:
            place = self._subdirectory_place(parent, items.directory, items.directory_inode)
            yield from self._change_remaining_items(place, items)

    def _change_remaining_items(self, place: Place, remaining: RemainingItems) -> TaskSteps:
        """Process items of directory ``place`` that the backend has not changed. Sub-directories that it has not
        entered are added to those to be entered.
        """
        by_letter: dict[int, list[int]] = {}
        for row, letter in enumerate(remaining.kinds):
            by_letter.setdefault(letter, []).append(row)
        directories = by_letter.pop(_DIRECTORY_LETTER, [])
        self._result.count(counts.UNSCANNED, len(directories))
        names, inodes = remaining.names, remaining.inodes
        self.add(place, [names[row] for row in directories], [inodes[row] for row in directories], is_changed=False)
        for row in by_letter.pop(_REPLACED_LETTER, ()):
            self._count_replaced_item(place, names[row])
        waiting = {names[row]: inodes[row] for row in by_letter.pop(_WAITING_LETTER, ())}
        others = [names[row] for rows in by_letter.values() for row in rows]
        yield from self._change_names(place, [*others, *waiting], waiting.items())

    def _change_directories(self, place: Place, names: Sequence[bytes], inodes: Sequence[int]) -> TaskSteps:
        """Change directories that were listed in directory ``place`` with these inode numbers, and what they contain.
        An item of another type that has taken the name of one is not changed; it counts as failed.
        """
        self._result.count(counts.UNSCANNED, -len(names))
        replaced = set[bytes]()
        with suppress(Problem):  # ``_change_names`` reports the error for each name
            directory = open_checked_directory(self._rank, place)
            for name, inode in zip(names, inodes, strict=True):
                with suppress(OSError):  # likewise
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if not stat.S_ISDIR(status.st_mode) and status.st_ino != inode:  # some listings have wrong types
                        replaced.add(name)
        for name in replaced:
            self._count_replaced_item(place, name)
        yield from self._change_names(place, [name for name in names if name not in replaced])

    def _count_replaced_item(self, place: Place, name: bytes) -> None:
        """Count an item as failed whose name was taken by another item since it was found."""
        self._result.count(counts.FOUND)
        problem = Problem("open", errno.ESTALE, text=EXCHANGED_TEXT)
        self._result.count_item_as_failed(place, name, problem, retry=RetryMode.NEVER)

    def _change_names(
        self, place: Place, names: Sequence[bytes], entered: Collection[tuple[bytes, int]] = ()
    ) -> TaskSteps:
        """Change items of directory ``place`` by the slow path. The directories ``entered`` (name, inode number) need
        not be entered any more.
        """
        if not names:
            return
        try:
            directory = open_checked_directory(self._rank, place)
        except Problem as problem:
            if not problem.changed:
                self._result.count_item_as_failed(place, b"", problem, retry=RetryMode.BY_REPEATED_PHASE)
            return
        listed = ListNamesResult(BatchOutcomeColumns(1), pack_names(names))
        yield from self.change_listed_items(place, directory, listed, entered)

    def _enter_directory(self, parent: Place, name: bytes, inode: int) -> TaskSteps:
        """Change the contents of the directory ``name`` of ``parent``, if it still has this inode number."""
        rank, result = self._rank, self._result
        place = self._subdirectory_place(parent, name, inode)
        try:
            identity = rank.sources[place.root].identity_of_directory(place.path)
            # stat(2) does not trigger an automount, opening the directory does.
            if place.source_id == NO_DIRECTORY_IDENTITY or identity.mount_code != parent.source_id.mount_code:
                place = place._replace(source_id=identity)
            directory = open_checked_directory(rank, place)
            listing = yield from list_directory(rank.backend, directory, detailed=True)
            if not listing.may_have_more_batches:
                yield from rank.throttle.charge_limits_and_wait(operations=2 * listing.name_count)
                yield from self.change_listed_items(place, directory, listing.listed)
            else:
                yield from self._spawn_tasks_for_names(place, listing)
        except Problem as problem:
            if not problem.changed:
                result.count_item_as_failed(place, b"", problem, retry=RetryMode.BY_REPEATED_PHASE)
            elif (replaced := problem_of_replaced_directory(rank, parent)) is not None:
                result.count_item_as_failed(parent, b"", replaced, retry=RetryMode.BY_REPEATED_PHASE)
        result.count(counts.UNSCANNED, -1)

    def _spawn_tasks_for_names(self, place: Place, listing: DirectoryListing) -> TaskSteps:
        """Spawn tasks for the names of a large directory, which ``listing`` reads in portions. Raise ``Problem`` if the
        directory cannot be listed to its end.
        """
        spool = NameBatchQueue(self._rank.open_spool)
        try:
            yield from queue_names_of_directory(listing, spool)
        finally:
            tasks = (ChangeMetadataOfItems(place, *each) for each in map(unpack_name_batch, spool))
            self._result.spawn_tasks_lazily(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)

    def change_listed_items(
        self, place: Place, directory: int, listed: ListNamesResult, entered: Collection[tuple[bytes, int]] = ()
    ) -> TaskSteps:
        """Change the listed items of the open ``directory``. For files and links, the type and inode number in the
        listing may be enough; all others are statted first. The directories among them are added to those to be
        entered, except those in ``entered`` (name, inode number).
        """
        self._has_begun = True
        self._trigger_automounts(place)
        visitor, names = self._new_visitor(place), listed.names
        if listed.kinds and visitor.can_change_without_stat:
            names = yield from visitor.change_listed_files(directory, listed)
        yield from stat_and_visit_names(
            self._rank.backend, directory, names, visitor, follow=False, extra_columns=OWNER_COLUMN | GROUP_COLUMN
        )
        found = [each for each in visitor.subdirectories if each not in entered]
        self._result.count(counts.UNSCANNED, len(found) - len(visitor.subdirectories))
        self.add(place, [name for name, _ in found], [inode for _, inode in found])

    def _trigger_automounts(self, place: Place) -> None:
        """Open each directory in ``place`` on which a file system must be mounted. An automount that has expired is
        thereby mounted again, so that the mounted file system is changed, and not the directory below it.

        Errors are ignored here: the task that enters the directory reports them.
        """
        sources = self._rank.sources[place.root]
        for name in sources.expected_mounts.names_of_expected_mounts_in(place.path):
            with suppress(Problem):
                sources.open(os.path.join(place.path, name))

    def _new_visitor(self, place: Place) -> MetadataChangeVisitorProtocol:
        """Return a new visitor for the items of directory ``place``."""
        return self._rank.visitor(self._rank, self._result, place, 0)  # type: ignore[return-value]

    def _subdirectory_place(self, parent: Place, name: bytes, inode: int) -> Place:
        """Return the position (``Place``) of the sub-directory ``name`` of ``parent``. Its inode number is left out if
        ``inode`` is ``MOUNT_POINT``: then any directory of that name is accepted.
        """
        identity = NO_DIRECTORY_IDENTITY if inode == MOUNT_POINT else ItemIdentity(parent.source_id.mount_code, inode)
        return Place(parent.root, os.path.join(parent.path, name), identity, NO_DIRECTORY_IDENTITY, False, False)


def _count_changed_items(result: TaskResult, done: ChangeTreesResult) -> None:
    """Count the items that the backend has changed in subtrees, and those that had the wanted metadata already. The
    result ``done`` states both numbers.
    """
    sums = done.counts
    found = sums.files + sums.directories + sums.links + sums.other_items
    for counter, number in (
        (counts.FOUND, found),
        (counts.FOUND_BYTES, sums.bytes),
        (counts.BYTES, sums.bytes),
        (counts.MENDED, sums.changed),
        (counts.FILES, sums.files),
        (counts.DIRECTORIES, sums.directories),
        (counts.SYMLINKS, sums.links),
        (counts.SPECIAL, sums.other_items),
    ):
        result.count(counter, number)


class MetadataChangeVisitorProtocol(DirectoryVisitor, Protocol):
    """Protocol: the methods of the visitor of pchmod (``MetadataChangeVisitor``) that this module calls. (The class
    cannot be imported here, since its module imports this one.)
    """

    subdirectories: list[tuple[bytes, int]]

    @property
    def can_change_without_stat(self) -> bool: ...

    def change_listed_files(self, directory: int, listed: ListNamesResult) -> TicketGenerator[bytes]: ...
