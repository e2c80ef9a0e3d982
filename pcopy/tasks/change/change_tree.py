"""ChangeNames and ChangeTree: change modes, owners or ACLs of everything in a tree.

A directory that gains permissions is changed before it is entered. One that loses its owner's permission to enter is
changed after everything below it (``pcopy.tasks.listed.deepest_first``).
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Listed
from pcopy.fsio.kernel.columns import GROUP, OWNER, Code, Verdicts, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import DoneWithin, LeftWithin, MendWithin, SumsWithin
from pcopy.fsio.problem import EXCHANGED, Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.siblings import ToEnter, are_entered_at_once
from pcopy.tasks.base.values import NOWHERE, Place, unpack_numbers
from pcopy.tasks.change.intent import Intent
from pcopy.tasks.listed.deepest_first import open_listed
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread, unpack_listed
from pcopy.walk.visitor import Visitor, visit

MOUNTED = 0
"""Value in place of an inode number for a directory on which a file system is mounted, and which is entered."""


class ChangeNames(Divisible, code=115, doing="changing", is_note=False):
    """Changes ``names`` of a directory, and everything below them. ``kinds`` and ``inodes`` are as in ``Listed``, or
    empty.
    """

    kinds: bytes = b""
    inodes: bytes = b""
    columns = ("kinds", "inodes")
    least_items = 16
    is_found_anew = True
    counts_when_cut = True

    def run(self, rank: Rank, result: Result) -> Steps:
        """Change the names, then the contents of the directories among them."""
        try:
            directory = open_listed(rank, self.place)
        except Problem as problem:
            for name in unpack_names(self.names):
                result.fail(self.place, name, problem, retry=Tried.WHEN_FOUND)
            return
        listed = Listed(Verdicts(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        tree = _Tree(rank, result)
        yield from tree.change(self.place, directory, listed)
        yield from tree.go_on()


class ChangeTree(Divisible, code=116, doing="changing", is_note=False):
    """Changes the contents of the directories ``names`` of ``place``; ``inodes`` are their inode numbers (8 bytes each)
    or ``MOUNTED``.

    The directories have been counted, and changed themselves if that was possible. A directory that cannot be read
    counts a second time, for its unseen contents.
    """

    inodes: bytes

    columns = ("inodes",)
    least_items = 2
    is_found_anew = True
    counts_when_cut = True
    effort = 0

    def run(self, rank: Rank, result: Result) -> Steps:
        tree = _Tree(rank, result)
        tree.add(self.place, unpack_names(self.names), unpack_numbers(self.inodes))
        yield from tree.go_on()


class _Tree(ToEnter):
    """Changes the items of one task, and spawns tasks for what remains."""

    def _are_plain(self, parent: Place) -> bool:
        """Return True if the backend may change the contents of several sub-directories of ``parent`` in one call."""
        if not are_entered_at_once(self._rank) or self._rank.sources[parent.root].mounted.concerns(parent.path):
            return False
        return self._visitor(parent).changes_at_once

    def _enter_all(self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """Change the contents of some sibling directories in one batch; those that the backend cannot process are done
        one by one.
        """
        mended = yield from self._mend_within(parent, names, inodes)
        for row, code in enumerate(mended.verdicts.codes):
            if code != Code.DONE:
                yield from self._enter(parent, names[row], inodes[row])
                continue
            self._result.count(counts.UNSCANNED, -1)
            if row in mended.left:
                place = self._place(parent, names[row], inodes[row])
                yield from self._go_into(place, mended.left[row])

    def _mend_within(self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Stepwise[DoneWithin]:
        """Change the contents of the directories in one batch; return a result in which nothing is done if the parent
        cannot be opened.
        """
        rank, intent = self._rank, self._rank.own(Intent)
        try:
            directory = open_listed(rank, parent)
        except Problem:  # the task of each directory reports it
            return DoneWithin(Verdicts(len(names)), SumsWithin(), {})
        batch = MendWithin(
            directory,
            pack_names(names),
            array("Q", inodes),
            rank.source_device(parent) or 0,
            NAMES_AT_ONCE - 1,
            intent.modes,
            intent.directory_modes,
            intent.uid,
            intent.gid,
        )
        return (yield from rank.counted(batch, partial(_count, self._result)))

    def _go_into(self, place: Place, remaining: LeftWithin) -> Steps:
        """Process the items of a directory that the backend did not change, and add its sub-directories."""
        names = unpack_names(remaining.names)
        rows = [row for row, kind in enumerate(remaining.kinds) if kind == _DIRECTORY]
        if rows:
            self._result.count(counts.UNSCANNED, len(rows))
            self.add(place, [names[row] for row in rows], [remaining.inodes[row] for row in rows])
        if len(rows) == len(names):
            return
        for name, kind in zip(names, remaining.kinds, strict=True):
            if kind == _EXCHANGED:
                self._result.count(counts.FOUND)
                problem = Problem("open", errno.ESTALE, text=EXCHANGED)
                self._result.fail(place, name, problem, retry=Tried.NEVER)
        other_names = [
            name for name, kind in zip(names, remaining.kinds, strict=True) if kind not in (_DIRECTORY, _EXCHANGED)
        ]
        if not other_names:
            return
        try:
            directory = open_listed(self._rank, place)
        except Problem as problem:
            if not problem.changed:
                self._result.count(counts.FOUND)
                self._result.fail(place, b"", problem, retry=Tried.WHEN_FOUND)
            return
        yield from self.change(place, directory, Listed(Verdicts(1), pack_names(other_names)))

    def _enter(self, parent: Place, name: bytes, inode: int) -> Steps:
        """Change the contents of one directory."""
        rank, result = self._rank, self._result
        place = self._place(parent, name, inode)
        try:
            identity = rank.sources[place.root].identity(place.path)
            # stat(2) does not trigger an automount, opening the directory does.
            if place.source_id == NOWHERE or identity.mount != parent.source_id.mount:
                place = place._replace(source_id=identity)
            directory = open_listed(rank, place)
            listing = yield from begin_list(rank.kernel, directory, detailed=True)
            if not listing.is_large:
                yield from rank.throttle.spend(operations=2 * listing.number)
                yield from self.change(place, directory, listing.listed)
            else:
                yield from self._spread(place, listing)
        except Problem as problem:
            if not problem.changed:
                result.fail(place, b"", problem, retry=Tried.WHEN_FOUND)
            elif (replaced := self._replaced(parent)) is not None:
                result.fail(parent, b"", replaced, retry=Tried.WHEN_FOUND)
        result.count(counts.UNSCANNED, -1)

    def _spread(self, place: Place, listing: Listing) -> Steps:
        """Spawn tasks for the names of a large directory; raise ``Problem`` if it cannot be listed to its end."""
        spool = NamesSpool(self._rank.open_spool)
        try:
            yield from spread(listing, spool)
        finally:
            tasks = (ChangeNames(place, *each) for each in map(unpack_listed, spool))
            self._result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)

    def change(self, place: Place, directory: int, listed: Listed) -> Steps:
        """Change names of an open directory: files and links from the listing alone if possible, all others after a
        stat(2).
        """
        self._has_begun = True
        self._enter_mounts(place)
        visitor, names = self._visitor(place), listed.names
        if listed.kinds and visitor.changes_at_once:
            names = yield from visitor.change_plain(directory, listed)
        yield from visit(self._rank.kernel, directory, names, visitor, follow=False, also=OWNER | GROUP)
        if visitor.below:
            found, inodes = zip(*visitor.below, strict=True)
            self.add(place, found, inodes)

    def _enter_mounts(self, place: Place) -> None:
        """Open each directory in ``place`` on which a file system must be mounted, so that an expired automount is
        mounted again before it is changed.

        Errors are reported by the task that enters the directory.
        """
        sources = self._rank.sources[place.root]
        for name in sources.mounted.names_in(place.path):
            with suppress(Problem):
                sources.open(os.path.join(place.path, name))

    def _visitor(self, place: Place) -> Changer:
        return self._rank.visitor(self._rank, self._result, place, 0)  # type: ignore[return-value]

    def _place(self, parent: Place, name: bytes, inode: int) -> Place:
        identity = NOWHERE if inode == MOUNTED else Identity(parent.source_id.mount, inode)
        return Place(parent.root, os.path.join(parent.path, name), identity, NOWHERE, False, False)

    def _task(self, parent: Place, names: bytes, inodes: bytes) -> ChangeTree:
        return ChangeTree(parent, names, inodes)


_DIRECTORY, _EXCHANGED = ord("d"), ord("!")


def _count(result: Result, done: DoneWithin) -> None:
    """Count what the backend has changed or found to be as wanted."""
    sums = done.sums
    found = sums.files + sums.directories + sums.links + sums.others
    for counter, number in (
        (counts.FOUND, found),
        (counts.FOUND_BYTES, sums.bytes),
        (counts.BYTES, sums.bytes),
        (counts.MENDED, sums.changed),
        (counts.FILES, sums.files),
        (counts.DIRECTORIES, sums.directories),
        (counts.SYMLINKS, sums.links),
        (counts.SPECIAL, sums.others),
    ):
        result.count(counter, number)


class Changer(Visitor, Protocol):
    """The members of the visitor ``ChangeVisitor`` that are used here; that module imports this one."""

    below: list[tuple[bytes, int]]

    @property
    def changes_at_once(self) -> bool: ...

    def change_plain(self, directory: int, listed: Listed) -> Stepwise[bytes]: ...
