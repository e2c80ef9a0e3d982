"""ChangeMetadataOfItems and ChangeMetadataInDirectories: change modes, owners or ACLs of everything in a tree (pchmod).

A directory is changed before it is entered, since it may gain the permissions that entering needs. A directory to which
the change may deny this process access is changed after everything below it (``pcopy.tasks.listed.deepest_first``).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ListNamesResult
from pcopy.fsio.backend.columns import GROUP_COLUMN, OWNER_COLUMN, BatchOutcomeColumns, pack_names, unpack_names
from pcopy.fsio.backend.walk_batches import ChangeTreesBatch, WalkResult
from pcopy.fsio.problem import EXCHANGED_TEXT, Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import Siblings
from pcopy.tasks.base.tree_walk import (
    TreeWalk,
    directory_below,
    may_enter_subtrees,
    problem_of_other_directory,
    spawn_tasks_for_names,
    walk_rows,
)
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, unpack_numbers
from pcopy.tasks.change.intended_metadata import WantedMetadata
from pcopy.tasks.listed.deepest_first import open_checked_directory
from pcopy.walk.listing import list_directory
from pcopy.walk.visitor import DirectoryVisitor, stat_and_visit_names

MOUNT_POINT = 0
"""Value in place of a directory's inode number: a file system is mounted on the directory. It is entered
nevertheless.
"""
_REPLACED_LETTER, _WAITING_LETTER, _DIRECTORY_LETTER = b"!xd"
"""Letters of items that the backend has not changed (``ChangeTreesBatch``), and of directories."""


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
        walk = _ChangeWalk(rank, result)
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        found = Siblings(self.place, names, inodes, kinds=self.kinds, are_visited=False)
        if self.kinds and not rank.shared_instance(JobFilter).has_filters and walk.may_be_rows(found):
            yield from walk.change_items_with_contents(found)
        else:
            listed = ListNamesResult(BatchOutcomeColumns(1), self.names, 0, self.kinds, inodes)
            yield from walk.change_listed_items(self.place, directory, listed)
        yield from walk.enter_directories_while_others_work()


class ChangeMetadataInDirectories(DivisibleTask, code=116, doing="changing", is_note=False):
    """Task that changes the contents of the directories ``names`` (joined by slashes) of ``place``. ``inodes`` are
    their inode numbers (8 bytes each) or ``MOUNT_POINT``.

    If ``is_changed`` is true, the directories themselves have been counted already, and changed if that was possible. A
    directory that cannot be read counts a second time, as failed, for its unseen contents. If it is false, the task
    changes the directories, too. ``are_simple`` is false if the backend could not process them.
    """

    inodes: bytes
    is_changed: bool = True
    are_simple: bool = True

    columns = ("inodes",)
    min_items_per_portion = 2
    is_respawned_on_resume = True
    is_counted_if_unfinished = True
    estimated_operations = 0

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        walk = _ChangeWalk(rank, result)
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        walk.put_back(Siblings(self.place, names, inodes, are_visited=self.is_changed, are_simple=self.are_simple))
        yield from walk.enter_directories_while_others_work()


class _ChangeWalk(TreeWalk):
    """The visitor of pchmod: changes items, and directories before or after they are entered."""

    def new_task(self, found: Siblings) -> ChangeMetadataInDirectories:
        return ChangeMetadataInDirectories(*found.packed(), found.are_visited, found.are_simple)

    def may_be_rows(self, found: Siblings) -> bool:
        """Return True if the backend may change items of one directory, with everything below them, in one call. That
        is so if items need no look in Python (no limit of age or size, report or ACL), and if no file system is mounted
        in the directory or below. With filters it is not so for the PATHs, which the path in patterns does not include.
        """
        parent = found.parent
        if not parent.path and self._rank.shared_instance(JobFilter).has_filters:
            return False
        return (
            may_enter_subtrees(self._rank, (self._rank.sources[parent.root], parent.path))
            and self._new_visitor(parent).can_change_without_stat
        )

    def open_parent(self, parent: Place) -> Sequence[int]:
        return (open_checked_directory(self._rank, parent),)

    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> TicketGenerator[WalkResult]:
        """Change items and everything below them, or only what is in them if they are directories that were visited."""
        rank, intent, parent = self._rank, self._rank.shared_instance(WantedMetadata), found.parent
        batch = ChangeTreesBatch(
            *walk_rows(rank, directories[0], rank.source_device(parent), found, above=parent.path.partition(b"/")[2]),
            b"" if found.are_visited else found.letters,
            intent.modes,
            intent.directory_modes,
            intent.uid,
            intent.gid,
        )
        return rank.execute_batch_counting_changes(batch, partial(_count_changed_items, self._result))

    def change_items_with_contents(self, found: Siblings) -> TaskSteps:
        """Change items of one directory, and everything below those that are directories."""
        self._has_begun = True
        deferred, not_begun = yield from self.process_rows(found)
        directories, others = found.selected(not_begun).divided_by_type()
        self.add(directories)
        yield from self._change_names(found.parent, [*(found.names[row] for row in deferred), *others.names])

    def process_remaining_items(self, found: Siblings) -> TaskSteps:
        """Process items that the backend has not changed."""
        place, waiting, others = found.parent, dict[bytes, int](), list[bytes]()
        for name, inode, letter in zip(found.names, found.inodes, found.kinds, strict=True):
            if letter == _REPLACED_LETTER:
                self._count_replaced_item(place, name)
            elif letter == _WAITING_LETTER:
                waiting[name] = inode
            else:
                others.append(name)
        yield from self._change_names(place, [*others, *waiting], waiting.items())

    def visit_directories(self, found: Siblings) -> TaskSteps:
        """Change directories, and what they contain. Another item that has taken the name of one, also by a mount, is
        not changed; it counts as failed.
        """
        rank, place, replaced = self._rank, found.parent, set[bytes]()
        with suppress(Problem):  # ``_change_names`` reports the error for each name
            directory = open_checked_directory(rank, place)
            for name, inode in zip(found.names, found.inodes, strict=True):
                with suppress(OSError):  # likewise
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if inode in (status.st_ino, MOUNT_POINT):
                        continue
                    if not stat.S_ISDIR(status.st_mode) or problem_of_other_directory(rank, place, name, inode):
                        replaced.add(name)  # the numbers are compared, because some listings have wrong types
        for name in replaced:
            self._count_replaced_item(place, name)
        names = [name for name in found.names if name not in replaced]
        yield from self._change_names(place, names, directories=names)

    def _count_replaced_item(self, place: Place, name: bytes) -> None:
        """Count an item as failed whose name was taken by another item since it was found."""
        self._result.count(counts.FOUND)
        problem = Problem("open", errno.ESTALE, text=EXCHANGED_TEXT)
        self._result.count_item_as_failed(place, name, problem, retry=RetryMode.NEVER)

    def _change_names(
        self,
        place: Place,
        names: Sequence[bytes],
        entered: Collection[tuple[bytes, int]] = (),
        directories: Collection[bytes] = (),
    ) -> TaskSteps:
        """Change items of directory ``place`` by the slow path. See ``change_listed_items``."""
        if not names:
            return
        try:
            directory = open_checked_directory(self._rank, place)
        except Problem as problem:
            self._result.count_item_as_failed(place, b"", problem, retry=RetryMode.BY_REPEATED_PHASE)
            return
        listed = ListNamesResult(BatchOutcomeColumns(1), pack_names(names))
        yield from self.change_listed_items(place, directory, listed, entered, directories)

    def enter_directory(self, parent: Place, name: bytes, inode: int, other_inode: int) -> TaskSteps:
        """Change the contents of the directory ``name`` of ``parent``, if it still has this inode number."""
        rank, result = self._rank, self._result
        place = directory_below(parent, name, inode)
        if inode == MOUNT_POINT:
            place = place._replace(source_id=NO_DIRECTORY_IDENTITY)
        try:
            identity = rank.sources[place.root].identity_of_directory(place.path)
            # stat(2) does not trigger an automount, opening the directory does.
            if inode == MOUNT_POINT or identity.mount_code != parent.source_id.mount_code:
                place = place._replace(source_id=identity)
            directory = open_checked_directory(rank, place)
            listing = yield from list_directory(rank.backend, directory, detailed=True)
            if not listing.may_have_more_batches:
                yield from rank.throttle.charge_limits_and_wait(operations=2 * listing.name_count)
                yield from self.change_listed_items(place, directory, listing.listed)
            else:
                yield from spawn_tasks_for_names(rank, result, listing, partial(ChangeMetadataOfItems, place))
        except Problem as problem:
            result.count_item_as_failed(place, b"", problem, retry=RetryMode.BY_REPEATED_PHASE)

    def change_listed_items(
        self,
        place: Place,
        directory: int,
        listed: ListNamesResult,
        entered: Collection[tuple[bytes, int]] = (),
        directories: Collection[bytes] = (),
    ) -> TaskSteps:
        """Change the listed items of the open ``directory``. For files and links, the type and inode number in the
        listing may be enough; all others are statted first. The directories among them are added to those to be
        entered, except those in ``entered`` (name, inode number).

        ``directories`` are names of directories in a listing that did not state types here (``listed.kinds``).
        """
        self._has_begun = True
        self._trigger_automounts(place)
        visitor, names = self._new_visitor(place), listed.names
        visitor.listed_directories = directories
        if _DIRECTORY_LETTER in listed.kinds:
            pairs = zip(unpack_names(names), listed.kinds, strict=True)
            visitor.listed_directories = [name for name, kind in pairs if kind == _DIRECTORY_LETTER]
        has_filters = self._rank.shared_instance(JobFilter).has_filters
        if listed.kinds and visitor.can_change_without_stat and not has_filters:
            names = yield from visitor.change_listed_files(directory, listed)
        yield from stat_and_visit_names(
            self._rank.backend, directory, names, visitor, follow=False, extra_columns=OWNER_COLUMN | GROUP_COLUMN
        )
        found = [each for each in visitor.subdirectories if each not in entered]
        self.add(Siblings(place, [name for name, _ in found], [inode for _, inode in found]))

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


def _count_changed_items(result: TaskResult, done: WalkResult) -> None:
    """Count the items that the backend has changed in subtrees, and those that had the wanted metadata already. The
    result ``done`` states both numbers.
    """
    sums = done.counts
    found = sums.files + sums.directories + sums.links + sums.other_items
    result.count_excluded_items(sums.excluded)
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
    listed_directories: Collection[bytes]

    @property
    def can_change_without_stat(self) -> bool: ...

    def change_listed_files(self, directory: int, listed: ListNamesResult) -> TicketGenerator[bytes]: ...
