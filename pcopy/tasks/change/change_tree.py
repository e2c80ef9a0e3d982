"""ChangeMetadataOfItems and ChangeMetadataInDirectories: change modes, owners or ACLs of everything in a tree (pchmod).

A directory is changed before it is entered, since it may gain the permissions that entering needs. A directory to which
the change may deny this process access is changed after everything below it (``pcopy.tasks.listed.deepest_first``).
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ItemCounts, ListNamesResult
from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    OWNER_COLUMN,
    BatchOutcomeColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.directory_batches import (
    DirectoryContentsResult,
    SetMetadataInDirectoriesBatch,
    UnprocessedItems,
)
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import EXCHANGED_TEXT, Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import DirectoriesToEnter, enters_several_per_call
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, unpack_numbers
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
        yield from tree.change_listed_items(self.place, directory, listed)
        yield from tree.enter_directories_while_others_work()


class ChangeMetadataInDirectories(DivisibleTask, code=116, doing="changing", is_note=False):
    """Task that changes the contents of the directories ``names`` (joined by slashes) of ``place``. ``inodes`` are
    their inode numbers (8 bytes each) or ``MOUNT_POINT``.

    The directories themselves have been counted already, and changed if that was possible. A directory that cannot be
    read counts a second time, as failed, for its unseen contents.
    """

    inodes: bytes

    columns = ("inodes",)
    min_items_per_portion = 2
    is_respawned_on_resume = True
    is_counted_if_unfinished = True
    estimated_operations = 0

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        tree = _TreeChanger(rank, result)
        tree.add(self.place, unpack_names(self.names), unpack_numbers(self.inodes))
        yield from tree.enter_directories_while_others_work()


class _TreeChanger(DirectoriesToEnter):
    """Changes the items of one task and of the directories that it enters. Sub-directories that it does not enter
    itself are left to new tasks.
    """

    def _can_enter_several_directories(self, parent: Place) -> bool:
        """Return True if the backend may change the contents of several sub-directories of ``parent`` in one call. That
        is so if items need no look in Python (no filter, report or ACL), and if no file system is mounted there.
        """
        if not enters_several_per_call(self._rank) or self._rank.sources[
            parent.root
        ].expected_mounts.has_expected_mount_at_or_in(parent.path):
            return False
        return self._new_visitor(parent).can_change_without_stat

    def _enter_several_directories(self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]) -> TaskSteps:
        """Change the contents of several sub-directories of ``parent`` in one call of the backend. Enter those that the
        backend cannot process one by one.
        """
        batch_result = yield from self._change_directories_in_batch(parent, names, inodes)
        for row, code in enumerate(batch_result.verdicts.codes):
            if code != OutcomeCode.DONE:
                yield from self._enter_directory(parent, names[row], inodes[row])
                continue
            self._result.count(counts.UNSCANNED, -1)
            if row in batch_result.remaining:
                place = self._subdirectory_place(parent, names[row], inodes[row])
                yield from self._change_remaining_items(place, batch_result.remaining[row])

    def _change_directories_in_batch(
        self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]
    ) -> TicketGenerator[DirectoryContentsResult]:
        """Change the contents of the sub-directories ``names`` of ``parent`` in one call of the backend. If ``parent``
        cannot be opened, return a result in which no directory is done.
        """
        rank, intent = self._rank, self._rank.shared_instance(WantedMetadata)
        try:
            directory = open_checked_directory(rank, parent)
        except Problem:  # ``_enter_directory`` reports the error for each directory
            return DirectoryContentsResult(BatchOutcomeColumns(len(names)), ItemCounts(), {})
        batch = SetMetadataInDirectoriesBatch(
            directory,
            pack_names(names),
            array("Q", inodes),
            rank.source_device(parent) or 0,
            NAMES_PER_BATCH - 1,
            intent.modes,
            intent.directory_modes,
            intent.uid,
            intent.gid,
        )
        return (yield from rank.execute_batch_counting_changes(batch, partial(_count_changed_items, self._result)))

    def _change_remaining_items(self, place: Place, remaining: UnprocessedItems) -> TaskSteps:
        """Change the items of directory ``place`` that the backend has not changed (``remaining``), and add its
        sub-directories to those to be entered.
        """
        names = unpack_names(remaining.names)
        rows = [row for row, kind in enumerate(remaining.kinds) if kind == _LEFT_DIRECTORY_LETTER]
        if rows:
            self._result.count(counts.UNSCANNED, len(rows))
            self.add(place, [names[row] for row in rows], [remaining.inodes[row] for row in rows])
        if len(rows) == len(names):
            return
        for name, kind in zip(names, remaining.kinds, strict=True):
            if kind == _REPLACED_ITEM_LETTER:
                self._result.count(counts.FOUND)
                problem = Problem("open", errno.ESTALE, text=EXCHANGED_TEXT)
                self._result.count_item_as_failed(place, name, problem, retry=RetryMode.NEVER)
        other_names = [
            name
            for name, kind in zip(names, remaining.kinds, strict=True)
            if kind not in (_LEFT_DIRECTORY_LETTER, _REPLACED_ITEM_LETTER)
        ]
        if not other_names:
            return
        try:
            directory = open_checked_directory(self._rank, place)
        except Problem as problem:
            if not problem.changed:
                self._result.count(counts.FOUND)
                self._result.count_item_as_failed(place, b"", problem, retry=RetryMode.BY_REPEATED_PHASE)
            return
        yield from self.change_listed_items(
            place, directory, ListNamesResult(BatchOutcomeColumns(1), pack_names(other_names))
        )

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
            elif (replaced := self._problem_of_replaced_parent(parent)) is not None:
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

    def change_listed_items(self, place: Place, directory: int, listed: ListNamesResult) -> TaskSteps:
        """Change the listed items of the open ``directory``. For files and links, the type and inode number in the
        listing may be enough; all others are statted first.
        """
        self._has_begun = True
        self._trigger_automounts(place)
        visitor, names = self._new_visitor(place), listed.names
        if listed.kinds and visitor.can_change_without_stat:
            names = yield from visitor.change_listed_files(directory, listed)
        yield from stat_and_visit_names(
            self._rank.backend, directory, names, visitor, follow=False, extra_columns=OWNER_COLUMN | GROUP_COLUMN
        )
        if visitor.subdirectories:
            found, inodes = zip(*visitor.subdirectories, strict=True)
            self.add(place, found, inodes)

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

    def _make_subdirectories_task(self, parent: Place, names: bytes, inodes: bytes) -> ChangeMetadataInDirectories:
        return ChangeMetadataInDirectories(parent, names, inodes)


_LEFT_DIRECTORY_LETTER, _REPLACED_ITEM_LETTER = ord("d"), ord("!")
"""Type letters of items that the backend has not changed: a directory, which must be entered; an item that was replaced
since it was listed.
"""


def _count_changed_items(result: TaskResult, done: DirectoryContentsResult) -> None:
    """Count the items that the backend has changed inside directories, and those that had the wanted metadata already.
    The result ``done`` states both numbers.
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
