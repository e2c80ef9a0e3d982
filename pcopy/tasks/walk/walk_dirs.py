"""WalkRoot, WalkDirs and WalkNames: list directories and pass their items to the rank's ``Finder``.

A task continues with the directories that it finds while other ranks have work, too; otherwise it leaves them to new
tasks. The names of a large directory are distributed over the ranks.

Rules: A directory is entered from its parent, never through a symbolic link, and only if it is the one that was found.
A directory that vanished meanwhile is ignored. One that cannot be listed is reported like any other item, but counts as
failed and neither as reported nor as skipped: each item counts once.
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Sequence
from functools import partial

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Listed
from pcopy.fsio.kernel.columns import Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import Look, Paths, Within
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import mount_codes
from pcopy.tasks.base.kind import Divisible, Kind, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.siblings import ToEnter
from pcopy.tasks.base.values import NOWHERE, Place, unpack_numbers
from pcopy.tasks.walk.finder import HERE, Finder, depth_in, kind_of
from pcopy.tasks.walk.tell_found import MOST_TOLD, Handover
from pcopy.walk.listing import NAMES_AT_ONCE, NamesSpool, begin_list, spread, unpack_listed
from pcopy.walk.matching import DIRECTORY, UNKNOWN, Items

MOST_PATHS = 1000
"""Maximum number of names of a directory that is processed in a batch with others, where only paths are reported."""


class WalkRoot(Kind, code=100, doing="walking", is_note=False):
    """Stats the PATH that is the root ``number``, and walks it. Rank 0 runs it, since it has the user's working
    directory.
    """

    number: int

    def about(self) -> tuple[Place, bytes]:
        return Place(self.number, b"", NOWHERE, NOWHERE, False, False), b""

    def run(self, rank: Rank, result: Result) -> Steps:
        """Stat the PATH, report it if the expression matches, and walk it if it is a directory."""
        root, finder = rank.job.roots[self.number], rank.own(Finder)
        place = Place(
            self.number, b"", Identity(mount_codes(rank.job.roots)[self.number][0], root.source_id[1]), NOWHERE, False,
            False,
        )  # fmt: skip
        output = finder.telling
        result.count(counts.FOUND)
        try:
            status = os.lstat(root.source_shown)
        except OSError as error:
            result.fail(place, root.item, Problem.of("stat", error), retry=Tried.NEVER)
            return
        is_directory = stat.S_ISDIR(status.st_mode) and not root.item
        items = Items(HERE, b"", [root.source_shown], bytes((kind_of(status.st_mode),)), Rows.of([status], finder.mask))
        number = finder.tell_root(result, items, output)
        result.count(counts.SKIPPED, 1 - number)
        if number and root.item and finder.summing is not None:
            yield from finder.summing.look_at_layout(result, place, root.item, items)
        walk = _Walk(rank, result, output)
        if is_directory and finder.enters(0) and not items.pruned:
            result.count(counts.UNSCANNED)
            yield from walk.scan(place)
        yield from walk.go_on()


class WalkDirs(Divisible, code=101, doing="walking", is_note=False):
    """Walks the directories ``names`` of ``place`` with everything below them; ``inodes`` are their inode numbers (8
    bytes each).
    """

    inodes: bytes

    columns = ("inodes",)
    least_items = 2

    def run(self, rank: Rank, result: Result) -> Steps:
        walk = _Walk(rank, result, rank.own(Finder).telling)
        walk.add(self.place, unpack_names(self.names), unpack_numbers(self.inodes))
        yield from walk.go_on()


class WalkNames(Divisible, code=102, doing="walking", is_note=False):
    """Tests some names of a large directory, with types and inode numbers from its listing."""

    kinds: bytes
    inodes: bytes

    columns = ("kinds", "inodes")
    operation_count = 1
    least_items = 64

    def run(self, rank: Rank, result: Result) -> Steps:
        """Test the names, and enter the directories among them."""
        walk = _Walk(rank, result, rank.own(Finder).telling)
        try:
            directory = rank.open_source(self.place)
        except Problem as problem:
            names = unpack_names(self.names)
            result.count(counts.FOUND, len(names))
            for name in names:
                result.fail(self.place, name, problem, retry=Tried.NEVER)
            return
        yield from walk.look(self.place, directory, self.names, self.kinds, unpack_numbers(self.inodes))
        yield from walk.go_on()


class _Walk(ToEnter):
    """The walk of one task through directories, until it leaves the remaining ones to new tasks."""

    def __init__(self, rank: Rank, result: Result, telling: Handover) -> None:
        super().__init__(rank, result)
        self._telling = telling
        self._finder = rank.own(Finder)

    def go_on(self) -> Steps:
        """Process the remaining directories, then pass the output to rank 0."""
        yield from super().go_on()
        self._telling.tell(self._rank, self._result)

    def _is_ours(self) -> bool:
        """Return True if this task should enter another directory itself."""
        return self._telling.size < MOST_TOLD and super()._is_ours()

    def _are_plain(self, parent: Place) -> bool:
        """Return True if the backend may list several sub-directories of ``parent`` in one call.

        Not if the backend has threads and items must be statted: then each item may be processed by another thread.
        """
        rank, finder = self._rank, self._finder
        kernel = rank.kernel
        if not kernel.enters or rank.throttle.is_on or finder.opens_items or rank.options.dereference:
            return False
        return (kernel.works_here or not finder.mask) and not rank.sources[parent.root].mounted.any

    def _enter_all(self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """List some sibling directories in one batch; those that the backend cannot process are done one by one."""
        if self._finder.tells_all(depth_in(parent) + 1):
            yield from self._tell_paths(parent, names, inodes)
            return
        found = yield from self._look_into(parent, names, inodes)
        for name, inode, within in zip(names, inodes, found, strict=True):
            if within is None:
                yield from self._enter(parent, name, inode)
            else:
                self._result.count(counts.UNSCANNED, -1)
                yield from self._tell(_below(parent, name, inode), within)

    def _tell_paths(self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]) -> Steps:
        """As ``_enter_all``, where only paths are reported, of all items."""
        rank, result, finder = self._rank, self._result, self._finder
        try:
            directory, device = rank.open_source(parent), rank.source_device(parent) or 0
        except Problem:  # ``_enter`` reports it for each directory
            for name, inode in zip(names, inodes, strict=True):
                yield from self._enter(parent, name, inode)
            return
        batch = Paths(directory, pack_names(names), array("Q", inodes), device, MOST_PATHS, finder.above(parent))
        written = yield from rank.done(batch)
        finder.tell_paths(result, written.text, written.sums, self._telling)
        enters = finder.enters(depth_in(parent) + 1)
        for row, code in enumerate(written.verdicts.codes):
            if code != Code.DONE:
                yield from self._enter(parent, names[row], inodes[row])
                continue
            result.count(counts.UNSCANNED, -1)
            remaining = written.left.get(row)
            if remaining is not None and enters:
                inside = unpack_names(remaining.names)
                result.count(counts.UNSCANNED, len(inside))
                self.add(_below(parent, names[row], inodes[row]), inside, remaining.inodes)

    def _look_into(
        self, parent: Place, names: Sequence[bytes], inodes: Sequence[int]
    ) -> Stepwise[Sequence[Within | None]]:
        """Let the backend list these directories; return what each contains, or None for one that must be done by
        itself.
        """
        rank = self._rank
        try:
            directory, device = rank.open_source(parent), rank.source_device(parent) or 0
        except Problem:  # ``_enter`` reports it for each directory
            return [None] * len(names)
        seen = self._finder.seen_at_once(parent, names)
        batch = Look(directory, pack_names(names), array("Q", inodes), device, NAMES_AT_ONCE - 1, *seen)
        looked = yield from rank.done(batch)
        return [looked.found.get(row) for row in range(len(names))]

    def _tell_all(self, place: Place, packed: bytes, kinds: bytes, inodes: Sequence[int]) -> None:
        """Report the paths of all items of a directory."""
        self._finder.tell_all_in(self._result, place, packed, kinds, self._telling)
        self._go_into_all(place, packed, kinds, inodes)

    def _go_into_all(self, place: Place, packed: bytes, kinds: bytes, inodes: Sequence[int]) -> None:
        """Add all directories among these names to those to be entered, unless they are too deep."""
        if DIRECTORY in kinds and self._finder.enters(depth_in(place)):
            self._go_into(place, packed, inodes, [row for row, kind in enumerate(kinds) if kind == DIRECTORY])

    def _tell(self, place: Place, within: Within) -> Steps:
        """Process what the backend has returned for a directory."""
        if within.summed:
            self._finder.sum_all(self._result, place, within.kinds, within.summed)
            self._go_into_all(place, within.names, within.kinds, within.inodes)
        elif within.names:
            try:
                yield from self.look(place, -1, within.names, within.kinds, within.inodes, within.rows)
            except Problem as problem:
                self._unread(place, problem)
                return
        self._finder.listed(place, len(within.kinds))

    def _enter(self, parent: Place, name: bytes, inode: int) -> Steps:
        """Enter one directory that was found as ``name`` with this inode number."""
        rank = self._rank
        path = parent.path + b"/" + name if parent.path else name
        sources, below = rank.sources[parent.root], parent
        try:
            identity = sources.listed_identity(path, inode, parent.source_id.mount)
            below = Place(parent.root, path, identity, NOWHERE, False, False)
        except Problem as problem:
            self._result.count(counts.UNSCANNED, -1)
            if problem.errno != errno.ENOENT:
                self._unread(parent._replace(path=path), problem)
            elif (replaced := self._replaced(parent)) is not None:
                self._unread(parent, replaced)
            return
        if self._finder.wish.same_device and identity.mount != parent.source_id.mount:
            self._result.count(counts.UNSCANNED, -1)
            return
        yield from self.scan(below)

    def scan(self, place: Place) -> Steps:
        """List a directory and process its items; one that cannot be read has failed."""
        rank, result = self._rank, self._result
        self._has_begun = True
        result.count(counts.UNSCANNED, -1)
        try:
            yield from rank.throttle.spend(operations=2)
            directory = rank.open_source(place)
            listing = yield from begin_list(rank.kernel, directory, detailed=True)
            if listing.is_large:
                spool = NamesSpool(rank.open_spool)
                try:
                    number = yield from spread(listing, spool, partial(self._is_told, place))
                finally:
                    tasks = (WalkNames(place, *unpack_listed(each)) for each in spool)
                    result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)
            else:
                number, listed = listing.number, listing.listed
                if number:
                    yield from self.look(place, directory, listed.names, listed.kinds, listed.inodes)
        except Problem as problem:
            self._unread(place, problem)
            return
        self._finder.listed(place, number)

    def _is_told(self, place: Place, listed: Listed) -> bool:
        """Report some names of a large directory here, if only paths are reported and this task has not reported too
        much yet.

        Return True if they were reported.
        """
        if self._telling.size >= MOST_TOLD or not self._finder.tells_all(depth_in(place)) or UNKNOWN in listed.kinds:
            return False
        self._tell_all(place, listed.names, listed.kinds, listed.inodes)
        return True

    def look(
        self,
        place: Place,
        directory: int,
        packed: bytes,
        kinds: bytes,
        inodes: Sequence[int],
        seen: Rows | None = None,
    ) -> Steps:
        """Test and report names of a directory; arguments as for ``Finder.look``."""
        self._has_begun = True
        if self._rank.throttle.is_on:
            yield from self._rank.throttle.spend(operations=len(kinds))
        if self._finder.tells_all(depth_in(place)) and UNKNOWN not in kinds:
            self._tell_all(place, packed, kinds, inodes)
            return
        rows = yield from self._finder.look(self._result, place, directory, packed, kinds, self._telling, seen)
        if rows:
            self._go_into(place, packed, inodes, rows)

    def _go_into(self, place: Place, packed: bytes, inodes: Sequence[int], rows: Sequence[int]) -> None:
        """Add the directories in these rows to those to be entered."""
        names = packed.split(b"/")
        self._result.count(counts.UNSCANNED, len(rows))
        self.add(place, [names[row] for row in rows], [inodes[row] for row in rows])

    def _unread(self, place: Place, problem: Problem) -> None:
        """Report a directory whose contents cannot be listed. It counted as reported or skipped when it was found, and
        no longer does.
        """
        self._result.count(counts.DIRECTORIES if self._finder.is_told(place) else counts.SKIPPED, -1)
        self._result.fail(place, b"", problem, retry=Tried.NEVER)

    def _task(self, parent: Place, names: bytes, inodes: bytes) -> WalkDirs:
        return WalkDirs(parent, names, inodes)


def _below(parent: Place, name: bytes, inode: int) -> Place:
    """Return the ``Place`` of a sub-directory on the same mount."""
    path = parent.path + b"/" + name if parent.path else name
    return Place(parent.root, path, Identity(parent.source_id.mount, inode), NOWHERE, False, False)
