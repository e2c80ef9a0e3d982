"""ChangeNames and ChangeTree: what is in a tree gets other modes, owners or ACLs.

A directory that gets permissions gets them before anybody enters it, one that loses its owner's way in loses that when
all below it is done (``pcopy.tasks.listed.deepest_first``).
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
"""In the place of an inode: something is mounted there, and is entered."""


class ChangeNames(Divisible, code=115, doing="changing", is_note=False):
    """Changes ``names`` of a directory, and all that is below them. ``kinds`` and ``inodes`` as in ``Listed``, or
    empty."""

    kinds: bytes = b""
    inodes: bytes = b""
    columns = ("kinds", "inodes")
    least_items = 16
    is_found_anew = True
    counts_when_cut = True

    def run(self, rank: Rank, result: Result) -> Steps:
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
    """Changes what is in the directories ``names`` of ``place``, which have these ``inodes`` (8 bytes each; or
    ``MOUNTED``). They have been counted, and changed themselves, as far as they could be.

    One that cannot be read counts once more: as what is in it, which nobody has seen.
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
    """What one task changes, and where it goes on."""

    def _are_plain(self, around: Place) -> bool:
        if not are_entered_at_once(self._rank) or self._rank.sources[around.root].mounted.concerns(around.path):
            return False
        return self._visitor(around).changes_at_once

    def _enter_all(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """Enters some that lie beside each other; those that are no plain cases one by one."""
        mended = yield from self._mend_within(around, names, inodes)
        for row, code in enumerate(mended.verdicts.codes):
            if code != Code.DONE:
                yield from self._enter(around, names[row], inodes[row])
                continue
            self._result.count(counts.UNSCANNED, -1)
            if row in mended.left:
                place = self._place(around, names[row], inodes[row])
                yield from self._go_into(place, mended.left[row])

    def _mend_within(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Stepwise[DoneWithin]:
        rank, intent = self._rank, self._rank.own(Intent)
        try:
            directory = open_listed(rank, around)
        except Problem:  # which each tells by itself
            return DoneWithin(Verdicts(len(names)), SumsWithin(), {})
        batch = MendWithin(
            directory,
            pack_names(names),
            array("Q", inodes),
            rank.source_device(around) or 0,
            NAMES_AT_ONCE - 1,
            intent.modes,
            intent.directory_modes,
            intent.uid,
            intent.gid,
        )
        return (yield from rank.counted(batch, partial(_count, self._result)))

    def _go_into(self, place: Place, left: LeftWithin) -> Steps:
        """What the kernel has left of a directory."""
        names = unpack_names(left.names)
        rows = [row for row, kind in enumerate(left.kinds) if kind == _DIRECTORY]
        if rows:
            self._result.count(counts.UNSCANNED, len(rows))
            self.add(place, [names[row] for row in rows], [left.inodes[row] for row in rows])
        if len(rows) == len(names):
            return
        for name, kind in zip(names, left.kinds, strict=True):
            if kind == _EXCHANGED:
                self._result.count(counts.FOUND)
                problem = Problem("open", errno.ESTALE, text=EXCHANGED)
                self._result.fail(place, name, problem, retry=Tried.NEVER)
        others = [name for name, kind in zip(names, left.kinds, strict=True) if kind not in (_DIRECTORY, _EXCHANGED)]
        if not others:
            return
        try:
            directory = open_listed(self._rank, place)
        except Problem as problem:
            if not problem.changed:
                self._result.count(counts.FOUND)
                self._result.fail(place, b"", problem, retry=Tried.WHEN_FOUND)
            return
        yield from self.change(place, directory, Listed(Verdicts(1), pack_names(others)))

    def _enter(self, around: Place, name: bytes, inode: int) -> Steps:
        """Changes what is in one directory."""
        rank, result = self._rank, self._result
        place = self._place(around, name, inode)
        try:
            identity = rank.sources[place.root].identity(place.path)
            if place.source_id == NOWHERE or identity.mount != around.source_id.mount:  # a look mounts nothing
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
            elif (replaced := self._replaced(around)) is not None:
                result.fail(around, b"", replaced, retry=Tried.WHEN_FOUND)
        result.count(counts.UNSCANNED, -1)

    def _spread(self, place: Place, listing: Listing) -> Steps:
        spool = NamesSpool(self._rank.open_spool)
        try:
            yield from spread(listing, spool)
        finally:
            tasks = (ChangeNames(place, *each) for each in map(unpack_listed, spool))
            self._result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)

    def change(self, place: Place, directory: int, listed: Listed) -> Steps:
        """Changes names of an open directory: what is plain at once."""
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
        """Open what has to be mounted in ``place``, so that an automount that has expired is mounted again before its
        top directory is looked at and changed. The task that enters one reports why it cannot be opened."""
        sources = self._rank.sources[place.root]
        for name in sources.mounted.names_in(place.path):
            with suppress(Problem):
                sources.open(os.path.join(place.path, name))

    def _visitor(self, place: Place) -> Changer:
        return self._rank.visitor(self._rank, self._result, place, 0)  # type: ignore[return-value]

    def _place(self, around: Place, name: bytes, inode: int) -> Place:
        identity = NOWHERE if inode == MOUNTED else Identity(around.source_id.mount, inode)
        return Place(around.root, os.path.join(around.path, name), identity, NOWHERE, False, False)

    def _task(self, around: Place, names: bytes, inodes: bytes) -> ChangeTree:
        return ChangeTree(around, names, inodes)


_DIRECTORY, _EXCHANGED = ord("d"), ord("!")


def _count(result: Result, done: DoneWithin) -> None:
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
    """The visitor, as far as it matters here (which imports this)."""

    below: list[tuple[bytes, int]]

    @property
    def changes_at_once(self) -> bool: ...

    def change_plain(self, directory: int, listed: Listed) -> Stepwise[bytes]: ...
